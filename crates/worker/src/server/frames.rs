//! Domain → wire for the frames of a turn.

use std::time::Duration;

use hawser_proto::v1;

use crate::turn::{Finish, TokenPiece, TurnEnd};

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

fn count(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

pub(super) fn frame(frame: v1::generate_response::Frame) -> v1::GenerateResponse {
    v1::GenerateResponse { frame: Some(frame) }
}

/// Adds a token to a chunk.
pub(super) fn push(chunk: &mut v1::Chunk, piece: TokenPiece) {
    chunk.text.push_str(&piece.text);
    chunk.token_ids.push(piece.token);
    if let Some(logprob) = piece.logprob {
        let alternative = |(token_id, logprob)| v1::token_logprob::Alternative { token_id, logprob };
        let top = piece.top.into_iter().map(alternative).collect();
        chunk.logprobs.push(v1::TokenLogprob { token_id: piece.token, logprob, top });
    }
}

pub(super) fn finished(end: &TurnEnd, turn: u32) -> v1::Finished {
    let (reason, stop) = match &end.finish {
        Finish::Stop => (v1::FinishReason::Stop, String::new()),
        Finish::StopString(stop) => (v1::FinishReason::StopString, stop.clone()),
        Finish::Length => (v1::FinishReason::Length, String::new()),
    };
    v1::Finished {
        reason: reason.into(),
        stop,
        usage: Some(v1::Usage {
            prompt_tokens: count(end.usage.prompt),
            reused_tokens: count(end.usage.reused),
            prefilled_tokens: count(end.usage.prompt - end.usage.reused),
            generated_tokens: count(end.usage.generated),
            dead_tokens: count(end.usage.dead),
            shared_tokens: count(end.usage.shared),
            evicted_tokens: count(end.usage.kept.evicted),
            freed_slots: count(end.usage.kept.freed),
            revived_tokens: count(end.usage.kept.revived),
            copied_rows: count(end.usage.kept.copied),
            refilled_tokens: count(end.usage.kept.refilled),
            refill_rows: count(end.usage.kept.refill_rows),
            budget_overflows: end.usage.kept.overflows,
            kv_rows_read: end.usage.kept.rows_read,
            kv_rows_full: end.usage.kept.rows_full,
            peak_live_tokens: count(end.usage.kept.peak_live),
        }),
        timings: Some(v1::Timings {
            queue_us: micros(end.queued),
            prefill_us: micros(end.prefill),
            decode_us: micros(end.decode),
            prune_us: micros(end.pruning),
            refill_us: micros(end.refilling),
        }),
        seed: end.seed,
        turn,
        continued: Vec::new(),
    }
}
