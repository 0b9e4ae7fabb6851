//! The groups that are registered, with what the router knows about each besides. Pure; time is an argument.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use hawser_common::GroupId;
use hawser_common::clock::Tick;
use hawser_common::group::GroupRecord;

/// A group that has published nothing for this long (two of the workers' longest intervals) is judged by the router's own
/// counts alone.
pub(crate) const STALE_AFTER: Duration = Duration::from_secs(20);
/// So is one that has said so often in a row that nothing runs while calls of this router ran there.
const CONTRADICTIONS: u8 = 2;
/// A group that could not be reached is passed over for this long where there is another.
pub(crate) const SHUN_FOR: Duration = Duration::from_secs(1);

/// A group that left is remembered for so long, for people who wonder where it is.
const REMEMBERED_FOR: Duration = Duration::from_secs(600);
/// Groups that left and are remembered; the oldest makes room.
const MAX_REMEMBERED: usize = 64;

/// Calls of this router that a group is working on.
#[derive(Debug, Default)]
pub(crate) struct Load(AtomicU32);

impl Load {
    pub(crate) fn count(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }
}

/// One call counted in its group's load until it is dropped.
#[derive(Debug)]
pub(crate) struct InFlight(Arc<Load>);

impl InFlight {
    pub(crate) fn enter(load: Arc<Load>) -> Self {
        load.0.fetch_add(1, Ordering::Relaxed);
        Self(load)
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A registered group.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    pub(crate) record: GroupRecord,
    /// When it last published.
    pub(crate) reported: Tick,
    /// Passed over until then.
    pub(crate) shunned_until: Tick,
    pub(crate) load: Arc<Load>,
    contradictions: u8,
}

impl Member {
    /// Whether what it publishes can be gone by.
    pub(crate) fn is_trusted(&self, now: Tick) -> bool {
        now.since(self.reported) <= STALE_AFTER
            && self.record.capacity.slots_total > 0
            && self.contradictions < CONTRADICTIONS
    }

