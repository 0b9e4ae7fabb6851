//! Idle sessions: what a later turn can reuse, and what is given up first under pressure.

use std::collections::{BTreeSet, HashMap, HashSet};
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

    /// Whether it has rows that others could use.
    fn gives(&self) -> bool {
        !self.map.live().is_empty()
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
    /// Those that are being handed over: their rows stay where they are.
    pinned: HashSet<SessionKey>,
    /// Those with rows that can be given up, in the order in which they are.
    giving: BTreeSet<(Tick, SessionKey)>,
    /// Positions of all of them that have no slot.
    vacant: usize,
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
        let older = self.take(&key);
        if is_kept {
            if idle.gives() {
                self.giving.insert((idle.last_used, key.clone()));
            }
            self.vacant += idle.map.vacant();
            self.idle.insert(key, idle);
        }
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

    /// Positions of all sessions that have no slot.
    pub(super) fn vacant(&self) -> usize {
        self.vacant
    }

    /// How many tokens of `prompt` a session has: live, dead, or to be computed again.
    pub(super) fn matched(&self, key: &SessionKey, prompt: &[u32]) -> usize {
        self.idle.get(key).map_or(0, |idle| common_prefix(&idle.tokens, prompt))
    }

    /// Keeps a session's rows where they are until [`SessionCache::unpin`].
    pub(super) fn pin(&mut self, key: &SessionKey) -> Option<&Idle> {
        let idle = self.idle.get(key)?;
        self.giving.remove(&(idle.last_used, key.clone()));
        self.pinned.insert(key.clone());
        Some(idle)
    }

    pub(super) fn unpin(&mut self, key: &SessionKey) {
        if !self.pinned.remove(key) {
            return;
        }
        if let Some(idle) = self.idle.get(key).filter(|idle| idle.gives()) {
            self.giving.insert((idle.last_used, key.clone()));
        }
    }

    /// A session that is pinned.
    pub(super) fn pinned(&self, key: &SessionKey) -> Option<&Idle> {
        self.pinned.get(key).and_then(|key| self.idle.get(key))
    }

    pub(super) fn pinned_maps(&self) -> impl Iterator<Item = &SlotMap> {
        self.pinned.iter().filter_map(|key| self.idle.get(key)).map(|idle| &idle.map)
    }

    pub(super) fn take(&mut self, key: &SessionKey) -> Option<Idle> {
        let (key, idle) = self.idle.remove_entry(key)?;
        self.pinned.remove(&key);
        self.giving.remove(&(idle.last_used, key));
        self.vacant -= idle.map.vacant();
        Some(idle)
    }

    /// Gives up the rows of the least recently used session; `None` if none has any. What it takes to compute them
    /// again stays; where that is nothing, what is left of it is returned.
    pub(super) fn demote(&mut self, pool: &mut SlotPool) -> Option<Option<Left>> {
        self.demote_before(Tick(Duration::MAX), pool)
    }

    /// As [`SessionCache::demote`], of those that were last used before `limit`.
    pub(super) fn demote_before(&mut self, limit: Tick, pool: &mut SlotPool) -> Option<Option<Left>> {
        self.giving.first().filter(|(last_used, _)| *last_used < limit)?;
        let (_, oldest) = self.giving.pop_first()?;
        let idle = self.idle.get_mut(&oldest).expect("what can be given up is here");
        self.vacant -= idle.map.vacant();
        idle.map.clear(pool);
        let left = (!idle.is_kept()).then(|| idle.left());
        if left.is_some() {
            self.idle.remove(&oldest);
        }
        Some(left)
    }

    /// Whether exactly the sessions with rows that are not pinned can be given up, and what they lack is counted right.
    pub(super) fn is_sound(&self) -> bool {
        let gives = |(key, idle): &(&SessionKey, &Idle)| idle.gives() && !self.pinned.contains(*key);
        let giving = self.idle.iter().filter(gives).map(|(key, idle)| (idle.last_used, key.clone()));
        self.vacant == self.maps().map(SlotMap::vacant).sum::<usize>()
            && giving.collect::<BTreeSet<_>>() == self.giving
            && self.pinned.iter().all(|key| self.idle.contains_key(key))
    }
}

/// Tokens that are compared at once.
const CHUNK: usize = 64;

/// Rows that two token lists share; tokens are compared, never hashes of them.
fn common_prefix(held: &[u32], prompt: &[u32]) -> usize {
    let chunks = held.chunks_exact(CHUNK).zip(prompt.chunks_exact(CHUNK));
    let whole = CHUNK * chunks.take_while(|(a, b)| a == b).count();
    let same = whole + held[whole..].iter().zip(&prompt[whole..]).take_while(|(a, b)| a == b).count();
    same.min(prompt.len().saturating_sub(1))
}
