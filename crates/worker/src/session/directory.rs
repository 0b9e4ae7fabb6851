//! The sessions of this group, each checked out by one turn at a time.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hawser_common::SessionKey;
use hawser_common::clock::{Clock, Tick, unix_seconds};
use hawser_common::retention::Retention;
use tokio::sync::{Notify, OwnedMutexGuard};

use super::transcript::Transcript;
use crate::turn::TurnError;

/// Bounds of a directory.
#[derive(Debug, Clone, Copy)]
pub struct SessionsOptions {
    /// Sessions held; one more is refused unless another has been idle for `idle_limit`.
    pub max_sessions: usize,
    /// Turns of one session that wait for the one before; one more is refused.
    pub max_waiting: usize,
    /// A session idle for longer is forgotten.
    pub idle_limit: Duration,
}

/// What can be said about a session without waiting for its turn.
#[derive(Debug, Clone, Default)]
pub struct Summary {
    pub turns: u32,
    pub tokens: usize,
    pub busy: bool,
    pub last_used: Tick,
    /// When it came from another group; `None`: it began here.
    pub came: Option<Tick>,
    /// `None`: the group's default.
    pub retention: Option<Retention>,
    /// The term of the group's registration under which it was claimed last. Under any other term the session is not this
    /// group's: what is here is left over, of use only to a turn that brings the whole conversation and wins the claim.
    pub claimed: Option<u64>,
}

#[derive(Debug)]
struct Entry {
    transcript: Arc<tokio::sync::Mutex<Transcript>>,
    waiting: AtomicUsize,
    /// Told whenever one more waits.
    wanted: Notify,
    summary: Mutex<Summary>,
}

#[derive(Debug, Default)]
struct Entries {
    by_key: HashMap<SessionKey, Arc<Entry>>,
    /// How many of them are claimed under each term: the same as a walk over their summaries would find, which is too
    /// much to do again and again. No term is kept without a session.
    claimed: BTreeMap<u64, usize>,
}

impl Entries {
    /// A session's claim is another one from now on.
    fn moves(&mut self, from: Option<u64>, to: Option<u64>) {
        if let Some(term) = to {
            *self.claimed.entry(term).or_default() += 1;
        }
        let Some(term) = from else { return };
        if let Some(count) = self.claimed.get_mut(&term) {
            *count -= 1;
            if *count == 0 {
                self.claimed.remove(&term);
            }
        }
    }
}

/// All sessions. Shared by the server's tasks; its locks are held for map operations only.
#[derive(Debug)]
pub struct Sessions {
    entries: Mutex<Entries>,
    options: SessionsOptions,
    clock: Clock,
}

/// One session, checked out. Dropping it checks it in; a session that nothing was committed to is then forgotten.
#[derive(Debug)]
pub struct Held {
    sessions: Arc<Sessions>,
    key: SessionKey,
    entry: Arc<Entry>,
    transcript: Option<OwnedMutexGuard<Transcript>>,
    /// When it counts as used last; `None`: when it is checked in.
    used: Option<Tick>,
}

struct Waiting<'a>(&'a AtomicUsize);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Sessions {
    #[must_use]
    pub fn new(options: SessionsOptions, clock: Clock) -> Arc<Self> {
        Arc::new(Self { entries: Mutex::default(), options, clock })
    }

    fn entries(&self) -> std::sync::MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks a session out, making it if it is not there; waits for its running turn.
    ///
    /// # Errors
    /// [`TurnError::TooManySessions`], or [`TurnError::SessionBusy`] if too many turns wait already.
    pub async fn checkout(self: &Arc<Self>, key: &SessionKey) -> Result<Held, TurnError> {
        loop {
            let entry = self.entry(key)?;
            let before = entry.waiting.fetch_add(1, Ordering::Relaxed);
            let waiting = Waiting(&entry.waiting);
            if before > self.options.max_waiting {
                return Err(TurnError::SessionBusy { waiting: self.options.max_waiting });
            }
            entry.wanted.notify_waiters();
            let guard = Arc::clone(&entry.transcript).lock_owned().await;
            drop(waiting);
            // It may have been forgotten while this turn waited; then there is a newer entry, or none.
            if let Some(held) = self.held(key, entry, guard) {
                return Ok(held);
            }
        }
    }

    /// Checks a session out that is here, and that nobody has or waits for. Checked in unchanged, it counts as used last
    /// when it was before.
    pub fn try_checkout(self: &Arc<Self>, key: &SessionKey) -> Option<Held> {
        let entry = Arc::clone(self.entries().by_key.get(key)?);
        if entry.waiting.load(Ordering::Relaxed) > 0 {
            return None;
        }
        let guard = Arc::clone(&entry.transcript).try_lock_owned().ok()?;
        let used = entry.summary().last_used;
        let mut held = self.held(key, entry, guard)?;
        held.used = Some(used);
        Some(held)
    }

