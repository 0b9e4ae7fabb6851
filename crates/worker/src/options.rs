//! Configuration of a worker group.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use hawser_common::retention::{InvalidRetention, Retention};
use hawser_common::tls::{ClientTls, InvalidTls, MutualTls, ServerTls};
use hawser_common::{Coded, ErrorCode, GroupId, Keepalive};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::moving::BalanceOptions;
use crate::simulated::SimulatedOptions;

/// How KV rows are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KvType {
    F32,
    F16,
    Bf16,
}

impl KvType {
    /// As in configuration.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
        }
    }
}

/// What computes a group's steps.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EngineKind {
    /// The checkpoint of `model`.
    #[default]
    Model,
    /// No model at all: steps take the time that `simulated` says, and tokens are a hash of those before.
    Simulated,
}

/// Over what the ranks of a group of processes add up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CollectiveKind {
    /// What suits the place of the rows: TCP, as long as they are in the memory of the host.
    Auto,
    Tcp,
    /// NCCL, for ranks that have a GPU each. The build needs the feature `cuda`.
    Nccl,
}

/// One worker group. Read once, validated before anything is opened.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WorkerOptions {
    /// Name of the group in the cluster: `[A-Za-z0-9._:-]`.
    pub group: String,
    /// What computes.
    pub engine: EngineKind,
    /// A `.gguf` file, or a directory with `config.json` and safetensors.
    pub model: PathBuf,
    /// Name that requests use; empty: the checkpoint's own.
    pub model_name: String,
    /// Where the leader listens; port 0 takes a free one.
    pub listen: SocketAddr,
    /// URI that routers use; empty: the listening address, with `https://` where the leader has a certificate.
    pub advertise: String,
    /// CPU threads of a step; 0: all cores.
    pub threads: usize,
    /// Tokens that the KV pool holds; 0: as many as `kv_memory_mib` has room for.
    pub kv_slots: usize,
    /// Memory of the KV pool in MiB, where `kv_slots` is 0.
    pub kv_memory_mib: usize,
    /// Take all memory of the pool from the system before the group joins the cluster, rather than as rows are written.
    pub prefault: bool,
    /// Copies of evicted tokens that are kept beside the pool, for sessions that revive; 0: as many as
    /// `archive_memory_mib` has room for.
    pub archive_slots: usize,
    /// Memory of those copies in MiB, where `archive_slots` is 0. What is not needed is not touched; 0: none.
    pub archive_memory_mib: usize,
    /// Ranks of the group in this process, each a thread with its share of the weights, the rows and `threads`.
    pub tp: usize,
    /// Ranks of a group of processes; 1: the group is this process.
    pub world: usize,
    /// This process's rank in it; rank 0 leads.
    pub rank: usize,
    /// Where the ranks of a group of processes meet, `host:port`: the leader listens there.
    pub rendezvous: String,
    /// Over what the ranks of a group of processes add up; the leader's choice counts. Commands always go over TCP.
    pub collective: CollectiveKind,
    /// With NCCL: this process's GPU, among those that CUDA shows to it.
    pub gpu: usize,
    /// Longest that a rank waits for another before the group is given up and formed again.
    pub rank_timeout_ms: u64,
    /// How KV rows are stored.
    pub kv_type: KvType,
    /// Longest prompt plus generation in tokens; 0: what the model was trained for.
    pub context_tokens: usize,
    /// Rows of one step: prompts longer than this are prefilled in chunks.
    pub step_tokens: usize,
    /// Prompt rows of a step that also decodes: the most that an answer waits for between two tokens.
    pub mixed_tokens: usize,
    /// Requests that run at once.
    pub max_running: usize,
    /// Requests that wait for the pool; one more is refused.
    pub max_waiting: usize,
    /// Sessions held, idle ones included.
    pub max_sessions: usize,
    /// Turns of one session that wait for the one before.
    pub max_session_turns: usize,
    /// Seconds after which an idle session is forgotten.
    pub session_idle_s: u64,
    /// Tokens that a slow reader may be behind before its turn is paused.
    pub stream_buffer: usize,
    /// Milliseconds that the placement store keeps the group after its last sign of life.
    pub lease_ttl_ms: u64,
    /// Longest that the first registration waits for a store that does not answer; `None`: as long as it takes. The
    /// process's `join_wait_s`.
    #[serde(skip)]
    pub join_wait: Option<Duration>,
    /// Keep rows of prompts that have ended, for others of the same tenant that begin alike; given up first when slots
    /// are needed.
    pub share_prefixes: bool,
    /// Hand sessions over to another group of the same model when this one drains, instead of giving them up.
    pub move_sessions: bool,
    /// Sessions that leave at once, and as many that arrive.
    pub max_moves: usize,
    /// Longest that one session may take to move.
    pub move_timeout_ms: u64,
    /// Giving sessions away while others of this model are less loaded.
    pub rebalance: BalanceOptions,
    /// What sessions keep that choose nothing themselves.
    pub retention: Retention,
    /// What the leader shows to routers, and to groups that sessions come from.
    pub tls: ServerTls,
    /// How this group talks to those that its sessions go to.
    pub peer_tls: ClientTls,
    /// What the ranks of a group of processes show to each other. All of them have it, or none.
    pub rank_tls: MutualTls,
    /// Of the connections from routers. Not a key: every hop has the same.
    #[serde(skip)]
    pub keepalive: Keepalive,
    /// Times and answers of the simulated engine.
    pub simulated: SimulatedOptions,
}

