//! Ids and routes.

use hawser_common::{Epoch, GroupId, SessionId, SessionKey, TenantId};

use super::InvalidRequest;
use crate::v1;

/// A session id.
///
/// # Errors
/// [`InvalidRequest::Id`] where it is empty, too long or has a character outside the alphabet.
pub fn session_id(text: &str) -> Result<SessionId, InvalidRequest> {
    SessionId::parse(text).map_err(|source| InvalidRequest::Id { field: "session", source })
}

/// A session id that may be left out.
///
/// # Errors
/// As [`session_id`], except that an empty text is `None`.
pub fn optional_session(text: &str) -> Result<Option<SessionId>, InvalidRequest> {
    if text.is_empty() { Ok(None) } else { session_id(text).map(Some) }
}

/// A group id.
///
/// # Errors
/// [`InvalidRequest::Id`].
pub fn group_id(text: &str) -> Result<GroupId, InvalidRequest> {
    GroupId::parse(text).map_err(|source| InvalidRequest::Id { field: "group", source })
}

/// A session's full name.
///
/// # Errors
/// [`InvalidRequest::Id`].
pub fn session_key(wire: &v1::SessionKey) -> Result<SessionKey, InvalidRequest> {
    let tenant = tenant_id(&wire.tenant)?;
    Ok(SessionKey { tenant, session: session_id(&wire.session)? })
}

/// What the router decided: whose session it is, and the epoch it routed by.
///
/// # Errors
/// [`InvalidRequest`] where there is no route or its tenant is not an id.
pub fn route(wire: Option<&v1::Route>) -> Result<(TenantId, Epoch), InvalidRequest> {
    let expected = "a worker takes requests from a router, which sets it";
    let route = wire.ok_or(InvalidRequest::Missing { field: "route", expected })?;
    Ok((tenant_id(&route.tenant)?, Epoch(route.epoch)))
}

fn tenant_id(text: &str) -> Result<TenantId, InvalidRequest> {
    TenantId::parse(text).map_err(|source| InvalidRequest::Id { field: "tenant", source })
}

impl From<&SessionKey> for v1::SessionKey {
    fn from(key: &SessionKey) -> Self {
        Self { tenant: key.tenant.to_string(), session: key.session.to_string() }
    }
}
