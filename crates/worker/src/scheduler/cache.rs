//! KV rows of idle sessions: what a later turn can reuse, and what is given up first under pressure.

use std::collections::HashMap;

use hawser_common::SessionKey;
use hawser_common::clock::Tick;
use hawser_kv::{SlotMap, SlotPool};

/// Rows of one idle session: row i was computed from `tokens[..=i]`.
#[derive(Debug)]
struct Idle {
    tokens: Vec<u32>,
    map: SlotMap,
    last_used: Tick,
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

    /// Keeps a session's rows. A session has at most one entry: an older one is given back.
    pub(super) fn insert(
        &mut self,
        key: SessionKey,
        tokens: Vec<u32>,
        map: SlotMap,
        now: Tick,
        pool: &mut SlotPool,
    ) {
        assert_eq!(tokens.len(), map.len(), "one token per row");
        if map.is_empty() {
            return;
        }
        if let Some(mut older) = self.idle.insert(key, Idle { tokens, map, last_used: now }) {
            older.map.clear(pool);
        }
    }

    pub(super) fn live(&self, key: &SessionKey) -> usize {
        self.idle.get(key).map_or(0, |idle| idle.map.live().len())
    }

    /// How many rows a prompt would reuse; the last token is always run, so at most `prompt.len() - 1`.
    pub(super) fn matched(&self, key: &SessionKey, prompt: &[u32]) -> usize {
        self.idle.get(key).map_or(0, |idle| common_prefix(&idle.tokens, prompt))
    }

    /// Takes a session's rows out, cut at the first difference to `prompt`.
    pub(super) fn take(&mut self, key: &SessionKey, prompt: &[u32], pool: &mut SlotPool) -> SlotMap {
        let Some(mut idle) = self.idle.remove(key) else { return SlotMap::new() };
        idle.map.truncate(common_prefix(&idle.tokens, prompt), pool);
        idle.map
    }

    /// Gives up the least recently used session other than `keep`; `None` if there is no other.
    pub(super) fn demote(&mut self, keep: Option<&SessionKey>, pool: &mut SlotPool) -> Option<usize> {
        let others = self.idle.iter().filter(|(key, _)| Some(*key) != keep);
        let oldest = others.min_by_key(|&(key, idle)| (idle.last_used, key)).map(|(key, _)| key.clone())?;
        Some(self.remove(&oldest, pool))
    }

    /// Forgets a session. Returns how many slots became free.
    pub(super) fn remove(&mut self, key: &SessionKey, pool: &mut SlotPool) -> usize {
        self.idle.remove(key).map_or(0, |mut idle| idle.map.clear(pool))
    }

    /// Gives `to` the rows of `from`; both hold them.
    pub(super) fn fork(&mut self, from: &SessionKey, to: &SessionKey, now: Tick, pool: &mut SlotPool) {
        if let Some(source) = self.idle.get(from) {
            let (tokens, map) = (source.tokens.clone(), source.map.share(pool));
            self.insert(to.clone(), tokens, map, now, pool);
        }
    }

    /// Slots that demoting every session but `keep` would free.
    pub(super) fn reclaimable(&self, keep: Option<&SessionKey>, pool: &SlotPool) -> usize {
        let others = self.idle.iter().filter(|(key, _)| Some(*key) != keep);
        let sole = |idle: &Idle| idle.map.live().iter().filter(|&&slot| pool.refs(slot) == 1).count();
        others.map(|(_, idle)| sole(idle)).sum()
    }
}

/// Rows that two token lists share; tokens are compared, never hashes of them.
fn common_prefix(held: &[u32], prompt: &[u32]) -> usize {
    let same = held.iter().zip(prompt).take_while(|(a, b)| a == b).count();
    same.min(prompt.len().saturating_sub(1))
}
