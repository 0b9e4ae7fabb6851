//! The summary as Markdown: a table for each budget, one for equal reads, and what the columns mean.
//!
//! Shows what the summary holds and computes nothing but order and rounding.

use hawser_common::numbers::counted;

use super::budget::BudgetLabel;
use super::equal::{Comparison, Gain};
use super::form::{NONE, interval, markdown_text, nats, or_none, percent, signed_nats, utc_day};
use super::result::Mode;
use super::summary::{Fidelity, Needles, Row, Summary, Versus};
use crate::stats::Interval;

/// Intervals of fewer sessions than this come with a warning.
const FEW_SESSIONS: usize = 20;

/// The summary as a Markdown page.
#[must_use]
pub fn markdown(summary: &Summary) -> String {
    let mut page = head(summary);
    for place in summary.rows.chunk_by(|a, b| (&a.split, a.mode) == (&b.split, b.mode)) {
        page.push_str(&format!("\n## {}: {}\n", markdown_text(&place[0].split), place[0].mode));
        for rows in place.chunk_by(|a, b| a.budget == b.budget) {
            page.push_str(&format!("\n### Budget {}\n\n", budget(rows[0].budget)));
            page.push_str(&budget_table(rows, &summary.baselines));
            page.push_str(&needle_table(rows));
            page.push_str(&revival_table(rows));
        }
        page.push_str(&equal_reads(summary, &place[0].split, place[0].mode));
    }
    page.push_str(&footnotes(summary));
    page
}

fn head(summary: &Summary) -> String {
    let run = &summary.run;
    let mut page = "# Retention: what a KV budget costs\n\n".to_owned();
    let facts = [
        ("Model", format!("{}, SHA-256 {}", markdown_text(&run.model), markdown_text(&run.model_digest))),
        ("Tokenizer", markdown_text(&run.tokenizer)),
        ("Machine", format!("{}, {}", markdown_text(&run.machine), counted(run.threads as u64, "thread"))),
        ("Begun", utc_day(run.started_unix_s)),
        ("Seed", run.seed.to_string()),
        ("Command", markdown_text(&run.command)),
    ];
    for (name, value) in facts {
        page.push_str(&format!("- {name}: {value}\n"));
    }
    page
}

fn budget(budget: BudgetLabel) -> String {
    match budget {
        BudgetLabel::Tokens(tokens) => counted(tokens.into(), "token"),
        BudgetLabel::Share { .. } => format!("{} of the session", budget.to_string().replace('%', " %")),
    }
}

/// A heading, a line of alignment (text left, numbers right) and the rows.
fn table(columns: &[String], rows: impl Iterator<Item = Vec<String>>) -> String {
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let mut text = line(columns);
    let dashes =
        ["---".to_owned()].into_iter().chain(vec!["---:".to_owned(); columns.len().saturating_sub(1)]);
    text.push_str(&line(&dashes.collect::<Vec<_>>()));
    rows.for_each(|row| text.push_str(&line(&row)));
    text
}

/// The results at one budget beside the first baseline; further baselines get a table of their own.
fn budget_table(rows: &[Row], baselines: &[String]) -> String {
    let mut columns: Vec<String> = [
        "policy",
        "KL",
        "KL p95",
        "top-1",
        "ΔNLL",
        "arg. KL",
        "arg. top-1",
        "arg. ΔNLL",
        "reads",
        "peak live",
        "hits live",
        "hits dead",
        "scoring ms",
        "sessions",
    ]
    .map(str::to_owned)
    .to_vec();
    let shown: Vec<&String> =
        baselines.iter().filter(|name| rows.iter().any(|row| versus(row, name).is_some())).collect();
    let (first, further) = shown.split_at(shown.len().min(1));
    columns.extend(difference_columns(first));
    let cells = |row: &Row| [result_cells(row), difference_cells(row, first)].concat();
    let mut text = table(&columns, rows.iter().map(cells));
    if !further.is_empty() {
        text.push_str("\nDifferences to further policies at the same budget:\n\n");
        let columns = [vec!["policy".to_owned()], difference_columns(further)].concat();
        let cells = |row: &Row| [vec![markdown_text(&row.policy)], difference_cells(row, further)].concat();
        text.push_str(&table(&columns, rows.iter().map(cells)));
    }
    text
}

