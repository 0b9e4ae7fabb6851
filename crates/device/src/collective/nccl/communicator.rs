//! One rank's communicator over device memory, with its context and its stream.
//!
//! Owns the life of a group on this rank: joining until a deadline, every wait polled, the abort. Promises that a
//! communicator is aborted exactly once, at the first error or when it is dropped; that no wait outlasts its deadline,
//! an error of NCCL's or [`Ended`]; and that every call runs in its own device's context, whichever thread owns it.
//! Never touches host rows (see [`super::staging`]), and never retries.

use std::cell::Cell;
use std::fmt::Display;
use std::marker::PhantomData;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use hawser_common::clock::{Clock, Tick};

use super::super::CollectiveError;
use super::calls::{CallError, Calls, Comm, Context, Exchange, Progress, Stream};
use super::unique_id::UniqueId;
use super::version::OLDEST;
use super::{Member, TRANSPORT};

/// How long an ended group may keep its stream busy before its memory is given up for lost.
const QUIET_AFTER: Duration = Duration::from_secs(5);

/// Polls that only let other threads run; later ones sleep.
const EAGER_POLLS: u32 = 2_000;
const LAZY_POLL: Duration = Duration::from_micros(50);

/// Why a group is over, once it is. Set from any thread; the thread that waits sees it.
#[derive(Debug, Default)]
pub(super) struct Ended(OnceLock<String>);

impl Ended {
    /// Only the first reason counts.
    pub(super) fn because(&self, reason: &str) {
        let _ = self.0.set(reason.to_owned());
    }

    fn check(&self) -> Result<(), CollectiveError> {
        match self.0.get() {
            None => Ok(()),
            Some(reason) => Err(CollectiveError::Aborted { reason: reason.clone() }),
        }
    }
}

/// Until when something may last.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deadline {
    started: Tick,
    limit: Duration,
}

/// What a wait looks at.
#[derive(Clone, Copy, Debug)]
enum Watch {
    /// Whether NCCL has taken the last call.
    Communicator,
    /// Whether the stream has done everything too.
    Stream,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Communicator {
    calls: Arc<dyn Calls>,
    clock: Clock,
    member: Member,
    context: Context,
    stream: Option<Stream>,
    /// None before it has joined and after it was aborted.
    comm: Option<Comm>,
    ended: Arc<Ended>,
    /// Whether the device is through with the stream; known once the group has ended.
    quiet: Option<bool>,
    one_thread: PhantomData<Cell<()>>,
}

impl Communicator {
    /// Joins the group `id` and waits until all ranks have, at most for `limit`.
    pub(super) fn join(
        calls: Arc<dyn Calls>,
        clock: Clock,
        member: Member,
        id: &UniqueId,
        device: usize,
        limit: Duration,
    ) -> Result<Self, CollectiveError> {
        let deadline = Deadline { started: clock.now(), limit };
        let found = calls.version()?;
        if found < OLDEST {
            let reason = format!("the library is version {found}; version {OLDEST} or later is needed");
            return Err(CollectiveError::Transport { transport: TRANSPORT, reason });
        }
        let context = calls.open(device)?;
        let mut new = Self {
            calls,
            clock,
            member,
            context,
            stream: None,
            comm: None,
            ended: Arc::default(),
            quiet: None,
            one_thread: PhantomData,
        };
        // From here on, dropping `new` gives back what it has.
        // SAFETY: the context was just opened and is entered before the calls that need one.
        unsafe {
            new.calls.enter(context)?;
            new.stream = Some(new.calls.create_stream()?);
            new.comm = Some(new.calls.join(id, member.rank, member.world)?);
        }
        new.poll(Watch::Communicator, deadline, &"the start of the group")?;
        Ok(new)
    }

    pub(super) fn member(&self) -> Member {
        self.member
    }

    pub(super) fn ended(&self) -> Arc<Ended> {
        Arc::clone(&self.ended)
    }

    /// For a call that begins now and takes at most `limit`.
    pub(super) fn deadline(&self, limit: Duration) -> Deadline {
        Deadline { started: self.clock.now(), limit }
    }

    /// Makes the device this thread's own; the first thing that every call does.
    pub(super) fn enter(&mut self) -> Result<(), CollectiveError> {
        if let Err(ended) = self.ended.check() {
            self.abort();
            return Err(ended);
        }
        // SAFETY: the context is ours until `drop`.
        let entered = unsafe { self.calls.enter(self.context) };
        self.checked(entered)
    }

    /// Runs calls that put work on the stream, or that need the context; their error ends the group.
    pub(super) fn with<T>(
        &mut self,
        calls: impl FnOnce(&dyn Calls, Stream) -> Result<T, CallError>,
    ) -> Result<T, CollectiveError> {
        let stream = self.stream.expect("a communicator that has joined has a stream");
        let done = calls(&*self.calls, stream);
        self.checked(done)
    }

