//! Sessions that move: a group leaves, another goes on with its sessions as if they had always been there.

use std::time::Duration;

use futures_util::future::join_all;
use hawser_client::{Sampling, wire};
use hawser_common::tasks::Tasks;
use hawser_common::{Coded, ErrorCode, Position};
use hawser_kv::retention::{Marks, Origin};
use hawser_model::checkpoint::Checkpoint;
use hawser_proto::v1;
use hawser_tests::demo_model;
use hawser_worker::moving::snapshot::{Chunk, Manifest, Offer, Shape, Writer};
use hawser_worker::scheduler::SessionState;
use hawser_worker::session::{History, Transcript};
use hawser_worker::{KvType, WorkerOptions};
use v1::import_session_request::Step as Ask;

use crate::cluster::{Answer, Cluster, LIMIT, eventually, run, run_within, token_request, words};
use crate::process::{Server, connect};

fn retention(policy: &str, budget_tokens: u32) -> wire::Retention {
    wire::Retention {
        policy: policy.to_owned(),
        budget_tokens,
        trigger_tokens: Some(0),
        revive: Some(false),
        ..Default::default()
    }
}

/// A session of which every turn but the first carries only what is new.
struct Session<'a> {
    cluster: &'a Cluster,
    id: &'a str,
    keep: wire::Retention,
    limit: Duration,
}

fn one<'a>(cluster: &'a Cluster, keep: &wire::Retention) -> Session<'a> {
    Session { cluster, id: "s", keep: keep.clone(), limit: LIMIT }
}

impl Session<'_> {
    async fn turn(&self, number: u32, new: Vec<u32>, most: u32) -> Answer {
        let keep = Some(self.keep.clone());
        let mut request = wire::GenerateRequest { retention: keep, ..token_request(self.id, &new, most) };
        if let Some(wire::generate_request::Input::Tokens(input)) = &mut request.input {
            let extent = if number == 1 { wire::Extent::Whole } else { wire::Extent::Delta };
            input.extent = extent.into();
        }
        run_within(&self.cluster.client, request, self.limit).await.unwrap()
    }
}

/// Three turns, and between the second and the third the group leaves if it is to.
async fn life(policy: &str, moves: bool, adjust: impl Fn(&mut WorkerOptions)) -> Vec<Answer> {
    let mut cluster = Cluster::start(if moves { 2 } else { 1 }, adjust).await;
    let keep = retention(policy, if policy == "full" { 0 } else { 150 });
    let mut answers = Vec::new();
    for number in 1..=2 {
        answers.push(one(&cluster, &keep).turn(number, words(300 + number, 200), 8).await);
    }
    let before = cluster.client.describe_session("s").await.unwrap();
    if moves {
        cluster.stop_worker(&answers[1].group).await;
        let owner = async || cluster.client.describe_session("s").await.is_ok();
        eventually("the session is somewhere", owner).await;
        let after = cluster.client.describe_session("s").await.unwrap();
        assert_ne!(after.group, before.group, "{policy}");
        assert_eq!((after.turns, after.tokens), (before.turns, before.tokens), "{policy}");
        assert_eq!(after.live_tokens, before.live_tokens, "{policy}: only live rows moved, and all of them");
        assert_eq!(after.retention, before.retention);
    }
    answers.push(one(&cluster, &keep).turn(3, words(303, 40), 32).await);
    answers.push(one(&cluster, &keep).turn(4, words(304, 60), 8).await);
    cluster.client.close_session("s").await.unwrap();
    cluster.wait_until_empty().await;
    cluster.stop().await;
    answers
}

fn same_but_for_the_group(policy: &str, stayed: &[Answer], moved: &[Answer]) {
    assert_ne!(moved[1].group, moved[2].group, "{policy}");
    for (index, (stayed, moved)) in stayed.iter().zip(moved).enumerate() {
        assert_eq!(stayed.tokens, moved.tokens, "{policy}, turn {index}");
        let usage = moved.usage();
        assert_eq!(
            wire::Usage { peak_live_tokens: 0, ..stayed.usage() },
            wire::Usage { peak_live_tokens: 0, ..usage },
            "{policy}, turn {index}: nothing was computed again"
        );
    }
    assert_eq!(moved[2].usage().prefilled_tokens, 41, "{policy}: what is new, and the last token generated");
}

