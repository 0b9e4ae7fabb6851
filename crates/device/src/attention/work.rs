//! What one thread does: claims units, gathers their blocks one ahead, and merges what is complete.

use std::ops::Range;

use super::block::{Block, PackedOffsets, Queries, packed_offsets, run};
use super::inner::{merge, normalise};
use super::plan::{Plan, Unit};
use super::scratch::{Offsets, Workspace, state_len, weight_at};
use super::{AttendCall, BLOCK};
use crate::kv::{Bf16, F16, F32, Layer, RowFormat};
use crate::simd::{Kernel, Simd, dispatch};
use crate::threads::SharedMut;

/// A call, shared by all threads.
pub(super) struct Job<'a> {
    pub(super) call: &'a AttendCall<'a>,
    pub(super) plan: &'a Plan,
    pub(super) partials: SharedMut<'a, f32>,
    pub(super) out: SharedMut<'a, f32>,
    pub(super) workspaces: SharedMut<'a, Workspace>,
}

impl Job<'_> {
    pub(super) fn run(&self, thread: usize) {
        // SAFETY: each thread takes its own workspace.
        let workspace = unsafe { &mut self.workspaces.slice(thread..thread + 1)[0] };
        dispatch(self.call.isa, Work { job: self, workspace });
    }

    /// Keys of a block that the last row of a unit sees, as indexes of the live list.
    fn keys(&self, unit: &Unit, block: usize) -> Range<usize> {
        let live = self.call.spans[unit.span].context.len() + unit.rows.end;
        block * BLOCK..live.min((block + 1) * BLOCK)
    }

    /// Finds the rows of a block. Every slot is checked here, so that the kernels need not.
    fn gather(&self, unit: &Unit, block: usize, to: &mut Offsets) {
        let span = &self.call.spans[unit.span];
        let shape = self.call.kv.shape();
        let (slot_stride, head) = (shape.slot_stride(), unit.kv_head * shape.head_stride());
        let keys = self.keys(unit, block);
        let context = span.context.len();
        let old = &span.context[keys.start.min(context)..keys.end.min(context)];
        let own = &span.own[keys.start.saturating_sub(context)..keys.end.saturating_sub(context)];
        to.clear();
        for slot in old.iter().chain(own) {
            assert!(!slot.is_dead() && slot.index() < shape.slots, "slot {} in a live list", slot.0);
            to.push(slot.index() * slot_stride + head);
        }
        to.pad();
    }

    /// Query vectors of a unit.
    fn queries(&self, unit: &Unit) -> usize {
        unit.rows.len() * self.readers(unit).len()
    }

    /// Query heads of a unit.
    fn readers(&self, unit: &Unit) -> Range<usize> {
        self.call.heads.readers(unit.kv_head)
    }

    /// Where the states of a unit that computes part of a split go.
    fn part(&self, unit: &Unit, split: usize) -> Range<usize> {
        let states = self.queries(unit);
        let state = state_len(self.call.kv.shape().padded_dim());
        let first = self.plan.splits()[split].first_state + unit.blocks.start * states;
        first * state..(first + states) * state
    }
}

struct Work<'a> {
    job: &'a Job<'a>,
    workspace: &'a mut Workspace,
}

impl Kernel for Work<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Work { job, workspace } = self;
        match job.call.kv.layer(job.call.layer) {
            Layer::F32(rows) => work::<S, F32>(s, job, rows, workspace),
            Layer::F16(rows) => work::<S, F16>(s, job, rows, workspace),
            Layer::Bf16(rows) => work::<S, Bf16>(s, job, rows, workspace),
        }
    }
}

#[inline(always)]
fn work<S: Simd, F: RowFormat>(s: S, job: &Job<'_>, rows: &[F::Item], workspace: &mut Workspace) {
    let packed = packed_offsets(job.call.kv.shape().padded_dim());
    let mut claimed = job.plan.claim();
    if let Some(unit) = claimed {
        job.gather(unit, unit.blocks.start, &mut workspace.next);
    }
    while let Some(unit) = claimed {
        let following = job.plan.claim();
        load_queries(s, job, unit, workspace);
        for block in unit.blocks.clone() {
            std::mem::swap(&mut workspace.now, &mut workspace.next);
            match following {
                _ if block + 1 < unit.blocks.end => job.gather(unit, block + 1, &mut workspace.next),
                Some(unit) => job.gather(unit, unit.blocks.start, &mut workspace.next),
                None => workspace.next.clear(),
            }
            one_block::<S, F>(s, job, rows, (unit, block), (workspace, &packed));
        }
        match unit.split {
            None => finish(s, job, unit, workspace.running.floats_mut()),
            Some(split) => end_part(s, job, unit, split),
        }
        claimed = following;
    }
}

