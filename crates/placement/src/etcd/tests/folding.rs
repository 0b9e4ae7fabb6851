//! The fold without an etcd: whoever followed every revision knows what whoever lists now is told.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::super::fold::{Entry, Fold};
use super::super::values::{write_capacity, write_group, write_owner};
use super::*;
use crate::store::{Change, Event, Update};
use hawser_common::group::Owner;

/// One write of the kind that the store makes; numbers are indices modulo what there is.
#[derive(Clone, Debug)]
enum Op {
    Register(u8),
    /// A registration ends together with everything under its lease.
    End(u8),
    /// A registration ends first, and what was claimed under it after that.
    EndInSteps(u8),
    Publish(u8, u64),
    Claim(u8, Vec<u8>),
    Release(u8, Vec<u8>),
    Junk(u8),
}

fn op() -> impl Strategy<Value = Op> {
    let sessions = || prop::collection::vec(0u8..8, 1..6);
    prop_oneof![
        4 => (0u8..3).prop_map(Op::Register),
        1 => (0u8..3).prop_map(Op::End),
        1 => (0u8..3).prop_map(Op::EndInSteps),
        2 => (0u8..3, 0u64..100).prop_map(|(g, n)| Op::Publish(g, n)),
        6 => (0u8..3, sessions()).prop_map(|(g, s)| Op::Claim(g, s)),
        3 => (0u8..3, sessions()).prop_map(|(g, s)| Op::Release(g, s)),
        1 => (0u8..4).prop_map(Op::Junk),
    ]
}

/// Keys with their values and the revisions at which they came to be, and what watched them.
struct World {
    keys: Keys,
    revision: u64,
    store: BTreeMap<String, (Vec<u8>, u64)>,
    fold: Fold,
    mirror: Mirror,
}

impl World {
    fn new() -> Self {
        let keys = Keys::new("/hawser/v1");
        let fold = Fold::new(keys.clone(), 1);
        let mut mirror = Mirror::default();
        mirror.apply(Update { revision: 1, change: Change::Snapshot(fold.snapshot()) });
        Self { keys, revision: 1, store: BTreeMap::new(), fold, mirror }
    }

    /// One revision: each key put, or deleted where there is no value.
    fn write(&mut self, writes: Vec<(String, Option<Vec<u8>>)>) {
        self.revision += 1;
        for (key, value) in &writes {
            match value {
                Some(value) => {
                    let created = self.store.get(key).map_or(self.revision, |known| known.1);
                    self.store.insert(key.clone(), (value.clone(), created));
                }
                None => {
                    self.store.remove(key);
                }
            }
        }
        let entries = writes.iter().map(|(key, value)| Entry {
            key: key.as_bytes(),
            value: value.as_deref(),
            created: self.store.get(key).map_or(0, |known| known.1),
        });
        let events = self.fold.apply(self.revision, entries);
        if !events.is_empty() {
            self.mirror.apply(Update { revision: self.revision, change: Change::Events(events) });
        }
    }

    fn owner(&self, g: u8) -> Option<Owner> {
        let id = group(&format!("g{g}"));
        self.store.get(&self.keys.group(&id)).map(|known| Owner { group: id, epoch: Epoch(known.1) })
    }

    fn claims_of(&self, owner: &Owner) -> Vec<String> {
        let value = write_owner(owner);
        self.store.iter().filter(|(_, known)| known.0 == value).map(|(key, _)| key.clone()).collect()
    }

    fn step(&mut self, op: Op) {
        let session = |s: &u8| self.keys.session(&key("t", &format!("s{s}")));
        match op {
            Op::Register(g) => {
                if self.owner(g).is_none() {
                    let record = record(&format!("g{g}"));
                    self.write(vec![
                        (self.keys.group(&record.id), write_group(&record)),
                        (self.keys.capacity(&record.id), Some(write_capacity(&record.capacity, false))),
                    ]);
                }
            }
            Op::End(g) | Op::EndInSteps(g) => {
                let Some(owner) = self.owner(g) else { return };
                let own =
                    vec![(self.keys.capacity(&owner.group), None), (self.keys.group(&owner.group), None)];
                let claims: Vec<_> = self.claims_of(&owner).into_iter().map(|key| (key, None)).collect();
                if matches!(op, Op::End(_)) {
                    self.write([own, claims].concat());
                } else {
                    self.write(own);
                    claims.into_iter().for_each(|claim| self.write(vec![claim]));
                }
            }
            Op::Publish(g, slots_free) => {
                let Some(owner) = self.owner(g) else { return };
                let value = write_capacity(&Capacity { slots_free, ..Capacity::default() }, true);
                self.write(vec![(self.keys.capacity(&owner.group), Some(value))]);
            }
            Op::Claim(g, mut sessions) => {
                let Some(owner) = self.owner(g) else { return };
                sessions.sort_unstable();
                sessions.dedup();
                let free = sessions.iter().map(session).filter(|key| !self.store.contains_key(key));
                let writes: Vec<_> = free.map(|key| (key, Some(write_owner(&owner)))).collect();
                self.write(writes);
            }
            Op::Release(g, sessions) => {
                let Some(owner) = self.owner(g) else { return };
                let held = self.claims_of(&owner);
                let mut asked: Vec<_> =
                    sessions.iter().map(session).filter(|key| held.contains(key)).collect();
                asked.sort_unstable();
                asked.dedup();
                self.write(asked.into_iter().map(|key| (key, None)).collect());
            }
            Op::Junk(n) => {
                let name =
                    ["ranks/g0/1/x", "groups/x/y", "sessions/t/junk", "capacity/nobody"][usize::from(n)];
                self.write(vec![(format!("/hawser/v1/{name}"), Some(b"{\"v\":9}".to_vec()))]);
            }
        }
    }

    /// What a listing at this revision tells, read in two pages.
    fn listed(&self) -> Mirror {
        let mut fold = Fold::new(self.keys.clone(), self.revision);
        let all: Vec<_> = self.store.iter().collect();
        for page in all.chunks(all.len() / 2 + 1) {
            let entry =
                |(key, known): &(&String, &(Vec<u8>, u64))| (key.as_bytes().to_vec(), (*known).clone());
            let page: Vec<_> = page.iter().map(entry).collect();
            fold.apply(
                self.revision,
                page.iter().map(|(key, known)| Entry { key, value: Some(&known.0), created: known.1 }),
            );
        }
        let mut mirror = Mirror::default();
        mirror.apply(Update { revision: self.revision, change: Change::Snapshot(fold.snapshot()) });
        mirror
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]
    #[test]
    fn whoever_followed_knows_what_whoever_lists_is_told(ops in prop::collection::vec(op(), 1..60)) {
        let mut world = World::new();
        for op in ops {
            world.step(op);
            assert_same(&world.mirror, &world.listed());
        }
    }
}

#[test]
fn a_group_that_came_back_within_one_message_is_told_as_gone_first() {
    let mut world = World::new();
    world.step(Op::Register(0));
    world.step(Op::Claim(0, vec![1]));
    let id = group("g0");
    // The key as another registration, whose deletion in between was not seen.
    let value = write_group(&record("g0")).unwrap();
    let key_text = world.keys.group(&id);
    let events = world.fold.apply(9, [Entry { key: key_text.as_bytes(), value: Some(&value), created: 9 }]);
    let record = hawser_common::group::GroupRecord { epoch: Epoch(9), ..record("g0") };
    assert_eq!(events, [Event::GroupGone(id), Event::GroupChanged(record)]);
}
