//! One way to run a model: its leader, and what keeps the other ranks alive.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use hawser_common::clock::Clock;
use hawser_model::executor::ExecutorOptions;
use hawser_model::layers::Model;
use hawser_worker::ranks::{FormError, Formation, Leader, Processes, Sums, Threads};

/// Ranks wait while other ways take their turn.
const TIMEOUT: Duration = Duration::from_secs(600);
/// Longest that processes may take to load and to join.
const JOINING: Duration = Duration::from_secs(120);
const ENDING: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(20);

/// A model that runs.
pub(super) struct Way {
    pub(super) name: String,
    pub(super) leader: Leader,
    /// Owns the threads of the other ranks, or the place where they meet. Dropped after the leader.
    _formation: Box<dyn Formation>,
    others: Vec<Other>,
}

/// A rank in a process of its own, which does not outlive this one's interest in it.
struct Other(Child);

impl Drop for Other {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Way {
    /// One rank per shard, each a thread with `options.threads` threads to compute.
    pub(super) fn threads(
        name: String,
        shards: Vec<Arc<Model>>,
        options: ExecutorOptions,
    ) -> anyhow::Result<Self> {
        let mut formation = Threads::new(shards, options, TIMEOUT);
        let leader = formation.form(1)?;
        Ok(Self { name, leader, _formation: Box::new(formation), others: Vec::new() })
    }

    /// One process per rank, this one's being the leader, over TCP on loopback.
    pub(super) fn processes(
        name: String,
        path: &Path,
        leader: (Arc<Model>, String),
        (world, options): (usize, ExecutorOptions),
        clock: &Clock,
    ) -> anyhow::Result<Self> {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let terms = (options, TIMEOUT, Sums::Tcp);
        let mut formation = Processes::listen(any, leader, world, terms, clock.clone())?;
        let meeting = formation.address()?;
        let mut others = (1..world)
            .map(|rank| other(path, (rank, world), options, meeting))
            .collect::<anyhow::Result<Vec<_>>>()?;
        let until = clock.now().after(JOINING);
        let leader = loop {
            match formation.form(1) {
                Ok(leader) => break leader,
                Err(FormError::Missing { .. }) if clock.now() < until => {}
                Err(error) => return Err(error).context("the ranks did not come together"),
            }
            for other in &mut others {
                if let Some(status) = other.0.try_wait()? {
                    bail!("a rank ended before it joined: {status}");
                }
            }
        };
        Ok(Self { name, leader, _formation: Box::new(formation), others })
    }

    /// Ends the ranks in good order.
    pub(super) fn end(self) -> anyhow::Result<()> {
        self.leader.end();
        let clock = Clock::system();
        for mut other in self.others {
            while other.0.try_wait()?.is_none() && clock.now().0 < ENDING {
                std::thread::sleep(POLL);
            }
        }
        Ok(())
    }
}

fn other(
    path: &Path,
    (rank, world): (usize, usize),
    options: ExecutorOptions,
    meeting: SocketAddr,
) -> anyhow::Result<Other> {
    let program = std::env::current_exe().context("the path of this program")?;
    let mut command = Command::new(program);
    command.arg("worker").arg("--model").arg(path);
    command.args(["--threads", &options.threads.to_string()]);
    command.args(["--rank", &rank.to_string(), "--world", &world.to_string()]);
    command.args(["--rendezvous", &meeting.to_string(), "--log", "error"]);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    Ok(Other(command.spawn().with_context(|| format!("cannot start rank {rank}"))?))
}