#[tokio::test(flavor = "multi_thread")]
async fn r6_a_moved_session_goes_on_as_if_it_had_stayed() {
    for policy in ["full", "role-prior", "intent-memory", "h2o", "snapkv", "answer-rows"] {
        let stayed = life(policy, false, |_| {}).await;
        let moved = life(policy, true, |_| {}).await;
        same_but_for_the_group(policy, &stayed, &moved);
        assert_eq!(moved[1].usage().evicted_tokens > 0, policy != "full", "{policy}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn r6_groups_of_several_ranks_hand_over_all_heads() {
    for policy in ["intent-memory", "h2o"] {
        let two = |options: &mut WorkerOptions| (options.tp, options.kv_type) = (2, KvType::Bf16);
        let stayed = life(policy, false, two).await;
        let moved = life(policy, true, two).await;
        same_but_for_the_group(policy, &stayed, &moved);
        // From two ranks to one or the other way round: the same numbers.
        let mixed = |options: &mut WorkerOptions| {
            two(options);
            options.tp = if options.group == "g0" { 2 } else { 1 };
        };
        let moved = life(policy, true, mixed).await;
        same_but_for_the_group(policy, &stayed, &moved);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_no_group_can_take_is_computed_again() {
    let kv_type = |options: &mut WorkerOptions| {
        options.kv_type = if options.group == "g0" { KvType::F16 } else { KvType::F32 };
    };
    let mut cluster = Cluster::start(2, kv_type).await;
    let prompt = words(310, 150);
    let first = run(&cluster.client, token_request("s", &prompt, 8)).await.unwrap();
    cluster.stop_worker(&first.group).await;
    let whole = [prompt, first.tokens, words(311, 20)].concat();
    let again = run(&cluster.client, token_request("s", &whole, 8)).await.unwrap();
    assert_ne!(again.group, first.group);
    assert_eq!(again.usage().reused_tokens, 0, "rows of another type are of no use");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn p12_running_turns_end_and_all_their_sessions_are_handed_over() {
    // Each session's rows are its own: what another one computed would count as reused.
    let mut cluster = Cluster::start(2, |options| options.share_prefixes = false).await;
    let ids: Vec<String> = (0..16).map(|n| format!("s{n}")).collect();
    fn session<'a>(cluster: &'a Cluster, id: &'a str) -> Session<'a> {
        Session { cluster, id, keep: retention("full", 0), limit: LIMIT }
    }
    let firsts = ids.iter().map(|id| {
        let session = session(&cluster, id);
        async move { session.turn(1, words(320, 60), 4).await }
    });
    let firsts: Vec<Answer> = join_all(firsts).await;
    let leaver = firsts[0].group.clone();
    let index = cluster.workers.iter().position(|worker| worker.group().as_str() == leaver).unwrap();
    let leaving = cluster.workers.remove(index);
    // Turns that run when the group begins to leave, or come while it does: each once, each to its end.
    let seconds = ids.iter().map(|id| {
        let session = session(&cluster, id);
        async move { session.turn(2, words(321, 10), 40).await }
    });
    let begun = async {
        let busy = async || leaving.capacity().running > 0;
        eventually("a turn runs", busy).await;
        let stopping = Tasks::new();
        stopping.spawn(leaving.shutdown(Duration::from_secs(60))).await.unwrap()
    };
    let (seconds, finished) = tokio::join!(join_all(seconds), begun);
    assert!(finished, "no turn was cut off");
    for (first, second) in firsts.iter().zip(&seconds) {
        assert_eq!(second.tokens.len(), 40);
        // More where another session, which begins alike, was there before.
        assert!(second.usage().reused_tokens >= 63, "{first:?} then {second:?}");
    }
    for id in &ids {
        let third = session(&cluster, id).turn(3, words(322, 10), 4).await;
        assert_ne!(third.group, leaver);
        assert!(third.usage().prefilled_tokens <= 11, "{id}: {third:?}");
        assert_eq!(cluster.client.describe_session(id).await.unwrap().turns, 3, "no turn ran twice");
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn r6_a_pruned_session_of_a_stopped_process_goes_on_at_the_other() {
    let (router, uri) = Server::router(&[]).await;
    let keep = ["--set", "worker.retention.policy=role-prior", "--set", "worker.retention.budget_tokens=128"];
    let keep = [&keep[..], &["--set", "worker.retention.trigger_tokens=0"][..]].concat();
    let mut workers = std::collections::HashMap::new();
    for group in ["a", "b"] {
        workers.insert(group.to_owned(), Server::worker(&uri, group, &keep).await);
    }
    let client = connect(&uri).await;
    let mut session = client.session().sampling(Sampling::greedy().max_tokens(8)).start();
    let long = "Tell me about rivers, towns, hills and roads. ".repeat(12);
    let mut held = 0;
    let mut group = String::new();
    for _ in 0..3 {
        let outcome = session.say(long.as_str()).await.unwrap().outcome().await.unwrap();
        let usage = outcome.report.usage;
        held = usage.prompt_tokens + usage.generated_tokens - 1;
        group = outcome.placed.group;
    }
    workers.remove(&group).unwrap().stop().await;
    let outcome = session.say("Which rivers?").await.unwrap().outcome().await.unwrap();
    assert_ne!(outcome.placed.group, group);
    assert!(!outcome.placed.resent, "what is new was enough");
    let usage = outcome.report.usage;
    assert_eq!(usage.reused_tokens, held, "{usage:?}");
    assert!(usage.dead_tokens > 0 && usage.prefilled_tokens < 30, "{usage:?}");
    drop((session, client));
    for worker in workers.into_values() {
        worker.stop().await;
    }
    router.stop().await;
}

fn shape() -> Shape {
    let checkpoint = Checkpoint::open(demo_model()).unwrap();
    let config = checkpoint.config();
    let size = |count: usize| u32::try_from(count).unwrap();
    Shape {
        digest: checkpoint.digest().to_string(),
        kv_type: KvType::F16,
        layers: size(config.layers),
        heads: size(config.heads),
        kv_heads: size(config.kv_heads),
        head_dim: size(config.head_dim),
    }
}

/// What is said to a group that is to take a session over, and what it answers last.
async fn offered(cluster: &Cluster, asks: Vec<Ask>) -> Result<Vec<&'static str>, ErrorCode> {
    let address = format!("http://{}", cluster.workers[0].addr());
    let mut client = v1::handover_client::HandoverClient::connect(address).await.unwrap();
    let asks = asks.into_iter().map(|step| v1::ImportSessionRequest { step: Some(step) });
    let mut answers = client.import_session(tokio_stream::iter(asks)).await.unwrap().into_inner();
    let mut said = Vec::new();
    loop {
        use v1::import_session_response::Step as Said;
        match answers.message().await {
            Ok(Some(answer)) => said.push(match answer.step {
                Some(Said::Accepted(_)) => "accepted",
                Some(Said::Staged(_)) => "staged",
                Some(Said::Owned(_)) => "owned",
                None => "nothing",
            }),
            Ok(None) => return Ok(said),
            Err(status) => return Err(hawser_proto::fault(&status).code()),
        }
    }
}

/// All that is said of a session of a simulated group with three tokens and two rows.
pub(crate) fn said_by_simulated(session: &str) -> Vec<Ask> {
    let [layers, heads, kv_heads, head_dim] = [1, 1, 1, 2];
    let digest = "simulated".to_owned();
    said_of(session, &Shape { digest, kv_type: KvType::F16, layers, heads, kv_heads, head_dim })
}

/// All that is said of a session with three tokens and two rows, of a model of this digest.
fn said(digest: &str) -> Vec<Ask> {
    said_of("s", &Shape { digest: digest.to_owned(), ..shape() })
}

fn said_of(session: &str, shape: &Shape) -> Vec<Ask> {
    let mut marks = Marks::default();
    marks.extend_to(3, Origin::User, 0);
    let tokens = vec![5, 6, 7];
    let history = History::Tokens;
    let transcript = Transcript { history, tokens: tokens.clone(), marks, turns: 1, ..Default::default() };
    let live = [0, 1].map(Position).to_vec();
    let state = SessionState { tokens, len: 2, live, ..Default::default() };
    let manifest = Manifest { transcript, state: Some(state), ..Default::default() }.encode();
    let offer = Offer::new(shape, manifest.len(), 2);
    let rows = vec![0x11; 2 * usize::try_from(offer.row_bytes).unwrap()];
    let [layers, heads, kv_heads, head_dim] = offer.sizes;
    let mut asks = vec![Ask::Offer(v1::ImportOffer {
        session: Some(v1::SessionKey { tenant: "default".into(), session: session.into() }),
        version: offer.version,
        model_digest: offer.digest.clone(),
        kv_type: offer.kv_type.clone(),
        layers,
        heads,
        kv_heads,
        head_dim,
        manifest_bytes: offer.manifest_bytes,
        rows: offer.rows,
        row_bytes: offer.row_bytes,
        balance: None,
    })];
    let mut writer = Writer::new(&offer);
    for data in [manifest, rows] {
        let Chunk { offset, data, checksum } = writer.chunk(data);
        asks.push(Ask::Chunk(v1::ImportChunk { offset, data, checksum }));
    }
    asks.push(Ask::End(v1::ImportEnd { checksum: writer.end() }));
    asks.push(Ask::Released(v1::ImportReleased {}));
    asks
}

#[tokio::test(flavor = "multi_thread")]
async fn e23_what_is_damaged_cut_short_or_foreign_is_refused_and_leaves_nothing() {
    let cluster = Cluster::start(1, |_| {}).await;
    let digest = shape().digest;
    let all = || said(&digest);
    let free = cluster.workers[0].capacity().slots_free;
    assert_eq!(offered(&cluster, said("other")).await, Err(ErrorCode::Invalid));
    for cut in 1..4 {
        // Before the end: the other group has gone, whatever of it is here already.
        let error = offered(&cluster, all()[..cut].to_vec()).await;
        assert_eq!(error, Err(ErrorCode::Unavailable), "after {cut}");
    }
    for damaged in [1, 2, 3] {
        let mut asks = all();
        match &mut asks[damaged] {
            Ask::Chunk(chunk) => chunk.data[1] ^= 4,
            Ask::End(end) => end.checksum ^= 1,
            other => panic!("{other:?}"),
        }
        assert_eq!(offered(&cluster, asks).await, Err(ErrorCode::Invalid), "{damaged}");
    }
    let back = async || cluster.workers[0].capacity().slots_free == free;
    eventually("all slots are back", back).await;
    let missing = cluster.client.describe_session("s").await.unwrap_err();
    assert_eq!(missing.code(), ErrorCode::NotFound);
    // A session that this group owns is not replaced.
    let own = run(&cluster.client, token_request("s", &words(330, 20), 4)).await.unwrap();
    assert_eq!(offered(&cluster, all()).await, Err(ErrorCode::Invalid));
    assert_eq!(cluster.client.describe_session("s").await.unwrap().tokens, 24, "{own:?}");
    cluster.client.close_session("s").await.unwrap();
    // And what is whole is taken: also where the sender ends after the last word, the store decides.
    assert_eq!(offered(&cluster, all()).await, Ok(vec!["accepted", "staged", "owned"]));
    assert_eq!(cluster.client.describe_session("s").await.unwrap().live_tokens, 2);
    cluster.client.close_session("s").await.unwrap();
    assert_eq!(offered(&cluster, all()[..4].to_vec()).await, Ok(vec!["accepted", "staged", "owned"]));
    cluster.stop().await;
}

/// Not a test of speed: prints what a move takes to a group that has just started, without and with `prefault`, in
/// turns. Run with `--ignored --nocapture`.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "measures; takes minutes without optimisation"]
async fn how_long_a_long_pruned_session_moves() {
    for prefault in [false, true, false, true, false, true] {
        let (live, took) = long_move(prefault).await;
        println!("prefault {prefault}: moved {live} live rows in {took:?}");
    }
}

/// Live rows that moved, and in what time.
async fn long_move(prefault: bool) -> (u64, Duration) {
    let adjust = |options: &mut WorkerOptions| (options.kv_slots, options.prefault) = (9_000, prefault);
    let mut cluster = Cluster::start(2, adjust).await;
    // Pruned between chunks too, so that the prompt does not take minutes.
    let keep = wire::Retention { bounded: Some(true), ..retention("intent-memory", 1_024) };
    let patient = Session { limit: Duration::from_secs(1_800), ..one(&cluster, &keep) };
    patient.turn(1, words(340, 7_900), 8).await;
    let second = one(&cluster, &keep).turn(2, words(341, 20), 8).await;
    let clock = hawser_common::clock::Clock::system();
    let worker = cluster.workers.iter().find(|worker| worker.group().as_str() == second.group).unwrap();
    let started = clock.now();
    worker.drain().await;
    let took = clock.now().since(started);
    let live = cluster.client.describe_session("s").await.unwrap().live_tokens;
    let third = one(&cluster, &keep).turn(3, words(342, 20), 8).await;
    assert_eq!(third.usage().prefilled_tokens, 21);
    cluster.stop_worker(&second.group).await;
    cluster.stop().await;
    (live, took)
}
