//! Idle sessions: what a later turn can reuse, and what is given up first under pressure.

use std::collections::HashMap;
use std::time::Duration;

use hawser_common::clock::Tick;
use hawser_common::{Position, SessionKey, TenantId};
use hawser_kv::retention::PruneLog;
use hawser_kv::{ArchiveId, SlotMap, SlotPool};
use hawser_model::executor::MemoryId;

use super::inspect::Scores;

/// One idle session. Row i was computed from `tokens[..=i]`; rows after `map.len()` were given up and can be computed
/// again, over what `log` says was evicted before each.
#[derive(Debug, Default)]
pub(super) struct Idle {
    pub(super) namespace: Option<TenantId>,
    pub(super) tokens: Vec<u32>,
    pub(super) map: SlotMap,
    pub(super) log: PruneLog,
    pub(super) memory: Option<MemoryId>,
    pub(super) archive: Option<ArchiveId>,
    pub(super) released: Vec<Position>,
    /// Of its last prune that scored.
    pub(super) scores: Scores,
    /// It may be pruned: its tokens are kept, so that computing them again is not taken for a new prompt.
    pub(super) prunes: bool,
    /// Of its tokens, the system message and the tools: what other sessions begin with too.
    pub(super) protected: usize,
    pub(super) last_used: Tick,
    /// It is being handed over: its rows stay where they are.
    pub(super) pinned: bool,
}

impl Idle {
    /// Cuts the session at the first difference to `prompt`, whose last token is always run.
    pub(super) fn cut(&mut self, prompt: &[u32], pool: &mut SlotPool) {
        let common = common_prefix(&self.tokens, prompt);
        self.tokens.truncate(common);
        self.map.truncate(common, pool);
        self.log.truncate(common);
        self.scores.truncate(common);
        self.released.truncate(self.released.partition_point(|position| position.index() < common));
    }

    pub(super) fn left(&self) -> Left {
        Left { memory: self.memory, archive: self.archive }
    }

    /// Whether anything is left that could not be had from the conversation alone.
    fn is_kept(&self) -> bool {
        !self.map.is_empty() || self.prunes
    }
}

/// What a session that is gone had outside its map.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Left {
    pub(super) memory: Option<MemoryId>,
    pub(super) archive: Option<ArchiveId>,
}

/// Idle sessions by key. Holds slots until they are matched, demoted or dropped.
#[derive(Debug, Default)]
pub(super) struct SessionCache {
    idle: HashMap<SessionKey, Idle>,
}

impl SessionCache {
    pub(super) fn len(&self) -> usize {
        self.idle.len()
    }

    pub(super) fn maps(&self) -> impl Iterator<Item = &SlotMap> {
        self.idle.values().map(|idle| &idle.map)
    }

    pub(super) fn all(&self) -> impl Iterator<Item = (&SessionKey, &Idle)> {
        self.idle.iter()
    }

    pub(super) fn find(&self, key: &SessionKey) -> Option<&Idle> {
        self.idle.get(key)
    }

    /// Keeps a session. It has at most one entry: an older one is given back. Returns what is left of those that
    /// are not kept.
    pub(super) fn insert(&mut self, key: SessionKey, mut idle: Idle, pool: &mut SlotPool) -> Vec<Left> {
        assert!(idle.map.len() <= idle.tokens.len(), "at least one token per row");
        if !idle.prunes {
            idle.tokens.truncate(idle.map.len());
        }
        let (new, is_kept) = (idle.left(), idle.is_kept());
        let older = if is_kept { self.idle.insert(key, idle) } else { self.idle.remove(&key) };
        let mut left = Vec::new();
        if let Some(mut older) = older {
            older.map.clear(pool);
            let Left { memory, archive } = older.left();
            let memory = memory.filter(|_| memory != new.memory);
            left.push(Left { memory, archive: archive.filter(|_| archive != new.archive) });
        }
        if !is_kept {
            left.push(new);
        }
        left
    }

    /// How many tokens of `prompt` a session has: live, dead, or to be computed again.
    pub(super) fn matched(&self, key: &SessionKey, prompt: &[u32]) -> usize {
        self.idle.get(key).map_or(0, |idle| common_prefix(&idle.tokens, prompt))
    }

    pub(super) fn find_mut(&mut self, key: &SessionKey) -> Option<&mut Idle> {
        self.idle.get_mut(key)
    }

    pub(super) fn pinned(&self) -> impl Iterator<Item = &SlotMap> {
        self.idle.values().filter(|idle| idle.pinned).map(|idle| &idle.map)
    }

    pub(super) fn take(&mut self, key: &SessionKey) -> Option<Idle> {
        self.idle.remove(key)
    }

    /// Gives up the rows of the least recently used session; `None` if none has any. What it takes to compute them
    /// again stays; where that is nothing, what is left of it is returned.
    pub(super) fn demote(&mut self, pool: &mut SlotPool) -> Option<Option<Left>> {
        self.demote_before(Tick(Duration::MAX), pool)
    }

    /// As [`SessionCache::demote`], of those that were last used before `limit`.
    pub(super) fn demote_before(&mut self, limit: Tick, pool: &mut SlotPool) -> Option<Option<Left>> {
        let given_up = |idle: &Idle| !idle.map.live().is_empty() && !idle.pinned && idle.last_used < limit;
        let with_rows = self.idle.iter().filter(|(_, idle)| given_up(idle));
        let oldest =
            with_rows.min_by_key(|&(key, idle)| (idle.last_used, key)).map(|(key, _)| key.clone())?;
        let idle = self.idle.get_mut(&oldest)?;
        idle.map.clear(pool);
        let left = (!idle.is_kept()).then(|| idle.left());
        if left.is_some() {
            self.idle.remove(&oldest);
        }
        Some(left)
    }
}

/// Rows that two token lists share; tokens are compared, never hashes of them.
fn common_prefix(held: &[u32], prompt: &[u32]) -> usize {
    let same = held.iter().zip(prompt).take_while(|(a, b)| a == b).count();
    same.min(prompt.len().saturating_sub(1))
}
