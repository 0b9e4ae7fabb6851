//! The link on which commands travel: a group of its own beside the one that sums, with the same ranks.
//!
//! A command of a decode step fits one message. The leader says something at least every [`BEAT`], so that a rank which
//! hears nothing for the link's timeout knows that the leader is gone, and the other way round.

use std::time::Duration;

use hawser_device::collective::{AbortHandle, Collective, CollectiveError, Reduce, StepTag, Traffic, Values};

use super::command::{Command, Work};
use super::rank::RankError;

/// How often an idle leader says that it is there.
pub const BEAT: Duration = Duration::from_millis(400);

/// 64-bit words of the first message: length, checksum, and as much of the command as fits.
const HEAD_WORDS: usize = 256;
/// Longest command: whole tables of many long sessions are a few MiB.
const MAX_BYTES: usize = 256 << 20;
/// Steps between two comparisons of the tables.
const COMPARE_EVERY: u64 = 64;

/// One rank's end.
#[derive(Debug)]
pub struct Link {
    group: Box<dyn Collective>,
    words: Vec<i64>,
}

impl Link {
    #[must_use]
    pub fn new(group: Box<dyn Collective>) -> Self {
        Self { group, words: Vec::new() }
    }

    #[must_use]
    pub fn rank(&self) -> usize {
        self.group.rank()
    }

    #[must_use]
    pub fn world(&self) -> usize {
        self.group.world()
    }

    #[must_use]
    pub fn abort_handle(&self) -> AbortHandle {
        self.group.abort_handle()
    }

    #[must_use]
    pub fn traffic(&self) -> Traffic {
        self.group.traffic()
    }

    /// Says a command to all ranks.
    pub(super) fn send(&mut self, command: &Command) -> Result<(), RankError> {
        let (bytes, checksum) = command.encode();
        self.words.clear();
        self.words.push(i64::try_from(bytes.len()).expect("a command is no larger than memory"));
        self.words.push(checksum.cast_signed());
        let word = |chunk: &[u8]| {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            i64::from_le_bytes(word)
        };
        self.words.extend(bytes.chunks(8).map(word));
        self.words.resize(self.words.len().max(HEAD_WORDS), 0);
        self.group.begin_step(tag(command.epoch, command.step));
        let (head, rest) = self.words.split_at_mut(HEAD_WORDS);
        self.group.broadcast(Values::I64(head))?;
        if !rest.is_empty() {
            self.group.broadcast(Values::I64(rest))?;
        }
        Ok(())
    }

    /// Waits for the command of a step.
    pub(super) fn receive(&mut self, epoch: u64, step: u64) -> Result<Command, RankError> {
        self.group.begin_step(tag(epoch, step));
        self.words.clear();
        self.words.resize(HEAD_WORDS, 0);
        self.group.broadcast(Values::I64(&mut self.words))?;
        let bytes = usize::try_from(self.words[0]).ok().filter(|&bytes| bytes <= MAX_BYTES);
        let bytes = bytes.ok_or(RankError::Length { bytes: self.words[0], most: MAX_BYTES })?;
        let checksum = self.words[1].cast_unsigned();
        let words = 2 + bytes.div_ceil(8);
        if words > HEAD_WORDS {
            self.words.resize(words, 0);
            self.group.broadcast(Values::I64(&mut self.words[HEAD_WORDS..]))?;
        }
        let mut message: Vec<u8> = self.words[2..].iter().flat_map(|word| word.to_le_bytes()).collect();
        message.truncate(bytes);
        Ok(Command::decode(&message, checksum)?)
    }

    /// After a command that calls for it: all ranks have the same tables, or all say that they do not.
    pub(super) fn compare(&mut self, command: &Command, digest: impl Fn() -> i64) -> Result<(), RankError> {
        let due = match command.work {
            Work::Beat => true,
            Work::Score(..) => cfg!(debug_assertions),
            Work::Run(_) => command.step.is_multiple_of(COMPARE_EVERY),
            Work::ReadRows(_)
            | Work::WriteRows(..)
            | Work::ReadMemory(_)
            | Work::WriteMemory(..)
            | Work::End => false,
        };
        if !due {
            return Ok(());
        }
        let own = digest();
        // The largest and, negated, the smallest: equal only if all are.
        let mut ends = [own, -own];
        self.group.all_reduce(Values::I64(&mut ends), Reduce::Max)?;
        if ends[0] == -ends[1] { Ok(()) } else { Err(RankError::Tables { step: command.step }) }
    }
}

fn tag(epoch: u64, step: u64) -> StepTag {
    StepTag { epoch, step }
}

impl From<CollectiveError> for RankError {
    fn from(error: CollectiveError) -> Self {
        Self::Group(error)
    }
}