    /// Enqueues `exchange` and waits until NCCL has taken it.
    ///
    /// # Safety
    /// Its memory is on this communicator's device, has room for the operation, and stays until [`Self::wait`] has
    /// returned without an error or [`Self::stop`] has returned true. [`Self::enter`] has succeeded in this call.
    pub(super) unsafe fn launch(
        &mut self,
        exchange: &Exchange,
        deadline: Deadline,
        what: &dyn Display,
    ) -> Result<(), CollectiveError> {
        let comm = self.comm.expect("a call enters first and stops at its first error");
        // SAFETY: the communicator and the stream are live; the caller answers for the memory.
        let progress = self.with(|calls, stream| unsafe { calls.launch(comm, stream, exchange) })?;
        match progress {
            Progress::Done => Ok(()),
            Progress::Pending => self.poll(Watch::Communicator, deadline, what),
        }
    }

    /// Waits until the stream has done all that was enqueued.
    pub(super) fn wait(&mut self, deadline: Deadline, what: &dyn Display) -> Result<(), CollectiveError> {
        self.poll(Watch::Stream, deadline, what)
    }

    /// Ends the group here with `error`, which is also what later calls are told.
    pub(super) fn fail(&mut self, error: CollectiveError) -> CollectiveError {
        self.ended.because(&error.to_string());
        self.abort();
        error
    }

    /// Ends the group and waits for the device to let go of its memory. False if it did not: then no memory that it
    /// may still use may be given back.
    pub(super) fn stop(&mut self) -> bool {
        self.ended.because("the group was closed");
        self.abort();
        if let Some(quiet) = self.quiet {
            return quiet;
        }
        let quiet = self.becomes_quiet();
        self.quiet = Some(quiet);
        quiet
    }

    fn becomes_quiet(&self) -> bool {
        let Some(stream) = self.stream else {
            return true;
        };
        let deadline = self.deadline(QUIET_AFTER);
        let mut pause = Pause::default();
        loop {
            // SAFETY: context and stream are ours until `drop`.
            let state =
                unsafe { self.calls.enter(self.context).and_then(|()| self.calls.stream_state(stream)) };
            match state {
                Ok(Progress::Done) => return true,
                Err(_) => return false,
                Ok(Progress::Pending) if self.overdue(deadline).is_some() => return false,
                Ok(Progress::Pending) => pause.next(),
            }
        }
    }

    fn poll(&mut self, watch: Watch, deadline: Deadline, what: &dyn Display) -> Result<(), CollectiveError> {
        let mut pause = Pause::default();
        loop {
            let seen = self.look(watch);
            if self.checked(seen)? == Progress::Done {
                return Ok(());
            }
            if let Err(ended) = self.ended.check() {
                self.abort();
                return Err(ended);
            }
            if let Some(waited) = self.overdue(deadline) {
                // NCCL does not tell who is missing, so no rank is named.
                let reason = format!("a rank of {} was silent for {waited:?} in {what}", self.member.world);
                return Err(self.fail(CollectiveError::Transport { transport: TRANSPORT, reason }));
            }
            pause.next();
        }
    }

    /// An idle stream means nothing if NCCL had to give up, so both are asked.
    fn look(&self, watch: Watch) -> Result<Progress, CallError> {
        // SAFETY: the stream and the communicator are live while they are here, and the context was entered when the
        // call began.
        unsafe {
            if let (Watch::Stream, Some(stream)) = (watch, self.stream)
                && self.calls.stream_state(stream)? == Progress::Pending
            {
                let busy = self.comm.map(|comm| self.calls.comm_state(comm));
                return busy.transpose().map(|_| Progress::Pending);
            }
            self.comm.map_or(Ok(Progress::Done), |comm| self.calls.comm_state(comm))
        }
    }

    fn overdue(&self, deadline: Deadline) -> Option<Duration> {
        let waited = self.clock.now().since(deadline.started);
        (waited >= deadline.limit).then_some(waited)
    }

    fn checked<T>(&mut self, result: Result<T, CallError>) -> Result<T, CollectiveError> {
        result.map_err(|error| self.fail(error.into()))
    }

    fn abort(&mut self) {
        if let Some(comm) = self.comm.take() {
            // SAFETY: it was live, and taking it makes this its last use. Errors change nothing: the communicator is
            // gone either way, and there is already a reason why the group is over.
            unsafe {
                let _ = self.calls.enter(self.context);
                let _ = self.calls.abort(comm);
            }
        }
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        // A device that does not let go keeps its context and its stream: giving them back could block for ever.
        if self.stop() {
            // SAFETY: the stream is idle and nobody else has either. Errors are of no use here.
            unsafe {
                if let Some(stream) = self.stream.take() {
                    let _ = self.calls.destroy_stream(stream);
                }
                let _ = self.calls.close(self.context);
            }
        }
    }
}

/// Waits a moment between two looks: first hardly, since most calls are short, then longer.
#[derive(Debug, Default)]
struct Pause {
    polls: u32,
}

impl Pause {
    fn next(&mut self) {
        if self.polls < EAGER_POLLS {
            self.polls += 1;
            std::thread::yield_now();
        } else {
            std::thread::sleep(LAZY_POLL);
        }
    }
}