    fn held(
        self: &Arc<Self>,
        key: &SessionKey,
        entry: Arc<Entry>,
        transcript: OwnedMutexGuard<Transcript>,
    ) -> Option<Held> {
        if self.entries().by_key.get(key).is_none_or(|current| !Arc::ptr_eq(current, &entry)) {
            return None;
        }
        entry.summary().busy = true;
        let (sessions, key) = (Arc::clone(self), key.clone());
        Some(Held { sessions, key, entry, transcript: Some(transcript), used: None })
    }

    /// Whether a session is held.
    #[must_use]
    pub fn contains(&self, key: &SessionKey) -> bool {
        self.entries().by_key.contains_key(key)
    }

    fn entry(&self, key: &SessionKey) -> Result<Arc<Entry>, TurnError> {
        let mut entries = self.entries();
        if let Some(entry) = entries.by_key.get(key) {
            return Ok(Arc::clone(entry));
        }
        let sessions = entries.by_key.len();
        if sessions >= self.options.max_sessions {
            return Err(TurnError::TooManySessions { sessions });
        }
        let transcript = Transcript { created_unix_s: unix_seconds(), ..Transcript::default() };
        let summary = Summary { last_used: self.clock.now(), ..Summary::default() };
        let entry = Arc::new(Entry {
            transcript: Arc::new(tokio::sync::Mutex::new(transcript)),
            waiting: AtomicUsize::new(0),
            wanted: Notify::new(),
            summary: Mutex::new(summary),
        });
        entries.by_key.insert(key.clone(), Arc::clone(&entry));
        Ok(entry)
    }

    /// One session's summary.
    #[must_use]
    pub fn summary(&self, key: &SessionKey) -> Option<Summary> {
        self.entries().by_key.get(key).map(|entry| entry.summary().clone())
    }

    /// Summaries of all sessions that `wanted` names.
    pub fn summaries(&self, wanted: impl Fn(&SessionKey) -> bool) -> Vec<(SessionKey, Summary)> {
        let entries = self.entries();
        let chosen = entries.by_key.iter().filter(|(key, _)| wanted(key));
        chosen.map(|(key, entry)| (key.clone(), entry.summary().clone())).collect()
    }

    /// How many sessions are claimed under `term`.
    #[must_use]
    pub fn owned(&self, term: u64) -> usize {
        self.entries().claimed.get(&term).copied().unwrap_or(0)
    }

    /// Idle sessions that are here and not claimed under `term`.
    #[must_use]
    pub fn left_over(&self, term: u64) -> Vec<SessionKey> {
        let left = |summary: &Summary| !summary.busy && summary.claimed != Some(term);
        let entries = self.entries();
        entries
            .by_key
            .iter()
            .filter(|(_, entry)| left(&entry.summary()))
            .map(|(key, _)| key.clone())
            .collect()
    }

    /// Sessions that have been idle for longer than the limit, to be closed by the caller.
    #[must_use]
    pub fn expired(&self) -> Vec<SessionKey> {
        let now = self.clock.now();
        let limit = self.options.idle_limit;
        let idle = |summary: &Summary| !summary.busy && now.since(summary.last_used) > limit;
        let entries = self.entries();
        entries
            .by_key
            .iter()
            .filter(|(_, entry)| idle(&entry.summary()))
            .map(|(key, _)| key.clone())
            .collect()
    }
}

impl Entry {
    fn summary(&self) -> std::sync::MutexGuard<'_, Summary> {
        self.summary.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Held {
    #[must_use]
    pub fn key(&self) -> &SessionKey {
        &self.key
    }

    /// The store has given it to this group, under this term of its registration.
    pub fn own(&mut self, term: u64) {
        self.claimed = Some(term);
        let mut entries = self.sessions.entries();
        let before = self.entry.summary().claimed.replace(term);
        entries.moves(before, Some(term));
    }

    /// Forgets the session, whatever was committed to it.
    pub fn forget(mut self) {
        *self = Transcript::default();
    }

    /// It came from another group, where it was used last so long ago.
    pub fn came(&mut self, idle: Duration) {
        let now = self.sessions.clock.now();
        self.used = Some(Tick(now.0.saturating_sub(idle)));
        self.entry.summary().came = Some(now);
    }

    /// Resolves when somebody waits for the session. May be dropped and asked again.
    pub async fn wanted(&self) {
        loop {
            let wanted = self.entry.wanted.notified();
            tokio::pin!(wanted);
            // Before looking, so that whoever comes in between is heard.
            wanted.as_mut().enable();
            if self.entry.waiting.load(Ordering::Relaxed) > 0 {
                return;
            }
            wanted.await;
        }
    }
}

impl std::ops::Deref for Held {
    type Target = Transcript;
    fn deref(&self) -> &Transcript {
        self.transcript.as_ref().expect("checked in only when dropped")
    }
}

impl std::ops::DerefMut for Held {
    fn deref_mut(&mut self) -> &mut Transcript {
        self.transcript.as_mut().expect("checked in only when dropped")
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let Some(transcript) = self.transcript.take() else { return };
        let mut entries = self.sessions.entries();
        let mut summary = self.entry.summary();
        let claimed = transcript.claimed.filter(|_| transcript.is_kept());
        entries.moves(summary.claimed, claimed);
        if transcript.is_kept() {
            *summary = Summary {
                turns: transcript.turns,
                tokens: transcript.tokens.len(),
                busy: false,
                last_used: self.used.unwrap_or_else(|| self.sessions.clock.now()),
                came: summary.came,
                retention: transcript.retention.clone(),
                claimed,
            };
        } else {
            entries.by_key.remove(&self.key);
        }
        drop(summary);
        // Unlocked before the map, so that whoever waits sees the map as this turn left it.
        drop(transcript);
    }
}

#[cfg(test)]
mod tests {
    use hawser_common::{SessionId, TenantId};
    use proptest::prelude::*;

