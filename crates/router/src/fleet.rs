//! The groups that are registered, with what the router knows about each besides. Pure; time is an argument.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use hawser_common::GroupId;
use hawser_common::clock::Tick;
use hawser_common::group::GroupRecord;

/// A group that has published nothing for this long (two of the workers' longest intervals and some) is judged by the
/// router's own counts alone.
pub(crate) const STALE_AFTER: Duration = Duration::from_secs(25);
/// A group that could not be reached is passed over for this long where there is another.
pub(crate) const SHUN_FOR: Duration = Duration::from_secs(1);

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
}

#[derive(Debug, Default)]
pub(crate) struct Fleet(HashMap<GroupId, Member>);

impl Fleet {
    pub(crate) fn member(&self, group: &GroupId) -> Option<&Member> {
        self.0.get(group)
    }

    pub(crate) fn members(&self) -> impl Iterator<Item = &Member> {
        self.0.values()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes a registration or a publication over. A new registration of a known group begins unshunned; calls in
    /// flight stay counted.
    pub(crate) fn changed(&mut self, record: GroupRecord, now: Tick) {
        let old = self.0.remove(&record.id);
        let shunned_until = match &old {
            Some(member) if member.record.epoch == record.epoch => member.shunned_until,
            _ => Tick::default(),
        };
        let load = old.map(|member| member.load).unwrap_or_default();
        self.0.insert(record.id.clone(), Member { record, reported: now, shunned_until, load });
    }

    pub(crate) fn gone(&mut self, group: &GroupId) {
        self.0.remove(group);
    }

    /// Starts again from `records`; calls in flight stay counted.
    pub(crate) fn replace(&mut self, records: Vec<GroupRecord>, now: Tick) {
        let mut old = std::mem::take(self);
        for record in records {
            if let Some(member) = old.0.remove(&record.id) {
                self.0.insert(record.id.clone(), member);
            }
            self.changed(record, now);
        }
    }

    pub(crate) fn shun(&mut self, group: &GroupId, now: Tick) {
        if let Some(member) = self.0.get_mut(group) {
            member.shunned_until = now.after(SHUN_FOR);
        }
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
}
