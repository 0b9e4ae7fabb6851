//! A group of processes over TCP: the leader's side and a follower's.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use hawser_common::clock::Clock;
use hawser_device::collective::TcpRank;
use hawser_device::collective::nccl::Member;
use hawser_device::kv::RowType;
use hawser_model::executor::{Executor, ExecutorOptions};
use hawser_model::layers::Model;
use thiserror::Error;

use super::follower::follow;
use super::formation::{FormError, Formation};
use super::leader::Leader;
use super::link::{Channel, Link};
use super::probe::Unprobed;
use super::rank::{Rank, RankError};
use super::rendezvous::{GREETING, Hello, Terms, Welcome, hear, say};
use super::sums::{self, Sums, lead};
use super::traced::RankWatch;

/// Longest that the leader looks for followers in one try.
const LOOK: Duration = Duration::from_millis(800);
/// Longest that one connection may hold the leader up.
const PATIENCE: Duration = Duration::from_millis(500);
/// Between two looks.
const POLL: Duration = Duration::from_millis(10);
/// Connections that may be greeted in one try: strangers do not keep the leader for ever.
const MAX_GREETINGS: usize = 256;

/// The leader of ranks in other processes.
#[derive(Debug)]
pub struct Processes {
    listener: TcpListener,
    /// The leader's shard.
    shard: Arc<Model>,
    /// Digest of the checkpoint.
    model: String,
    world: usize,
    options: ExecutorOptions,
    timeout: Duration,
    sums: Sums,
    clock: Clock,
    /// Ranks that have come, at `rank - 1`.
    joined: Vec<Joining>,
    watch: Option<RankWatch>,
}

/// The connections of one follower's attempt.
#[derive(Debug, Default)]
struct Joining {
    attempt: u64,
    commands: Option<TcpStream>,
    sums: Option<TcpStream>,
}

impl Joining {
    /// Both, if both are there and the other side has not gone.
    fn is_here(&self) -> bool {
        let alive = |stream: &Option<TcpStream>| stream.as_ref().is_some_and(is_open);
        alive(&self.commands) && alive(&self.sums)
    }
}

impl Processes {
    /// A leader that listens at `address` for the other `world - 1` ranks.
    ///
    /// # Errors
    /// Where the address cannot be listened at.
    pub fn listen(
        address: SocketAddr,
        (shard, model): (Arc<Model>, String),
        world: usize,
        (options, timeout, sums): (ExecutorOptions, Duration, Sums),
        clock: Clock,
    ) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let joined = (1..world).map(|_| Joining::default()).collect();
        Ok(Self { listener, shard, model, world, options, timeout, sums, clock, joined, watch: None })
    }

    /// The same, under watch.
    #[must_use]
    pub fn watched_by(self, watch: RankWatch) -> Self {
        Self { watch: Some(watch), ..self }
    }

    /// Where it listens.
    ///
    /// # Errors
    /// If the operating system does not say.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Takes connections until all ranks are there or the time is over.
    fn gather(&mut self) -> io::Result<bool> {
        let until = self.clock.now().after(LOOK);
        for _ in 0..MAX_GREETINGS {
            loop {
                match self.listener.accept() {
                    Ok((stream, from)) => {
                        if let Err(error) = self.greet(stream) {
                            tracing::warn!(%from, %error, "a connection is no rank of this group");
                        }
                        break;
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(error) => return Err(error),
                }
                if self.joined.iter().all(Joining::is_here) {
                    return Ok(true);
                }
                if self.clock.now() >= until {
                    return Ok(false);
                }
                std::thread::sleep(POLL);
            }
        }
        Ok(self.joined.iter().all(Joining::is_here))
    }

    fn greet(&mut self, mut stream: TcpStream) -> io::Result<()> {
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        // A follower speaks at once.
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let hello: Hello = hear(&mut stream)?;
        if let Some(reason) = hello.refused(&self.model, self.world) {
            tracing::warn!(rank = hello.rank, %reason, "a rank was refused");
            return say(&mut stream, &Welcome::Refused { reason });
        }
        let joining = &mut self.joined[hello.rank - 1];
        if joining.attempt != hello.attempt {
            // A follower that has started again: what is left of its last attempt is closed.
            *joining = Joining { attempt: hello.attempt, ..Joining::default() };
        }
        match hello.channel {
            Channel::Commands => joining.commands = Some(stream),
            Channel::Sums => joining.sums = Some(stream),
        }
        Ok(())
    }

    fn start(&mut self, epoch: u64) -> Result<Leader, FormError> {
        let terms = Terms {
            epoch,
            slots: self.options.slots,
            row_type: match self.options.row_type {
                RowType::F32 => 0,
                RowType::F16 => 1,
                RowType::Bf16 => 2,
            },
            timeout_ms: u64::try_from(self.timeout.as_millis()).unwrap_or(u64::MAX),
            nccl: self.sums.draw()?,
        };
        let (mut commands, mut sums) = (Vec::new(), Vec::new());
        for joining in &mut self.joined {
            let Joining { commands: command, sums: sum, .. } = std::mem::take(joining);
            for (stream, list) in [(command, &mut commands), (sum, &mut sums)] {
                let mut stream = stream.ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected))?;
                say(&mut stream, &Welcome::Start(terms.clone()))?;
                list.push(stream);
            }
        }
        let sums = lead(self.sums, terms.nccl.as_deref(), sums, self.timeout)?;
        let link = Link::new(Box::new(TcpRank::hub(commands, self.timeout)?));
        let abort = sums.abort_handle();
        let executor = Executor::in_group(Arc::clone(&self.shard), self.options, sums)?;
        let rank = Rank::new(executor, epoch).watched_by(self.watch.clone(), 0);
        Ok(Leader::of(rank, link, abort))
    }
}

