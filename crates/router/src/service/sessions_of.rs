//! Which session a call means: from the text that a client sent to the key that the store knows, and whether it may be
//! a new one.
//!
//! **One id, several models.** A session runs on one model. A client that uses one id with several models has one session
//! for each: the first one is named by the id, and each further one by the id with a mark of its model, which is also
//! how it is listed. Which of them a call means depends on the model that it names and on who owns the sessions, and on
//! nothing that a router remembers, so that every router finds the same one. Without a model, the id means the first.

use std::sync::{Mutex, PoisonError};

use hawser_common::{ErrorCode, SessionId, SessionKey, TenantId};
use hawser_proto::{Fault, convert};
use sha2::{Digest as _, Sha256};

use super::HawserService;
use crate::attempts::Replay;
use crate::auth::Caller;
use crate::auth::keys::hex;
use crate::deadline::Deadline;
use crate::error::RouteError;
use crate::fleet::InFlight;
use crate::handle::Handles;
use crate::place::{Call, NEWS, To};
use crate::prefix::Prefix;
use crate::quota::opening::{Held, Openings, Room};
use crate::view::Target;

/// A call that may begin a session.
pub(super) struct Beginning<'a> {
    pub(super) caller: &'a Caller,
    /// As the client named it.
    pub(super) session: Option<SessionKey>,
    /// Empty where any model will do.
    pub(super) model: &'a str,
    /// What it begins with, where that is worth a thought.
    pub(super) prefix: Option<Prefix>,
    pub(super) replay: Replay,
    pub(super) deadline: Deadline,
}

/// A call that was taken.
pub(super) struct Begun<T> {
    pub(super) answer: T,
    /// The session, under the name that the store knows.
    pub(super) session: Option<SessionKey>,
    pub(super) target: Target,
    pub(super) in_flight: InFlight,
}

impl HawserService {
    /// The session that a client names, by its id or by a handle.
    pub(super) fn session(&self, caller: &Caller, text: &str) -> Result<SessionKey, RouteError> {
        let tenant = caller.tenant.clone();
        let session = if Handles::is_handle(text) {
            self.handles.read(&tenant, text)?
        } else {
            convert::session_id(text)?
        };
        Ok(SessionKey { tenant, session })
    }

    /// Offers a call to the session's owner, or to any group if it is new and the tenant may have one more.
    pub(super) async fn begin<T, F>(
        &self,
        call: Beginning<'_>,
        ask: impl Fn(Option<&SessionKey>, Target) -> F,
    ) -> Result<Begun<T>, RouteError>
    where
        F: Future<Output = Result<T, Fault>> + Send,
    {
        let named = call.session.clone();
        let mut session = named.clone().map(|named| self.of_model(named, call.model));
        loop {
            let opening = match &session {
                Some(session) => self.opening(call.caller, session, call.deadline).await?,
                None => None,
            };
            let placed = Call {
                session: session.clone(),
                model: call.model.to_owned(),
                prefix: call.prefix,
                to: To::Group,
                replay: call.replay,
                deadline: call.deadline,
            };
            match self.placer.place(&placed, |target| ask(session.as_ref(), target)).await {
                Ok((answer, target, in_flight)) => {
                    if let Some(opening) = opening {
                        opening.settle();
                    }
                    return Ok(Begun { answer, session, target, in_flight });
                }
                Err(error) => match (&named, &session) {
                    (Some(named), Some(tried))
                        if named == tried && self.was_raced(named, call.model, &error).await =>
                    {
                        session = Some(marked(named, call.model));
                    }
                    _ => return Err(error),
                },
            }
        }
    }

    /// The session of that name which runs on `model`: see the head of this file.
    fn of_model(&self, named: SessionKey, model: &str) -> SessionKey {
        if model.is_empty() {
            return named;
        }
        match self.placer.view.model_of(&named) {
            Some(held) if held == model => named,
            Some(_) => marked(&named, model),
            None => {
                let marked = marked(&named, model);
                if self.placer.view.has_owner(&marked) { marked } else { named }
            }
        }
    }

