//! The shape of the prefix tree: nodes in one vector, their links, and the leaves in order of last use.
//!
//! Promises that a node is found under the first token of its rows, that it was used no later than the node above it,
//! that a namespace without nodes has no entry, and that the order of leaves has every node without children, once.
//! Never knows who holds a slot.

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
    pub(super) rows: Box<[Row]>,
    pub(super) children: Children,
    pub(super) last_use: Tick,
}

/// All nodes of all namespaces.
#[derive(Debug, Default)]
pub(super) struct Nodes {
    pub(super) nodes: Vec<Option<Node>>,
    pub(super) vacant: Vec<NodeId>,
    pub(super) roots: HashMap<TenantId, Children>,
    pub(super) leaves: BTreeSet<(Tick, NodeId)>,
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
    pub(super) fn attach(&mut self, parent: Parent, rows: Box<[Row]>, now: Tick) -> NodeId {
        assert!(!rows.is_empty(), "a node has rows");
        let token = rows[0].token;
        self.rows += rows.len();
        if let Some(above) = parent.node() {
            let last_use = self.node(above).last_use;
            self.leaves.remove(&(last_use, above));
        }
        let id = self.place(Node { parent: parent.clone(), rows, children: Children::new(), last_use: now });
        self.leaves.insert((now, id));
        let other = self.children_mut(parent).insert(token, id);
        assert!(other.is_none(), "a row in the tree is never replaced");
        id
    }

    /// Makes two nodes of one and returns the upper, which has the first `at` rows. The lower one keeps the id, so
    /// that links from below and the order of leaves stay as they are.
    pub(super) fn split(&mut self, id: NodeId, at: usize) -> NodeId {
        let node = self.node_mut(id);
        let (upper, lower): (Box<[Row]>, Box<[Row]>) = (node.rows[..at].into(), node.rows[at..].into());
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
            if self.leaves.remove(&(before, id)) {
                self.leaves.insert((now, id));
            }
        }
    }

    /// Takes a leaf out. Returns what it hung from, and its rows.
    pub(super) fn detach(&mut self, id: NodeId) -> (Parent, Box<[Row]>) {
        let node = self.nodes[id.0 as usize].take().expect("a link leads to a node");
        assert!(node.children.is_empty(), "only a leaf is taken out");
        self.vacant.push(id);
        self.leaves.remove(&(node.last_use, id));
        self.rows -= node.rows.len();
        let siblings = self.children_mut(node.parent.clone());
        siblings.remove(&node.rows[0].token);
        if siblings.is_empty() {
            match &node.parent {
                Parent::Root(namespace) => {
                    self.roots.remove(namespace);
                }
                Parent::Node(above) => {
                    self.leaves.insert((self.node(*above).last_use, *above));
                }
            }
        }
        (node.parent, node.rows)
    }

    /// Cuts a leaf down to its first `keep` rows, at least one, and returns the others.
    pub(super) fn shorten(&mut self, id: NodeId, keep: usize) -> Box<[Row]> {
        let node = self.node_mut(id);
        assert!(node.children.is_empty() && keep > 0, "only the end of a leaf is cut off");
        let cut: Box<[Row]> = node.rows[keep..].into();
        node.rows = node.rows[..keep].into();
        self.rows -= cut.len();
        cut
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
