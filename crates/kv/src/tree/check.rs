//! The prefix tree's own invariants, for the audit: every node is linked once, under its first token, the leaves are
//! exactly the nodes without children, and every one whose end nobody uses is considered for eviction. Only reads.

use std::collections::{BTreeSet, HashMap};

use super::PrefixTree;
use super::nodes::{NodeId, Nodes, Parent};
use crate::pool::SlotPool;

impl PrefixTree {
    /// What is wrong with the links, if anything is.
    pub(crate) fn check(&self, pool: &SlotPool) -> Result<(), &'static str> {
        let nodes = &self.nodes;
        let linked = linked(nodes)?;
        let (present, empty): (Vec<NodeId>, Vec<NodeId>) =
            ids(nodes).partition(|id| nodes.nodes[id.0 as usize].is_some());
        if !linked.iter().eq(&present) {
            return Err("a node is not linked");
        }
        let mut vacant = nodes.vacant.clone();
        vacant.sort_unstable();
        if vacant != empty {
            return Err("the vacant places are not those without a node");
        }
        let leaves = linked.iter().filter(|&&id| nodes.node(id).children.is_empty());
        let ends: HashMap<_, _> = leaves.map(|&id| (nodes.node(id).end(), id)).collect();
        if ends != nodes.ends {
            return Err("the leaves are not the nodes without children");
        }
        let order: BTreeSet<_> = ends.values().map(|&id| (nodes.node(id).last_use, id)).collect();
        if !nodes.considered.is_subset(&order) {
            return Err("what is considered for eviction is no leaf, or has another last use");
        }
        let missed = |&(&slot, &id): &(&_, &NodeId)| {
            let is_known = nodes.considered.contains(&(nodes.node(id).last_use, id)) || pool.is_sole(slot);
            pool.refs(slot) == 1 && !is_known
        };
        if ends.iter().any(|end| missed(&end)) {
            return Err("a leaf whose end nobody uses is not considered for eviction");
        }
        if nodes.iter().map(|node| node.rows.len()).sum::<usize>() != nodes.rows {
            return Err("the rows are not as many as counted");
        }
        Ok(())
    }
}

fn ids(nodes: &Nodes) -> impl Iterator<Item = NodeId> {
    (0..u32::try_from(nodes.nodes.len()).expect("there are no more nodes than slots")).map(NodeId)
}

/// All nodes that the roots lead to.
fn linked(nodes: &Nodes) -> Result<BTreeSet<NodeId>, &'static str> {
    let mut linked = BTreeSet::new();
    let mut open: Vec<(Parent, u32, NodeId)> = Vec::new();
    for (namespace, children) in &nodes.roots {
        if children.is_empty() {
            return Err("a namespace has no node");
        }
        open.extend(children.iter().map(|(&token, &id)| (Parent::Root(namespace.clone()), token, id)));
    }
    while let Some((parent, token, id)) = open.pop() {
        let Some(node) = nodes.nodes.get(id.0 as usize).and_then(Option::as_ref) else {
            return Err("a link leads to no node");
        };
        if !linked.insert(id) {
            return Err("two links lead to one node");
        }
        if node.parent != parent || node.rows.first().map(|row| row.token) != Some(token) {
            return Err("a node is not under its first token of its parent");
        }
        if parent.node().is_some_and(|above| nodes.node(above).last_use < node.last_use) {
            return Err("a node was used later than the one above it");
        }
        open.extend(node.children.iter().map(|(&token, &below)| (Parent::Node(id), token, below)));
    }
    Ok(linked)
}

#[cfg(test)]
mod tests {
    use hawser_common::clock::Tick;
    use hawser_common::{SlotId, TenantId};

    use super::*;
    use crate::tree::nodes::Row;
    use crate::{AuditError, SlotPool, audit_with_tree};

    type Damage = fn(&mut Nodes);

    /// A tree of three nodes, damaged, and the audit's verdict.
    fn after(damage: impl FnOnce(&mut Nodes)) -> Result<(), AuditError> {
        let mut pool = SlotPool::new(16);
        let mut tree = PrefixTree::new();
        let namespace = TenantId::single();
        for tokens in [[1, 2, 3], [1, 2, 4]] {
            let slots = pool.allocate(3).unwrap();
            tree.publish(&namespace, &tokens, &slots, Tick::default(), &mut pool);
            for slot in slots {
                pool.release(slot);
            }
        }
        assert_eq!((tree.len(), tree.nodes()), (4, 3));
        // Both leaves are new, and considered without the pool's word.
        pool.take_sole();
        damage(&mut tree.nodes);
        audit_with_tree(&pool, std::iter::empty(), &tree)
    }

    fn set_slot(nodes: &mut Nodes, slot: SlotId) {
        let node = nodes.nodes.iter_mut().flatten().next().unwrap();
        node.rows[0] = Row { slot, ..node.rows[0] };
    }

    #[test]
    fn the_audit_finds_every_kind_of_damage() {
        assert_eq!(after(|_| ()), Ok(()));
        let shape: [(&str, Damage); 9] = [
            ("unknown leaf", |nodes| nodes.ends.clear()),
            ("idle leaf not considered", |nodes| nodes.considered.clear()),
            ("stale last use", |nodes| {
                nodes.nodes[0].as_mut().unwrap().last_use.0 += std::time::Duration::from_secs(1);
            }),
            ("used after what is above it", |nodes| {
                let (_, leaf) = nodes.considered.pop_first().unwrap();
                let later = Tick(std::time::Duration::from_secs(1));
                nodes.nodes[leaf.0 as usize].as_mut().unwrap().last_use = later;
                nodes.considered.insert((later, leaf));
            }),
            ("unlinked", |nodes| nodes.roots.clear()),
            ("empty root", |nodes| drop(nodes.roots.insert(TenantId::parse("b").unwrap(), [].into()))),
            ("wrong token", |nodes| nodes.nodes[0].as_mut().unwrap().rows[0].token = 9),
            ("wrong count", |nodes| nodes.rows += 1),
            ("vacant and present", |nodes| nodes.vacant.push(NodeId(0))),
        ];
        for (name, damage) in shape {
            assert!(matches!(after(damage), Err(AuditError::TreeShape(_))), "{name}");
        }
        assert_eq!(after(|nodes| set_slot(nodes, SlotId::DEAD)), Err(AuditError::TreeSlot(SlotId::DEAD)));
        let twice = after(|nodes| {
            let last = nodes.nodes.iter().flatten().last().unwrap().rows[0].slot;
            set_slot(nodes, last);
        });
        assert!(matches!(twice, Err(AuditError::TreeSlot(_))));
        let beyond = after(|nodes| set_slot(nodes, SlotId(99)));
        assert_eq!(beyond, Err(AuditError::TreeSlot(SlotId(99))));
        let free = after(|nodes| set_slot(nodes, SlotId(15)));
        assert!(matches!(free, Err(AuditError::Holders { .. })));
    }
}
