//! Groups without a model: everything but the arithmetic is the real thing, and answers depend on the history alone.

use hawser_client::{Sampling, Tool, wire};
use hawser_worker::{EngineKind, SimulatedOptions, WorkerOptions};

use crate::cluster::{Cluster, run, token_request};
use crate::process;

fn simulated(options: &mut WorkerOptions) {
    options.engine = EngineKind::Simulated;
    options.model = std::path::PathBuf::new();
    options.simulated =
        SimulatedOptions { time_scale: 0.0, answer_tokens: 64, ..SimulatedOptions::default() };
}

fn bytes(text: &str) -> Vec<u32> {
    text.bytes().map(u32::from).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_simulated_group_talks_with_tools_deltas_and_stop_strings() {
    let cluster = Cluster::start(2, simulated).await;
    let tool = Tool { name: "ls".into(), description: "lists".into(), parameters_json: String::new() };
    let mut texts = Vec::new();
    for _ in 0..2 {
        let builder = cluster.client.session().system("Be brief.").tools(vec![tool.clone()]);
        let mut session = builder.sampling(Sampling::new().max_tokens(40)).start();
        let mut said = String::new();
        for turn in 0..3 {
            let turn = session.say(format!("Turn {turn}.")).await.unwrap().outcome().await.unwrap();
            assert_eq!(turn.placed.resent, said.is_empty(), "only the first turn is sent whole");
            assert!(!turn.text.is_empty());
            said.push_str(&turn.text);
            said.push('\n');
        }
        texts.push(said);
    }
    assert_eq!(texts[0], texts[1], "the same history has the same answer, whatever the sampling");
    let whole = run(&cluster.client, token_request("", &bytes("Say something."), 30)).await.unwrap();
    let stop = &whole.text[10..14];
    let mut request = token_request("", &bytes("Say something."), 30);
    request.sampling.as_mut().unwrap().stop = vec![stop.to_owned()];
    let stopped = run(&cluster.client, request).await.unwrap();
    assert_eq!(stopped.end.reason(), wire::FinishReason::StopString);
    assert_eq!(stopped.text, whole.text[..whole.text.find(stop).unwrap()]);
    let models = cluster.client.list_models().await.unwrap();
    assert_eq!((models[0].name.as_str(), models[0].digest.as_str()), ("simulated", "simulated"));
    cluster.wait_until_empty().await;
    cluster.stop().await;
}

/// Sessions that lose their rows again and again, in a pool that holds two of them, answer as in one that holds all.
#[tokio::test(flavor = "multi_thread")]
async fn a_simulated_session_that_lost_its_rows_answers_as_if_it_had_not() {
    let mut answers = Vec::new();
    for slots in [4_096, 300] {
        let adjust = |options: &mut WorkerOptions| {
            simulated(options);
            options.kv_slots = slots;
        };
        let cluster = Cluster::start(1, adjust).await;
        let mut said = Vec::new();
        let mut histories = vec![Vec::new(); 6];
        for turn in 0..4 {
            for (session, history) in histories.iter_mut().enumerate() {
                history.extend(bytes(&format!("turn {turn} of session {session}, ")));
                let id = format!("s-{session}");
                let answer = run(&cluster.client, token_request(&id, history, 8)).await.unwrap();
                history.extend(&answer.tokens);
                said.push(answer.text);
            }
        }
        cluster.stop().await;
        answers.push(said);
    }
    assert_eq!(answers[0], answers[1]);
}

async fn bench(arguments: &[&str]) -> serde_json::Value {
    let all: Vec<&str> = ["bench", "cluster"].into_iter().chain(arguments.iter().copied()).collect();
    let output = process::run(&all, "").await;
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {said}");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_cluster_benchmark_runs_small_without_errors_and_with_one_owner_each() {
    let report = bench(&["churn", "--scale", "0.004", "--json"]).await;
    assert_eq!(report["errors"], serde_json::json!({}), "{report}");
    let turns: u64 = report["phases"].as_array().unwrap().iter().map(|p| p["turns"].as_u64().unwrap()).sum();
    let plan = &report["plan"];
    assert_eq!(turns, plan["sessions"].as_u64().unwrap() * plan["turns"].as_u64().unwrap(), "{report}");
    for none in ["double_owners", "served_by_strangers", "sessions_given_up"] {
        assert_eq!(report[none], 0, "{none}: {report}");
    }
    let claimed = report["phases"][0]["store_calls"]["claimed"].as_u64().unwrap();
    assert!(claimed >= plan["sessions"].as_u64().unwrap(), "every session was claimed: {report}");
    let warm = bench(&["warm", "--scale", "0.1", "--turns", "20", "--think-ms", "1", "--json"]).await;
    let calls = &warm["phases"][1]["store_calls"];
    assert_eq!((&calls["claim"], &calls["release"]), (&0.into(), &0.into()), "no store call on a warm turn");
    assert!(warm["added"]["direct_turns"].as_u64().unwrap() > 0, "{warm}");
    let memory = bench(&["memory", "--scale", "0.01", "--json"]).await;
    assert!(memory["router_memory_bytes"].is_u64(), "{memory}");
}
