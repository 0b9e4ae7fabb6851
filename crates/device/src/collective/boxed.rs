//! A transport that was chosen at run time is a transport.

use super::{AbortHandle, Collective, CollectiveError, Reduce, StepTag, Traffic, Values};

impl<C: Collective + ?Sized> Collective for Box<C> {
    fn rank(&self) -> usize {
        (**self).rank()
    }

    fn world(&self) -> usize {
        (**self).world()
    }

    fn begin_step(&mut self, step: StepTag) {
        (**self).begin_step(step);
    }

    fn all_reduce(&mut self, data: Values<'_>, by: Reduce) -> Result<(), CollectiveError> {
        (**self).all_reduce(data, by)
    }

    fn reduce_to_leader(&mut self, data: Values<'_>, by: Reduce) -> Result<(), CollectiveError> {
        (**self).reduce_to_leader(data, by)
    }

    fn gather(&mut self, part: &[f32], counts: &[usize], whole: &mut [f32]) -> Result<(), CollectiveError> {
        (**self).gather(part, counts, whole)
    }

    fn broadcast(&mut self, data: Values<'_>) -> Result<(), CollectiveError> {
        (**self).broadcast(data)
    }

    fn barrier(&mut self) -> Result<(), CollectiveError> {
        (**self).barrier()
    }

    fn abort_handle(&self) -> AbortHandle {
        (**self).abort_handle()
    }

    fn traffic(&self) -> Traffic {
        (**self).traffic()
    }
}
