//! A driver and an NCCL of this process: it really moves and adds bytes, between fakes that share a [`Hub`].
//!
//! Owns fake memory, one queue of work and a script of what goes wrong. Promises to assert what the owned layer owes
//! the libraries: live handles, an entered context, memory that stays while work is queued. Never waits.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::ptr::{self, NonNull};
use std::sync::{Arc, Barrier, Mutex, MutexGuard};
use std::thread::ThreadId;

use super::super::calls::{
    CallError, Calls, Comm, Context, DevicePtr, Exchange, HostPtr, Op, Opaque, Progress, Stream,
};
use super::super::{UniqueId, Version};
use super::pieces::reduce;

/// What the ranks of a group have posted.
pub(super) struct Hub {
    world: usize,
    /// For each operation of the group, what each rank gives.
    rounds: Mutex<Vec<Vec<Option<Vec<u8>>>>>,
    all: Barrier,
    aborted: Mutex<bool>,
}

impl Hub {
    pub(super) fn new(world: usize) -> Self {
        let (rounds, aborted) = (Mutex::default(), Mutex::default());
        Self { world, rounds, all: Barrier::new(world), aborted }
    }

    pub(super) fn wait_for_all(&self) {
        self.all.wait();
    }

    /// Posts a rank's part of operation `round`; all parts, once they are there.
    fn meet(&self, round: usize, rank: usize, part: &[u8]) -> Option<Vec<Vec<u8>>> {
        let mut rounds = self.rounds.lock().unwrap();
        let missing = (round + 1).saturating_sub(rounds.len());
        rounds.extend(std::iter::repeat_n(vec![None; self.world], missing));
        rounds[round][rank].get_or_insert_with(|| part.to_vec());
        let parts: Vec<_> = rounds[round].iter().flatten().cloned().collect();
        (parts.len() == self.world).then_some(parts)
    }
}

/// What goes wrong, and when.
#[derive(Default)]
pub(super) struct Script {
    /// What the communicator's state is at the next looks; done after that.
    pub states: VecDeque<Result<Progress, CallError>>,
    /// The state of every look after that is pending.
    pub never_ready: bool,
    /// Launches that NCCL takes its time for.
    pub pending_launches: usize,
    /// The device never gets through with its queue, even after an abort.
    pub never_quiet: bool,
    /// This call fails, at its n-th time.
    pub fails: Option<(&'static str, usize)>,
    pub version: Option<Version>,
}

enum Work {
    In(DevicePtr, HostPtr, usize),
    Out(HostPtr, DevicePtr, usize),
    Exchange(usize, Exchange),
}

#[derive(Default)]
struct State {
    script: Script,
    log: Vec<&'static str>,
    /// Live handles by what they are.
    live: BTreeMap<&'static str, Vec<usize>>,
    next: usize,
    entered: Option<ThreadId>,
    device: HashMap<u64, Vec<u8>>,
    pinned: HashMap<usize, Vec<u8>>,
    queue: VecDeque<Work>,
    rounds: usize,
    busy: bool,
    at_each_look: Option<Box<dyn FnMut() + Send>>,
}

// SAFETY: the pointers in queued work lead to `pinned`, which the state owns too.
unsafe impl Send for State {}

pub(super) struct Fake {
    hub: Arc<Hub>,
    rank: usize,
    state: Mutex<State>,
}

impl fmt::Debug for Fake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fake({})", self.rank)
    }
}

/// Bits of a device address within one piece of memory.
const OFFSET_BITS: u32 = 40;

impl Fake {
    pub(super) fn new(hub: Arc<Hub>, rank: usize) -> Self {
        Self { hub, rank, state: Mutex::default() }
    }

    pub(super) fn script(&self, change: impl FnOnce(&mut Script)) {
        change(&mut self.state.lock().unwrap().script);
    }

    /// Runs at every look at the stream or the communicator, before it.
    pub(super) fn at_each_look(&self, run: impl FnMut() + Send + 'static) {
        self.state.lock().unwrap().at_each_look = Some(Box::new(run));
    }

