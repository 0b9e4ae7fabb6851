//! Frames on their way over one connection, out and in at the same time.
//!
//! Promises never to wait: what cannot go on now goes on in the next call. So two ranks that send each other long
//! payloads cannot block each other. Never takes a payload whose header is not the expected one.

use std::io::{ErrorKind, IoSlice};

use super::super::CollectiveError;
use super::super::call::Call;
use super::super::failure::Failure;
use super::connection::Connection;
use super::frame::{self, HEAD_BYTES, Head};
use super::wires::{Wire, Wires};

/// What is to cross one connection.
#[derive(Debug)]
pub(super) struct Transfer<'a> {
    pub wire: &'a Wire,
    outgoing: Option<Outgoing<'a>>,
    incoming: Incoming<'a>,
}

impl<'a> Transfer<'a> {
    /// Sends `payload`. A rank that is not done with this call sends nothing meanwhile, unless something is wrong.
    pub(super) fn send(wire: &'a Wire, call: &'a Call, head: &Head, payload: &'a [u8]) -> Self {
        let incoming = Incoming::nothing(wire.rank, call);
        Self { wire, outgoing: Some(Outgoing::new(head, payload)), incoming }
    }

    /// Receives what fills `place`, in a group of `world` ranks.
    pub(super) fn receive(wire: &'a Wire, call: &'a Call, world: usize, place: &'a mut [u8]) -> Self {
        Self { wire, outgoing: None, incoming: Incoming::new(wire.rank, world, call, place) }
    }

    /// Also sends `payload`.
    pub(super) fn and_send(self, head: &Head, payload: &'a [u8]) -> Self {
        Self { outgoing: Some(Outgoing::new(head, payload)), ..self }
    }

    pub(super) fn is_done(&self) -> bool {
        !self.sends() && self.incoming.is_done()
    }

    /// Whether something is left to send.
    pub(super) fn sends(&self) -> bool {
        self.outgoing.as_ref().is_some_and(|outgoing| !outgoing.is_done())
    }

    /// Moves what can move now; whether anything did.
    pub(super) fn advance(&mut self, wires: &Wires) -> Result<bool, Failure> {
        let sent = match &mut self.outgoing {
            Some(outgoing) if !outgoing.is_done() => outgoing.advance(self.wire),
            _ => Ok(false),
        };
        if self.sends() && matches!(self.incoming.stage, Stage::Done) {
            // The other end waits for the rest of what goes out: from now on only a failure may come.
            self.incoming = Incoming::nothing(self.wire.rank, self.incoming.call);
        }
        // Also when sending failed: the other end may have said why before it left.
        let received = !self.is_done() && self.incoming.advance(&self.wire.connection, wires)?;
        match sent {
            Ok(sent) => Ok(sent || received),
            Err(error) => Err(gone(wires.me, self.wire.rank, &error.to_string())),
        }
    }
}

/// A frame that goes out.
#[derive(Debug)]
pub(super) struct Outgoing<'a> {
    head: [u8; HEAD_BYTES],
    payload: &'a [u8],
    /// Bytes that the connection has taken.
    sent: usize,
    begun: bool,
    /// All bytes are on their way: the connection holds none back.
    flushed: bool,
}

impl<'a> Outgoing<'a> {
    pub(super) fn new(head: &Head, payload: &'a [u8]) -> Self {
        Self { head: head.encode(), payload, sent: 0, begun: false, flushed: false }
    }

    fn is_done(&self) -> bool {
        self.flushed
    }

