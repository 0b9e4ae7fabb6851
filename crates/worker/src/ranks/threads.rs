//! A group in one process: a thread per rank, the leader's being the driver's own.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use hawser_common::numbers::millis;
use hawser_device::collective::ThreadGroup;
use hawser_model::executor::{Executor, ExecutorOptions};
use hawser_model::layers::Model;

use super::follower::follow;
use super::formation::{FormError, Formation};
use super::leader::Leader;
use super::link::{Channel, Link};
use super::probe::{Probe, Seat, Unprobed};
use super::rank::Rank;
use super::traced::RankWatch;

/// How often and how long to look whether the threads of an epoch have ended: they were told, and most do at once.
const LOOKS: u32 = 80;
const LOOK: Duration = Duration::from_millis(10);

/// One rank per model shard, in the order of the ranks.
#[derive(Debug)]
pub struct Threads {
    shards: Vec<Arc<Model>>,
    options: ExecutorOptions,
    /// Longest that a rank waits for another.
    timeout: Duration,
    /// By rank.
    followers: Vec<(usize, JoinHandle<()>)>,
    probe: Arc<dyn Probe>,
    watch: Option<RankWatch>,
    /// Slots whose memory the first epoch makes present. One that follows a failure does not wait for it.
    prefault: Option<usize>,
}

impl Threads {
    #[must_use]
    pub fn new(shards: Vec<Arc<Model>>, options: ExecutorOptions, timeout: Duration) -> Self {
        let probe = Arc::new(Unprobed);
        Self { shards, options, timeout, followers: Vec::new(), probe, watch: None, prefault: None }
    }

    /// The same, under watch.
    #[must_use]
    pub fn watched_by(mut self, watch: RankWatch) -> Self {
        self.watch = Some(watch);
        self
    }

    /// The same, which has the memory of so many slots present when it has formed, if the system gives it.
    #[must_use]
    pub fn prefaulted(mut self, slots: usize) -> Self {
        self.prefault = Some(slots);
        self
    }

    /// The same, with a probe in its ranks. For tests.
    #[must_use]
    pub fn probed_by(mut self, probe: Arc<dyn Probe>) -> Self {
        self.probe = probe;
        self
    }

    /// Waits for the followers of the epoch before, whose memory is needed; which have not ended. A thread cannot be
    /// ended from outside, so one that hangs keeps the group down instead of the driver.
    fn join(&mut self) -> Vec<usize> {
        for _ in 0..LOOKS {
            // One that panicked has said so on standard error.
            for (_, ended) in self.followers.extract_if(.., |(_, follower)| follower.is_finished()) {
                let _ = ended.join();
            }
            if self.followers.is_empty() {
                break;
            }
            std::thread::sleep(LOOK);
        }
        self.followers.iter().map(|(rank, _)| *rank).collect()
    }

    fn make_present(&mut self, executors: &mut [Executor]) {
        let Some(slots) = self.prefault.take() else { return };
        let now = || self.watch.as_ref().map(|watch| watch.clock.now());
        let started = now();
        for (rank, executor) in executors.iter_mut().enumerate() {
            if let Err(error) = executor.make_present(slots) {
                tracing::warn!(rank, %error, "the memory of the KV pool is taken as rows are written");
                return;
            }
        }
        let took_ms = now().zip(started).map(|(now, started)| millis(now.since(started)));
        tracing::info!(slots, took_ms, "the memory of the KV pool is present");
    }
}

impl Formation for Threads {
    fn world(&self) -> usize {
        self.shards.len()
    }

    fn form(&mut self, epoch: u64) -> Result<Leader, FormError> {
        let world = self.shards.len();
        let ranks = self.join();
        if !ranks.is_empty() {
            return Err(FormError::Missing { ranks, world });
        }
        if world == 1 {
            let mut executor = Executor::new(Arc::clone(&self.shards[0]), self.options)?;
            self.make_present(std::slice::from_mut(&mut executor));
            return Ok(Leader::alone(Rank::new(executor, epoch)));
        }
        let sums = ThreadGroup::new(world, self.timeout);
        let links = ThreadGroup::new(world, self.timeout);
        let (mut executors, mut ends) = (Vec::new(), Vec::new());
        for (rank, (sum, link)) in sums.into_iter().zip(links).enumerate() {
            let seat = Seat { epoch, rank };
            let sum = self.probe.transport(seat, Channel::Sums, Box::new(sum));
            let link = self.probe.transport(seat, Channel::Commands, Box::new(link));
            let abort = sum.abort_handle();
            let shard = Arc::clone(&self.shards[rank]);
            executors.push(Executor::in_group(shard, self.options, sum)?);
            ends.push((link, abort));
        }
        // Before the first rank waits for another.
        self.make_present(&mut executors);
        let mut leader = None;
        for (rank, (executor, (link, abort))) in executors.into_iter().zip(ends).enumerate() {
            let mut state = Rank::new(executor, epoch).watched_by(self.watch.clone(), rank);
            let mut link = Link::new(link);
            if rank == 0 {
                leader = Some(Leader::of(state, link, abort));
                continue;
            }
            let probe = Arc::clone(&self.probe);
            let run = move || {
                if let Err(error) = follow(&mut state, &mut link, &abort, &*probe) {
                    tracing::warn!(rank, epoch, %error, "a rank has left the group");
                }
            };
            let thread = std::thread::Builder::new().name(format!("hawser-rank-{rank}")).spawn(run);
            self.followers.push((rank, thread.map_err(|source| FormError::Start { rank, source })?));
        }
        Ok(leader.expect("rank 0 is the leader"))
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.join();
    }
}
