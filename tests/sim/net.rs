//! The simulated network under gRPC: connecting, listening.

use std::future::Future;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::Stream;
use futures_util::future::BoxFuture;
use futures_util::stream::unfold;
use hawser_placement::etcd::Dial;
use hawser_proto::link::Io;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tonic::transport::server::Connected;
use tonic::transport::{Channel, Endpoint, Uri};
use turmoil::net::{TcpListener, TcpStream};

/// Where everything listens: each part has a host of its own.
pub(crate) const PORT: u16 = 7000;
const CONNECT_LIMIT: Duration = Duration::from_secs(1);

type Connecting = Pin<Box<dyn Future<Output = io::Result<TokioIo<TcpStream>>> + Send>>;

/// How routers reach groups.
pub(crate) fn reach(uri: Uri) -> BoxFuture<'static, io::Result<Box<dyn Io>>> {
    Box::pin(async move { Ok(Box::new(connect(uri).await?) as Box<dyn Io>) })
}

async fn connect(uri: Uri) -> io::Result<TcpStream> {
    let authority = uri.authority().ok_or(io::ErrorKind::InvalidInput)?;
    TcpStream::connect(authority.as_str()).await
}

/// A channel over the simulated network that connects with its first call.
fn channel(endpoint: &Endpoint) -> Channel {
    endpoint.connect_with_connector_lazy(tower::service_fn(|uri: Uri| -> Connecting {
        Box::pin(async move { connect(uri).await.map(TokioIo::new) })
    }))
}

/// A channel to a host.
pub(crate) fn to(host: &str) -> Channel {
    let uri = format!("http://{host}:{PORT}");
    let endpoint =
        Endpoint::from_shared(uri).expect("hosts of the tests have names").connect_timeout(CONNECT_LIMIT);
    channel(
        &endpoint
            .http2_keep_alive_interval(Duration::from_secs(5))
            .keep_alive_timeout(Duration::from_secs(2))
            .keep_alive_while_idle(true),
    )
}

/// How stores reach the etcd.
pub(crate) fn etcd() -> Dial {
    Arc::new(|| etcd_client::Channel::Tonic(to("etcd")))
}

pub(crate) fn addr() -> SocketAddr {
    SocketAddr::from((Ipv4Addr::UNSPECIFIED, PORT))
}

/// Connections to this host.
pub(crate) async fn listen() -> io::Result<impl Stream<Item = io::Result<Accepted>>> {
    let listener = TcpListener::bind(addr()).await?;
    Ok(unfold(listener, |listener| async {
        let accepted = listener.accept().await.map(|(stream, _)| Accepted(stream));
        Some((accepted, listener))
    }))
}

/// A connection that was accepted.
pub(crate) struct Accepted(TcpStream);

impl Connected for Accepted {
    type ConnectInfo = ();
    fn connect_info(&self) {}
}

impl AsyncRead for Accepted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl AsyncWrite for Accepted {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
