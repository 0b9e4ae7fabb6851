//! The driver thread: it alone owns the scheduler, the executor and the running generations.
//!
//! Commands come in over one bounded channel; events go out over one bounded channel per turn. A turn whose reader
//! is gone is aborted before the next step; a turn whose reader is slow is paused and holds back nobody else.

mod command;
mod run;

pub use command::{Command, DriverHandle, DriverOptions, Turn};

use std::thread::JoinHandle;

use hawser_common::clock::Clock;
use hawser_model::executor::Executor;
use tokio::sync::watch;

use run::Driver;

/// Starts the thread. It ends when every handle is dropped.
///
/// # Errors
/// If the operating system refuses the thread.
pub fn spawn(
    executor: Executor,
    options: DriverOptions,
    clock: Clock,
) -> Result<(DriverHandle, JoinHandle<()>), std::io::Error> {
    let (commands, inbox) = std::sync::mpsc::sync_channel(options.queue);
    let driver = Driver::new(executor, &options, clock, inbox);
    let (capacity, latest) = watch::channel(driver.capacity());
    let thread =
        std::thread::Builder::new().name("hawser-driver".to_owned()).spawn(move || driver.run(&capacity))?;
    Ok((DriverHandle::new(commands, latest), thread))
}
