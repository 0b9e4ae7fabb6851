//! From the server's answer to what is shown of it.
//!
//! Promises that the texts of all tokens, joined, are the session's text: a character whose bytes are spread over
//! several tokens is that of the last of them.

use hawser_client::wire::{InspectSessionResponse, InspectedToken, Origin, PruneEvent, TokenState};
use hawser_client::{ClientError, wire};
use hawser_model::text::Detokenizer;

use super::view::{EventView, PositionView, RoleView, State, View};

/// # Errors
/// [`ClientError::Protocol`] where the answer lacks what every answer has.
pub fn view(answer: InspectSessionResponse) -> Result<View, ClientError> {
    let missing = |what| ClientError::Protocol { what };
    let session = answer.session.ok_or_else(|| missing("an inspection without a session"))?;
    let retention = session.retention.unwrap_or_default();
    let mut characters = Detokenizer::new();
    let mut positions = Vec::with_capacity(answer.tokens.len());
    for token in &answer.tokens {
        let state = state(token.state()).ok_or_else(|| missing("a token without a state"))?;
        positions.push(position(token, state, &mut characters));
    }
    if let Some(last) = positions.last_mut() {
        last.text.push_str(&characters.finish());
    }
    Ok(View {
        session: session.id,
        group: session.group,
        model: session.model,
        budget: budget(&retention),
        policy: retention.policy,
        rows_given_up: View::given_up(&positions),
        positions,
        events: answer.prunes.iter().map(event).collect(),
    })
}

fn position(token: &InspectedToken, state: State, characters: &mut Detokenizer) -> PositionView {
    // Without a tokenizer, or where the server left the text out, there is still the id to show.
    let text =
        if token.text.is_empty() { format!("⟨{}⟩", token.id) } else { characters.push(&token.text) };
    PositionView {
        id: token.id,
        text,
        role: role(token.origin()),
        turn: token.turn,
        state,
        // No more digits than the score has.
        score: token.score.map(|score| (f64::from(score) * 1e5).round() / 1e5),
        died_in_turn: token.died_in_turn,
    }
}

fn role(origin: Origin) -> RoleView {
    match origin {
        Origin::System => RoleView::System,
        Origin::User => RoleView::User,
        Origin::Assistant => RoleView::Assistant,
        Origin::Tool => RoleView::Tool,
        Origin::Template | Origin::Unspecified => RoleView::Template,
    }
}

fn state(state: TokenState) -> Option<State> {
    match state {
        TokenState::Live => Some(State::Live),
        TokenState::Shared => Some(State::Shared),
        TokenState::Protected => Some(State::Protected),
        TokenState::Sink => Some(State::Sink),
        TokenState::Dead => Some(State::Dead),
        TokenState::Pending => Some(State::Pending),
        TokenState::Unspecified => None,
    }
}

fn event(event: &PruneEvent) -> EventView {
    EventView {
        turn: event.turn,
        at: event.at as usize,
        live_before: event.live_before as usize,
        live_after: event.live_after as usize,
        evicted: event.evicted as usize,
        freed: event.freed as usize,
    }
}

/// The policy without a budget has none, whatever is set.
fn budget(retention: &wire::Retention) -> Option<u32> {
    Some(retention.budget_tokens).filter(|&tokens| tokens > 0 && retention.policy != "full")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(id: u32, text: &[u8], state: TokenState) -> InspectedToken {
        InspectedToken {
            id,
            text: text.to_vec(),
            origin: Origin::User.into(),
            turn: 1,
            state: state.into(),
            ..Default::default()
        }
    }

    fn answer(tokens: Vec<InspectedToken>) -> InspectSessionResponse {
        let retention =
            wire::Retention { policy: "intent-memory".into(), budget_tokens: 64, ..Default::default() };
        let session = wire::SessionInfo {
            id: "s-1".into(),
            group: "a".into(),
            retention: Some(retention),
            ..Default::default()
        };
        let prunes = vec![PruneEvent { turn: 1, at: 3, evicted: 1, ..Default::default() }];
        InspectSessionResponse { session: Some(session), tokens, prunes, tokens_without_text: 0 }
    }

    #[test]
    fn everything_is_taken_over() {
        let mut dead = token(5, b" code", TokenState::Dead);
        (dead.score, dead.died_in_turn) = (Some(0.1), Some(1));
        let shown = view(answer(vec![token(4, b"The", TokenState::Sink), dead])).unwrap();
        assert_eq!((shown.policy.as_str(), shown.budget, shown.events[0].at), ("intent-memory", Some(64), 3));
        let last = PositionView {
            id: 5,
            text: " code".into(),
            role: RoleView::User,
            turn: 1,
            state: State::Dead,
            score: Some(0.1),
            died_in_turn: Some(1),
        };
        assert_eq!(shown.positions[1], last);
        assert_eq!(shown.positions[0].state, State::Sink);
    }

    #[test]
    fn characters_over_several_tokens_are_whole_and_tokens_without_text_show_their_id() {
        let bytes = "a漢".as_bytes();
        let live = |id, text| token(id, text, TokenState::Live);
        let tokens = vec![live(1, &bytes[..2]), live(2, &bytes[2..]), live(3, b""), live(4, &bytes[1..3])];
        let shown = view(answer(tokens)).unwrap();
        let texts: Vec<&str> = shown.positions.iter().map(|position| position.text.as_str()).collect();
        assert_eq!(texts, ["a", "漢", "⟨3⟩", "\u{fffd}"]);
    }

    #[test]
    fn the_full_policy_has_no_budget_and_what_is_missing_is_an_error() {
        let mut full = answer(Vec::new());
        full.session.as_mut().unwrap().retention.as_mut().unwrap().policy = "full".into();
        assert_eq!(view(full).unwrap().budget, None);
        assert!(view(InspectSessionResponse::default()).is_err());
        assert!(view(answer(vec![token(1, b"a", TokenState::Unspecified)])).is_err());
    }
}
