//! Sessions over an executor, pruned as a worker prunes them, one after another.

use std::collections::HashMap;
use std::ops::Range;

use hawser_common::retention::{Policy, Retention};
use hawser_common::{Position, SlotId};
use hawser_kv::retention::{
    Event, Evidence, Marks, Observed, PruneLog, PruneRecord, Selection, Situation, is_due, local_scores,
    select,
};
use hawser_kv::{Archive, ArchiveId, EvictError, PoolExhausted, SlotMap, SlotPool};
use hawser_model::executor::{
    Batch, Executor, LogitRows, Logits, MemoryId, Observe, Recursion, ScoreRequest, Sequence, StepError,
};
use thiserror::Error;

mod revive;

pub use revive::Revived;

/// Why a replay ended early.
#[derive(Debug, Error)]
pub enum SessionError {
    #[error(transparent)]
    Step(#[from] StepError),
    #[error("{0}; give the replay a larger pool")]
    Pool(#[from] PoolExhausted),
    #[error(transparent)]
    Evict(#[from] EvictError),
}

/// An executor, its pool, and the size of a prefill chunk.
#[derive(Debug)]
pub struct Engine {
    pub executor: Executor,
    pub pool: SlotPool,
    pub chunk: usize,
    archive: Archive,
    next_memory: u64,
}

/// One session and its bookkeeping.
#[derive(Debug)]
pub struct Session {
    pub retention: Retention,
    pub map: SlotMap,
    pub marks: Marks,
    pub log: PruneLog,
    /// π
    pub protected: u32,
    /// Of its rows.
    tokens: Vec<u32>,
    memory: MemoryId,
    archive: ArchiveId,
    /// The memory is another session's.
    borrows_memory: bool,
}

/// What a prune did.
#[derive(Clone, Debug)]
pub struct Pruned {
    pub event: Event,
    /// Empty where the policy needs no scores.
    pub scores: Vec<i64>,
    pub selection: Selection,
    pub freed: usize,
}

impl Engine {
    #[must_use]
    pub fn new(executor: Executor, chunk: usize, archive: usize) -> Self {
        let slots = executor.kv().shape().slots - archive;
        let (pool, archive) = (SlotPool::new(slots), Archive::new(slots, archive));
        Self { executor, pool, chunk, archive, next_memory: 0 }
    }

    /// A session without tokens.
    pub fn open(&mut self, retention: Retention, protected: u32) -> Session {
        let memory = MemoryId(self.next_memory);
        self.next_memory += 1;
        let (map, marks, log) = (SlotMap::new(), Marks::default(), PruneLog::default());
        let archive = self.archive.open();
        let tokens = Vec::new();
        Session { retention, map, marks, log, protected, tokens, memory, archive, borrows_memory: false }
    }

    /// A session without tokens that scores by the memory of `other`, which never evicts.
    #[must_use]
    pub fn open_beside(other: &Session) -> Session {
        Session {
            retention: other.retention.clone(),
            map: SlotMap::new(),
            marks: Marks::default(),
            log: PruneLog::default(),
            protected: other.protected,
            tokens: Vec::new(),
            memory: other.memory,
            archive: other.archive,
            borrows_memory: true,
        }
    }

    /// Gives `session` the rows of `other` that it has not seen: both hold them.
    pub fn share_new(&mut self, session: &mut Session, other: &Session) {
        let new = &other.map.live()[session.map.len()..];
        new.iter().for_each(|&slot| self.pool.retain(slot));
        session.map.append(new);
    }

    /// Runs tokens after a session's without leaving them there.
    ///
    /// # Errors
    /// [`SessionError`] where the pool is too small or a step fails.
    pub fn run_apart(&mut self, session: &Session, tokens: &[u32]) -> Result<Logits, SessionError> {
        let slots = self.pool.allocate(tokens.len())?;
        let start = session.map.len();
        let positions: Vec<Position> = (start..start + tokens.len()).map(position).collect();
        let sequence = Sequence {
            rows: 0..tokens.len(),
            context: session.map.live(),
            logits: LogitRows::All,
            after: 0,
            positions: &[],
            observe: None,
        };
        let batch = Batch { tokens, positions: &positions, slots: &slots, sequences: &[sequence] };
        let logits = self.executor.step(&batch);
        for slot in slots {
            self.pool.release(slot);
        }
        Ok(logits?)
    }

    /// Gives a session's slots back.
    pub fn close(&mut self, mut session: Session) {
        session.map.clear(&mut self.pool);
        self.archive.forget(session.archive);
        if !session.borrows_memory {
            self.executor.forget_memory(session.memory);
        }
    }

    /// Runs the tokens that follow the session's, whose marks are set, and returns the logits asked for. Queries of
    /// positions in `span` count for the memory.
    ///
    /// # Errors
    /// [`SessionError`] where the pool is too small or a step fails.
    pub fn run(
        &mut self,
        session: &mut Session,
        tokens: &[u32],
        span: &Range<u32>,
        wanted: LogitRows,
    ) -> Result<Vec<Logits>, SessionError> {
        let mut out = Vec::new();
        let mut chunks = tokens.chunks(self.chunk).peekable();
        while let Some(chunk) = chunks.next() {
            let start = session.map.len();
            let rows = 0..chunk.len();
            let slots = self.pool.allocate(chunk.len())?;
            let positions: Vec<Position> = (start..start + chunk.len()).map(position).collect();
            let last = chunks.peek().is_none();
            let logits = match wanted {
                LogitRows::Last if !last => LogitRows::None,
                wanted => wanted,
            };
            let observe = Some(Self::observe(session, start, chunk.len(), span));
            let (context, live) = (session.map.live(), session.map.live_positions());
            let sequence = Sequence { rows, context, after: 0, positions: live, logits, observe };
            let batch = Batch { tokens: chunk, positions: &positions, slots: &slots, sequences: &[sequence] };
            let logits = self.executor.step(&batch)?;
            session.map.append(&slots);
            session.tokens.extend_from_slice(chunk);
            if logits.rows() > 0 {
                out.push(logits);
            }
        }
        Ok(out)
    }

    /// What is remembered of the rows from `start` on.
    fn observe(session: &Session, start: usize, count: usize, span: &Range<u32>) -> Observe {
        let (retention, first) = (&session.retention, position(start).0);
        let rows = first..position(start + count).0;
        let observed = Observed::of(retention, &session.marks, span, &rows);
        let in_batch = |range: Range<u32>| {
            let row = |at: u32| at.clamp(rows.start, rows.end) as usize - start;
            row(range.start)..row(range.end)
        };
        let evidence = Evidence::of(retention.policy);
        Observe {
            memory: session.memory,
            span: in_batch(observed.span),
            hint: false,
            window: in_batch(observed.window),
            restart_window: observed.restart,
            window_rows: if evidence == Evidence::Window || retention.revive {
                retention.window_rows as usize
            } else {
                0
            },
            mass: observed.mass.into_iter().map(in_batch).collect(),
        }
    }

    /// Ends a request's prefill: its span becomes part of the memory.
    pub fn end_span(&mut self, session: &Session) {
        let decay = session.retention.memory_decay;
        let recursion = match session.retention.policy {
            Policy::IntentMemoryPaper => Recursion::Paper { decay },
            Policy::IntentQuery => Recursion::Query,
            _ => Recursion::Unit { decay },
        };
        self.executor.remember(session.memory, recursion);
        self.executor.begin_memory(session.memory);
    }

    /// M of a session.
    #[must_use]
    pub fn memory(&self, session: &Session) -> Option<&[f32]> {
        self.executor.memory(session.memory).and_then(|memory| memory.memory())
    }

    /// Prunes a session to its budget if that is due. Not on the ranks of a group, of which one knows the scores: these
    /// go through [`Engine::due`], [`Engine::score`] and [`Engine::settle`] together.
    ///
    /// # Errors
    /// [`SessionError::Evict`], a bug.
    pub fn prune(
        &mut self,
        session: &mut Session,
        span: &Range<u32>,
    ) -> Result<Option<Pruned>, SessionError> {
        let Some(event) = Self::due(session, span) else { return Ok(None) };
        let scores = self.score(session, &event)?.unwrap_or_default();
        self.settle(session, event, scores).map(Some)
    }

    /// The prune that a session is due.
    #[must_use]
    pub fn due(session: &Session, span: &Range<u32>) -> Option<Event> {
        let retention = &session.retention;
        let budget = retention.budget_tokens;
        is_due(retention, budget, session.map.live().len()).then(|| {
            Event::new(&Situation {
                retention,
                budget,
                live: session.map.live_positions(),
                len: position(session.map.len()).0,
                protected: session.protected,
                span: span.clone(),
                pins: &[],
            })
        })
    }

    /// Evicts what an event's scores, or without any the policy's own rule, leave out.
    ///
    /// # Errors
    /// [`SessionError::Evict`], a bug.
    pub fn settle(
        &mut self,
        session: &mut Session,
        event: Event,
        scores: Vec<i64>,
    ) -> Result<Pruned, SessionError> {
        let len = position(session.map.len()).0;
        let local;
        let used = if scores.is_empty() {
            local = local_scores(&session.retention, &session.marks, &event.candidates);
            &local
        } else {
            &scores
        };
        let selection = select(&session.retention, &session.marks, &event, used);
        let freed = self.evict(session, &selection.evicted)?;
        let evicted = selection.evicted.clone();
        session.log.push(PruneRecord { at: len, evicted, freed: freed as u32, ..PruneRecord::default() });
        Ok(Pruned { event, scores, selection, freed })
    }

    fn evict(&mut self, session: &mut Session, evicted: &[Position]) -> Result<usize, EvictError> {
        if session.retention.revive {
            let slot = |&position: &Position| (position, session.map.slot(position).unwrap_or(SlotId::DEAD));
            let rows: Vec<(Position, SlotId)> = evicted.iter().map(slot).collect();
            let exact = match session.retention.refill_tokens {
                0 => 0,
                _ => session.log.exact().min(session.map.len()),
            };
            let mut moves = Vec::new();
            self.archive.store(session.archive, &rows, exact, &mut moves);
            moves.iter().for_each(|row| self.executor.move_row(row));
        }
        session.map.evict(evicted, &mut self.pool)
    }

    /// Scores an event's candidates; `None` where nothing is remembered, and on ranks that do not lead.
    ///
    /// # Errors
    /// [`StepError`] where a group of ranks fails.
    pub fn score(&mut self, session: &Session, event: &Event) -> Result<Option<Vec<i64>>, StepError> {
        let retention = &session.retention;
        let index: HashMap<Position, u32> = session.map.live_positions().iter().copied().zip(0..).collect();
        let evidence = Evidence::of(retention.policy);
        let candidates: Vec<u32> = event.candidates.iter().map(|position| index[position]).collect();
        let request = ScoreRequest {
            memory: session.memory,
            evidence,
            peek: None,
            live: session.map.live(),
            candidates: &candidates,
            positions: &event.candidates,
            aggregation: retention.aggregation,
            keep: event.keep,
            pool: retention.pool_positions as usize,
            causal: retention.policy == Policy::SnapKv,
        };
        Ok(self.executor.score(&request)?.map(|scores| scores.values))
    }
}

fn position(index: usize) -> Position {
    Position(u32::try_from(index).expect("positions are 32-bit"))
}
