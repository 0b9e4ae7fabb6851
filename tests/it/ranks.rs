//! Groups of several ranks: turns, prunes and sharing as with one, and failures that end every request and leave nothing
//! behind. That ranks compute what one machine computes is shown on exact checkpoints, in the parity tests.

use std::time::Duration;

use hawser_client::{Client, ClientError, Frame, FrameStream, wire};
use hawser_common::clock::Clock;
use hawser_common::{Coded, ErrorCode};
use hawser_tests::demo_model;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::cluster::{Cluster, run, token_request, words};
use crate::process::{Server, connect};

/// What turns of every kind of policy say and count.
async fn outcomes(tp: usize) -> Vec<(Vec<u32>, [u32; 5])> {
    let cluster = Cluster::start(1, |options| options.tp = tp).await;
    let mut all = Vec::new();
    for policy in ["streaming", "role-prior", "random", "snapkv", "h2o", "intent-memory"] {
        let keep = wire::Retention {
            policy: policy.to_owned(),
            budget_tokens: 160,
            trigger_tokens: Some(0),
            ..Default::default()
        };
        let mut log = Vec::new();
        for seed in [500, 501, 502] {
            log.extend(words(seed, 120));
            let request =
                wire::GenerateRequest { retention: Some(keep.clone()), ..token_request(policy, &log, 8) };
            // Every prune compares the tables of the ranks: if one had another set, the group would fail here.
            let answer = run(&cluster.client, request).await.unwrap();
            log.extend_from_slice(&answer.tokens);
            let usage = answer.usage();
            let counts = [
                usage.prefilled_tokens,
                usage.reused_tokens,
                usage.evicted_tokens,
                usage.freed_slots,
                usage.peak_live_tokens,
            ];
            all.push((answer.tokens, counts));
        }
        cluster.client.close_session(policy).await.unwrap();
    }
    cluster.wait_until_empty().await;
    cluster.stop().await;
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn r4_ranks_prune_together_and_count_as_one() {
    let alone = outcomes(1).await;
    assert!(alone.iter().any(|(_, [_, _, evicted, ..])| *evicted > 0));
    for tp in [2, 3] {
        assert_eq!(outcomes(tp).await, alone, "tp = {tp}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn e11_p22_a_rank_that_dies_or_hangs_ends_every_request_and_the_next_one_is_served() {
    // Every kind of fault once.
    let detected = Box::pin(Faults::start().await.run(&Fault::ALL.map(|fault| (fault, 5)))).await;
    println!("{detected:?}");
}

/// As above, fifty times. Takes minutes: `cargo test -p hawser-tests --test it -- --ignored fifty --nocapture`.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes minutes"]
async fn e11_p22_fifty_faults_at_random_steps() {
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    let faults: Vec<(Fault, usize)> =
        (0..50).map(|at| (Fault::ALL[at % Fault::ALL.len()], rng.random_range(1..60))).collect();
    let detected = Box::pin(Faults::start().await.run(&faults)).await;
    for fault in Fault::ALL {
        let mut times: Vec<Duration> =
            detected.iter().filter(|(of, _)| *of == fault).map(|(_, time)| *time).collect();
        times.sort_unstable();
        let (least, most) = (times[0], times[times.len() - 1]);
        println!(
            "{fault:?}: {} times, {least:?}, median {:?}, {most:?}",
            times.len(),
            times[times.len() / 2]
        );
    }
}

/// Times are relative between ranks: a follower whose clock is ten days ahead serves with the others.
#[tokio::test(flavor = "multi_thread")]
async fn e9_a_follower_with_another_clock_changes_nothing() {
    let ahead =
        ["unshare", "--time", "--monotonic", "864000", "--boottime", "864000", "--fork", "--kill-child"];
    let probe = std::process::Command::new(ahead[0]).args(&ahead[1..]).arg("true").output();
    if !probe.is_ok_and(|output| output.status.success()) {
        println!("skipped: no time namespaces here, or no right to make one");
        return;
    }
    let (router, uri) = Server::router(&[]).await;
    let client = connect(&uri).await;
    let meeting = free_address();
    let leader = start_leader(&uri, &meeting, &[]).await;
    let same = start_follower(&[], &meeting);
    let request = || token_request("", &words(602, 40), 60);
    served(&client, LIMIT).await;
    let expected = run(&client, request()).await.unwrap().tokens;
    same.kill().await;
    let skewed = start_follower(&ahead, &meeting);
    served(&client, LIMIT).await;
    assert_eq!(run(&client, request()).await.unwrap().tokens, expected);
    // A pause longer than the ranks' patience with each other: only beats pass.
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    assert_eq!(run(&client, request()).await.unwrap().tokens, expected);
    drop(client);
    leader.stop().await;
    drop(skewed);
    router.stop().await;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Victim {
    Follower,
    Leader,
}

/// What happens to a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// SIGKILL, and another one is started.
    Kill(Victim),
    /// SIGSTOP, and SIGCONT once it was found out.
    Pause(Victim),
    /// SIGSTOP for ever: it is killed once it was found out, and another one is started.
    Hang(Victim),
}

impl Fault {
    const ALL: [Self; 6] = [
        Self::Kill(Victim::Follower),
        Self::Pause(Victim::Leader),
        Self::Kill(Victim::Leader),
        Self::Hang(Victim::Follower),
        Self::Pause(Victim::Follower),
        Self::Hang(Victim::Leader),
    ];

    fn victim(self) -> Victim {
        match self {
            Self::Kill(victim) | Self::Pause(victim) | Self::Hang(victim) => victim,
        }
    }
}

/// A group of two processes and what happens to it.
struct Faults {
    router: Server,
    uri: String,
    client: Client,
    meeting: String,
    leader: Server,
    follower: Server,
}

/// From the fault to the error at the client.
const DETECTED: Duration = Duration::from_secs(3);
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

impl Faults {
    async fn start() -> Self {
        let (router, uri) = Server::router(&[]).await;
        let client = connect(&uri).await;
        let meeting = free_address();
        let leader = start_leader(&uri, &meeting, &[]).await;
        let follower = start_follower(&[], &meeting);
        Self { router, uri, client, meeting, leader, follower }
    }

    /// Runs every fault in the middle of a stream, after so many tokens. How long each took to be found.
    async fn run(mut self, faults: &[(Fault, usize)]) -> Vec<(Fault, Duration)> {
        let expected = served(&self.client, LIMIT).await;
        let clock = Clock::system();
        let mut detected = Vec::new();
        for &(fault, after) in faults {
            let request =
                wire::GenerateRequest { no_continuation: true, ..token_request("", &words(601, 40), 3_000) };
            let mut frames = self.client.generate(request, Some(LIMIT)).await.unwrap();
            let mut tokens = 0;
            while tokens < after {
                if let Some(Frame::Chunk(chunk)) = frames.next().await.unwrap() {
                    tokens += chunk.token_ids.len();
                }
            }
            let began = clock.now();
            let dead = self.strike(fault).await;
            let error = failure(&mut frames).await;
            let took = clock.now().since(began);
            assert_eq!(error.code(), ErrorCode::Unavailable, "{fault:?}: {error}");
            assert!(took < DETECTED, "{fault:?} was found after {took:?}: {error}");
            detected.push((fault, took));
            self.recover(fault, dead).await;
            let tokens = served(&self.client, LIMIT).await;
            assert_eq!(tokens, expected, "{fault:?}: a new epoch serves the same");
        }
        let Self { router, client, leader, follower, .. } = self;
        drop(client);
        leader.stop().await;
        drop(follower);
        router.stop().await;
        detected
    }

    /// Whether the victim is dead.
    async fn strike(&mut self, fault: Fault) -> bool {
        let victim = match fault.victim() {
            Victim::Follower => &mut self.follower,
            Victim::Leader => &mut self.leader,
        };
        match fault {
            Fault::Kill(_) => victim.kill_now().await,
            Fault::Pause(_) | Fault::Hang(_) => victim.freeze(),
        }
        matches!(fault, Fault::Kill(_))
    }

    async fn recover(&mut self, fault: Fault, dead: bool) {
        let victim = match fault.victim() {
            Victim::Follower => &mut self.follower,
            Victim::Leader => &mut self.leader,
        };
        if let Fault::Pause(_) = fault {
            return victim.thaw();
        }
        if !dead {
            victim.kill_now().await;
        }
        match fault.victim() {
            Victim::Follower => self.follower = start_follower(&[], &self.meeting),
            Victim::Leader => self.leader = start_leader(&self.uri, &self.meeting, &[]).await,
        }
    }
}

/// The error that a stream ends with. Fails where it ends well.
pub(crate) async fn failure(frames: &mut FrameStream) -> ClientError {
    loop {
        match frames.next().await {
            Ok(Some(Frame::Finished(end))) => panic!("a turn without all ranks ended well: {end:?}"),
            Ok(Some(_)) => {}
            Ok(None) => panic!("a turn without all ranks ended without an error"),
            Err(error) => return error,
        }
    }
}

/// The address of a listener that is closed again: free a moment ago.
pub(crate) fn free_address() -> String {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

/// Leases are short, so that a leader that died can be followed by another one of the same name.
pub(crate) async fn start_leader(uri: &str, meeting: &str, more: &[&str]) -> Server {
    let mut arguments = rank_arguments("0", meeting);
    arguments.extend(["--set", "worker.lease_ttl_ms=2000"].map(str::to_owned));
    arguments.extend(more.iter().map(|&more| more.to_owned()));
    let model = demo_model();
    let mut all = vec!["worker", "--router", uri, "--group", "g", "--threads", "1", "--kv-memory-mib", "128"];
    all.extend(["--model", model.to_str().unwrap()]);
    all.extend(arguments.iter().map(String::as_str));
    let mut leader = Server::start(&all);
    // It is in the cluster only once all ranks are there.
    leader.uri_after("  g: ").await;
    leader
}

fn start_follower(starter: &[&str], meeting: &str) -> Server {
    let arguments = follower_arguments(meeting);
    Server::start_in(starter, &arguments.iter().map(String::as_str).collect::<Vec<_>>())
}

pub(crate) fn rank_arguments(rank: &'static str, meeting: &str) -> Vec<String> {
    ["--rank", rank, "--world", "2", "--rendezvous", meeting].map(str::to_owned).to_vec()
}

pub(crate) fn follower_arguments(meeting: &str) -> Vec<String> {
    let model = demo_model();
    let mut arguments =
        ["worker", "--threads", "1", "--model", model.to_str().unwrap()].map(str::to_owned).to_vec();
    arguments.extend(rank_arguments("1", meeting));
    arguments
}

/// Tries until a request is served: a group that comes back takes a moment.
pub(crate) async fn served(client: &Client, limit: Duration) -> Vec<u32> {
    let clock = Clock::system();
    let until = clock.now().after(limit);
    loop {
        match run(client, token_request("", &words(600, 40), 4)).await {
            Ok(answer) => return answer.tokens,
            Err(error) => assert!(clock.now() < until, "not served again: {error}"),
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// What `hawser status --json` says of the only group, once `done` says that it is what was waited for.
async fn status(uri: &str, done: impl Fn(&serde_json::Value) -> bool) -> serde_json::Value {
    let clock = Clock::system();
    let until = clock.now().after(Duration::from_secs(60));
    loop {
        let shown = crate::process::run(&["status", "--server", uri, "--json"], "").await;
        let shown: serde_json::Value = serde_json::from_slice(&shown.stdout).unwrap();
        let group = &shown["groups"][0];
        if done(group) {
            return group.clone();
        }
        assert!(clock.now() < until, "never seen; last: {group:#}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn health(group: &serde_json::Value, rank: usize) -> &str {
    group["state"]["ranks"][rank]["health"].as_str().unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn p22_status_shows_every_rank_and_which_one_went() {
    let (router, uri) = Server::router(&[]).await;
    let client = connect(&uri).await;
    let meeting = free_address();
    let leader = start_leader(&uri, &meeting, &[]).await;
    let other = start_follower(&[], &meeting);
    served(&client, Duration::from_secs(60)).await;
    // Heartbeats say where each rank is.
    let group = status(&uri, |group| group["state"]["ranks"][1]["step"].as_u64() > Some(0)).await;
    assert_eq!((health(&group, 0), health(&group, 1)), ("up", "up"), "{group:#}");
    let number = |rank: usize, key: &str| group["state"]["ranks"][rank][key].as_u64().unwrap();
    for key in ["weight_bytes", "kv_bytes", "threads", "computing_us", "across_us"] {
        assert!(number(0, key) > 0 && number(1, key) > 0, "{key}: {group:#}");
    }
    // Each holds two of the three KV heads; of nine query heads one has five.
    assert_eq!(number(0, "kv_bytes"), number(1, "kv_bytes"));
    assert!(number(0, "weight_bytes") > number(1, "weight_bytes"), "{group:#}");
    other.freeze();
    let group = status(&uri, |group| matches!(health(group, 1), "slow" | "gone")).await;
    assert_eq!(health(&group, 0), "up", "{group:#}");
    other.kill().await;
    let gone = |group: &serde_json::Value| health(group, 1) == "gone" && group["departed"] == true;
    let group = status(&uri, gone).await;
    assert_eq!(group["state"]["phase"], "forming", "{group:#}");
    assert!(!group["state"]["ranks"][1]["reason"].as_str().unwrap().is_empty(), "{group:#}");
    let text = crate::process::run(&["status", "--server", &uri], "").await;
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.contains("left") && text.contains("gone"), "{text}");
    let other = start_follower(&[], &meeting);
    let back = |group: &serde_json::Value| health(group, 1) == "up" && group["departed"] == false;
    let group = status(&uri, back).await;
    assert!(group["state"]["rank_epoch"].as_u64() > Some(1), "{group:#}");
    drop(client);
    leader.stop().await;
    drop(other);
    router.stop().await;
}
