//! What goes over a connection: a header of 64 bytes with the tag, and a payload. Numbers are little-endian; values
//! go as they lie in memory.
//!
//! Promises that a header which was changed on its way is found out, and that no length is believed before it was
//! compared with what the receiver's own call expects, or with a limit. Never reads or writes a socket.

use std::time::Duration;

use super::super::call::{Call, Kind, Op};
use super::super::failure::Failure;
use super::super::{CollectiveError, StepTag};

/// Values are not turned round: both ends must be machines of this kind.
const _: () = assert!(cfg!(target_endian = "little"), "values go over the wire in little-endian order");

pub(super) const HEAD_BYTES: usize = 64;
/// Of a failure's texts; longer ones are cut.
pub(super) const TEXT_BYTES: usize = 1024;

const DATA: u8 = 0;
const FAILURE: u8 = 1;

/// The header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    frame: u8,
    /// The operation, or which failure.
    code: u8,
    kind: u8,
    from: u16,
    world: u16,
    /// Epoch, step, number of the call, elements; or what describes a failure.
    numbers: [u64; 4],
    /// Bytes of payload behind the header.
    bytes: u64,
    counts: u32,
    payload_crc: u32,
}

impl Head {
    /// Of a frame by which rank `from` sends `payload` in `call`.
    pub(super) fn data(from: usize, world: usize, call: &Call, payload: &[u8]) -> Self {
        Self { payload_crc: crc32fast::hash(payload), ..Self::expected(from, world, call, payload.len()) }
    }

    /// As it would come from rank `from`, but for the checksum of the payload.
    pub(super) fn expected(from: usize, world: usize, call: &Call, bytes: usize) -> Self {
        Self {
            frame: DATA,
            code: call.op.code(),
            kind: call.kind.code(),
            from: small(from),
            world: small(world),
            numbers: [call.step.epoch, call.step.step, call.seq, call.len],
            bytes: bytes as u64,
            counts: call.counts,
            payload_crc: 0,
        }
    }

    /// Whether this is the header `expected`, whatever its payload.
    pub(super) fn fits(&self, expected: &Self) -> bool {
        Self { payload_crc: 0, ..*self } == *expected
    }

    pub(super) fn payload_crc(&self) -> u32 {
        self.payload_crc
    }

    /// What its sender called, where that is not what `ours` expects.
    pub(super) fn describe(&self, ours: &Call) -> String {
        let (Some(op), Some(kind), DATA) = (Op::from_code(self.code), Kind::from_code(self.kind), self.frame)
        else {
            return "something that this version does not know".to_owned();
        };
        let [epoch, step, seq, len] = self.numbers;
        let call = Call { step: StepTag { epoch, step }, seq, op, kind, len, counts: self.counts };
        if call == *ours {
            return format!("{call}, as rank {} of {} with {} bytes", self.from, self.world, self.bytes);
        }
        call.to_string()
    }

    pub(super) fn encode(&self) -> [u8; HEAD_BYTES] {
        let mut head = [0; HEAD_BYTES];
        head[..3].copy_from_slice(&[self.frame, self.code, self.kind]);
        head[4..6].copy_from_slice(&self.from.to_le_bytes());
        head[6..8].copy_from_slice(&self.world.to_le_bytes());
        for (i, number) in self.numbers.iter().enumerate() {
            head[8 + 8 * i..16 + 8 * i].copy_from_slice(&number.to_le_bytes());
        }
        head[40..48].copy_from_slice(&self.bytes.to_le_bytes());
        head[48..52].copy_from_slice(&self.counts.to_le_bytes());
        head[52..56].copy_from_slice(&self.payload_crc.to_le_bytes());
        let crc = crc32fast::hash(&head[..60]);
        head[60..].copy_from_slice(&crc.to_le_bytes());
        head
    }

