//! A rank of a group of processes that does not lead: it has no server and no store, only its leader.

use std::time::Duration;

use hawser_common::clock::Clock;
use hawser_common::telemetry::Telemetry;
use hawser_common::{Coded, ErrorCode};
use hawser_device::collective::{RankTls, RankTlsError};
use hawser_model::checkpoint::Checkpoint;
use thiserror::Error;

use super::load::{LoadError, shard_plan, shards};
use crate::options::{InvalidOptions, WorkerOptions};
use crate::ranks::{FollowError, Follower, RankWatch};

/// Between two tries to join the leader.
const RETRY: Duration = Duration::from_millis(300);

/// Why a follower ended.
#[derive(Debug, Error)]
pub enum FollowerError {
    #[error(transparent)]
    Options(#[from] InvalidOptions),
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error("worker.rank_tls: {0}")]
    Tls(#[from] RankTlsError),
    #[error(transparent)]
    Follow(#[from] FollowError),
}

impl Coded for FollowerError {
    fn code(&self) -> ErrorCode {
        match self {
            Self::Options(error) => error.code(),
            Self::Load(error) => error.code(),
            Self::Tls(error) => error.code(),
            Self::Follow(error) => error.code(),
        }
    }
}

/// Loads this rank's shard and follows the leader from epoch to epoch. Blocks until the leader ends the group in good
/// order or refuses the rank, or the two cannot trust each other.
///
/// # Errors
/// [`FollowerError`]; a leader that is away or a group that failed is no error, and is tried again.
pub fn follow_leader(options: &WorkerOptions) -> Result<(), FollowerError> {
    follow_leader_observed(options, &Telemetry::off())
}

/// The same, under watch.
///
/// # Errors
/// As [`follow_leader`].
pub fn follow_leader_observed(options: &WorkerOptions, telemetry: &Telemetry) -> Result<(), FollowerError> {
    options.validate()?;
    let tls = RankTls::read(&options.rank_tls)?;
    let checkpoint = Checkpoint::open(&options.model).map_err(LoadError::from)?;
    let plan = shard_plan(&checkpoint, options)?;
    let shard = shards(&checkpoint, options, &plan)?.swap_remove(0);
    let follower = Follower {
        shard,
        model: checkpoint.digest().to_string(),
        rank: options.rank,
        world: options.world,
        leader: options.rendezvous.clone(),
        threads: options.thread_count(),
        gpu: options.gpu,
        tls,
        watch: Some(RankWatch { tracer: telemetry.tracer.clone(), clock: Clock::system() }),
    };
    drop(checkpoint);
    loop {
        match follower.run(rand::random()) {
            Ok(()) => return Ok(()),
            Err(error) if error.is_lasting() => return Err(error.into()),
            Err(error) => tracing::warn!(rank = options.rank, %error, "trying to join the group again"),
        }
        std::thread::sleep(RETRY.mul_f64(0.5 + rand::random::<f64>()));
    }
}