    /// Running and queued calls: what it said, or what this router sent it since.
    pub(crate) fn calls(&self, now: Tick) -> u64 {
        let own = self.load.count().into();
        let capacity = &self.record.capacity;
        if self.is_trusted(now) {
            (u64::from(capacity.running) + u64::from(capacity.queued)).max(own)
        } else {
            own
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Fleet {
    members: HashMap<GroupId, Member>,
    /// Groups that left, in the order in which they did.
    departed: VecDeque<(Tick, GroupRecord)>,
}

impl Fleet {
    pub(crate) fn member(&self, group: &GroupId) -> Option<&Member> {
        self.members.get(group)
    }

    pub(crate) fn members(&self) -> impl Iterator<Item = &Member> {
        self.members.values()
    }

    pub(crate) fn len(&self) -> usize {
        self.members.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Takes a registration or a publication over. A new registration of a known group begins unshunned; calls in
    /// flight stay counted. Says whether the group's word has just been found not to be gone by.
    pub(crate) fn changed(&mut self, record: GroupRecord, now: Tick) -> bool {
        self.departed.retain(|(_, departed)| departed.id != record.id);
        let old = self.members.remove(&record.id);
        let (mut shunned_until, mut contradictions, mut before) = (Tick::default(), 0, 0);
        if let Some(member) = old.as_ref().filter(|member| member.record.epoch == record.epoch) {
            (shunned_until, before) = (member.shunned_until, member.contradictions);
            let idle = record.capacity.running == 0 && record.capacity.queued == 0;
            contradictions = match (idle, member.load.count() > 0) {
                (false, _) => 0,
                (true, true) => member.contradictions.saturating_add(1),
                (true, false) => member.contradictions,
            };
        }
        let load = old.map(|member| member.load).unwrap_or_default();
        let member = Member { record, reported: now, shunned_until, load, contradictions };
        self.members.insert(member.record.id.clone(), member);
        contradictions >= CONTRADICTIONS && before < CONTRADICTIONS
    }

    pub(crate) fn gone(&mut self, group: &GroupId, now: Tick) {
        if let Some(member) = self.members.remove(group) {
            self.remember(member.record, now);
        }
    }

    /// Groups that left in the last minutes and have not come back.
    pub(crate) fn departed(&self, now: Tick) -> impl Iterator<Item = &GroupRecord> {
        let recent = move |left: Tick| now.since(left) < REMEMBERED_FOR;
        self.departed.iter().filter(move |(left, _)| recent(*left)).map(|(_, record)| record)
    }

    fn remember(&mut self, record: GroupRecord, now: Tick) {
        self.departed.retain(|(_, departed)| departed.id != record.id);
        if self.departed.len() == MAX_REMEMBERED {
            self.departed.pop_front();
        }
        self.departed.push_back((now, record));
    }

    /// Starts again from `records`; calls in flight stay counted. What is as it was is no news of its group.
    pub(crate) fn replace(&mut self, records: Vec<GroupRecord>, now: Tick) {
        let mut old = std::mem::take(self);
        self.departed = std::mem::take(&mut old.departed);
        for record in records {
            let known = old.members.remove(&record.id);
            let is_news = known.as_ref().is_none_or(|member| member.record != record);
            if let Some(member) = known {
                self.members.insert(record.id.clone(), member);
            }
            if is_news {
                self.changed(record, now);
            }
        }
        for member in old.members.into_values() {
            self.remember(member.record, now);
        }
    }

    pub(crate) fn shun(&mut self, group: &GroupId, now: Tick) {
        if let Some(member) = self.members.get_mut(group) {
            member.shunned_until = now.after(SHUN_FOR);
        }
    }

    /// Whether "any model" would leave a choice. Asked for every new session, so nothing is copied.
    pub(crate) fn has_several_models(&self) -> bool {
        let mut names = self.members().map(|member| &member.record.model);
        names.next().is_some_and(|first| names.any(|other| other != first))
    }

    /// Names of the models served, sorted, each once.
    pub(crate) fn models(&self) -> Vec<String> {
        let mut names: Vec<_> = self.members().map(|member| member.record.model.clone()).collect();
        names.sort_unstable();
        names.dedup();
        names
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::balance::tests::record;

    #[test]
    fn calls_stay_counted_over_snapshots_and_registrations() {
        let mut fleet = Fleet::default();
        let g = record("g", 100, 0);
        fleet.changed(g.clone(), Tick::default());
        let call = InFlight::enter(Arc::clone(&fleet.member(&g.id).unwrap().load));
        fleet.shun(&g.id, Tick::default());
        fleet.replace(vec![g.clone()], Tick::default());
        assert_eq!(fleet.member(&g.id).unwrap().load.count(), 1);
        assert!(fleet.member(&g.id).unwrap().shunned_until > Tick::default());
        fleet.changed(GroupRecord { epoch: hawser_common::Epoch(9), ..g.clone() }, Tick::default());
        assert_eq!(fleet.member(&g.id).unwrap().shunned_until, Tick::default());
        drop(call);
        assert_eq!(fleet.member(&g.id).unwrap().load.count(), 0);
        fleet.replace(Vec::new(), Tick::default());
        assert!(fleet.is_empty());
    }

    #[test]
    fn p20_a_group_that_never_says_that_it_runs_is_found_out_with_its_second_report() {
        let mut fleet = Fleet::default();
        let idle = record("g", 100, 0);
        let at = |second| Tick(Duration::from_secs(second));
        assert!(!fleet.changed(idle.clone(), at(0)));
        let call = InFlight::enter(Arc::clone(&fleet.member(&idle.id).unwrap().load));
        assert!(!fleet.changed(idle.clone(), at(1)), "the call may have come after it was written");
        assert!(fleet.changed(idle.clone(), at(2)));
        assert!(!fleet.member(&idle.id).unwrap().is_trusted(at(2)));
        assert_eq!(fleet.member(&idle.id).unwrap().calls(at(2)), 1);
        drop(call);
        assert!(!fleet.changed(idle.clone(), at(3)), "an idle group has nothing to show");
        assert!(!fleet.member(&idle.id).unwrap().is_trusted(at(3)));
        fleet.changed(record("g", 100, 1), at(4));
        assert!(fleet.member(&idle.id).unwrap().is_trusted(at(4)));
        // Listing it again is no report.
        fleet.replace(vec![record("g", 100, 1)], at(30));
        assert!(!fleet.member(&idle.id).unwrap().is_trusted(at(30)), "silent for two intervals");
        let nothing = GroupRecord { capacity: Default::default(), ..idle.clone() };
        fleet.changed(nothing, at(31));
        assert!(!fleet.member(&idle.id).unwrap().is_trusted(at(31)), "it reports no load");
    }

    #[test]
    fn a_group_that_left_is_remembered_until_it_is_back_or_forgotten() {
        let left =
            |fleet: &Fleet, now| fleet.departed(now).map(|record| record.id.clone()).collect::<Vec<_>>();
        let (mut fleet, start) = (Fleet::default(), Tick::default());
        let (g, h) = (record("g", 100, 0), record("h", 100, 0));
        fleet.changed(g.clone(), start);
        fleet.changed(h.clone(), start);
        fleet.gone(&g.id, start);
        assert_eq!(left(&fleet, start), std::slice::from_ref(&g.id));
        // A snapshot without it says the same.
        fleet.replace(vec![g.clone()], start);
        assert_eq!(left(&fleet, start), std::slice::from_ref(&h.id));
        assert_eq!(left(&fleet, start.after(REMEMBERED_FOR)), []);
        for index in 0..2 * MAX_REMEMBERED {
            let record = record(&format!("g{index}"), 100, 0);
            fleet.changed(record.clone(), start);
            fleet.gone(&record.id, start);
        }
        assert_eq!(left(&fleet, start).len(), MAX_REMEMBERED);
    }
}
