//! Whole worker groups in this process without a server: a driver over ranks, and a probe that sees and disturbs them.
//!
//! The clock stands still unless a test moves it, so that no beats come between the steps and the calls of a run are the
//! same each time.

mod any_call;
mod plans;
mod replay;
mod scores;
mod tables;
mod wait;

use std::num::NonZeroUsize;
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use hawser_common::clock::{Clock, ManualClock};
use hawser_common::retention::{Aggregation, Policy, Retention};
use hawser_common::sampling::Sampling;
use hawser_common::telemetry::TraceParent;
use hawser_common::{SessionId, SessionKey, TenantId};
use hawser_device::collective::{Collective, Fault, Faulty, Traffic};
use hawser_device::kv::RowType;
use hawser_kv::retention::{Marks, Origin};
use hawser_model::checkpoint::Checkpoint;
use hawser_model::executor::ExecutorOptions;
use hawser_model::layers::Model;
use hawser_model::shard::{Blocks, ShardPlan};
use hawser_worker::driver::{self, DriverHandle, DriverOptions, Turn};
use hawser_worker::ranks::{Channel, Command, Probe, Rank, Seat, Threads, Work};
use hawser_worker::scheduler::{Inspection, Keep, Limits, SequenceId, Submission};
use hawser_worker::turn::{Generation, GenerationOptions, TurnEnd, TurnError, TurnEvent};
use tokio::sync::mpsc;

/// Of groups in which nobody is silent: a wait that is this long fails the test by [`LIMIT`].
const PATIENT: Duration = Duration::from_secs(120);
/// Longest that a test waits for anything.
const LIMIT: Duration = Duration::from_secs(60);
const SLOTS: usize = 600;

/// The shards of a checkpoint of random weights for so many ranks, loaded once.
fn shards(world: usize) -> Vec<Arc<Model>> {
    static LOADED: [OnceLock<Vec<Arc<Model>>>; 4] = [const { OnceLock::new() }; 4];
    let load = || {
        let checkpoint = Checkpoint::open(hawser_tests::root().join("tests/fixtures/tiny-llama")).unwrap();
        let blocks = Blocks::of(&checkpoint).unwrap();
        let plan = ShardPlan::new(checkpoint.config(), NonZeroUsize::new(world).unwrap(), &blocks).unwrap();
        let shard = |rank| Arc::new(Model::load_shard(&checkpoint, plan.rank(rank).unwrap()).unwrap());
        (0..world).map(shard).collect()
    };
    LOADED[world].get_or_init(load).clone()
}

fn sizes() -> ExecutorOptions {
    ExecutorOptions { slots: SLOTS, row_type: RowType::F32, threads: NonZeroUsize::MIN }
}

/// Holds the first step of a group until what shall run together has been queued.
#[derive(Debug, Default)]
struct Gate {
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct GateState {
    reached: bool,
    open: bool,
}

impl Gate {
    fn change(&self, change: impl Fn(&mut GateState)) {
        change(&mut self.state.lock().unwrap());
        self.changed.notify_all();
    }

    fn wait(&self, until: impl Fn(GateState) -> bool) {
        let state = self.state.lock().unwrap();
        let (state, _) = self.changed.wait_timeout_while(state, LIMIT, |state| !until(*state)).unwrap();
        assert!(until(*state), "the gate is {state:?}");
    }

    /// A follower comes to it, and waits.
    fn pass(&self) {
        self.change(|state| state.reached = true);
        self.wait(|state| state.open);
    }

    fn open(&self) {
        self.change(|state| state.open = true);
    }
}

/// Something to do to a rank of the first epoch after a command.
type Disturb = dyn Fn(&mut Rank, &Command) + Send + Sync;

/// What followers heard, and what happened to one of them.
#[derive(Default)]
struct Watch {
    gate: Gate,
    /// In the first epoch: which rank's which transport has which fault at which call.
    fault: Option<(usize, Channel, u64, Fault)>,
    /// Called on the first epoch's rank 1.
    disturb: Option<Box<Disturb>>,
    heard: Mutex<Vec<Heard>>,
}

/// A command as a follower ran it.
#[derive(Clone, Debug, PartialEq)]
struct Heard {
    seat: Seat,
    command: Command,
    /// Of its tables afterwards.
    tables: i64,
    /// Calls so far: of the link, the comparison of tables not included, and of the sums.
    calls: [u64; 2],
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watch").field("fault", &self.fault).finish_non_exhaustive()
    }
}

