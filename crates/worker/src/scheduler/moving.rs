//! Sessions that leave a scheduler, and sessions that arrive from another.
//!
//! What leaves is pinned until it is gone or stays: under pressure it keeps its rows. What arrives has slots of its own
//! from the beginning, and is nobody's session before it is committed. Promises that positions stay what they were,
//! that dead ones stay dead, and that a session which does not arrive leaves no slot behind. Rows that the prefix tree
//! or other sessions share leave as copies; copies in the archive do not leave. Never touches rows.

use hawser_common::clock::Tick;
use hawser_common::{Coded, ErrorCode, Position, SessionKey, SlotId};
use hawser_kv::SlotMap;
use hawser_kv::retention::PruneLog;
use hawser_model::executor::MemoryId;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::cache::Idle;
use super::inspect::Scores;
use super::{Scheduler, Sequence};

/// What a scheduler knows of an idle session, but for slots, which are its own affair.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SessionState {
    pub tokens: Vec<u32>,
    /// Rows `0..len` were computed; later ones are to be computed again.
    pub len: u32,
    /// Of them those that are live, ascending. Their rows travel in this order.
    pub live: Vec<Position>,
    pub log: PruneLog,
    /// Let go of for good, ascending.
    pub released: Vec<Position>,
    /// Of the last prune that scored.
    pub scores: Vec<(Position, f32)>,
    pub prunes: bool,
    pub protected: u32,
}

/// A state from outside that contradicts itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the session's state is not sound: {what}")]
pub struct Unsound {
    pub what: &'static str,
}

impl SessionState {
    /// # Errors
    /// [`Unsound`]; `vocabulary` is the number of token ids.
    pub fn check(&self, vocabulary: usize) -> Result<(), Unsound> {
        let len = self.len as usize;
        let ascends = |positions: &[Position]| positions.is_sorted_by(|a, b| a < b);
        let within =
            |positions: &[Position], end: usize| positions.last().is_none_or(|last| last.index() < end);
        let check = |ok: bool, what| if ok { Ok(()) } else { Err(Unsound { what }) };
        check(u32::try_from(self.tokens.len()).is_ok(), "positions are 32-bit")?;
        check(self.tokens.iter().all(|&token| (token as usize) < vocabulary), "a token is unknown")?;
        check(len <= self.tokens.len(), "it has more rows than tokens")?;
        check(ascends(&self.live) && within(&self.live, len), "its live positions")?;
        let tokens = self.tokens.len();
        check(ascends(&self.released) && within(&self.released, tokens), "its released positions")?;
        let scored: Vec<Position> = self.scores.iter().map(|(position, _)| *position).collect();
        check(ascends(&scored) && within(&scored, tokens), "its scores")?;
        let dead = self.log.checked(tokens).ok_or(Unsound { what: "its prunes" })?;
        let mut live = self.live.iter().peekable();
        for position in (0..self.len).map(Position) {
            let is_live = live.next_if_eq(&&position).is_some();
            check(is_live || dead.contains(&position), "a position is neither live nor evicted")?;
        }
        Ok(())
    }
}

/// A session that is pinned, to be read.
#[derive(Clone, Debug, PartialEq)]
pub struct Leaving {
    pub state: SessionState,
    /// Of its live positions, in order.
    pub slots: Vec<SlotId>,
    pub memory: Option<MemoryId>,
}

/// What an idle session has and needs, in rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Weight {
    pub key: SessionKey,
    pub rows: usize,
    /// Of its next turn, from the first on: what it has, or what is to be computed again.
    pub needs: usize,
}

/// A session on its way into a scheduler, unique within the scheduler's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ArrivalId(pub u64);

/// Why a session cannot come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ArrivalRefused {
    #[error("the session has {needed} live rows and {free} slots are free or older than it")]
    NoRoom { needed: usize, free: usize },
    #[error(transparent)]
    Unsound(#[from] Unsound),
}

impl Coded for ArrivalRefused {
    fn code(&self) -> ErrorCode {
        match self {
            Self::NoRoom { .. } => ErrorCode::Exhausted,
            Self::Unsound(_) => ErrorCode::Invalid,
        }
    }
}

impl Scheduler {
    /// What each idle session has and needs. Those that lost everything but their tokens are not here.
    #[must_use]
    pub fn weights(&self) -> Vec<Weight> {
        let weight = |(key, idle): (&SessionKey, &Idle)| {
            let rows = idle.map.live().len();
            let needs = rows.max(idle.tokens.len().saturating_sub(idle.log.dead()));
            Weight { key: key.clone(), rows, needs }
        };
        self.cache.all().map(weight).collect()
    }

