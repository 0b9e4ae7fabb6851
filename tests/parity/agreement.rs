//! R4, E10 at length: how far a quantised model on several ranks is from the same model on one, over real sessions.
//!
//! Every token is given, so that a difference cannot grow by another choice of tokens. What may differ: ranks add their
//! parts of a sum in f32, in another order than one machine adds the blocks of a row, so the last bits of the residual
//! stream differ; and where a number lies at the border of two int8 steps, the next product's input is rounded to the
//! other side. That noise is what rounding to int8 is; it is no larger on two ranks than between two orders of blocks.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use hawser_device::kv::RowType;
use hawser_eval::prepare::{Schemas, prepare};
use hawser_eval::traces::read_traces;
use hawser_model::checkpoint::Checkpoint;
use hawser_model::executor::{Executor, LogitRows, Logits};
use hawser_model::layers::Model;
use hawser_model::text::ChatTemplate;

use crate::engine::{Engine, Session, argmax};
use crate::fixtures;
use crate::ranks::{in_group, options};

/// Rows of a step.
const CHUNK: usize = 128;
/// A choice between two tokens closer than this may be decided by rounding.
const SAFE_MARGIN: f32 = 1.0;

/// Differences over a session.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    rows: usize,
    /// Rows with the same best token.
    agreed: usize,
    /// Rows with another best token though one rank's was ahead by [`SAFE_MARGIN`].
    unsafe_rows: usize,
    /// Largest difference of a logit, and the sum over rows of the root of the mean square difference.
    most: f32,
    root_mean_squares: f64,
    /// Rows whose logits are equal to the bit.
    equal: usize,
}

impl Seen {
    fn compare(&mut self, one: &Logits, many: &Logits) {
        for row in 0..one.rows() {
            let (one, many) = (one.row(row), many.row(row));
            let difference = |(a, b): (&f32, &f32)| (a - b).abs();
            let most = one.iter().zip(many).map(difference).fold(0.0, f32::max);
            let squares: f64 = one.iter().zip(many).map(|pair| f64::from(difference(pair)).powi(2)).sum();
            let best = argmax(one);
            let ahead = one
                .iter()
                .enumerate()
                .filter(|(token, _)| *token != best as usize)
                .map(|(_, logit)| one[best as usize] - logit)
                .fold(f32::INFINITY, f32::min);
            let same = best == argmax(many);
            self.rows += 1;
            self.agreed += usize::from(same);
            self.unsafe_rows += usize::from(!same && ahead > SAFE_MARGIN);
            self.most = self.most.max(most);
            self.root_mean_squares += (squares / one.len() as f64).sqrt();
            self.equal += usize::from(most == 0.0);
        }
    }
}

/// The tokens of some real sessions: of the file that `HAWSER_TRACES` names, or of the fixtures.
fn sessions(checkpoint: &Checkpoint, limit: usize, count: usize) -> Result<Vec<Vec<u32>>> {
    let path = fixtures::variable("HAWSER_TRACES");
    let path: PathBuf = path.unwrap_or_else(|| fixtures::folder().join("traces/bfcl.jsonl"));
    let tokenizer = checkpoint.tokenizer()?;
    let template = ChatTemplate::compile(&checkpoint.chat_template().context("a template")?)?;
    let mut sessions = Vec::new();
    let context = checkpoint.config().context_length;
    for trace in read_traces(&path)?.iter().take(count) {
        let mut tokens = prepare(trace, &tokenizer, &template, (context, Schemas::All))?.tokens;
        tokens.truncate(limit);
        sessions.push(tokens);
    }
    Ok(sessions)
}

fn agreement(limit: usize, count: usize) -> Result<()> {
    let checkpoint = Checkpoint::open(fixtures::demo_model()?)?;
    let sessions = sessions(&checkpoint, limit, count)?;
    let slots = 1 + sessions.iter().map(Vec::len).sum::<usize>();
    for world in [2, 3] {
        let seen = in_group(&checkpoint, world, options(slots, RowType::F16), |rank| {
            let mut one = match rank.relay.leads() {
                true => Some(Engine::over(
                    Executor::new(Model::load(&checkpoint)?, options(slots, RowType::F16))?,
                    5,
                )?),
                false => None,
            };
            let mut engine = Engine::over(rank.executor, 5)?;
            let mut all = Vec::new();
            for tokens in &sessions {
                let (mut seen, mut session, mut alone) =
                    (Seen::default(), Session::default(), Session::default());
                for chunk in tokens.chunks(CHUNK) {
                    let many = engine.feed(&mut session, chunk, LogitRows::All)?;
                    if let Some(one) = &mut one {
                        seen.compare(&one.feed(&mut alone, chunk, LogitRows::All)?, &many);
                    }
                }
                all.push(seen);
            }
            Ok(all)
        })?;
        for (session, seen) in seen.iter().enumerate() {
            let rows = seen.rows as f64;
            println!(
                "{world} ranks, session {session}: {} rows, {:.2} % with the same best token, {} of the others beyond \
                 a margin of {SAFE_MARGIN}; logits off by {:.3} at most, {:.4} in the root mean square; {} equal",
                seen.rows,
                100.0 * seen.agreed as f64 / rows,
                seen.unsafe_rows,
                seen.most,
                seen.root_mean_squares / rows,
                seen.equal
            );
            ensure!(seen.agreed as f64 >= 0.97 * rows, "{seen:?}");
            ensure!(seen.unsafe_rows as f64 <= 0.001 * rows, "{seen:?}");
        }
    }
    Ok(())
}

#[test]
fn a_real_session_on_ranks_is_as_near_as_rounding_allows() -> Result<()> {
    agreement(600, 1)
}

#[test]
#[ignore = "takes minutes: HAWSER_TRACES=bfcl-base.jsonl cargo test --test parity -- --ignored agreement --nocapture"]
fn long_real_sessions_on_ranks_are_as_near_as_rounding_allows() -> Result<()> {
    agreement(4_096, 3)
}