/// Numbers from earlier turns, where sessions have any; nothing else.
fn needle_table(rows: &[Row]) -> String {
    let found: Vec<(&Row, Needles)> = rows.iter().filter_map(|row| Some((row, row.needle?))).collect();
    if found.is_empty() {
        return String::new();
    }
    let columns = ["policy", "needles live", "NLL full", "ΔNLL", "sessions"].map(str::to_owned);
    let cells = |(row, needles): (&Row, Needles)| {
        let (policy, sessions) = (markdown_text(&row.policy), needles.sessions.to_string());
        let numbers = [percent(needles.live), nats(needles.nll_full), signed_nats(needles.delta_nll)];
        [policy].into_iter().chain(numbers).chain([sessions]).collect()
    };
    format!("\nNeedles:\n\n{}", table(&columns, found.into_iter().map(cells)))
}

/// What came back, where anything did; nothing else.
fn revival_table(rows: &[Row]) -> String {
    let found: Vec<&Row> = rows.iter().filter(|row| row.revived > 0.0).collect();
    if found.is_empty() {
        return String::new();
    }
    let columns = ["policy", "came back, per session", "run again, of prompt tokens"].map(str::to_owned);
    let cells = |row: &Row| {
        vec![markdown_text(&row.policy), format!("{:.1}", row.revived), or_none(row.refilled_share, percent)]
    };
    format!("\nRevival:\n\n{}", table(&columns, found.into_iter().map(cells)))
}

fn versus<'a>(row: &'a Row, baseline: &str) -> Option<&'a Versus> {
    row.against.iter().find(|versus| versus.baseline == baseline)
}

fn difference_columns(baselines: &[&String]) -> Vec<String> {
    let names = baselines.iter().map(|name| markdown_text(name));
    names.flat_map(|name| [format!("KL − {name}"), format!("arg. KL − {name}")]).collect()
}

fn difference_cells(row: &Row, baselines: &[&String]) -> Vec<String> {
    let shown = |value: Option<Interval>| value.map_or_else(|| NONE.to_owned(), settled);
    let found = baselines.iter().map(|baseline| versus(row, baseline));
    found
        .flat_map(|versus| {
            [versus.and_then(|versus| versus.kl), versus.and_then(|versus| versus.argument_kl)].map(shown)
        })
        .collect()
}

fn result_cells(row: &Row) -> Vec<String> {
    let of = |fidelity: Option<Fidelity>, value: fn(Fidelity) -> f64| fidelity.map(value);
    let loss = |value| or_none(value, nats);
    let share = |value| or_none(value, percent);
    vec![
        markdown_text(&row.policy),
        loss(of(row.all, |all| all.kl)),
        loss(of(row.all, |all| all.kl_p95)),
        share(of(row.all, |all| all.top1)),
        or_none(of(row.all, |all| all.delta_nll), signed_nats),
        loss(of(row.argument, |argument| argument.kl)),
        share(of(row.argument, |argument| argument.top1)),
        or_none(of(row.argument, |argument| argument.delta_nll), signed_nats),
        share(row.reads_share),
        share(row.peak_live_share),
        share(row.hit_live),
        share(row.hit_dead),
        or_none(row.scoring_ms, |ms| format!("{ms:.2}")),
        if row.seeds > 1 { format!("{} × {}", row.sessions, row.seeds) } else { row.sessions.to_string() },
    ]
}

/// An interval, in bold where it excludes 0.
fn settled(difference: Interval) -> String {
    let text = interval(&difference);
    if difference.excludes_zero() { format!("**{text}**") } else { text }
}

fn equal_reads(summary: &Summary, split: &str, mode: Mode) -> String {
    let here = |comparison: &&Comparison| comparison.split == split && comparison.mode == mode;
    let find = |policy: &str, baseline: &str| {
        summary.equal_reads.iter().filter(here).find(|c| c.policy == policy && c.baseline == baseline)
    };
    let mut page = String::new();
    for baseline in &summary.baselines {
        let mut compared: Vec<&Comparison> =
            summary.equal_reads.iter().filter(here).filter(|found| found.baseline == *baseline).collect();
        compared.sort_by(|a, b| {
            let gain = |found: &Comparison| found.all.policy_kl - found.all.baseline_kl;
            gain(a).total_cmp(&gain(b))
        });
        if compared.is_empty() {
            continue;
        }
        let name = markdown_text(baseline);
        page.push_str(&format!("\n### Against {name} at equal reads\n\n"));
        let columns = [
            "policy".to_owned(),
            "KL".to_owned(),
            format!("KL of {name}"),
            "KL difference".to_owned(),
            "exchanged".to_owned(),
            "arg. KL difference".to_owned(),
            "arg. exchanged".to_owned(),
            "reads".to_owned(),
            "widest gap".to_owned(),
            "sessions".to_owned(),
        ];
        let rows = compared.iter().map(|found| gain_cells(found, find(baseline, &found.policy)));
        page.push_str(&table(&columns, rows));
    }
    for refused in summary.refused.iter().filter(|refused| refused.split == split && refused.mode == mode) {
        page.push_str(&format!("\nNot compared at equal reads: {}.\n", markdown_text(&refused.reason)));
    }
    page
}

