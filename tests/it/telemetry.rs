//! What a cluster says of itself: one trace for a turn, metrics as their table has them, and no harm from a collector
//! that does not answer.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use hawser_client::wire;
use hawser_common::telemetry::{Kind, Metric};
use hawser_telemetry::{Pipeline, TelemetryOptions};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::cluster::{Cluster, LIMIT, run, token_request, words};
use crate::collector::{Collector, Seen};
use crate::process::{Server, connect};

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const CALLER: &str = "b7ad6b7169203331";

fn metrics() -> Vec<Metric> {
    let crates = [
        hawser_router::METRICS,
        hawser_worker::METRICS,
        hawser_placement::METRICS,
        hawser_telemetry::METRICS,
    ];
    crates.concat()
}

async fn pipeline(endpoint: &str, ratio: f64) -> Pipeline {
    let options = TelemetryOptions {
        otlp_endpoint: Some(endpoint.to_owned()),
        sample_ratio: ratio,
        ..TelemetryOptions::default()
    };
    Pipeline::start(&options, "test").await.unwrap()
}

/// A request whose prompt is pruned.
fn pruned_request(session: &str) -> wire::GenerateRequest {
    let retention = wire::Retention {
        policy: "streaming".into(),
        budget_tokens: 64,
        trigger_tokens: Some(0),
        ..Default::default()
    };
    wire::GenerateRequest { retention: Some(retention), ..token_request(session, &words(7, 150), 6) }
}

