//! The prefix tree: its named promises by example, and all of them beside a naive model.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail loudly")]

mod model;
mod random;

use std::time::Duration;

use hawser_common::clock::Tick;
use hawser_common::{Position, SlotId, TenantId};
use hawser_kv::{PrefixTree, SlotMap, SlotPool, audit_with_tree};

/// A tree, its pool, and one tenant's sessions.
struct Group {
    pool: SlotPool,
    tree: PrefixTree,
    tenant: TenantId,
}

impl Group {
    fn new(total: usize) -> Self {
        Self { pool: SlotPool::new(total), tree: PrefixTree::new(), tenant: TenantId::single() }
    }

    /// A session that prefills what the tree lacks of `tokens`, and publishes it.
    fn session(&mut self, tokens: &[u32], at_s: u64) -> SlotMap {
        let map = self.private(tokens, at_s);
        self.publish(tokens, &map, at_s);
        map
    }

    /// The same, without publishing.
    fn private(&mut self, tokens: &[u32], at_s: u64) -> SlotMap {
        let mut map = SlotMap::new();
        map.append(&self.tree.take(&self.tenant, tokens, seconds(at_s), &mut self.pool));
        map.append(&self.pool.allocate(tokens.len() - map.len()).unwrap());
        map
    }

    fn publish(&mut self, tokens: &[u32], map: &SlotMap, at_s: u64) -> usize {
        self.tree.publish(&self.tenant, tokens, map.live(), seconds(at_s), &mut self.pool)
    }

    fn matched(&self, tokens: &[u32]) -> usize {
        self.tree.matched(&self.tenant, tokens)
    }

    /// Evicts positions `from..to` of a session and takes its tail out of the tree: slots freed by each.
    fn prune(&mut self, tokens: &[u32], map: &mut SlotMap, from: u32, to: u32) -> (usize, usize) {
        let positions: Vec<Position> = (from..to).map(Position).collect();
        let evicted = map.evict(&positions, &mut self.pool).unwrap();
        let from = from as usize;
        (evicted, self.tree.unpublish(&self.tenant, tokens, from, map, &mut self.pool))
    }

    /// All that can go at the end of the leaf that is next.
    fn evict(&mut self) -> Option<usize> {
        self.tree.evict_leaf(usize::MAX, &mut self.pool)
    }

    fn release(&mut self, slots: Vec<SlotId>) {
        for slot in slots {
            self.pool.release(slot);
        }
    }

    fn audit(&self, maps: &[&SlotMap]) {
        audit_with_tree(&self.pool, maps.iter().copied(), &self.tree).unwrap();
    }
}

fn seconds(at_s: u64) -> Tick {
    Tick(Duration::from_secs(at_s))
}

#[test]
fn e4_namespaces_share_nothing_even_where_name_and_tokens_join_to_the_same_text() {
    let mut pool = SlotPool::new(8);
    let mut tree = PrefixTree::new();
    let (ab, a) = (TenantId::parse("ab").unwrap(), TenantId::parse("a").unwrap());
    let c = [u32::from(b'c')];
    let bc = [u32::from(b'b'), u32::from(b'c')];
    tree.publish(&ab, &c, &pool.allocate(1).unwrap(), seconds(1), &mut pool);
    assert_eq!((tree.matched(&a, &bc), tree.matched(&a, &c), tree.matched(&ab, &bc)), (0, 0, 0));
    tree.publish(&a, &bc, &pool.allocate(2).unwrap(), seconds(2), &mut pool);
    assert_eq!((tree.matched(&a, &bc), tree.matched(&a, &c), tree.matched(&ab, &c)), (2, 0, 1));
    let (of_ab, of_a) =
        (tree.take(&ab, &c, seconds(3), &mut pool), tree.take(&a, &bc, seconds(3), &mut pool));
    assert!(of_ab.iter().all(|slot| !of_a.contains(slot)));
}

#[test]
fn publishing_again_replaces_nothing() {
    let mut group = Group::new(16);
    let first = group.session(&[1, 2, 3], 1);
    // As a session does that ran the same prompt at the same time: all its rows are duplicates, but the last.
    let mut second = SlotMap::new();
    second.append(&group.pool.allocate(4).unwrap());
    assert_eq!(group.publish(&[1, 2, 3, 4], &second, 2), 1);
    let taken = group.tree.take(&group.tenant, &[1, 2, 3, 4], seconds(3), &mut group.pool);
    assert_eq!(taken[..3], *first.live());
    assert_eq!(taken[3], second.live()[3]);
    assert!(second.live()[..3].iter().all(|&slot| group.pool.refs(slot) == 1), "duplicates are not taken");
    assert_eq!(group.publish(&[1, 2, 3, 4], &second, 4), 0);
}

