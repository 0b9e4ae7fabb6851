//! What `hawser inspect` shows: the tokens of one session and what became of their KV rows.
//!
//! Owns the shape both renderings share, and what follows from it: which tokens were live after a turn, how many, and
//! where messages begin. Fetches nothing and draws nothing. Text in it is whatever people and tools wrote: each
//! rendering passes it through [`printable`] and escapes it in its own way.

use std::collections::BTreeSet;

use serde::Serialize;

use crate::console::counted;

/// One session at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct View {
    pub session: String,
    pub group: String,
    pub model: String,
    pub policy: String,
    /// Most live tokens; `None` without a budget.
    pub budget: Option<u32>,
    /// Every token of the session, in order: its place in this list is its position.
    pub positions: Vec<PositionView>,
    /// No token has a row now: the group gave them up to make room, and the next turn computes them again. What was
    /// evicted stays evicted.
    pub rows_given_up: bool,
    /// Prune events, in order.
    pub events: Vec<EventView>,
}

/// One token.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PositionView {
    /// In the model's vocabulary.
    pub id: u32,
    pub text: String,
    pub role: RoleView,
    /// The turn that brought it, from 1.
    pub turn: u32,
    pub state: State,
    /// From the last prune event: the mean over its candidates is 1. `None` where it was no candidate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub score: Option<f64>,
    /// The turn after whose prefill it was evicted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub died_in_turn: Option<u32>,
}

/// Whose message a token belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum RoleView {
    System,
    User,
    Assistant,
    Tool,
    /// What the chat template puts between messages.
    Template,
}

impl RoleView {
    pub fn name(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::User => "user",
            Self::Assistant => "assistant",
            Self::Tool => "tool",
            Self::Template => "template",
        }
    }
}

/// What became of a token's KV row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Live, and this session's own.
    Live,
    /// Evicted.
    Dead,
    /// Live, in a row that other sessions may share.
    Shared,
    /// Live, in the prefix that is never evicted.
    Protected,
    /// Live, among the first tokens that attention leans on.
    Sink,
    /// Without a row now: the next turn computes it.
    Pending,
}

impl State {
    /// Every state, in the order in which counts and bars show them.
    pub const ALL: [Self; 6] =
        [Self::Live, Self::Shared, Self::Protected, Self::Sink, Self::Dead, Self::Pending];

    pub fn name(self) -> &'static str {
        match self {
            Self::Live => "live",
            Self::Dead => "dead",
            Self::Shared => "shared",
            Self::Protected => "protected",
            Self::Sink => "sink",
            Self::Pending => "pending",
        }
    }

    /// Whether there is a row in the cache.
    pub fn is_live(self) -> bool {
        match self {
            Self::Live | Self::Shared | Self::Protected | Self::Sink => true,
            Self::Dead | Self::Pending => false,
        }
    }
}

/// One prune event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct EventView {
    pub turn: u32,
    /// Length of the session at the event, in tokens.
    pub at: usize,
    pub live_before: usize,
    pub live_after: usize,
    /// Positions marked dead.
    pub evicted: usize,
    /// Slots that returned to the pool.
    pub freed: usize,
}

/// A moment of the session's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    AfterTurn(u32),
    Now,
}

/// Tokens of one message, with what the template puts before it (and, after the last one, behind it).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Message<'a> {
    pub role: RoleView,
    pub turn: u32,
    /// Position of its first token.
    pub start: usize,
    pub tokens: &'a [PositionView],
}

impl View {
    /// What is said where all rows were given up.
    pub const GIVEN_UP: &str =
        "no rows now: they were given up to make room; the next turn computes again what is not dead";

    /// Whether no token has a row, although more than an answer's last one would.
    pub fn given_up(positions: &[PositionView]) -> bool {
        let pending = positions.iter().filter(|position| position.state == State::Pending).count();
        pending > 1 && !positions.iter().any(|position| position.state.is_live())
    }

    /// The budget in words.
    pub fn budget_text(&self) -> String {
        let tokens = |tokens: u32| format!("budget {}", counted(tokens.into(), "token"));
        self.budget.map_or_else(|| "no budget".to_owned(), tokens)
    }

    /// What can be shown, in order: after each turn, and now where that is something else.
    pub fn moments(&self) -> Vec<Moment> {
        let now = self.rows_given_up.then_some(Moment::Now);
        self.turns().into_iter().map(Moment::AfterTurn).chain(now).collect()
    }

    /// What the token at a position was at a moment; `None` where it had not come yet.
    ///
    /// Only deaths have a turn: the other states are those of now, but for tokens whose rows were given up since, which
    /// were live. A dead token whose turn of death is unknown counts as dead from the start.
    pub fn state_at(&self, at: usize, moment: Moment) -> Option<State> {
        let position = &self.positions[at];
        let Moment::AfterTurn(turn) = moment else { return Some(position.state) };
        if position.turn > turn {
            return None;
        }
        match position.state {
            State::Dead if position.died_in_turn.is_some_and(|died| died > turn) => Some(State::Live),
            // The last token of an answer has no row before the next turn.
            State::Pending if self.rows_given_up && at + 1 < self.positions.len() => Some(State::Live),
            state => Some(state),
        }
    }