    use super::*;

    fn key(name: &str) -> SessionKey {
        SessionKey { tenant: TenantId::single(), session: SessionId::parse(name).unwrap() }
    }

    fn directory() -> Arc<Sessions> {
        let options =
            SessionsOptions { max_sessions: 8, max_waiting: 1, idle_limit: Duration::from_secs(60) };
        Sessions::new(options, Clock::manual().0)
    }

    /// What a turn, or whoever else checks one of three sessions out, does with it.
    #[derive(Clone, Copy, Debug)]
    enum Does {
        TakesOut,
        Owns(u64),
        GivesUp,
        Commits,
        Forgets,
        PutsBack,
    }

    fn does() -> impl Strategy<Value = (usize, Does)> {
        let what = prop_oneof![
            Just(Does::TakesOut),
            (0..4u64).prop_map(Does::Owns),
            Just(Does::GivesUp),
            Just(Does::Commits),
            Just(Does::Forgets),
            Just(Does::PutsBack)
        ];
        (0..3usize, what)
    }

    proptest! {
        #[test]
        fn the_count_of_owned_sessions_is_that_of_a_walk(history in prop::collection::vec(does(), 0..80)) {
            let sessions = directory();
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let mut out: [Option<Held>; 3] = [None, None, None];
            for (index, what) in history {
                let name = key(["a", "b", "c"][index]);
                match (what, &mut out[index]) {
                    (Does::TakesOut, place @ None) => {
                        *place = Some(runtime.block_on(sessions.checkout(&name)).unwrap());
                    }
                    (Does::Owns(term), Some(held)) => held.own(term),
                    (Does::GivesUp, Some(held)) => held.claimed = None,
                    (Does::Commits, Some(held)) => held.opened = true,
                    (Does::Forgets, place @ Some(_)) => place.take().into_iter().for_each(Held::forget),
                    (Does::PutsBack, place) => *place = None,
                    (_, _) => {}
                }
                let summaries = sessions.summaries(|_| true);
                for term in 0..4 {
                    let walked = summaries.iter().filter(|(_, summary)| summary.claimed == Some(term)).count();
                    prop_assert_eq!(sessions.owned(term), walked, "term {} after {:?}", term, what);
                }
                prop_assert!(sessions.entries().claimed.len() <= summaries.len(), "no term without a session");
            }
        }
    }

    #[tokio::test]
    async fn a_session_is_owned_under_the_term_of_its_claim_and_left_over_under_any_other() {
        let sessions = directory();
        for (name, term) in [("a", 1), ("b", 1), ("c", 2)] {
            let mut held = sessions.checkout(&key(name)).await.unwrap();
            held.opened = true;
            held.own(term);
            assert_eq!(
                sessions.summary(&key(name)).unwrap().claimed,
                Some(term),
                "at once, while it is checked out"
            );
        }
        assert_eq!((sessions.owned(1), sessions.owned(2), sessions.owned(3)), (2, 1, 0));
        let mut left = sessions.left_over(2);
        left.sort();
        assert_eq!(left, [key("a"), key("b")]);
        let mut held = sessions.checkout(&key("a")).await.unwrap();
        assert_eq!(sessions.left_over(2), [key("b")], "one that a turn has is not left over");
        held.own(2);
        drop(held);
        assert_eq!((sessions.owned(1), sessions.owned(2)), (1, 2));
        // Given up: it is here, and nobody's.
        sessions.checkout(&key("c")).await.unwrap().claimed = None;
        assert_eq!(sessions.owned(2), 1);
        assert_eq!(sessions.left_over(2).len(), 2);
    }
}
