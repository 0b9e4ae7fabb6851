//! The connections of one rank, shared with its abort handles.
//!
//! Promises that a group's end is told on every connection where a frame can begin, and that every connection is shut
//! down afterwards, so that whoever waits there goes on. Never waits.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use super::super::failure::Failure;
use super::connection::Connection;
use super::frame;

/// The connection to one rank.
#[derive(Debug)]
pub(super) struct Wire {
    /// The rank at the other end.
    pub rank: usize,
    pub connection: Connection,
    /// Somebody is inside a frame: nobody else may write.
    busy: AtomicBool,
}

impl Wire {
    pub(super) fn new(rank: usize, connection: Connection) -> Self {
        Self { rank, connection, busy: AtomicBool::new(false) }
    }

    /// Begins a frame, unless somebody is inside one.
    pub(super) fn begin_frame(&self) -> bool {
        !self.busy.swap(true, Ordering::SeqCst)
    }

    /// The frame is written.
    pub(super) fn end_frame(&self) {
        self.busy.store(false, Ordering::SeqCst);
    }
}

/// All connections of a rank: the hub has one to each other rank, a spoke one to the hub.
#[derive(Debug)]
pub(super) struct Wires {
    pub me: usize,
    pub world: usize,
    pub wires: Vec<Wire>,
    failure: OnceLock<Failure>,
}

impl Wires {
    pub(super) fn new(me: usize, world: usize, wires: Vec<Wire>) -> Self {
        Self { me, world, wires, failure: OnceLock::new() }
    }

    pub(super) fn failure(&self) -> Option<&Failure> {
        self.failure.get()
    }

    /// Ends the group, unless it has ended, tells the others, and returns how it ended.
    pub(super) fn fail(&self, failure: Failure) -> &Failure {
        let mut found = false;
        let first = self.failure.get_or_init(|| {
            found = true;
            failure
        });
        if found {
            let frame = frame::failure(self.me, self.world, first);
            for wire in &self.wires {
                // The frame stays begun: nothing comes behind it. A connection that takes no frame, or only a part,
                // is shut down all the same: the other end then knows that something failed, but not what.
                wire.connection.end(wire.begin_frame().then_some(&*frame));
            }
        }
        first
    }
}
