//! What every session should hold: computed without a pool, a plan or a cache.

use std::hash::{DefaultHasher, Hash, Hasher};

use hawser_common::Position;

/// A row as the arithmetic would make it: a function of its token, its position and the rows it has seen.
pub(crate) fn row(token: u32, position: usize, seen: impl Iterator<Item = u64>) -> u64 {
    let mut hasher = DefaultHasher::new();
    (token, position).hash(&mut hasher);
    seen.for_each(|seen| seen.hash(&mut hasher));
    hasher.finish()
}

/// A session without a pool: all rows there ever were, and which of them are live.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reference {
    pub(crate) tokens: Vec<u32>,
    pub(crate) rows: Vec<u64>,
    pub(crate) live: Vec<bool>,
}

impl Reference {
    pub(crate) fn truncate(&mut self, len: usize) {
        self.tokens.truncate(len);
        self.rows.truncate(len);
        self.live.truncate(len);
    }

    pub(crate) fn live_rows(&self) -> impl Iterator<Item = u64> {
        self.rows.iter().zip(&self.live).filter(|(_, live)| **live).map(|(row, _)| *row)
    }

    pub(crate) fn dead(&self) -> usize {
        self.live.iter().filter(|live| !**live).count()
    }

    pub(crate) fn live_positions(&self) -> Vec<Position> {
        (0..).zip(&self.live).filter(|(_, live)| **live).map(|(at, _)| Position(at)).collect()
    }

    pub(crate) fn push(&mut self, token: u32) {
        let new = row(token, self.rows.len(), self.live_rows());
        self.tokens.push(token);
        self.rows.push(new);
        self.live.push(true);
    }
}