    /// Whether `error` means that another call has just begun a session of this name on another model.
    async fn was_raced(&self, named: &SessionKey, model: &str, error: &RouteError) -> bool {
        let refused = match error {
            RouteError::WrongModel { .. } => true,
            RouteError::Worker(fault) => fault.code == ErrorCode::NotFound,
            _ => false,
        };
        let view = &self.placer.view;
        let other = |held: Option<String>| held.is_some_and(|held| held != model);
        refused && !model.is_empty() && view.wait(NEWS, |view| other(view.model_of(named))).await
    }

    /// Counts the session if it is new.
    pub(super) async fn opening(
        &self,
        caller: &Caller,
        session: &SessionKey,
        deadline: Deadline,
    ) -> Result<Option<Opening<'_>>, RouteError> {
        let look = || self.room(caller, session);
        let mut room = look();
        if room == Some(Room::Later) {
            let waiting = self.placer.view.wait(self.call_timeout, |_| look() != Some(Room::Later));
            deadline.bound(&self.placer.clock, waiting).await.ok_or(RouteError::Deadline)?;
            room = look();
        }
        match room {
            None => Ok(None),
            Some(Room::Taken) => {
                Ok(Some(Opening { openings: &self.openings, session: Some(session.clone()) }))
            }
            Some(Room::Later | Room::Full) => {
                let held = self.placer.view.sessions_of(&caller.tenant);
                let (tenant, limit) = (caller.tenant.clone(), caller.quota.max_sessions);
                Err(RouteError::TooManySessions { tenant, held, limit })
            }
        }
    }

    /// Whether there is room for a session that the store does not hold; `None` for one that it does.
    fn room(&self, caller: &Caller, session: &SessionKey) -> Option<Room> {
        let view = &self.placer.view;
        if view.has_owner(session) {
            return None;
        }
        let (tenant, now) = (&caller.tenant, self.placer.clock.now());
        let key = |session: &SessionId| SessionKey { tenant: tenant.clone(), session: session.clone() };
        let knows = |session: &SessionId| view.has_owner(&key(session));
        let held = Held { count: view.sessions_of(tenant), knows: &knows };
        // Nothing under the lock can panic half-way.
        let mut openings = self.openings.lock().unwrap_or_else(PoisonError::into_inner);
        Some(openings.open((tenant, &session.session), &held, caller.quota.max_sessions, now))
    }
}

/// A session that is being opened. Dropped before it is settled, it is counted no more.
pub(super) struct Opening<'a> {
    openings: &'a Mutex<Openings>,
    session: Option<SessionKey>,
}

impl Opening<'_> {
    /// A worker has claimed it: from now on the store's word counts.
    pub(super) fn settle(mut self) {
        self.session = None;
    }
}

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        let Some(SessionKey { tenant, session }) = self.session.take() else { return };
        self.openings.lock().unwrap_or_else(PoisonError::into_inner).failed(&tenant, &session);
    }
}

/// The name of a further session on `model`.
fn marked(named: &SessionKey, model: &str) -> SessionKey {
    let SessionKey { tenant, session } = named;
    SessionKey { tenant: TenantId::clone(tenant), session: marked_id(session, model) }
}

fn marked_id(session: &SessionId, model: &str) -> SessionId {
    let mark = hex(&Sha256::digest(model.as_bytes())[..8]);
    SessionId::parse(&format!("{session}:m-{mark}")).unwrap_or_else(|_| {
        // Too long with the mark: named by a hash of both.
        let both = hex(&Sha256::digest(format!("{session}/{model}").as_bytes()));
        SessionId::parse(&format!("m-{both}")).expect("hexadecimal digits are a valid id")
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn p4_marked_ids_are_valid_and_differ() {
        let mut seen = HashSet::new();
        for id in ["a", "a:m", &"x".repeat(109), &"x".repeat(110), &"x".repeat(128)] {
            let id = SessionId::parse(id).unwrap();
            seen.insert(id.clone());
            for model in ["m1", "m2", "org/model with spaces", "é"] {
                assert!(seen.insert(marked_id(&id, model)), "{id} {model}");
                assert_eq!(marked_id(&id, model), marked_id(&id, model));
            }
        }
    }
}