    /// Pins an idle session and says what of it is to leave; `None` for one that is not here.
    pub fn leave(&mut self, key: &SessionKey) -> Option<Leaving> {
        let idle = self.cache.pin(key)?;
        // A session that is in the middle of computing its rows again begins that anew elsewhere.
        let whole = idle.map.parked().next().is_none();
        let (len, live, slots) = if whole {
            (idle.map.len(), idle.map.live_positions().to_vec(), idle.map.live().to_vec())
        } else {
            (0, Vec::new(), Vec::new())
        };
        let state = SessionState {
            tokens: idle.tokens.clone(),
            len: Sequence::positions(len, 0).start,
            live,
            log: idle.log.clone(),
            released: idle.released.clone(),
            scores: idle.scores.all().to_vec(),
            prunes: idle.prunes,
            protected: Sequence::positions(idle.protected, 0).start,
        };
        Some(Leaving { state, slots, memory: idle.memory })
    }

    /// Slots of some live positions of a session that [`Scheduler::leave`] pinned; `None` where it is gone.
    #[must_use]
    pub fn leaving_slots(&self, key: &SessionKey, rows: std::ops::Range<usize>) -> Option<Vec<SlotId>> {
        let idle = self.cache.pinned(key)?;
        idle.map.live().get(rows).map(<[SlotId]>::to_vec)
    }

    /// Ends a pin: the session does not leave.
    pub fn stay(&mut self, key: &SessionKey) {
        self.cache.unpin(key);
    }

    /// Makes room for a session from elsewhere. What only the prefix tree holds gives way, and sessions that were used
    /// last before `last_used`. `remembers`: a query memory comes with it.
    ///
    /// # Errors
    /// [`ArrivalRefused`], for a state that is not sound or has no room; nothing is held then.
    pub fn arrive(
        &mut self,
        state: SessionState,
        namespace: hawser_common::TenantId,
        (last_used, remembers): (Tick, bool),
        vocabulary: usize,
    ) -> Result<(ArrivalId, Option<MemoryId>), ArrivalRefused> {
        state.check(vocabulary)?;
        let needed = state.live.len();
        while self.pool.free() < needed {
            if self.tree.evict_leaf(needed - self.pool.free(), &mut self.pool).is_some() {
                continue;
            }
            let Some(left) = self.cache.demote_before(last_used, &mut self.pool) else { break };
            left.into_iter().for_each(|left| self.forget(left));
        }
        let slots = self
            .pool
            .allocate(needed)
            .map_err(|full| ArrivalRefused::NoRoom { needed: full.wanted, free: full.free })?;
        let live: Vec<(Position, SlotId)> = state.live.iter().copied().zip(slots).collect();
        let map = SlotMap::restored(state.len as usize, &live).expect("checked: live positions ascend");
        let memory = remembers.then(|| {
            self.next_memory += 1;
            MemoryId(self.next_memory)
        });
        let idle = Idle {
            namespace: Some(namespace),
            tokens: state.tokens,
            map,
            log: state.log,
            memory,
            archive: None,
            released: state.released,
            scores: Scores::restored(state.scores),
            prunes: state.prunes,
            protected: state.protected as usize,
            last_used,
        };
        self.next_arrival += 1;
        let id = ArrivalId(self.next_arrival);
        self.arrivals.insert(id, idle);
        Ok((id, memory))
    }

    /// Slots of some of an arriving session's rows, in the order of its live positions; `None` where it is gone.
    #[must_use]
    pub fn arriving_slots(&self, id: ArrivalId, rows: std::ops::Range<usize>) -> Option<Vec<SlotId>> {
        self.arrivals.get(&id)?.map.live().get(rows).map(<[SlotId]>::to_vec)
    }

    /// Makes an arrived session the session of this name; `false` where it is gone.
    pub fn commit_arrival(&mut self, id: ArrivalId, key: SessionKey) -> bool {
        let Some(idle) = self.arrivals.remove(&id) else { return false };
        let left = self.cache.insert(key, idle, &mut self.pool);
        left.into_iter().for_each(|left| self.forget(left));
        true
    }

    /// Forgets a session that does not arrive. Returns how many slots became free; a second call returns 0.
    pub fn drop_arrival(&mut self, id: ArrivalId) -> usize {
        let Some(mut idle) = self.arrivals.remove(&id) else { return 0 };
        let freed = idle.map.clear(&mut self.pool);
        self.forget(idle.left());
        freed
    }
}