    /// The turns that brought tokens or pruned, in order.
    pub fn turns(&self) -> Vec<u32> {
        let brought = self.positions.iter().map(|position| position.turn);
        let turns: BTreeSet<u32> = brought.chain(self.events.iter().map(|event| event.turn)).collect();
        turns.into_iter().collect()
    }

    /// Tokens in each state at a moment, in the order of [`State::ALL`].
    pub fn counts_at(&self, moment: Moment) -> [usize; State::ALL.len()] {
        let mut counts = [0; State::ALL.len()];
        for state in (0..self.positions.len()).filter_map(|at| self.state_at(at, moment)) {
            let place = State::ALL.iter().position(|known| *known == state);
            counts[place.expect("the list holds every state")] += 1;
        }
        counts
    }

    /// The conversation, cut where the role or the turn changes and where the template stands between messages.
    pub fn messages(&self) -> Vec<Message<'_>> {
        let mut cuts = Vec::new();
        let template = |position: &PositionView| position.role == RoleView::Template;
        for (at, pair) in self.positions.windows(2).enumerate() {
            let (before, after) = (&pair[0], &pair[1]);
            // What the template writes belongs to the message that it opens.
            let opens = template(after) && !template(before);
            let changes = !template(before) && (before.role, before.turn) != (after.role, after.turn);
            if opens || changes {
                cuts.push(at + 1);
            }
        }
        let starts = [0].into_iter().chain(cuts.iter().copied());
        let ends = cuts.iter().copied().chain([self.positions.len()]);
        let mut messages: Vec<Message<'_>> = Vec::new();
        for (start, end) in starts.zip(ends).filter(|(start, end)| start < end) {
            let tokens = &self.positions[start..end];
            match (tokens.iter().find(|position| !template(position)), messages.last_mut()) {
                (Some(first), _) => {
                    messages.push(Message { role: first.role, turn: first.turn, start, tokens });
                }
                // Only the last piece can lack a message of its own: it closes the one before.
                (None, Some(last)) => last.tokens = &self.positions[last.start..end],
                (None, None) => {
                    messages.push(Message { role: RoleView::Template, turn: tokens[0].turn, start, tokens });
                }
            }
        }
        messages
    }

    /// Of the tokens that are not dead, those with the highest scores, at most `count`: positions, highest first; on ties the later one.
    pub fn top(&self, count: usize) -> Vec<usize> {
        let scored = self.positions.iter().enumerate().filter(|(_, position)| position.state != State::Dead);
        let mut scored: Vec<(f64, usize)> =
            scored.filter_map(|(at, position)| Some((position.score?, at))).collect();
        scored.sort_by(|a, b| b.0.total_cmp(&a.0).then(b.1.cmp(&a.1)));
        scored.into_iter().take(count).map(|(_, at)| at).collect()
    }
}

