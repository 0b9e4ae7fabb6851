//! What is remembered of a session's queries: the evidence by which retention scores its history.
//!
//! Per layer and query head: the mean query of the running request, the memory over turns (IntentKV, arXiv
//! 2606.09916), some query rows as they were, and the attention mass that each live key has received. Under tensor
//! parallelism each rank holds those of its own heads. Promises that a request that is taken back leaves the memory
//! as it was. Never decides what is kept.

use std::ops::Range;
use std::sync::Arc;

use hawser_common::Position;
use serde::{Deserialize, Serialize};

use super::moving::MemoryState;

/// One session's or request's memory, unique within an executor's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct MemoryId(pub u64);

/// What of a sequence's rows in a step is remembered. Rows are rows of the batch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Observe {
    pub memory: MemoryId,
    /// Rows of the query span, or of what the client says of its intent: averaged.
    pub span: Range<usize>,
    /// The rows are a hint: text that the session never holds, averaged apart and added to the memory.
    pub hint: bool,
    /// Rows kept as they are.
    pub window: Range<usize>,
    /// Forget the window's rows before these.
    pub restart_window: bool,
    /// Rows that a window holds; the oldest makes room.
    pub window_rows: usize,
    /// Rows whose attention is added to the mass of what they see: runs, ascending.
    pub mass: Vec<Range<usize>>,
}

/// How the memory goes on from turn to turn. `unit` is the norm along D, per layer and head.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Recursion {
    /// M = unit(Enc).
    Query,
    /// M = unit(e^-λ M' + unit(Enc)).
    Unit { decay: f32 },
    /// M = unit(e^-λ M' + Enc): as published. Enc has a norm of about ten, so M' counts for little.
    Paper { decay: f32 },
}

/// What a request may change and take back. Cheap to copy: what is large is copied when it is first written after.
#[derive(Clone, Debug, Default)]
struct State {
    /// M.
    memory: Option<Arc<[f32]>>,
    /// Rows `[R][L][Hq][D]`, a ring.
    window: Arc<Vec<f32>>,
    /// Rows in the window, and where the next one goes.
    held: usize,
    next: usize,
    /// Attention that each position has received, in parts of [`MASS_ONE`](hawser_device::score::MASS_ONE); a dead one keeps what it had. Integers, so
    /// that the sum over ranks is that of one machine.
    mass: Arc<Vec<i64>>,
    /// Shares that were no finite number and were left out of it.
    mass_non_finite: u64,
}

/// Vectors of `[L][Hq][D]` and what is derived from them.
#[derive(Clone, Debug)]
pub struct QueryMemory {
    layers: usize,
    /// Hq · D.
    width: usize,
    head_dim: usize,
    span: Mean,
    hint: Mean,
    /// Rows that the window holds at most.
    capacity: usize,
    state: State,
    /// As it was before the running request.
    before: State,
}

impl QueryMemory {
    pub(super) fn new(layers: usize, heads: usize, head_dim: usize) -> Self {
        let width = heads * head_dim;
        let mean = Mean::new(layers * width);
        let (state, before) = (State::default(), State::default());
        Self { layers, width, head_dim, span: mean.clone(), hint: mean, capacity: 0, state, before }
    }

    /// Begins a request, or begins it again: nothing of it is remembered yet.
    pub(super) fn begin(&mut self) {
        self.forget_request();
        self.before = self.state.clone();
    }

    /// Takes the running request back.
    pub(super) fn take_back(&mut self) {
        self.forget_request();
        self.state = self.before.clone();
    }

    fn forget_request(&mut self) {
        self.span.clear();
        self.hint.clear();
    }

    /// Makes room for a step's rows, before its first layer.
    pub(super) fn open(&mut self, observe: &Observe) {
        let mean = if observe.hint { &mut self.hint } else { &mut self.span };
        mean.rows += u32::try_from(observe.span.len()).expect("a step has fewer than 2^32 rows");
        if !observe.hint && (observe.restart_window || self.capacity != observe.window_rows) {
            self.capacity = observe.window_rows;
            self.state.window = Arc::new(vec![0.0; self.capacity * self.layers * self.width]);
            (self.state.held, self.state.next) = (0, 0);
        }
    }

    /// Takes one layer's query rows `[rows][Hq][D]`.
    pub(super) fn record(&mut self, observe: &Observe, layer: usize, query: &[f32]) {
        let width = self.width;
        let mean = if observe.hint { &mut self.hint } else { &mut self.span };
        let sum = &mut mean.sum[layer * width..][..width];
        for row in observe.span.clone() {
            let row = &query[row * width..][..width];
            sum.iter_mut().zip(row).for_each(|(sum, x)| *sum += x);
        }
        if self.capacity == 0 || observe.window.is_empty() {
            return;
        }
        let window = Arc::make_mut(&mut self.state.window);
        for (i, row) in observe.window.clone().enumerate() {
            let at = (((self.state.next + i) % self.capacity) * self.layers + layer) * width;
            window[at..at + width].copy_from_slice(&query[row * width..][..width]);
        }
    }

