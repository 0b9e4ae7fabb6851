//! One turn on its way through the driver: its events, its errors, and the text its tokens make.

mod error;
mod event;
mod generation;

pub use error::TurnError;
pub use event::{Finish, PruneTime, Timeline, TokenPiece, TurnEnd, TurnEvent, Usage};
pub use generation::{Generation, GenerationOptions};
