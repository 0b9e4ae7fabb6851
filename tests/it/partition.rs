//! An etcd of three members, each on a machine of its own, whose leader is cut off from the others and from everyone.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use hawser_client::Client;
use hawser_common::clock::Clock;
use hawser_placement::conformance::etcd_program;

use crate::cluster::{eventually, run, token_request, words};
use crate::network::Network;
use crate::process::{Server, connect};

const MEMBERS: u8 = 3;
const CLIENT_PORT: u16 = 2379;

/// The members' processes, ended with the value.
struct Members<'a> {
    network: &'a Network,
    processes: Vec<Child>,
}

impl<'a> Members<'a> {
    /// `None` where tests with etcd are to be passed over.
    async fn start(network: &'a Network, folder: &Path) -> Option<Self> {
        let program = etcd_program()?;
        let mut members = Self { network, processes: Vec::new() };
        for member in 1..=MEMBERS {
            members
                .processes
                .push(members.command(&program, member, folder).spawn().expect("etcd can be run"));
        }
        eventually("etcd has a leader", async || members.leader().is_some()).await;
        Some(members)
    }

    fn command(&self, program: &str, member: u8, folder: &Path) -> Command {
        let url = |member: u8, port: u16| format!("http://{}:{port}", self.network.address(member));
        let all: Vec<String> =
            (1..=MEMBERS).map(|member| format!("m{member}={}", url(member, 2380))).collect();
        let [ip, netns, exec, host] = self.network.on(member);
        let mut command = Command::new(ip);
        command
            .args([&netns, &exec, &host, program])
            .args(["--name", &format!("m{member}"), "--log-level", "error", "--logger", "zap"])
            .args(["--data-dir", &folder.join(format!("m{member}")).to_string_lossy()])
            .args(["--listen-client-urls", &url(member, CLIENT_PORT)])
            .args(["--advertise-client-urls", &url(member, CLIENT_PORT)])
            .args(["--listen-peer-urls", &url(member, 2380)])
            .args(["--initial-advertise-peer-urls", &url(member, 2380)])
            .args(["--initial-cluster", &all.join(",")])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command
    }

    fn endpoints(&self) -> String {
        let uri = |member| format!("http://{}:{CLIENT_PORT}", self.network.address(member));
        (1..=MEMBERS).map(uri).collect::<Vec<_>>().join(",")
    }

    /// The member that says that it leads.
    fn leader(&self) -> Option<u8> {
        (1..=MEMBERS).find(|&member| self.leads(member).unwrap_or(false))
    }

    fn leads(&self, member: u8) -> std::io::Result<bool> {
        const LIMIT: Duration = Duration::from_millis(300);
        let address = SocketAddr::from((self.network.address(member), CLIENT_PORT));
        let mut stream = TcpStream::connect_timeout(&address, LIMIT)?;
        stream.set_read_timeout(Some(LIMIT))?;
        stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n")?;
        let mut said = String::new();
        stream.read_to_string(&mut said)?;
        Ok(said.lines().any(|line| line == "etcd_server_is_leader 1"))
    }
}

impl Drop for Members<'_> {
    fn drop(&mut self) {
        for member in &mut self.processes {
            let _ended = member.kill();
            let _status = member.wait();
        }
    }
}

async fn turn(client: &Client, session: &str, len: usize) -> Result<u32, String> {
    let answer = run(client, token_request(session, &words(720, len), 3)).await;
    answer.map(|answer| answer.usage().reused_tokens).map_err(|error| error.to_string())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_goes_on_when_the_leader_of_its_etcd_is_cut_off() {
    let Some(network) = Network::new(MEMBERS) else { return };
    let folder = tempfile::tempdir().unwrap();
    let Some(members) = Members::start(&network, folder.path()).await else { return };
    let endpoints = members.endpoints();
    let (router, uri) = Server::router(&["--etcd", &endpoints]).await;
    let (worker, _) = Server::member(["--etcd", &endpoints], "a", &[]).await;
    let client = connect(&uri).await;
    eventually("the router knows the group", async || {
        client.list_groups().await.is_ok_and(|groups| groups.len() == 1)
    })
    .await;
    turn(&client, "known", 30).await.unwrap();
    let leader = members.leader().unwrap();
    let clock = Clock::system();
    network.cut(leader);
    let cut = clock.now();
    // Longer than the group's lease: it is renewed through the members that are left, or the turns would end.
    let (mut turns, mut claimed) = (0, None);
    while clock.now().since(cut) < Duration::from_secs(15) {
        turns += 1;
        let reused = turn(&client, "known", 30 + turns).await;
        assert!(reused.as_ref().is_ok_and(|&reused| reused > 0), "turn {turns}: {reused:?}");
        if claimed.is_none() && turn(&client, &format!("new-{turns}"), 20).await.is_ok() {
            claimed = Some(clock.now().since(cut));
        }
    }
    let claimed = claimed.expect("new sessions are claimed while a member is missing");
    assert!(claimed < Duration::from_secs(12), "the first new session after {claimed:?}");
    network.mend(leader);
    eventually("the member follows again", async || members.leader().is_some_and(|now| now != leader)).await;
    turn(&client, "after", 20).await.unwrap();
    drop(client);
    worker.stop().await;
    router.stop().await;
}
