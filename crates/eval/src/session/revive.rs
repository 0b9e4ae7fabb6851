//! Revival in a replay, as a worker does it: from the archive, or computed again.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use hawser_common::retention::Policy;
use hawser_common::{Position, SlotId};
use hawser_kv::RowMove;
use hawser_kv::retention::{
    Dead, Event, Evidence, Exchange, PruneRecord, Situation, exchange, refill_cost, refill_runs,
    revival_evidence,
};
use hawser_model::executor::{Batch, LogitRows, ScoreRequest, Sequence};

use super::{Engine, Session, SessionError, position};

/// What a revival did.
#[derive(Clone, Debug)]
pub struct Revived {
    pub exchanged: Exchange,
    /// Keys that were scored.
    pub scored: usize,
    /// Rows copied back.
    pub copied: usize,
    /// Rows that came back and were computed for it, and rows computed in all: those that these see too.
    pub refilled: usize,
    pub computed: usize,
}

/// Dead positions that come back together, and the key that stands for them.
struct Candidate {
    digest: SlotId,
    positions: Vec<Position>,
}

impl Engine {
    /// Brings dead positions back that the request attends to.
    ///
    /// # Errors
    /// [`SessionError`]: the pool is too small, or a step fails.
    pub fn revive(
        &mut self,
        session: &mut Session,
        span: &Range<u32>,
    ) -> Result<Option<Revived>, SessionError> {
        let archived = self.archived(session);
        let missing = missing(session, &archived);
        let blocks = self.candidates(session, &archived, &missing);
        if !session.retention.revive || !session.retention.prunes() || blocks.is_empty() {
            return Ok(None);
        }
        let Some((exchanged, scored)) = self.choose(session, span, &blocks)? else { return Ok(None) };
        let back = self.bring_back(session, exchanged)?;
        Ok(Some(Revived { scored, ..back }))
    }

    /// Carries an exchange out: of dead positions, copies what the archive has and computes the rest, which is exact.
    ///
    /// # Errors
    /// As [`Engine::revive`].
    pub fn bring_back(
        &mut self,
        session: &mut Session,
        exchanged: Exchange,
    ) -> Result<Revived, SessionError> {
        let archived = self.archived(session);
        let missing = missing(session, &archived);
        let is_copied = |at: &Position| archived.contains_key(at);
        let copied = exchanged.revived.iter().filter(|at| is_copied(at)).count();
        let refilled = exchanged.revived.len() - copied;
        let last = exchanged.revived.iter().rfind(|at| !is_copied(at));
        let again = last.map_or(0, |last| refill_cost(&missing, *last));
        // What lies between, and is only seen by the rows that are computed, is copied too and given back.
        let between = last.into_iter().flat_map(|last| archived.range(..last).map(|row| *row.0));
        let mut held: Vec<Position> =
            exchanged.revived.iter().filter(|at| is_copied(at)).copied().chain(between).collect();
        held.sort_unstable();
        held.dedup();
        let slots = self.pool.allocate(held.len())?;
        for (at, &to) in held.iter().zip(&slots) {
            self.executor.move_row(&RowMove::Copy { from: archived[at], to });
        }
        let rows: Vec<(Position, SlotId)> = held.into_iter().zip(slots).collect();
        session.map.put_aside(&rows);
        self.compute(session, &missing[..again])?;
        for &at in &exchanged.revived {
            self.archive.take(session.archive, at);
        }
        session.map.unpark(&exchanged.revived);
        session.map.drop_parked(&mut self.pool);
        let freed = self.evict(session, &exchanged.evicted)?;
        let (evicted, revived) = (exchanged.evicted.clone(), exchanged.revived.clone());
        let at = position(session.map.len()).0;
        session.log.push(PruneRecord { at, evicted, revived, freed: freed as u32 });
        Ok(Revived { exchanged, scored: 0, copied, refilled, computed: again })
    }

    /// The rows of a session that the archive has.
    fn archived(&self, session: &Session) -> BTreeMap<Position, SlotId> {
        self.archive.blocks(session.archive).flat_map(|block| block.rows.iter().copied()).collect()
    }

