//! A rank of a group of processes that does not lead: it has no server and no store, only its leader.

use std::time::Duration;

use hawser_common::clock::{Clock, Tick};
use hawser_common::said::Said;
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
/// The same, where another process has the rank.
const TAKEN_RETRY: Duration = Duration::from_secs(2);
/// Longest that another process may have the rank, or so many times as long as a leader takes to find that one hangs:
/// whoever takes the place of a process that has just died is let in before.
const TAKEN_LIMIT: Duration = Duration::from_secs(15);
const TAKEN_TIMEOUTS: u32 = 3;

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

/// What comes after a try that failed. Pure; time is an argument.
#[derive(Debug)]
struct Tries {
    taken_limit: Duration,
    /// Since when every try was told that another process has the rank.
    taken: Option<Tick>,
    said: Said,
}

impl Tries {
    fn new(rank_timeout: Duration) -> Self {
        Self {
            taken_limit: TAKEN_LIMIT.max(rank_timeout * TAKEN_TIMEOUTS),
            taken: None,
            said: Said::default(),
        }
    }

    /// Whether people have yet to hear of this one.
    fn is_news(&mut self, error: &FollowError) -> bool {
        if matches!(error, FollowError::Rank(_)) {
            // It had joined: the same may end a group twice.
            self.said.clear();
        }
        self.said.is_news(&error.to_string())
    }

    /// How long to wait before the next one; `None`: there is none.
    fn after(&mut self, error: &FollowError, now: Tick) -> Option<Duration> {
        if error.is_lasting() {
            return None;
        }
        if !matches!(error, FollowError::Taken { .. }) {
            self.taken = None;
            return Some(RETRY);
        }
        let since = *self.taken.get_or_insert(now);
        (now.since(since) < self.taken_limit).then_some(TAKEN_RETRY)
    }
}

/// Loads this rank's shard and follows the leader from epoch to epoch. Blocks until the leader ends the group in good
/// order or refuses the rank, another process keeps it, or the two cannot trust each other.
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
    let (clock, mut tries) = (Clock::system(), Tries::new(Duration::from_millis(options.rank_timeout_ms)));
    loop {
        let Err(error) = follower.run(rand::random()) else { return Ok(()) };
        let Some(wait) = tries.after(&error, clock.now()) else { return Err(error.into()) };
        if tries.is_news(&error) {
            tracing::warn!(rank = options.rank, %error, "not in the group; trying on");
        }
        std::thread::sleep(wait.mul_f64(0.5 + rand::random::<f64>()));
    }
}

#[cfg(test)]
mod tests {
    use hawser_device::collective::ConnectionError;

    use super::*;
    use crate::ranks::RankError;

    #[test]
    fn a_rank_that_another_process_keeps_is_given_up_and_one_that_is_let_go_is_not() {
        let at = |seconds| Tick(Duration::from_secs(seconds));
        let address = || "leader:7100".to_owned();
        let taken = FollowError::Taken { rank: 1, world: 2, address: address(), by: "other:1".to_owned() };
        let away = FollowError::Connect { address: address(), source: ConnectionError::Closed };
        let refused = FollowError::Refused { address: address(), reason: "another model".to_owned() };
        let mut tries = Tries::new(Duration::from_secs(2));
        assert_eq!(tries.after(&taken, at(0)), Some(TAKEN_RETRY));
        assert_eq!(tries.after(&taken, at(14)), Some(TAKEN_RETRY));
        // The group broke up meanwhile: who has the rank now is open.
        assert_eq!(tries.after(&away, at(14)), Some(RETRY));
        assert_eq!(tries.after(&taken, at(15)), Some(TAKEN_RETRY));
        assert_eq!(tries.after(&taken, at(30)), None);
        assert_eq!(Tries::new(Duration::from_secs(2)).after(&refused, at(0)), None);
        let mut patient = Tries::new(Duration::from_secs(60));
        assert_eq!(patient.after(&taken, at(0)), Some(TAKEN_RETRY));
        assert_eq!(patient.after(&taken, at(179)), Some(TAKEN_RETRY), "a leader may take so long to notice");
        let mut tries = Tries::new(Duration::from_secs(2));
        assert!(tries.is_news(&taken) && !tries.is_news(&taken), "it is said once");
        assert!(
            tries.is_news(&away) && !tries.is_news(&away) && tries.is_news(&taken),
            "and when it changes"
        );
        let lost = FollowError::Rank(RankError::Tables { step: 64 });
        assert!(tries.is_news(&lost) && tries.is_news(&lost), "each time that a group ends");
        let said = taken.to_string();
        assert!(said.contains("rank 1 of 2 is taken") && said.contains("other:1"), "{said}");
    }
}
