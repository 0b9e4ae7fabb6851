//! A session token by token: who wrote it, and what became of its rows.
//!
//! Joins what the transcript knows (tokens, roles, turns) with what the scheduler knows (rows, prunes, scores). Promises
//! an answer that fits into a message: at most [`MAX_TOKENS`] tokens, and at most [`MAX_TEXT_BYTES`] of text.

use hawser_common::retention::Retention;
use hawser_kv::retention::{Marks, Origin, PruneRecord};
use hawser_proto::v1;

use crate::scheduler::{Inspection, RowState};
use crate::session::Transcript;

/// Most tokens of a session that can be inspected. One takes at most 32 bytes besides its text, and a prune, of which
/// there are fewer than tokens, at most 38: with the text, 22.4 MB of the 24 MiB of a message.
pub(super) const MAX_TOKENS: usize = 200_000;
/// Text of all tokens together; the oldest tokens come without where it is more.
const MAX_TEXT_BYTES: usize = 8 << 20;

/// What is said of a session; its live tokens are counted here. `text` gives a token's bytes.
pub(super) fn inspected(
    info: v1::SessionInfo,
    transcript: &Transcript,
    retention: &Retention,
    inspection: &Inspection,
    text: &dyn Fn(u32) -> Vec<u8>,
) -> v1::InspectSessionResponse {
    let died = deaths(&transcript.marks, &inspection.prunes, transcript.tokens.len());
    // A turn that is being aborted may have taken the session elsewhere: the scheduler is believed as far as its tokens
    // are the transcript's.
    let same = transcript.tokens.iter().zip(&inspection.tokens).take_while(|(a, b)| a == b).count();
    let rows = inspection.rows.iter().take(same).copied().chain(std::iter::repeat(RowState::Pending));
    let mut scores = inspection.scores.iter().take_while(|(at, _)| at.index() < same).peekable();
    let mut tokens = Vec::with_capacity(transcript.tokens.len());
    for (((position, &id), row), died) in (0u32..).zip(&transcript.tokens).zip(rows).zip(died) {
        let (origin, turn) = transcript.marks.at(position);
        tokens.push(v1::InspectedToken {
            id,
            text: Vec::new(),
            origin: wire_origin(origin).into(),
            turn: turn + 1,
            state: state(row, position, transcript.protected, retention).into(),
            score: scores.next_if(|(at, _)| at.0 == position).map(|&(_, score)| score),
            died_in_turn: died.filter(|_| row == RowState::Evicted),
        });
    }
    let live = live(&tokens);
    let tokens_without_text = fill_text(&mut tokens, MAX_TEXT_BYTES, text);
    v1::InspectSessionResponse {
        session: Some(v1::SessionInfo { live_tokens: live as u64, ..info }),
        tokens,
        prunes: events(&transcript.marks, &inspection.prunes),
        tokens_without_text,
    }
}

fn live(tokens: &[v1::InspectedToken]) -> usize {
    let live = |token: &&v1::InspectedToken| {
        !matches!(token.state(), v1::TokenState::Dead | v1::TokenState::Pending)
    };
    tokens.iter().filter(live).count()
}

fn state(row: RowState, position: u32, protected: u32, retention: &Retention) -> v1::TokenState {
    let sinks = if retention.prunes() { retention.sink_tokens } else { 0 };
    match row {
        RowState::Evicted => v1::TokenState::Dead,
        RowState::Pending => v1::TokenState::Pending,
        RowState::Own | RowState::Shared if position < sinks => v1::TokenState::Sink,
        RowState::Own | RowState::Shared if position < protected => v1::TokenState::Protected,
        RowState::Shared => v1::TokenState::Shared,
        RowState::Own => v1::TokenState::Live,
    }
}

fn wire_origin(origin: Origin) -> v1::Origin {
    match origin {
        Origin::System => v1::Origin::System,
        Origin::User => v1::Origin::User,
        Origin::Assistant => v1::Origin::Assistant,
        Origin::Tool => v1::Origin::Tool,
        Origin::Template => v1::Origin::Template,
    }
}