impl Formation for Processes {
    fn world(&self) -> usize {
        self.world
    }

    fn form(&mut self, epoch: u64) -> Result<Leader, FormError> {
        if self.gather()? {
            return self.start(epoch);
        }
        for joining in &mut self.joined {
            // One that cannot be told is gone, and comes again if it can.
            if joining.commands.as_mut().is_some_and(|stream| say(stream, &Welcome::Wait).is_err()) {
                *joining = Joining::default();
            }
        }
        let missing = (1..).zip(&self.joined).filter(|(_, joining)| !joining.is_here());
        Err(FormError::Missing { ranks: missing.map(|(rank, _)| rank).collect(), world: self.world })
    }
}

/// Whether the other side has not closed the connection.
fn is_open(stream: &TcpStream) -> bool {
    if stream.set_nonblocking(true).is_err() {
        return false;
    }
    let peeked = stream.peek(&mut [0; 1]);
    let waits = matches!(&peeked, Err(error) if error.kind() == io::ErrorKind::WouldBlock);
    stream.set_nonblocking(false).is_ok() && (waits || peeked.is_ok_and(|bytes| bytes > 0))
}

/// Why a follower left its group.
#[derive(Debug, Error)]
pub enum FollowError {
    #[error("the leader at {address} refused this rank: {reason}")]
    Refused { address: String, reason: String },
    #[error("cannot reach the leader at {address}: {source}")]
    Connect { address: String, source: io::Error },
    #[error(transparent)]
    Form(#[from] FormError),
    #[error(transparent)]
    Rank(#[from] RankError),
}

/// One follower in a process of its own.
#[derive(Debug)]
pub struct Follower {
    pub shard: Arc<Model>,
    /// Digest of the checkpoint.
    pub model: String,
    pub rank: usize,
    pub world: usize,
    /// Where the leader listens for ranks, `host:port`.
    pub leader: String,
    pub threads: std::num::NonZeroUsize,
    pub watch: Option<RankWatch>,
    /// Number of its GPU, where the leader chooses NCCL.
    pub gpu: usize,
}

impl Follower {
    /// Joins the group and follows its leader for one epoch. Returns when the leader ends the group in good order.
    ///
    /// # Errors
    /// [`FollowError`]; all but a refusal may be tried again.
    pub fn run(&self, attempt: u64) -> Result<(), FollowError> {
        let connect = |source| FollowError::Connect { address: self.leader.clone(), source };
        let open = |channel| self.open(attempt, channel).map_err(connect);
        let (mut commands, mut sums) = (open(Channel::Commands)?, open(Channel::Sums)?);
        let terms = self.terms(&mut commands)?;
        self.terms(&mut sums)?;
        let timeout = Duration::from_millis(terms.timeout_ms);
        let spoke = TcpRank::spoke(self.rank, self.world, commands, timeout).map_err(connect)?;
        let mut link = Link::new(Box::new(spoke));
        let row_type = match terms.row_type {
            0 => RowType::F32,
            1 => RowType::F16,
            _ => RowType::Bf16,
        };
        let options = ExecutorOptions { slots: terms.slots, row_type, threads: self.threads };
        let member = Member { rank: self.rank, world: self.world };
        let sums = sums::follow(self.gpu, terms.nccl.as_deref(), member, sums, timeout)?;
        let abort = sums.abort_handle();
        let executor = Executor::in_group(Arc::clone(&self.shard), options, sums).map_err(FormError::from)?;
        let mut rank = Rank::new(executor, terms.epoch).watched_by(self.watch.clone(), self.rank);
        tracing::info!(rank = self.rank, epoch = terms.epoch, "joined the group");
        Ok(follow(&mut rank, &mut link, &abort, &Unprobed)?)
    }

    fn open(&self, attempt: u64, channel: Channel) -> io::Result<TcpStream> {
        let mut addresses = self.leader.to_socket_addrs()?;
        let address = addresses.next().ok_or(io::ErrorKind::AddrNotAvailable)?;
        let mut stream = TcpStream::connect_timeout(&address, GREETING)?;
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(GREETING))?;
        stream.set_read_timeout(Some(GREETING))?;
        say(&mut stream, &Hello::new(&self.model, (self.rank, self.world), attempt, channel))?;
        Ok(stream)
    }

    /// Waits until the group starts: for as long as the leader says that other ranks are missing, since they may take
    /// their time.
    fn terms(&self, stream: &mut TcpStream) -> Result<Terms, FollowError> {
        loop {
            match hear(stream) {
                Ok(Welcome::Wait) => {}
                Ok(Welcome::Start(terms)) => return Ok(terms),
                Ok(Welcome::Refused { reason }) => {
                    return Err(FollowError::Refused { address: self.leader.clone(), reason });
                }
                Err(source) => return Err(FollowError::Connect { address: self.leader.clone(), source }),
            }
        }
    }
}
