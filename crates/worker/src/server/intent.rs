//! From a request's intent to positions of its prompt.

use std::ops::Range;

use hawser_common::request::{Intent, Span};
use hawser_common::retention::Retention;

use crate::scheduler::Keep;
use crate::session::{Prompt, Text};
use crate::turn::TurnError;

/// Most tokens of an intent's text: it runs in one step.
const MAX_HINT_TOKENS: usize = 128;

/// What a turn's prune goes by.
///
/// # Errors
/// [`TurnError::Intent`] for a span outside the conversation, [`TurnError::IntentTooLong`] for a text beyond the bound or
/// the context.
pub(super) fn keep(
    text: &Text,
    context: usize,
    prompt: &Prompt,
    (retention, intent): (Retention, &Intent),
) -> Result<Keep, TurnError> {
    let hint = match &text.tokenizer {
        Some(tokenizer) if !intent.text.is_empty() => tokenizer.encode(&intent.text),
        _ => Vec::new(),
    };
    let most = MAX_HINT_TOKENS.min(context.saturating_sub(prompt.tokens.len()));
    if hint.len() > most {
        return Err(TurnError::IntentTooLong { tokens: hint.len(), most });
    }
    Ok(Keep {
        hint,
        retention,
        marks: prompt.marks.clone(),
        protected: prompt.protected,
        span: prompt.span.clone(),
        pins: positions(prompt, &intent.pin)?,
        releases: positions(prompt, &intent.release)?,
    })
}

/// Token positions of spans, ascending and disjoint.
fn positions(prompt: &Prompt, spans: &[Span]) -> Result<Vec<Range<u32>>, TurnError> {
    let mut found = spans.iter().map(|span| range(prompt, span)).collect::<Result<Vec<_>, _>>()?;
    found.sort_unstable_by_key(|range| range.start);
    let mut merged: Vec<Range<u32>> = Vec::with_capacity(found.len());
    for range in found {
        match merged.last_mut().filter(|last| range.start <= last.end) {
            Some(last) => last.end = last.end.max(range.end),
            None => merged.push(range),
        }
    }
    Ok(merged)
}

fn range(prompt: &Prompt, span: &Span) -> Result<Range<u32>, TurnError> {
    let outside = |what, end: u32, count: usize| TurnError::Intent { what, end, count };
    match span {
        Span::Tokens(range) if range.end as usize <= prompt.tokens.len() => Ok(range.clone()),
        Span::Tokens(range) => Err(outside("token", range.end, prompt.tokens.len())),
        Span::Messages(range) => {
            let end = |messages: u32| match (messages as usize).checked_sub(1) {
                None => Ok(0),
                Some(last) => prompt
                    .ends
                    .get(last)
                    .copied()
                    .ok_or_else(|| outside("message", range.end, prompt.ends.len())),
            };
            Ok(end(range.start)?..end(range.end)?)
        }
    }
}

#[cfg(test)]
mod tests {
    use hawser_kv::retention::Marks;

    use super::*;
    use crate::session::History;

    #[test]
    fn messages_become_positions_and_what_is_outside_is_refused() {
        let prompt = Prompt {
            tokens: vec![0; 20],
            history: History::Tokens,
            marks: Marks::default(),
            ends: vec![5, 9, 18],
            protected: 5,
            span: 9..20,
            retention: None,
        };
        let found = |spans: &[Span]| positions(&prompt, spans);
        let spans = [Span::Messages(1..3), Span::Messages(0..1), Span::Tokens(17..20)];
        assert_eq!(found(&spans).unwrap(), vec![0..20]);
        assert_eq!(found(&[Span::Messages(2..3), Span::Tokens(1..3)]).unwrap(), vec![1..3, 9..18]);
        let error = found(&[Span::Messages(2..4)]).unwrap_err();
        assert_eq!(error.to_string(), "the intent names message 4 of 3");
        assert!(found(&[Span::Tokens(0..21)]).is_err());
    }
}
