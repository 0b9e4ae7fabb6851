//! The tree beside its model over random operations of sessions, audited after each one.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use hawser_common::clock::Tick;
use hawser_common::{Position, SlotId, TenantId};
use hawser_kv::{PrefixTree, SlotMap, SlotPool, audit_with_tree};
use proptest::prelude::*;

use crate::model::{Model, Prefix};

/// Sessions 0 and 1 belong to one tenant, 2 and 3 to another.
const SESSIONS: usize = 4;

#[derive(Debug, Clone)]
enum Op {
    Start { session: usize, prompt: Vec<u32> },
    Grow { session: usize, tokens: Vec<u32> },
    Publish { session: usize },
    Prune { session: usize, from: usize, every: usize },
    Unpublish { session: usize, from: usize },
    Clear { session: usize },
    EvictLeaf { most: usize },
    Flush,
}

fn op() -> impl Strategy<Value = Op> {
    let session = || 0..SESSIONS;
    let tokens = |most: usize| proptest::collection::vec(0..2u32, 0..most);
    prop_oneof![
        24 => (session(), tokens(12)).prop_map(|(session, prompt)| Op::Start { session, prompt }),
        12 => (session(), tokens(5)).prop_map(|(session, tokens)| Op::Grow { session, tokens }),
        30 => session().prop_map(|session| Op::Publish { session }),
        10 => (session(), 0..8usize, 1..3usize)
            .prop_map(|(session, from, every)| Op::Prune { session, from, every }),
        8 => (session(), 0..8usize).prop_map(|(session, from)| Op::Unpublish { session, from }),
        10 => session().prop_map(|session| Op::Clear { session }),
        8 => (1..20usize).prop_map(|most| Op::EvictLeaf { most }),
        1 => Just(Op::Flush),
    ]
}

#[derive(Default)]
struct Session {
    tokens: Vec<u32>,
    map: SlotMap,
}

impl Session {
    /// Rows up to the first that was evicted.
    fn exact(&self) -> Vec<SlotId> {
        let slots = (0..self.tokens.len() as u32).map(|p| self.map.slot(Position(p)).unwrap());
        slots.take_while(|slot| !slot.is_dead()).collect()
    }
}

struct World {
    pool: SlotPool,
    tree: PrefixTree,
    model: Model,
    tenants: [TenantId; 2],
    sessions: [Session; SESSIONS],
    now: Tick,
}

impl World {
    fn new(total: usize) -> Self {
        Self {
            pool: SlotPool::new(total),
            tree: PrefixTree::new(),
            model: Model::default(),
            tenants: [TenantId::parse("a").unwrap(), TenantId::parse("b").unwrap()],
            sessions: Default::default(),
            now: Tick::default(),
        }
    }

    fn apply(&mut self, op: &Op) {
        match op {
            Op::Start { session, prompt } => self.start(*session, prompt),
            Op::Grow { session, tokens } => self.grow(*session, tokens),
            Op::Publish { session } => self.publish(*session),
            Op::Prune { session, from, every } => {
                let map = &mut self.sessions[*session].map;
                let newest = map.len().saturating_sub(1);
                let live = map.live_positions().iter().filter(|p| (*from..newest).contains(&p.index()));
                let chosen: Vec<Position> = live.step_by(*every).copied().collect();
                map.evict(&chosen, &mut self.pool).unwrap();
                self.unpublish(*session, *from);
            }
            Op::Unpublish { session, from } => self.unpublish(*session, *from),
            Op::Clear { session } => {
                self.sessions[*session].map.clear(&mut self.pool);
                self.sessions[*session].tokens.clear();
            }
            Op::EvictLeaf { most } => {
                self.evict_leaf(*most);
            }
            Op::Flush => {
                let sole = self.tree.slots().filter(|&slot| self.pool.refs(slot) == 1).count();
                assert_eq!(self.tree.flush(&mut self.pool), sole);
                self.model.rows.clear();
            }
        }
    }

    fn start(&mut self, session: usize, prompt: &[u32]) {
        let (tenant, own) = (session / 2, &mut self.sessions[session]);
        own.map.clear(&mut self.pool);
        let matched = self.tree.matched(&self.tenants[tenant], prompt);
        let taken = self.tree.take(&self.tenants[tenant], prompt, self.now, &mut self.pool);
        assert_eq!(taken.len(), matched);
        assert_eq!(taken, self.model.walk(tenant, prompt, self.now));
        own.map.append(&taken);
        own.tokens = prompt[..matched].to_vec();
        self.grow(session, &prompt[matched..]);
    }

    fn grow(&mut self, session: usize, tokens: &[u32]) {
        let own = &mut self.sessions[session];
        if let Ok(slots) = self.pool.allocate(tokens.len()) {
            own.map.append(&slots);
            own.tokens.extend_from_slice(tokens);
        }
    }

    fn publish(&mut self, session: usize) {
        let (tenant, own) = (session / 2, &self.sessions[session]);
        let slots = own.exact();
        let tokens = &own.tokens[..slots.len()];
        let added = self.tree.publish(&self.tenants[tenant], tokens, &slots, self.now, &mut self.pool);
        assert_eq!(added, self.model.publish(tenant, tokens, &slots, self.now));
    }

