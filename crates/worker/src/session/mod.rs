//! Sessions as their clients know them: the committed conversation, apart from the KV rows that the scheduler caches.
//!
//! A session is checked out for one turn at a time. Nothing of a turn is visible before it is committed, so an
//! aborted turn leaves the session as the last committed one left it.

mod directory;
mod prompt;
mod transcript;

pub use directory::{Held, Sessions, SessionsOptions, Summary};
pub use prompt::{Prompt, Text, build_prompt};
pub use transcript::{History, Transcript};