fn one<'a>(spans: &'a [Seen], name: &str) -> &'a Seen {
    let found: Vec<_> = spans.iter().filter(|span| span.name == name).collect();
    assert_eq!(
        found.len(),
        1,
        "one span {name} among {:?}",
        spans.iter().map(|s| &s.name).collect::<Vec<_>>()
    );
    found[0]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_is_one_trace_through_router_and_group() {
    let collector = Collector::start();
    let pipeline = pipeline(&collector.uri, 0.0).await;
    let cluster = Cluster::start_observed(1, |_| {}, pipeline.telemetry().clone()).await;
    // Not recorded: nobody upstream records it, and the share of new traces is 0.
    run(&cluster.client, token_request("untraced", &words(1, 20), 2)).await.unwrap();
    let traced = cluster.client.in_trace(&format!("00-{TRACE}-{CALLER}-01"));
    let answer = run(&traced, pruned_request("traced")).await.unwrap();
    cluster.stop().await;
    assert!(pipeline.shutdown(LIMIT).await, "everything is sent");

    let spans = collector.spans();
    assert!(
        spans.iter().all(|span| span.trace == TRACE && !span.failed && span.service == "hawser"),
        "{spans:#?}"
    );
    let (route, turn) = (one(&spans, "hawser.route"), one(&spans, "hawser.turn"));
    assert_eq!(route.parent, CALLER);
    assert_eq!(turn.parent, route.id);
    for span in [route, turn] {
        assert_eq!(span.attribute("hawser.session"), "traced");
        assert_eq!(span.attribute("hawser.group"), "g0");
        assert_eq!(span.attribute("hawser.epoch"), turn.attribute("hawser.epoch"));
    }
    assert!(turn.attribute("hawser.request").parse::<u64>().is_ok());
    let parts = ["queue", "prefill", "prune", "decode"].map(|name| one(&spans, name));
    assert_eq!(spans.len(), 2 + parts.len(), "no span per token: {spans:#?}");
    // A wall clock and a monotonic one are compared: they may differ by a little.
    let slack = 20_000_000;
    for part in parts {
        assert_eq!(part.parent, turn.id, "{}", part.name);
        assert!(part.from <= part.to, "{part:?}");
        assert!(part.from + slack >= turn.from && part.to <= turn.to + slack, "{part:?} lies in {turn:?}");
    }
    let [queue, prefill, prune, decode] = parts;
    assert!(queue.to <= prefill.from && prefill.to <= decode.from && prune.from >= prefill.from);
    assert_eq!(prefill.attribute("hawser.prefilled_tokens"), answer.usage().prefilled_tokens.to_string());
    assert_eq!(prune.attribute("hawser.evicted_tokens"), answer.usage().evicted_tokens.to_string());
    assert_eq!(decode.attribute("hawser.kv_rows_read"), answer.usage().kv_rows_read.to_string());
    // The same instruments feed the collector.
    let known: BTreeSet<String> = metrics().iter().map(|metric| metric.name.to_owned()).collect();
    let told = collector.metrics();
    assert!(told.is_subset(&known), "{:?} are in no list", told.difference(&known).collect::<Vec<_>>());
    assert!(told.contains("hawser.worker.turns") && told.contains("hawser.placement.claims"), "{told:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_rank_of_a_group_has_its_span_in_the_trace() {
    let collector = Collector::start();
    let pipeline = pipeline(&collector.uri, 0.0).await;
    let adjust = |options: &mut hawser_worker::WorkerOptions| (options.tp, options.threads) = (2, 2);
    let cluster = Cluster::start_observed(1, adjust, pipeline.telemetry().clone()).await;
    run(&cluster.client, token_request("", &words(1, 20), 2)).await.unwrap();
    let traced = cluster.client.in_trace(&format!("00-{TRACE}-{CALLER}-01"));
    let usage = run(&traced, token_request("traced", &words(2, 150), 6)).await.unwrap().usage();
    cluster.stop().await;
    assert!(pipeline.shutdown(LIMIT).await, "everything is sent");
    let spans = collector.spans();
    let turn = one(&spans, "hawser.turn");
    let mut ranks: Vec<&Seen> = spans.iter().filter(|span| span.name == "hawser.rank").collect();
    ranks.sort_by_key(|span| span.attribute("hawser.rank").to_owned());
    assert_eq!(ranks.iter().map(|span| span.attribute("hawser.rank")).collect::<Vec<_>>(), ["0", "1"]);
    for rank in ranks {
        assert_eq!((&rank.parent, &rank.trace), (&turn.id, &turn.trace));
        // The last token's row is computed with the next turn.
        let rows = usage.prefilled_tokens + usage.generated_tokens - 1;
        assert_eq!(rank.attribute("hawser.rows"), rows.to_string());
        assert!(
            rank.from < rank.to && rank.attribute("hawser.busy_us").parse::<u64>().unwrap() > 0,
            "{rank:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_that_fails_says_so_in_its_trace() {
    let collector = Collector::start();
    let pipeline = pipeline(&collector.uri, 1.0).await;
    let cluster =
        Cluster::start_observed(1, |options| options.kv_slots = 128, pipeline.telemetry().clone()).await;
    run(&cluster.client, token_request("", &words(1, 200), 4)).await.unwrap_err();
    cluster.stop().await;
    assert!(pipeline.shutdown(LIMIT).await, "everything is sent");
    let spans = collector.spans();
    let (route, turn) = (one(&spans, "hawser.route"), one(&spans, "hawser.turn"));
    assert!(route.parent.is_empty() && turn.parent == route.id && turn.trace == route.trace, "{spans:#?}");
    assert!(route.failed && turn.failed);
    assert_eq!(turn.attribute("error.type"), "invalid");
    assert_eq!(route.attribute("error.type"), "invalid");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_does_not_answer_harms_no_turn() {
    // Connections are made and nothing is ever said.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let pipeline = pipeline(&format!("http://{}", silent.local_addr().unwrap()), 1.0).await;
    let cluster = Cluster::start_observed(1, |_| {}, pipeline.telemetry().clone()).await;
    for turn in 0..8 {
        let answer = run(&cluster.client, token_request("", &words(turn, 20), 3)).await.unwrap();
        assert_eq!(answer.tokens.len(), 3);
    }
    cluster.stop().await;
    let ended = tokio::time::timeout(LIMIT, pipeline.shutdown(Duration::from_millis(200))).await;
    assert_eq!(ended, Ok(false), "it is not waited for longer than asked, and what was lost is said");
}

/// Values of a page by metric and labels, as in `name{a="b"}`.
struct Page(BTreeMap<String, f64>);

impl Page {
    async fn read(uri: &str) -> Self {
        let address = uri.strip_prefix("http://").unwrap().strip_suffix("/metrics").unwrap();
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = format!("GET /metrics HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200") && head.contains("text/plain; version=0.0.4"), "{head}");
        let line = |line: &str| {
            let (series, value) = line.rsplit_once(' ')?;
            Some((series.to_owned(), value.parse().ok()?))
        };
        Self(body.lines().filter(|line| !line.starts_with('#')).filter_map(line).collect())
    }

    /// The sum of all series of a name with this label; any where it is empty.
    fn sum(&self, name: &str, label: &str) -> f64 {
        let of = |series: &str| series.split('{').next() == Some(name) && series.contains(label);
        let found: Vec<f64> =
            self.0.iter().filter(|(series, _)| of(series)).map(|(_, value)| *value).collect();
        assert!(!found.is_empty(), "{name} {label} is not there");
        found.iter().sum()
    }

    /// Names, those of a histogram once.
    fn names(&self) -> BTreeSet<String> {
        let name = |series: &String| {
            let name = series.split('{').next().unwrap_or_default();
            let histogram = series.contains("le=\"") || name.ends_with("_sum") || name.ends_with("_count");
            let parts = ["_bucket", "_sum", "_count"];
            let base = parts.iter().find_map(|part| name.strip_suffix(part)).filter(|_| histogram);
            base.unwrap_or(name).to_owned()
        };
        self.0.keys().map(name).filter(|name| name != "target_info").collect()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_of_up_shows_what_a_turn_was() {
    let model = hawser_tests::demo_model();
    let mut up = Server::start(&[
        "up",
        "--model",
        model.to_str().unwrap(),
        "--listen",
        "127.0.0.1:0",
        "--kv-memory-mib",
        "64",
        "--set",
        "telemetry.metrics_listen=127.0.0.1:0",
    ]);
    let page = up.uri_after("metrics at ").await;
    let uri = up.uri_after("router listens on ").await;
    let client = connect(&uri).await;
    let before = Page::read(&page).await;
    assert_eq!(before.sum("hawser_router_turns_total", "outcome=\"ok\""), 0.0, "counters begin at nought");
    let first = run(&client, pruned_request("seen")).await.unwrap().usage();
    let second = run(&client, pruned_request("seen")).await.unwrap().usage();
    run(&client, token_request("", &words(3, 10), 0)).await.unwrap_err();
    client.close_session("seen").await.unwrap();

    let page = Page::read(&page).await;
    let known: BTreeSet<String> = metrics().iter().map(Metric::prometheus_name).collect();
    let shown = page.names();
    assert_eq!(
        shown,
        known,
        "shown and described differ: {:?}",
        shown.symmetric_difference(&known).collect::<Vec<_>>()
    );
    let both = |count: fn(&wire::Usage) -> u32| f64::from(count(&first) + count(&second));
    for (name, label, expected) in [
        ("hawser_router_turns_total", "outcome=\"ok\"", 2.0),
        ("hawser_router_turns_total", "outcome=\"invalid\"", 1.0),
        ("hawser_router_turns_total", "", 3.0),
        ("hawser_worker_turns_total", "outcome=\"ok\"", 2.0),
        ("hawser_router_calls_total", "outcome=\"ok\"", 1.0),
        ("hawser_worker_turns_total", "group=\"group-0\"", 3.0),
        ("hawser_worker_time_to_first_token_seconds_count", "", 2.0),
        ("hawser_worker_inter_token_latency_seconds_count", "", both(|usage| usage.generated_tokens) - 2.0),
        ("hawser_worker_generated_tokens_total", "", both(|usage| usage.generated_tokens)),
        ("hawser_worker_prompt_tokens_total", "", both(|usage| usage.prompt_tokens)),
        ("hawser_worker_prompt_tokens_total", "source=\"missed\"", both(|usage| usage.prefilled_tokens)),
        ("hawser_worker_prompt_tokens_total", "source=\"shared\"", both(|usage| usage.shared_tokens)),
        ("hawser_worker_evicted_tokens_total", "", both(|usage| usage.evicted_tokens)),
        ("hawser_worker_freed_slots_total", "", both(|usage| usage.freed_slots)),
        ("hawser_worker_kv_rows_read_total", "", (first.kv_rows_read + second.kv_rows_read) as f64),
        ("hawser_worker_up", "", 1.0),
        ("hawser_placement_claims_total", "outcome=\"won\"", 1.0),
        ("hawser_placement_claim_batch_sum", "", 1.0),
        ("hawser_placement_lease_valid", "", 1.0),
        ("hawser_placement_registrations_total", "", 1.0),
        ("hawser_router_open_streams", "", 0.0),
        ("hawser_router_in_flight", "", 0.0),
        ("hawser_router_groups_known", "", 1.0),
        ("hawser_telemetry_spans_dropped_total", "", 0.0),
    ] {
        assert_eq!(page.sum(name, label), expected, "{name} {label}");
    }
    assert!(first.evicted_tokens > 0, "the prompt was pruned: {first:?}");
    assert!(page.sum("hawser_placement_lease_remaining_seconds", "") > 0.0);
    assert!(page.sum("hawser_worker_slots", "state=\"free\"") > 0.0);
    assert!(page.0.keys().all(|series| !series.contains("seen")), "no session is a label");
    up.stop().await;
}

/// The rows of the table in the documentation: Prometheus' name, kind, labels.
fn documented() -> BTreeMap<String, (String, String)> {
    let text = include_str!("../../docs/observability.md");
    let mut rows = BTreeMap::new();
    for line in text.lines().filter(|line| line.starts_with("| `hawser_")) {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        assert_eq!(cells.len(), 4, "{line}");
        let label = cells[2].split(':').next().unwrap_or_default().trim_matches('`').to_owned();
        let old = rows.insert(cells[0].trim_matches('`').to_owned(), (cells[1].to_owned(), label));
        assert_eq!(old, None, "twice: {line}");
    }
    rows
}

#[test]
fn the_table_of_metrics_is_that_of_the_code() {
    let mut expected = BTreeMap::new();
    for metric in metrics() {
        let kind = match metric.kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        let label = if metric.label.is_empty() { "" } else { metric.label };
        let old = expected.insert(metric.prometheus_name(), (kind.to_owned(), label.to_owned()));
        assert_eq!(old, None, "two metrics are named {}", metric.name);
        let is_plain = metric.name.bytes().all(|b| b.is_ascii_lowercase() || matches!(b, b'.' | b'_'));
        assert!(metric.name.starts_with("hawser.") && is_plain && metric.about.ends_with('.'), "{metric:?}");
    }
    assert_eq!(documented(), expected);
}
