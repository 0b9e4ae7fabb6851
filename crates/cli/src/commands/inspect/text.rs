//! A session as text for a terminal: counts by turn, the conversation without its dead stretches, the top scores.
//!
//! Lines keep to the width where their words allow it. Nothing from the conversation can steer the terminal, and
//! colour is only ever said twice: every state has its own character in bars and its own brackets in text.

use super::view::{EventView, Message, Moment, PositionView, RoleView, State, View, printable};
use crate::console::counted;

/// How the text is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Columns of the terminal.
    pub width: usize,
    pub colour: Colour,
    /// How many of the highest scores to list.
    pub top: usize,
}

/// Whether ANSI escapes colour the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Colour {
    Plain,
    Ansi,
}

/// Dead stretches of up to this many tokens are shown as `[…]`.
const SHORT_STRETCH: usize = 3;
/// Tokens before and after a top-scored one.
const CONTEXT: usize = 4;
/// No bar is shorter; it is left out instead.
const MIN_BAR: usize = 10;
const MAX_BAR: usize = 60;
/// Narrower terminals are written to as if they had this many columns.
const MIN_WIDTH: usize = 20;

/// The whole rendering, with a line end after each line.
pub fn text(view: &View, options: &Options) -> String {
    let ink = Ink(options.colour);
    let width = options.width.max(MIN_WIDTH);
    let mut page = head(view, ink);
    page.push_str(&turns(view, width, ink));
    for message in view.messages() {
        page.push_str(&conversation(&message, width, ink));
    }
    page.push_str(&top(view, options.top, width, ink));
    page
}

/// Paints where colour is asked for.
#[derive(Clone, Copy)]
struct Ink(Colour);

impl Ink {
    fn paint(self, code: &str, text: &str) -> String {
        match self.0 {
            Colour::Ansi if !code.is_empty() && !text.is_empty() => format!("\x1b[{code}m{text}\x1b[0m"),
            Colour::Ansi | Colour::Plain => text.to_owned(),
        }
    }
}

const BOLD: &str = "1";
const DIM: &str = "2";

fn colour_of(state: State) -> &'static str {
    match state {
        State::Live => "32",
        State::Shared => "34",
        State::Protected => "35",
        State::Sink => "33",
        State::Dead => DIM,
        State::Pending => "36",
    }
}

fn bar_of(state: State) -> char {
    match state {
        State::Live => '█',
        State::Shared => '▓',
        State::Protected => '▒',
        State::Sink => '▪',
        State::Dead => '·',
        State::Pending => '░',
    }
}

/// Text on one line, safe to show.
fn one_line(text: &str) -> String {
    text.chars().map(printable).map(|c| if c == '\n' { '⏎' } else { c }).collect()
}

fn head(view: &View, ink: Ink) -> String {
    let name = |text: &str| one_line(text);
    let budget = view.budget_text();
    let given_up = if view.rows_given_up { format!("{}\n", View::GIVEN_UP) } else { String::new() };
    let live = view.positions.iter().filter(|position| position.state.is_live()).count();
    format!(
        "{}\n{} on group {}, policy {}, {budget}\n{}, {live} live, {}\n{given_up}",
        ink.paint(BOLD, &format!("session {}", name(&view.session))),
        name(&view.model),
        name(&view.group),
        name(&view.policy),
        counted(view.positions.len() as u64, "token"),
        counted(view.events.len() as u64, "prune event")
    )
}

/// One line for each turn, and one for each prune event below its turn, then one for now where that is something else.
/// States that no token has are left out.
fn turns(view: &View, width: usize, ink: Ink) -> String {
    let names: Vec<(Moment, String)> =
        view.moments().into_iter().map(|moment| (moment, named(moment))).collect();
    let occurs =
        |state: State| state == State::Live || view.positions.iter().any(|position| position.state == state);
    let digits = |number: usize| number.to_string().len();
    let wide = digits(view.positions.len());
    let name_wide = names.iter().map(|(_, name)| name.len()).max().unwrap_or_default();
    let mut page = String::new();
    for (moment, name) in names {
        let counts = view.counts_at(moment);
        let shown: Vec<String> = State::ALL
            .iter()
            .zip(counts)
            .filter(|(state, _)| occurs(**state))
            .map(|(state, count)| ink.paint(colour_of(*state), &format!("{count:>wide$} {}", state.name())))
            .collect();
        let labels = State::ALL.iter().filter(|state| occurs(**state));
        let labels: usize = labels.map(|state| wide + 1 + state.name().len() + 2).sum();
        let used = name_wide + 2 + labels;
        let bar = match width.checked_sub(used) {
            Some(room) if room >= MIN_BAR => bar(counts, view.positions.len(), room.min(MAX_BAR), ink),
            Some(_) | None => String::new(),
        };
        let line = format!("{name:>name_wide$}  {}  {bar}", shown.join("  "));
        page.push_str(&format!("{}\n", line.trim_end()));
        for event in view.events.iter().filter(|event| Moment::AfterTurn(event.turn) == moment) {
            page.push_str(&ink.paint(DIM, &event_line(event)));
            page.push('\n');
        }
    }
    if page.is_empty() { page } else { format!("\n{page}") }
}