impl Default for WorkerOptions {
    fn default() -> Self {
        Self {
            group: "group-0".to_owned(),
            engine: EngineKind::Model,
            model: PathBuf::new(),
            model_name: String::new(),
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            advertise: String::new(),
            threads: 0,
            kv_slots: 0,
            kv_memory_mib: 1024,
            prefault: false,
            archive_slots: 0,
            tp: 1,
            world: 1,
            rank: 0,
            rendezvous: String::new(),
            collective: CollectiveKind::Auto,
            gpu: 0,
            rank_timeout_ms: 2_000,
            archive_memory_mib: 256,
            kv_type: KvType::F16,
            context_tokens: 0,
            step_tokens: 256,
            mixed_tokens: 64,
            max_running: 32,
            max_waiting: 256,
            max_sessions: 10_000,
            max_session_turns: 8,
            session_idle_s: 3_600,
            stream_buffer: 64,
            lease_ttl_ms: 10_000,
            join_wait: None,
            share_prefixes: true,
            move_sessions: true,
            max_moves: 4,
            move_timeout_ms: 10_000,
            rebalance: BalanceOptions::default(),
            retention: Retention::default(),
            tls: ServerTls::default(),
            peer_tls: ClientTls::default(),
            rank_tls: MutualTls::default(),
            keepalive: Keepalive::default(),
            simulated: SimulatedOptions::default(),
        }
    }
}

