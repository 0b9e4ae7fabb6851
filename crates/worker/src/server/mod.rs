//! The leader's gRPC surface: thin handlers over the turn service and the sessions.

mod frames;
mod inspect;
mod intent;
mod ranks;
mod sessions;
mod stream;
mod turns;
mod worker;

pub(crate) use sessions::SessionService;
pub(crate) use turns::Shared;
pub(crate) use worker::WorkerService;