fn named(moment: Moment) -> String {
    match moment {
        Moment::AfterTurn(turn) => format!("turn {turn}"),
        Moment::Now => "now".to_owned(),
    }
}

fn event_line(event: &EventView) -> String {
    format!(
        "  pruned at token {}: {} → {} live, {} evicted, {} freed",
        event.at,
        event.live_before,
        event.live_after,
        event.evicted,
        counted(event.freed as u64, "slot")
    )
}

/// Counts as stretches of a bar on which the whole session is `room` long. Ends of stretches are rounded, so that the
/// bar's length is right whatever its parts.
fn bar(counts: [usize; State::ALL.len()], whole: usize, room: usize, ink: Ink) -> String {
    let (mut sum, mut drawn, mut bar) = (0, 0, String::new());
    for (state, count) in State::ALL.into_iter().zip(counts) {
        sum += count;
        let end = (sum * room + whole / 2) / whole.max(1);
        let stretch: String = std::iter::repeat_n(bar_of(state), end - drawn).collect();
        bar.push_str(&ink.paint(colour_of(state), &stretch));
        drawn = end;
    }
    bar
}

/// A message: a heading and what is live of it. The template's tokens count and are not shown.
fn conversation(message: &Message<'_>, width: usize, ink: Ink) -> String {
    let live = message.tokens.iter().filter(|position| position.state.is_live()).count();
    let heading = format!(
        "{}, turn {}, from {}: {live} of {} live",
        message.role.name(),
        message.turn,
        message.start,
        message.tokens.len()
    );
    let mut lines = Wrapped::new(width, ink);
    let shown: Vec<&PositionView> =
        message.tokens.iter().filter(|token| fold(token) != Fold::Hidden).collect();
    for stretch in shown.chunk_by(|a, b| fold(a) == fold(b)) {
        match fold(stretch[0]) {
            Fold::Hidden => {}
            Fold::Dead if stretch.len() <= SHORT_STRETCH => lines.word(DIM, "[…]"),
            Fold::Dead => lines.word(DIM, &format!("[… {} dead …]", stretch.len())),
            Fold::Shown(state) => {
                let text: String = stretch.iter().map(|position| position.text.as_str()).collect();
                // Most of a conversation is live: colouring it would say nothing.
                let code = if state == State::Live { "" } else { colour_of(state) };
                lines.push(code, &text.chars().map(printable).collect::<String>());
            }
        }
    }
    format!("\n{}\n{}", ink.paint(BOLD, &heading), lines.finish())
}

/// What becomes of a token in the conversation.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fold {
    /// The template's, and live.
    Hidden,
    Dead,
    Shown(State),
}

fn fold(position: &PositionView) -> Fold {
    match (position.state, position.role) {
        (State::Dead, _) => Fold::Dead,
        (_, RoleView::Template) => Fold::Hidden,
        (state, _) => Fold::Shown(state),
    }
}

/// The highest scores, each with its surroundings.
fn top(view: &View, count: usize, width: usize, ink: Ink) -> String {
    let top = view.top(count);
    if top.is_empty() {
        return String::new();
    }
    let mut page = format!("\n{}\n", ink.paint(BOLD, "highest scores of kept tokens (mean of candidates 1)"));
    for at in top {
        let position = &view.positions[at];
        let facts = format!(
            "{:>8.2}  position {at:<6} turn {:<3} {:<9}  ",
            position.score.unwrap_or_default(),
            position.turn,
            position.role.name()
        );
        let room = width.saturating_sub(facts.chars().count()).max(MIN_WIDTH);
        page.push_str(&format!("{facts}{}\n", surroundings(view, at, room, ink)));
    }
    page
}

