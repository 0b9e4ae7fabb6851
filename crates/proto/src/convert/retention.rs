//! Retention and intent of a request.

use hawser_common::request::{Intent, Span};
use hawser_common::retention::{Aggregation, Choice, Policy, Retention};

use super::InvalidRequest;
use super::chat::at_most;
use crate::v1;

/// Longest text of an intent in bytes.
pub const MAX_INTENT_BYTES: usize = 4_096;
/// Most spans of each kind in an intent.
pub const MAX_INTENT_SPANS: usize = 64;

/// What a request sets of a session's retention. Bounds are checked with the session's other options in place.
///
/// # Errors
/// [`InvalidRequest::Unknown`] for a policy or an aggregation that is not known, listing those that are.
pub fn retention(wire: &v1::Retention) -> Result<Choice, InvalidRequest> {
    let policies = || Policy::ALL.iter().map(|policy| policy.name());
    let aggregations = || Aggregation::ALL.iter().map(|aggregation| aggregation.name());
    let choice = Choice {
        policy: named("retention.policy", &wire.policy, Policy::parse, policies())?,
        budget_tokens: Some(wire.budget_tokens).filter(|&tokens| tokens > 0),
        aggregation: named("retention.aggregation", &wire.aggregation, Aggregation::parse, aggregations())?,
        trigger_tokens: wire.trigger_tokens,
        sink_tokens: wire.sink_tokens,
        recent_tokens: wire.recent_tokens,
        span_cap: wire.span_cap,
        memory_decay: wire.memory_decay,
        age_decay: wire.age_decay,
        role_weight: wire.role_weight,
        user_weight: wire.user_weight,
        block_tokens: wire.block_tokens,
        threshold: wire.threshold,
        threshold_min_tokens: wire.threshold_min_tokens,
        adaptive_min_tokens: wire.adaptive_min_tokens,
        bounded: wire.bounded,
        revive: wire.revive,
        revive_margin: wire.revive_margin,
        refill_tokens: wire.refill_tokens,
        seed: wire.seed,
        window_rows: wire.window_rows,
        mass_every: wire.mass_every,
        pool_positions: wire.pool_positions,
    };
    choice.over(&Retention::default()).validate()?;
    Ok(choice)
}

fn named<T>(
    field: &str,
    name: &str,
    parse: impl Fn(&str) -> Option<T>,
    allowed: impl Iterator<Item = &'static str>,
) -> Result<Option<T>, InvalidRequest> {
    if name.is_empty() {
        return Ok(None);
    }
    parse(name).map(Some).ok_or_else(|| InvalidRequest::Unknown {
        field: field.to_owned(),
        found: format!("{name:?}"),
        allowed: allowed.collect::<Vec<_>>().join(", "),
    })
}

/// What the client says of its intent.
///
/// # Errors
/// [`InvalidRequest`] where a list or the text is too long, or a span ends before it begins.
pub fn intent(wire: v1::Intent) -> Result<Intent, InvalidRequest> {
    at_most(|| "intent.text".to_owned(), wire.text.len(), MAX_INTENT_BYTES, "bytes")?;
    let pins = spans("intent.pin_messages", wire.pin_messages, Span::Messages)?;
    let pins = pins.into_iter().chain(spans("intent.pin_tokens", wire.pin_tokens, Span::Tokens)?).collect();
    let release = spans("intent.release_messages", wire.release_messages, Span::Messages)?;
    let more = spans("intent.release_tokens", wire.release_tokens, Span::Tokens)?;
    Ok(Intent { text: wire.text, pin: pins, release: release.into_iter().chain(more).collect() })
}

fn spans(
    field: &'static str,
    wire: Vec<v1::Span>,
    kind: impl Fn(std::ops::Range<u32>) -> Span,
) -> Result<Vec<Span>, InvalidRequest> {
    at_most(|| field.to_owned(), wire.len(), MAX_INTENT_SPANS, "entries")?;
    let parse = |span: v1::Span| {
        if span.start < span.end {
            return Ok(kind(span.start..span.end));
        }
        Err(InvalidRequest::Unknown {
            field: field.to_owned(),
            found: format!("{} to {}", span.start, span.end),
            allowed: "a start below its end".to_owned(),
        })
    };
    wire.into_iter().map(parse).collect()
}

impl From<&Retention> for v1::Retention {
    fn from(retention: &Retention) -> Self {
        Self {
            policy: retention.policy.name().to_owned(),
            budget_tokens: retention.budget_tokens,
            aggregation: retention.aggregation.name().to_owned(),
            trigger_tokens: Some(retention.trigger_tokens),
            sink_tokens: Some(retention.sink_tokens),
            recent_tokens: Some(retention.recent_tokens),
            span_cap: Some(retention.span_cap),
            memory_decay: Some(retention.memory_decay),
            age_decay: Some(retention.age_decay),
            role_weight: Some(retention.role_weight),
            user_weight: Some(retention.user_weight),
            block_tokens: Some(retention.block_tokens),
            threshold: Some(retention.threshold),
            threshold_min_tokens: Some(retention.threshold_min_tokens),
            adaptive_min_tokens: Some(retention.adaptive_min_tokens),
            bounded: Some(retention.bounded),
            revive: Some(retention.revive),
            revive_margin: Some(retention.revive_margin),
            refill_tokens: Some(retention.refill_tokens),
            seed: Some(retention.seed),
            window_rows: Some(retention.window_rows),
            mass_every: Some(retention.mass_every),
            pool_positions: Some(retention.pool_positions),
        }
    }
}
