//! The group of one: every reduction is the value itself.

use std::sync::{Arc, OnceLock};

use super::{AbortHandle, Collective, CollectiveError, Reduce, StepTag, Traffic, Values};

/// A group of one rank.
#[derive(Debug, Default)]
pub struct Single {
    aborted: Arc<OnceLock<String>>,
    calls: u64,
}

impl Single {
    fn call(&mut self) -> Result<(), CollectiveError> {
        self.calls += 1;
        match self.aborted.get() {
            None => Ok(()),
            Some(reason) => Err(CollectiveError::Aborted { reason: reason.clone() }),
        }
    }
}

impl Collective for Single {
    fn rank(&self) -> usize {
        0
    }

    fn world(&self) -> usize {
        1
    }

    fn begin_step(&mut self, _step: StepTag) {}

    fn all_reduce(&mut self, _data: Values<'_>, _by: Reduce) -> Result<(), CollectiveError> {
        self.call()
    }

    fn reduce_to_leader(&mut self, _data: Values<'_>, _by: Reduce) -> Result<(), CollectiveError> {
        self.call()
    }

    fn gather(&mut self, part: &[f32], _counts: &[usize], whole: &mut [f32]) -> Result<(), CollectiveError> {
        whole.copy_from_slice(part);
        self.call()
    }

    fn broadcast(&mut self, _data: Values<'_>) -> Result<(), CollectiveError> {
        self.call()
    }

    fn barrier(&mut self) -> Result<(), CollectiveError> {
        self.call()
    }

    fn abort_handle(&self) -> AbortHandle {
        let aborted = Arc::clone(&self.aborted);
        AbortHandle::new(move |reason| {
            let _ = aborted.set(reason.to_owned());
        })
    }

    fn traffic(&self) -> Traffic {
        Traffic { calls: self.calls, ..Traffic::default() }
    }
}
