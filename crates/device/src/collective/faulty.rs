//! A transport with a fault, for the tests of whatever stands on it.
//!
//! Promises one fault, at one call, the same in every run. Never tells the transport that something is wrong: finding
//! out is what is tested.

use std::panic::resume_unwind;
use std::time::Duration;

use super::{AbortHandle, Collective, CollectiveError, Reduce, StepTag, Traffic, Values};

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The call begins this much later.
    Delay(Duration),
    /// The rank goes silent: the call never reaches the group, and it and all later ones return an error. The first
    /// does so only after this time. With a time beyond the group's timeout the others see a timeout.
    Drop { silent: Duration },
    /// The call says that it belongs to another epoch.
    CorruptTag,
    /// One bit of what this rank gives is the other way round. Both count modulo what there is; a call without
    /// values is left as it is.
    FlipBit { element: usize, bit: u32 },
    /// As [`Fault::FlipBit`], of what this rank gets: the call itself goes well.
    FlipReceived { element: usize, bit: u32 },
    /// The rank panics instead of calling.
    Panic,
}

/// One rank's end of a group, with a fault.
#[derive(Debug)]
pub struct Faulty {
    inner: Box<dyn Collective>,
    at_call: u64,
    fault: Fault,
    /// Calls so far, of all operations.
    calls: u64,
    step: StepTag,
    dropped: bool,
    flipped: Vec<f32>,
}

/// What the calls in which a bit is turned round turn round.
#[derive(Clone, Copy, Default)]
struct Flips {
    given: Option<(usize, u32)>,
    received: Option<(usize, u32)>,
}

impl Faulty {
    /// `inner`, with `fault` at the call number `at_call`, counted from 0 over all operations and steps.
    #[must_use]
    pub fn new(inner: Box<dyn Collective>, at_call: u64, fault: Fault) -> Self {
        Self {
            inner,
            at_call,
            fault,
            calls: 0,
            step: StepTag::default(),
            dropped: false,
            flipped: Vec::new(),
        }
    }

    /// Counts a call and does what is wrong with it. Returns the bits to flip.
    fn call(&mut self) -> Result<Flips, CollectiveError> {
        let now = self.calls == self.at_call;
        self.calls += 1;
        match self.fault {
            Fault::Delay(delay) if now => std::thread::sleep(delay),
            Fault::Drop { silent } if now => {
                std::thread::sleep(silent);
                self.dropped = true;
            }
            Fault::CorruptTag if now => {
                let epoch = self.step.epoch ^ (1 << 63);
                self.inner.begin_step(StepTag { epoch, ..self.step });
            }
            Fault::FlipBit { element, bit } if now => {
                return Ok(Flips { given: Some((element, bit)), received: None });
            }
            Fault::FlipReceived { element, bit } if now => {
                return Ok(Flips { given: None, received: Some((element, bit)) });
            }
            // Without the panic hook: what is meant to happen need not be reported.
            Fault::Panic if now => resume_unwind(Box::new("a fault was injected")),
            _ => {}
        }
        if self.dropped {
            let reason = format!("call {} was dropped", self.at_call);
            return Err(CollectiveError::Transport { transport: "faulty", reason });
        }
        Ok(Flips::default())
    }

    fn call_with(
        &mut self,
        mut data: Values<'_>,
        call: impl FnOnce(&mut dyn Collective, Values<'_>) -> Result<(), CollectiveError>,
    ) -> Result<(), CollectiveError> {
        let flips = self.call()?;
        flip_value(&mut data, flips.given);
        call(&mut *self.inner, data.reborrow())?;
        flip_value(&mut data, flips.received);
        Ok(())
    }
}

fn flip_value(data: &mut Values<'_>, at: Option<(usize, u32)>) {
    let Some((element, bit)) = at else { return };
    let elements = data.len();
    flip(data.bytes_mut(), elements, element, bit);
}

/// Flips a bit of one of `elements` values that lie in `bytes`.
fn flip(bytes: &mut [u8], elements: usize, element: usize, bit: u32) {
    if elements == 0 {
        return;
    }
    let width = bytes.len() / elements;
    let bit = bit as usize % (8 * width);
    // The least bit is in the last byte of the value where that is the machine's order.
    let byte = if cfg!(target_endian = "big") { width - 1 - bit / 8 } else { bit / 8 };
    bytes[element % elements * width + byte] ^= 1 << (bit % 8);
}

impl Collective for Faulty {
    fn rank(&self) -> usize {
        self.inner.rank()
    }

    fn world(&self) -> usize {
        self.inner.world()
    }

    fn begin_step(&mut self, step: StepTag) {
        self.step = step;
        self.inner.begin_step(step);
    }

    fn all_reduce(&mut self, data: Values<'_>, by: Reduce) -> Result<(), CollectiveError> {
        self.call_with(data, |inner, data| inner.all_reduce(data, by))
    }

    fn reduce_to_leader(&mut self, data: Values<'_>, by: Reduce) -> Result<(), CollectiveError> {
        self.call_with(data, |inner, data| inner.reduce_to_leader(data, by))
    }

    fn gather(&mut self, part: &[f32], counts: &[usize], whole: &mut [f32]) -> Result<(), CollectiveError> {
        let flips = self.call()?;
        self.flipped.clear();
        self.flipped.extend_from_slice(part);
        flip_value(&mut Values::F32(&mut self.flipped), flips.given);
        self.inner.gather(&self.flipped, counts, whole)?;
        flip_value(&mut Values::F32(whole), flips.received);
        Ok(())
    }

    fn broadcast(&mut self, data: Values<'_>) -> Result<(), CollectiveError> {
        self.call_with(data, |inner, data| inner.broadcast(data))
    }

    fn barrier(&mut self) -> Result<(), CollectiveError> {
        self.call()?;
        self.inner.barrier()
    }

    fn abort_handle(&self) -> AbortHandle {
        self.inner.abort_handle()
    }

    fn traffic(&self) -> Traffic {
        self.inner.traffic()
    }
}