/// One policy against a baseline; `exchanged` is the same with the names exchanged, so its sign is turned back.
fn gain_cells(found: &Comparison, exchanged: Option<&Comparison>) -> Vec<String> {
    let none = || NONE.to_owned();
    let difference = |gain: Option<Gain>| gain.and_then(|gain| gain.difference);
    let forward = |gain| difference(gain).map_or_else(none, settled);
    let backward = |gain| difference(gain).map_or_else(none, |difference| settled(difference.negated()));
    let gain = found.all;
    vec![
        markdown_text(&found.policy),
        nats(gain.policy_kl),
        nats(gain.baseline_kl),
        forward(Some(gain)),
        backward(exchanged.map(|exchanged| exchanged.all)),
        forward(found.argument),
        backward(exchanged.and_then(|exchanged| exchanged.argument)),
        percent(gain.reads_share),
        percent(gain.widest_gap),
        format!("{} of {}", gain.sessions, gain.sessions + gain.left_out),
    ]
}

fn footnotes(summary: &Summary) -> String {
    let mut notes = vec![
        "**KL**: KL(full ‖ pruned) of the next-token distributions on the recorded answers, in nats per token; mean \
         per session, then over sessions. **KL p95**: 95 % of requests stay at or below it."
            .to_owned(),
        "**top-1**: share of tokens whose most likely token is the same. **ΔNLL**: negative log-likelihood of the \
         recorded tokens, pruned less full, in nats per token."
            .to_owned(),
        "**arg.**: over the tokens of values that occur earlier in the session; sessions without any are left out."
            .to_owned(),
        "**reads**: rows read while decoding and for scoring, over the rows that the full cache reads. Prefill is \
         apart."
            .to_owned(),
        "**peak live**: most live tokens over the session's length. **hits**: matched prompt tokens, live or dead \
         (skipped), over prompt tokens. **scoring ms**: per prune event."
            .to_owned(),
        format!(
            "**Differences** are policy less baseline, paired by session, so below 0 is better; in brackets the 95 % \
             percentile interval of {} bootstrap draws over sessions, in bold where it excludes 0.",
            summary.resamples
        ),
        "**Equal reads**: the baseline's KL is interpolated linearly between its budgets (and `full`) at the \
         policy's reads in each session, never beyond them. Lines between points overstate the loss of a convex \
         curve, here the baseline's; **exchanged** interpolates the policy instead and errs the other way. **widest \
         gap**: the widest distance between two points that was bridged."
            .to_owned(),
        "**sessions**: `60 × 3` are 60 sessions, averaged over 3 seeds each.".to_owned(),
    ];
    if summary.rows.iter().any(|row| row.needle.is_some()) {
        notes.push(
            "**Needles** are numbers of an answer that stand in an earlier turn. **needles live**: share of their \
             tokens there, at the place where most are, that are live as the answer begins. **NLL full**: negative \
             log-likelihood of the number in the recorded answer with the full cache; **ΔNLL**: what pruning adds."
                .to_owned(),
        );
    }
    if summary.rows.iter().any(|row| row.sessions < FEW_SESSIONS) {
        notes.push(format!(
            "Some results have fewer than {FEW_SESSIONS} sessions: their intervals come out too narrow."
        ));
    }
    let notes: Vec<String> = notes.into_iter().map(|note| format!("- {note}\n")).collect();
    format!("\n## How to read this\n\n{}", notes.concat())
}

#[cfg(test)]
mod tests {
    use super::super::result::Scores;
    use super::super::summary::{Options, summarise, summarise_with};
    use super::super::tests::{hand_made, lines};
    use super::*;

    /// The cells of the row of `policy` in the table under `heading`.
    fn row_under(page: &str, heading: &str, policy: &str) -> Vec<String> {
        let (_, rest) = page.split_once(heading).unwrap_or_else(|| panic!("no {heading:?} in\n{page}"));
        let rest = rest.split("\n#").next().unwrap_or_default();
        let line = rest.lines().find(|line| line.starts_with(&format!("| {policy} |")));
        let line = line.unwrap_or_else(|| panic!("no {policy:?} under {heading:?} in\n{page}"));
        line.trim_matches('|').split(" | ").map(|cell| cell.trim().to_owned()).collect()
    }

