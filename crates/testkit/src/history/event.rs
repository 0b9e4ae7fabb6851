//! The events of a history, and the recorder that everything writes to.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use hawser_common::clock::Tick;
use hawser_common::group::Owner;
use hawser_common::{ErrorCode, SessionKey};

use crate::etcd::Write;

/// A turn as its client named it: no two have one name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TurnId(pub String);

impl fmt::Display for TurnId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// How a turn ended for its client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// Well, with so many tokens as the result says.
    Finished {
        tokens: u32,
    },
    Failed {
        code: ErrorCode,
    },
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A client begins a turn. `history` is every turn before it that the client knows to be committed.
    Asked {
        session: SessionKey,
        turn: TurnId,
        history: Vec<TurnId>,
    },
    /// A client is told where its turn runs. A turn that is tried again may be told twice.
    Placed {
        turn: TurnId,
        owner: Owner,
    },
    /// A client reads tokens, which are their own places in the turn.
    Received {
        turn: TurnId,
        tokens: Vec<u32>,
    },
    Ended {
        turn: TurnId,
        end: End,
    },
    /// A worker begins to serve a turn that was routed by `routed`, on what it holds of the session.
    Served {
        session: SessionKey,
        turn: TurnId,
        owner: Owner,
        routed: u64,
        history: Vec<TurnId>,
    },
    /// A token leaves a worker.
    Sent {
        session: SessionKey,
        turn: TurnId,
        owner: Owner,
        token: u32,
    },
    /// A worker refuses a call for want of a valid lease.
    Fenced {
        owner: Owner,
    },
    /// The store gave the session to an owner.
    Claimed {
        session: SessionKey,
        owner: Owner,
    },
    /// The store took it back, for whatever reason.
    Released {
        session: SessionKey,
    },
    /// A group registered.
    Registered {
        owner: Owner,
    },
    /// A registration ended.
    Gone {
        group: String,
    },
    /// The store forgot everything.
    StoreLost,
    /// Whatever the test did to the cluster, in words.
    Fault {
        what: String,
    },
    /// From here on nothing is broken.
    Healed,
}

/// An event with its time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub at: Tick,
    pub event: Event,
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>9.3} s  {:?}", self.at.0.as_secs_f64(), self.event)
    }
}

type Now = Arc<dyn Fn() -> Tick + Send + Sync>;

/// Takes events from everywhere. Clones write into the same history.
#[derive(Clone)]
pub struct Recorder {
    entries: Arc<Mutex<Vec<Entry>>>,
    now: Now,
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder").finish_non_exhaustive()
    }
}

impl Recorder {
    /// A history by the one clock that everybody shares.
    #[must_use]
    pub fn new(now: impl Fn() -> Tick + Send + Sync + 'static) -> Self {
        Self { entries: Arc::default(), now: Arc::new(now) }
    }

    pub fn record(&self, event: Event) {
        let at = (self.now)();
        self.entries.lock().unwrap_or_else(PoisonError::into_inner).push(Entry { at, event });
    }

    /// Everything so far, with what the store wrote put where it belongs: before what happened at the same time, since
    /// nobody can act on a write before it is made.
    #[must_use]
    pub fn history(&self, writes: &[Write]) -> Vec<Entry> {
        let recorded = self.entries.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut history: Vec<Entry> = writes.iter().filter_map(stored).collect();
        history.extend(recorded);
        history.sort_by_key(|entry| entry.at);
        history
    }
}

/// A write of the store, as what it means.
fn stored(write: &Write) -> Option<Entry> {
    let (_, path) = write.key.split_once("/v1/")?;
    let (kind, name) = path.split_once('/')?;
    let value = write.value.as_deref();
    let event = match (kind, value) {
        ("sessions", value) => {
            let (tenant, session) = name.split_once('/')?;
            let tenant = hawser_common::TenantId::parse(tenant).ok()?;
            let session = SessionKey { tenant, session: hawser_common::SessionId::parse(session).ok()? };
            match value {
                Some(value) => Event::Claimed { session, owner: owner(value)? },
                None => Event::Released { session },
            }
        }
        ("groups", Some(_)) => {
            let epoch = hawser_common::Epoch(u64::try_from(write.revision).ok()?);
            Event::Registered { owner: Owner { group: hawser_common::GroupId::parse(name).ok()?, epoch } }
        }
        ("groups", None) => Event::Gone { group: name.to_owned() },
        _ => return None,
    };
    Some(Entry { at: write.at, event })
}

/// The owner in a claim's value.
fn owner(value: &[u8]) -> Option<Owner> {
    let text = std::str::from_utf8(value).ok()?;
    let (_, rest) = text.split_once("\"group\":\"")?;
    let (group, rest) = rest.split_once('"')?;
    let (_, rest) = rest.split_once("\"epoch\":")?;
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    let group = hawser_common::GroupId::parse(group).ok()?;
    Some(Owner { group, epoch: hawser_common::Epoch(digits.parse().ok()?) })
}
