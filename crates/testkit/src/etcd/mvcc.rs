//! Keys with their versions, and the log of what changed them: what watches replay.
//!
//! Pure. A write becomes visible with its commit, under one revision however many keys it touches, as in etcd. What is
//! compacted cannot be read or replayed any more, and says so.

use std::collections::{BTreeMap, VecDeque};

use etcd_client::proto::{PbEvent, PbKeyValue};

/// A revision that is forgotten, or not reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unreadable {
    Compacted,
    Future,
}

/// Half-open range of keys as requests have it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Range {
    key: Vec<u8>,
    end: Vec<u8>,
}

impl Range {
    pub(super) fn new(key: Vec<u8>, end: Vec<u8>) -> Self {
        Self { key, end }
    }

    pub(super) fn contains(&self, key: &[u8]) -> bool {
        match self.end.as_slice() {
            [] => key == self.key,
            // From the key to the last one there is.
            [0] => key >= self.key.as_slice(),
            end => key >= self.key.as_slice() && key < end,
        }
    }
}

/// The answer to a read.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Found {
    pub(super) kvs: Vec<PbKeyValue>,
    pub(super) count: usize,
    pub(super) more: bool,
}

/// One state of a key: there with a value, or deleted.
#[derive(Clone, Debug)]
struct Version {
    revision: i64,
    kv: Option<PbKeyValue>,
}

#[derive(Debug)]
pub(super) struct Mvcc {
    revision: i64,
    compacted: i64,
    keys: BTreeMap<Vec<u8>, Vec<Version>>,
    log: VecDeque<(i64, Vec<PbEvent>)>,
    /// Of the transaction that is being written.
    open: Vec<PbEvent>,
}

impl Default for Mvcc {
    fn default() -> Self {
        // An empty etcd is at revision 1.
        Self { revision: 1, compacted: 0, keys: BTreeMap::new(), log: VecDeque::new(), open: Vec::new() }
    }
}

impl Mvcc {
    pub(super) fn revision(&self) -> i64 {
        self.revision
    }

    /// The key as it is now, writes of an open transaction included.
    pub(super) fn latest(&self, key: &[u8]) -> Option<&PbKeyValue> {
        self.keys.get(key)?.last()?.kv.as_ref()
    }

    /// Reads at `revision`; 0 is now.
    pub(super) fn read(&self, range: &Range, revision: i64, limit: i64) -> Result<Found, Unreadable> {
        if revision > self.revision {
            return Err(Unreadable::Future);
        }
        if revision > 0 && revision < self.compacted {
            return Err(Unreadable::Compacted);
        }
        let at = |versions: &[Version]| {
            let seen = |version: &&Version| revision == 0 || version.revision <= revision;
            versions.iter().rev().find(seen).and_then(|version| version.kv.clone())
        };
        let matching = self.keys.iter().filter(|(key, _)| range.contains(key));
        let mut kvs: Vec<PbKeyValue> = matching.filter_map(|(_, versions)| at(versions)).collect();
        let count = kvs.len();
        let limit = usize::try_from(limit).ok().filter(|limit| *limit > 0).unwrap_or(count);
        kvs.truncate(limit);
        Ok(Found { more: kvs.len() < count, kvs, count })
    }

