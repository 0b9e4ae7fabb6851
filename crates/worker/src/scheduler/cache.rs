//! Idle sessions: what a later turn can reuse, and what is given up first under pressure.

use std::collections::HashMap;

use hawser_common::clock::Tick;
use hawser_common::{SessionKey, TenantId};
use hawser_kv::retention::PruneLog;
use hawser_kv::{SlotMap, SlotPool};
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
    /// Of its last prune that scored.
    pub(super) scores: Scores,
    /// It may be pruned: its tokens are kept, so that computing them again is not taken for a new prompt.
    pub(super) prunes: bool,
    /// Of its tokens, the system message and the tools: what other sessions begin with too.
    pub(super) protected: usize,
    pub(super) last_used: Tick,
}

impl Idle {
    /// Cuts the session at the first difference to `prompt`, whose last token is always run.
    pub(super) fn cut(&mut self, prompt: &[u32], pool: &mut SlotPool) {
        let common = common_prefix(&self.tokens, prompt);
        self.tokens.truncate(common);
        self.map.truncate(common, pool);
        self.log.truncate(common);
        self.scores.truncate(common);
    }

    /// Whether anything is left that could not be had from the conversation alone.
    fn is_kept(&self) -> bool {
        !self.map.is_empty() || self.prunes
    }
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

    pub(super) fn find(&self, key: &SessionKey) -> Option<&Idle> {
        self.idle.get(key)
    }

    /// Keeps a session. It has at most one entry: an older one is given back. Returns the memories of what is not kept.
    pub(super) fn insert(&mut self, key: SessionKey, mut idle: Idle, pool: &mut SlotPool) -> Vec<MemoryId> {
        assert!(idle.map.len() <= idle.tokens.len(), "at least one token per row");
        if !idle.prunes {
            idle.tokens.truncate(idle.map.len());
        }
        let (memory, is_kept) = (idle.memory, idle.is_kept());
        let older = if is_kept { self.idle.insert(key, idle) } else { self.idle.remove(&key) };
        let mut forgotten: Vec<MemoryId> = Vec::new();
        if let Some(mut older) = older {
            older.map.clear(pool);
            forgotten.extend(older.memory.filter(|&older| Some(older) != memory));
        }
        forgotten.extend(memory.filter(|_| !is_kept));
        forgotten
    }

    /// How many tokens of `prompt` a session has: live, dead, or to be computed again.
    pub(super) fn matched(&self, key: &SessionKey, prompt: &[u32]) -> usize {
        self.idle.get(key).map_or(0, |idle| common_prefix(&idle.tokens, prompt))
    }

    pub(super) fn take(&mut self, key: &SessionKey) -> Option<Idle> {
        self.idle.remove(key)
    }

    /// Gives up the rows of the least recently used session; `None` if none has any. What it takes to compute them
    /// again stays; where that is nothing, its memory is returned.
    pub(super) fn demote(&mut self, pool: &mut SlotPool) -> Option<Option<MemoryId>> {
        let with_rows = self.idle.iter().filter(|(_, idle)| !idle.map.live().is_empty());
        let oldest =
            with_rows.min_by_key(|&(key, idle)| (idle.last_used, key)).map(|(key, _)| key.clone())?;
        let idle = self.idle.get_mut(&oldest)?;
        idle.map.clear(pool);
        let forgotten = idle.memory.filter(|_| !idle.is_kept());
        if !idle.is_kept() {
            self.idle.remove(&oldest);
        }
        Some(forgotten)
    }
}

/// Rows that two token lists share; tokens are compared, never hashes of them.
fn common_prefix(held: &[u32], prompt: &[u32]) -> usize {
    let same = held.iter().zip(prompt).take_while(|(a, b)| a == b).count();
    same.min(prompt.len().saturating_sub(1))
}
