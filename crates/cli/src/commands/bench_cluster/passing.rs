//! Something in between that decides nothing: what any hop costs on this machine, under the same load.
//!
//! Owns two ports for each leader: one where bytes are passed on, and one where calls are, from an HTTP/2 server to an
//! HTTP/2 client, as a router takes and makes them. Reads no message, and keeps nothing.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::task::{Context, Poll};

use futures_util::future::BoxFuture;
use hawser_common::tasks::Tasks;
use hawser_proto::v1::worker_server;
use hawser_proto::{Dial, Link, Reach};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::server::NamedService;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;

use super::drive::TURN_LIMIT;

/// Its thread, which is one, as a router's.
pub const PASSING_THREADS: &str = "bench-passing";

/// Passes on what comes at the address that it gives, to `leader` and back. Needs a tokio runtime.
pub async fn pass(leader: SocketAddr, tasks: &Tasks) -> std::io::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let (stopping, connections) = (tasks.stopping(), tasks.clone());
    tasks.spawn(async move {
        loop {
            // Both branches are cancel-safe: a connection that was not accepted waits.
            let accepted = tokio::select! {
                () = stopping.cancelled() => return,
                accepted = listener.accept() => accepted,
            };
            let Ok((from, _)) = accepted else { continue };
            let stopping = stopping.clone();
            connections.spawn(async move {
                // A connection that breaks is noticed at both of its ends.
                tokio::select! {
                    () = stopping.cancelled() => {}
                    _ = carry(from, leader) => {}
                }
            });
        }
    });
    Ok(address)
}

/// Passes calls on that come at the address that it gives. Needs a tokio runtime.
pub fn call_on(leader: SocketAddr, tasks: &Tasks) -> anyhow::Result<SocketAddr> {
    let incoming = TcpIncoming::bind(([127, 0, 0, 1], 0).into())?.with_nodelay(Some(true));
    let address = incoming.local_addr()?;
    let limits = hawser_router::link_limits(TURN_LIMIT);
    let peer = Dial::default().peer(&format!("http://{leader}"), limits, Reach::tcp())?;
    let calls = Calls(Link::new(peer, tasks.clone()));
    let serving = Server::builder().add_service(calls);
    let serving = serving.serve_with_incoming_shutdown(incoming, tasks.stopping().cancelled_owned());
    tasks.spawn(async move {
        // What breaks here fails the calls, which are counted.
        let _ = serving.await;
    });
    Ok(address)
}

/// Calls of a worker's methods, made again at its leader.
#[derive(Clone)]
struct Calls(Link);

impl NamedService for Calls {
    const NAME: &'static str = worker_server::SERVICE_NAME;
}

impl Service<http::Request<Body>> for Calls {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let mut leader = self.0.clone();
        Box::pin(async move {
            // A link is always ready.
            let called = leader.call(request).await;
            Ok(match called {
                Ok(answer) => answer.map(Body::new),
                Err(error) => Status::unavailable(error.to_string()).into_http(),
            })
        })
    }
}

async fn carry(mut from: TcpStream, leader: SocketAddr) -> std::io::Result<()> {
    let mut to = TcpStream::connect(leader).await?;
    from.set_nodelay(true)?;
    to.set_nodelay(true)?;
    copy_bidirectional(&mut from, &mut to).await?;
    Ok(())
}