/// A character that is safe to show: what steers terminals or turns the direction of text becomes `�`. Line ends and
/// tabs stay.
pub fn printable(character: char) -> char {
    let steers = character.is_control() && !matches!(character, '\n' | '\t');
    let turns =
        matches!(character, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    if steers || turns { '\u{fffd}' } else { character }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    fn positions(role: RoleView, turn: u32, texts: &[&str]) -> Vec<PositionView> {
        let one = |text: &&str| PositionView {
            id: 7,
            text: (*text).to_owned(),
            role,
            turn,
            state: State::Live,
            score: None,
            died_in_turn: None,
        };
        texts.iter().map(one).collect()
    }

    /// Two turns of ChatML: a protected system prompt, two tool results in turn 2, five tokens dead.
    pub(in super::super) fn example() -> View {
        use RoleView::{Assistant, System, Template, Tool, User};
        let mut all = [
            positions(Template, 1, &["<s>"]),
            positions(System, 1, &["Be", " brief", "."]),
            positions(Template, 1, &["</s>", "\n", "<s>"]),
            positions(User, 1, &["The", " code", " is", " 4821", ".", " Remember", " it", "."]),
            positions(Template, 1, &["</s>", "<s>"]),
            positions(Assistant, 1, &["Noted", "."]),
            positions(Template, 2, &["</s>", "<s>"]),
            positions(Tool, 2, &["{\"ok\"", ":1}"]),
            positions(Template, 2, &["</s>", "<s>"]),
            positions(Tool, 2, &["[]"]),
            positions(Template, 2, &["</s>", "<s>"]),
            positions(Assistant, 2, &["Done", "."]),
            positions(Template, 2, &["</s>"]),
        ]
        .concat();
        all[0].state = State::Sink;
        all[1..4].iter_mut().for_each(|position| position.state = State::Protected);
        for at in [7, 8, 12, 13, 14] {
            (all[at].state, all[at].died_in_turn) = (State::Dead, Some(2));
        }
        all[17].state = State::Shared;
        all[30].state = State::Pending;
        for (at, score) in [(10, 6.5), (12, 9.0), (9, 0.25), (17, 6.5)] {
            all[at].score = Some(score);
        }
        let events =
            vec![EventView { turn: 2, at: 28, live_before: 28, live_after: 23, evicted: 5, freed: 4 }];
        View {
            session: "s-1".into(),
            group: "a".into(),
            model: "tiny".into(),
            policy: "intent-memory".into(),
            budget: Some(23),
            positions: all,
            rows_given_up: false,
            events,
        }
    }

    /// The same after its rows were given up: what the group says then.
    pub(in super::super) fn given_up() -> View {
        let mut view = example();
        let others = view.positions.iter_mut().filter(|position| position.state != State::Dead);
        others.for_each(|position| position.state = State::Pending);
        view.rows_given_up = View::given_up(&view.positions);
        view
    }

    #[test]
    fn states_follow_the_turns() {
        let view = example();
        assert_eq!(view.turns(), [1, 2]);
        let counts_after = |turn| view.counts_at(Moment::AfterTurn(turn));
        assert_eq!(counts_after(0), [0; 6]);
        let [live, shared, protected, sink, dead, _] = counts_after(1);
        assert_eq!((protected, sink, dead), (3, 1, 0), "nothing was dead before turn 2");
        assert_eq!(live + shared + protected + sink, 19);
        assert_eq!(counts_after(2), [view.positions.len() - 11, 1, 3, 1, 5, 1]);
        for turn in view.turns() {
            let there = view.positions.iter().filter(|position| position.turn <= turn).count();
            assert_eq!(counts_after(turn).iter().sum::<usize>(), there);
        }
    }

    #[test]
    fn a_death_without_a_turn_counts_from_the_start_and_a_revived_token_lives() {
        let mut view = example();
        view.positions[7].died_in_turn = None;
        assert_eq!(view.state_at(7, Moment::AfterTurn(1)), Some(State::Dead));
        (view.positions[7].state, view.positions[7].died_in_turn) = (State::Live, Some(1));
        assert_eq!(view.state_at(7, Moment::AfterTurn(2)), Some(State::Live));
    }

    #[test]
    fn rows_that_were_given_up_are_pending_now_and_were_live_after_their_turns() {
        let (view, kept) = (given_up(), example());
        assert!(view.rows_given_up && !View::given_up(&kept.positions));
        assert_eq!(view.moments(), [Moment::AfterTurn(1), Moment::AfterTurn(2), Moment::Now]);
        assert_eq!(view.counts_at(Moment::AfterTurn(1)), [19, 0, 0, 0, 0, 0]);
        let all = view.positions.len();
        assert_eq!(view.counts_at(Moment::AfterTurn(2)), [all - 6, 0, 0, 0, 5, 1]);
        assert_eq!(view.counts_at(Moment::Now), [0, 0, 0, 0, 5, all - 5]);
        assert_eq!(kept.moments().last(), Some(&Moment::AfterTurn(2)), "now is nothing else");
        assert!(!View::given_up(&view.positions[all - 1..]), "an answer's last token never has a row");
    }

    #[test]
    fn messages_hold_every_token_once_with_the_template_before_them() {
        let view = example();
        let messages = view.messages();
        let roles: Vec<&str> = messages.iter().map(|message| message.role.name()).collect();
        assert_eq!(roles, ["system", "user", "assistant", "tool", "tool", "assistant"]);
        assert_eq!(messages.iter().map(|message| message.turn).collect::<Vec<_>>(), [1, 1, 1, 2, 2, 2]);
        let mut next = 0;
        for message in &messages {
            assert_eq!(message.start, next);
            next += message.tokens.len();
        }
        assert_eq!(next, view.positions.len());
        assert!(View::default().messages().is_empty());
        let only = View { positions: positions(RoleView::Template, 1, &["<s>"]), ..View::default() };
        assert_eq!(only.messages().len(), 1);
    }

    #[test]
    fn messages_without_a_template_are_cut_at_roles_and_turns() {
        let all = [
            positions(RoleView::User, 1, &["a"]),
            positions(RoleView::Assistant, 1, &["b", "c"]),
            positions(RoleView::Assistant, 2, &["d"]),
        ];
        let view = View { positions: all.concat(), ..View::default() };
        let starts: Vec<usize> = view.messages().iter().map(|message| message.start).collect();
        assert_eq!(starts, [0, 1, 3]);
    }

    #[test]
    fn the_top_is_live_and_in_order() {
        assert_eq!(example().top(2), [17, 10], "the highest of all is dead, and on ties the later wins");
        assert_eq!(example().top(9), [17, 10, 9]);
    }

    #[test]
    fn characters_that_steer_are_not_shown() {
        let shown: String = "a\u{1b}[31m\u{9b}\u{202e}é\n\t\u{7f}".chars().map(printable).collect();
        assert_eq!(shown, "a\u{fffd}[31m\u{fffd}\u{fffd}é\n\t\u{fffd}");
    }
}
