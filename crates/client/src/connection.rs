//! One connection to a router: the calls as they are in the protocol, with deadlines and typed errors.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use hawser_common::telemetry::TraceParent;
use hawser_common::tls::ClientTls;
use hawser_common::{Keepalive, Secret};
use hawser_proto::set_trace_parent;
use hawser_proto::transport::innermost;
use hawser_proto::v1::hawser_client::HawserClient;
use hawser_proto::v1::{self, GenerateRequest};
use hawser_proto::{Bearer, Dial, DialError, MAX_MESSAGE_BYTES};
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Response, Status};

use crate::error::ClientError;
use crate::frames::FrameStream;
use crate::session::SessionBuilder;

const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// Calls that do not generate answer at once, or not at all.
const CALL_LIMIT: Duration = Duration::from_secs(10);

/// Why there is no connection. TLS tells an end that it does not trust, or that talks something else, by data that cannot
/// be: trying again changes nothing.
fn unconnected(uri: &str, error: &(dyn std::error::Error + 'static)) -> ClientError {
    let (uri, cause) = (uri.to_owned(), innermost(error));
    let mut causes = std::iter::successors(Some(error), |error| error.source());
    let is_unsafe = causes.any(|cause| {
        cause.downcast_ref::<std::io::Error>().is_some_and(|io| io.kind() == std::io::ErrorKind::InvalidData)
    });
    if is_unsafe { ClientError::Secured { uri, cause } } else { ClientError::Connect { uri, cause } }
}

/// A connection to a router. Clones share it; it reconnects by itself.
#[derive(Clone, Debug)]
pub struct Client {
    rpc: HawserClient<InterceptedService<Channel, Bearer>>,
    uri: Arc<str>,
    /// What turns are told of the trace that they belong to.
    trace: TraceParent,
}

/// How a client connects.
#[derive(Clone, Debug)]
pub struct ClientBuilder {
    uri: String,
    key: Option<Secret>,
    tls: ClientTls,
    keepalive: Keepalive,
}

impl ClientBuilder {
    /// The API key that every call carries.
    #[must_use]
    pub fn api_key(mut self, key: Option<Secret>) -> Self {
        self.key = key;
        self
    }

    /// What an `https` server's certificate is checked against, and the client's own.
    #[must_use]
    pub fn tls(mut self, tls: ClientTls) -> Self {
        self.tls = tls;
        self
    }

    /// How a silent connection is kept alive, where the times that all of Hawser uses do not fit.
    #[must_use]
    pub fn keepalive(mut self, keepalive: Keepalive) -> Self {
        self.keepalive = keepalive;
        self
    }

    /// Connects.
    ///
    /// # Errors
    /// [`ClientError::Address`], [`ClientError::Secured`] or [`ClientError::Key`] where the address, the certificates
    /// or the key cannot be used, [`ClientError::Connect`] where nobody answers in 5 s.
    pub async fn connect(self) -> Result<Client, ClientError> {
        let bearer = Bearer::new(self.key.as_ref())?;
        let dial = Dial::new(&self.tls, self.keepalive)
            .map_err(|error| ClientError::Secured { uri: self.uri.clone(), cause: error.to_string() })?;
        let (uri, endpoint) = endpoint(&self.uri, &dial)?;
        let channel = hawser_proto::connect(&endpoint).await.map_err(|error| unconnected(&uri, &error))?;
        Ok(Client::with_bearer(channel, bearer, &uri))
    }
}

impl Client {
    /// A client over a channel of the caller's, which leads to `uri`.
    #[must_use]
    pub fn over(channel: Channel, uri: &str) -> Self {
        Self::with_bearer(channel, Bearer::default(), uri)
    }

    fn with_bearer(channel: Channel, bearer: Bearer, uri: &str) -> Self {
        let rpc = HawserClient::with_interceptor(channel, bearer);
        let rpc = rpc.max_decoding_message_size(MAX_MESSAGE_BYTES);
        Self { rpc, uri: uri.into(), trace: TraceParent::default() }
    }

    /// A client of the router at `uri`, such as `https://router:7070`; without a scheme it is `http`.
    #[must_use]
    pub fn builder(uri: &str) -> ClientBuilder {
        let (tls, keepalive) = (ClientTls::default(), Keepalive::default());
        ClientBuilder { uri: uri.to_owned(), key: None, tls, keepalive }
    }

    /// Connects to `uri`, such as `http://127.0.0.1:7070`, without a key and without TLS; the scheme may be left out.
    ///
    /// # Errors
    /// As [`ClientBuilder::connect`].
    pub async fn connect(uri: &str) -> Result<Self, ClientError> {
        Self::builder(uri).connect().await
    }

    /// Where this client connects to.
    #[must_use]
    pub fn uri(&self) -> &str {
        &self.uri
    }

    /// The same connection, whose turns belong to the trace of `parent`, a header `traceparent` as W3C Trace Context has
    /// it. One that is malformed counts as none.
    #[must_use]
    pub fn in_trace(&self, parent: &str) -> Self {
        Self { trace: TraceParent::parse(parent, None), ..self.clone() }
    }

    /// A conversation that this client keeps. Nothing is sent yet.
    #[must_use]
    pub fn session(&self) -> SessionBuilder {
        SessionBuilder::new(self.clone())
    }

    /// One turn, as it is in the protocol. The caller keeps the history. `limit` bounds the whole stream.
    ///
    /// # Errors
    /// [`ClientError::Refused`] or [`ClientError::Deadline`]: nothing was delivered.
    pub async fn generate(
        &self,
        request: GenerateRequest,
        limit: Option<Duration>,
    ) -> Result<FrameStream, ClientError> {
        let mut request = Request::new(request);
        if let Some(limit) = limit {
            request.set_timeout(limit);
        }
        set_trace_parent(request.metadata_mut(), &self.trace);
        let mut rpc = self.rpc.clone();
        // Boxed, since it holds the request: callers hold a turn's future inside theirs.
        FrameStream::open(limit, Box::pin(async move { rpc.generate(request).await })).await
    }

    /// # Errors
    /// Any [`ClientError`]; so do all calls below.
    pub async fn list_models(&self) -> Result<Vec<v1::ModelInfo>, ClientError> {
        let mut rpc = self.rpc.clone();
        let answer = call(async move { rpc.list_models(bounded(v1::ListModelsRequest {})).await }).await?;
        Ok(answer.models)
    }

    /// Worker groups with their capacity.
    ///
    /// # Errors
    /// Any [`ClientError`].
    pub async fn list_groups(&self) -> Result<Vec<v1::Group>, ClientError> {
        self.groups(v1::ListGroupsRequest::default()).await
    }

    /// As [`Client::list_groups`], with those that have left the cluster in the last ten minutes.
    ///
    /// # Errors
    /// Any [`ClientError`].
    pub async fn list_groups_and_departed(&self) -> Result<Vec<v1::Group>, ClientError> {
        self.groups(v1::ListGroupsRequest { departed: true }).await
    }

    async fn groups(&self, request: v1::ListGroupsRequest) -> Result<Vec<v1::Group>, ClientError> {
        let mut rpc = self.rpc.clone();
        Ok(call(async move { rpc.list_groups(bounded(request)).await }).await?.groups)
    }

    /// One group, and how its ranks are; without those where its leader does not answer.
    ///
    /// # Errors
    /// [`ClientError::Refused`] with `NotFound` for a group that this router does not know.
    pub async fn describe_group(&self, group: &str) -> Result<v1::DescribeGroupResponse, ClientError> {
        let request = v1::DescribeGroupRequest { group: group.to_owned() };
        let mut rpc = self.rpc.clone();
        call(async move { rpc.describe_group(bounded(request)).await }).await
    }

    /// Sessions of this tenant, at most `limit` of them (0: 1,000).
    ///
    /// # Errors
    /// Any [`ClientError`].
    pub async fn list_sessions(&self, limit: u32) -> Result<v1::ListSessionsResponse, ClientError> {
        let mut rpc = self.rpc.clone();
        call(async move { rpc.list_sessions(bounded(v1::ListSessionsRequest { limit })).await }).await
    }

    /// One session, as its owner sees it.
    ///
    /// # Errors
    /// [`ClientError::Refused`] with `NotFound` where no group holds it.
    pub async fn describe_session(&self, session: &str) -> Result<v1::SessionInfo, ClientError> {
        let request = v1::DescribeSessionRequest { session: session.to_owned() };
        let mut rpc = self.rpc.clone();
        let answer = call(async move { rpc.describe_session(bounded(request)).await }).await?;
        answer.session.ok_or(ClientError::Protocol { what: "a description without a session" })
    }

    /// One session token by token: what became of each one's KV rows. Waits for its running turn.
    ///
    /// # Errors
    /// [`ClientError::Refused`] with `NotFound` where no group holds it.
    pub async fn inspect_session(&self, session: &str) -> Result<v1::InspectSessionResponse, ClientError> {
        let request = v1::InspectSessionRequest { session: session.to_owned() };
        let mut rpc = self.rpc.clone();
        call(async move { rpc.inspect_session(bounded(request)).await }).await
    }

    /// Makes `fork` a copy of `session` (empty: the server draws an id).
    ///
    /// # Errors
    /// Any [`ClientError`].
    pub async fn fork_session(&self, session: &str, fork: &str) -> Result<v1::SessionInfo, ClientError> {
        let request = v1::ForkSessionRequest { session: session.to_owned(), fork: fork.to_owned() };
        let mut rpc = self.rpc.clone();
        let answer = call(async move { rpc.fork_session(bounded(request)).await }).await?;
        answer.session.ok_or(ClientError::Protocol { what: "a fork without a session" })
    }

    /// Ends a session; gives the slots that became free. Unknown sessions are not an error.
    ///
    /// # Errors
    /// Any [`ClientError`].
    pub async fn close_session(&self, session: &str) -> Result<u64, ClientError> {
        let request = v1::CloseSessionRequest { session: session.to_owned() };
        let mut rpc = self.rpc.clone();
        let answer = call(async move { rpc.close_session(bounded(request)).await }).await?;
        Ok(answer.slots_freed)
    }

    /// Token ids of a text or a rendered conversation.
    ///
    /// # Errors
    /// Any [`ClientError`].
    pub async fn tokenize(&self, request: v1::TokenizeRequest) -> Result<v1::TokenizeResponse, ClientError> {
        let mut rpc = self.rpc.clone();
        call(async move { rpc.tokenize(bounded(request)).await }).await
    }
}

fn endpoint(uri: &str, dial: &Dial) -> Result<(String, Endpoint), ClientError> {
    let full = if uri.contains("://") { uri.to_owned() } else { format!("http://{uri}") };
    let endpoint = dial.endpoint(&full).map_err(|error| match error {
        DialError::Address { .. } => ClientError::Address { uri: uri.to_owned() },
        other => ClientError::Secured { uri: uri.to_owned(), cause: other.to_string() },
    })?;
    Ok((full, endpoint.connect_timeout(CONNECT_LIMIT)))
}

fn bounded<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(CALL_LIMIT);
    request
}

async fn call<T>(rpc: impl Future<Output = Result<Response<T>, Status>>) -> Result<T, ClientError> {
    match tokio::time::timeout(CALL_LIMIT, rpc).await {
        Ok(Ok(response)) => Ok(response.into_inner()),
        Ok(Err(status)) => Err(ClientError::refused(&status)),
        Err(_) => Err(ClientError::Deadline { limit: CALL_LIMIT }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_may_leave_out_the_scheme_and_must_have_a_host() {
        let check = |text: &str| endpoint(text, &Dial::default()).map(|(uri, _)| uri).ok();
        assert_eq!(check("127.0.0.1:7070").as_deref(), Some("http://127.0.0.1:7070"));
        assert_eq!(check("http://router:1").as_deref(), Some("http://router:1"));
        for bad in ["", "http://", "a b", "::"] {
            assert_eq!(check(bad), None, "{bad:?}");
        }
    }
}
