//! A real etcd for tests: on loopback, on free ports, with its data in a temporary folder, and ended with the value.
//!
//! The program is the one that `HAWSER_ETCD` names, else `etcd` on the path. Where there is none, tests fail and say
//! what to install; with `HAWSER_SKIP_ETCD=1` they are passed over.

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::etcd::EtcdOptions;

/// Longest that etcd may take to start.
const START_LIMIT: Duration = Duration::from_secs(60);
/// How often a starting etcd is asked whether it has started.
const ASK_EVERY: Duration = Duration::from_millis(50);
/// Tries to start it: a port that was free may be taken when etcd asks for it.
const TRIES: u32 = 5;

/// Certificates that a server and its clients show each other, in PEM.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    pub ca: PathBuf,
    pub cert: PathBuf,
    pub key: PathBuf,
}

/// A running etcd, until it is dropped.
#[derive(Debug)]
pub struct EtcdServer {
    program: String,
    folder: PathBuf,
    tls: Option<TlsFiles>,
    ports: Ports,
    child: Option<Child>,
}

#[derive(Clone, Copy, Debug)]
struct Ports {
    client: u16,
    peer: u16,
    metrics: u16,
}

#[allow(clippy::disallowed_methods, reason = "this is for tests, which have no configuration to read")]
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// The program to run as etcd; `None` where tests with etcd are to be passed over.
#[must_use]
pub fn etcd_program() -> Option<String> {
    if variable("HAWSER_SKIP_ETCD").is_some_and(|value| value != "0") {
        return None;
    }
    Some(variable("HAWSER_ETCD").unwrap_or_else(|| "etcd".to_owned()))
}

impl EtcdServer {
    /// A fresh etcd that answers; `None` where tests with etcd are to be passed over.
    ///
    /// # Panics
    /// Where there is no etcd, or it does not start.
    pub async fn start(tls: Option<TlsFiles>) -> Option<Self> {
        let program = etcd_program()?;
        static FOLDERS: AtomicU32 = AtomicU32::new(0);
        let name = format!("hawser-etcd-{}-{}", std::process::id(), FOLDERS.fetch_add(1, Ordering::SeqCst));
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).expect("a temporary folder can be made");
        let mut server = Self { program, folder, tls, ports: free_ports(), child: None };
        for _ in 0..TRIES {
            if server.run().await {
                return Some(server);
            }
            server.kill();
            server.ports = free_ports();
        }
        assert!(server.child.is_some(), "etcd does not start; its last words are\n{}", server.last_words());
        Some(server)
    }

    /// URI for clients.
    #[must_use]
    pub fn endpoint(&self) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://127.0.0.1:{}", self.ports.client)
    }

    /// Where clients connect.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.ports.client))
    }

    /// Options of a store in this etcd, below `prefix`.
    #[must_use]
    pub fn options(&self, prefix: &str) -> EtcdOptions {
        let tls = self.tls.clone();
        EtcdOptions {
            endpoints: vec![self.endpoint()],
            ca_file: tls.as_ref().map(|tls| tls.ca.clone()),
            cert_file: tls.as_ref().map(|tls| tls.cert.clone()),
            key_file: tls.map(|tls| tls.key),
            prefix: prefix.to_owned(),
            ..EtcdOptions::default()
        }
    }

    /// Its process, while it runs.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// Stops the process where it stands (SIGSTOP). Connections stay and nothing is answered.
    pub fn pause(&self) {
        self.signal("-STOP");
    }

    /// Lets a paused process go on (SIGCONT).
    pub fn resume(&self) {
        self.signal("-CONT");
    }

    /// Ends the process at once (SIGKILL). What it had promised is in its folder.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            // One that has ended by itself is as dead as it should be.
            let _ended = child.kill();
            let _status = child.wait();
        }
    }

    /// Starts a killed etcd again, on the same ports and data, and waits until it answers.
    ///
    /// # Panics
    /// Where it does not.
    pub async fn restart(&mut self) {
        self.kill();
        let started = self.run().await;
        assert!(started, "etcd does not start again; its last words are\n{}", self.last_words());
    }

    fn signal(&self, signal: &str) {
        let pid = self.pid().expect("etcd runs").to_string();
        let status = Command::new("kill").args([signal, &pid]).status().expect("there is a kill command");
        assert!(status.success(), "kill {signal} {pid}: {status}");
    }

    /// Starts the process; `false` if it ended or did not answer in time.
    async fn run(&mut self) -> bool {
        let child = self.command().spawn().map_err(|error| missing(&self.program, &error));
        self.child = Some(child.expect("the tests of the store in etcd need an etcd"));
        let asking = async {
            loop {
                let ended = self.child.as_mut().is_none_or(|child| !matches!(child.try_wait(), Ok(None)));
                if ended {
                    return false;
                }
                if healthy(self.ports.metrics).await.unwrap_or(false) {
                    return true;
                }
                tokio::time::sleep(ASK_EVERY).await;
            }
        };
        tokio::time::timeout(START_LIMIT, asking).await.unwrap_or(false)
    }

    fn command(&self) -> Command {
        let url = |port: u16| format!("http://127.0.0.1:{port}");
        let (client, peer) = (self.endpoint(), url(self.ports.peer));
        let log = || File::options().create(true).append(true).open(self.folder.join("log"));
        let output = || log().map_or_else(|_| Stdio::null(), Stdio::from);
        let mut command = Command::new(&self.program);
        command
            .args(["--name", "test", "--log-level", "warn", "--logger", "zap"])
            .args(["--data-dir", &self.folder.join("data").to_string_lossy()])
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &format!("test={peer}")])
            .args(["--listen-metrics-urls", &url(self.ports.metrics)])
            .stdin(Stdio::null())
            .stdout(output())
            .stderr(output());
        if let Some(tls) = &self.tls {
            let path = |path: &Path| path.to_string_lossy().into_owned();
            command.args(["--client-cert-auth", "--trusted-ca-file", &path(&tls.ca)]).args([
                "--cert-file",
                &path(&tls.cert),
                "--key-file",
                &path(&tls.key),
            ]);
        }
        command
    }

    fn last_words(&self) -> String {
        let log = std::fs::read_to_string(self.folder.join("log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().rev().take(20).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join("\n")
    }
}

impl Drop for EtcdServer {
    fn drop(&mut self) {
        self.kill();
        let _gone = std::fs::remove_dir_all(&self.folder);
    }
}

fn missing(program: &str, error: &std::io::Error) -> String {
    format!(
        "{program} cannot be run ({error}): install it (Debian and Ubuntu: apt-get install etcd-server), name it with \
         HAWSER_ETCD=/path/to/etcd, or pass these tests over with HAWSER_SKIP_ETCD=1"
    )
}

/// Three ports that nobody listens on now.
fn free_ports() -> Ports {
    // All are held until all are known, so that they differ.
    let held = [(); 3].map(|()| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port is free"));
    let [client, peer, metrics] =
        held.map(|listener| listener.local_addr().expect("a bound socket has an address").port());
    Ports { client, peer, metrics }
}

/// Whether etcd says that it has a leader and takes writes.
async fn healthy(port: u16) -> std::io::Result<bool> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
    stream.write_all(b"GET /health HTTP/1.0\r\n\r\n").await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer.contains("\"true\""))
}
