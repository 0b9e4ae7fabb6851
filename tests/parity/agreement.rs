//! R4, E10 at length: a quantised model keeps the same rows and says the same tokens on any number of ranks, over real
//! text and many prunes.
//!
//! A session of some thousand tokens is fed turn by turn, each turn followed by a greedy answer that becomes part of it.
//! One choice that went another way would change everything after it, so the records are compared whole.

use std::net::{TcpListener, TcpStream};
use std::sync::Mutex;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use hawser_common::retention::{Aggregation, Policy, Retention};
use hawser_device::collective::{Collective, Connection, TcpRank};
use hawser_device::kv::RowType;
use hawser_eval::prepare::{Schemas, prepare};
use hawser_eval::session::{Engine, Session};
use hawser_eval::traces::read_traces;
use hawser_kv::retention::Origin;
use hawser_model::checkpoint::Checkpoint;
use hawser_model::executor::LogitRows;
use hawser_model::text::ChatTemplate;

use crate::engine::argmax;
use crate::fixtures;
use crate::ranks::{Rank, in_group, on_each_rank, options};

/// Rows of a step.
const CHUNK: usize = 128;
/// Tokens that a turn brings, and those that are answered.
const TURN: usize = 256;
const ANSWER: usize = 8;
/// Live rows after a prune: most turns prune.
const BUDGET: u32 = 512;
const TIMEOUT: Duration = Duration::from_secs(120);

/// What a session did.
#[derive(Debug, Default, PartialEq)]
struct Record {
    tokens: Vec<u32>,
    /// Live positions after each prune.
    kept: Vec<Vec<u32>>,
    /// Of the last row of each turn's prompt.
    logits: Vec<Vec<f32>>,
}

/// The tokens of real sessions, one behind the other.
fn text(checkpoint: &Checkpoint, length: usize) -> Result<Vec<u32>> {
    let tokenizer = checkpoint.tokenizer()?;
    let template = ChatTemplate::compile(&checkpoint.chat_template().context("a template")?)?;
    let context = checkpoint.config().context_length;
    let mut tokens = Vec::new();
    for file in ["traces/bfcl.jsonl", "traces/tau2-retail.jsonl"] {
        for trace in read_traces(&fixtures::folder().join(file))? {
            tokens.extend(prepare(&trace, &tokenizer, &template, (context, Schemas::All))?.tokens);
        }
    }
    ensure!(tokens.len() >= length, "the fixtures have {} tokens, not {length}", tokens.len());
    tokens.truncate(length);
    Ok(tokens)
}

fn retention(policy: Policy, aggregation: Aggregation) -> Retention {
    let (budget_tokens, recent_tokens) = (BUDGET, 64);
    Retention { policy, aggregation, budget_tokens, recent_tokens, trigger_tokens: 0, ..Retention::default() }
}

/// The session on one rank; what it did, on the leader.
fn record(rank: Rank, retention: &Retention, text: &[u32]) -> Result<Record> {
    let Rank { executor, relay } = rank;
    let mut engine = Engine::new(executor, CHUNK, 0);
    let mut session: Session = engine.open(retention.clone(), 16);
    let mut record = Record::default();
    for turn in text.chunks(TURN) {
        let start = session.marks.len();
        let span = start..start + u32::try_from(turn.len())?;
        session.marks.extend_to(span.end, Origin::User, session.marks.turn() + 1);
        let mut logits = engine.run(&mut session, turn, &span, LogitRows::Last)?;
        engine.end_span(&session);
        record.logits.extend(logits.last().map(|logits| logits.row(0).to_vec()));
        if let Some(event) = Engine::due(&session, &span) {
            let scores = engine.score(&session, &event)?.unwrap_or_default();
            engine.settle(&mut session, event, relay.share(scores)?)?;
            record.kept.push(session.map.live_positions().iter().map(|position| position.0).collect());
        }
        for _ in 0..ANSWER {
            // Only the leader has logits; every rank runs its choice.
            let best = logits.last().map_or(0, |logits| argmax(logits.row(0)));
            let token = u32::try_from(relay.share(vec![i64::from(best)])?[0])?;
            record.tokens.push(token);
            session.marks.extend_to(session.marks.len() + 1, Origin::Assistant, session.marks.turn());
            logits = engine.run(&mut session, &[token], &(0..0), LogitRows::Last)?;
        }
    }
    engine.close(session);
    Ok(record)
}