/// An option out of its bounds.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum InvalidOptions {
    #[error("model is not set; name a .gguf file or a checkpoint directory")]
    NoModel,
    #[error("group: {0}")]
    Group(#[from] hawser_common::ids::InvalidId),
    #[error(transparent)]
    Retention(#[from] InvalidRetention),
    #[error("tls: {0}")]
    Tls(#[from] InvalidTls),
    #[error("peer_tls: {0}")]
    PeerTls(InvalidTls),
    #[error("rank_tls: {0}")]
    RankTls(InvalidTls),
    #[error("rank_tls does not encrypt what NCCL sends; choose collective = \"tcp\", or do without rank_tls")]
    RankTlsOverNccl,
    #[error("rendezvous is {found:?}; expected is host:port, such as leader:7100")]
    Rendezvous { found: String },
    #[error("advertise is {found:?}; expected is a URI, such as http://host:7071")]
    Advertise { found: String },
    #[error("advertise is {found:?}, and the worker has tls; write it with https://")]
    AdvertisePlain { found: String },
    #[error("{key} is {found}; allowed is {allowed}")]
    Value { key: &'static str, found: u64, allowed: &'static str },
    #[error("simulated.time_scale is {found}; allowed is 0 to 1000")]
    TimeScale { found: f64 },
}

impl Coded for InvalidOptions {
    fn code(&self) -> ErrorCode {
        ErrorCode::Invalid
    }
}

impl WorkerOptions {
    /// # Errors
    /// [`InvalidOptions`] names the first key out of its bounds.
    pub fn validate(&self) -> Result<(), InvalidOptions> {
        let simulated = self.engine == EngineKind::Simulated;
        if self.model.as_os_str().is_empty() && !simulated {
            return Err(InvalidOptions::NoModel);
        }
        GroupId::parse(&self.group)?;
        let check = |key, found: usize, ok: bool, allowed| {
            if ok { Ok(()) } else { Err(InvalidOptions::Value { key, found: found as u64, allowed }) }
        };
        check("threads", self.threads, self.threads <= 512, "0 to 512")?;
        check("kv_slots", self.kv_slots, self.kv_slots != 1, "0, or at least 2 (one is the dead slot)")?;
        check("kv_slots", self.kv_slots, u32::try_from(self.kv_slots).is_ok(), "below 2^32")?;
        let slots = self.kv_slots.saturating_add(self.archive_slots);
        check("archive_slots", self.archive_slots, u32::try_from(slots).is_ok(), "below 2^32 with kv_slots")?;
        check("kv_memory_mib", self.kv_memory_mib, self.kv_memory_mib > 0, "at least 1")?;
        check("tp", self.tp, (1..=64).contains(&self.tp), "1 to 64")?;
        check("world", self.world, (1..=64).contains(&self.world), "1 to 64")?;
        check("rank", self.rank, self.rank < self.world, "below world")?;
        check("tp", self.tp, self.world == 1 || self.tp == 1, "1 where the group has several processes")?;
        let one_rank = !simulated || self.tp.max(self.world) == 1;
        check("tp", self.tp.max(self.world), one_rank, "1 with the simulated engine, as is world")?;
        let meets = self.world == 1 || !self.rendezvous.is_empty();
        check("world", self.world, meets, "1, or more with worker.rendezvous set")?;
        if !self.rendezvous.is_empty() && !is_place(&self.rendezvous) {
            return Err(InvalidOptions::Rendezvous { found: self.rendezvous.clone() });
        }
        if !self.advertise.is_empty() && !is_uri(&self.advertise) {
            return Err(InvalidOptions::Advertise { found: self.advertise.clone() });
        }
        if self.tls.is_on() && self.advertise.starts_with("http://") {
            return Err(InvalidOptions::AdvertisePlain { found: self.advertise.clone() });
        }
        let joins = self.collective != CollectiveKind::Nccl || self.world > 1;
        check("world", self.world, joins, "2 or more where worker.collective is nccl")?;
        check("gpu", self.gpu, self.gpu < 1_024, "0 to 1023")?;
        let patience = usize::try_from(self.rank_timeout_ms).unwrap_or(usize::MAX);
        check("rank_timeout_ms", patience, (1_000..=600_000).contains(&patience), "1000 to 600000")?;
        check("step_tokens", self.step_tokens, (1..=65_536).contains(&self.step_tokens), "1 to 65536")?;
        check("mixed_tokens", self.mixed_tokens, (1..=65_536).contains(&self.mixed_tokens), "1 to 65536")?;
        check("max_running", self.max_running, (1..=4_096).contains(&self.max_running), "1 to 4096")?;
        check("max_waiting", self.max_waiting, (1..=65_536).contains(&self.max_waiting), "1 to 65536")?;
        check("max_sessions", self.max_sessions, self.max_sessions > 0, "at least 1")?;
        check("stream_buffer", self.stream_buffer, (1..=65_536).contains(&self.stream_buffer), "1 to 65536")?;
        let ttl = usize::try_from(self.lease_ttl_ms).unwrap_or(usize::MAX);
        check("lease_ttl_ms", ttl, (500..=600_000).contains(&ttl), "500 to 600000")?;
        check("max_moves", self.max_moves, (1..=64).contains(&self.max_moves), "1 to 64")?;
        let patience = usize::try_from(self.move_timeout_ms).unwrap_or(usize::MAX);
        check("move_timeout_ms", patience, (100..=600_000).contains(&patience), "100 to 600000")?;
        self.rebalance.validate()?;
        self.tls.validate()?;
        self.peer_tls.validate().map_err(InvalidOptions::PeerTls)?;
        self.rank_tls.validate().map_err(InvalidOptions::RankTls)?;
        if self.rank_tls.is_on() && self.collective == CollectiveKind::Nccl {
            return Err(InvalidOptions::RankTlsOverNccl);
        }
        self.retention.validate()?;
        self.simulated.validate()
    }

    /// Threads of a step.
    #[must_use]
    pub fn thread_count(&self) -> NonZeroUsize {
        let all = || std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
        NonZeroUsize::new(self.threads).unwrap_or_else(all)
    }
}

/// A host and a port.
fn is_place(text: &str) -> bool {
    let port = |port: &str| port.parse::<u16>().is_ok();
    text.rsplit_once(':').is_some_and(|(host, rest)| !host.is_empty() && !host.contains('/') && port(rest))
}

fn is_uri(text: &str) -> bool {
    let host = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
    host.is_some_and(|host| !host.is_empty() && !host.starts_with(['/', ':']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_cannot_be_any_are_named_before_a_model_is_looked_for() {
        let of = |rendezvous: &str, advertise: &str| {
            let (rendezvous, advertise) = (rendezvous.to_owned(), advertise.to_owned());
            let model = "m.gguf".into();
            WorkerOptions { model, world: 2, rendezvous, advertise, ..WorkerOptions::default() }.validate()
        };
        for (rendezvous, advertise) in
            [("leader:7100", ""), ("[::1]:0", "https://h:1"), ("10.0.0.1:1", "http://h")]
        {
            assert_eq!(of(rendezvous, advertise), Ok(()), "{rendezvous} {advertise}");
        }
        for wrong in ["leader", ":7100", "leader:", "leader:70000", "http://leader:7100"] {
            let found = wrong.to_owned();
            assert_eq!(of(wrong, ""), Err(InvalidOptions::Rendezvous { found }));
        }
        for wrong in ["host:7071", "http://", "grpc://h:1", "http://:1"] {
            let found = wrong.to_owned();
            assert_eq!(of("leader:1", wrong), Err(InvalidOptions::Advertise { found }));
        }
    }

    #[test]
    fn a_worker_with_tls_does_not_advertise_plain_text() {
        let file = || Some(PathBuf::from("pem"));
        let tls = ServerTls { cert_file: file(), key_file: file(), client_ca_file: None };
        let of = |advertise: &str| {
            let advertise = advertise.to_owned();
            WorkerOptions { model: "m".into(), tls: tls.clone(), advertise, ..WorkerOptions::default() }
                .validate()
        };
        assert_eq!(of("https://host:7071"), Ok(()));
        let plain = InvalidOptions::AdvertisePlain { found: "http://host:7071".into() };
        assert_eq!(of("http://host:7071"), Err(plain));
    }

    #[test]
    fn certificates_between_ranks_are_whole_and_never_over_nccl() {
        let some = || Some(PathBuf::from("x.pem"));
        let whole = MutualTls { ca_file: some(), cert_file: some(), key_file: some() };
        let of = |rank_tls: MutualTls, collective| WorkerOptions {
            model: "m.gguf".into(),
            world: 2,
            rendezvous: "leader:7100".to_owned(),
            rank_tls,
            collective,
            ..WorkerOptions::default()
        };
        assert_eq!(of(whole.clone(), CollectiveKind::Auto).validate(), Ok(()));
        assert_eq!(of(MutualTls::default(), CollectiveKind::Nccl).validate(), Ok(()));
        let half = MutualTls { key_file: None, ..whole.clone() };
        let refused = of(half, CollectiveKind::Auto).validate().unwrap_err();
        assert_eq!(refused.to_string(), "rank_tls: cert_file needs key_file as well");
        let clear = of(whole, CollectiveKind::Nccl).validate().unwrap_err();
        assert_eq!(clear, InvalidOptions::RankTlsOverNccl);
    }
}
