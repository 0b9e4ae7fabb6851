//! From options to a loaded model: checkpoint, text side, executor and KV pool.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use hawser_common::clock::Clock;
use hawser_common::telemetry::Tracer;
use hawser_common::{Coded, ErrorCode};
use hawser_device::DeviceError;
use hawser_device::collective::{CollectiveError, RankTls, RankTlsError};
use hawser_device::kv::RowType;
use hawser_model::checkpoint::{Checkpoint, CheckpointError};
use hawser_model::config::ModelConfig;
use hawser_model::executor::ExecutorOptions;
use hawser_model::layers::{LoadError as ModelError, Model};
use hawser_model::shard::{Blocks, ShardError, ShardPlan};
use hawser_model::text::{ChatTemplate, TemplateError};
use hawser_proto::v1;
use thiserror::Error;

use crate::moving::snapshot::Shape;
use crate::options::{CollectiveKind, EngineKind, KvType, WorkerOptions};
use crate::ranks::{Formation, Processes, RankWatch, Sums, Threads};
use crate::session::Text;
use crate::simulated::{self, SimulatedFormation, SimulatedTextError};

/// Fewest slots worth serving with, the dead slot included.
const MIN_SLOTS: usize = 64;

/// Why a model could not be loaded.
#[derive(Debug, Error)]
pub enum LoadError {
    #[error("worker.model: {0}")]
    Checkpoint(#[from] CheckpointError),
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error("{key}: {source}")]
    Shard { key: &'static str, source: ShardError },
    #[error("worker.collective is nccl: {0}")]
    Collective(#[from] CollectiveError),
    #[error("worker.rank_tls: {0}")]
    RankTls(#[from] RankTlsError),
    #[error("worker.rendezvous: cannot listen for ranks at {address}: {source}")]
    Rendezvous { address: String, source: std::io::Error },
    #[error("worker.model: the chat template of {path}: {source}")]
    Template { path: String, source: TemplateError },
    #[error("worker.context_tokens is {asked}, but the model was made for {most}")]
    Context { asked: usize, most: usize },
    #[error(
        "worker.kv_memory_mib = {mib} has room for {slots} tokens; give the pool more memory, or set worker.kv_slots"
    )]
    PoolTooSmall { mib: usize, slots: usize },
    #[error("the simulated model has no text: {0}")]
    SimulatedText(#[from] SimulatedTextError),
}

impl Coded for LoadError {
    fn code(&self) -> ErrorCode {
        match self {
            Self::Device(_) => ErrorCode::Exhausted,
            _ => ErrorCode::Invalid,
        }
    }
}

/// What was loaded, for people.
#[derive(Debug, Clone)]
pub struct LoadReport {
    pub model: String,
    pub architecture: String,
    /// Matrices of the ranks in this process.
    pub weight_bytes: u64,
    /// KV rows of the ranks in this process, without the archive.
    pub kv_bytes: u64,
    /// Tokens that the pool holds.
    pub slots: usize,
    pub context: usize,
    pub threads: usize,
    pub elapsed: Duration,
}

/// Everything that a leader serves with.
#[derive(Debug)]
pub(super) struct Loaded {
    pub formation: Box<dyn Formation>,
    pub text: Text,
    pub end_ids: Vec<u32>,
    pub context: usize,
    /// Slots of the pool, the dead slot included.
    pub slots: usize,
    /// Slots behind them, for copies of evicted rows.
    pub archive_slots: usize,
    pub model: v1::ModelInfo,
    /// What another group must have in common with this one to take its sessions over.
    pub shape: Shape,
    pub report: LoadReport,
}

/// Loads the model of `options`. Blocks; takes about as long as reading the file.
///
/// # Errors
/// [`LoadError`] names the file and what in it is wrong.
pub(super) fn load(options: &WorkerOptions, clock: &Clock, tracer: &Tracer) -> Result<Loaded, LoadError> {
    match options.engine {
        EngineKind::Model => load_model(options, clock, tracer),
        EngineKind::Simulated => simulate(options, clock),
    }
}

/// Everything but a model: nothing is read, and no KV rows are allocated.
fn simulate(options: &WorkerOptions, clock: &Clock) -> Result<Loaded, LoadError> {
    let started = clock.now();
    let or = |asked: usize, default| if asked > 0 { asked } else { default };
    let slots = or(options.kv_slots, simulated::DEFAULT_SLOTS);
    let context = or(options.context_tokens, simulated::DEFAULT_CONTEXT);
    let name = if options.model_name.is_empty() { simulated::NAME } else { &options.model_name };
    let formation =
        SimulatedFormation { options: options.simulated.clone(), slots: slots + options.archive_slots };
    let info = v1::ModelInfo {
        name: name.to_owned(),
        architecture: simulated::NAME.to_owned(),
        context_tokens: u32::try_from(context).unwrap_or(u32::MAX),
        digest: simulated::NAME.to_owned(),
        groups: 1,
    };
    let text = simulated::text()?;
    let report = LoadReport {
        model: name.to_owned(),
        architecture: simulated::NAME.to_owned(),
        weight_bytes: 0,
        kv_bytes: 0,
        slots: slots - 1,
        context,
        threads: 1,
        elapsed: clock.now().since(started),
    };
    Ok(Loaded {
        formation: Box::new(formation),
        text,
        end_ids: vec![simulated::END],
        context,
        slots,
        archive_slots: options.archive_slots,
        model: info,
        shape: simulated::shape(),
        report,
    })
}

/// Everything about a model that is known before its weights are read.
struct Prepared {
    checkpoint: Checkpoint,
    context: usize,
    plan: ShardPlan,
    /// Bytes of one slot on each rank.
    of_ranks: Vec<usize>,
    slots: usize,
    archive_slots: usize,
    text: Text,
    end_ids: Vec<u32>,
    /// Why there is no tokenizer, where there is none.
    untold: Option<CheckpointError>,
    tls: Option<RankTls>,
}

impl Prepared {
    fn of(options: &WorkerOptions) -> Result<Self, LoadError> {
        let tls = RankTls::read(&options.rank_tls)?;
        let checkpoint = Checkpoint::open(&options.model)?;
        let config = checkpoint.config();
        let context = context_length(options, config.context_length)?;
        let plan = shard_plan(&checkpoint, options)?;
        let of_ranks = rank_slot_bytes(&plan, config, row_type(options.kv_type));
        let bytes_per_slot = budgeted_slot_bytes(&of_ranks, options);
        let slots = slot_count(options, bytes_per_slot)?;
        let archive_slots = match options.archive_slots {
            0 => options.archive_memory_mib.saturating_mul(1 << 20) / bytes_per_slot.max(1),
            slots => slots,
        };
        let archive_slots = archive_slots.min(u32::MAX as usize - slots);
        let (text, end_ids, untold) = text_side(&checkpoint, config.vocab)?;
        Ok(Self { checkpoint, context, plan, of_ranks, slots, archive_slots, text, end_ids, untold, tls })
    }
}

/// Looks at the model and the certificates that `options` name, without reading weights or opening anything. Says why
/// only token ids would be served, where a leader would serve no more.
///
/// # Errors
/// [`LoadError`] names the key, the file and what in it is wrong.
pub(super) fn check(options: &WorkerOptions) -> Result<Option<CheckpointError>, LoadError> {
    match options.engine {
        EngineKind::Simulated => Ok(RankTls::read(&options.rank_tls).map(|_| None)?),
        // A follower has no text and no pool of its own size.
        EngineKind::Model if options.rank > 0 => {
            RankTls::read(&options.rank_tls)?;
            shard_plan(&Checkpoint::open(&options.model)?, options).map(|_| None)
        }
        EngineKind::Model => Ok(Prepared::of(options)?.untold),
    }
}

/// Looks at what the ranks of the group need of this machine, once the rest was looked at.
///
/// # Errors
/// [`LoadError`].
pub(super) fn check_here(options: &WorkerOptions) -> Result<(), LoadError> {
    sums(options).probe()?;
    meeting(options).map(drop)
}

fn load_model(options: &WorkerOptions, clock: &Clock, tracer: &Tracer) -> Result<Loaded, LoadError> {
    let started = clock.now();
    sums(options).probe()?;
    let prepared = Prepared::of(options)?;
    let meeting = meeting(options)?;
    if let Some(error) = &prepared.untold {
        tracing::warn!(%error, "no usable tokenizer: only token ids are served");
    }
    let Prepared { checkpoint, context, plan, of_ranks, slots, archive_slots, text, end_ids, tls, .. } =
        prepared;
    let config = checkpoint.config().clone();
    let name = if options.model_name.is_empty() { checkpoint.name() } else { options.model_name.clone() };
    let threads = options.thread_count();
    let threads_per_rank = NonZeroUsize::new(threads.get() / options.tp).unwrap_or(NonZeroUsize::MIN);
    let row_type = row_type(options.kv_type);
    let sizes = ExecutorOptions { slots: slots + archive_slots, row_type, threads: threads_per_rank };
    let shards = shards(&checkpoint, options, &plan)?;
    let weight_bytes = shards.iter().map(|shard| shard.matrix_bytes() as u64).sum();
    let slot_bytes_here: usize = shards.iter().map(|shard| of_ranks[shard.shard().rank]).sum();
    let watch = RankWatch { tracer: tracer.clone(), clock: clock.clone() };
    let formation = formation(&checkpoint, shards, options, (sizes, archive_slots, meeting), (watch, tls))?;
    let architecture = format!("{:?}", config.architecture).to_lowercase();
    let info = v1::ModelInfo {
        name: name.clone(),
        architecture: architecture.clone(),
        context_tokens: u32::try_from(context).unwrap_or(u32::MAX),
        digest: checkpoint.digest().to_string(),
        groups: 1,
    };
    let size = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    let shape = Shape {
        digest: info.digest.clone(),
        kv_type: options.kv_type,
        layers: size(config.layers),
        heads: size(config.heads),
        kv_heads: size(config.kv_heads),
        head_dim: size(config.head_dim),
    };
    let report = LoadReport {
        model: name,
        architecture,
        weight_bytes,
        kv_bytes: (slots * slot_bytes_here) as u64,
        slots: slots - 1,
        context,
        threads: NonZeroUsize::get(threads),
        elapsed: clock.now().since(started),
    };
    Ok(Loaded { formation, text, end_ids, context, slots, archive_slots, model: info, shape, report })
}

/// What each rank of the group holds.
pub(super) fn shard_plan(checkpoint: &Checkpoint, options: &WorkerOptions) -> Result<ShardPlan, LoadError> {
    let world = NonZeroUsize::new(options.world.max(options.tp)).unwrap_or(NonZeroUsize::MIN);
    let key = if options.world > 1 { "worker.world" } else { "worker.tp" };
    let plan = ShardPlan::new(checkpoint.config(), world, &Blocks::of(checkpoint)?);
    plan.map_err(|source| LoadError::Shard { key, source })
}

/// Bytes that one slot takes on each rank: keys and values of the KV heads that it holds, some of which other ranks may
/// hold too.
fn rank_slot_bytes(plan: &ShardPlan, config: &ModelConfig, row_type: RowType) -> Vec<usize> {
    let held = |rank| plan.rank(rank).map_or(0, |shard| shard.heads.kv.len());
    let bytes = |rank| 2 * config.layers * held(rank) * config.head_dim * row_type.bytes();
    (0..plan.world()).map(bytes).collect()
}

/// Bytes that one slot takes of `kv_memory_mib`, which is what one process may use: those of all ranks where they are
/// here, else those of the rank that holds most, since all ranks have equally many slots.
fn budgeted_slot_bytes(of_ranks: &[usize], options: &WorkerOptions) -> usize {
    if options.world > 1 { of_ranks.iter().copied().max().unwrap_or(0) } else { of_ranks.iter().sum() }
}

/// The shards that are here: all of a group in one process, one of a group of processes.
pub(super) fn shards(
    checkpoint: &Checkpoint,
    options: &WorkerOptions,
    plan: &ShardPlan,
) -> Result<Vec<Arc<Model>>, LoadError> {
    let here = if options.world > 1 { options.rank..options.rank + 1 } else { 0..plan.world() };
    let shards = here.filter_map(|rank| plan.rank(rank));
    shards.map(|shard| Ok(Arc::new(Model::load_shard(checkpoint, shard)?))).collect()
}

fn formation(
    checkpoint: &Checkpoint,
    mut shards: Vec<Arc<Model>>,
    options: &WorkerOptions,
    (sizes, archive_slots, meeting): (ExecutorOptions, usize, Option<SocketAddr>),
    (watch, tls): (RankWatch, Option<RankTls>),
) -> Result<Box<dyn Formation>, LoadError> {
    let timeout = Duration::from_millis(options.rank_timeout_ms);
    let Some(address) = meeting else {
        let threads = Threads::new(shards, sizes, timeout).watched_by(watch);
        return Ok(Box::new(if options.prefault {
            threads.prefaulted(sizes.slots - archive_slots)
        } else {
            threads
        }));
    };
    if options.prefault {
        // Ranks wait for each other while they form, and no longer than `rank_timeout_ms`.
        tracing::warn!("worker.prefault does nothing in a group of several processes");
    }
    let own = (shards.swap_remove(0), checkpoint.digest().to_string());
    let terms = (sizes, timeout, sums(options));
    let ranks = Processes::listen(address, own, options.world, terms, watch.clock.clone());
    let ranks = ranks.map_err(|source| unmet(options, source))?;
    Ok(Box::new(ranks.watched_by(watch).secured_by(tls)))
}

/// Where the ranks of a group of processes meet; `None` for a group in one process. That it can be listened at is
/// tried and let go again: ranks that come while weights are read are better refused than kept waiting.
fn meeting(options: &WorkerOptions) -> Result<Option<SocketAddr>, LoadError> {
    if options.world == 1 {
        return Ok(None);
    }
    let found = options.rendezvous.to_socket_addrs().map(|mut addresses| addresses.next());
    let address = found.and_then(|found| found.ok_or_else(|| ErrorKind::AddrNotAvailable.into()));
    let address = address.map_err(|source| unmet(options, source))?;
    TcpListener::bind(address).map_err(|source| unmet(options, source))?;
    Ok(Some(address))
}

fn unmet(options: &WorkerOptions, source: std::io::Error) -> LoadError {
    LoadError::Rendezvous { address: options.rendezvous.clone(), source }
}

/// Over what ranks add up.
fn sums(options: &WorkerOptions) -> Sums {
    match options.collective {
        // Rows are in the memory of the host, and NCCL would copy them to a GPU and back.
        CollectiveKind::Auto | CollectiveKind::Tcp => Sums::Tcp,
        CollectiveKind::Nccl => Sums::Nccl { gpu: options.gpu },
    }
}

fn context_length(options: &WorkerOptions, most: usize) -> Result<usize, LoadError> {
    match options.context_tokens {
        0 => Ok(most),
        asked if asked <= most => Ok(asked),
        asked => Err(LoadError::Context { asked, most }),
    }
}

fn row_type(kv_type: KvType) -> RowType {
    match kv_type {
        KvType::F32 => RowType::F32,
        KvType::F16 => RowType::F16,
        KvType::Bf16 => RowType::Bf16,
    }
}

fn slot_count(options: &WorkerOptions, bytes_per_slot: usize) -> Result<usize, LoadError> {
    if options.kv_slots > 0 {
        return Ok(options.kv_slots);
    }
    let mib = options.kv_memory_mib;
    let slots = mib.saturating_mul(1 << 20) / bytes_per_slot.max(1);
    if slots < MIN_SLOTS {
        return Err(LoadError::PoolTooSmall { mib, slots });
    }
    Ok(slots.min(u32::MAX as usize))
}

/// The tokenizer, the template and the end tokens. A checkpoint without a tokenizer serves token ids only; why it has
/// none.
fn text_side(
    checkpoint: &Checkpoint,
    vocabulary: usize,
) -> Result<(Text, Vec<u32>, Option<CheckpointError>), LoadError> {
    let mut end_ids = checkpoint.end_tokens().to_vec();
    let (tokenizer, untold) = match checkpoint.tokenizer() {
        Ok(tokenizer) => {
            end_ids.extend_from_slice(tokenizer.end_ids());
            (Some(Arc::new(tokenizer)), None)
        }
        Err(error) => (None, Some(error)),
    };
    end_ids.sort_unstable();
    end_ids.dedup();
    let compile = |source: String| {
        let path = checkpoint.path().display().to_string();
        ChatTemplate::compile(&source).map_err(|source| LoadError::Template { path, source })
    };
    let template = checkpoint.chat_template().map(compile).transpose()?;
    Ok((Text { tokenizer, template, vocabulary }, end_ids, untold))
}

#[cfg(test)]
mod tests;