/// Two ranks that talk over loopback sockets.
fn over_tcp(
    checkpoint: &Checkpoint,
    slots: usize,
    each: impl Fn(Rank) -> Result<Record> + Sync,
) -> Result<Record> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let spoke = Connection::plain(TcpStream::connect(listener.local_addr()?)?)?;
    let spoke = TcpRank::spoke(1, 2, spoke, TIMEOUT)?;
    let hub = TcpRank::hub(vec![Connection::plain(listener.accept()?.0)?], TIMEOUT)?;
    let ends = Mutex::new([Some(hub), Some(spoke)]);
    let take = |rank: usize| ends.lock().ok().and_then(|mut ends| ends[rank].take());
    let transport = |rank: hawser_device::collective::ThreadRank| -> Box<dyn Collective> {
        let end = take(rank.rank());
        Box::new(end.expect("every rank takes its end once"))
    };
    let mut all = on_each_rank(checkpoint, 2, options(slots, RowType::F16), transport, each)?;
    all.swap_remove(0)
}

fn compare(place: &str, one: &Record, many: &Record) -> Result<()> {
    ensure!(one.tokens == many.tokens, "{place}: other tokens");
    ensure!(one.kept == many.kept, "{place}: other kept sets");
    let pairs = one.logits.iter().zip(&many.logits);
    let off =
        pairs.flat_map(|(one, many)| one.iter().zip(many)).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    println!("{place}: {} prunes, {} tokens, logits off by {off}", one.kept.len(), one.tokens.len());
    ensure!(one.logits.len() == many.logits.len() && off <= 1e-4, "{place}: logits off by {off}");
    Ok(())
}

fn agree(length: usize, policies: &[(Policy, Aggregation)]) -> Result<()> {
    let checkpoint = Checkpoint::open(fixtures::demo_model()?)?;
    let text = text(&checkpoint, length)?;
    let slots = BUDGET as usize + 2 * (TURN + ANSWER);
    for (policy, aggregation) in policies {
        let retention = retention(*policy, *aggregation);
        let run = |rank: Rank| record(rank, &retention, &text);
        let alone = in_group(&checkpoint, 1, options(slots, RowType::F16), run)?;
        ensure!(alone.kept.len() + 3 >= length.div_ceil(TURN), "{} prunes", alone.kept.len());
        for world in [2, 3] {
            let many = in_group(&checkpoint, world, options(slots, RowType::F16), run)?;
            compare(&format!("{policy:?}, {world} threads"), &alone, &many)?;
        }
        let many = over_tcp(&checkpoint, slots, run)?;
        compare(&format!("{policy:?}, 2 ranks over TCP"), &alone, &many)?;
    }
    Ok(())
}

#[test]
fn r4_a_session_of_4k_real_tokens_is_the_same_on_any_number_of_ranks() -> Result<()> {
    agree(4_096, &[(Policy::IntentMemory, Aggregation::Sum)])
}

#[test]
#[ignore = "takes minutes: cargo test --release --test parity -- --ignored every_policy --nocapture"]
fn r4_every_policy_is_the_same_on_any_number_of_ranks() -> Result<()> {
    let others =
        [Policy::SnapKv, Policy::H2o, Policy::IntentQuery, Policy::RolePrior].map(|p| (p, Aggregation::Sum));
    let votes = [Aggregation::Max, Aggregation::Vote].map(|by| (Policy::IntentMemory, by));
    agree(4_096, &[&others[..], &votes[..]].concat())
}