#[test]
#[should_panic(expected = "no dead slot is published")]
fn a_dead_slot_is_not_published() {
    let mut group = Group::new(4);
    let mut slots = group.pool.allocate(2).unwrap();
    slots[0] = SlotId::DEAD;
    group.tree.publish(&group.tenant, &[1, 2], &slots, seconds(1), &mut group.pool);
}

#[test]
fn r1_a_pruned_session_leaves_others_the_rows_that_are_exact() {
    let mut group = Group::new(32);
    let tokens: Vec<u32> = (0..12).collect();
    let mut pruned = group.session(&tokens, 1);
    group.prune(&tokens, &mut pruned, 5, 8);
    assert_eq!(group.matched(&tokens), 5, "nothing from the first evicted position on is offered");
    let other = group.private(&tokens, 2);
    assert_eq!(other.live()[..5], pruned.live()[..5]);
    assert!(other.live()[5..].iter().all(|slot| !pruned.live().contains(slot)));
    group.audit(&[&pruned, &other]);
}

#[test]
fn a_tail_that_nobody_else_uses_returns_its_memory() {
    let mut group = Group::new(32);
    let tokens: Vec<u32> = (0..12).collect();
    let mut map = group.session(&tokens, 1);
    // The tree still holds what the session evicts; un-publishing returns that, and the session keeps 8..12.
    assert_eq!(group.prune(&tokens, &mut map, 4, 8), (0, 4));
    assert_eq!((group.tree.len(), group.pool.free()), (4, 31 - 8));
    group.audit(&[&map]);
    // The survivors are the session's alone now.
    assert_eq!(group.prune(&tokens, &mut map, 8, 11), (3, 0));
    assert_eq!(map.clear(&mut group.pool), 1);
    assert_eq!(group.tree.flush(&mut group.pool), 4);
}

#[test]
fn a_tail_that_another_session_uses_stays() {
    let mut group = Group::new(32);
    let tokens: Vec<u32> = (0..12).collect();
    let mut map = group.session(&tokens, 1);
    let mut other = group.private(&tokens[..10], 2);
    assert_eq!(group.prune(&tokens, &mut map, 4, 11), (0, 1), "only the row past what the other uses");
    assert_eq!(group.matched(&tokens), 10);
    group.audit(&[&map, &other]);
    assert_eq!(other.clear(&mut group.pool), 0, "the tree offers them still");
    assert_eq!(group.tree.unpublish(&group.tenant, &tokens, 4, &map, &mut group.pool), 6);
    group.audit(&[&map]);
}

#[test]
fn a_tail_with_a_branch_below_it_stays() {
    let mut group = Group::new(32);
    let mut map = group.session(&[1, 2, 3, 4, 5], 1);
    // The branch is idle, but its rows need those above.
    group.session(&[1, 2, 3, 9], 2).clear(&mut group.pool);
    assert_eq!(group.prune(&[1, 2, 3, 4, 5], &mut map, 1, 4), (0, 1));
    assert_eq!(group.matched(&[1, 2, 3, 9]), 4);
    assert_eq!(group.matched(&[1, 2, 3, 4, 5]), 3);
    // A session whose tokens end inside another's rows takes nothing back either.
    let mut short = group.private(&[1, 2], 3);
    short.clear(&mut group.pool);
    assert_eq!(group.tree.unpublish(&group.tenant, &[1, 2], 0, &short, &mut group.pool), 0);
}

#[test]
fn released_rows_are_evicted_least_recently_used_first() {
    let mut group = Group::new(64);
    let system = [7, 7, 7, 7];
    let prompt = |agent: u32| [&system[..], &[agent, agent]].concat();
    let mut maps: Vec<SlotMap> = (0..4).map(|agent| group.session(&prompt(agent), agent.into())).collect();
    assert_eq!(group.evict(), None, "all are in use");
    for map in &mut maps[1..] {
        map.clear(&mut group.pool);
    }
    // Agent 1 came back for a moment.
    group.private(&prompt(1), 20).clear(&mut group.pool);
    for gone in [2, 3, 1] {
        assert_eq!(group.matched(&prompt(gone)), 6);
        assert_eq!(group.evict(), Some(2));
        assert_eq!(group.matched(&prompt(gone)), 4);
    }
    assert_eq!(group.evict(), None, "agent 0 holds the rest");
    maps[0].clear(&mut group.pool);
    assert_eq!(group.evict(), Some(2));
    assert_eq!(group.evict(), Some(4), "the system prompt goes last");
    assert_eq!((group.tree.len(), group.tree.nodes()), (0, 0));
}

