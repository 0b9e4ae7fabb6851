//! Watching: list everything at one revision, then every change from the next one on, without a gap.
//!
//! A connection that breaks is resumed after the last revision that was told. One that is silent is asked for a sign
//! of life, and counts as broken if it gives none. Where etcd has forgotten the next revision, everything is listed
//! anew and told as a snapshot. Now and then the registrations are counted over: where a group's end was missed, whoever
//! swallowed it, everything is listed anew as well. What helps for longer than a few tries is the subscriber's to decide: the watch ends
//! with an error then.

use std::collections::{HashSet, VecDeque};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use etcd_client::{Event as Raw, EventType, GetOptions, KeyValue, WatchOptions, WatchResponse, WatchStream};
use futures_util::StreamExt as _;
use futures_util::stream::unfold;
use hawser_common::{Epoch, GroupId};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};
use tracing::{debug, info, warn};

use super::claims::malformed;
use super::fault::Fault;
use super::fold::{Entry, Fold};
use super::keys::{Key, Keys};
use super::link::Link;
use crate::backoff;
use crate::store::{Change, LeaseId, StoreError, Update, Watch};

/// Keys of one page of a listing.
const PAGE: i64 = 4096;
/// Largest message: a page of the longest names, or the end of a group with ten thousands of claims.
const MAX_MESSAGE_BYTES: usize = 64 << 20;
/// Breaks in a row, without a sign of life in between, after which a watch ends.
const BREAKS: u32 = 5;
const MAX_WAIT: Duration = Duration::from_secs(2);
/// How often registrations are counted over. Two counts that agree make a missed end, so one is noticed within two
/// leases of the default time.
const AUDIT_EVERY: Duration = Duration::from_secs(5);

/// Everything there is, then every change.
pub(super) async fn watch(link: Arc<Link>, keys: Keys) -> Result<Watch, StoreError> {
    let fold = list(&link, &keys).await.map_err(|fault| fault.into_error(LeaseId(0)))?;
    let ready = VecDeque::from([told(&fold)]);
    let mut audit = interval_at(Instant::now() + AUDIT_EVERY, AUDIT_EVERY);
    audit.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let suspects = HashSet::new();
    let watcher = Watcher { link, keys, fold, stream: None, ready, breaks: 0, audit, suspects };
    let updates = unfold(Some(watcher), |watcher| async {
        let mut watcher = watcher?;
        match watcher.next().await {
            Ok(update) => Some((Ok(update), Some(watcher))),
            Err(fault) => Some((Err(fault.into_error(LeaseId(0))), None)),
        }
    });
    Ok(updates.boxed())
}

fn told(fold: &Fold) -> Update {
    Update { revision: fold.revision(), change: Change::Snapshot(fold.snapshot()) }
}

/// Everything at one revision, page by page. Starts over where etcd forgets that revision meanwhile.
async fn list(link: &Link, keys: &Keys) -> Result<Fold, Fault> {
    for _ in 0..BREAKS {
        match list_once(link, keys).await {
            Err(Fault::Compacted) => debug!("etcd was compacted while it was listed; listing again"),
            listed => return listed,
        }
    }
    Err(Fault::Compacted)
}

async fn list_once(link: &Link, keys: &Keys) -> Result<Fold, Fault> {
    let (mut from, end) = keys.range();
    let mut listed: Option<Fold> = None;
    loop {
        let mut options = GetOptions::new().with_range(end.clone()).with_limit(PAGE);
        if let Some(fold) = &listed {
            options = options.with_revision(signed(fold.revision()));
        }
        let page = link
            .call(|client| {
                let (from, options) = (from.clone(), options.clone());
                let mut kv = client.kv_client().max_decoding_message_size(MAX_MESSAGE_BYTES);
                Box::pin(async move { kv.get(from, Some(options)).await })
            })
            .await?;
        let revision = page.header().map(|header| unsigned(header.revision()));
        let Some(revision) = revision else { return Err(malformed("a listing without a revision")) };
        let mut fold = listed.unwrap_or_else(|| Fold::new(keys.clone(), revision));
        fold.apply(fold.revision(), page.kvs().iter().map(|kv| entry(kv, EventType::Put)));
        match page.kvs().last() {
            Some(last) if page.more() => {
                from = last.key().to_vec();
                // The smallest key after it.
                from.push(0);
                listed = Some(fold);
            }
            Some(_) | None => return Ok(fold),
        }
    }
}

