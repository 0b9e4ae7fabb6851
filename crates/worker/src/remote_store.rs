//! The placement store of a router, over the wire: the [`Store`] trait as a client of `hawser.v1.Store`.
//!
//! Connects with the first call and again after every break. Keeps no state of its own: leases, claims and epochs are
//! the router's. Every call has a limit, so that a silent router reads as one that is not there.

use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::unfold;
use hawser_common::group::{Capacity, GroupRecord, Owner};
use hawser_common::tls::ClientTls;
use hawser_common::{Coded, Epoch, ErrorCode, GroupId, Keepalive, Secret, SessionKey};
use hawser_placement::{
    Change, ClaimOutcome, Event, Lease, LeaseId, Snapshot, Store, StoreError, StoreFuture, Update, Watch,
};
use hawser_proto::bearer::InvalidKey;
use hawser_proto::v1::store_client::StoreClient;
use hawser_proto::{Bearer, Dial, DialError, MAX_MESSAGE_BYTES, TlsError, convert, fault, v1};
use thiserror::Error;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Channel;
use tonic::{Request, Response, Status, Streaming};

const CONNECT_LIMIT: Duration = Duration::from_secs(2);
const CALL_LIMIT: Duration = Duration::from_secs(5);
/// Most events of one update that comes in several messages: a million sessions and ten thousand groups.
const MAX_EVENTS: usize = 1_100_000;

/// A store that cannot be connected to as it is configured.
#[derive(Debug, Error)]
pub enum InvalidStore {
    #[error("the address of the store is wrong: {0}")]
    Address(#[from] DialError),
    #[error("tls: {0}")]
    Tls(#[from] TlsError),
    #[error(transparent)]
    Key(#[from] InvalidKey),
}

impl Coded for InvalidStore {
    fn code(&self) -> ErrorCode {
        ErrorCode::Invalid
    }
}

type Client = StoreClient<InterceptedService<Channel, Bearer>>;

/// A store that a router serves.
#[derive(Clone, Debug)]
pub struct RemoteStore {
    client: Client,
}

impl RemoteStore {
    /// A store at `address`, such as `http://127.0.0.1:7341`, in plain text and without a key.
    ///
    /// # Errors
    /// [`InvalidStore`].
    pub fn new(address: &str) -> Result<Self, InvalidStore> {
        Self::secured(address, &ClientTls::default(), None)
    }

    /// A store at `address`, with the certificates that `tls` names, and with the key of an operator where the router
    /// asks for keys. Does not connect yet; needs a tokio runtime.
    ///
    /// # Errors
    /// [`InvalidStore`].
    pub fn secured(address: &str, tls: &ClientTls, key: Option<&Secret>) -> Result<Self, InvalidStore> {
        let (dial, key) = (Dial::new(tls, Keepalive::default())?, Bearer::new(key)?);
        let channel = dial.endpoint(address)?.connect_timeout(CONNECT_LIMIT).connect_lazy();
        let client = StoreClient::with_interceptor(channel, key)
            .max_decoding_message_size(MAX_MESSAGE_BYTES)
            .max_encoding_message_size(MAX_MESSAGE_BYTES);
        Ok(Self { client })
    }

    /// One call under `lease`, within its limit.
    fn call<T, R, F>(&self, lease: LeaseId, message: T, send: F) -> BoxFuture<'_, Result<R, StoreError>>
    where
        T: Send + 'static,
        R: Send + 'static,
        F: FnOnce(Client, Request<T>) -> BoxFuture<'static, Result<Response<R>, Status>> + Send + 'static,
    {
        let client = self.client.clone();
        Box::pin(async move {
            let answer = tokio::time::timeout(CALL_LIMIT, send(client, Request::new(message))).await;
            let response = answer.map_err(|_| silent())?.map_err(|status| refused(&status, lease))?;
            Ok(response.into_inner())
        })
    }
}

fn silent() -> StoreError {
    StoreError::Unreachable { reason: format!("no answer within {CALL_LIMIT:?}") }
}

/// What the router said about a call under `lease`.
fn refused(status: &Status, lease: LeaseId) -> StoreError {
    let fault = fault(status);
    let reason = fault.message;
    match (fault.code, fault.owner) {
        (ErrorCode::NotFound, _) => StoreError::LeaseGone { lease },
        (ErrorCode::StaleOwner, Some(holder)) => StoreError::GroupTaken { holder, reason },
        (ErrorCode::Invalid, _) => StoreError::Invalid { reason },
        (ErrorCode::Unauthenticated | ErrorCode::Forbidden, _) => StoreError::Denied { reason },
        (ErrorCode::Exhausted, _) => StoreError::Full { reason },
        _ => StoreError::Unreachable { reason },
    }
}

fn malformed(error: impl std::fmt::Display) -> StoreError {
    StoreError::Unreachable { reason: format!("its answer cannot be read: {error}") }
}

impl Store for RemoteStore {
    fn grant(&self, ttl: Duration) -> StoreFuture<'_, Lease> {
        let ttl_ms = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
        let message = v1::GrantLeaseRequest { ttl_ms };
        let granted = self.call(LeaseId(0), message, |mut client, request| {
            Box::pin(async move { client.grant_lease(request).await })
        });
        Box::pin(async move {
            let granted = granted.await?;
            Ok(Lease { id: LeaseId(granted.lease), ttl: Duration::from_millis(granted.ttl_ms) })
        })
    }

    fn renew(&self, lease: LeaseId) -> StoreFuture<'_, Duration> {
        let message = v1::RenewLeaseRequest { lease: lease.0 };
        let renewed = self.call(lease, message, |mut client, request| {
            Box::pin(async move { client.renew_lease(request).await })
        });
        Box::pin(async move { Ok(Duration::from_millis(renewed.await?.ttl_ms)) })
    }

    fn revoke(&self, lease: LeaseId) -> StoreFuture<'_, ()> {
        let message = v1::RevokeLeaseRequest { lease: lease.0 };
        let revoked = self.call(lease, message, |mut client, request| {
            Box::pin(async move { client.revoke_lease(request).await })
        });
        Box::pin(async move { revoked.await.map(|_| ()) })
    }

