//! A session as one HTML page: the conversation coloured by what became of each token, with a slider over turns.
//!
//! The page holds everything it shows and forbids itself to fetch anything. Without scripts it shows the session as it
//! is now. Nothing from the conversation becomes markup: all of it passes through [`escaped`].

use super::view::{EventView, Message, Moment, PositionView, RoleView, State, View, printable};
use crate::console::counted;

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// The whole page.
pub fn html(view: &View) -> String {
    let turns = view.turns();
    let now = turns.last().copied().unwrap_or_default();
    let listed: Vec<String> = turns.iter().map(u32::to_string).collect();
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; \
         script-src 'unsafe-inline'\"/>\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n\
         <title>{} · retention</title>\n<style>\n{STYLE}</style>\n</head>\n<body data-turns=\"{}\"{}>\n",
        escaped(&view.session),
        listed.join(" "),
        if view.rows_given_up { " data-given-up=\"\"" } else { "" }
    );
    page.push_str(&header(view, now));
    page.push_str("<main>\n");
    for message in view.messages() {
        section(&mut page, &message, view);
    }
    page.push_str("</main>\n");
    if !turns.is_empty() {
        page.push_str(&format!("<script>\n{SCRIPT}</script>\n"));
    }
    page.push_str("</body>\n</html>\n");
    page
}

/// Text between tags or in a quoted attribute.
pub fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for character in text.chars().map(printable) {
        match character {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            other => safe.push(other),
        }
    }
    safe
}

fn header(view: &View, now: u32) -> String {
    let budget = view.budget_text();
    let mut header = format!(
        "<header>\n<h1>Session {}</h1>\n<p>{} on group {}, policy {}, {budget}, {}</p>\n",
        escaped(&view.session),
        escaped(&view.model),
        escaped(&view.group),
        escaped(&view.policy),
        counted(view.positions.len() as u64, "token")
    );
    if view.rows_given_up {
        header.push_str(&format!("<p>{}.</p>\n", View::GIVEN_UP));
    }
    if let Some(last) = view.moments().len().checked_sub(1) {
        let shown = match view.moments()[last] {
            Moment::AfterTurn(turn) => format!("after turn {turn} of {turn}"),
            Moment::Now => "now".to_owned(),
        };
        header.push_str(&format!(
            "<label>Turn <input id=\"turn\" type=\"range\" min=\"0\" max=\"{last}\" value=\"{last}\" \
             autocomplete=\"off\"/> <output id=\"shown\">{shown}</output></label>\n"
        ));
    }
    let counts: Vec<(State, usize)> = State::ALL.into_iter().zip(view.counts_at(Moment::Now)).collect();
    header.push_str("<div class=\"bar\">");
    for (state, count) in &counts {
        let percent = 100.0 * *count as f64 / view.positions.len().max(1) as f64;
        let name = state.name();
        header
            .push_str(&format!("<i id=\"bar-{name}\" class=\"{name}\" style=\"width: {percent:.3}%\"></i>"));
    }
    header.push_str("</div>\n<ul class=\"legend\">\n");
    for (state, count) in &counts {
        let name = state.name();
        header.push_str(&format!(
            "<li><span class=\"{name}\">{name}</span> <b id=\"count-{name}\">{count}</b> {}</li>\n",
            meaning(*state)
        ));
    }
    header.push_str(
        "</ul>\n<p>Stronger colour: higher score. Point at a token for its position and score.</p>\n",
    );
    header.push_str("<ul class=\"events\">\n");
    view.events.iter().for_each(|event| header.push_str(&event_item(event, now)));
    header.push_str("</ul>\n</header>\n");
    header
}

fn meaning(state: State) -> &'static str {
    match state {
        State::Live => "its own row",
        State::Shared => "row shared with other sessions",
        State::Protected => "never evicted",
        State::Sink => "first tokens, never evicted",
        State::Dead => "evicted",
        State::Pending => "no row now; the next turn computes it",
    }
}

