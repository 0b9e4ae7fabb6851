//! What the ranks of a group of threads share: a place for each rank's values, how far each has come, and how the
//! group ended.
//!
//! Promises that a wait ends when all ranks have come, when the group has failed, or when its time is over. Waits
//! spin first, because a decode step has some sixty short ones. Never runs a rank's code.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, OnceLock, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use hawser_common::clock::Clock;

use crate::threads::CacheLine;

use super::super::CollectiveError;
use super::super::call::Call;
use super::super::element::{Buffer, copy};
use super::super::failure::Failure;

/// How long a rank tries again and again before it sleeps.
const SPIN: Duration = Duration::from_micros(100);
/// Turns before the first look at the clock.
const SPINS_PER_LOOK: u32 = 64;

#[derive(Debug)]
pub(super) struct Group {
    timeout: Duration,
    seats: Vec<Seat>,
    failure: OnceLock<Failure>,
    /// Ranks that sleep, or are about to.
    sleepers: CacheLine<AtomicUsize>,
    gate: Mutex<()>,
    woken: Condvar,
}

/// One rank's place. Only that rank writes here.
#[derive(Debug, Default)]
struct Seat {
    /// Phases that the rank has come to the end of.
    arrived: CacheLine<AtomicU64>,
    /// What it sent, for calls with an even and with an odd number. A rank writes one side only after all have come
    /// to the call that uses the other, hence are done with this one; the locks are then free. They make sure that
    /// a mistake in that reasoning could never be a data race.
    sent: [CacheLine<RwLock<Sent>>; 2],
    /// The pieces that it added.
    sums: [CacheLine<RwLock<Buffer>>; 2],
}

#[derive(Debug, Default)]
pub(super) struct Sent {
    call: Option<Call>,
    bytes: Buffer,
}

impl Sent {
    pub(super) fn call(&self) -> Option<Call> {
        self.call
    }

    pub(super) fn values<T: bytemuck::Pod>(&self) -> &[T] {
        self.bytes.values()
    }
}

impl Group {
    pub(super) fn new(world: usize, timeout: Duration) -> Self {
        Self {
            timeout,
            seats: (0..world).map(|_| Seat::default()).collect(),
            failure: OnceLock::new(),
            sleepers: CacheLine::default(),
            gate: Mutex::default(),
            woken: Condvar::new(),
        }
    }

    pub(super) fn world(&self) -> usize {
        self.seats.len()
    }

    pub(super) fn put(&self, rank: usize, side: usize, call: &Call, bytes: &[u8]) {
        // A panic while a lock is held leaves values that nobody will use: its rank ends the group.
        let mut sent = self.seats[rank].sent[side].0.write().unwrap_or_else(PoisonError::into_inner);
        sent.call = Some(*call);
        copy(sent.bytes.room(bytes.len()), bytes);
    }

    pub(super) fn sent(&self, rank: usize, side: usize) -> RwLockReadGuard<'_, Sent> {
        self.seats[rank].sent[side].0.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn put_sum(&self, rank: usize, side: usize, bytes: &[u8]) {
        let mut sum = self.seats[rank].sums[side].0.write().unwrap_or_else(PoisonError::into_inner);
        copy(sum.room(bytes.len()), bytes);
    }

    pub(super) fn sum(&self, rank: usize, side: usize) -> RwLockReadGuard<'_, Buffer> {
        self.seats[rank].sums[side].0.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn failure(&self) -> Option<&Failure> {
        self.failure.get()
    }

    /// Ends the group, unless it has ended, and returns how it ended.
    pub(super) fn fail(&self, failure: Failure) -> &Failure {
        let first = self.failure.get_or_init(|| failure);
        self.wake_all();
        first
    }

    /// Says that `rank` has come to the end of `phase`; what it wrote before is seen by whoever waits for that.
    pub(super) fn arrive(&self, rank: usize, phase: u64) {
        self.seats[rank].arrived.0.store(phase, Ordering::SeqCst);
        if self.sleepers.0.load(Ordering::SeqCst) > 0 {
            self.wake_all();
        }
    }

    /// Returns when all ranks have come to the end of `phase`.
    pub(super) fn wait(&self, me: usize, phase: u64, call: &Call) -> Result<(), CollectiveError> {
        let mut waited = Waited::default();
        while waited.spins() {
            // In this order: a rank that has come may leave, and that does not spoil what it left behind.
            if self.missing(phase).is_none() {
                return Ok(());
            }
            if self.failure.get().is_some() {
                break;
            }
            waited.pause();
        }
        self.sleep(phase, &waited);
        match (self.missing(phase), self.failure.get()) {
            (None, _) => Ok(()),
            (Some(_), Some(failure)) => Err(failure.seen_by(me, call)),
            (Some(rank), None) => {
                let error = CollectiveError::Timeout { rank, waited: self.timeout, call: call.to_string() };
                Err(self.fail(Failure { by: me, error }).seen_by(me, call))
            }
        }
    }

    /// The first rank that has not come to the end of `phase`.
    fn missing(&self, phase: u64) -> Option<usize> {
        self.seats.iter().position(|seat| seat.arrived.0.load(Ordering::SeqCst) < phase)
    }

    /// Sleeps until nobody is missing, the group has failed or the time is over.
    fn sleep(&self, phase: u64, waited: &Waited) {
        let mut gate = self.gate.lock().unwrap_or_else(PoisonError::into_inner);
        self.sleepers.0.fetch_add(1, Ordering::SeqCst);
        // Either this check sees the rank that comes, or that rank sees a sleeper and comes through the gate: all
        // four accesses are sequentially consistent. A failure always comes through the gate.
        while self.missing(phase).is_some() && self.failure.get().is_none() {
            let left = self.timeout.saturating_sub(waited.time());
            if left.is_zero() {
                break;
            }
            (gate, _) = self.woken.wait_timeout(gate, left).unwrap_or_else(PoisonError::into_inner);
        }
        self.sleepers.0.fetch_sub(1, Ordering::SeqCst);
    }

    fn wake_all(&self) {
        let _gate = self.gate.lock().unwrap_or_else(PoisonError::into_inner);
        self.woken.notify_all();
    }
}

/// How long a wait has taken. The clock starts after some turns, because most waits are shorter.
#[derive(Default)]
struct Waited {
    turns: u32,
    clock: Option<Clock>,
}

impl Waited {
    /// Whether to try again for one more turn.
    fn spins(&mut self) -> bool {
        self.turns += 1;
        // Once turns give the core away each may take as long as others want it: on a busy machine many of them would
        // outlast any timeout.
        if self.clock.is_none() && !self.turns.is_multiple_of(SPINS_PER_LOOK) {
            return true;
        }
        self.clock.get_or_insert_with(Clock::system).now().0 < SPIN
    }

    /// Between two turns. After the first ones the core is offered to others: the rank that is waited for may need
    /// it, where ranks share cores or the machine is busy.
    fn pause(&self) {
        match self.clock {
            None => std::hint::spin_loop(),
            Some(_) => std::thread::yield_now(),
        }
    }

    fn time(&self) -> Duration {
        self.clock.as_ref().map_or(Duration::ZERO, |clock| clock.now().0)
    }
}
