//! One request on its way through the scheduler.

use std::ops::Range;
use std::time::Duration;

use hawser_common::clock::Tick;
use hawser_common::retention::Retention;
use hawser_common::{Position, SessionKey, TenantId};
use hawser_kv::retention::{Event, Marks, Origin, PruneLog};
use hawser_kv::{ArchiveId, SlotMap};
use hawser_model::executor::MemoryId;

use super::inspect::Scores;
use super::plan::SequenceId;
use super::refill::Refill;
use super::revive::Revival;

/// A request as it enters the scheduler.
#[derive(Debug, Clone)]
pub struct Submission {
    pub id: SequenceId,
    /// `None`: nothing is kept when it ends, but for rows that others may share.
    pub session: Option<SessionKey>,
    /// Rows are shared within it, and nowhere else.
    pub namespace: TenantId,
    /// The whole prompt, history included; never empty.
    pub prompt: Vec<u32>,
    /// Tokens of the answer that another group generated; they are run with the prompt.
    pub begun: Vec<u32>,
    /// Most tokens of the answer, the begun ones included.
    pub max_new: usize,
    pub deadline: Option<Tick>,
    pub keep: Keep,
}

/// Which of its history a request keeps.
#[derive(Debug, Clone, Default)]
pub struct Keep {
    pub retention: Retention,
    /// Of the whole prompt.
    pub marks: Marks,
    /// π: never evicted.
    pub protected: u32,
    /// What the request asks.
    pub span: Range<u32>,
    /// Not evicted by this request, ascending.
    pub pins: Vec<Range<u32>>,
    /// Evicted by this request, ascending.
    pub releases: Vec<Range<u32>>,
    /// Text of the request's intent, run beside the prompt's end and never held.
    pub hint: Vec<u32>,
}

/// How far a request's prompt was met by rows that were there already, and how long it waited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Admission {
    pub prompt: usize,
    /// Positions that were not prefilled: live, dead and shared ones.
    pub reused: usize,
    /// Of them, evicted before.
    pub dead: usize,
    /// Of them, computed for another session.
    pub shared: usize,
    pub queued: Duration,
}

/// What retention did during a request, in positions unless said otherwise.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Kept {
    pub evicted: usize,
    /// Slots returned to the pool.
    pub freed: usize,
    /// Sum over decode steps of live positions.
    pub rows_read: u64,
    /// The same with nothing evicted.
    pub rows_full: u64,
    pub peak_live: usize,
    /// Positions that came back, and of them, those whose rows were copied out of the archive.
    pub revived: usize,
    pub copied: usize,
    /// Of those that came back, the ones that were computed again, and the rows that were run for that.
    pub refilled: usize,
    pub refill_rows: usize,
    /// Prunes that could not reach the budget, since more was forced.
    pub overflows: u32,
}

/// A request with its tokens and rows. Rows `0..map.len()` are in the KV cache or evicted; the tokens from there on
/// have none yet.
#[derive(Debug)]
pub(super) struct Sequence {
    pub(super) id: SequenceId,
    pub(super) session: Option<SessionKey>,
    pub(super) namespace: TenantId,
    pub(super) tokens: Vec<u32>,
    pub(super) prompt: usize,
    pub(super) max_new: usize,
    /// Most slots that its prompt holds at once.
    pub(super) prompt_slots: usize,
    pub(super) deadline: Option<Tick>,
    pub(super) arrived: Tick,
    pub(super) map: SlotMap,
    pub(super) keep: Keep,
    pub(super) log: PruneLog,
    /// Where the ranks gather its evidence; `None` for a policy that needs none.
    pub(super) memory: Option<MemoryId>,
    /// A prune whose scores are on their way.
    pub(super) event: Option<Event>,
    /// Let go of for good by this and earlier requests, ascending.
    pub(super) released: Vec<Position>,
    /// What it evicted can come back: its copies in the archive.
    pub(super) archive: Option<ArchiveId>,
    /// A revival follows the step, within this budget.
    pub(super) revives: Option<u32>,
    /// A revival whose scores are on their way.
    pub(super) revival: Option<Revival>,
    /// A revival whose rows are being computed; the log has it already.
    pub(super) refill: Option<Refill>,
    /// Of the session's last prune that scored.
    pub(super) scores: Scores,
    /// Tokens that the session had before: an abort rolls back to them.
    pub(super) held: usize,
    /// Up to where it was decided what to evict. Rows that run again, after a preemption, are followed by the prunes that
    /// followed them before and by no other: what was generated has seen what they left.
    pub(super) decided: usize,
    /// First admission; a preempted sequence keeps it.
    pub(super) admission: Option<Admission>,
    pub(super) kept: Kept,
    /// Its reader is slow: it runs again when there is room for a token.
    pub(super) paused: bool,
}

impl Sequence {
    pub(super) fn new(mut submission: Submission, now: Tick) -> Self {
        let (prompt, mut tokens) = (submission.prompt.len(), submission.prompt);
        if !submission.begun.is_empty() {
            tokens.append(&mut submission.begun);
            let marks = &mut submission.keep.marks;
            let turn = marks.turn();
            marks.extend_to(Self::positions(tokens.len(), 0).start, Origin::Assistant, turn);
        }
        Self {
            id: submission.id,
            session: submission.session,
            namespace: submission.namespace,
            prompt,
            tokens,
            max_new: submission.max_new,
            prompt_slots: prompt,
            deadline: submission.deadline,
            arrived: now,
            map: SlotMap::new(),
            keep: submission.keep,
            log: PruneLog::default(),
            memory: None,
            event: None,
            released: Vec::new(),
            archive: None,
            revives: None,
            revival: None,
            refill: None,
            scores: Scores::default(),
            held: 0,
            decided: 0,
            admission: None,
            kept: Kept::default(),
            paused: false,
        }
    }

    /// Tokens whose rows are not there yet.
    pub(super) fn pending(&self) -> usize {
        self.tokens.len() - self.map.len()
    }

    /// Slots that its prompt has yet to take.
    pub(super) fn reserved(&self) -> usize {
        self.prompt_slots.saturating_sub(self.map.len() - self.map.vacant())
    }

    /// Slots that it was promised and has not taken: for the rest of its prompt, and for what it has generated.
    pub(super) fn promised(&self) -> usize {
        self.pending().min(self.reserved() + self.tokens.len() - self.prompt)
    }

    pub(super) fn expired(&self, now: Tick) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= now)
    }

    /// Positions as a range of rows.
    pub(super) fn positions(start: usize, count: usize) -> Range<u32> {
        let position = |at: usize| u32::try_from(at).expect("positions are 32-bit");
        position(start)..position(start + count)
    }
}
