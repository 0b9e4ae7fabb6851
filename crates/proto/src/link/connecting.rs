//! From an address to a connection that carries calls: the wire, TLS on it, HTTP/2 on top, and signs of life.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use h2::{Ping, PingPong};
use hawser_common::Keepalive;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;
use tonic::codegen::Bytes;
use tonic::codegen::http::uri::{InvalidUriParts, Uri};
use tower::ServiceExt as _;
use tracing::debug;

use super::Sender;
use crate::transport::{HTTP2, innermost};

/// Longest list of headers that an answer may have, in bytes.
const HEADER_BYTES: u32 = 16 << 10;

/// What carries bytes.
pub trait Io: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

type Reached = io::Result<Box<dyn Io>>;

/// Opens a wire to an address. A test may put a network of its own here.
#[derive(Clone)]
pub struct Reach(Arc<dyn Fn(Uri) -> BoxFuture<'static, Reached> + Send + Sync>);

impl Reach {
    /// Over TCP. Where a name has addresses of both kinds, one that does not answer does not keep the other waiting.
    #[must_use]
    pub fn tcp() -> Self {
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        Self::new(move |uri| {
            let connecting = tcp.clone().oneshot(uri);
            Box::pin(async move {
                let wire = connecting.await.map_err(|error| io::Error::other(innermost(&error)))?;
                Ok(Box::new(TokioIo::into_inner(wire)) as Box<dyn Io>)
            })
        })
    }

    #[must_use]
    pub fn new(reach: impl Fn(Uri) -> BoxFuture<'static, Reached> + Send + Sync + 'static) -> Self {
        Self(Arc::new(reach))
    }
}

impl fmt::Debug for Reach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Reach").finish()
    }
}

/// Bounds of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Longest that connecting may take, with all that belongs to it.
    pub connect: Duration,
    /// Unread bytes that one stream may hold before its server has to wait.
    pub stream_window: u32,
    /// Unread bytes that all streams together may hold.
    pub connection_window: u32,
}

/// Why there is no connection. Nothing was sent.
#[derive(Clone, Debug, Error)]
pub enum NotConnected {
    #[error("there was no connection within {} ms", .limit.as_millis())]
    Late { limit: Duration },
    #[error("{cause}")]
    Wire { cause: Arc<io::Error> },
    #[error("no TLS: {cause}")]
    Tls { cause: Arc<io::Error> },
    #[error("it talks TLS, and no HTTP/2 over it")]
    NoHttp2,
    #[error("{cause}")]
    Greeting { cause: Arc<h2::Error> },
    #[error("this process stops")]
    Stopping,
}

/// Whom to connect to, and how.
pub struct Peer {
    pub(crate) uri: Uri,
    pub(crate) tls: Option<(TlsConnector, ServerName<'static>)>,
    pub(crate) keepalive: Keepalive,
    pub(crate) limits: Limits,
    pub(crate) reach: Reach,
}

impl Peer {
    pub(super) fn uri(&self) -> &Uri {
        &self.uri
    }

    /// The URI of a path at this peer.
    pub(super) fn at(&self, path: Uri) -> Result<Uri, InvalidUriParts> {
        let (mut parts, origin) = (path.into_parts(), &self.uri);
        (parts.scheme, parts.authority) = (origin.scheme().cloned(), origin.authority().cloned());
        Uri::from_parts(parts)
    }

    pub(super) async fn connect(&self) -> Result<(Sender, Connection), NotConnected> {
        let limit = self.limits.connect;
        let connected = tokio::time::timeout(limit, self.open()).await;
        connected.unwrap_or(Err(NotConnected::Late { limit }))
    }

    async fn open(&self) -> Result<(Sender, Connection), NotConnected> {
        let wire = (self.reach.0)(self.uri.clone()).await;
        let wire = wire.map_err(|cause| NotConnected::Wire { cause: Arc::new(cause) })?;
        let io = match &self.tls {
            None => wire,
            Some((tls, name)) => encrypted(tls, name.clone(), wire).await?,
        };
        let (sender, connection) = h2::client::Builder::new()
            .enable_push(false)
            .initial_window_size(self.limits.stream_window)
            .initial_connection_window_size(self.limits.connection_window)
            .max_header_list_size(HEADER_BYTES)
            .handshake(io)
            .await
            .map_err(|cause| NotConnected::Greeting { cause: Arc::new(cause) })?;
        Ok((sender, Connection { uri: self.uri.clone(), connection, keepalive: self.keepalive }))
    }
}

async fn encrypted(
    tls: &TlsConnector,
    name: ServerName<'static>,
    wire: Box<dyn Io>,
) -> Result<Box<dyn Io>, NotConnected> {
    let io = tls.connect(name, wire).await;
    let io = io.map_err(|cause| NotConnected::Tls { cause: Arc::new(cause) })?;
    let (_, session) = io.get_ref();
    if session.alpn_protocol() == Some(HTTP2) { Ok(Box::new(io)) } else { Err(NotConnected::NoHttp2) }
}

/// A connection that stands.
pub(super) struct Connection {
    uri: Uri,
    connection: h2::client::Connection<Box<dyn Io>, Bytes>,
    keepalive: Keepalive,
}

impl Connection {
    /// Carries calls until the other end closes it or says nothing any more, or nobody on this end has use for it.
    pub(super) async fn carry(self) {
        let Self { uri, mut connection, keepalive } = self;
        let pings = connection.ping_pong().expect("nobody else has taken it");
        // Both branches are cancel-safe: what ends here is the connection, and its streams with it.
        tokio::select! {
            ended = connection => match ended {
                Ok(()) => debug!(%uri, "a connection has ended"),
                Err(error) => debug!(%uri, %error, "a connection broke"),
            },
            () = silence(pings, keepalive) => debug!(%uri, "a connection is given up: its other end is silent"),
        }
    }
}

/// Ends once a ping was not answered in time, or cannot be sent.
async fn silence(mut pings: PingPong, keepalive: Keepalive) {
    loop {
        tokio::time::sleep(keepalive.interval).await;
        let pong = tokio::time::timeout(keepalive.timeout, pings.ping(Ping::opaque())).await;
        if !matches!(pong, Ok(Ok(_))) {
            return;
        }
    }
}