    /// Writes into the open transaction, and gives the lease that the key was under before.
    pub(super) fn put(&mut self, key: Vec<u8>, value: Vec<u8>, lease: i64) -> i64 {
        let revision = self.revision + 1;
        let before = self.latest(&key).cloned();
        let kv = PbKeyValue {
            key: key.clone(),
            create_revision: before.as_ref().map_or(revision, |kv| kv.create_revision),
            mod_revision: revision,
            version: before.as_ref().map_or(1, |kv| kv.version + 1),
            value,
            lease,
        };
        self.open.push(PbEvent { r#type: 0, kv: Some(kv.clone()), prev_kv: None });
        self.keys.entry(key).or_default().push(Version { revision, kv: Some(kv) });
        before.map_or(0, |kv| kv.lease)
    }

    /// Deletes in the open transaction, and gives what was deleted.
    pub(super) fn delete(&mut self, range: &Range) -> Vec<PbKeyValue> {
        let revision = self.revision + 1;
        let matching = self.keys.iter().filter(|(key, _)| range.contains(key));
        let gone: Vec<PbKeyValue> =
            matching.filter_map(|(_, versions)| versions.last()?.kv.clone()).collect();
        for kv in &gone {
            let tombstone =
                PbKeyValue { key: kv.key.clone(), mod_revision: revision, ..PbKeyValue::default() };
            self.open.push(PbEvent { r#type: 1, kv: Some(tombstone), prev_kv: None });
            self.keys.entry(kv.key.clone()).or_default().push(Version { revision, kv: None });
        }
        gone
    }

    /// Ends the open transaction: a new revision if it wrote anything. Gives what it wrote.
    pub(super) fn commit(&mut self) -> Vec<PbEvent> {
        let written = std::mem::take(&mut self.open);
        if !written.is_empty() {
            self.revision += 1;
            self.log.push_back((self.revision, written.clone()));
        }
        written
    }

    /// Every event of `range` from revision `start` on.
    pub(super) fn replay(&self, range: &Range, start: i64) -> Result<Vec<PbEvent>, Unreadable> {
        if start < self.compacted {
            return Err(Unreadable::Compacted);
        }
        let from = self.log.partition_point(|(revision, _)| *revision < start);
        let events = self.log.range(from..).flat_map(|(_, events)| events);
        let wanted = |event: &&PbEvent| event.kv.as_ref().is_some_and(|kv| range.contains(&kv.key));
        Ok(events.filter(wanted).cloned().collect())
    }

    pub(super) fn compacted(&self) -> i64 {
        self.compacted
    }

    /// Forgets every state before `revision` but the one that each key had at it.
    pub(super) fn compact(&mut self, revision: i64) -> Result<(), Unreadable> {
        if revision > self.revision {
            return Err(Unreadable::Future);
        }
        if revision <= self.compacted {
            return Err(Unreadable::Compacted);
        }
        self.compacted = revision;
        self.log.retain(|(at, _)| *at >= revision);
        for versions in self.keys.values_mut() {
            let kept = versions.partition_point(|version| version.revision <= revision).saturating_sub(1);
            versions.drain(..kept);
        }
        let gone = |versions: &Vec<Version>| matches!(versions.as_slice(), [only] if only.kv.is_none() && only.revision < revision);
        self.keys.retain(|_, versions| !gone(versions));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Range {
        Range::new(b"a".to_vec(), b"z".to_vec())
    }

    fn put(mvcc: &mut Mvcc, key: &str, value: &str) {
        mvcc.put(key.into(), value.into(), 0);
        mvcc.commit();
    }

    #[test]
    fn a_read_sees_its_revision_and_a_replay_everything_after() {
        let mut mvcc = Mvcc::default();
        put(&mut mvcc, "k", "1");
        put(&mut mvcc, "l", "2");
        mvcc.delete(&Range::new(b"k".to_vec(), Vec::new()));
        mvcc.commit();
        assert_eq!(mvcc.revision(), 4);
        assert_eq!(mvcc.read(&all(), 0, 0).unwrap().count, 1);
        assert_eq!(mvcc.read(&all(), 3, 0).unwrap().count, 2);
        assert_eq!(mvcc.read(&all(), 3, 1).map(|found| (found.kvs.len(), found.more)), Ok((1, true)));
        assert_eq!(mvcc.read(&all(), 5, 0), Err(Unreadable::Future));
        let kinds = |start| mvcc.replay(&all(), start).unwrap().iter().map(|e| e.r#type).collect::<Vec<_>>();
        assert_eq!((kinds(2), kinds(4), kinds(5)), (vec![0, 0, 1], vec![1], vec![]));
    }

    #[test]
    fn what_is_compacted_is_gone_and_says_so() {
        let mut mvcc = Mvcc::default();
        for value in ["1", "2", "3"] {
            put(&mut mvcc, "k", value);
        }
        assert_eq!(mvcc.compact(9), Err(Unreadable::Future));
        mvcc.compact(3).unwrap();
        assert_eq!(mvcc.compact(3), Err(Unreadable::Compacted));
        assert_eq!(mvcc.read(&all(), 2, 0), Err(Unreadable::Compacted));
        assert_eq!(mvcc.read(&all(), 3, 0).unwrap().kvs[0].value, b"2");
        assert_eq!(mvcc.replay(&all(), 2), Err(Unreadable::Compacted));
        assert_eq!(mvcc.replay(&all(), 4).unwrap().len(), 1);
    }

    #[test]
    fn one_transaction_is_one_revision_and_none_without_a_write() {
        let mut mvcc = Mvcc::default();
        mvcc.put(b"a".to_vec(), Vec::new(), 0);
        mvcc.put(b"b".to_vec(), Vec::new(), 0);
        assert_eq!(mvcc.commit().len(), 2);
        assert_eq!(mvcc.revision(), 2);
        assert!(mvcc.delete(&Range::new(b"c".to_vec(), Vec::new())).is_empty());
        assert!(mvcc.commit().is_empty());
        assert_eq!(mvcc.revision(), 2);
    }
}