    fn unpublish(&mut self, session: usize, from: usize) {
        let (tenant, own) = (session / 2, &self.sessions[session]);
        let (mut freed, mut removed) = (0, 0);
        for last in (from..self.model.matched(tenant, &own.tokens)).rev() {
            let prefix: Prefix = (tenant, own.tokens[..=last].to_vec());
            let slot = self.model.rows[&prefix].slot;
            let mine = own.map.slot(Position(last as u32)) == Some(slot);
            if self.model.has_more(&prefix) || self.pool.refs(slot) != 1 + u32::from(mine) {
                break;
            }
            self.model.remove(&prefix);
            removed += 1;
            freed += usize::from(!mine);
        }
        let before = self.tree.len();
        let namespace = &self.tenants[tenant];
        let returned = self.tree.unpublish(namespace, &own.tokens, from, &own.map, &mut self.pool);
        assert_eq!((returned, before - self.tree.len()), (freed, removed));
    }

    fn evict_leaf(&mut self, most: usize) -> Option<usize> {
        let leaves = self.model.leaves();
        let used = |leaf: &Prefix| self.model.rows[leaf].used;
        // From its end upward.
        let idle_end = |leaf: &Prefix| -> Vec<Prefix> {
            self.model.idle_end(leaf, &self.pool).into_iter().take(most).collect()
        };
        let idle: Vec<&Prefix> = leaves.iter().filter(|leaf| !idle_end(leaf).is_empty()).collect();
        let oldest = idle.iter().map(|leaf| used(leaf)).min();
        let ends: BTreeMap<&Prefix, Vec<Prefix>> = idle.iter().map(|leaf| (*leaf, idle_end(leaf))).collect();
        let before: BTreeSet<SlotId> = self.tree.slots().collect();
        let free = self.pool.free();
        let freed = self.tree.evict_leaf(most, &mut self.pool);
        assert_eq!(freed.is_none(), oldest.is_none(), "a leaf is evicted if the end of one is idle");
        assert_eq!(self.pool.free() - free, freed.unwrap_or(0));
        let after: BTreeSet<SlotId> = self.tree.slots().collect();
        let Some(oldest) = oldest else {
            assert_eq!(before, after);
            return None;
        };
        let gone: BTreeSet<SlotId> = before.difference(&after).copied().collect();
        let slots = |leaf: &Prefix| -> BTreeSet<SlotId> {
            ends[leaf].iter().map(|prefix| self.model.rows[prefix].slot).collect()
        };
        let victim = idle.iter().find(|leaf| used(leaf) == oldest && slots(leaf) == gone);
        let victim = ends[*victim.expect("a least recently used leaf with an idle end")].clone();
        victim.iter().for_each(|prefix| self.model.remove(prefix));
        freed
    }

    fn check(&self) {
        let maps = self.sessions.iter().map(|session| &session.map);
        assert_eq!(audit_with_tree(&self.pool, maps, &self.tree), Ok(()));
        assert_eq!(self.tree.len(), self.model.rows.len());
        assert_eq!(self.tree.nodes(), self.model.nodes());
        assert_eq!(self.tree.is_empty(), self.model.rows.is_empty());
        let held: BTreeSet<SlotId> = self.model.rows.values().map(|row| row.slot).collect();
        assert_eq!(self.tree.slots().collect::<BTreeSet<_>>(), held);
        for (tenant, mut tokens) in self.model.leaves() {
            let rows = tokens.len();
            // No token of any session: the match ends where the model says.
            tokens.push(9);
            assert_eq!(self.tree.matched(&self.tenants[tenant], &tokens), rows);
        }
    }

    /// The slot of every row, read out; then all of it is given back.
    fn close(mut self) {
        for (tenant, tokens) in self.model.leaves() {
            let taken = self.tree.take(&self.tenants[tenant], &tokens, self.now, &mut self.pool);
            assert_eq!(taken, self.model.walk(tenant, &tokens, self.now));
            for slot in taken {
                self.pool.release(slot);
            }
        }
        let reclaimable = self.model.reclaimable(&self.pool);
        let mut evicted = 0;
        while let Some(freed) = self.evict_leaf(usize::MAX) {
            evicted += freed;
        }
        assert_eq!(evicted, reclaimable, "what can be reclaimed is what evictions free");
        for session in &mut self.sessions {
            session.map.clear(&mut self.pool);
        }
        assert_eq!(self.tree.flush(&mut self.pool), self.model.rows.len());
        assert_eq!(self.pool.free(), self.pool.usable(), "only the dead slot is left out");
        assert_eq!((self.tree.len(), self.tree.nodes()), (0, 0));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]
    #[test]
    fn the_tree_is_its_model(ops in proptest::collection::vec(op(), 0..160), total in 16..120usize) {
        let mut world = World::new(total);
        for (step, op) in ops.iter().enumerate() {
            // Two operations share a tick, so that ties happen.
            world.now = Tick(Duration::from_millis(step as u64 / 2));
            world.apply(op);
            world.check();
        }
        world.close();
    }

    #[test]
    fn e3_a_match_ends_at_the_first_token_that_differs(
        held in proptest::collection::vec(0..3u32, 1..30),
        asked in proptest::collection::vec(0..3u32, 0..30),
    ) {
        let mut pool = SlotPool::new(held.len() + 1);
        let mut tree = PrefixTree::new();
        let slots = pool.allocate(held.len()).unwrap();
        tree.publish(&TenantId::single(), &held, &slots, Tick::default(), &mut pool);
        let same = held.iter().zip(&asked).take_while(|(a, b)| a == b).count();
        prop_assert_eq!(tree.matched(&TenantId::single(), &asked), same);
        let taken = tree.take(&TenantId::single(), &asked, Tick::default(), &mut pool);
        prop_assert_eq!(&taken[..], &slots[..same]);
    }
}
