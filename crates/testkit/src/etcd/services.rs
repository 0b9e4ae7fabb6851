//! The gRPC surface of a fake etcd: keys and leases.

use std::pin::Pin;

use etcd_client::proto::{
    PbCompactionRequest, PbCompactionResponse, PbDeleteRequest, PbDeleteResponse, PbKvService,
    PbLeaseGrantRequest, PbLeaseGrantResponse, PbLeaseKeepAliveRequest, PbLeaseKeepAliveResponse,
    PbLeaseLeasesRequest, PbLeaseLeasesResponse, PbLeaseRevokeRequest, PbLeaseRevokeResponse, PbLeaseService,
    PbLeaseTimeToLiveRequest, PbLeaseTimeToLiveResponse, PbPutRequest, PbPutResponse, PbRangeRequest,
    PbRangeResponse, PbRangeStreamResponse, PbTxnRequest, PbTxnResponse, PbWatchRequest, PbWatchResponse,
    PbWatchService,
};
use futures_util::stream::unfold;
use hawser_common::tasks::Tasks;
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use super::state::unreadable;
use super::{FakeEtcd, txn, watches};

type BoxStream<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[derive(Clone, Debug)]
pub(super) struct Service {
    etcd: FakeEtcd,
    tasks: Tasks,
}

impl Service {
    pub(super) fn new(etcd: FakeEtcd, tasks: Tasks) -> Self {
        Self { etcd, tasks }
    }
}

#[tonic::async_trait]
impl PbKvService for Service {
    type RangeStreamStream = BoxStream<PbRangeStreamResponse>;

    async fn range(&self, request: Request<PbRangeRequest>) -> Result<Response<PbRangeResponse>, Status> {
        self.etcd.with(|state, _| txn::range(state, request.into_inner())).result.map(Response::new)
    }

    async fn range_stream(
        &self,
        _request: Request<PbRangeRequest>,
    ) -> Result<Response<Self::RangeStreamStream>, Status> {
        Err(Status::unimplemented("the fake has no range streams"))
    }

    async fn put(&self, request: Request<PbPutRequest>) -> Result<Response<PbPutResponse>, Status> {
        self.etcd.with(|state, now| txn::put(state, request.into_inner(), now)).result.map(Response::new)
    }

    async fn delete_range(
        &self,
        request: Request<PbDeleteRequest>,
    ) -> Result<Response<PbDeleteResponse>, Status> {
        let deleted = self.etcd.with(|state, now| txn::delete(state, request.into_inner(), now)).result;
        Ok(Response::new(deleted))
    }

    async fn txn(&self, request: Request<PbTxnRequest>) -> Result<Response<PbTxnResponse>, Status> {
        self.etcd.with(|state, now| txn::txn(state, request.into_inner(), now)).result.map(Response::new)
    }

    async fn compact(
        &self,
        request: Request<PbCompactionRequest>,
    ) -> Result<Response<PbCompactionResponse>, Status> {
        let revision = request.into_inner().revision;
        let compacted = self.etcd.with(|state, _| {
            state.mvcc.compact(revision).map_err(unreadable)?;
            Ok(PbCompactionResponse { header: state.header() })
        });
        compacted.result.map(Response::new)
    }
}

#[tonic::async_trait]
impl PbLeaseService for Service {
    async fn lease_grant(
        &self,
        request: Request<PbLeaseGrantRequest>,
    ) -> Result<Response<PbLeaseGrantResponse>, Status> {
        let PbLeaseGrantRequest { ttl, id } = request.into_inner();
        let granted = self.etcd.with(|state, now| {
            let (id, ttl) = state.grant(id, ttl, now)?;
            Ok(PbLeaseGrantResponse { header: state.header(), id, ttl, error: String::new() })
        });
        // The next end may come sooner than the one that is waited for.
        self.etcd.tell();
        granted.result.map(Response::new)
    }

    async fn lease_revoke(
        &self,
        request: Request<PbLeaseRevokeRequest>,
    ) -> Result<Response<PbLeaseRevokeResponse>, Status> {
        let id = request.into_inner().id;
        let revoked = self.etcd.with(|state, now| {
            state.revoke(id, now)?;
            Ok(PbLeaseRevokeResponse { header: state.header() })
        });
        revoked.result.map(Response::new)
    }

    type LeaseKeepAliveStream = BoxStream<PbLeaseKeepAliveResponse>;

    async fn lease_keep_alive(
        &self,
        request: Request<Streaming<PbLeaseKeepAliveRequest>>,
    ) -> Result<Response<Self::LeaseKeepAliveStream>, Status> {
        let asked = (request.into_inner(), self.etcd.clone());
        let answers = unfold(asked, |(mut requests, etcd)| async {
            let id = match requests.message().await {
                Ok(Some(request)) => request.id,
                Ok(None) | Err(_) => return None,
            };
            let answer = etcd.with(|state, now| {
                let ttl = state.renew(id, now);
                PbLeaseKeepAliveResponse { header: state.header(), id, ttl }
            });
            Some((Ok(answer.result), (requests, etcd)))
        });
        Ok(Response::new(Box::pin(answers)))
    }

    async fn lease_time_to_live(
        &self,
        request: Request<PbLeaseTimeToLiveRequest>,
    ) -> Result<Response<PbLeaseTimeToLiveResponse>, Status> {
        let PbLeaseTimeToLiveRequest { id, keys: with_keys } = request.into_inner();
        let found = self.etcd.with(|state, now| {
            let header = state.header();
            match state.lease(id, now) {
                Some((ttl, granted_ttl, keys)) => {
                    let keys = if with_keys { keys } else { Vec::new() };
                    PbLeaseTimeToLiveResponse { header, id, ttl, granted_ttl, keys }
                }
                None => PbLeaseTimeToLiveResponse { header, id, ttl: -1, granted_ttl: 0, keys: Vec::new() },
            }
        });
        Ok(Response::new(found.result))
    }

    async fn lease_leases(
        &self,
        _request: Request<PbLeaseLeasesRequest>,
    ) -> Result<Response<PbLeaseLeasesResponse>, Status> {
        Err(Status::unimplemented("the fake lists no leases"))
    }
}

#[tonic::async_trait]
impl PbWatchService for Service {
    type WatchStream = ReceiverStream<Result<PbWatchResponse, Status>>;

    async fn watch(
        &self,
        request: Request<Streaming<PbWatchRequest>>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let (told, answers) = tokio::sync::mpsc::channel(watches::BEHIND);
        self.tasks.spawn(watches::run(self.etcd.clone(), request.into_inner(), told));
        Ok(Response::new(ReceiverStream::new(answers)))
    }
}
