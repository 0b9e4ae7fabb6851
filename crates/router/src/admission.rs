//! How many calls a router takes at a time.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::error::RouteError;

/// Counts calls in flight; full means refuse now, never queue.
#[derive(Clone, Debug)]
pub(crate) struct Admission {
    places: Arc<Semaphore>,
    limit: usize,
}

/// A call's place, held to the end of its stream.
#[derive(Debug)]
pub(crate) struct Permit {
    _place: OwnedSemaphorePermit,
}

impl Admission {
    pub(crate) fn new(limit: usize) -> Self {
        Self { places: Arc::new(Semaphore::new(limit)), limit }
    }

    pub(crate) fn enter(&self) -> Result<Permit, RouteError> {
        let permit = Arc::clone(&self.places).try_acquire_owned();
        permit.map(|place| Permit { _place: place }).map_err(|_| RouteError::Busy { limit: self.limit })
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.limit - self.places.available_permits()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_means_refused_until_one_leaves() {
        let admission = Admission::new(2);
        let first = admission.enter().unwrap();
        let _second = admission.enter().unwrap();
        assert_eq!(admission.enter().unwrap_err(), RouteError::Busy { limit: 2 });
        assert_eq!(admission.in_flight(), 2);
        drop(first);
        assert!(admission.enter().is_ok());
        assert_eq!(admission.in_flight(), 1);
    }
}
