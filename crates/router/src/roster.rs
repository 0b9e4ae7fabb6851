//! Which groups came and went, for people: each registration is told of once when it joins, once when it drains and once
//! when it ends.
//!
//! Pure. A list of what is known already is no news, and neither is capacity. Knows no more groups than are registered.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use hawser_common::group::{GroupRecord, Owner};
use hawser_common::{Epoch, GroupId};
use hawser_placement::{Change, Event, Update};

/// News of one registration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Note {
    Joined { owner: Owner, address: String, model: String },
    Drains(Owner),
    Left(Owner),
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Joined { owner, .. } | Self::Drains(owner) | Self::Left(owner)) = self;
        let Owner { group, epoch } = owner;
        match self {
            Self::Joined { address, model, .. } => {
                write!(f, "group {group} joined: it serves {model} at {address} (epoch {epoch})")
            }
            Self::Drains(_) => write!(f, "group {group} drains: it takes no new sessions (epoch {epoch})"),
            Self::Left(_) => write!(f, "group {group} left (epoch {epoch})"),
        }
    }
}

/// A registration as people know it.
#[derive(Clone, Copy, Debug)]
struct Told {
    epoch: Epoch,
    drains: bool,
}

/// See the head of this file.
#[derive(Debug, Default)]
pub(crate) struct Roster {
    told: BTreeMap<GroupId, Told>,
}

impl Roster {
    /// What to say after news of the store.
    pub(crate) fn heard(&mut self, update: &Update) -> Vec<Note> {
        let mut notes = Vec::new();
        match &update.change {
            Change::Snapshot(snapshot) => {
                let listed: BTreeSet<_> = snapshot.groups.iter().map(|record| &record.id).collect();
                let gone: Vec<_> = self.told.keys().filter(|id| !listed.contains(id)).cloned().collect();
                notes.extend(gone.iter().filter_map(|group| self.left(group)));
                snapshot.groups.iter().for_each(|record| self.changed(record, &mut notes));
            }
            Change::Events(events) => {
                for event in events {
                    match event {
                        Event::GroupChanged(record) => self.changed(record, &mut notes),
                        Event::GroupGone(group) => notes.extend(self.left(group)),
                        Event::Claimed(..) | Event::Released(_) => {}
                    }
                }
            }
        }
        notes
    }

    fn changed(&mut self, record: &GroupRecord, notes: &mut Vec<Note>) {
        let known = self.told.get(&record.id).filter(|told| told.epoch == record.epoch).copied();
        if known.is_none() {
            let (address, model) = (record.address.clone(), record.model.clone());
            notes.push(Note::Joined { owner: record.owner(), address, model });
        }
        let drained = known.is_some_and(|told| told.drains);
        if record.draining && !drained {
            notes.push(Note::Drains(record.owner()));
        }
        let told = Told { epoch: record.epoch, drains: drained || record.draining };
        self.told.insert(record.id.clone(), told);
    }

    fn left(&mut self, group: &GroupId) -> Option<Note> {
        let told = self.told.remove(group)?;
        Some(Note::Left(Owner { group: group.clone(), epoch: told.epoch }))
    }
}

#[cfg(test)]
mod tests {
    use hawser_placement::Snapshot;
    use proptest::prelude::*;

    use super::*;
    use crate::balance::tests::record;

    fn events(events: Vec<Event>) -> Update {
        Update { revision: 1, change: Change::Events(events) }
    }

    fn snapshot(groups: Vec<GroupRecord>) -> Update {
        Update { revision: 1, change: Change::Snapshot(Snapshot { groups, claims: Vec::new() }) }
    }

    /// What happens to one of three groups, and whether the store is listed anew after it.
    #[derive(Clone, Copy, Debug)]
    enum Happens {
        Registers,
        Publishes,
        Drains,
        Ends,
    }

    fn happens() -> impl Strategy<Value = (usize, Happens, bool)> {
        let what = prop_oneof![
            Just(Happens::Registers),
            Just(Happens::Publishes),
            Just(Happens::Drains),
            Just(Happens::Ends)
        ];
        (0..3usize, what, any::<bool>())
    }

    proptest! {
        /// Each registration joins, drains and leaves once, whatever is published meanwhile and however often all is
        /// listed, also in place of the events themselves.
        #[test]
        fn each_registration_is_told_of_once(history in prop::collection::vec(happens(), 0..60), lists in any::<bool>()) {
            let mut roster = Roster::default();
            let mut there: [Option<GroupRecord>; 3] = [None, None, None];
            for (epoch, (index, what, relist)) in (1..).zip(history) {
                let group = &mut there[index];
                let (mut news, mut expected) = (Vec::new(), Vec::new());
                match (what, group.as_mut()) {
                    (Happens::Registers, None) => {
                        let new = GroupRecord { epoch: Epoch(epoch), ..record(&format!("g{index}"), 100, 0) };
                        let (address, model) = (new.address.clone(), new.model.clone());
                        expected.push(Note::Joined { owner: new.owner(), address, model });
                        news.push(Event::GroupChanged(new.clone()));
                        *group = Some(new);
                    }
                    (Happens::Publishes, Some(known)) => {
                        known.capacity.sessions += 1;
                        news.push(Event::GroupChanged(known.clone()));
                    }
                    (Happens::Drains, Some(known)) => {
                        if !std::mem::replace(&mut known.draining, true) {
                            expected.push(Note::Drains(known.owner()));
                        }
                        news.push(Event::GroupChanged(known.clone()));
                    }
                    (Happens::Ends, Some(known)) => {
                        expected.push(Note::Left(known.owner()));
                        news.push(Event::GroupGone(known.id.clone()));
                        *group = None;
                    }
                    _ => {}
                }
                let all = || snapshot(there.iter().flatten().cloned().collect());
                prop_assert_eq!(roster.heard(&if lists { all() } else { events(news) }), expected);
                if relist {
                    prop_assert_eq!(roster.heard(&all()), vec![]);
                }
                prop_assert_eq!(roster.told.len(), there.iter().flatten().count());
            }
        }
    }

    #[test]
    fn what_was_missed_between_two_lists_is_told_with_the_second() {
        let mut roster = Roster::default();
        let at = |epoch| GroupRecord { epoch: Epoch(epoch), ..record("g", 100, 0) };
        roster.heard(&snapshot(vec![at(1), record("h", 100, 0)]));
        let told = roster.heard(&snapshot(vec![GroupRecord { draining: true, ..at(2) }]));
        assert!(
            matches!(&told[..], [Note::Left(h), Note::Joined { owner, .. }, Note::Drains(_)]
                if h.group.as_str() == "h" && owner.epoch == Epoch(2)),
            "{told:?}"
        );
        let said: Vec<_> = told.iter().map(Note::to_string).collect();
        assert!(said[0].contains("group h left") && said[1].contains("epoch 2"), "{said:?}");
        assert!(said[1].contains(&at(2).address) && said[1].contains(&at(2).model), "{said:?}");
    }
}