fn event_item(event: &EventView, now: u32) -> String {
    format!(
        "<li data-turn=\"{}\"{}>Pruned at token {}: {} → {} live, {} evicted, {} freed</li>\n",
        event.turn,
        if event.turn == now { " class=\"now\"" } else { "" },
        event.at,
        event.live_before,
        event.live_after,
        event.evicted,
        counted(event.freed as u64, "slot")
    )
}

fn section(page: &mut String, message: &Message<'_>, view: &View) {
    let (role, turn) = (message.role.name(), message.turn);
    // A line end right after the tag would be dropped: `<pre>` is followed by a tag instead.
    page.push_str(&format!("<section data-turn=\"{turn}\">\n<h2>{role}, turn {turn}</h2>\n<pre>"));
    for (offset, position) in message.tokens.iter().enumerate() {
        token(page, message.start + offset, position, view);
    }
    page.push_str("</pre>\n</section>\n");
}

fn token(page: &mut String, at: usize, position: &PositionView, view: &View) {
    // The state that it has, or had before it died or its row was given up: what the script goes back to.
    let before = view.state_at(at, Moment::AfterTurn(u32::MAX));
    let base = before.filter(|state| *state != State::Dead).unwrap_or(State::Live);
    let mut classes = vec![base.name()];
    if position.state == State::Pending && base != State::Pending {
        classes.push(State::Pending.name());
    }
    classes.extend(strength(position.score));
    if position.role == RoleView::Template {
        classes.push("template");
    }
    let mut facts = format!("position {at} · id {} · turn {}", position.id, position.turn);
    if let Some(score) = position.score {
        facts.push_str(&format!(" · score {score:.2}"));
    }
    let mut died = String::new();
    if position.state == State::Dead {
        classes.push("dead");
        died = format!(" data-died=\"{}\"", position.died_in_turn.unwrap_or_default());
        match position.died_in_turn {
            Some(turn) => facts.push_str(&format!(" · evicted in turn {turn}")),
            None => facts.push_str(" · evicted"),
        }
    }
    page.push_str(&format!(
        "<span class=\"{}\" data-state=\"{}\" data-turn=\"{}\"{died} title=\"{facts}\">{}</span>",
        classes.join(" "),
        base.name(),
        position.turn,
        escaped(&position.text)
    ));
}