    pub(super) fn log(&self) -> Vec<&'static str> {
        self.state.lock().unwrap().log.clone()
    }

    pub(super) fn times(&self, call: &str) -> usize {
        self.log().iter().filter(|logged| **logged == call).count()
    }

    /// Of this kind, still live.
    pub(super) fn live(&self, kind: &str) -> usize {
        self.state.lock().unwrap().live.get(kind).map_or(0, Vec::len)
    }

    pub(super) fn assert_nothing_left(&self) {
        for kind in ["context", "stream", "comm", "device", "pinned"] {
            assert_eq!(self.live(kind), 0, "{kind}");
        }
    }

    fn called(&self, call: &'static str) -> Result<MutexGuard<'_, State>, CallError> {
        let mut state = self.state.lock().unwrap();
        let before = state.log.iter().filter(|logged| **logged == call).count();
        state.log.push(call);
        match state.script.fails {
            Some((fails, nth)) if fails == call && nth == before => {
                Err(CallError { call, reason: "as the script says".to_owned() })
            }
            _ => Ok(state),
        }
    }

    /// As [`Fake::called`], for calls that need this thread to have the context.
    fn inside(&self, call: &'static str) -> Result<MutexGuard<'_, State>, CallError> {
        let state = self.called(call)?;
        assert_eq!(state.entered, Some(std::thread::current().id()), "{call} without its context");
        Ok(state)
    }

    fn look(&self) {
        let hook = self.state.lock().unwrap().at_each_look.take();
        if let Some(mut hook) = hook {
            hook();
            self.state.lock().unwrap().at_each_look = Some(hook);
        }
    }
}

fn handle(number: usize) -> Opaque {
    Opaque(NonNull::new(ptr::without_provenance_mut(number)).unwrap())
}

impl State {
    fn make(&mut self, kind: &'static str) -> usize {
        self.next += 1;
        self.live.entry(kind).or_default().push(self.next);
        self.next
    }

    fn is_live(&self, kind: &'static str, number: usize) {
        assert!(self.live[kind].contains(&number), "{kind} {number} is not live");
    }

    fn end(&mut self, kind: &'static str, number: usize) {
        self.is_live(kind, number);
        self.live.get_mut(kind).unwrap().retain(|live| *live != number);
    }

    fn memory(&mut self, at: DevicePtr, bytes: usize) -> &mut [u8] {
        let begin = (at.0 & ((1 << OFFSET_BITS) - 1)) as usize;
        &mut self.device.get_mut(&(at.0 >> OFFSET_BITS)).expect("live memory")[begin..begin + bytes]
    }

    /// Does what is first in the queue, if it can be done.
    fn work(&mut self, hub: &Hub, rank: usize) -> Progress {
        while let Some(work) = self.queue.pop_front() {
            match work {
                Work::In(to, from, bytes) => {
                    // SAFETY: pinned memory stays while work is queued; `unpin` asserts it.
                    let from = unsafe { std::slice::from_raw_parts(from.0.as_ptr(), bytes) };
                    self.memory(to, bytes).copy_from_slice(from);
                }
                Work::Out(to, from, bytes) => {
                    // SAFETY: as above.
                    let to = unsafe { std::slice::from_raw_parts_mut(to.0.as_ptr(), bytes) };
                    to.copy_from_slice(self.memory(from, bytes));
                }
                Work::Exchange(round, exchange) => {
                    let bytes = exchange.count * exchange.kind.bytes();
                    let part = self.memory(exchange.send, bytes).to_vec();
                    let Some(parts) = hub.meet(round, rank, &part) else {
                        self.queue.push_front(Work::Exchange(round, exchange));
                        return Progress::Pending;
                    };
                    let result = match exchange.op {
                        Op::AllReduce(by) => reduce(exchange.kind, by, &parts),
                        Op::ReduceToLeader(by) if rank == 0 => reduce(exchange.kind, by, &parts),
                        Op::ReduceToLeader(_) => part,
                        Op::Broadcast => parts[0].clone(),
                        Op::AllGather => parts.concat(),
                    };
                    self.memory(exchange.receive, result.len()).copy_from_slice(&result);
                }
            }
        }
        Progress::Done
    }
}

impl Calls for Fake {
    fn version(&self) -> Result<Version, CallError> {
        let state = self.called("version")?;
        Ok(state.script.version.unwrap_or(Version { major: 2, minor: 21, patch: 5 }))
    }

    fn unique_id(&self) -> Result<UniqueId, CallError> {
        self.called("unique_id").map(|_| super::id())
    }

    fn open(&self, _device: usize) -> Result<Context, CallError> {
        let number = self.called("open")?.make("context");
        Ok(Context { device: 0, handle: handle(number) })
    }

    unsafe fn enter(&self, context: Context) -> Result<(), CallError> {
        let mut state = self.called("enter")?;
        state.is_live("context", context.handle.0.addr().get());
        state.entered = Some(std::thread::current().id());
        Ok(())
    }

    unsafe fn close(&self, context: Context) -> Result<(), CallError> {
        let mut state = self.called("close")?;
        state.end("context", context.handle.0.addr().get());
        for kind in ["stream", "comm"] {
            assert!(state.live.get(kind).is_none_or(Vec::is_empty), "{kind} outlives its context");
        }
        Ok(())
    }

    unsafe fn create_stream(&self) -> Result<Stream, CallError> {
        Ok(Stream(handle(self.inside("create_stream")?.make("stream"))))
    }

    unsafe fn destroy_stream(&self, stream: Stream) -> Result<(), CallError> {
        // As for an abort: it is gone, whatever this returns.
        let result = self.inside("destroy_stream").map(|_| ());
        self.state.lock().unwrap().end("stream", stream.0.0.addr().get());
        result
    }

    unsafe fn stream_state(&self, stream: Stream) -> Result<Progress, CallError> {
        self.look();
        let mut state = self.inside("stream_state")?;
        state.is_live("stream", stream.0.0.addr().get());
        if state.script.never_quiet {
            return Ok(Progress::Pending);
        }
        Ok(state.work(&self.hub, self.rank))
    }

    unsafe fn allocate(&self, bytes: usize) -> Result<DevicePtr, CallError> {
        let mut state = self.inside("allocate")?;
        let number = state.make("device");
        // Old memory of somebody else's.
        state.device.insert(number as u64, vec![0xee; bytes]);
        Ok(DevicePtr((number as u64) << OFFSET_BITS))
    }

    unsafe fn free(&self, at: DevicePtr) -> Result<(), CallError> {
        let mut state = self.inside("free")?;
        assert!(state.queue.is_empty(), "the device still uses it");
        let number = (at.0 >> OFFSET_BITS) as usize;
        state.end("device", number);
        state.device.remove(&(number as u64));
        Ok(())
    }

    unsafe fn pin(&self, bytes: usize) -> Result<HostPtr, CallError> {
        let mut state = self.inside("pin")?;
        state.make("pinned");
        let mut memory = vec![0; bytes];
        let at = NonNull::new(memory.as_mut_ptr()).unwrap();
        state.pinned.insert(at.addr().get(), memory);
        Ok(HostPtr(at))
    }

    unsafe fn unpin(&self, at: HostPtr) -> Result<(), CallError> {
        let mut state = self.inside("unpin")?;
        assert!(state.queue.is_empty(), "the device still uses it");
        state.pinned.remove(&at.0.addr().get()).expect("memory that was pinned");
        state.live.get_mut("pinned").unwrap().pop();
        Ok(())
    }

    unsafe fn copy_in(
        &self,
        to: DevicePtr,
        from: HostPtr,
        bytes: usize,
        _on: Stream,
    ) -> Result<(), CallError> {
        self.inside("copy_in")?.queue.push_back(Work::In(to, from, bytes));
        Ok(())
    }

    unsafe fn copy_out(
        &self,
        to: HostPtr,
        from: DevicePtr,
        bytes: usize,
        _on: Stream,
    ) -> Result<(), CallError> {
        let mut state = self.inside("copy_out")?;
        assert!(!state.busy, "the last launch was not taken yet");
        state.queue.push_back(Work::Out(to, from, bytes));
        Ok(())
    }

    unsafe fn join(&self, _id: &UniqueId, rank: usize, world: usize) -> Result<Comm, CallError> {
        assert_eq!((rank, world), (self.rank, self.hub.world));
        Ok(Comm(handle(self.inside("join")?.make("comm"))))
    }

    unsafe fn comm_state(&self, comm: Comm) -> Result<Progress, CallError> {
        self.look();
        let mut state = self.inside("comm_state")?;
        state.is_live("comm", comm.0.0.addr().get());
        if *self.hub.aborted.lock().unwrap() {
            return Err(CallError { call: "comm_state", reason: "another rank is gone".to_owned() });
        }
        let ready = if state.script.never_ready { Progress::Pending } else { Progress::Done };
        let seen = state.script.states.pop_front().unwrap_or(Ok(ready))?;
        state.busy &= seen == Progress::Pending;
        Ok(seen)
    }

    unsafe fn launch(&self, comm: Comm, _on: Stream, exchange: &Exchange) -> Result<Progress, CallError> {
        let mut state = self.inside("launch")?;
        state.is_live("comm", comm.0.0.addr().get());
        assert!(!state.busy, "the last launch was not taken yet");
        let round = state.rounds;
        state.rounds += 1;
        state.queue.push_back(Work::Exchange(round, *exchange));
        if state.script.pending_launches == 0 {
            return Ok(Progress::Done);
        }
        state.script.pending_launches -= 1;
        state.busy = true;
        Ok(Progress::Pending)
    }

    unsafe fn abort(&self, comm: Comm) -> Result<(), CallError> {
        *self.hub.aborted.lock().unwrap() = true;
        // Whatever it returns, the communicator is gone, and with it what it had on the device.
        let result = self.called("abort").map(|_| ());
        let mut state = self.state.lock().unwrap();
        state.end("comm", comm.0.0.addr().get());
        state.queue.clear();
        result
    }
}
