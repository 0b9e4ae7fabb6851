//! A process in between that does nothing but pass bytes on: what any hop costs on this machine, under the same load.
//!
//! Owns a port for each leader. Reads nothing of what passes, and keeps nothing.

use std::net::SocketAddr;

use hawser_common::tasks::Tasks;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};

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

async fn carry(mut from: TcpStream, leader: SocketAddr) -> std::io::Result<()> {
    let mut to = TcpStream::connect(leader).await?;
    from.set_nodelay(true)?;
    to.set_nodelay(true)?;
    copy_bidirectional(&mut from, &mut to).await?;
    Ok(())
}
