//! The Rust SDK: sessions that resend their history by themselves when a group is lost.
//!
//! A [`Client`] is one connection to a router. A [`Session`] keeps the conversation and sends only what is new since
//! the last turn; when the cluster no longer holds the session (its group died, its rows were dropped) the session
//! resends everything by itself, so that a lost group costs time and never the conversation. A [`Turn`] yields what
//! happens as it happens.
//!
//! What it never does: retry after text was delivered. A turn that breaks off ends with an error, and the session's
//! history stays at the last turn that ended well.
//!
//! ```no_run
//! use hawser_client::{Client, Sampling, TurnEvent};
//!
//! # async fn example() -> Result<(), hawser_client::ClientError> {
//! let client = Client::connect("http://127.0.0.1:7070").await?;
//! let mut session = client
//!     .session()
//!     .system("You are a terse assistant.")
//!     .sampling(Sampling::new().temperature(0.7).max_tokens(200))
//!     .start();
//!
//! let mut turn = session.say("Why is the sky blue?").await?;
//! while let Some(event) = turn.next().await? {
//!     match event {
//!         TurnEvent::Placed(placed) => eprintln!("runs on {}", placed.group),
//!         TurnEvent::Tokens(tokens) => eprint!("{}", tokens.text),
//!         TurnEvent::Finished(report) => eprintln!("\n{} tokens were reused", report.usage.reused_tokens),
//!     }
//! }
//! # Ok(())
//! # }
//! ```

mod connection;
mod error;
mod frames;
mod message;
mod retry;
mod sampling;
mod session;
mod turn;

#[cfg(test)]
mod fake;
#[cfg(test)]
mod session_tests;

pub use connection::{Client, ClientBuilder};
pub use error::ClientError;
pub use frames::{Frame, FrameStream};
pub use hawser_common::chat::{Message, Role, Tool, ToolCall};
pub use hawser_common::tls::ClientTls;
pub use hawser_common::{ErrorCode, Keepalive, Secret, SessionId};
pub use hawser_proto::v1 as wire;
pub use message::tool_result;
pub use retry::Retry;
pub use sampling::Sampling;
pub use session::{Session, SessionBuilder};
pub use turn::{Continued, Outcome, Placed, Tokens, Turn, TurnEvent, TurnReport};
