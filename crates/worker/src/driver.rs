//! The driver thread: it alone owns the scheduler, the executor and the running generations.
//!
//! Commands come in over one bounded channel; events go out over one bounded channel per turn. A turn whose reader
//! is gone is aborted before the next step; a turn whose reader is slow is paused and holds back nobody else.

mod command;
mod moves;
mod run;

pub use command::{Command, DriverHandle, DriverOptions, Turn, Weights};
pub use moves::{Arrival, Arriving, Departure, MoveError};

use std::thread::JoinHandle;

use hawser_common::clock::Clock;
use thiserror::Error;
use tokio::sync::watch;

use crate::metrics::WorkerMetrics;
use crate::ranks::{FormError, Formation};
use run::Driver;

/// Why a driver did not start.
#[derive(Debug, Error)]
pub enum DriverError {
    #[error(transparent)]
    Form(#[from] FormError),
    #[error("cannot start a thread: {0}")]
    Thread(std::io::Error),
}

/// Forms the group and starts the thread. It ends when every handle is dropped.
///
/// # Errors
/// [`DriverError`] if the ranks do not come together or the operating system refuses the thread.
pub fn spawn(
    formation: Box<dyn Formation>,
    options: DriverOptions,
    clock: Clock,
) -> Result<(DriverHandle, JoinHandle<()>), DriverError> {
    spawn_observed(formation, options, clock, WorkerMetrics::default())
}

/// The same, under watch.
///
/// # Errors
/// As [`spawn`].
pub fn spawn_observed(
    formation: Box<dyn Formation>,
    options: DriverOptions,
    clock: Clock,
    metrics: WorkerMetrics,
) -> Result<(DriverHandle, JoinHandle<()>), DriverError> {
    let (commands, inbox) = std::sync::mpsc::sync_channel(options.queue);
    let driver = Driver::new(formation, &options, clock, inbox)?.observed_by(metrics);
    let (capacity, latest) = watch::channel(driver.capacity());
    let (is_up, report) = (driver.is_up(), driver.report());
    let thread = std::thread::Builder::new()
        .name("hawser-driver".to_owned())
        .spawn(move || driver.run(&capacity))
        .map_err(DriverError::Thread)?;
    Ok((DriverHandle::new(commands, latest, (is_up, report)), thread))
}
