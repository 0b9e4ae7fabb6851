//! The shape of the prefix tree: nodes in one vector, their links, its leaves by the slot of their last row, and those
//! that are considered for eviction in order of last use.
//!
//! Promises that a node is found under the first token of its rows, that it was used no later than the node above it,
//! that a namespace without nodes has no entry, that every leaf is known by its end, and that a new leaf, or one with a
//! new end, is considered. Never knows who holds a slot.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use hawser_common::clock::Tick;
use hawser_common::{SlotId, TenantId};

/// Index of a node in the vector; used again once its node is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct NodeId(pub(super) u32);

/// One token and where its KV rows are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) token: u32,
    pub(super) slot: SlotId,
}

/// What a node hangs from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Parent {
    Root(TenantId),
    Node(NodeId),
}

impl Parent {
    /// The node above, if this is one.
    pub(super) fn node(&self) -> Option<NodeId> {
        match self {
            Self::Root(_) => None,
            Self::Node(id) => Some(*id),
        }
    }
}

/// Nodes below one point, by the first token of each.
pub(super) type Children = BTreeMap<u32, NodeId>;

/// At least one row, and what follows it.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) parent: Parent,
    pub(super) rows: Vec<Row>,
    pub(super) children: Children,
    pub(super) last_use: Tick,
}

impl Node {
    /// The slot of its last row.
    pub(super) fn end(&self) -> SlotId {
        self.rows[self.rows.len() - 1].slot
    }
}

/// All nodes of all namespaces.
#[derive(Debug, Default)]
pub(super) struct Nodes {
    pub(super) nodes: Vec<Option<Node>>,
    pub(super) vacant: Vec<NodeId>,
    pub(super) roots: HashMap<TenantId, Children>,
    /// Nodes without children, by the slot of their last row.
    pub(super) ends: HashMap<SlotId, NodeId>,
    /// Leaves that may end in rows that nobody uses.
    pub(super) considered: BTreeSet<(Tick, NodeId)>,
    pub(super) rows: usize,
}

impl Nodes {
    pub(super) fn node(&self, id: NodeId) -> &Node {
        self.nodes[id.0 as usize].as_ref().expect("a link leads to a node")
    }

    fn node_mut(&mut self, id: NodeId) -> &mut Node {
        self.nodes[id.0 as usize].as_mut().expect("a link leads to a node")
    }