impl Watch {
    /// What rank 1 heard in an epoch, but for the beat that begins it.
    fn heard(&self, epoch: u64) -> Vec<Heard> {
        let heard = self.heard.lock().unwrap();
        let of_rank = heard.iter().filter(|heard| heard.seat == Seat { epoch, rank: 1 });
        of_rank.filter(|heard| heard.command.work != Work::Beat).cloned().collect()
    }
}

impl Probe for Watch {
    fn transport(&self, seat: Seat, channel: Channel, end: Box<dyn Collective>) -> Box<dyn Collective> {
        match self.fault {
            Some((rank, at, call, fault)) if seat == Seat { epoch: 1, rank } && channel == at => {
                Box::new(Faulty::new(end, call, fault))
            }
            _ => end,
        }
    }

    fn heard(&self, seat: Seat, command: &Command) {
        if seat.epoch == 1 && matches!(command.work, Work::Run(_)) {
            self.gate.pass();
        }
    }

    fn ran(&self, seat: Seat, rank: &mut Rank, command: &Command, commands: Traffic) {
        if let Some(disturb) = self.disturb.as_ref().filter(|_| seat == Seat { epoch: 1, rank: 1 }) {
            disturb(rank, command);
        }
        self.heard.lock().unwrap().push(Heard {
            seat,
            command: command.clone(),
            tables: rank.tables().digest(),
            calls: [commands.calls, rank.engine().traffic().calls],
        });
    }
}

/// A turn that was sent, and its end.
type Sent = mpsc::Receiver<TurnEvent>;

struct Group {
    driver: Option<DriverHandle>,
    thread: Option<JoinHandle<()>>,
    watch: Arc<Watch>,
    now: Clock,
    clock: ManualClock,
    next: u64,
}

impl Group {
    fn start(world: usize, timeout: Duration, watch: Watch) -> Self {
        let watch = Arc::new(watch);
        let probe: Arc<dyn Probe> = Arc::<Watch>::clone(&watch);
        let threads = Threads::new(shards(world), sizes(), timeout).probed_by(probe);
        let limits = Limits {
            step_tokens: 128,
            mixed_tokens: 64,
            max_running: 8,
            max_waiting: 8,
            share_prefixes: true,
        };
        let options = DriverOptions { limits, slots: SLOTS, archive_slots: 0, queue: 64 };
        let (now, clock) = Clock::manual();
        let (driver, thread) = driver::spawn(Box::new(threads), options, now.clone()).unwrap();
        Self { driver: Some(driver), thread: Some(thread), watch, now, clock, next: 0 }
    }

    fn driver(&self) -> &DriverHandle {
        self.driver.as_ref().unwrap()
    }

    /// Sends a greedy turn of a session of its own name.
    fn send(&mut self, session: &str, prompt: &[u32], max_new: usize, keep: &Retention) -> Sent {
        let (events, receiver) = mpsc::channel(1_024);
        let id = SequenceId(self.next);
        self.next += 1;
        let sampling = Sampling { temperature: 0.0, ignore_eos: true, ..Sampling::default() };
        let generation = Generation::new(&GenerationOptions {
            tokenizer: None,
            sampling: &sampling,
            seed: 0,
            prompt,
            max_new,
            end_ids: &[],
        });
        let len = u32::try_from(prompt.len()).unwrap();
        let mut marks = Marks::default();
        marks.extend_to(len, Origin::User, 0);
        let keep = Keep {
            retention: keep.clone(),
            marks,
            protected: 2,
            span: len.saturating_sub(6)..len,
            ..Keep::default()
        };
        let submission = Submission {
            id,
            session: Some(key(session)),
            namespace: TenantId::single(),
            prompt: prompt.to_vec(),
            begun: Vec::new(),
            max_new,
            deadline: None,
            keep,
        };
        let (arrived, trace) = (self.now.now(), TraceParent::default());
        self.driver().run(Turn { submission, generation, events, arrived, trace }).unwrap();
        receiver
    }

