//! Which group owns a session, as the store's watch told it. Pure.
//!
//! Bounded: when full, new claims are not remembered. That is safe, because a turn of a session that is not known is
//! offered to some group, which learns the owner from the store and says so.

use std::collections::HashMap;

use hawser_common::group::Owner;
use hawser_common::{GroupId, SessionKey};

#[derive(Debug)]
pub(crate) struct Affinity {
    owners: HashMap<SessionKey, Owner>,
    limit: usize,
}

impl Affinity {
    pub(crate) fn new(limit: usize) -> Self {
        Self { owners: HashMap::new(), limit }
    }

    pub(crate) fn len(&self) -> usize {
        self.owners.len()
    }

    pub(crate) fn owner(&self, session: &SessionKey) -> Option<&Owner> {
        self.owners.get(session)
    }

    pub(crate) fn claimed(&mut self, session: SessionKey, owner: Owner) {
        if self.owners.len() < self.limit || self.owners.contains_key(&session) {
            self.owners.insert(session, owner);
        }
    }

    pub(crate) fn released(&mut self, session: &SessionKey) {
        self.owners.remove(session);
    }

    /// Forgets every session of a group. Walks all of them: a group goes seldom.
    pub(crate) fn group_gone(&mut self, group: &GroupId) {
        self.owners.retain(|_, owner| owner.group != *group);
    }

    /// What is known from a snapshot of the store.
    pub(crate) fn of(claims: Vec<(SessionKey, Owner)>, limit: usize) -> Self {
        let mut known = Self { owners: HashMap::with_capacity(claims.len().min(limit)), limit };
        for (session, owner) in claims {
            known.claimed(session, owner);
        }
        known
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use hawser_common::{Epoch, SessionId, TenantId};
    use proptest::prelude::*;

    use super::*;

    fn key(tenant: &str, session: &str) -> SessionKey {
        let tenant = TenantId::parse(tenant).unwrap();
        SessionKey { tenant, session: SessionId::parse(session).unwrap() }
    }

    fn owner(group: u8) -> Owner {
        Owner { group: GroupId::parse(&format!("g{group}")).unwrap(), epoch: Epoch(group.into()) }
    }

    #[test]
    fn ids_that_begin_alike_are_different_sessions() {
        let mut affinity = Affinity::new(100);
        affinity.claimed(key("t", "session-1"), owner(1));
        affinity.claimed(key("t", "session-12"), owner(2));
        affinity.claimed(key("ab", "c"), owner(3));
        assert_eq!(affinity.owner(&key("t", "session-1")), Some(&owner(1)));
        assert_eq!(affinity.owner(&key("t", "session-12")), Some(&owner(2)));
        assert_eq!(affinity.owner(&key("a", "bc")), None);
        affinity.group_gone(&owner(1).group);
        assert_eq!(affinity.owner(&key("t", "session-1")), None);
        assert_eq!(affinity.owner(&key("t", "session-12")), Some(&owner(2)));
    }

    proptest! {
        /// What is remembered is what the store said, and never more than the limit.
        #[test]
        fn never_more_than_the_limit_and_never_wrong(
            limit in 1usize..10,
            ops in prop::collection::vec((0u8..4, 0u8..12, 0u8..3), 0..100),
        ) {
            let mut affinity = Affinity::new(limit);
            let mut truth: BTreeMap<u8, u8> = BTreeMap::new();
            for (op, session, group) in ops {
                let id = key("t", &session.to_string());
                match op {
                    0 | 1 => {
                        truth.insert(session, group);
                        affinity.claimed(id, owner(group));
                    }
                    2 => {
                        truth.remove(&session);
                        affinity.released(&id);
                    }
                    _ => {
                        truth.retain(|_, held| *held != group);
                        affinity.group_gone(&owner(group).group);
                    }
                }
                prop_assert!(affinity.owners.len() <= limit);
                for (session, known) in &affinity.owners {
                    let held = truth.get(&session.session.as_str().parse().unwrap());
                    prop_assert_eq!(held.map(|group| owner(*group)), Some(known.clone()));
                }
                prop_assert!(affinity.owners.len() == truth.len() || truth.len() > limit || affinity.owners.len() < limit);
            }
        }
    }
}