    fn register(&self, lease: LeaseId, group: GroupRecord) -> StoreFuture<'_, Epoch> {
        let message = v1::RegisterGroupRequest { lease: lease.0, group: Some((&group).into()) };
        let registered = self.call(lease, message, |mut client, request| {
            Box::pin(async move { client.register_group(request).await })
        });
        Box::pin(async move { Ok(Epoch(registered.await?.epoch)) })
    }

    fn publish<'a>(
        &'a self,
        lease: LeaseId,
        group: &'a GroupId,
        capacity: Capacity,
        draining: bool,
    ) -> StoreFuture<'a, ()> {
        let (group, capacity) = (group.to_string(), Some(capacity.into()));
        let message = v1::PublishCapacityRequest { lease: lease.0, group, capacity, draining };
        let published = self.call(lease, message, |mut client, request| {
            Box::pin(async move { client.publish_capacity(request).await })
        });
        Box::pin(async move { published.await.map(|_| ()) })
    }

    fn claim<'a>(
        &'a self,
        lease: LeaseId,
        group: &'a GroupId,
        sessions: Vec<SessionKey>,
    ) -> StoreFuture<'a, Vec<ClaimOutcome>> {
        let sent = sessions.len();
        let sessions = sessions.iter().map(Into::into).collect();
        let message = v1::ClaimSessionsRequest { lease: lease.0, group: group.to_string(), sessions };
        let claimed = self.call(lease, message, |mut client, request| {
            Box::pin(async move { client.claim_sessions(request).await })
        });
        Box::pin(async move {
            let outcomes = claimed.await?.outcomes;
            if outcomes.len() != sent {
                return Err(malformed(format!("{} outcomes for {sent} claims", outcomes.len())));
            }
            let outcome = |outcome: v1::ClaimOutcome| {
                if outcome.won {
                    return Ok(ClaimOutcome::Won);
                }
                convert::owner(outcome.owner.as_ref()).map(ClaimOutcome::Owned).map_err(malformed)
            };
            outcomes.into_iter().map(outcome).collect()
        })
    }

    fn release(&self, lease: LeaseId, sessions: Vec<SessionKey>) -> StoreFuture<'_, ()> {
        let sessions = sessions.iter().map(Into::into).collect();
        let message = v1::ReleaseSessionsRequest { lease: lease.0, sessions };
        let released = self.call(lease, message, |mut client, request| {
            Box::pin(async move { client.release_sessions(request).await })
        });
        Box::pin(async move { released.await.map(|_| ()) })
    }

    fn watch(&self) -> StoreFuture<'_, Watch> {
        let watched = self.call(LeaseId(0), v1::WatchRequest {}, |mut client, request| {
            Box::pin(async move { client.watch(request).await })
        });
        Box::pin(async move {
            // After an error the watch is over: it is watched anew.
            let updates = unfold(Some(watched.await?), |stream| async move {
                let mut stream = stream?;
                match update(&mut stream).await {
                    Ok(Some(update)) => Some((Ok(update), Some(stream))),
                    Ok(None) => None,
                    Err(error) => Some((Err(error), None)),
                }
            });
            Ok(updates.boxed())
        })
    }
}

/// The next update, put together from as many messages as it takes.
async fn update(stream: &mut Streaming<v1::WatchResponse>) -> Result<Option<Update>, StoreError> {
    let mut events = Vec::new();
    loop {
        let message = stream.message().await.map_err(|status| refused(&status, LeaseId(0)))?;
        let Some(message) = message else { return Ok(None) };
        if events.len() + message.events.len() > MAX_EVENTS {
            return Err(malformed(format!("an update of more than {MAX_EVENTS} events")));
        }
        for wire in message.events {
            // Events of a newer store that this version does not know are passed over.
            if let Some(wire) = wire.event {
                events.push(event(wire).map_err(malformed)?);
            }
        }
        if message.more {
            continue;
        }
        let change =
            if message.snapshot { Change::Snapshot(snapshot(events)) } else { Change::Events(events) };
        return Ok(Some(Update { revision: message.revision, change }));
    }
}

fn snapshot(events: Vec<Event>) -> Snapshot {
    let mut snapshot = Snapshot::default();
    for event in events {
        match event {
            Event::GroupChanged(group) => snapshot.groups.push(group),
            Event::Claimed(session, owner) => snapshot.claims.push((session, owner)),
            // A state has no endings.
            Event::GroupGone(_) | Event::Released(_) => {}
        }
    }
    snapshot
}

fn event(wire: v1::store_event::Event) -> Result<Event, hawser_proto::InvalidRequest> {
    use v1::store_event::Event as Wire;
    Ok(match wire {
        Wire::GroupChanged(group) => Event::GroupChanged(convert::group_record(&group)?),
        Wire::GroupGone(group) => Event::GroupGone(convert::group_id(&group)?),
        Wire::Released(session) => Event::Released(convert::session_key(&session)?),
        Wire::Claimed(claimed) => {
            let session = convert::session_key(&claimed.session.unwrap_or_default())?;
            let owner: Owner = convert::owner(claimed.owner.as_ref())?;
            Event::Claimed(session, owner)
        }
    })
}