/// Copies a unit's queries to the workspace, times 1/sqrt(D) and log2(e): weights are powers of two.
#[inline(always)]
fn load_queries<S: Simd>(s: S, job: &Job<'_>, unit: &Unit, workspace: &mut Workspace) {
    let AttendCall { kv, q, heads, .. } = *job.call;
    let (head_dim, dim, readers) = (kv.shape().head_dim, kv.shape().padded_dim(), job.readers(unit));
    let first_row = job.call.spans[unit.span].rows.start;
    let scale = std::f32::consts::LOG2_E / (head_dim as f32).sqrt();
    let mut to = workspace.queries.floats_mut().chunks_exact_mut(dim);
    for row in unit.rows.clone() {
        let from = ((first_row + row) * heads.count() + readers.start) * head_dim;
        for (query, to) in q[from..from + readers.len() * head_dim].chunks_exact(head_dim).zip(&mut to) {
            to[..head_dim].copy_from_slice(query);
            to[head_dim..].fill(0.0);
            for part in to.chunks_exact_mut(S::LANES) {
                // SAFETY: the part has LANES numbers.
                unsafe { s.store(s.mul(s.load(part.as_ptr()), s.splat(scale)), part.as_mut_ptr()) };
            }
        }
    }
}

/// Computes one block of a unit: into the partials of its split, or into the running states of its rows.
#[inline(always)]
fn one_block<S: Simd, F: RowFormat>(
    s: S,
    job: &Job<'_>,
    rows: &[F::Item],
    (unit, block): (&Unit, usize),
    (workspace, packed): (&mut Workspace, &PackedOffsets),
) {
    let Workspace { queries, scores, block: states, running, packed: room, now, next } = workspace;
    let shape = job.call.kv.shape();
    let (dim, group, state) = (shape.padded_dim(), job.readers(unit).len(), state_len(shape.padded_dim()));
    let len = job.queries(unit) * state;
    let target = match unit.split {
        // SAFETY: this unit's own part of the partials; they are merged after all parts have ended.
        Some(split) => unsafe { job.partials.slice(job.part(unit, split)) },
        None if block == unit.blocks.start => &mut running.floats_mut()[..len],
        None => &mut states.floats_mut()[..len],
    };
    // The unit's first row sees this many keys of the whole live list; rows that end before this block sit it out.
    let start = block * BLOCK;
    let live = job.call.spans[unit.span].context.len() + unit.rows.start + 1;
    let skipped = (start + 1).saturating_sub(live);
    let counted = unit.rows.len() - skipped;
    let (unseen, counted_states) = target.split_at_mut(skipped * group * state);
    unseen.chunks_exact_mut(state).for_each(|state| state[weight_at(dim)] = 0.0);
    let queries = Queries {
        at: queries.floats_mut()[skipped * group * dim..].as_ptr(),
        rows: counted,
        group,
        visible: live + skipped - start,
        scores: scores.floats_mut()[..counted * group * BLOCK].as_mut_ptr(),
        states: counted_states.as_mut_ptr(),
    };
    let rows_of_block = Block::<F> {
        base: rows.as_ptr(),
        at: now.padded(),
        keys: now.keys(),
        dim,
        next: next.padded(),
        packed: room.floats_mut().as_mut_ptr(),
    };
    // SAFETY: the slices above have the shapes that the kernel asks for; `gather` has checked every slot, so every
    // offset lies a key and a value before the end of the layer; every counted row sees at least one key.
    unsafe { run::<S, F>(s, &queries, &rows_of_block, packed) };
    if unit.split.is_none() && block != unit.blocks.start {
        merge_all(s, dim, &mut running.floats_mut()[..len], &states.floats_mut()[..len]);
    }
}

/// Merges the blocks of a split once its last part has ended.
#[inline(always)]
fn end_part<S: Simd>(s: S, job: &Job<'_>, unit: &Unit, index: usize) {
    let split = &job.plan.splits()[index];
    if !split.end_one() {
        return;
    }
    let dim = job.call.kv.shape().padded_dim();
    let len = job.queries(unit) * state_len(dim);
    let first = split.first_state * state_len(dim);
    // SAFETY: all parts have ended, and only the last unit to end comes here.
    let all = unsafe { job.partials.slice(first..first + split.blocks * len) };
    let (running, later) = all.split_at_mut(len);
    for block in later.chunks_exact(len) {
        merge_all(s, dim, running, block);
    }
    finish(s, job, unit, running);
}

/// Merges the states of a later block into `running`, query by query.
#[inline(always)]
fn merge_all<S: Simd>(s: S, dim: usize, running: &mut [f32], later: &[f32]) {
    let pairs = running.chunks_exact_mut(state_len(dim)).zip(later.chunks_exact(state_len(dim)));
    for (running, later) in pairs {
        // SAFETY: both are states of D'.
        unsafe { merge(s, running.as_mut_ptr(), later.as_ptr(), dim) };
    }
}

/// Writes a unit's rows to the output.
#[inline(always)]
fn finish<S: Simd>(s: S, job: &Job<'_>, unit: &Unit, states: &mut [f32]) {
    let shape = job.call.kv.shape();
    let (head_dim, dim, readers) = (shape.head_dim, shape.padded_dim(), job.readers(unit));
    let first_row = job.call.spans[unit.span].rows.start;
    let mut states = states.chunks_exact_mut(state_len(dim));
    for row in unit.rows.clone() {
        for (head, state) in readers.clone().zip(&mut states) {
            let at = ((first_row + row) * job.call.heads.count() + head) * head_dim;
            // SAFETY: one unit, or the last part of a split, writes a row's heads; spans do not overlap.
            let out = unsafe { job.out.slice(at..at + head_dim) };
            // SAFETY: the state is one of D', and D is at most D'.
            unsafe { normalise(s, state.as_mut_ptr(), dim, out) };
        }
    }
}