    /// Blocks that have rows in the archive, or whose rows may be computed again.
    fn candidates(
        &self,
        session: &Session,
        archived: &BTreeMap<Position, SlotId>,
        missing: &[Position],
    ) -> Vec<Candidate> {
        let most = session.retention.refill_tokens as usize;
        let comes = |at: &Position| {
            archived.contains_key(at)
                || (missing.binary_search(at).is_ok() && refill_cost(missing, *at) <= most)
        };
        let blocks = self.archive.blocks(session.archive).map(|block| {
            let mut positions: Vec<Position> = block.positions().filter(comes).collect();
            positions.sort_unstable();
            Candidate { digest: block.digest, positions }
        });
        blocks.filter(|block| !block.positions.is_empty()).collect()
    }

    /// Scores the blocks and what is live, and decides; the second number is that of the keys scored.
    fn choose(
        &mut self,
        session: &Session,
        span: &Range<u32>,
        blocks: &[Candidate],
    ) -> Result<Option<(Exchange, usize)>, SessionError> {
        let retention = &session.retention;
        let budget = retention.budget_tokens;
        let event = Event::new(&Situation {
            retention,
            budget,
            live: session.map.live_positions(),
            len: position(session.map.len()).0,
            protected: session.protected,
            span: span.clone(),
            pins: &[],
        });
        let first = u32::try_from(blocks.len()).expect("fewer than 2^32 blocks");
        let index: HashMap<Position, u32> =
            session.map.live_positions().iter().copied().zip(first..).collect();
        let candidates: Vec<u32> = (0..first).chain(event.candidates.iter().map(|p| index[p])).collect();
        let keys: Vec<SlotId> =
            blocks.iter().map(|block| block.digest).chain(session.map.live().iter().copied()).collect();
        let evidence = revival_evidence(retention.policy);
        let request = ScoreRequest {
            memory: session.memory,
            evidence,
            peek: None,
            live: &keys,
            candidates: &candidates,
            positions: &[],
            aggregation: retention.aggregation,
            keep: event.keep,
            pool: 1,
            causal: evidence == Evidence::Window && retention.policy != Policy::AnswerRows,
        };
        let Some(scores) = self.executor.score(&request)?.map(|scores| scores.values) else {
            return Ok(None);
        };
        let (digests, live) = scores.split_at(blocks.len());
        let dead: Vec<Dead> = std::iter::zip(blocks, digests)
            .map(|(block, &score)| Dead { positions: block.positions.clone(), score })
            .collect();
        let exchanged = exchange(retention, &session.marks, (&event, budget), live, &dead);
        Ok(Some((exchanged, candidates.len())))
    }

    /// Computes rows of dead positions again, each over all positions before it, and keeps them aside.
    fn compute(&mut self, session: &mut Session, again: &[Position]) -> Result<(), SessionError> {
        for positions in again.chunks(self.chunk) {
            let slots = self.pool.allocate(positions.len())?;
            let rows: Vec<(Position, SlotId)> =
                positions.iter().copied().zip(slots.iter().copied()).collect();
            let live = session.map.live_positions().iter().copied().zip(session.map.live().iter().copied());
            let mut seen: Vec<(Position, SlotId)> =
                live.chain(session.map.parked_rows().iter().copied()).collect();
            seen.sort_unstable();
            let runs = refill_runs(&seen, &rows);
            let sequences: Vec<Sequence<'_>> = runs
                .iter()
                .map(|run| Sequence {
                    rows: run.rows.clone(),
                    context: &run.context,
                    after: run.rows.start,
                    positions: &[],
                    logits: LogitRows::None,
                    observe: None,
                })
                .collect();
            let tokens: Vec<u32> = positions.iter().map(|at| session.tokens[at.index()]).collect();
            let batch = Batch { tokens: &tokens, positions, slots: &slots, sequences: &sequences };
            self.executor.step(&batch)?;
            session.map.put_aside(&rows);
        }
        Ok(())
    }
}

/// Dead positions of exact lineage that the archive does not have, where they may be computed again.
fn missing(session: &Session, archived: &BTreeMap<Position, SlotId>) -> Vec<Position> {
    if session.retention.refill_tokens == 0 {
        return Vec::new();
    }
    let exact = session.log.exact().min(session.map.len());
    let is_dead = |at: &Position| session.map.slot(*at).is_some_and(SlotId::is_dead);
    (0..exact).map(position).filter(is_dead).filter(|at| !archived.contains_key(at)).collect()
}
