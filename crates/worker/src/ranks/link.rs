//! The link on which commands travel: a group of its own beside the one that sums, with the same ranks.
//!
//! A command of a decode step fits one message. The leader says something at least every [`BEAT`], so that a rank which
//! hears nothing for the link's timeout knows that the leader is gone, and the other way round.

use std::time::Duration;

use hawser_device::collective::{
    AbortHandle, CallTimer, Collective, CollectiveError, Reduce, StepTag, Timed, Traffic, Values,
};
use serde::{Deserialize, Serialize};

use super::command::Command;
use super::rank::{Rank, RankError};
use super::report::RankFigures;

/// How often an idle leader says that it is there.
pub const BEAT: Duration = Duration::from_millis(400);

/// 64-bit words of the first message: announcement, checksum, and as much of the command as fits.
const HEAD_WORDS: usize = 256;
/// Longest command: whole tables of many long sessions are a few MiB.
const MAX_BYTES: usize = 256 << 20;

/// What one of a group's transports is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Channel {
    /// The leader's commands: a [`Link`].
    Commands,
    /// What the executors add up.
    Sums,
}

/// One rank's end.
#[derive(Debug)]
pub struct Link {
    group: Timed,
    words: Vec<i64>,
    /// What the ranks said of themselves with the last comparison.
    figures: Vec<RankFigures>,
}

impl Link {
    #[must_use]
    pub fn new(group: Box<dyn Collective>) -> Self {
        Self { group: Timed::new(group), words: Vec::new(), figures: Vec::new() }
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

    /// The time that this rank spends in calls on the link. A follower waits there for the next command.
    #[must_use]
    pub fn timer(&self) -> &CallTimer {
        self.group.timer()
    }

    /// What the ranks said of themselves with the last comparison, in their order; empty before the first.
    #[must_use]
    pub fn figures(&self) -> &[RankFigures] {
        &self.figures
    }

    /// Says a command to all ranks.
    pub(super) fn send(&mut self, command: &Command) -> Result<(), RankError> {
        let (bytes, checksum) = command.encode();
        self.words.clear();
        let announcement = announce(bytes.len());
        if announced(announcement) != Some(bytes.len()) {
            return Err(RankError::Length { word: bytes.len() as u64, most: MAX_BYTES });
        }
        self.words.push(announcement);
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
        let damaged = RankError::Length { word: self.words[0].cast_unsigned(), most: MAX_BYTES };
        let bytes = announced(self.words[0]).ok_or(damaged)?;
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

    /// After a command that calls for it: all ranks have the same tables, or all say that they do not. With it travels
    /// what each says of itself.
    pub(super) fn compare(&mut self, command: &Command, rank: &Rank) -> Result<(), RankError> {
        if !command.compares {
            return Ok(());
        }
        let own = rank.tables().digest();
        self.words.clear();
        // The largest and, negated, the smallest: equal only if all are.
        self.words.extend([own, -own]);
        // One place per rank, of which each fills its own: the largest is what it filled in.
        self.words.resize(2 + self.world() * RankFigures::COUNT, 0);
        let place = 2 + self.rank() * RankFigures::COUNT;
        self.words[place..place + RankFigures::COUNT].copy_from_slice(&rank.figures().numbers());
        self.group.all_reduce(Values::I64(&mut self.words), Reduce::Max)?;
        let (ends, figures) = self.words.split_at(2);
        self.figures.clear();
        self.figures.extend(figures.chunks_exact(RankFigures::COUNT).map(RankFigures::of));
        if ends[0] == -ends[1] { Ok(()) } else { Err(RankError::Tables { step: command.step }) }
    }
}

/// A length, with its complement above it: a bit that changed is not taken for another length, for which this rank would
/// wait in vain.
fn announce(bytes: usize) -> i64 {
    let bytes = bytes as u32;
    (u64::from(bytes) | u64::from(!bytes) << 32).cast_signed()
}

/// The length that was announced; `None` for a word that announces none.
fn announced(word: i64) -> Option<usize> {
    let word = word.cast_unsigned();
    let (bytes, check) = (word as u32, (word >> 32) as u32);
    (bytes == !check && bytes as usize <= MAX_BYTES).then_some(bytes as usize)
}

fn tag(epoch: u64, step: u64) -> StepTag {
    StepTag { epoch, step }
}

impl From<CollectiveError> for RankError {
    fn from(error: CollectiveError) -> Self {
        Self::Group(error)
    }
}

#[cfg(test)]
mod tests {
    use hawser_device::collective::{Fault, Faulty, ThreadGroup};
    use proptest::prelude::*;

    use super::*;
    use crate::ranks::Work;
    use crate::scheduler::{RankChange, StepPlan};

    /// A command that fits the first message, or one that does not.
    fn command(tokens: u32) -> Command {
        let plan = StepPlan {
            changes: vec![RankChange::Forget(hawser_model::executor::MemoryId(7))],
            tokens: (0..tokens).map(|token| token * 7_919).collect(),
            ..StepPlan::default()
        };
        Command { epoch: 3, step: 41, work: Work::Run(plan.into()), compares: false }
    }

    /// What a follower hears where its end has a fault at its first or second message.
    fn heard(command: &Command, at: u64, fault: Option<Fault>) -> Result<Command, RankError> {
        let mut ends = ThreadGroup::new(2, Duration::from_secs(20)).into_iter();
        let leader = ends.next().expect("two ranks");
        let follower = Box::new(ends.next().expect("two ranks"));
        let follower: Box<dyn Collective> = match fault {
            Some(fault) => Box::new(Faulty::new(follower, at, fault)),
            None => follower,
        };
        let mut follower = Link::new(follower);
        std::thread::scope(|scope| {
            let hears = scope.spawn(move || follower.receive(3, 41));
            let mut leader = Link::new(Box::new(leader));
            let sent = leader.send(command);
            assert!(sent.is_ok() || fault.is_some(), "{sent:?}");
            hears.join().expect("a follower does not panic")
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// A bit of the announcement, the checksum or the command itself, wherever it lies.
        #[test]
        fn e9_a_bit_of_a_command_flipped_in_flight_is_found_by_its_rank(
            long in any::<bool>(), word in any::<usize>(), bit in 0u32..64,
        ) {
            let command = command(if long { 2_000 } else { 40 });
            prop_assert_eq!(heard(&command, 0, None).expect("nothing is wrong"), command.clone());
            let bytes = command.encode().0.len();
            let first = (2 + bytes / 8).min(HEAD_WORDS);
            let word = word % (2 + bytes / 8);
            let (at, element) = if word < first { (0, word) } else { (1, word - first) };
            let error = heard(&command, at, Some(Fault::FlipReceived { element, bit })).expect_err("a flipped bit");
            prop_assert!(matches!(error, RankError::Command(_) | RankError::Length { .. }), "{}", error);
        }
    }

    #[test]
    fn lengths_are_announced_and_nothing_else_is() {
        for bytes in [0, 1, 4_096, MAX_BYTES] {
            let word = announce(bytes);
            assert_eq!(announced(word), Some(bytes));
            for bit in 0..64 {
                assert_eq!(announced(word ^ (1 << bit)), None, "{bytes}, bit {bit}");
            }
        }
        assert_eq!(announced(announce(MAX_BYTES + 1)), None);
    }
}
