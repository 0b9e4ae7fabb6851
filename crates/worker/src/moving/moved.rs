//! Where sessions went: so that a turn that still comes here is told the owner.
//!
//! Bounded: the oldest is forgotten first. That is safe, since the store knows.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use hawser_common::SessionKey;
use hawser_common::group::Owner;

#[derive(Debug)]
pub(super) struct Moved {
    known: Mutex<Known>,
    limit: usize,
}

#[derive(Debug, Default)]
struct Known {
    owners: HashMap<SessionKey, Owner>,
    order: VecDeque<SessionKey>,
}

impl Moved {
    pub(super) fn new(limit: usize) -> Self {
        Self { known: Mutex::default(), limit }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn owner(&self, key: &SessionKey) -> Option<Owner> {
        self.known().owners.get(key).cloned()
    }

    pub(super) fn insert(&self, key: SessionKey, owner: Owner) {
        let mut known = self.known();
        if known.owners.insert(key.clone(), owner).is_none() {
            known.order.push_back(key);
        }
        while known.order.len() > self.limit {
            if let Some(oldest) = known.order.pop_front() {
                known.owners.remove(&oldest);
            }
        }
    }

    pub(super) fn remove(&self, key: &SessionKey) {
        let Known { owners, order } = &mut *self.known();
        if owners.remove(key).is_some() {
            order.retain(|known| known != key);
        }
    }
}

#[cfg(test)]
mod tests {
    use hawser_common::{Epoch, GroupId, SessionId, TenantId};

    use super::*;

    #[test]
    fn the_oldest_is_forgotten_first() {
        let key = |n: usize| SessionKey {
            tenant: TenantId::single(),
            session: SessionId::parse(&format!("s{n}")).unwrap(),
        };
        let owner = |n| Owner { group: GroupId::parse("g").unwrap(), epoch: Epoch(n) };
        let moved = Moved::new(2);
        (0..3).for_each(|n| moved.insert(key(n), owner(1)));
        moved.insert(key(1), owner(2));
        assert_eq!(moved.owner(&key(0)), None);
        assert_eq!((moved.owner(&key(1)), moved.owner(&key(2))), (Some(owner(2)), Some(owner(1))));
        moved.remove(&key(1));
        (3..5).for_each(|n| moved.insert(key(n), owner(1)));
        assert_eq!((moved.owner(&key(1)), moved.owner(&key(2))), (None, None));
        assert!(moved.owner(&key(3)).is_some() && moved.owner(&key(4)).is_some());
    }
}