    /// The turn of a group that is up, or will be: sent again until it is taken.
    fn served(&mut self, session: &str, prompt: &[u32], max_new: usize, keep: &Retention) -> TurnEnd {
        let clock = Clock::system();
        loop {
            let sent = self.send(session, prompt, max_new, keep);
            match end(sent) {
                Ok(end) => return end,
                Err(error) => assert!(clock.now().0 < LIMIT, "not served again: {error}"),
            }
            // A group that is down is formed again as time goes on.
            self.clock.advance(Duration::from_secs(1));
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn inspect(&self, session: &str) -> Option<Inspection> {
        block_on(self.driver().inspect(key(session))).unwrap()
    }

    fn live(&self, session: &str) -> usize {
        block_on(self.driver().live(vec![key(session)])).unwrap()[0]
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.watch.gate.open();
        drop(self.driver.take());
        let ended = self.thread.take().unwrap().join();
        assert!(ended.is_ok() || std::thread::panicking(), "the driver's thread never panics");
    }
}

/// The end of a turn. Fails the test if there is none.
fn end(mut sent: Sent) -> Result<TurnEnd, TurnError> {
    let clock = Clock::system();
    loop {
        match sent.try_recv() {
            Ok(TurnEvent::Token(_) | TurnEvent::Text(_)) => {}
            Ok(TurnEvent::Finished(end)) => return Ok(*end),
            Ok(TurnEvent::Failed(error)) => return Err(error),
            Err(mpsc::error::TryRecvError::Empty) => {
                assert!(clock.now().0 < LIMIT, "a turn hangs");
                std::thread::sleep(Duration::from_micros(500));
            }
            Err(mpsc::error::TryRecvError::Disconnected) => panic!("a turn ended without saying how"),
        }
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

fn key(session: &str) -> SessionKey {
    SessionKey { tenant: TenantId::single(), session: SessionId::parse(session).unwrap() }
}

/// A policy that scores at every turn of more than 24 tokens.
fn pruning(aggregation: Aggregation) -> Retention {
    Retention {
        policy: Policy::IntentMemory,
        budget_tokens: 24,
        trigger_tokens: 0,
        aggregation,
        ..Retention::default()
    }
}

/// Tokens of the tiny vocabulary.
fn prompt(seed: u32, count: u32) -> Vec<u32> {
    (0..count).map(|at| 3 + (at * 71 + seed * 97 + at * at * seed) % 380).collect()
}

/// Two turns that run together behind a short one, each with a prune.
#[derive(Debug, PartialEq)]
struct Outcome {
    tokens: [Vec<u32>; 2],
    evicted: [usize; 2],
}

/// The ends of both turns of a new group.
fn run_two(group: &mut Group, keep: &Retention) -> [Result<TurnEnd, TurnError>; 2] {
    let first = group.send("first", &[5], 1, &Retention::default());
    group.watch.gate.wait(|gate| gate.reached);
    let a = group.send("a", &prompt(1, 40), 4, keep);
    let b = group.send("b", &prompt(2, 33), 4, keep);
    group.watch.gate.open();
    let ends = [end(a), end(b)];
    // It fails with the others where a fault comes early.
    let _ = end(first);
    ends
}

fn outcome(ends: [TurnEnd; 2]) -> Outcome {
    let evicted = [0, 1].map(|at: usize| ends[at].usage.kept.evicted);
    Outcome { tokens: ends.map(|end| end.tokens), evicted }
}

/// The same two turns, one after the other, of a group that may be down.
fn serve_two(group: &mut Group, keep: &Retention) -> Outcome {
    outcome([group.served("a", &prompt(1, 40), 4, keep), group.served("b", &prompt(2, 33), 4, keep)])
}

/// What happens where nothing is wrong, and the commands that rank 1 heard.
fn undisturbed(world: usize, keep: &Retention) -> (Outcome, Vec<Heard>) {
    let mut group = Group::start(world, PATIENT, Watch::default());
    let outcome = outcome(run_two(&mut group, keep).map(Result::unwrap));
    assert!(outcome.evicted.iter().all(|&evicted| evicted > 0), "{outcome:?}");
    let heard = group.watch.heard(1);
    (outcome, heard)
}