    /// # Errors
    /// The checksum that stands there and the one that was found, where they differ.
    pub(super) fn decode(head: &[u8; HEAD_BYTES]) -> Result<Self, (u32, u32)> {
        let (expected, found) = (u32_at(head, 60), crc32fast::hash(&head[..60]));
        if expected != found {
            return Err((expected, found));
        }
        Ok(Self {
            frame: head[0],
            code: head[1],
            kind: head[2],
            from: u16_at(head, 4),
            world: u16_at(head, 6),
            numbers: [8, 16, 24, 32].map(|at| u64_at(head, at)),
            bytes: u64_at(head, 40),
            counts: u32_at(head, 48),
            payload_crc: u32_at(head, 52),
        })
    }
}

/// A failure as a whole frame.
pub(super) fn failure(from: usize, world: usize, failure: &Failure) -> Vec<u8> {
    let no_text = String::new();
    let (code, rank, number, texts) = match &failure.error {
        CollectiveError::Mismatch { rank, ours, theirs } => (0, *rank, 0, [ours, theirs]),
        CollectiveError::Timeout { rank, waited, call } => {
            (1, *rank, u64::try_from(waited.as_micros()).unwrap_or(u64::MAX), [call, &no_text])
        }
        CollectiveError::Gone { rank, reason } => (2, *rank, 0, [reason, &no_text]),
        CollectiveError::Damaged { rank, expected, found } => {
            (3, *rank, u64::from(*expected) << 32 | u64::from(*found), [&no_text, &no_text])
        }
        CollectiveError::Aborted { reason } => (4, failure.by, 0, [reason, &no_text]),
        CollectiveError::Transport { reason, .. } => (5, failure.by, 0, [reason, &no_text]),
    };
    let [first, second] = texts.map(|text| &text[..text.floor_char_boundary(TEXT_BYTES / 2)]);
    let text = [first, second].concat();
    let head = Head {
        frame: FAILURE,
        code,
        kind: 0,
        from: small(from),
        world: small(world),
        numbers: [failure.by as u64, rank as u64, number, first.len() as u64],
        bytes: text.len() as u64,
        counts: 0,
        payload_crc: crc32fast::hash(text.as_bytes()),
    };
    [&head.encode()[..], text.as_bytes()].concat()
}

/// The length of the text behind the header of a failure; `None` for other frames.
pub(super) fn failure_text_bytes(head: &Head) -> Option<usize> {
    let bytes = usize::try_from(head.bytes).ok().filter(|&bytes| bytes <= TEXT_BYTES);
    bytes.filter(|_| head.frame == FAILURE)
}

/// The failure that a frame tells of; `None` for one of a kind that this version does not know.
pub(super) fn failure_of(head: &Head, text: &[u8]) -> Option<Failure> {
    let text = String::from_utf8_lossy(text);
    let [by, rank, number, first] = head.numbers;
    let (by, rank) = (usize::try_from(by).ok()?, usize::try_from(rank).ok()?);
    let (first, second) = text.split_at_checked(usize::try_from(first).ok()?)?;
    let (first, second) = (first.to_owned(), second.to_owned());
    let error = match head.code {
        0 => CollectiveError::Mismatch { rank, ours: first, theirs: second },
        1 => CollectiveError::Timeout { rank, waited: Duration::from_micros(number), call: first },
        2 => CollectiveError::Gone { rank, reason: first },
        3 => CollectiveError::Damaged { rank, expected: (number >> 32) as u32, found: number as u32 },
        4 => CollectiveError::Aborted { reason: first },
        5 => CollectiveError::Transport { transport: "tcp", reason: first },
        _ => return None,
    };
    Some(Failure { by, error })
}

/// Ranks and worlds are checked when a rank is made.
fn small(number: usize) -> u16 {
    u16::try_from(number).expect("a group has fewer than 65,536 ranks")
}

fn u16_at(bytes: &[u8; HEAD_BYTES], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8; HEAD_BYTES], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) | u32::from(u16_at(bytes, at + 2)) << 16
}

fn u64_at(bytes: &[u8; HEAD_BYTES], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}