/// How strongly a score colours: in steps around the mean of the candidates, which is 1.
fn strength(score: Option<f64>) -> Option<&'static str> {
    match score? {
        4.0.. => Some("s3"),
        2.0.. => Some("s2"),
        1.0.. => Some("s1"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::view::tests::{example, given_up};
    use super::*;

    /// The page without its style and script, whose text is ours.
    fn markup(page: &str) -> String {
        let mut rest = page.to_owned();
        for (from, to) in [("<style>", "</style>"), ("<script>", "</script>")] {
            if let Some((before, after)) = rest.split_once(from) {
                let after = after.split_once(to).unwrap().1.to_owned();
                rest = format!("{before}{after}");
            }
        }
        rest
    }

    /// Every tag that is opened is closed in order.
    fn balanced(markup: &str) -> Result<(), String> {
        let mut open: Vec<&str> = Vec::new();
        for piece in markup.trim_start_matches("<!DOCTYPE html>").split('<').skip(1) {
            let (tag, text) = piece.split_once('>').ok_or_else(|| format!("{piece:?} has no end"))?;
            if text.contains('>') {
                return Err(format!("a bare > in {text:?}"));
            }
            let name = tag.split_whitespace().next().unwrap_or_default();
            match name.strip_prefix('/') {
                Some(name) if open.pop() == Some(name) => {}
                Some(name) => return Err(format!("</{name}> closes nothing")),
                None if tag.ends_with('/') => {}
                None => open.push(name),
            }
        }
        if open.is_empty() { Ok(()) } else { Err(format!("{open:?} are open")) }
    }

    #[test]
    fn a_page_shows_every_token_with_its_facts() {
        let (view, page) = (example(), html(&example()));
        assert_eq!(balanced(&markup(&page)), Ok(()), "{page}");
        assert_eq!(page.matches("<span class=\"").count(), view.positions.len() + State::ALL.len());
        for part in [
            "<span class=\"live s3\" data-state=\"live\" data-turn=\"1\" \
             title=\"position 10 · id 7 · turn 1 · score 6.50\"> 4821</span>",
            "<span class=\"live s3 dead\" data-state=\"live\" data-turn=\"1\" data-died=\"2\" \
             title=\"position 12 · id 7 · turn 1 · score 9.00 · evicted in turn 2\"> Remember</span>",
            "<span class=\"sink template\" data-state=\"sink\"",
            "<b id=\"count-dead\">5</b>",
            "<b id=\"count-protected\">3</b>",
            "<li data-turn=\"2\" class=\"now\">Pruned at token 28: 28 → 23 live, 5 evicted, 4 slots freed</li>",
            "min=\"0\" max=\"1\" value=\"1\"",
            "<body data-turns=\"1 2\">",
        ] {
            assert!(page.contains(part), "{part:?} is not in\n{page}");
        }
    }

    #[test]
    fn a_page_of_rows_that_were_given_up_begins_with_now() {
        let page = html(&given_up());
        assert_eq!(balanced(&markup(&page)), Ok(()), "{page}");
        for part in [
            "<p>no rows now: they were given up",
            "<body data-turns=\"1 2\" data-given-up=\"\">",
            "max=\"2\" value=\"2\"",
            "<output id=\"shown\">now</output>",
            "<b id=\"count-pending\">26</b>",
            "<span class=\"live pending s3\" data-state=\"live\" data-turn=\"1\"",
        ] {
            assert!(page.contains(part), "{part:?} is not in\n{page}");
        }
        assert!(!html(&example()).contains("data-given-up"));
    }

    #[test]
    fn nothing_from_outside_becomes_markup() {
        let evil = "</script><script>alert(1)</script><img src=x onerror='a'>\" onmouseover=\"b&amp;\u{202e}";
        let mut view = example();
        for name in [&mut view.session, &mut view.group, &mut view.model, &mut view.policy] {
            *name = evil.to_owned();
        }
        view.positions.iter_mut().for_each(|position| position.text = evil.to_owned());
        let page = html(&view);
        assert_eq!(balanced(&markup(&page)), Ok(()));
        assert_eq!(page.matches("<script").count(), 1, "the page's own");
        assert_eq!(page.matches("</script").count(), 1);
        assert!(!page.contains("<img") && !page.contains("\" onmouseover") && !page.contains('\u{202e}'));
        let shown = "&lt;/script&gt;&lt;script&gt;alert(1)&lt;/script&gt;";
        // In the title, the heading and the line below it, and once for each token.
        assert_eq!(page.matches(shown).count(), 5 + view.positions.len());
    }

    #[test]
    fn the_page_fetches_nothing_and_knows_both_schemes() {
        let page = html(&example());
        for part in
            ["http:", "https:", "//", "url(", "@import", "src=", "href=", "fetch(", "innerHTML", "eval("]
        {
            assert!(!page.contains(part), "{part:?} is in the page");
        }
        for part in ["default-src 'none'", "prefers-color-scheme: dark", "color-scheme: light dark"] {
            assert!(page.contains(part), "{part:?} is not in the page");
        }
    }

    #[test]
    fn every_state_has_a_colour_a_count_and_a_class_that_the_script_knows() {
        let page = html(&example());
        for state in State::ALL {
            let name = state.name();
            assert!(STYLE.contains(&format!(".{name} {{")), "{name} has no colour");
            assert!(SCRIPT.contains(&format!("{name}: 0")), "{name} is not counted");
            assert!(page.contains(&format!("id=\"bar-{name}\"")), "{name} has no bar");
        }
    }

    #[test]
    fn an_empty_session_is_a_page_without_a_slider() {
        let page = html(&View::default());
        assert_eq!(balanced(&markup(&page)), Ok(()));
        assert!(!page.contains("<input") && !page.contains("<script"), "{page}");
    }
}
