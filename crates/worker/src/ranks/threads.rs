//! A group in one process: a thread per rank, the leader's being the driver's own.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use hawser_device::collective::{Collective, ThreadGroup};
use hawser_model::executor::{Executor, ExecutorOptions};
use hawser_model::layers::Model;

use super::follower::follow;
use super::formation::{FormError, Formation};
use super::leader::Leader;
use super::link::Link;
use super::rank::Rank;
use super::traced::RankWatch;

/// One rank per model shard, in the order of the ranks.
#[derive(Debug)]
pub struct Threads {
    shards: Vec<Arc<Model>>,
    options: ExecutorOptions,
    /// Longest that a rank waits for another.
    timeout: Duration,
    followers: Vec<JoinHandle<()>>,
    watch: Option<RankWatch>,
}

impl Threads {
    #[must_use]
    pub fn new(shards: Vec<Arc<Model>>, options: ExecutorOptions, timeout: Duration) -> Self {
        Self { shards, options, timeout, followers: Vec::new(), watch: None }
    }

    /// The same, under watch.
    #[must_use]
    pub fn watched_by(mut self, watch: RankWatch) -> Self {
        self.watch = Some(watch);
        self
    }

    /// Waits for the followers of the epoch before: they were told, and their memory is needed.
    fn join(&mut self) {
        for follower in self.followers.drain(..) {
            // A rank that panicked has said so on standard error.
            let _ = follower.join();
        }
    }
}

impl Formation for Threads {
    fn form(&mut self, epoch: u64) -> Result<Leader, FormError> {
        self.join();
        let world = self.shards.len();
        if world == 1 {
            let executor = Executor::new(Arc::clone(&self.shards[0]), self.options)?;
            return Ok(Leader::alone(Rank::new(executor, epoch)));
        }
        let sums = ThreadGroup::new(world, self.timeout);
        let links = ThreadGroup::new(world, self.timeout);
        let mut leader = None;
        for (rank, (sum, link)) in sums.into_iter().zip(links).enumerate() {
            let abort = sum.abort_handle();
            let shard = Arc::clone(&self.shards[rank]);
            let executor = Executor::in_group(shard, self.options, Box::new(sum))?;
            let state = Rank::new(executor, epoch).watched_by(self.watch.clone(), rank);
            let mut link = Link::new(Box::new(link));
            if rank == 0 {
                leader = Some(Leader::of(state, link, abort));
                continue;
            }
            let mut state = state;
            let run = move || {
                if let Err(error) = follow(&mut state, &mut link) {
                    tracing::warn!(rank, epoch, %error, "a rank has left the group");
                }
            };
            let thread = std::thread::Builder::new().name(format!("hawser-rank-{rank}")).spawn(run);
            self.followers.push(thread.map_err(|source| FormError::Start { rank, source })?);
        }
        Ok(leader.expect("rank 0 is the leader"))
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.join();
    }
}
