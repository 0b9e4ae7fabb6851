//! The prefix tree: exact KV rows that sessions of one tenant share.
//!
//! Owns one holding of each slot in it, until the row is un-published or evicted. Promises that a match compares
//! tokens and never a hash of them, that namespaces share nothing, and that no row in it gets another token or slot.
//! Never looks at what a row contains: that it is exact is the publisher's promise.

mod check;
mod nodes;

use hawser_common::clock::Tick;
use hawser_common::{Position, SlotId, TenantId};

use crate::map::SlotMap;
use crate::pool::SlotPool;
use nodes::{NodeId, Nodes, Parent, Row};

/// Rows by the tokens that lead to them. Holds at most one row per slot of the pool, so the pool bounds it; give the
/// slots back with [`PrefixTree::flush`].
#[derive(Debug, Default)]
pub struct PrefixTree {
    nodes: Nodes,
}

impl PrefixTree {
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Rows held, which is slots held.
    #[must_use]
    pub fn len(&self) -> usize {
        self.nodes.rows
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.nodes.rows == 0
    }

    /// Nodes that represent the rows: at most one per row.
    #[must_use]
    pub fn nodes(&self) -> usize {
        self.nodes.count()
    }

    /// Slots held, each once, in no particular order.
    pub fn slots(&self) -> impl Iterator<Item = SlotId> {
        self.nodes.iter().flat_map(|node| node.rows.iter().map(|row| row.slot))
    }

    /// How many of `tokens`, from the first, have a row.
    #[must_use]
    pub fn matched(&self, namespace: &TenantId, tokens: &[u32]) -> usize {
        self.find(namespace, tokens).rows
    }

    /// Slots of the rows that `tokens` have, from the first, to look at: the caller holds none.
    #[must_use]
    pub fn rows(&self, namespace: &TenantId, tokens: &[u32]) -> Vec<SlotId> {
        let found = self.find(namespace, tokens);
        let up = |&id: &NodeId| self.nodes.node(id).parent.node();
        let mut path: Vec<NodeId> = std::iter::successors(found.last, up).collect();
        path.reverse();
        let rows = path.iter().flat_map(|&id| self.nodes.node(id).rows.iter());
        rows.take(found.rows).map(|row| row.slot).collect()
    }

    /// Slots of the rows that `tokens` have, from the first, each with one more holder: the caller.
    #[must_use = "the caller holds these slots"]
    pub fn take(
        &mut self,
        namespace: &TenantId,
        tokens: &[u32],
        now: Tick,
        pool: &mut SlotPool,
    ) -> Vec<SlotId> {
        let path = self.walk(namespace, tokens, now);
        let rows = path.iter().flat_map(|&id| self.nodes.node(id).rows.iter());
        let slots: Vec<SlotId> = rows.map(|row| row.slot).collect();
        slots.iter().for_each(|&slot| pool.retain(slot));
        slots
    }

    /// Offers exact rows: row i is `slots[i]`, computed from all of `tokens[..=i]`. What the tree has stays as it is;
    /// the rest is added with one more holder: the tree. Returns how many rows were added.
    ///
    /// # Panics
    /// If a slot that is added is dead, free, or missing: an evicted row has no successors that are exact.
    pub fn publish(
        &mut self,
        namespace: &TenantId,
        tokens: &[u32],
        slots: &[SlotId],
        now: Tick,
        pool: &mut SlotPool,
    ) -> usize {
        assert_eq!(tokens.len(), slots.len(), "one slot per token");
        let path = self.walk(namespace, tokens, now);
        let held: usize = path.iter().map(|&id| self.nodes.node(id).rows.len()).sum();
        let pairs = tokens[held..].iter().zip(&slots[held..]);
        let rows: Vec<Row> = pairs.map(|(&token, &slot)| Row { token, slot }).collect();
        assert!(rows.iter().all(|row| !row.slot.is_dead()), "no dead slot is published");
        let added = rows.len();
        if added > 0 {
            rows.iter().for_each(|row| pool.retain(row.slot));
            match path.last() {
                Some(&end) if self.nodes.node(end).children.is_empty() => self.nodes.extend(end, &rows),
                Some(&end) => {
                    self.nodes.attach(Parent::Node(end), rows, now);
                }
                None => {
                    self.nodes.attach(Parent::Root(namespace.clone()), rows, now);
                }
            }
        }
        added
    }

    /// Takes back rows of `tokens` from index `from` on, for a session that evicts there: from the last row upward,
    /// as long as nothing follows a row and only the tree and `mine`, the session's own map, hold it. A row that
    /// `mine` still maps leaves the tree and stays with the session. Returns how many slots became free.
    pub fn unpublish(
        &mut self,
        namespace: &TenantId,
        tokens: &[u32],
        from: usize,
        mine: &SlotMap,
        pool: &mut SlotPool,
    ) -> usize {
        let found = self.find(namespace, tokens);
        let mut freed = 0;
        let mut end = found.rows;
        // A match that ends inside a node is followed by the rest of it.
        let mut next = if found.inside { None } else { found.last };
        while let Some(id) = next.filter(|&id| self.nodes.node(id).children.is_empty()) {
            let rows = &self.nodes.node(id).rows;
            let start = end - rows.len();
            let stays = |(i, row): (usize, &Row)| {
                start + i < from || pool.refs(row.slot) != 1 + u32::from(maps(mine, start + i, row.slot))
            };
            let keep = rows.iter().enumerate().rposition(stays).map_or(0, |last| last + 1);
            if keep > 0 {
                return freed + release(&self.nodes.shorten(id, keep), pool);
            }
            let (parent, cut) = self.nodes.detach(id);
            freed += release(&cut, pool);
            (end, next) = (start, parent.node());
        }
        freed
    }