#[test]
fn a_leaf_that_eviction_passed_keeps_its_last_use() {
    let mut group = Group::new(64);
    let mut long = group.session(&[1, 1], 1);
    group.session(&[2, 2], 2).clear(&mut group.pool);
    group.session(&[3, 3], 3).clear(&mut group.pool);
    assert_eq!(group.evict(), Some(2));
    long.clear(&mut group.pool);
    assert_eq!(group.evict(), Some(2));
    assert_eq!((group.matched(&[1, 1]), group.matched(&[3, 3])), (0, 2));
}

#[test]
fn rows_past_what_a_session_took_can_be_evicted_without_the_rest() {
    let mut group = Group::new(16);
    let tokens: Vec<u32> = (0..10).collect();
    group.session(&tokens, 1).clear(&mut group.pool);
    let user = group.private(&tokens[..4], 2);
    assert_eq!(group.evict(), Some(6));
    assert_eq!(group.matched(&tokens), 4);
    group.audit(&[&user]);
}

#[test]
fn the_end_of_a_leaf_can_be_evicted_while_a_session_holds_its_beginning() {
    let mut group = Group::new(16);
    let tokens: Vec<u32> = (0..10).collect();
    // It was cut at the first difference of its next prompt.
    let mut user = group.session(&tokens, 1);
    user.truncate(3, &mut group.pool);
    assert_eq!(group.evict(), Some(7));
    assert_eq!((group.matched(&tokens), group.evict()), (3, None));
    group.audit(&[&user]);
}

#[test]
fn no_more_is_evicted_than_asked_for() {
    let mut group = Group::new(16);
    let tokens: Vec<u32> = (0..10).collect();
    let mut user = group.session(&tokens, 1);
    user.truncate(3, &mut group.pool);
    assert_eq!(group.tree.evict_leaf(2, &mut group.pool), Some(2));
    assert_eq!(group.matched(&tokens), 8);
    assert_eq!(group.tree.evict_leaf(9, &mut group.pool), Some(5));
    assert_eq!((group.matched(&tokens), group.evict()), (3, None));
    group.audit(&[&user]);
}

#[test]
fn a_session_that_grows_is_one_node_until_another_leaves_it_half_way() {
    let mut group = Group::new(64);
    let tokens: Vec<u32> = (0..40).collect();
    let mut map = group.session(&tokens[..4], 1);
    for (turn, end) in (8..=40).step_by(4).enumerate() {
        map.append(&group.pool.allocate(4).unwrap());
        assert_eq!(group.publish(&tokens[..end], &map, 2 + turn as u64), 4);
        assert_eq!(group.tree.nodes(), 1);
    }
    let mut other = group.session(&[&tokens[..20], &[99, 98]].concat(), 20);
    assert_eq!((group.matched(&tokens), group.tree.nodes()), (40, 3));
    group.audit(&[&map, &other]);
    map.clear(&mut group.pool);
    other.clear(&mut group.pool);
    assert_eq!(group.tree.flush(&mut group.pool), 42);
}

#[test]
fn a_path_of_thousands_of_nodes_is_walked_and_dropped() {
    let depth = 4_000;
    let mut group = Group::new(depth + 1);
    let tokens: Vec<u32> = (0..depth as u32).collect();
    let slots = group.pool.allocate(depth).unwrap();
    group.tree.publish(&group.tenant, &tokens, &slots, seconds(1), &mut group.pool);
    group.release(slots);
    // Shorter every time: each take splits the first node, so each step stays short.
    for end in (1..depth).rev() {
        let taken = group.tree.take(&group.tenant, &tokens[..end], seconds(2), &mut group.pool);
        group.release(taken);
    }
    assert_eq!(group.tree.nodes(), depth);
    assert_eq!(group.matched(&tokens), depth);
    group.audit(&[]);
    let mut map = SlotMap::new();
    map.append(&group.tree.take(&group.tenant, &tokens[..depth / 2], seconds(3), &mut group.pool));
    assert_eq!(group.tree.unpublish(&group.tenant, &tokens, 0, &SlotMap::new(), &mut group.pool), depth / 2);
    map.clear(&mut group.pool);
    assert_eq!(group.tree.flush(&mut group.pool), depth / 2);
}
