//! Real processes over real sockets: start, talk, die, go on.

use std::collections::HashMap;
use std::time::Duration;

use hawser_client::{Frame, Retry, Sampling};
use hawser_common::{Coded, ErrorCode};
use hawser_tests::demo_model;

use crate::cluster::{token_request, words};
use crate::leaving::resident_kib;
use crate::process::{Server, Typed, connect, run};

/// Short leases, so that a killed group is gone soon.
const SHORT_LEASE: [&str; 2] = ["--set", "worker.lease_ttl_ms=3000"];

#[tokio::test(flavor = "multi_thread")]
async fn up_serves_chat_and_status_and_ends_well_on_sigterm() {
    let model = demo_model();
    let model = model.to_str().unwrap();
    let arguments = ["up", "--groups", "2", "--threads", "1", "--listen", "127.0.0.1:0", "--model", model];
    let mut up = Server::start(&arguments);
    let uri = up.uri_after("router listens on ").await;
    let chat =
        run(&["chat", "--server", &uri, "--session", "talk"], "Say hello.\nSay goodbye.\n/quit\n").await;
    let said = String::from_utf8(chat.stdout).unwrap();
    assert!(chat.status.success(), "{said}");
    assert!(said.contains("group-0") || said.contains("group-1"), "the statistics name the group: {said}");
    let status = run(&["status", "--server", &uri, "--json"], "").await;
    let status: serde_json::Value = serde_json::from_slice(&status.stdout).unwrap();
    assert_eq!(status["groups"].as_array().unwrap().len(), 2, "{status}");
    let generated = run(&["generate", "--server", &uri, "--max-tokens", "5", "Hello"], "").await;
    assert!(generated.status.success() && !generated.stdout.is_empty());
    up.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_chats_in_one_session_add_to_its_conversation() {
    let (router, uri) = Server::router(&[]).await;
    let worker = Server::worker(&uri, "a", &[]).await;
    let client = connect(&uri).await;
    let chat = ["chat", "--server", &uri, "--session", "shared", "--max-tokens", "4", "--temperature", "0"];
    // Both are opened before the session has a turn.
    let (mut first, mut second) = (Typed::start(&chat), Typed::start(&chat));
    let help = "resumed";
    first.type_until("/help", help).await;
    second.type_until("/help", help).await;
    let summary = "[a · prompt";
    let said = first.type_until("Name a colour.", summary).await;
    assert!(!said.contains("from elsewhere"), "{said}");
    let said = second.type_until("Name an animal.", summary).await;
    assert!(said.contains("shared has 1 turn, 1 of them from elsewhere"), "{said}");
    let said = first.type_until("Name a river.", summary).await;
    assert!(said.contains("shared has 2 turns, 1 of them from elsewhere"), "{said}");
    let said = first.type_until("Name a town.", summary).await;
    assert!(!said.contains("from elsewhere"), "its own turn is no news: {said}");
    assert_eq!(client.describe_session("shared").await.unwrap().turns, 4);
    first.finish().await;
    second.finish().await;
    let late = run(&chat, "").await;
    let said = String::from_utf8(late.stdout).unwrap();
    assert!(said.contains("resuming shared on a: 4 turns, "), "{said}");
    drop(client);
    worker.stop().await;
    router.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_group_costs_its_session_a_prefill_and_nothing_else() {
    let (router, uri) = Server::router(&[]).await;
    let mut workers = HashMap::new();
    for group in ["a", "b"] {
        workers.insert(group.to_owned(), Server::worker(&uri, group, &SHORT_LEASE).await);
    }
    let client = connect(&uri).await;
    let patient = Retry { attempts: 20, ..Retry::default() };
    let mut session = client.session().sampling(Sampling::greedy().max_tokens(8)).retry(patient).start();
    let first = session.say("Name a colour.").await.unwrap().outcome().await.unwrap();
    workers.remove(&first.placed.group).unwrap().kill().await;
    let second = session.say("Name an animal.").await.unwrap().outcome().await.unwrap();
    assert_ne!(second.placed.group, first.placed.group);
    assert!(second.placed.resent && second.report.usage.prompt_tokens > first.report.usage.prompt_tokens);
    let third = session.say("Name a river.").await.unwrap().outcome().await.unwrap();
    assert_eq!(third.placed.group, second.placed.group);
    assert!(third.report.usage.reused_tokens > 0);
    drop(client);
    for worker in workers.into_values() {
        worker.stop().await;
    }
    router.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn p15_a_group_killed_in_mid_stream_is_an_error_and_never_a_short_success() {
    let (router, uri) = Server::router(&[]).await;
    let worker = Server::worker(&uri, "a", &SHORT_LEASE).await;
    let client = connect(&uri).await;
    // There is no group that it could go on at.
    let request = token_request("s", &words(1, 50), 3_000);
    let mut frames = client.generate(request, Some(Duration::from_secs(60))).await.unwrap();
    let mut tokens = 0;
    while tokens < 5 {
        if let Some(Frame::Chunk(chunk)) = frames.next().await.unwrap() {
            tokens += chunk.token_ids.len();
        }
    }
    worker.kill().await;
    let error = loop {
        match frames.next().await {
            Ok(Some(Frame::Finished(end))) => panic!("a killed turn ended well: {end:?}"),
            Ok(Some(_)) => {}
            Ok(None) => panic!("a killed turn ended without an error"),
            Err(error) => break error,
        }
    };
    assert_eq!(error.code(), ErrorCode::Unavailable, "{error}");
    drop((frames, client));
    router.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_start_says_why_and_what_to_do() {
    let model = demo_model();
    let model = model.to_str().unwrap();
    let (router, uri) = Server::router(&[]).await;
    let address = uri.strip_prefix("http://").unwrap();
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let nobody = format!("http://{free}");
    for (arguments, says) in [
        (vec!["router", "--listen", address], "in use"),
        (vec!["up", "--model", "no/such.gguf"], "no/such.gguf"),
        (vec!["up", "--model", "/etc/hostname", "--listen", "127.0.0.1:0"], "/etc/hostname"),
        (vec!["worker", "--model", model, "--router", &nobody, "--set", "join_wait_s=0"], "hawser router"),
        (vec!["worker", "--model", model, "--router", "nowhere at all"], "server address"),
        (vec!["status", "--server", &nobody], "hawser up"),
        (vec!["up", "--model", model, "--listen", address, "--set", "worker.step_tokens=0"], "step_tokens"),
        (vec!["up", "--model", model, "--set", "worker.stepp=1"], "stepp"),
        (
            vec!["config", "--set", "worker.retention.pool_positions=4"],
            "worker.retention.pool_positions is 4",
        ),
        (vec!["config", "--set", "worker.thread=2"], "did you mean worker.threads?"),
        (vec!["config", "--set", "worker.threads=x"], "worker.threads is \"x\" (on the command line)"),
    ] {
        let output = run(&arguments, "").await;
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {error}");
        assert!(error.contains(says), "{arguments:?} does not say {says:?}: {error}");
        assert!(!error.contains("panicked") && !error.contains("RUST_BACKTRACE"), "{arguments:?}: {error}");
    }
    router.stop().await;
}

/// It would wait for the router for as long as it takes.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_says_what_is_wrong_with_its_own_machine_before_it_waits_for_its_router() {
    let model = demo_model();
    let model = model.to_str().unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let nobody = format!("http://{}", crate::ranks::free_address());
    for (more, says) in [
        (vec!["--model", "/etc/hostname"], "worker.model: /etc/hostname"),
        (
            vec!["--model", model, "--set", "worker.context_tokens=1000000"],
            "worker.context_tokens is 1000000",
        ),
        (vec!["--model", model, "--tp", "10"], "worker.tp: 10 ranks for 9 query heads"),
        (vec!["--model", model, "--kv-memory-mib", "1"], "worker.kv_memory_mib = 1 has room for"),
        (
            vec![
                "--model",
                model,
                "--set",
                "worker.tls.cert_file=no/cert",
                "--set",
                "worker.tls.key_file=no/key",
            ],
            "worker.tls: cert_file names \"no/cert\"",
        ),
        (vec!["--model", model, "--set", "tls.ca_file=no/ca"], "ca_file names \"no/ca\""),
        (vec!["--model", model, "--listen", &taken], &taken),
        (vec!["--model", model, "--world", "2", "--rendezvous", &taken], "worker.rendezvous: cannot listen"),
    ] {
        let mut arguments = vec!["worker", "--router", &nobody];
        arguments.extend(&more);
        let output = run(&arguments, "").await;
        let (said, error) =
            (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
        assert_eq!(output.status.code(), Some(1), "{more:?}: {error}");
        assert!(error.contains(says), "{more:?} does not say {says:?}: {error}");
        assert!(!said.contains("waiting for"), "{more:?}: {said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn routers_and_workers_answer_health_checks_and_reflection() {
    use tonic_health::pb::health_check_response::ServingStatus;
    use tonic_health::pb::health_client::HealthClient;
    use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
    use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
    use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;

    let (router, uri) = Server::router(&[]).await;
    let model = demo_model();
    let arguments = [
        "worker",
        "--router",
        &uri,
        "--model",
        model.to_str().unwrap(),
        "--group",
        "a",
        "--kv-memory-mib",
        "64",
    ];
    let mut worker = Server::start(&arguments);
    let worker_uri = worker.uri_after("group a serves at ").await;
    for (uri, service) in [(&uri, "hawser.v1.Hawser"), (&worker_uri, "hawser.v1.Worker")] {
        let channel = tonic::transport::Endpoint::new(uri.clone()).unwrap().connect().await.unwrap();
        let mut health = HealthClient::new(channel.clone());
        let request = tonic_health::pb::HealthCheckRequest { service: service.to_owned() };
        let status = health.check(request).await.unwrap().into_inner().status();
        assert_eq!(status, ServingStatus::Serving, "{service}");
        let list = tonic_reflection::pb::v1::ServerReflectionRequest {
            host: String::new(),
            message_request: Some(MessageRequest::ListServices(String::new())),
        };
        let mut reflection = ServerReflectionClient::new(channel);
        let answers = reflection.server_reflection_info(tokio_stream::once(list)).await.unwrap();
        let answer = answers.into_inner().message().await.unwrap().unwrap();
        let Some(MessageResponse::ListServicesResponse(listed)) = answer.message_response else {
            panic!("not a list of services: {answer:?}");
        };
        assert!(listed.service.iter().any(|listed| listed.name == service), "{listed:?}");
    }
    worker.stop().await;
    router.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_that_is_told_to_has_the_memory_of_its_pool_before_it_joins_and_no_more() {
    const POOL_KIB: u64 = 512 << 10;
    let (router, uri) = Server::router(&[]).await;
    let mut resident = Vec::new();
    for prefault in ["worker.prefault=false", "worker.prefault=true"] {
        let more = ["--kv-memory-mib", "512", "--set", prefault];
        let worker = Server::worker(&uri, "a", &more).await;
        resident.push(resident_kib(worker.pid()));
        worker.stop().await;
    }
    let taken = resident[1].saturating_sub(resident[0]);
    // At both ends of each of 30 layers a page of 2 MiB is shared with the archive, half of one on average; of the
    // archive's other 256 MiB nothing is there.
    let allowed = POOL_KIB * 9 / 10..=POOL_KIB + (128 << 10);
    assert!(allowed.contains(&taken), "{taken} KiB of {POOL_KIB}: {resident:?}");
    router.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chat_on_a_pipe_says_so_where_turns_failed() {
    let (router, uri) = Server::router(&[]).await;
    let chat = ["chat", "--server", &uri];
    let failed = run(&chat, "Hello.\nAnd again.\n").await;
    let told = String::from_utf8(failed.stderr).unwrap();
    assert_eq!(failed.status.code(), Some(1), "{told}");
    assert!(told.contains("no worker group is registered") && told.contains("2 of 2 turns failed"), "{told}");
    assert_eq!(told.matches("try again").count(), 0, "the refusal has a hint of its own: {told}");
    let quiet = run(&chat, "/help\n").await;
    assert!(quiet.status.success(), "{}", String::from_utf8_lossy(&quiet.stderr));
    router.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn status_names_the_group_that_does_not_answer() {
    let (router, uri) = Server::router(&[]).await;
    let mut workers = Vec::new();
    for group in ["a", "b"] {
        let more = ["--set", "worker.lease_ttl_ms=60000"];
        let mut arguments = vec!["worker", "--router", &uri, "--group", group, "--engine", "simulated"];
        arguments.extend(more);
        let mut worker = Server::start(&arguments);
        worker.uri_after(&format!("group {group} serves at ")).await;
        workers.push(worker);
    }
    workers[1].freeze();
    let shown = run(&["status", "--server", &uri], "").await;
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(shown.contains("group b does not answer") && !shown.contains("group a does not"), "{shown}");
    assert!(!shown.contains("there are more"), "{shown}");
    let json = run(&["status", "--server", &uri, "--json"], "").await;
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(json["silent"][0]["group"], "b", "{json}");
    workers[1].thaw();
    for worker in workers {
        worker.stop().await;
    }
    router.stop().await;
}

#[tokio::test]
async fn config_looks_at_what_it_names() {
    let wrong = ["config", "--set", "router.auth.keys_file='no-keys'", "--set", "worker.model='absent'"];
    let refused = run(&wrong, "").await;
    let told = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(1), "{told}");
    for part in
        ["router.auth.keys_file \"no-keys\"", "worker.model: there is no model \"absent\"", "2 faults"]
    {
        assert!(told.contains(part), "{part:?} is not in {told}");
    }
    assert!(!told.contains('\u{1b}'), "no colours where no terminal is: {told}");
    assert!(run(&["config"], "").await.status.success(), "what is not named is not missed");
}
