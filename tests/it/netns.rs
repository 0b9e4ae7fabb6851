//! Ranks on two hosts: network namespaces joined by a link that can be cut. Needs root and `ip`; says so where it has not.

use std::process::Command;
use std::time::Duration;

use hawser_client::{Frame, wire};
use hawser_common::clock::Clock;
use hawser_common::{Coded, ErrorCode};
use hawser_tests::demo_model;

use crate::cluster::{token_request, words};
use crate::process::{Server, connect};
use crate::ranks::{failure, follower_arguments, rank_arguments, served};

fn ip(arguments: &[&str]) -> Result<(), String> {
    let output = Command::new("ip").args(arguments).output().map_err(|error| format!("ip: {error}"))?;
    let said = || format!("ip {}: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr).trim());
    if output.status.success() { Ok(()) } else { Err(said()) }
}

/// Two hosts: one with the router and the leader, which this process reaches, and one with the follower behind it.
struct Hosts {
    near: String,
    far: String,
    /// The first three numbers of all addresses.
    network: String,
}

impl Hosts {
    /// # Errors
    /// Why namespaces cannot be had here.
    fn new() -> Result<Self, String> {
        let pid = std::process::id();
        let (near, far) = (format!("hawser-near-{pid}"), format!("hawser-far-{pid}"));
        let hosts = Self { near, far, network: format!("10.{}.{}", 200 + pid % 50, pid / 50 % 250) };
        hosts.set_up(pid)?;
        Ok(hosts)
    }

    fn set_up(&self, pid: u32) -> Result<(), String> {
        let Self { near, far, network } = self;
        for host in [near, far] {
            ip(&["netns", "add", host])?;
            ip(&["-n", host, "link", "set", "lo", "up"])?;
        }
        let here = format!("hw{pid}");
        ip(&["link", "add", &here, "type", "veth", "peer", "name", "home", "netns", near])?;
        ip(&["addr", "add", &format!("{network}.1/30"), "dev", &here])?;
        ip(&["link", "set", &here, "up"])?;
        ip(&["-n", near, "addr", "add", &format!("{network}.2/30"), "dev", "home"])?;
        ip(&["-n", near, "link", "set", "home", "up"])?;
        ip(&["-n", near, "link", "add", "out", "type", "veth", "peer", "name", "in", "netns", far])?;
        ip(&["-n", near, "addr", "add", &format!("{network}.5/30"), "dev", "out"])?;
        ip(&["-n", far, "addr", "add", &format!("{network}.6/30"), "dev", "in"])?;
        ip(&["-n", far, "link", "set", "in", "up"])?;
        self.link(true)
    }

    /// Joins the hosts, or cuts the link between them.
    fn link(&self, up: bool) -> Result<(), String> {
        ip(&["-n", &self.near, "link", "set", "out", if up { "up" } else { "down" }])
    }

    fn start(&self, host: &str, arguments: &[String]) -> Server {
        let starter = ["ip", "netns", "exec", host];
        Server::start_in(&starter, &arguments.iter().map(String::as_str).collect::<Vec<_>>())
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        // The links go with the namespaces.
        for host in [&self.near, &self.far] {
            let _ = ip(&["netns", "del", host]);
        }
    }
}

fn text<const N: usize>(words: [&str; N]) -> Vec<String> {
    words.map(str::to_owned).to_vec()
}

#[tokio::test(flavor = "multi_thread")]
async fn e11_a_cut_between_two_ranks_is_an_error_and_the_group_comes_back_with_the_link() {
    let hosts = match Hosts::new() {
        Ok(hosts) => hosts,
        Err(reason) => return println!("skipped: no network namespaces here ({reason})"),
    };
    let network = &hosts.network;
    let listen = format!("{network}.2:7341");
    let mut router = hosts.start(&hosts.near, &text(["router", "--listen", &listen]));
    let uri = router.uri_after("router listens on ").await;
    let meeting = format!("{network}.5:7399");
    let model = demo_model();
    let mut leader =
        text(["worker", "--router", &uri, "--group", "g", "--threads", "1", "--kv-memory-mib", "128"]);
    leader.extend(text(["--model", model.to_str().unwrap()]));
    leader.extend(rank_arguments("0", &meeting));
    let leader = hosts.start(&hosts.near, &leader);
    let follower = hosts.start(&hosts.far, &follower_arguments(&meeting));
    let client = connect(&uri).await;
    let limit = Duration::from_secs(60);
    let expected = served(&client, limit).await;
    let clock = Clock::system();
    for round in 0..2 {
        let request =
            wire::GenerateRequest { no_continuation: true, ..token_request("", &words(601, 40), 3_000) };
        let mut frames = client.generate(request, Some(limit)).await.unwrap();
        let mut tokens = 0;
        while tokens < 5 {
            if let Some(Frame::Chunk(chunk)) = frames.next().await.unwrap() {
                tokens += chunk.token_ids.len();
            }
        }
        hosts.link(false).unwrap();
        let cut = clock.now();
        let error = failure(&mut frames).await;
        let took = clock.now().since(cut);
        println!("round {round}: the cut was found after {took:?}: {error}");
        assert_eq!(error.code(), ErrorCode::Unavailable, "{error}");
        assert!(took < Duration::from_secs(3), "found after {took:?}");
        hosts.link(true).unwrap();
        assert_eq!(served(&client, limit).await, expected, "a new epoch serves the same");
    }
    drop(client);
    leader.stop().await;
    drop(follower);
    router.stop().await;
}
