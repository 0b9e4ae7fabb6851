//! From a session's evidence to one integer per candidate.

use hawser_common::retention::Aggregation;
use hawser_common::{Position, SlotId};
use hawser_device::collective::Reduce;
use hawser_device::cpu::Isa;
use hawser_device::score::{Aggregate, Pool, ScoreCall, score};
use hawser_kv::retention::Evidence;

use super::Executor;
use super::batch::StepError;
use super::memory::{MemoryId, QueryMemory, Recursion};

/// What is to be scored, and by what.
#[derive(Clone, Copy, Debug)]
pub struct ScoreRequest<'a> {
    pub memory: MemoryId,
    pub evidence: Evidence,
    /// For [`Evidence::Memory`]: score with the memory as if the span ended here, without ending it.
    pub peek: Option<Recursion>,
    /// Live slots in position order.
    pub live: &'a [SlotId],
    /// Indexes into `live`, ascending.
    pub candidates: &'a [u32],
    /// Their positions.
    pub positions: &'a [Position],
    pub aggregation: Aggregation,
    /// How many candidates stay: a vote goes to an eighth of them.
    pub keep: usize,
    /// Positions over which a window's scores are averaged.
    pub pool: usize,
    /// The window's rows are the last live positions, and see nothing after themselves.
    pub causal: bool,
}

/// Scores of an event's candidates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scores {
    pub values: Vec<i64>,
    /// Shares that were no finite number and counted as 0.
    pub non_finite: u64,
}

impl Executor {
    /// Scores candidates by what is remembered; `None` where nothing is, and on ranks that do not lead. Each rank
    /// scores with its own query heads, and the leader gets the sum over ranks, or for [`Aggregation::Max`] the largest:
    /// the scores of one machine, since heads are aggregated as integers.
    ///
    /// Whether anything is remembered, and so whether ranks are called, is the same on all ranks: they observe the same
    /// rows.
    ///
    /// # Errors
    /// [`StepError::Group`] where the ranks do not agree or do not answer: the group is over.
    pub fn score(&mut self, request: &ScoreRequest<'_>) -> Result<Option<Scores>, StepError> {
        let Some(mut scores) = self.own_scores(request) else { return Ok(None) };
        if self.group.is_alone() {
            return Ok(Some(scores));
        }
        let by = match (request.evidence, request.aggregation) {
            (Evidence::Memory | Evidence::Window, Aggregation::Max) => Reduce::Max,
            _ => Reduce::Sum,
        };
        self.reduce(&mut scores, by)?;
        Ok((self.group.rank() == 0).then_some(scores))
    }

    /// One reduction for scores and counts. Behind the scores stands one number per rank, of which each rank sets its
    /// own: a sum as well as a maximum leaves them as they are. A check follows, so that a number which changed on its
    /// way is found at this prune. For a sum it is each rank's own total, which add up to the total of the sums. A maximum
    /// has no such total, and everything is there twice: a number that changed in one of the copies makes their maxima
    /// differ, or it changed nothing.
    fn reduce(&mut self, scores: &mut Scores, by: Reduce) -> Result<(), StepError> {
        let (rank, world) = (self.group.rank(), self.group.world());
        let count = scores.values.len();
        scores.values.resize(count + world, 0);
        scores.values[count + rank] = scores.non_finite.min(i64::MAX as u64) as i64;
        match by {
            Reduce::Sum => scores.values.push(total(&scores.values)),
            Reduce::Max => scores.values.extend_from_within(..),
        }
        self.group.reduce_to_leader(&mut scores.values, by)?;
        let check = scores.values.split_off(count + world);
        if rank == 0 {
            match by {
                Reduce::Sum => same(&check, &[total(&scores.values)])?,
                Reduce::Max => same(&check, &scores.values)?,
            }
        }
        scores.non_finite = scores.values.drain(count..).map(|count| count as u64).sum();
        Ok(())
    }

    fn own_scores(&mut self, request: &ScoreRequest<'_>) -> Option<Scores> {
        let memory = self.memories.get(&request.memory)?;
        match request.evidence {
            Evidence::Local => None,
            Evidence::Mass => mass_scores(memory, request, self.group.world()),
            Evidence::Memory => {
                let peeked = request.peek.and_then(|recursion| memory.with_span(recursion));
                let queries = match peeked {
                    Some(queries) => queries,
                    None => memory.memory()?.to_vec(),
                };
                // The softmax is taken over the candidates alone.
                let keys: Vec<SlotId> =
                    request.candidates.iter().map(|&index| request.live[index as usize]).collect();
                let all: Vec<u32> = (0..).take(keys.len()).collect();
                let visible = [keys.len()];
                Some(self.attention_scores(request, &queries, &keys, &visible, (&all, None)))
            }
            Evidence::Window => {
                let rows = memory.held();
                if rows == 0 {
                    return None;
                }
                let queries = memory.window();
                let all = request.live.len();
                let sees =
                    |row: usize| if request.causal { (all + 1 + row).saturating_sub(rows) } else { all };
                let visible: Vec<usize> = (0..rows).map(sees).collect();
                let pool = Pool { width: request.pool, positions: request.positions };
                let pool = (request.pool > 1).then_some(pool);
                Some(self.attention_scores(
                    request,
                    &queries,
                    request.live,
                    &visible,
                    (request.candidates, pool),
                ))
            }
        }
    }

    fn attention_scores(
        &mut self,
        request: &ScoreRequest<'_>,
        queries: &[f32],
        keys: &[SlotId],
        visible: &[usize],
        (candidates, pool): (&[u32], Option<Pool<'_>>),
    ) -> Scores {
        let aggregate = match request.aggregation {
            Aggregation::Sum => Aggregate::Sum,
            Aggregation::Max => Aggregate::Max,
            Aggregation::Vote => Aggregate::Vote { top: request.keep.div_ceil(8) },
        };
        let heads = self.model.shard().heads.readers();
        let (kv, isa) = (&self.kv, Isa::best());
        let call = ScoreCall { kv, keys, queries, visible, heads, candidates, pool, aggregate, isa };
        let mut values = vec![0; candidates.len()];
        let scored = score(&self.threads, &call, &mut values, &mut self.scoring);
        Scores { values, non_finite: scored.non_finite }
    }
}

fn same(check: &[i64], numbers: &[i64]) -> Result<(), StepError> {
    match check.iter().zip(numbers).find(|(expected, found)| expected != found) {
        Some((&expected, &found)) => Err(StepError::Scores { expected, found }),
        None => Ok(()),
    }
}

/// Wrapping, so that totals of ranks add up to the total of their sums.
fn total(scores: &[i64]) -> i64 {
    scores.iter().fold(0, |sum: i64, &score| sum.wrapping_add(score))
}

/// Mass is a sum over layers and heads already: one integer each. What would not fit a sum over ranks is cut off.
fn mass_scores(memory: &QueryMemory, request: &ScoreRequest<'_>, world: usize) -> Option<Scores> {
    let most = i64::MAX / i64::try_from(world).unwrap_or(i64::MAX);
    let value = |&position: &Position| memory.mass(position).min(most);
    memory.has_mass().then(|| Scores {
        values: request.positions.iter().map(value).collect(),
        non_finite: memory.mass_non_finite(),
    })
}