    /// Drops rows at the end of the least recently used leaf, `most` of them at most, that nobody else holds: they lie
    /// after the last row in use. Returns how many slots became free, `None` if every leaf is in use to its end.
    ///
    /// Looks at leaves that are new or whose end lost a holder since the last call, and at no other.
    pub fn evict_leaf(&mut self, most: usize, pool: &mut SlotPool) -> Option<usize> {
        pool.take_sole().into_iter().for_each(|slot| self.nodes.consider(slot));
        while let Some(id) = self.nodes.oldest_considered() {
            let rows = &self.nodes.node(id).rows;
            // No more of a long leaf is looked at than may go.
            let from = rows.len().saturating_sub(most.max(1));
            let keep = from + used_rows(&rows[from..], pool);
            if keep == rows.len() {
                // The pool tells when its end loses a holder.
                self.nodes.pass_over(id);
                continue;
            }
            let rows = if keep > 0 { self.nodes.shorten(id, keep) } else { self.nodes.detach(id).1 };
            return Some(release(&rows, pool));
        }
        None
    }

    /// Gives every slot back; sessions keep the rows they hold. Returns how many slots became free.
    pub fn flush(&mut self, pool: &mut SlotPool) -> usize {
        let nodes = std::mem::take(&mut self.nodes);
        nodes.iter().map(|node| release(&node.rows, pool)).sum()
    }

    /// The nodes whose rows `tokens` lead through, marked as used. A node that is left half-way is split there: what
    /// lies below is not used, and can be evicted without the rest.
    fn walk(&mut self, namespace: &TenantId, tokens: &[u32], now: Tick) -> Vec<NodeId> {
        let found = self.find(namespace, tokens);
        let end = match found.last {
            Some(id) if found.inside => Some(self.nodes.split(id, found.rows - found.above)),
            last => last,
        };
        end.iter().for_each(|&id| self.nodes.touch(id, now));
        let up = |&id: &NodeId| self.nodes.node(id).parent.node();
        let mut path: Vec<NodeId> = std::iter::successors(end, up).collect();
        path.reverse();
        path
    }

    fn find(&self, namespace: &TenantId, tokens: &[u32]) -> Found {
        let mut found = Found { rows: 0, above: 0, last: None, inside: false };
        let mut parent = Parent::Root(namespace.clone());
        while let Some(&token) = tokens.get(found.rows).filter(|_| !found.inside) {
            let Some(id) = self.nodes.child(&parent, token) else { break };
            let rows = &self.nodes.node(id).rows;
            let same = common(rows, &tokens[found.rows..]);
            let inside = same < rows.len();
            found = Found { rows: found.rows + same, above: found.rows, last: Some(id), inside };
            parent = Parent::Node(id);
        }
        found
    }
}

/// Where a match ends.
struct Found {
    /// Rows matched.
    rows: usize,
    /// Of these, how many lie above the last node.
    above: usize,
    /// The node with the last row matched.
    last: Option<NodeId>,
    /// Whether that node has more rows.
    inside: bool,
}

/// Rows that are compared at once.
const CHUNK: usize = 32;

/// How many rows, from the first, are those of `tokens`.
fn common(rows: &[Row], tokens: &[u32]) -> usize {
    let is_same = |(row, token): (&Row, &u32)| row.token == *token;
    let chunks = rows.chunks_exact(CHUNK).zip(tokens.chunks_exact(CHUNK));
    // Without a way out in between, so that a chunk takes a few vector instructions.
    let equal = |(rows, tokens): &(&[Row], &[u32])| {
        rows.iter().zip(*tokens).fold(true, |same, pair| same & is_same(pair))
    };
    let whole = CHUNK * chunks.take_while(equal).count();
    whole + rows[whole..].iter().zip(&tokens[whole..]).take_while(|pair| is_same(*pair)).count()
}

/// How many rows there are up to the last one that somebody else holds.
fn used_rows(rows: &[Row], pool: &SlotPool) -> usize {
    rows.iter().rposition(|row| pool.refs(row.slot) > 1).map_or(0, |last| last + 1)
}

fn maps(map: &SlotMap, index: usize, slot: SlotId) -> bool {
    let position = Position(u32::try_from(index).expect("positions are 32-bit"));
    map.slot(position) == Some(slot)
}

fn release(rows: &[Row], pool: &mut SlotPool) -> usize {
    rows.iter().filter(|row| pool.release(row.slot)).count()
}