/// The turn of a prune, from 1: that of the newest position it saw.
fn turn_of(record: &PruneRecord, marks: &Marks) -> u32 {
    marks.at(record.at.saturating_sub(1)).1 + 1
}

/// The turn in which each position was last evicted.
fn deaths(marks: &Marks, prunes: &[PruneRecord], len: usize) -> Vec<Option<u32>> {
    let mut died = vec![None; len];
    for record in prunes {
        let turn = turn_of(record, marks);
        for position in record.evicted.iter().filter(|position| position.index() < len) {
            died[position.index()] = Some(turn);
        }
        for position in record.revived.iter().filter(|position| position.index() < len) {
            died[position.index()] = None;
        }
    }
    died
}

fn events(marks: &Marks, prunes: &[PruneRecord]) -> Vec<v1::PruneEvent> {
    let mut gone = 0;
    let mut events = Vec::with_capacity(prunes.len());
    for record in prunes {
        let evicted = u32::try_from(record.evicted.len()).expect("positions are 32-bit");
        let live_before = record.at.saturating_sub(gone);
        let revived = u32::try_from(record.revived.len()).expect("positions are 32-bit");
        gone = gone + evicted - revived;
        events.push(v1::PruneEvent {
            turn: turn_of(record, marks),
            at: record.at,
            live_before,
            live_after: record.at.saturating_sub(gone),
            evicted,
            revived,
            freed: record.freed,
        });
    }
    events
}

/// Gives the tokens their text, the newest first, as far as `most` bytes go. Returns how many have none for that.
fn fill_text(tokens: &mut [v1::InspectedToken], most: usize, text: &dyn Fn(u32) -> Vec<u8>) -> u32 {
    let mut left = most;
    for index in (0..tokens.len()).rev() {
        let bytes = text(tokens[index].id);
        let Some(rest) = left.checked_sub(bytes.len()) else {
            return u32::try_from(index + 1).expect("positions are 32-bit");
        };
        left = rest;
        tokens[index].text = bytes;
    }
    0
}

#[cfg(test)]
mod tests {
    use hawser_common::Position;
    use hawser_common::retention::Policy;
    use hawser_proto::MAX_MESSAGE_BYTES;
    use prost::Message as _;

    use super::*;

    /// Two turns of six and four tokens, the first two protected; three evicted in the second.
    fn example() -> (Transcript, Retention, Inspection) {
        let mut marks = Marks::default();
        for (end, origin, turn) in
            [(2, Origin::System, 0), (5, Origin::User, 0), (6, Origin::Assistant, 0), (8, Origin::Tool, 1)]
        {
            marks.extend_to(end, origin, turn);
        }
        marks.extend_to(10, Origin::Assistant, 1);
        let transcript =
            Transcript { tokens: (40..50).collect(), marks, protected: 2, turns: 2, ..Transcript::default() };
        let retention = Retention {
            policy: Policy::IntentMemory,
            budget_tokens: 5,
            sink_tokens: 1,
            ..Retention::default()
        };
        use RowState::{Evicted, Own, Pending, Shared};
        let inspection = Inspection {
            tokens: (40..50).collect(),
            rows: vec![Shared, Shared, Shared, Evicted, Evicted, Own, Evicted, Own, Own, Pending],
            prunes: vec![
                PruneRecord { at: 5, evicted: vec![Position(3)], revived: vec![], freed: 1 },
                PruneRecord { at: 8, evicted: vec![Position(4), Position(6)], revived: vec![], freed: 1 },
            ],
            scores: vec![(Position(4), 0.5), (Position(5), 1.5)],
        };
        (transcript, retention, inspection)
    }

    fn letter(id: u32) -> Vec<u8> {
        id.to_string().into_bytes()
    }