/// Every registration there is, without its content.
async fn registrations(link: &Link, keys: &Keys) -> Result<HashSet<(GroupId, Epoch)>, Fault> {
    let (from, end) = keys.groups();
    let options = GetOptions::new().with_range(end).with_keys_only();
    let found = link
        .call(|client| {
            let (from, options) = (from.clone(), options.clone());
            let mut kv = client.kv_client().max_decoding_message_size(MAX_MESSAGE_BYTES);
            Box::pin(async move { kv.get(from, Some(options)).await })
        })
        .await?;
    let registration = |kv: &KeyValue| match keys.parse(kv.key()) {
        Some(Key::Group(id)) => Some((id, Epoch(unsigned(kv.create_revision())))),
        Some(Key::Capacity(_) | Key::Session(_)) | None => None,
    };
    Ok(found.kvs().iter().filter_map(registration).collect())
}

struct Watcher {
    link: Arc<Link>,
    keys: Keys,
    fold: Fold,
    stream: Option<WatchStream>,
    /// Updates that are not told yet.
    ready: VecDeque<Update>,
    breaks: u32,
    audit: Interval,
    /// Registrations that are known here and were not in etcd at the last audit.
    suspects: HashSet<(GroupId, Epoch)>,
}

/// Why a stream is of no more use.
enum Broken {
    /// Open it again, after what was told.
    Resume(String),
    /// What comes next is forgotten.
    List,
}

impl Watcher {
    async fn next(&mut self) -> Result<Update, Fault> {
        loop {
            if let Some(update) = self.ready.pop_front() {
                return Ok(update);
            }
            let broken = match self.step().await {
                Ok(()) => continue,
                Err(broken) => broken,
            };
            self.stream = None;
            if self.breaks >= BREAKS {
                let reason = match broken {
                    Broken::Resume(reason) => reason,
                    Broken::List => "etcd forgets changes faster than they can be listed".to_owned(),
                };
                return Err(Fault::Unreachable(reason));
            }
            tokio::time::sleep(backoff::after(self.breaks, MAX_WAIT)).await;
            self.breaks += 1;
            match broken {
                Broken::Resume(reason) => debug!(%reason, "a watch of etcd broke; resuming it"),
                Broken::List => {
                    info!(
                        revision = self.fold.revision(),
                        "etcd has forgotten what comes next; listing anew"
                    );
                    self.fold = list(&self.link, &self.keys).await?;
                    self.ready.push_back(told(&self.fold));
                }
            }
        }
    }

    /// One message of the stream, which is opened first if need be.
    async fn step(&mut self) -> Result<(), Broken> {
        let mut stream = match self.stream.take() {
            Some(stream) => stream,
            None => self.open().await?,
        };
        let response = {
            let mut next = pin!(message(&mut stream, self.link.limit()));
            loop {
                // Cancel-safe: a tick only waits, and the message is waited for on.
                tokio::select! {
                    biased;
                    response = &mut next => break response?,
                    _ = self.audit.tick() => self.audit().await?,
                }
            }
        };
        self.stream = Some(stream);
        self.take(&response)
    }

    /// Looks for registrations that have ended without a word. One that is missing may be on its way; one that is
    /// missing twice is not.
    async fn audit(&mut self) -> Result<(), Broken> {
        let there = match registrations(&self.link, &self.keys).await {
            Ok(there) => there,
            Err(fault) => {
                debug!(?fault, "the groups in etcd were not counted over");
                return Ok(());
            }
        };
        let known = self.fold.registrations().map(|(id, epoch)| (id.clone(), epoch));
        let missing: HashSet<_> = known.filter(|registration| !there.contains(registration)).collect();
        let missed = missing.intersection(&self.suspects).next().cloned();
        self.suspects = missing;
        match missed {
            None => Ok(()),
            Some((group, epoch)) => {
                warn!(%group, %epoch, "the watch of etcd missed the end of a group");
                self.suspects.clear();
                Err(Broken::List)
            }
        }
    }

