//! Opening, forking, closing and describing sessions.

use std::sync::Arc;
use std::time::Duration;

use hawser_common::retention::Choice;
use hawser_common::{Coded, ErrorCode, SessionId, SessionKey, TenantId};
use hawser_proto::v1;
use thiserror::Error;

use super::inspect::{MAX_TOKENS, inspected};
use super::turns::Shared;
use crate::session::Summary;
use crate::turn::TurnError;

/// Most sessions of one listing.
const MAX_LISTED: usize = 1_000;

/// Why a session call was refused.
#[derive(Debug, Error)]
pub(crate) enum SessionError {
    #[error("session {0} is not held by this group")]
    NotFound(SessionId),
    #[error("session {0} exists already; choose another id")]
    Exists(SessionId),
    #[error("the session has {tokens} tokens; at most {MAX_TOKENS} can be inspected")]
    TooLong { tokens: usize },
    #[error(transparent)]
    Turn(#[from] TurnError),
}

impl Coded for SessionError {
    fn code(&self) -> ErrorCode {
        match self {
            Self::NotFound(_) => ErrorCode::NotFound,
            Self::Exists(_) | Self::TooLong { .. } => ErrorCode::Invalid,
            Self::Turn(error) => error.code(),
        }
    }

    fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Turn(error) => error.retry_after(),
            Self::NotFound(_) | Self::Exists(_) | Self::TooLong { .. } => None,
        }
    }

    fn owner(&self) -> Option<&hawser_common::group::Owner> {
        match self {
            Self::Turn(error) => error.owner(),
            Self::NotFound(_) | Self::Exists(_) | Self::TooLong { .. } => None,
        }
    }
}

/// Session calls of a leader.
#[derive(Debug, Clone)]
pub(crate) struct SessionService {
    shared: Arc<Shared>,
}

impl SessionService {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// Makes a session, or returns the one there is.
    pub(crate) async fn open(
        &self,
        key: SessionKey,
        retention: Choice,
    ) -> Result<v1::SessionInfo, SessionError> {
        let mut held = self.shared.sessions.checkout(&key).await?;
        self.shared.claim(&key, &mut held).await?;
        held.opened = true;
        if retention != Choice::default() {
            let chosen = retention.over(held.retention.as_ref().unwrap_or(&self.shared.retention));
            chosen.validate().map_err(TurnError::from)?;
            held.retention = Some(chosen);
        }
        drop(held);
        self.describe(&key).await
    }

    /// Makes `to` with the history of `from`; both share its rows.
    pub(crate) async fn fork(
        &self,
        from: &SessionKey,
        to: &SessionKey,
    ) -> Result<v1::SessionInfo, SessionError> {
        let sessions = &self.shared.sessions;
        self.find(from).await?;
        if from == to {
            return Err(SessionError::Exists(to.session.clone()));
        }
        // Always in the order of the keys: two forks in opposite directions do not wait for each other.
        let (source, mut copy) = if from < to {
            let source = self.shared.checkout(from).await?;
            (source, sessions.checkout(to).await?)
        } else {
            let copy = sessions.checkout(to).await?;
            (self.shared.checkout(from).await?, copy)
        };
        if !(source.is_kept() && self.shared.owns(&source)) {
            return Err(SessionError::NotFound(from.session.clone()));
        }
        if copy.is_kept() && self.shared.owns(&copy) {
            return Err(SessionError::Exists(to.session.clone()));
        }
        self.shared.claim(to, &mut copy).await?;
        self.shared.driver.fork(from.clone(), to.clone()).await?;
        let claimed = copy.claimed;
        *copy = source.clone();
        copy.claimed = claimed;
        copy.opened = true;
        drop((source, copy));
        self.describe(to).await
    }

    /// Forgets a session once its running turn has ended. Returns the slots that became free.
    pub(crate) async fn close(&self, key: &SessionKey) -> Result<usize, SessionError> {
        if !self.shared.sessions.contains(key) && self.shared.moves.moved(key).is_none() {
            return Ok(0);
        }
        let held = self.shared.checkout(key).await?;
        let freed = self.shared.driver.close(key.clone()).await?;
        if held.claimed.is_some() {
            self.shared.unclaim(key);
        }
        held.forget();
        Ok(freed)
    }

