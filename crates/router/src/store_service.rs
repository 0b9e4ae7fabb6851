//! The store over gRPC, for workers and other routers in other processes. Where API keys are asked for, only operators
//! may use it: whoever may claim sessions may take anybody's.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::{BoxStream, iter};
use hawser_common::SessionKey;
use hawser_placement::{Change, ClaimOutcome, Event, LeaseId, MAX_BATCH, Store, StoreError, Update};
use hawser_proto::{InvalidRequest, convert, status, v1};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

/// Most events of one message; a larger snapshot takes several.
const MAX_EVENTS: usize = 4096;

/// Serves a store. Watches end when the router stops.
#[derive(Debug)]
pub struct StoreService {
    store: Arc<dyn Store>,
    stopping: CancellationToken,
}

impl StoreService {
    #[must_use]
    pub fn new(store: Arc<dyn Store>, stopping: CancellationToken) -> Self {
        Self { store, stopping }
    }
}

fn refused(error: &StoreError) -> Status {
    status(error)
}

fn keys(wire: &[v1::SessionKey]) -> Result<Vec<SessionKey>, Status> {
    if wire.len() > MAX_BATCH {
        let (field, found) = ("sessions".to_owned(), wire.len());
        let error = InvalidRequest::TooMany { field, found, limit: MAX_BATCH, unit: "entries" };
        return Err(status(&error));
    }
    wire.iter().map(convert::session_key).collect::<Result<_, _>>().map_err(|error| status(&error))
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[tonic::async_trait]
impl v1::store_server::Store for StoreService {
    async fn grant_lease(
        &self,
        request: Request<v1::GrantLeaseRequest>,
    ) -> Result<Response<v1::GrantLeaseResponse>, Status> {
        let ttl = Duration::from_millis(request.into_inner().ttl_ms);
        let lease = self.store.grant(ttl).await.map_err(|error| refused(&error))?;
        Ok(Response::new(v1::GrantLeaseResponse { lease: lease.id.0, ttl_ms: millis(lease.ttl) }))
    }

    async fn renew_lease(
        &self,
        request: Request<v1::RenewLeaseRequest>,
    ) -> Result<Response<v1::RenewLeaseResponse>, Status> {
        let lease = LeaseId(request.into_inner().lease);
        let ttl = self.store.renew(lease).await.map_err(|error| refused(&error))?;
        Ok(Response::new(v1::RenewLeaseResponse { ttl_ms: millis(ttl) }))
    }

    async fn revoke_lease(
        &self,
        request: Request<v1::RevokeLeaseRequest>,
    ) -> Result<Response<v1::RevokeLeaseResponse>, Status> {
        let lease = LeaseId(request.into_inner().lease);
        self.store.revoke(lease).await.map_err(|error| refused(&error))?;
        Ok(Response::new(v1::RevokeLeaseResponse {}))
    }

    async fn register_group(
        &self,
        request: Request<v1::RegisterGroupRequest>,
    ) -> Result<Response<v1::RegisterGroupResponse>, Status> {
        let request = request.into_inner();
        let record = convert::group_record(&request.group.unwrap_or_default()).map_err(|e| status(&e))?;
        let registered = self.store.register(LeaseId(request.lease), record).await;
        let epoch = registered.map_err(|error| refused(&error))?;
        Ok(Response::new(v1::RegisterGroupResponse { epoch: epoch.0 }))
    }

    async fn publish_capacity(
        &self,
        request: Request<v1::PublishCapacityRequest>,
    ) -> Result<Response<v1::PublishCapacityResponse>, Status> {
        let request = request.into_inner();
        let group = convert::group_id(&request.group).map_err(|e| status(&e))?;
        let capacity = convert::capacity(request.capacity.as_ref());
        let published = self.store.publish(LeaseId(request.lease), &group, capacity, request.draining).await;
        published.map_err(|error| refused(&error))?;
        Ok(Response::new(v1::PublishCapacityResponse {}))
    }

    async fn claim_sessions(
        &self,
        request: Request<v1::ClaimSessionsRequest>,
    ) -> Result<Response<v1::ClaimSessionsResponse>, Status> {
        let request = request.into_inner();
        let group = convert::group_id(&request.group).map_err(|e| status(&e))?;
        let sessions = keys(&request.sessions)?;
        let claimed = self.store.claim(LeaseId(request.lease), &group, sessions).await;
        let outcome = |outcome: &ClaimOutcome| match outcome {
            ClaimOutcome::Won => v1::ClaimOutcome { won: true, owner: None },
            ClaimOutcome::Owned(owner) => v1::ClaimOutcome { won: false, owner: Some(owner.into()) },
        };
        let outcomes = claimed.map_err(|error| refused(&error))?.iter().map(outcome).collect();
        Ok(Response::new(v1::ClaimSessionsResponse { outcomes }))
    }

    async fn release_sessions(
        &self,
        request: Request<v1::ReleaseSessionsRequest>,
    ) -> Result<Response<v1::ReleaseSessionsResponse>, Status> {
        let request = request.into_inner();
        let sessions = keys(&request.sessions)?;
        let released = self.store.release(LeaseId(request.lease), sessions).await;
        released.map_err(|error| refused(&error))?;
        Ok(Response::new(v1::ReleaseSessionsResponse {}))
    }

    type WatchStream = BoxStream<'static, Result<v1::WatchResponse, Status>>;

    async fn watch(
        &self,
        _request: Request<v1::WatchRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let watch = self.store.watch().await.map_err(|error| refused(&error))?;
        let messages = watch.flat_map(|update| match update {
            Ok(update) => iter(messages(update)).map(Ok).boxed(),
            Err(error) => iter([Err(refused(&error))]).boxed(),
        });
        let stopping = self.stopping.clone().cancelled_owned();
        Ok(Response::new(messages.take_until(stopping).boxed()))
    }
}

/// One update as messages of bounded size.
fn messages(update: Update) -> Vec<v1::WatchResponse> {
    let revision = update.revision;
    let (events, snapshot) = match update.change {
        Change::Events(events) => (events.iter().map(event).collect::<Vec<_>>(), false),
        Change::Snapshot(state) => {
            let groups = state.groups.into_iter().map(|group| event(&Event::GroupChanged(group)));
            let claims = state.claims.into_iter().map(|(key, owner)| event(&Event::Claimed(key, owner)));
            (groups.chain(claims).collect(), true)
        }
    };
    let mut parts: Vec<_> = events.chunks(MAX_EVENTS).map(<[_]>::to_vec).collect();
    if parts.is_empty() {
        parts.push(Vec::new());
    }
    let last = parts.len() - 1;
    let message = |(i, events)| v1::WatchResponse { revision, events, snapshot, more: i < last };
    parts.into_iter().enumerate().map(message).collect()
}

fn event(event: &Event) -> v1::StoreEvent {
    use v1::store_event::Event as Wire;
    let wire = match event {
        Event::GroupChanged(group) => Wire::GroupChanged(group.into()),
        Event::GroupGone(group) => Wire::GroupGone(group.to_string()),
        Event::Claimed(session, owner) => {
            Wire::Claimed(v1::ClaimChanged { session: Some(session.into()), owner: Some(owner.into()) })
        }
        Event::Released(session) => Wire::Released(session.into()),
    };
    v1::StoreEvent { event: Some(wire) }
}
