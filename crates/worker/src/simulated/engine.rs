//! The simulated engine: a hash per slot stands for its row.
//!
//! A row's hash is that of its token and of the row before it, so it stands for the whole history up to it. The next
//! token is drawn from the last row's hash. A scheduler that gave a sequence another one's row would change its answer.

use std::time::Duration;

use hawser_common::SlotId;
use hawser_device::collective::{CallTimer, StepTag, Traffic};
use hawser_kv::RowMove;
use hawser_model::executor::{
    Batch, LogitRows, Logits, MemoryId, MemoryState, Recursion, ScoreRequest, Scores, Sequence, StepError,
};

use super::cost::{SimulatedOptions, Work};
use super::text::{END, VOCABULARY};
use crate::ranks::{Engine, EngineFigures, FormError, Formation, Leader, Rank};
use crate::scheduler::RankChange;

/// What answers are made of: words of a few letters.
const LETTERS: &[u8; 32] = b"eeetttaaooiinnsshhrrddlu        ";
/// A row that moves to another group.
const ROW_BYTES: usize = size_of::<u64>();
/// Before the first token.
const ORIGIN: u64 = 0x9e37_79b9_7f4a_7c15;
/// How much likelier the drawn token is than any other: whatever the sampling, it is the one.
const CERTAIN: f32 = 100.0;

/// Runs steps without a model.
#[derive(Debug)]
pub struct SimulatedEngine {
    options: SimulatedOptions,
    /// Per slot, the hash of the history up to its row.
    rows: Vec<u64>,
}

impl SimulatedEngine {
    /// An engine with this many slots, the dead slot and the archive included.
    #[must_use]
    pub fn new(options: SimulatedOptions, slots: usize) -> Self {
        Self { options, rows: vec![0; slots] }
    }

    fn row(&self, slot: SlotId) -> u64 {
        self.rows.get(slot.index()).copied().unwrap_or(0)
    }

    fn set(&mut self, slot: SlotId, row: u64) -> bool {
        let held = self.rows.get_mut(slot.index()).filter(|_| !slot.is_dead());
        held.is_some_and(|held| {
            *held = row;
            true
        })
    }

    /// Writes a sequence's rows and adds the logits that it asks for.
    fn run(
        &mut self,
        batch: &Batch<'_>,
        sequence: &Sequence<'_>,
        logits: &mut Vec<f32>,
    ) -> Result<(), StepError> {
        let mut history = sequence.context.last().map_or(ORIGIN, |&slot| self.row(slot));
        for row in sequence.rows.clone() {
            let (token, slot) = (batch.tokens[row], batch.slots[row]);
            history = mix(history ^ u64::from(token).wrapping_add(1));
            if !self.set(slot, history) {
                return Err(StepError::WriteSlot { row, slot: slot.0, slots: self.rows.len() });
            }
            let wanted = match sequence.logits {
                LogitRows::None => false,
                LogitRows::Last => row + 1 == sequence.rows.end,
                LogitRows::All => true,
            };
            if wanted {
                let start = logits.len();
                logits.resize(start + VOCABULARY, 0.0);
                logits[start + next_token(history, token, self.options.answer_tokens)] = CERTAIN;
            }
        }
        Ok(())
    }
}

impl Engine for SimulatedEngine {
    fn begin(&mut self, _step: StepTag) {}

    fn change(&mut self, change: &RankChange) {
        match change {
            RankChange::Move(RowMove::Copy { from, to }) => {
                self.set(*to, self.row(*from));
            }
            RankChange::Move(RowMove::Digest { of, to }) => {
                let digest = of.iter().fold(ORIGIN, |digest, &slot| mix(digest ^ self.row(slot)));
                self.set(*to, digest);
            }
            // What is remembered of queries is in the rows already.
            RankChange::Begin(_)
            | RankChange::TakeBack(_)
            | RankChange::Fork { .. }
            | RankChange::Forget(_) => {}
        }
    }

    fn step(&mut self, batch: &Batch<'_>) -> Result<Logits, StepError> {
        let (tokens, positions, slots) = (batch.tokens.len(), batch.positions.len(), batch.slots.len());
        if positions != tokens || slots != tokens {
            return Err(StepError::Lengths { tokens, positions, slots });
        }
        let (mut logits, mut live) = (Vec::new(), 0);
        for sequence in batch.sequences {
            self.run(batch, sequence, &mut logits)?;
            live += sequence.context.len() + sequence.rows.len();
        }
        sleep(self.options.step_time(Work { rows: tokens, live }));
        Ok(Logits::new(VOCABULARY, logits))
    }

    fn remember(&mut self, _memory: MemoryId, _recursion: Recursion) {}

    fn score(&mut self, request: &ScoreRequest<'_>) -> Result<Option<Scores>, StepError> {
        let score = |&index: &u32| {
            let row = request.live.get(index as usize).map_or(0, |&slot| self.row(slot));
            // 32 bits: a sum over a session's rows stays a number.
            i64::try_from(mix(row) >> 32).unwrap_or(0)
        };
        let values: Vec<i64> = request.candidates.iter().map(score).collect();
        sleep(self.options.score_time(values.len()));
        Ok(Some(Scores { values, non_finite: 0 }))
    }

    fn figures(&self) -> EngineFigures {
        let kv_bytes = size_of_val(&self.rows[..]) as u64;
        EngineFigures { weight_bytes: 0, kv_bytes, threads: 1, across: Duration::ZERO }
    }

    fn sizes(&self) -> (usize, usize) {
        (ROW_BYTES, 0)
    }