/// A token between `»` and `«`, with as much around it as fits into `room` columns.
fn surroundings(view: &View, at: usize, room: usize, ink: Ink) -> String {
    let join =
        |tokens: &[PositionView]| one_line(&tokens.iter().map(|p| p.text.as_str()).collect::<String>());
    let token: String = one_line(&view.positions[at].text).chars().take(room.saturating_sub(2)).collect();
    let spare = room.saturating_sub(2 + token.chars().count());
    let before: Vec<char> = join(&view.positions[at.saturating_sub(CONTEXT)..at]).chars().collect();
    let after = join(&view.positions[at + 1..view.positions.len().min(at + 1 + CONTEXT)]);
    let before: String = before[before.len().saturating_sub(spare / 2)..].iter().collect();
    let after: String = after.chars().take(spare - spare / 2).collect();
    format!("{before}»{}«{after}", ink.paint(colour_of(view.positions[at].state), &token))
}

/// Lines that break between words, or inside words longer than a line.
struct Wrapped {
    width: usize,
    ink: Ink,
    text: String,
    column: usize,
}

impl Wrapped {
    fn new(width: usize, ink: Ink) -> Self {
        Self { width, ink, text: String::new(), column: 0 }
    }

    fn push(&mut self, code: &str, text: &str) {
        for (index, line) in text.split('\n').enumerate() {
            if index > 0 {
                self.end_line();
            }
            for word in line.replace('\t', "    ").split_inclusive(' ') {
                self.word(code, word);
            }
        }
    }

    /// Text that is only broken where it is longer than a line.
    fn word(&mut self, code: &str, word: &str) {
        let length = word.trim_end().chars().count();
        if self.column > 0 && self.column + length > self.width {
            self.end_line();
        }
        let mut rest: Vec<char> = word.chars().collect();
        while rest.len() > self.width - self.column {
            let others = rest.split_off(self.width - self.column);
            self.text.push_str(&self.ink.paint(code, &String::from_iter(&rest)));
            rest = others;
            if rest.iter().all(|character| *character == ' ') {
                // The space after the last word of a line would only begin the next.
                self.column = self.width;
                return;
            }
            self.end_line();
        }
        self.text.push_str(&self.ink.paint(code, &String::from_iter(&rest)));
        self.column += rest.len();
    }

    fn end_line(&mut self) {
        self.text.push('\n');
        self.column = 0;
    }

    fn finish(mut self) -> String {
        if !self.text.is_empty() && !self.text.ends_with('\n') {
            self.text.push('\n');
        }
        self.text
    }
}

#[cfg(test)]
mod tests {
    use super::super::view::tests::{example, given_up};
    use super::*;

    fn plain(width: usize) -> Options {
        Options { width, colour: Colour::Plain, top: 2 }
    }

    #[test]
    fn a_session_is_shown_by_turn_message_and_score() {
        let shown = text(&example(), &plain(100));
        for part in [
            "session s-1\ntiny on group a, policy intent-memory, budget 23 tokens\n",
            "turn 1  14 live   1 shared   3 protected   1 sink   0 dead   0 pending",
            "turn 2  ",
            "  pruned at token 28: 28 → 23 live, 5 evicted, 4 slots freed\n",
            "\nuser, turn 1, from 4: 6 of 11 live\n[…] is 4821.[…]\n",
            "\ntool, turn 2, from 19: 4 of 4 live\n",
            "\nassistant, turn 2, from 26: 4 of 5 live\n",
            "    6.50  position 17     turn 1   assistant",
            "code is» 4821«. Remember",
        ] {
            assert!(shown.contains(part), "{part:?} is not in\n{shown}");
        }
        assert!(!shown.contains('\x1b'), "colour is only shown when asked for");
    }

    #[test]
    fn a_session_whose_rows_were_given_up_says_so_and_what_is_known() {
        let shown = text(&given_up(), &plain(100));
        for part in [
            "31 tokens, 0 live, 1 prune event\nno rows now: they were given up to make room",
            "turn 1  19 live   0 dead   0 pending",
            "turn 2  25 live   5 dead   1 pending",
            "   now   0 live   5 dead  26 pending",
        ] {
            assert!(shown.contains(part), "{part:?} is not in\n{shown}");
        }
        assert!(!text(&example(), &plain(100)).contains("given up"));
    }

