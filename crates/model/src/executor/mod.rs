//! A model, or one rank's shard of it, with its KV rows: one step over a batch of rows.
//!
//! Owns the weights, the KV rows, the threads and the activations. Promises that a row's logits are, bit for bit, those
//! of the same session run alone and in other chunks, and that a batch that is refused has written nothing. Never
//! chooses slots, positions or tokens.

mod batch;
mod head;
mod logits;
mod memory;
mod moving;
mod recorder;
mod rows;
mod scoring;

use std::collections::HashMap;
use std::io;
use std::num::NonZeroUsize;
use std::sync::Arc;

use hawser_device::DeviceError;
use hawser_device::collective::{CallTimer, Collective, StepTag, Traffic};
use hawser_device::kv::{KvRows, KvShape, RowType};
use hawser_device::score::ScoreScratch;
use hawser_device::threads::Threads;

pub use batch::{Batch, LogitRows, Sequence, StepError};
pub use logits::Logits;
pub use memory::{MemoryId, Observe, QueryMemory, Recursion};
pub use moving::MemoryState;
pub use scoring::{ScoreRequest, Scores};

use self::batch::Checker;
use self::recorder::Recorder;
use crate::config::ModelConfig;
use crate::layers::{Buffers, ForwardError, Model, Pass};
use crate::shard::Group;

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
    group: Group,
}

impl Executor {
    /// Allocates the KV rows and starts the threads. Several executors may share one model.
    ///
    /// # Errors
    /// [`DeviceError`] where there is no memory for the pool.
    ///
    /// # Panics
    /// If the model is a shard of several, a bug of the caller: that runs [`Executor::in_group`] only.
    pub fn new(model: impl Into<Arc<Model>>, options: ExecutorOptions) -> Result<Self, DeviceError> {
        Self::with_group(model.into(), options, Group::alone())
    }

    /// As [`Executor::new`], of one rank of a group. All ranks must be called with the same batches and requests, in
    /// the same order.
    ///
    /// # Errors
    /// As [`Executor::new`].
    ///
    /// # Panics
    /// If the model is another rank's shard, a bug of the caller.
    pub fn in_group(
        model: impl Into<Arc<Model>>,
        options: ExecutorOptions,
        collective: Box<dyn Collective>,
    ) -> Result<Self, DeviceError> {
        Self::with_group(model.into(), options, Group::of(collective))
    }

    fn with_group(model: Arc<Model>, options: ExecutorOptions, group: Group) -> Result<Self, DeviceError> {
        let (config, shard) = (model.config(), model.shard());
        assert_eq!((shard.rank, shard.world), (group.rank(), group.world()), "the shard is this rank's");
        let shape = KvShape {
            layers: config.layers,
            slots: options.slots,
            kv_heads: shard.heads.kv.len(),
            head_dim: config.head_dim,
        };
        Ok(Self {
            kv: KvRows::new(shape, options.row_type)?,
            threads: Threads::new(options.threads),
            checker: Checker::new(config.vocab, config.context_length, options.slots),
            buffers: Buffers::new(config, shard),
            memories: HashMap::new(),
            scoring: ScoreScratch::default(),
            group,
            model,
        })
    }

    /// The sizes of the whole model.
    #[must_use]
    pub fn config(&self) -> &ModelConfig {
        self.model.config()
    }

    #[must_use]
    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// The KV rows of the heads that are here, to inspect.
    #[must_use]
    pub fn kv(&self) -> &KvRows {
        &self.kv
    }

    /// Has the system map the memory of the first `slots` slots now: see [`KvRows::make_present`].
    ///
    /// # Errors
    /// The system's, where it does not give the memory; the executor works as before.
    pub fn make_present(&mut self, slots: usize) -> io::Result<()> {
        self.kv.make_present(slots, &self.threads)
    }

    /// The KV rows, to change outside a step. For tests and for restoring.
    pub fn kv_mut(&mut self) -> &mut KvRows {
        &mut self.kv
    }

    /// The calls that follow belong to this step of the group: to be called before each step and each score, with the
    /// same tag on all ranks.
    pub fn begin(&mut self, step: StepTag) {
        self.group.begin(step);
    }

    /// What this rank has sent to the others so far.
    #[must_use]
    pub fn traffic(&self) -> Traffic {
        self.group.traffic()
    }

    /// The time that this rank spends in calls to the others; `None`: there are none.
    #[must_use]
    pub fn call_timer(&self) -> Option<&CallTimer> {
        self.group.timer()
    }

    /// Threads that compute, the caller's included.
    #[must_use]
    pub fn thread_count(&self) -> usize {
        self.threads.count()
    }

    /// Computes the rows of `batch`, stores their keys and values at their slots, and returns the logits it asks for;
    /// on ranks that do not lead it returns none. An empty batch gives no logits.
    ///
    /// # Errors
    /// [`StepError`] for a batch that contradicts itself, the model or the pool: nothing was written, and no rank was
    /// called. Where a product or a call to the ranks fails ([`StepError::Product`], [`StepError::Group`]), the batch's
    /// slots may hold anything, and the group is over.
    pub fn step(&mut self, batch: &Batch<'_>) -> Result<Logits, StepError> {
        self.checker.check(batch)?;
        let rows = batch.tokens.len();
        if rows == 0 {
            return Ok(Logits::new(self.config().vocab, Vec::new()));
        }
        let done = self.run(batch).and_then(|()| self.logits(rows, &batch.wanted()));
        if let Err(ForwardError::Product(error)) = &done {
            self.group.abort(&error.to_string());
        }
        Ok(done?)
    }

    /// The layers of a step: leaves its rows' residual stream in the buffers.
    fn run(&mut self, batch: &Batch<'_>) -> Result<(), ForwardError> {
        let (model, rows, spans) = (&*self.model, batch.tokens.len(), batch.spans());
        model.embed(batch.tokens, self.buffers.stream.first(rows), &mut self.group)?;
        model.phases(batch.positions, &mut self.buffers.phases);
        let mut observer = Recorder::open(batch, model, &mut self.memories, &mut self.scoring);
        let mut pass = Pass {
            observer: &mut observer,
            config: model.config(),
            threads: &self.threads,
            kv: &mut self.kv,
            slots: batch.slots,
            spans: &spans,
            rows,
            buffers: &mut self.buffers,
            group: &mut self.group,
        };
        let ran = model.run_layers(&mut pass);
        observer.close(&mut self.memories);
        ran
    }
}