    async fn open(&self) -> Result<WatchStream, Broken> {
        let (start, end) = self.keys.range();
        let options = WatchOptions::new()
            .with_range(end)
            .with_start_revision(signed(self.fold.revision()).saturating_add(1))
            .with_progress_notify();
        let opened = self.link.call(|client| {
            let (start, options) = (start.clone(), options.clone());
            let mut watch = client.watch_client().max_decoding_message_size(MAX_MESSAGE_BYTES);
            Box::pin(async move { watch.watch(start, Some(options)).await })
        });
        opened.await.map_err(|fault| Broken::Resume(fault.into_error(LeaseId(0)).to_string()))
    }

    fn take(&mut self, response: &WatchResponse) -> Result<(), Broken> {
        if response.canceled() {
            // A watch from a forgotten revision is cancelled with the one that is left, and without a reason.
            return Err(match response.compact_revision() {
                0 => Broken::Resume(format!("etcd ended the watch: {}", response.cancel_reason())),
                _ => Broken::List,
            });
        }
        if response.created() {
            // A store that is behind what it said before was restored from a backup, or another member answers that
            // has yet to catch up. Either way a listing tells what is so now.
            let revision = response.header().map_or(0, |header| unsigned(header.revision()));
            return if revision < self.fold.revision() { Err(Broken::List) } else { Ok(()) };
        }
        self.breaks = 0;
        for run in response.events().chunk_by(|a, b| revision(a) == revision(b)) {
            let revision = run.first().map_or(0, revision);
            // Never twice: a resumed watch begins after what was told.
            if revision <= self.fold.revision() {
                continue;
            }
            let entries = run.iter().filter_map(|raw| Some(entry(raw.kv()?, raw.event_type())));
            let events = self.fold.apply(revision, entries);
            if !events.is_empty() {
                self.ready.push_back(Update { revision, change: Change::Events(events) });
            }
        }
        Ok(())
    }
}

/// The next message. A stream that has been silent for `limit` is asked for a sign of life and has as long to give it.
async fn message(stream: &mut WatchStream, limit: Duration) -> Result<WatchResponse, Broken> {
    // Reading a message may be given up and taken up again: what has arrived of it stays in the stream.
    let mut read = tokio::time::timeout(limit, stream.message()).await;
    if read.is_err() {
        let asked = tokio::time::timeout(limit, stream.request_progress()).await;
        if !matches!(asked, Ok(Ok(()))) {
            return Err(Broken::Resume("etcd takes no requests on the watch".to_owned()));
        }
        read = tokio::time::timeout(limit, stream.message()).await;
    }
    match read {
        Ok(Ok(Some(response))) => Ok(response),
        Ok(Ok(None)) => Err(Broken::Resume("etcd closed the watch".to_owned())),
        Ok(Err(error)) => Err(Broken::Resume(error.to_string())),
        Err(_) => Err(Broken::Resume(format!("the watch of etcd was silent for {:?}", limit * 2))),
    }
}

fn entry(kv: &KeyValue, kind: EventType) -> Entry<'_> {
    let value = match kind {
        EventType::Put => Some(kv.value()),
        EventType::Delete => None,
    };
    Entry { key: kv.key(), value, created: unsigned(kv.create_revision()) }
}

fn revision(event: &Raw) -> u64 {
    event.kv().map_or(0, |kv| unsigned(kv.mod_revision()))
}

/// Revisions are positive on the wire and signed all the same.
pub(super) fn unsigned(revision: i64) -> u64 {
    u64::try_from(revision).unwrap_or(0)
}

fn signed(revision: u64) -> i64 {
    i64::try_from(revision).unwrap_or(i64::MAX)
}
