//! A network between a store and its etcd that can be cut, or swallow everything without a word.

use std::net::SocketAddr;

use hawser_common::tasks::Tasks;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// Ends with the value. Connections are numbered as they are opened.
#[derive(Debug)]
pub struct Proxy {
    addr: SocketAddr,
    /// Connections below this number are cut.
    cut: watch::Sender<u64>,
    /// Connections below this number swallow what comes.
    swallow: watch::Sender<u64>,
    opened: watch::Receiver<u64>,
    tasks: Tasks,
}

impl Proxy {
    /// A network in front of `to`.
    ///
    /// # Panics
    /// Where no port is free.
    pub async fn start(to: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let addr = listener.local_addr().expect("a bound socket has an address");
        let (cut, swallow) = (watch::Sender::new(0), watch::Sender::new(0));
        let (count, opened) = watch::channel(0);
        let tasks = Tasks::new();
        let (cuts, swallowed, spawner) = (cut.subscribe(), swallow.subscribe(), tasks.clone());
        tasks.spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let number = *count.borrow();
                count.send_replace(number + 1);
                let (mut cuts, swallowed) = (cuts.clone(), swallowed.clone());
                spawner.spawn(async move {
                    let Ok(far) = TcpStream::connect(to).await else { return };
                    let (near, far) = (near.into_split(), far.into_split());
                    // Dropping both ends is what cuts them.
                    tokio::select! {
                        _ = cuts.wait_for(|below| number < *below) => {}
                        () = pump(near.0, far.1, number, swallowed.clone()) => {}
                        () = pump(far.0, near.1, number, swallowed) => {}
                    }
                });
            }
        });
        Self { addr, cut, swallow, opened, tasks }
    }

    /// URI for the store's clients.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// Cuts every connection, and new ones at once.
    pub fn cut(&self) {
        self.cut.send_replace(u64::MAX);
    }

    /// Lets new connections live. Those from before stay cut, however soon this follows.
    pub fn mend(&self) {
        self.cut.send_replace(self.opened());
    }

    /// Connections that were opened so far.
    #[must_use]
    pub fn opened(&self) -> u64 {
        *self.opened.borrow()
    }

    /// From now on the open connections carry nothing, and stay open.
    pub fn swallow_open(&self) {
        self.swallow.send_replace(self.opened());
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.tasks.stop();
        self.cut();
    }
}

async fn pump(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, number: u64, swallow: watch::Receiver<u64>) {
    let mut buffer = vec![0; 16 << 10];
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        if number >= *swallow.borrow() && to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
    }
}