    fn read_rows(&mut self, slots: &[SlotId]) -> Result<Vec<u8>, StepError> {
        Ok(slots.iter().flat_map(|&slot| self.row(slot).to_le_bytes()).collect())
    }

    fn write_rows(&mut self, slots: &[SlotId], bytes: &[u8]) {
        for (&slot, row) in slots.iter().zip(bytes.as_chunks::<ROW_BYTES>().0) {
            self.set(slot, u64::from_le_bytes(*row));
        }
    }

    /// Scores are hashes of rows: nothing is remembered.
    fn read_memory(&mut self, _id: MemoryId) -> Result<Option<MemoryState>, StepError> {
        Ok(None)
    }

    fn write_memory(&mut self, _id: MemoryId, _state: &MemoryState) {}

    fn call_timer(&self) -> Option<&CallTimer> {
        None
    }

    fn traffic(&self) -> Traffic {
        Traffic::default()
    }
}

/// Index of the token that follows a history whose last token is `last`.
fn next_token(history: u64, last: u32, answer_tokens: u64) -> usize {
    let drawn = mix(history.rotate_left(29));
    // An answer is never empty: it begins after the line end of its header.
    let may_end = last < u32::from(u8::MAX) && last != u32::from(b'\n');
    if may_end && answer_tokens > 0 && (drawn >> 8).is_multiple_of(answer_tokens) {
        return END as usize;
    }
    usize::from(LETTERS[(drawn % LETTERS.len() as u64) as usize])
}

/// The finaliser of SplitMix64 (Steele, Lea and Flood, 2014).
fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(ORIGIN);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

fn sleep(time: Duration) {
    if !time.is_zero() {
        std::thread::sleep(time);
    }
}

/// A group of one simulated rank, formed at once.
#[derive(Debug)]
pub struct SimulatedFormation {
    pub options: SimulatedOptions,
    /// The dead slot and the archive included.
    pub slots: usize,
}

impl Formation for SimulatedFormation {
    fn world(&self) -> usize {
        1
    }

    fn form(&mut self, epoch: u64) -> Result<Leader, FormError> {
        let engine = SimulatedEngine::new(self.options.clone(), self.slots);
        Ok(Leader::alone(Rank::new(engine, epoch)))
    }
}

#[cfg(test)]
mod tests {
    use hawser_common::Position;
    use proptest::prelude::*;

    use super::*;

    const SLOTS: usize = 512;

    fn engine() -> SimulatedEngine {
        let options = SimulatedOptions { time_scale: 0.0, ..SimulatedOptions::default() };
        SimulatedEngine::new(options, SLOTS)
    }

    /// Runs `tokens` in chunks that end at `cuts`, from `slots` on, and gives the token that comes next.
    fn next(engine: &mut SimulatedEngine, tokens: &[u32], cuts: &[usize], slots: &[u32]) -> usize {
        let slots: Vec<SlotId> = slots.iter().copied().map(SlotId).collect();
        let mut ends: Vec<usize> = cuts.iter().map(|cut| cut % tokens.len()).filter(|&end| end > 0).collect();
        ends.push(tokens.len());
        ends.sort_unstable();
        ends.dedup();
        let (mut start, mut logits) = (0, Vec::new());
        for end in ends {
            let sequence = Sequence {
                rows: 0..end - start,
                context: &slots[..start],
                after: 0,
                positions: &[],
                logits: LogitRows::Last,
                observe: None,
            };
            let positions: Vec<Position> = (start..end).map(|at| Position(at as u32)).collect();
            let batch = Batch {
                tokens: &tokens[start..end],
                positions: &positions,
                slots: &slots[start..end],
                sequences: &[sequence],
            };
            logits = engine.step(&batch).unwrap().row(0).to_vec();
            start = end;
        }
        logits.iter().position(|&logit| logit == CERTAIN).unwrap()
    }

    proptest! {
        /// The answer depends on the tokens, and neither on chunks nor on slots.
        #[test]
        fn the_same_history_gives_the_same_token(
            tokens in prop::collection::vec(0u32..258, 1..60),
            cuts in prop::collection::vec(0usize..60, 0..5),
            offset in 1u32..400,
        ) {
            let mut engine = engine();
            let slots: Vec<u32> = (1..=60).collect();
            let moved: Vec<u32> = (0..60).map(|at| offset + at).rev().collect();
            let whole = next(&mut engine, &tokens, &[], &slots);
            prop_assert_eq!(next(&mut engine, &tokens, &cuts, &moved), whole);
        }
    }

    #[test]
    fn answers_end_about_where_they_should_and_are_never_empty() {
        let (mut ends, draws) = (0u64, 100_000u64);
        for n in 0..draws {
            ends += u64::from(next_token(mix(n), 97, 100) == END as usize);
            assert_ne!(next_token(mix(n), 10, 1), END as usize);
            assert_ne!(next_token(mix(n), 97, 0), END as usize);
        }
        assert!((800..1_200).contains(&ends), "{ends} of {draws}");
    }

    #[test]
    fn a_slot_outside_the_pool_is_refused() {
        let mut engine = engine();
        let sequence = Sequence {
            rows: 0..1,
            context: &[],
            after: 0,
            positions: &[],
            logits: LogitRows::Last,
            observe: None,
        };
        for slot in [0, u32::try_from(SLOTS).unwrap()] {
            let batch = Batch {
                tokens: &[7],
                positions: &[Position(0)],
                slots: &[SlotId(slot)],
                sequences: std::slice::from_ref(&sequence),
            };
            assert!(matches!(engine.step(&batch), Err(StepError::WriteSlot { .. })), "{slot}");
        }
    }
}
