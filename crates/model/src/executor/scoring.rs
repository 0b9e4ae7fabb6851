//! From a session's evidence to one integer per candidate.

use hawser_common::retention::Aggregation;
use hawser_common::{Position, SlotId};
use hawser_device::cpu::Isa;
use hawser_device::score::{Aggregate, ONE, Pool, ScoreCall, score};
use hawser_kv::retention::Evidence;

use super::Executor;
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
    /// Scores candidates by what is remembered; `None` where nothing is. Ranks add their vectors up (for
    /// [`Aggregation::Max`]: take the larger).
    pub fn score(&mut self, request: &ScoreRequest<'_>) -> Option<Scores> {
        let memory = self.memories.get(&request.memory)?;
        match request.evidence {
            Evidence::Local => None,
            Evidence::Mass => mass_scores(memory, request),
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
        let heads = self.model.config().heads;
        let (kv, isa) = (&self.kv, Isa::best());
        let call = ScoreCall { kv, keys, queries, visible, heads, candidates, pool, aggregate, isa };
        let mut values = vec![0; candidates.len()];
        let scored = score(&self.threads, &call, &mut values, &mut self.scoring);
        Scores { values, non_finite: scored.non_finite }
    }
}

/// Mass is a sum over layers and heads already: one integer each.
fn mass_scores(memory: &QueryMemory, request: &ScoreRequest<'_>) -> Option<Scores> {
    if !memory.has_mass() {
        return None;
    }
    let mut non_finite = 0;
    let value = |&position: &Position| {
        let mass = memory.mass(position);
        non_finite += u64::from(!mass.is_finite());
        // Rows seldom give a key more than a few thousand in all: the rest of the 63 bits is room.
        if mass.is_finite() { (f64::from(mass) * ONE as f64 / 1024.0) as i64 } else { 0 }
    };
    let values = request.positions.iter().map(value).collect();
    Some(Scores { values, non_finite })
}