    #[test]
    fn tokens_have_roles_turns_states_scores_and_deaths() {
        let (transcript, retention, inspection) = example();
        let answer = inspected(v1::SessionInfo::default(), &transcript, &retention, &inspection, &letter);
        use v1::TokenState::{Dead, Live, Pending, Protected, Shared, Sink};
        let states: Vec<v1::TokenState> = answer.tokens.iter().map(v1::InspectedToken::state).collect();
        assert_eq!(states, [Sink, Protected, Shared, Dead, Dead, Live, Dead, Live, Live, Pending]);
        assert_eq!(answer.session.unwrap().live_tokens, 6);
        let turns: Vec<u32> = answer.tokens.iter().map(|token| token.turn).collect();
        assert_eq!(turns, [1, 1, 1, 1, 1, 1, 2, 2, 2, 2]);
        let died: Vec<Option<u32>> = answer.tokens.iter().map(|token| token.died_in_turn).collect();
        assert_eq!(died, [None, None, None, Some(1), Some(2), None, Some(2), None, None, None]);
        let token = v1::InspectedToken {
            id: 44,
            text: b"44".to_vec(),
            origin: v1::Origin::User.into(),
            turn: 1,
            state: Dead.into(),
            score: Some(0.5),
            died_in_turn: Some(2),
        };
        assert_eq!(answer.tokens[4], token);
        assert_eq!((answer.tokens[5].score, answer.tokens[6].score), (Some(1.5), None));
        let event = |turn, at, live_before, live_after, evicted| v1::PruneEvent {
            turn,
            at,
            live_before,
            live_after,
            evicted,
            revived: 0,
            freed: 1,
        };
        assert_eq!(answer.prunes, [event(1, 5, 5, 4, 1), event(2, 8, 7, 5, 2)]);
        assert_eq!(answer.tokens_without_text, 0);
    }

    #[test]
    fn rows_of_other_tokens_are_not_this_sessions() {
        let (transcript, retention, mut inspection) = example();
        inspection.tokens[6] = 9;
        inspection.scores.push((Position(7), 3.0));
        let info = v1::SessionInfo::default;
        let answer = inspected(info(), &transcript, &retention, &inspection, &letter);
        let unknown =
            |token: &v1::InspectedToken| (token.state(), token.score) == (v1::TokenState::Pending, None);
        assert!(answer.tokens[6..].iter().all(unknown));
        assert_eq!((answer.tokens[6].died_in_turn, answer.tokens[4].died_in_turn), (None, Some(2)));
        let none = inspected(info(), &transcript, &retention, &Inspection::default(), &letter);
        assert!(none.tokens.iter().all(|token| token.state() == v1::TokenState::Pending));
    }

    #[test]
    fn a_session_that_is_never_pruned_has_no_sinks() {
        let (transcript, retention, inspection) = example();
        let full = Retention { policy: Policy::Full, ..retention };
        let answer = inspected(v1::SessionInfo::default(), &transcript, &full, &inspection, &letter);
        assert_eq!(answer.tokens[0].state(), v1::TokenState::Protected);
    }

    #[test]
    fn the_oldest_text_is_left_out_first() {
        let mut tokens: Vec<_> = (10..20).map(|id| v1::InspectedToken { id, ..Default::default() }).collect();
        assert_eq!(fill_text(&mut tokens, 7, &letter), 7);
        assert!(tokens[..7].iter().all(|token| token.text.is_empty()));
        assert!(tokens[7..].iter().all(|token| token.text.len() == 2));
        assert_eq!(fill_text(&mut tokens, 20, &letter), 0);
    }

    #[test]
    fn the_largest_answer_fits_into_a_message() {
        let large = u32::MAX;
        let token = v1::InspectedToken {
            id: large,
            text: vec![b'x'; MAX_TEXT_BYTES / MAX_TOKENS],
            origin: v1::Origin::Template.into(),
            turn: large,
            state: v1::TokenState::Pending.into(),
            score: Some(f32::MAX),
            died_in_turn: Some(large),
        };
        let event = v1::PruneEvent {
            turn: large,
            at: large,
            live_before: large,
            live_after: large,
            evicted: large,
            revived: large,
            freed: large,
        };
        let answer = v1::InspectSessionResponse {
            session: Some(v1::SessionInfo::default()),
            tokens: vec![token; MAX_TOKENS],
            prunes: vec![event; MAX_TOKENS],
            tokens_without_text: large,
        };
        // What names and a text of one token may add is far below the rest.
        assert!(answer.encoded_len() + (1 << 20) < MAX_MESSAGE_BYTES, "{}", answer.encoded_len());
    }
}