    #[test]
    fn a_table_shows_the_numbers_of_the_summary() {
        let page = markdown(&summarise(&hand_made()));
        let cells = row_under(&page, "### Budget 25 % of the session", "snapkv");
        assert_eq!(cells[1..5], ["0.250", "0.390", "85.0 %", "+0.150"]);
        assert_eq!(cells[5..8], ["0.500", "50.0 %", "+0.500"]);
        assert_eq!(cells[8..14], ["40.0 %", "30.0 %", "45.0 %", "15.0 %", "2.50", "2"]);
        assert!(cells[14].starts_with("**−0.350 [−"), "{cells:?}");
        assert_eq!(cells[15], NONE, "one session with arguments has no interval");
        assert_eq!(row_under(&page, "### Budget 25 %", "random")[13], "2 × 2");
        for part in ["tiny, SHA-256 abc", "2025-10-09", "fewer than 20 sessions", "## test: closed loop"] {
            assert!(page.contains(part), "{part:?} is not in\n{page}");
        }
    }

    #[test]
    fn policies_stand_in_order_of_their_loss_and_every_row_has_every_column() {
        let page = markdown(&summarise(&hand_made()));
        let at = |policy: &str| page.find(&format!("\n| {policy} |")).unwrap();
        assert!(at("snapkv") < at("random"), "{page}");
        for table in page.split("\n\n").filter(|block| block.starts_with('|')) {
            let counts: Vec<usize> =
                table.lines().map(|line| line.replace("\\|", "").matches('|').count()).collect();
            assert!(counts.iter().all(|count| *count == counts[0]), "{table}");
        }
    }

    #[test]
    fn the_first_baseline_stands_beside_the_results_and_others_below() {
        let baselines = vec!["h2o".into(), "random".into(), "snapkv".into()];
        let page = markdown(&summarise_with(&hand_made(), &Options { baselines, resamples: 100 }));
        assert_eq!(row_under(&page, "### Budget 25 %", "snapkv")[14..].len(), 2);
        let further = row_under(&page, "Differences to further policies", "random");
        assert_eq!(further.len(), 3);
        assert!(further[1].starts_with("**+0.350 [+"), "{further:?}");
    }

    #[test]
    fn equal_reads_show_both_directions() {
        let options = Options { resamples: 200, ..Options::default() };
        let page = markdown(&summarise_with(&lines(), &options));
        let cells = row_under(&page, "### Against random at equal reads", "snapkv");
        assert_eq!(cells[3], "**−0.100 [−0.100, −0.100]**");
        // Exchanged: 0.1 at reads 0.375, and 0.075 at 0.625 on the line from snapkv's last budget to `full`.
        assert_eq!(cells[4], "**−0.0875 [−0.0875, −0.0875]**");
        assert_eq!(cells[9], "3 of 3");
    }

    #[test]
    fn needles_have_a_table_where_there_are_any() {
        let mut run = hand_made();
        assert!(!markdown(&summarise(&run)).contains("Needles"));
        for session in run.sessions.iter_mut().filter(|session| session.policy == "snapkv") {
            let turn = &mut session.turns[0];
            (turn.needle_tokens, turn.needle_live) = (10, if session.trace == "a" { 4 } else { 9 });
            turn.needle = Scores { tokens: 4, nll_full_sum: 2.0, nll_pruned_sum: 6.0, ..Scores::default() };
        }
        let page = markdown(&summarise(&run));
        let cells = row_under(&page, "\nNeedles:\n", "snapkv");
        assert_eq!(cells[1..], ["65.0 %", "0.500", "+1.00", "2"]);
        let (_, below) = page.split_once("\nNeedles:\n").unwrap();
        assert!(!below.split("\n#").next().unwrap().contains("| random |"), "it has none: {page}");
    }

    #[test]
    fn text_from_outside_breaks_no_table() {
        let mut run = hand_made();
        run.run.command = "eval\n| a | <script>".into();
        for session in &mut run.sessions {
            session.policy = session.policy.replace("snapkv", "snap|kv\n<b>");
        }
        let page = markdown(&summarise(&run));
        assert!(!page.contains("<script>") && !page.contains("<b>"), "{page}");
        assert!(page.contains("| snap\\|kv &lt;b&gt; |"), "{page}");
    }
}