    pub(crate) async fn describe(&self, key: &SessionKey) -> Result<v1::SessionInfo, SessionError> {
        let missing = || SessionError::NotFound(key.session.clone());
        self.find(key).await?;
        let summary = self.shared.sessions.summary(key).ok_or_else(missing)?;
        // A session in a turn may have been claimed just now.
        if !summary.busy && summary.claimed != Some(self.shared.registration.standing().term) {
            return Err(missing());
        }
        let live = self.shared.driver.live(vec![key.clone()]).await?;
        Ok(self.info(key, &summary, live.first().copied().unwrap_or(0)))
    }

    /// A session token by token, once its running turn has ended.
    pub(crate) async fn inspect(&self, key: &SessionKey) -> Result<v1::InspectSessionResponse, SessionError> {
        let missing = || SessionError::NotFound(key.session.clone());
        let shared = &self.shared;
        self.find(key).await?;
        let held = shared.checkout(key).await?;
        if !(held.is_kept() && shared.owns(&held)) {
            return Err(missing());
        }
        let tokens = held.tokens.len();
        if tokens > MAX_TOKENS {
            return Err(SessionError::TooLong { tokens });
        }
        let summary = shared.sessions.summary(key).ok_or_else(missing)?;
        // It is checked out by this call only.
        let info = self.info(key, &Summary { busy: false, ..summary }, 0);
        let inspection = shared.driver.inspect(key.clone()).await?.unwrap_or_default();
        let retention = held.retention.clone().unwrap_or_else(|| shared.retention.clone());
        let tokenizer = shared.text.tokenizer.clone();
        let work = move || {
            let text = |id| {
                let bytes = tokenizer.as_ref().and_then(|tokenizer| tokenizer.token_bytes(id));
                bytes.unwrap_or_default().to_vec()
            };
            inspected(info, &held, &retention, &inspection, &text)
        };
        tokio::task::spawn_blocking(work).await.map_err(|_| TurnError::TaskFailed.into())
    }

    /// Whether the session is here; one that has moved away is refused with its owner's name.
    async fn find(&self, key: &SessionKey) -> Result<(), SessionError> {
        if self.shared.sessions.contains(key) {
            return Ok(());
        }
        if self.shared.moves.moved(key).is_some() {
            drop(self.shared.checkout(key).await?);
        }
        Err(SessionError::NotFound(key.session.clone()))
    }

    /// Sessions of a tenant by id, and whether there are more. Those that the group holds by a claim, and not what it has
    /// left of others.
    pub(crate) async fn list(
        &self,
        tenant: &TenantId,
        limit: u32,
    ) -> Result<(Vec<v1::SessionInfo>, bool), SessionError> {
        let limit = if limit == 0 { MAX_LISTED } else { MAX_LISTED.min(limit as usize) };
        let mut all = self.shared.sessions.summaries(|key| key.tenant == *tenant);
        let term = self.shared.registration.standing().term;
        all.retain(|(_, summary)| summary.claimed == Some(term));
        all.sort_by(|a, b| a.0.cmp(&b.0));
        let truncated = all.len() > limit;
        all.truncate(limit);
        let live = self.shared.driver.live(all.iter().map(|(key, _)| key.clone()).collect()).await?;
        let infos = all.iter().zip(live).map(|((key, summary), live)| self.info(key, summary, live));
        Ok((infos.collect(), truncated))
    }

    fn info(&self, key: &SessionKey, summary: &Summary, live: usize) -> v1::SessionInfo {
        let owner = self.shared.owner();
        let idle =
            if summary.busy { Duration::ZERO } else { self.shared.clock.now().since(summary.last_used) };
        v1::SessionInfo {
            id: key.session.to_string(),
            group: owner.group.to_string(),
            epoch: owner.epoch.0,
            model: self.shared.model.clone(),
            turns: summary.turns,
            tokens: summary.tokens as u64,
            live_tokens: live as u64,
            busy: summary.busy,
            idle_ms: u64::try_from(idle.as_millis()).unwrap_or(u64::MAX),
            retention: Some(summary.retention.as_ref().unwrap_or(&self.shared.retention).into()),
        }
    }
}
