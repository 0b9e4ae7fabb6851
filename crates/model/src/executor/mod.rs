//! A model with its KV rows: one step over a batch of rows.
//!
//! Owns the weights, the KV rows, the threads and the activations. Promises that a row's logits are, bit for bit, those
//! of the same session run alone and in other chunks, and that a batch that is refused has written nothing. Never
//! chooses slots, positions or tokens.

mod batch;
mod logits;
mod memory;
mod recorder;
mod rows;
mod scoring;

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::Arc;

use hawser_device::DeviceError;
use hawser_device::kv::{KvRows, KvShape, RowType};
use hawser_device::linear::Write;
use hawser_device::score::ScoreScratch;
use hawser_device::threads::Threads;

pub use batch::{Batch, LogitRows, Sequence, StepError};
pub use logits::Logits;
pub use memory::{MemoryId, Observe, QueryMemory, Recursion};
pub use scoring::{ScoreRequest, Scores};

use self::batch::Checker;
use self::recorder::Recorder;
use crate::config::ModelConfig;
use crate::layers::{Buffers, Model, Pass};

/// Sizes of an executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExecutorOptions {
    /// Slots of the pool, the dead slot 0 included.
    pub slots: usize,
    /// How KV rows are stored.
    pub row_type: RowType,
    /// Threads that compute, the caller's included.
    pub threads: NonZeroUsize,
}

/// Runs a model.
#[derive(Debug)]
pub struct Executor {
    model: Arc<Model>,
    kv: KvRows,
    threads: Threads,
    checker: Checker,
    buffers: Buffers,
    memories: HashMap<MemoryId, QueryMemory>,
    scoring: ScoreScratch,
}

impl Executor {
    /// Allocates the KV rows and starts the threads. Several executors may share one model.
    ///
    /// # Errors
    /// [`DeviceError`] where there is no memory for the pool.
    pub fn new(model: impl Into<Arc<Model>>, options: ExecutorOptions) -> Result<Self, DeviceError> {
        let model = model.into();
        let config = model.config();
        let shape = KvShape {
            layers: config.layers,
            slots: options.slots,
            kv_heads: config.kv_heads,
            head_dim: config.head_dim,
        };
        Ok(Self {
            kv: KvRows::new(shape, options.row_type)?,
            threads: Threads::new(options.threads),
            checker: Checker::new(config.vocab, config.context_length, options.slots),
            buffers: Buffers::new(config),
            memories: HashMap::new(),
            scoring: ScoreScratch::default(),
            model,
        })
    }

    /// STAND-IN
    pub fn in_group(model: impl Into<Arc<Model>>, options: ExecutorOptions, _group: Box<dyn hawser_device::collective::Collective>) -> Result<Self, DeviceError> { Self::new(model, options) }

    #[must_use]
    pub fn config(&self) -> &ModelConfig {
        self.model.config()
    }

    #[must_use]
    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// The KV rows, to inspect.
    #[must_use]
    pub fn kv(&self) -> &KvRows {
        &self.kv
    }

    /// The KV rows, to change outside a step. For tests and for restoring.
    pub fn kv_mut(&mut self) -> &mut KvRows {
        &mut self.kv
    }

    /// Computes the rows of `batch`, stores their keys and values at their slots, and returns the logits it asks for.
    /// An empty batch gives no logits.
    ///
    /// # Errors
    /// [`StepError`] for a batch that contradicts itself, the model or the pool: nothing was written. Where a
    /// product fails ([`StepError::Product`]), the batch's slots may hold anything.
    pub fn step(&mut self, batch: &Batch<'_>) -> Result<Logits, StepError> {
        self.checker.check(batch)?;
        let (model, vocab) = (&*self.model, self.model.config().vocab);
        let (rows, wanted, spans) = (batch.tokens.len(), batch.wanted(), batch.spans());
        if rows == 0 {
            return Ok(Logits::new(vocab, Vec::new()));
        }
        model.embed(batch.tokens, self.buffers.stream.first(rows))?;
        model.phases(batch.positions, &mut self.buffers.phases);
        let mut observer = Recorder::open(batch, model.config(), &mut self.memories, &mut self.scoring);
        let mut pass = Pass {
            observer: &mut observer,
            config: model.config(),
            threads: &self.threads,
            kv: &mut self.kv,
            slots: batch.slots,
            spans: &spans,
            rows,
            buffers: &mut self.buffers,
        };
        let ran = model.run_layers(&mut pass);
        observer.close(&mut self.memories);
        ran?;
        let mut values = vec![0.0; wanted.len() * vocab];
        let buffers = &mut self.buffers;
        let (stream, normed) = (buffers.stream.first(rows), buffers.normed.first(wanted.len()));
        model.norm_rows(&self.threads, stream, &wanted, normed);
        model.head().forward(&self.threads, normed, &mut values, Write::Store, &mut buffers.linear)?;
        Ok(Logits::new(vocab, values))
    }
}
