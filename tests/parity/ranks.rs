//! A model on several ranks, each a thread of this process.

use std::num::NonZeroUsize;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use hawser_device::collective::{Collective, ThreadGroup, ThreadRank};
use hawser_device::kv::RowType;
use hawser_model::checkpoint::Checkpoint;
use hawser_model::executor::{Executor, ExecutorOptions};
use hawser_model::layers::Model;
use hawser_model::shard::{Blocks, ShardPlan};

/// Long enough for a rank that shares two cores with seven others and with other tests.
const TIMEOUT: Duration = Duration::from_secs(120);

/// One rank, and its way to hear what the leader knows.
pub(crate) struct Rank {
    pub(crate) executor: Executor,
    pub(crate) relay: Relay,
}

/// From the leader to the other ranks.
pub(crate) enum Relay {
    Leader(Vec<SyncSender<Vec<i64>>>),
    Follower(Receiver<Vec<i64>>),
}

impl Relay {
    pub(crate) fn leads(&self) -> bool {
        matches!(self, Self::Leader(_))
    }

    /// What the leader gives, on every rank.
    pub(crate) fn share(&self, values: Vec<i64>) -> Result<Vec<i64>> {
        match self {
            Self::Leader(others) => {
                others.iter().try_for_each(|other| other.send(values.clone()))?;
                Ok(values)
            }
            Self::Follower(leader) => Ok(leader.recv_timeout(TIMEOUT)?),
        }
    }
}

pub(crate) fn options(slots: usize, row_type: RowType) -> ExecutorOptions {
    ExecutorOptions { slots, row_type, threads: NonZeroUsize::MIN }
}

/// The plan of a checkpoint for so many ranks.
pub(crate) fn plan(checkpoint: &Checkpoint, world: usize) -> Result<ShardPlan> {
    let world = NonZeroUsize::new(world).context("a rank")?;
    Ok(ShardPlan::new(checkpoint.config(), world, &Blocks::of(checkpoint)?)?)
}

/// Runs `each` on every rank; what it gives on the leader. A group of one is an executor of the whole model.
pub(crate) fn in_group<T: Send>(
    checkpoint: &Checkpoint,
    world: usize,
    options: ExecutorOptions,
    each: impl Fn(Rank) -> Result<T> + Sync,
) -> Result<T> {
    let all = on_each_rank(checkpoint, world, options, |rank| Box::new(rank), each)?;
    let mut all = all.into_iter().collect::<Result<Vec<_>>>()?;
    Ok(all.swap_remove(0))
}

/// As [`in_group`], over a transport made from each rank's; what every rank gives.
pub(crate) fn on_each_rank<T: Send>(
    checkpoint: &Checkpoint,
    world: usize,
    options: ExecutorOptions,
    transport: impl Fn(ThreadRank) -> Box<dyn Collective> + Sync,
    each: impl Fn(Rank) -> Result<T> + Sync,
) -> Result<Vec<Result<T>>> {
    if world == 1 {
        let executor = Executor::new(Model::load(checkpoint)?, options)?;
        return Ok(vec![each(Rank { executor, relay: Relay::Leader(Vec::new()) })]);
    }
    let plan = plan(checkpoint, world)?;
    let (senders, receivers): (Vec<_>, Vec<_>) = (1..world).map(|_| sync_channel(4)).unzip();
    let followers = receivers.into_iter().map(Relay::Follower);
    let relays = std::iter::once(Relay::Leader(senders)).chain(followers);
    let run = |rank: ThreadRank, relay| {
        let shard = plan.rank(rank.rank()).context("the rank's shard")?;
        let model = Model::load_shard(checkpoint, shard)?;
        let executor = Executor::in_group(model, options, transport(rank))?;
        each(Rank { executor, relay })
    };
    std::thread::scope(|scope| {
        let run = &run;
        let threads: Vec<_> = ThreadGroup::new(world, TIMEOUT)
            .into_iter()
            .zip(relays)
            .map(|(rank, relay)| scope.spawn(move || run(rank, relay)))
            .collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, Result<T>>| {
            thread.join().unwrap_or_else(|_| Err(anyhow!("a rank panicked")))
        };
        Ok(threads.into_iter().map(join).collect())
    })
}