    /// Counts the step's rows in, after its last layer.
    pub(super) fn close(&mut self, observe: &Observe) {
        if self.capacity > 0 {
            let added = observe.window.len();
            self.state.next = (self.state.next + added) % self.capacity;
            self.state.held = (self.state.held + added).min(self.capacity);
        }
    }

    /// Adds attention to the mass of positions.
    pub(super) fn add_mass(
        &mut self,
        positions: impl Iterator<Item = Position>,
        sums: &[i64],
        non_finite: u64,
    ) {
        self.state.mass_non_finite += non_finite;
        let mass = Arc::make_mut(&mut self.state.mass);
        for (position, sum) in positions.zip(sums) {
            if mass.len() <= position.index() {
                mass.resize(position.index() + 1, 0);
            }
            let mass = &mut mass[position.index()];
            *mass = mass.saturating_add(*sum);
        }
    }

    /// Attention that a position has received so far, in parts of [`MASS_ONE`](hawser_device::score::MASS_ONE).
    pub(super) fn mass(&self, position: Position) -> i64 {
        self.state.mass.get(position.index()).copied().unwrap_or(0)
    }

    pub(super) fn mass_non_finite(&self) -> u64 {
        self.state.mass_non_finite
    }

    pub(super) fn has_mass(&self) -> bool {
        !self.state.mass.is_empty()
    }

    /// Ends the request's span: its mean becomes part of the memory. Without a row the memory stays as it is.
    pub(super) fn remember(&mut self, recursion: Recursion) {
        let Some(next) = self.with_span(recursion) else { return };
        self.forget_request();
        self.state.memory = Some(next.into());
    }

    /// The memory as it would be if the span ended here; `None` without rows.
    pub(super) fn with_span(&self, recursion: Recursion) -> Option<Vec<f32>> {
        let mut next = self.span.mean()?;
        let (decay, normalises) = match recursion {
            Recursion::Query => (None, false),
            Recursion::Unit { decay } => (Some(decay), true),
            Recursion::Paper { decay } => (Some(decay), false),
        };
        if normalises {
            next.chunks_exact_mut(self.head_dim).for_each(unit);
        }
        if let (Some(decay), Some(memory)) = (decay, &self.state.memory) {
            let left = (-decay).exp();
            next.iter_mut().zip(memory.iter()).for_each(|(x, m)| *x += left * m);
        }
        next.chunks_exact_mut(self.head_dim).for_each(unit);
        if let Some(mut hint) = self.hint.mean() {
            // What is meant counts as much as all that was asked.
            hint.chunks_exact_mut(self.head_dim).for_each(unit);
            next.iter_mut().zip(&hint).for_each(|(x, h)| *x += h);
            next.chunks_exact_mut(self.head_dim).for_each(unit);
        }
        Some(next)
    }

    /// What there is between two requests, of the heads that are here.
    pub(super) fn leave(&self) -> MemoryState {
        let State { memory, held, next, mass, mass_non_finite, window } = &self.state;
        let row = self.layers * self.width;
        let row_at = |age: usize| ((next + self.capacity - held + age) % self.capacity) * row;
        MemoryState {
            memory: memory.as_ref().map_or_else(Vec::new, |memory| memory.to_vec()),
            window: (0..*held).flat_map(|age| &window[row_at(age)..][..row]).copied().collect(),
            window_rows: u32::try_from(self.capacity).expect("a window has few rows"),
            mass: mass.to_vec(),
            mass_non_finite: *mass_non_finite,
        }
    }

    /// Takes over what [`QueryMemory::leave`] gave.
    pub(super) fn enter(&mut self, state: MemoryState) {
        let row = self.layers * self.width;
        self.capacity = state.window_rows as usize;
        let held = state.window.len() / row;
        assert!(held <= self.capacity, "a window is checked before it is taken over");
        let mut window = state.window;
        window.resize(self.capacity * row, 0.0);
        self.state = State {
            memory: (!state.memory.is_empty()).then(|| state.memory.into()),
            window: Arc::new(window),
            held,
            next: if self.capacity == 0 { 0 } else { held % self.capacity },
            mass: Arc::new(state.mass),
            mass_non_finite: state.mass_non_finite,
        };
        self.before = self.state.clone();
    }

    /// M, `[L][Hq][D]`; `None` before the first request has ended.
    #[must_use]
    pub fn memory(&self) -> Option<&[f32]> {
        self.state.memory.as_deref()
    }

    /// Rows of the window.
    #[must_use]
    pub fn held(&self) -> usize {
        self.state.held
    }