    #[test]
    fn long_dead_stretches_say_how_long() {
        let mut view = example();
        for position in &mut view.positions[7..15] {
            position.state = State::Dead;
        }
        let shown = text(&view, &plain(80));
        assert!(shown.contains("\n[… 8 dead …]\n") && !shown.contains("4821"), "{shown}");
        // Between dead tokens, the template's are not seen.
        view.positions[4].state = State::Dead;
        assert!(text(&view, &plain(80)).contains("\n[… 9 dead …]\n"));
        // Such a mark is never broken.
        let mut narrow = Wrapped::new(32, Ink(Colour::Plain));
        narrow.push("", &"word ".repeat(5));
        narrow.word(DIM, "[… 9 dead …]");
        assert_eq!(narrow.finish(), "word word word word word \n[… 9 dead …]\n");
    }

    #[test]
    fn bars_are_as_long_as_the_session_is_so_far() {
        let ink = Ink(Colour::Plain);
        assert_eq!(bar([10, 5, 5, 0, 18, 2], 40, 20, ink), "█████▓▓▓▒▒·········░");
        for room in [10, 33, 60] {
            for counts in [[1, 1, 1, 1, 1, 0], [0, 0, 0, 0, 5, 0], [3, 0, 1, 0, 0, 1]] {
                assert_eq!(bar(counts, 5, room, ink).chars().count(), room);
                assert_eq!(bar(counts, 10, room, ink).chars().count(), room.div_ceil(2), "{room}");
            }
        }
        assert_eq!(bar([0; 6], 0, 20, ink), "");
    }

    #[test]
    fn lines_keep_to_the_width() {
        let mut view = example();
        view.positions[10].text = "a".repeat(75);
        view.positions[11].text = " one two\tthree four five six seven eight nine ten".into();
        for width in [20, 31, 40, 72] {
            let mut wrapped = Wrapped::new(width, Ink(Colour::Plain));
            for position in &view.positions {
                wrapped.push("", &position.text);
            }
            let shown = wrapped.finish();
            for line in shown.lines() {
                assert!(line.chars().count() <= width, "{width}: {line:?}");
            }
            let letters = |text: &str| text.chars().filter(|c| !c.is_whitespace()).collect::<String>();
            let all: String = view.positions.iter().map(|position| position.text.as_str()).collect();
            assert_eq!(letters(&shown), letters(&all), "nothing is lost at {width}");
        }
        let mut wrapped = Wrapped::new(20, Ink(Colour::Plain));
        wrapped.push("", "one two three four five");
        assert_eq!(wrapped.finish(), "one two three four \nfive\n");
    }

    #[test]
    fn a_narrow_terminal_has_no_bars_and_no_panic() {
        for width in [0, 1, 20, 50] {
            let shown = text(&example(), &plain(width));
            assert!(!shown.contains('█'), "{shown}");
        }
        assert!(text(&example(), &plain(100)).contains('█'));
        assert!(text(&View::default(), &plain(80)).contains("0 tokens, 0 live"));
    }

    #[test]
    fn colours_wrap_the_same_text() {
        let view = example();
        let shown = text(&view, &Options { colour: Colour::Ansi, ..plain(100) });
        assert!(shown.contains("\x1b[35mbrief.\x1b[0m"), "{shown}");
        let mut bare = String::new();
        for (index, part) in shown.split("\x1b[").enumerate() {
            bare.push_str(if index == 0 { part } else { part.split_once('m').unwrap().1 });
        }
        assert_eq!(bare, text(&view, &plain(100)));
    }

    #[test]
    fn text_from_outside_cannot_steer_the_terminal() {
        let mut view = example();
        view.session = "s\x1b]0;title\x07\n2".into();
        view.positions[10].text = "\x1b[2J\u{9b}31m\r\u{202e}".into();
        let shown = text(&view, &plain(100));
        assert!(shown.chars().all(|c| c == '\n' || !c.is_control()), "{shown:?}");
        assert!(shown.starts_with("session s\u{fffd}]0;title\u{fffd}⏎2\n"), "{shown:?}");
    }
}