    pub(super) fn count(&self) -> usize {
        self.nodes.len() - self.vacant.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Node> {
        self.nodes.iter().flatten()
    }

    /// The node below `parent` that goes on with `token`.
    pub(super) fn child(&self, parent: &Parent, token: u32) -> Option<NodeId> {
        let children = match parent {
            Parent::Root(namespace) => self.roots.get(namespace)?,
            Parent::Node(id) => &self.node(*id).children,
        };
        children.get(&token).copied()
    }

    /// Hangs a new leaf below `parent`, which has no child with the same first token.
    pub(super) fn attach(&mut self, parent: Parent, rows: Vec<Row>, now: Tick) -> NodeId {
        assert!(!rows.is_empty(), "a node has rows");
        let token = rows[0].token;
        self.rows += rows.len();
        if let Some(above) = parent.node() {
            self.forget_leaf(above);
        }
        let id = self.place(Node { parent: parent.clone(), rows, children: Children::new(), last_use: now });
        self.know_leaf(id);
        let other = self.children_mut(parent).insert(token, id);
        assert!(other.is_none(), "a row in the tree is never replaced");
        id
    }

    /// Adds rows to the end of a leaf: a session that grows stays one node, however many turns it has.
    pub(super) fn extend(&mut self, id: NodeId, rows: &[Row]) {
        self.forget_leaf(id);
        self.rows += rows.len();
        let node = self.node_mut(id);
        assert!(node.children.is_empty(), "only a leaf grows");
        node.rows.extend_from_slice(rows);
        self.know_leaf(id);
    }

    /// Makes two nodes of one and returns the upper, which has the first `at` rows. The lower one keeps the id, so
    /// that links from below and what is known of leaves stay as they are.
    pub(super) fn split(&mut self, id: NodeId, at: usize) -> NodeId {
        let node = self.node_mut(id);
        let (upper, lower) = (node.rows[..at].to_vec(), node.rows[at..].to_vec());
        let (first, below) = (upper[0].token, lower[0].token);
        node.rows = lower;
        let (parent, last_use) = (node.parent.clone(), node.last_use);
        let children = Children::from([(below, id)]);
        let upper = self.place(Node { parent: parent.clone(), rows: upper, children, last_use });
        self.node_mut(id).parent = Parent::Node(upper);
        self.children_mut(parent).insert(first, upper);
        upper
    }

    /// Marks a node and all above it as used at `now`. Where that is no news, it is none further up.
    pub(super) fn touch(&mut self, id: NodeId, now: Tick) {
        let mut next = Some(id);
        while let Some(id) = next.filter(|&id| self.node(id).last_use < now) {
            let node = self.node_mut(id);
            let before = std::mem::replace(&mut node.last_use, now);
            next = node.parent.node();
            if self.considered.remove(&(before, id)) {
                self.considered.insert((now, id));
            }
        }
    }

    /// Takes a leaf out. Returns what it hung from, and its rows.
    pub(super) fn detach(&mut self, id: NodeId) -> (Parent, Vec<Row>) {
        self.forget_leaf(id);
        let node = self.nodes[id.0 as usize].take().expect("a link leads to a node");
        assert!(node.children.is_empty(), "only a leaf is taken out");
        self.vacant.push(id);
        self.rows -= node.rows.len();
        let siblings = self.children_mut(node.parent.clone());
        siblings.remove(&node.rows[0].token);
        if siblings.is_empty() {
            match &node.parent {
                Parent::Root(namespace) => {
                    self.roots.remove(namespace);
                }
                Parent::Node(above) => self.know_leaf(*above),
            }
        }
        (node.parent, node.rows)
    }

    /// Cuts a leaf down to its first `keep` rows, at least one, and returns the others.
    pub(super) fn shorten(&mut self, id: NodeId, keep: usize) -> Vec<Row> {
        self.forget_leaf(id);
        let node = self.node_mut(id);
        assert!(node.children.is_empty() && keep > 0, "only the end of a leaf is cut off");
        let cut = node.rows.split_off(keep);
        self.rows -= cut.len();
        self.know_leaf(id);
        cut
    }

    /// Has the leaf that ends in `slot`, if there is one, considered for eviction.
    pub(super) fn consider(&mut self, slot: SlotId) {
        if let Some(&id) = self.ends.get(&slot) {
            self.considered.insert((self.node(id).last_use, id));
        }
    }

    /// The least recently used of the leaves that are considered.
    pub(super) fn oldest_considered(&self) -> Option<NodeId> {
        self.considered.first().map(|&(_, id)| id)
    }

    /// A leaf is not considered until it is again.
    pub(super) fn pass_over(&mut self, id: NodeId) {
        self.considered.remove(&(self.node(id).last_use, id));
    }

    fn know_leaf(&mut self, id: NodeId) {
        let node = self.node(id);
        let (end, last_use) = (node.end(), node.last_use);
        self.ends.insert(end, id);
        self.considered.insert((last_use, id));
    }

    fn forget_leaf(&mut self, id: NodeId) {
        self.pass_over(id);
        let end = self.node(id).end();
        self.ends.remove(&end);
    }

    fn place(&mut self, node: Node) -> NodeId {
        if let Some(id) = self.vacant.pop() {
            self.nodes[id.0 as usize] = Some(node);
            return id;
        }
        self.nodes.push(Some(node));
        NodeId(u32::try_from(self.nodes.len() - 1).expect("there are no more nodes than slots"))
    }

    fn children_mut(&mut self, parent: Parent) -> &mut Children {
        match parent {
            Parent::Root(namespace) => self.roots.entry(namespace).or_default(),
            Parent::Node(id) => &mut self.node_mut(id).children,
        }
    }
}