    /// The window, oldest row first, as `[L][R][Hq][D]`.
    pub(super) fn window(&self) -> Vec<f32> {
        let (held, width) = (self.state.held, self.width);
        let mut out = vec![0.0; self.layers * held * width];
        for age in 0..held {
            let row = (self.state.next + self.capacity - held + age) % self.capacity;
            for layer in 0..self.layers {
                let from = (row * self.layers + layer) * width;
                let to = (layer * held + age) * width;
                out[to..to + width].copy_from_slice(&self.state.window[from..from + width]);
            }
        }
        out
    }
}

/// A sum of rows and their number.
#[derive(Clone, Debug)]
struct Mean {
    sum: Vec<f32>,
    rows: u32,
}

impl Mean {
    fn new(len: usize) -> Self {
        Self { sum: vec![0.0; len], rows: 0 }
    }

    fn clear(&mut self) {
        self.sum.fill(0.0);
        self.rows = 0;
    }

    /// `None` without rows.
    fn mean(&self) -> Option<Vec<f32>> {
        (self.rows > 0).then(|| self.sum.iter().map(|x| x / self.rows as f32).collect())
    }
}

/// Scales a vector to length 1; a zero vector stays.
fn unit(x: &mut [f32]) {
    let norm = x.iter().map(|x| x * x).sum::<f32>().sqrt();
    if norm > 0.0 {
        x.iter_mut().for_each(|x| *x /= norm);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn observe(span: Range<usize>, window: Range<usize>) -> Observe {
        Observe {
            memory: MemoryId(0),
            span,
            hint: false,
            window,
            restart_window: false,
            window_rows: 2,
            mass: Vec::new(),
        }
    }

    fn step(memory: &mut QueryMemory, observe: &Observe, query: &[f32]) {
        memory.open(observe);
        memory.record(observe, 0, query);
        memory.close(observe);
    }

    #[test]
    fn the_memory_follows_its_recursion_and_can_be_taken_back() {
        let mut memory = QueryMemory::new(1, 1, 2);
        memory.begin();
        step(&mut memory, &observe(0..2, 0..0), &[6.0, 0.0, 0.0, 8.0]);
        memory.remember(Recursion::Unit { decay: 1.0 });
        assert_eq!(memory.memory(), Some(&[0.6, 0.8][..]), "unit of the mean");
        memory.begin();
        step(&mut memory, &observe(1..2, 0..0), &[9.0, 9.0, 0.0, -5.0]);
        let left = (-1.0f32).exp();
        let expected = |enc: f32| {
            let (x, y) = (left * 0.6, left * 0.8 - enc);
            let norm = (x * x + y * y).sqrt();
            [x / norm, y / norm]
        };
        assert_eq!(memory.with_span(Recursion::Paper { decay: 1.0 }), Some(expected(5.0).to_vec()));
        assert_eq!(memory.with_span(Recursion::Query), Some(vec![0.0, -1.0]));
        memory.remember(Recursion::Unit { decay: 1.0 });
        assert_eq!(memory.memory(), Some(&expected(1.0)[..]));
        memory.take_back();
        assert_eq!(memory.memory(), Some(&[0.6, 0.8][..]));
        memory.remember(Recursion::Query);
        assert_eq!(memory.memory(), Some(&[0.6, 0.8][..]), "no row, no change");
        step(&mut memory, &observe(0..1, 0..0), &[3.0, 0.0]);
        step(&mut memory, &Observe { hint: true, ..observe(0..1, 0..0) }, &[0.0, 7.0]);
        memory.remember(Recursion::Query);
        let half = 0.5f32.sqrt();
        let hinted = memory.memory().unwrap();
        assert!(
            hinted.iter().all(|x| (x - half).abs() < 1e-6),
            "the hint counts as much as the span: {hinted:?}"
        );
    }

    #[test]
    fn the_window_keeps_the_last_rows_in_order() {
        let mut memory = QueryMemory::new(1, 1, 1);
        step(&mut memory, &observe(0..0, 0..1), &[1.0]);
        assert_eq!(memory.window(), [1.0]);
        step(&mut memory, &observe(0..0, 0..2), &[2.0, 3.0]);
        assert_eq!(memory.window(), [2.0, 3.0]);
        let restart = Observe { restart_window: true, ..observe(0..0, 0..1) };
        step(&mut memory, &restart, &[4.0]);
        assert_eq!((memory.window(), memory.held()), (vec![4.0], 1));
        memory.begin();
        step(&mut memory, &observe(0..0, 0..1), &[5.0]);
        memory.add_mass([1, 3].map(Position).into_iter(), &[5, i64::MAX - 1], 1);
        memory.add_mass([3].map(Position).into_iter(), &[20], 0);
        assert_eq!((memory.window(), memory.mass(Position(3))), (vec![4.0, 5.0], i64::MAX));
        memory.take_back();
        assert_eq!((memory.window(), memory.held(), memory.has_mass()), (vec![4.0], 1, false));
    }
}