    fn advance(&mut self, wire: &Wire) -> std::io::Result<bool> {
        // Where a frame cannot begin, the group has just been ended from another thread.
        if !self.begun && !wire.begin_frame() {
            return Err(ErrorKind::BrokenPipe.into());
        }
        self.begun = true;
        let before = self.sent;
        while self.sent < HEAD_BYTES + self.payload.len() {
            let head = IoSlice::new(&self.head[self.sent.min(HEAD_BYTES)..]);
            let payload = IoSlice::new(&self.payload[self.sent.saturating_sub(HEAD_BYTES)..]);
            match wire.connection.write_vectored(&[head, payload]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(bytes) => self.sent += bytes,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(self.sent > before),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.flushed = wire.connection.flush()?;
        if self.flushed {
            wire.end_frame();
        }
        Ok(self.flushed || self.sent > before)
    }
}

/// A frame that is to come.
#[derive(Debug)]
pub(super) struct Incoming<'a> {
    rank: usize,
    /// What this rank calls.
    call: &'a Call,
    /// The header that fits; `None` where only a failure may come, or nothing.
    expected: Option<Head>,
    head: [u8; HEAD_BYTES],
    payload: &'a mut [u8],
    /// Bytes of the current stage.
    got: usize,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    Head,
    Payload {
        crc: u32,
    },
    /// The other rank says why the group is over.
    Text {
        head: Head,
        text: Vec<u8>,
    },
    Done,
}

impl<'a> Incoming<'a> {
    /// A frame of rank `rank`, in the same call as this rank, whose payload is as long as `payload`.
    fn new(rank: usize, world: usize, call: &'a Call, payload: &'a mut [u8]) -> Self {
        let expected = Head::expected(rank, world, call, payload.len());
        Self { expected: Some(expected), payload, ..Self::nothing(rank, call) }
    }

    fn nothing(rank: usize, call: &'a Call) -> Self {
        let (expected, head) = (None, [0; HEAD_BYTES]);
        Self { rank, call, expected, head, payload: &mut [], got: 0, stage: Stage::Head }
    }

    fn is_done(&self) -> bool {
        match self.stage {
            Stage::Head => self.expected.is_none() && self.got == 0,
            Stage::Payload { .. } | Stage::Text { .. } => false,
            Stage::Done => true,
        }
    }

    fn advance(&mut self, connection: &Connection, wires: &Wires) -> Result<bool, Failure> {
        let mut moved = false;
        loop {
            let room = match &mut self.stage {
                Stage::Head => &mut self.head[self.got..],
                Stage::Payload { .. } => &mut self.payload[self.got..],
                Stage::Text { text, .. } => &mut text[self.got..],
                Stage::Done => return Ok(moved),
            };
            if room.is_empty() {
                self.stage = self.next_stage(wires)?;
                self.got = 0;
                continue;
            }
            match connection.read(room) {
                Ok(0) => return Err(gone(wires.me, self.rank, "it closed the connection")),
                Ok(bytes) => {
                    self.got += bytes;
                    moved = true;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(moved),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(gone(wires.me, self.rank, &error.to_string())),
            }
        }
    }

    /// What comes behind the stage that is complete.
    fn next_stage(&self, wires: &Wires) -> Result<Stage, Failure> {
        match &self.stage {
            Stage::Head => {
                let head = Head::decode(&self.head)
                    .map_err(|(expected, found)| self.damaged(wires, expected, found))?;
                if let Some(bytes) = frame::failure_text_bytes(&head) {
                    return Ok(Stage::Text { head, text: vec![0; bytes] });
                }
                match self.expected {
                    Some(expected) if head.fits(&expected) => Ok(Stage::Payload { crc: head.payload_crc() }),
                    _ => Err(Failure::mismatch(wires.me, self.call, self.rank, head.describe(self.call))),
                }
            }
            Stage::Payload { crc } => match crc32fast::hash(self.payload) {
                found if found == *crc => Ok(Stage::Done),
                found => Err(self.damaged(wires, *crc, found)),
            },
            Stage::Text { head, text } => match crc32fast::hash(text) {
                found if found == head.payload_crc() => {
                    Err(frame::failure_of(head, text).unwrap_or_else(|| {
                        gone(wires.me, self.rank, "it failed in a way that this version does not know")
                    }))
                }
                found => Err(self.damaged(wires, head.payload_crc(), found)),
            },
            Stage::Done => Ok(Stage::Done),
        }
    }

    fn damaged(&self, wires: &Wires, expected: u32, found: u32) -> Failure {
        let error = CollectiveError::Damaged { rank: self.rank, expected, found };
        Failure { by: wires.me, error }
    }
}

fn gone(by: usize, rank: usize, reason: &str) -> Failure {
    Failure { by, error: CollectiveError::Gone { rank, reason: reason.to_owned() } }
}
