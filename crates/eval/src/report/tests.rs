//! Hand-made runs that the tests of this folder share, numbers worked out by hand, and a small check of XML.

use std::collections::BTreeMap;

use super::budget::BudgetLabel;
use super::equal::{CompareError, equal_reads};
use super::result::{Mode, PrefixHit, RunInfo, RunResult, Scores, SessionResult, TurnResult};
use super::summary::{Options, Row, Summary, json, summarise, summarise_with};

const QUARTER: BudgetLabel = BudgetLabel::Share { hundredths: 2_500 };

fn info() -> RunInfo {
    RunInfo {
        model: "tiny".into(),
        model_digest: "abc".into(),
        tokenizer: "bytes".into(),
        kv_type: "f16".into(),
        policies: BTreeMap::new(),
        seed: 7,
        command: "hawser eval retention --seed 7".into(),
        machine: "test".into(),
        threads: 2,
        started_unix_s: 1_760_000_000,
    }
}

fn session(trace: &str, policy: &str, budget: BudgetLabel, turns: Vec<TurnResult>) -> SessionResult {
    let (trace, policy) = (trace.to_owned(), policy.to_owned());
    SessionResult {
        content: format!("digest of {trace}"),
        trace,
        split: "test".into(),
        policy,
        budget,
        mode: Mode::ClosedLoop,
        tokens: 1_000,
        turns,
    }
}

fn scores(tokens: u64, kl_sum: f64, top1_agree: u64, delta_nll: f64) -> Scores {
    Scores { tokens, kl_sum, top1_agree, nll_full_sum: 20.0, nll_pruned_sum: 20.0 + delta_nll }
}

/// Two sessions under `snapkv` and under two seeds of `random`, at a quarter of the session.
pub(super) fn hand_made() -> RunResult {
    let costs = |turn: TurnResult| TurnResult {
        kv_rows_read: 300.0,
        kv_rows_full: 1_000.0,
        scoring_rows: 90.0,
        copied: 10,
        events: 2,
        score_us: 5_000,
        evicted: 40,
        freed: 30,
        peak_live: 300,
        prompt_tokens: 200,
        prefix_hit: PrefixHit { live: 90, dead: 30, miss: 80 },
        ..turn
    };
    let turn =
        |scored: Scores, argument: Scores| costs(TurnResult { scored, argument, ..Default::default() });
    let none = Scores::default();
    let snapkv = [
        session(
            "a",
            "snapkv",
            QUARTER,
            vec![
                turn(scores(5, 1.5, 4, 0.5), scores(2, 0.6, 1, 0.8)),
                turn(scores(5, 2.0, 4, 0.5), scores(2, 1.4, 1, 1.2)),
            ],
        ),
        session("b", "snapkv", QUARTER, vec![turn(scores(10, 1.5, 9, 2.0), none)]),
    ];
    let random = [("random-1", 4.0, 6.0), ("random-2", 8.0, 6.0)].map(|(policy, a, b)| {
        [
            session("a", policy, QUARTER, vec![turn(scores(10, a, 5, 6.0), scores(4, 4.0, 1, 4.0))]),
            session("b", policy, QUARTER, vec![turn(scores(10, b, 5, 6.0), none)]),
        ]
    });
    RunResult::new(info(), snapkv.into_iter().chain(random.into_iter().flatten()).collect())
}

/// Three sessions whose losses are straight lines of reads: `random` 1 − r, `snapkv` 0.1 less, `full` without loss.
/// `snapkv` reads in between the budgets of `random`.
pub(super) fn lines() -> RunResult {
    let one = |trace: &str, policy: &str, budget: &str, reads: f64, kl: f64| {
        let turn = TurnResult {
            scored: scores(10, 10.0 * kl, 5, 10.0 * kl),
            argument: scores(4, 8.0 * kl, 2, 8.0 * kl),
            kv_rows_read: 1_000.0 * reads,
            kv_rows_full: 1_000.0,
            ..Default::default()
        };
        session(trace, policy, budget.parse().unwrap(), vec![turn])
    };
    let mut sessions = Vec::new();
    for trace in ["a", "b", "c"] {
        for (budget, reads) in [("50%", 0.625), ("25%", 0.375), ("12.5%", 0.125)] {
            sessions.push(one(trace, "random", budget, reads, 1.0 - reads));
        }
        for (budget, reads) in [("50%", 0.5), ("25%", 0.25), ("12.5%", 0.1875)] {
            sessions.push(one(trace, "snapkv", budget, reads, 0.9 - reads));
        }
        sessions.push(one(trace, "full", "100%", 1.0, 0.0));
    }
    RunResult::new(info(), sessions)
}

fn row<'a>(summary: &'a Summary, policy: &str) -> &'a Row {
    summary.rows.iter().find(|row| row.policy == policy).unwrap()
}

#[track_caller]
fn near(found: f64, expected: f64) {
    assert!((found - expected).abs() < 1e-12, "{found} is not {expected}");
}

#[test]
fn a_summary_has_the_numbers_worked_out_by_hand() {
    let summary = summarise(&hand_made());
    let snapkv = row(&summary, "snapkv");
    let (all, argument) = (snapkv.all.unwrap(), snapkv.argument.unwrap());
    // Session a: 3.5 / 10; session b: 1.5 / 10. A mean over tokens or turns would differ for unequal sessions.
    near(all.kl, (0.35 + 0.15) / 2.0);
    near(all.top1, (0.8 + 0.9) / 2.0);
    near(all.delta_nll, (0.1 + 0.2) / 2.0);
    // Requests: 0.15, 0.3, 0.4; the quantile lies nine tenths of the way from the second to the third.
    near(all.kl_p95, 0.3 + 0.9 * 0.1);
    assert_eq!((all.sessions, argument.sessions), (2, 1));
    near(argument.kl, 2.0 / 4.0);
    near(argument.top1, 0.5);
    near(argument.delta_nll, 0.5);
    near(snapkv.reads_share.unwrap(), (300.0 + 90.0 + 10.0) / 1_000.0);
    near(snapkv.peak_live_share.unwrap(), 0.3);
    near(snapkv.hit_live.unwrap(), 0.45);
    near(snapkv.hit_dead.unwrap(), 0.15);
    near(snapkv.scoring_ms.unwrap(), 2.5);
    // Session a has two turns, session b one.
    near(snapkv.evicted, 60.0);
    near(snapkv.freed, 45.0);
}

#[test]
fn seeds_of_random_are_averaged_by_session_and_paired_with_it() {
    let summary = summarise(&hand_made());
    let random = row(&summary, "random");
    assert_eq!((random.sessions, random.seeds), (2, 2));
    near(random.all.unwrap().kl, (0.6 + 0.6) / 2.0);
    assert!(random.against.is_empty(), "nothing is compared with itself");
    let versus = &row(&summary, "snapkv").against[0];
    let interval = versus.kl.unwrap();
    assert_eq!((versus.baseline.as_str(), versus.sessions), ("random", 2));
    near(interval.mean, ((0.35 - 0.6) + (0.15 - 0.6)) / 2.0);
    near(interval.low, 0.15 - 0.6);
    near(interval.high, 0.35 - 0.6);
    assert!(interval.excludes_zero() && versus.argument_kl.is_none());
}

#[test]
fn any_policy_can_be_the_baseline_and_others_are_not_needed() {
    let options = Options { baselines: vec!["snapkv".into(), "h2o".into()], resamples: 100 };
    let summary = summarise_with(&hand_made(), &options);
    let against = &row(&summary, "random").against;
    assert_eq!(against.len(), 1);
    near(against[0].kl.unwrap().mean, 0.35);
    assert!(summary.refused.iter().any(|refused| refused.reason.contains("no results of \"h2o\"")));
}

#[test]
fn splits_and_modes_and_budgets_are_never_mixed() {
    let mut run = lines();
    run.sessions[0].split = "dev".into();
    run.sessions[1].mode = Mode::OpenLoop;
    let summary = summarise_with(&run, &Options { resamples: 10, ..Options::default() });
    let sessions = |row: &&Row| (row.policy == "random").then_some(row.sessions);
    assert_eq!(summary.rows.iter().filter_map(|row| sessions(&row)).collect::<Vec<_>>(), [1, 1, 2, 2, 3]);
    let order: Vec<String> = summary.rows.iter().map(|row| row.budget.to_string()).collect();
    assert_eq!(order[2..], ["100%", "50%", "50%", "25%", "25%", "12.5%", "12.5%"]);
}

#[test]
fn at_equal_reads_a_line_is_read_off_exactly() {
    for (policy, baseline, expected) in [("snapkv", "random", -0.1), ("random", "snapkv", 0.1)] {
        let found = equal_reads(&lines(), policy, baseline, Mode::ClosedLoop).unwrap();
        assert_eq!((found.all.sessions, found.all.left_out), (3, 0));
        let quarter = found.budgets.iter().find(|at| at.budget == QUARTER).unwrap();
        near(quarter.all.difference.unwrap().mean, expected);
    }
    let found = equal_reads(&lines(), "snapkv", "random", Mode::ClosedLoop).unwrap();
    let difference = found.all.difference.unwrap();
    for bound in [difference.mean, difference.low, difference.high] {
        near(bound, -0.1);
    }
    near(found.argument.unwrap().difference.unwrap().mean, -0.2);
    near(found.all.reads_share, (0.5 + 0.25 + 0.1875) / 3.0);
    near(found.all.widest_gap, 0.25);
    assert_eq!(
        found.budgets.iter().map(|at| at.budget.to_string()).collect::<Vec<_>>(),
        ["50%", "25%", "12.5%"]
    );
}

#[test]
fn full_ends_every_line_but_no_line_is_continued() {
    let mut run = lines();
    let beyond = |session: &mut SessionResult| session.turns[0].kv_rows_read = 800.0;
    run.sessions.iter_mut().filter(|s| s.policy == "snapkv" && s.budget != QUARTER).for_each(beyond);
    let found = equal_reads(&run, "snapkv", "random", Mode::ClosedLoop).unwrap();
    let half = found.budgets.iter().find(|at| at.budget.to_string() == "50%").unwrap();
    // Between random at reads 0.625, KL 0.375, and full at 1, 0.
    near(half.all.baseline_kl, 0.2);
    run.sessions.retain(|session| session.policy != "full");
    let found = equal_reads(&run, "snapkv", "random", Mode::ClosedLoop).unwrap();
    assert_eq!(found.budgets.iter().map(|at| at.budget).collect::<Vec<_>>(), [QUARTER]);
    assert_eq!(
        (found.all.sessions, found.all.left_out),
        (3, 0),
        "each session has one budget in the overlap"
    );
    for session in run.sessions.iter_mut().filter(|s| s.policy == "snapkv" && s.trace == "a") {
        session.turns[0].kv_rows_read = 1.0;
    }
    let found = equal_reads(&run, "snapkv", "random", Mode::ClosedLoop).unwrap();
    assert_eq!((found.all.sessions, found.all.left_out), (2, 1));
    assert_eq!((found.budgets[0].all.sessions, found.budgets[0].all.left_out), (2, 1));
}

#[test]
fn comparisons_that_would_mislead_are_refused() {
    let compare = |run: &RunResult, policy: &str| equal_reads(run, policy, "random", Mode::ClosedLoop);
    let mut run = lines();
    assert!(matches!(compare(&run, "h2o"), Err(CompareError::NoResults { .. })));
    let open = equal_reads(&run, "snapkv", "random", Mode::OpenLoop);
    assert!(matches!(open, Err(CompareError::NoResults { .. })));
    run.sessions[0].split = "dev".into();
    assert!(matches!(compare(&run, "snapkv"), Err(CompareError::SeveralSplits { .. })));
    assert!(compare(&run.of_split("test"), "snapkv").is_ok());
    let mut apart = lines();
    apart.sessions.iter_mut().filter(|s| s.policy == "snapkv").for_each(|s| s.trace.push('x'));
    assert!(matches!(compare(&apart, "snapkv"), Err(CompareError::NoCommonSession { .. })));
    let mut cheap = lines();
    let snapkv = cheap.sessions.iter_mut().filter(|s| s.policy == "snapkv");
    snapkv.for_each(|session| session.turns[0].kv_rows_read = 1.0);
    assert!(matches!(compare(&cheap, "snapkv"), Err(CompareError::NoOverlap { sessions: 3, .. })));
}

#[test]
fn a_summary_in_json_reads_back() {
    let summary = summarise_with(&lines(), &Options { resamples: 50, ..Options::default() });
    let text = json(&summary);
    assert!(text.contains("\"budget\": \"12.5%\"") && text.contains("\"difference\""), "{text}");
    let back: Summary = serde_json::from_str(&text).unwrap();
    assert_eq!(back.rows.len(), summary.rows.len());
    assert_eq!(back.equal_reads.len(), 2);
}

/// Whether every tag of a document is closed in order, attributes are quoted and no bare `<` or `&` stands in text.
pub(super) fn well_formed(document: &str) -> Result<(), String> {
    let mut open: Vec<&str> = Vec::new();
    let mut rest = document;
    while let Some(at) = rest.find('<') {
        entities(&rest[..at])?;
        let end = rest[at..].find('>').ok_or("a tag has no end")? + at;
        let tag = &rest[at + 1..end];
        rest = &rest[end + 1..];
        if let Some(name) = tag.strip_prefix('/') {
            let opened = open.pop();
            if opened != Some(name) {
                return Err(format!("</{name}> closes {opened:?}"));
            }
            continue;
        }
        let (body, closed) = tag.strip_suffix('/').map_or((tag, false), |body| (body, true));
        let name = body.split_whitespace().next().ok_or("a tag has no name")?;
        if !name.bytes().all(|byte| byte.is_ascii_alphanumeric()) || body.contains('<') {
            return Err(format!("{name:?} is no name"));
        }
        entities(body)?;
        // Outside quotes there are only names of attributes, each followed by `=` and a quoted value.
        let parts: Vec<&str> = body[name.len()..].split('"').collect();
        let names_stand = parts.iter().step_by(2).enumerate().all(|(index, part)| {
            if index * 2 + 1 < parts.len() { part.ends_with('=') } else { part.trim().is_empty() }
        });
        if parts.len().is_multiple_of(2) || !names_stand {
            return Err(format!("attributes of <{body}> are not quoted"));
        }
        if !closed {
            open.push(name);
        }
        if open.is_empty() && !rest.trim().is_empty() {
            return Err("there is more than one root".into());
        }
    }
    entities(rest)?;
    if open.is_empty() { Ok(()) } else { Err(format!("{open:?} are not closed")) }
}

fn entities(text: &str) -> Result<(), String> {
    for (at, _) in text.match_indices('&') {
        let known = ["&amp;", "&lt;", "&gt;", "&quot;", "&#39;"];
        if !known.iter().any(|entity| text[at..].starts_with(entity)) {
            return Err(format!("a bare & in {text:?}"));
        }
    }
    Ok(())
}

#[test]
fn the_check_of_xml_finds_what_is_wrong() {
    assert_eq!(well_formed("<a b=\"c\"><d/>text &amp; more</a>\n"), Ok(()));
    for wrong in ["<a>", "<a></b>", "<a b=c></a>", "<a b=\"c></a>", "<a>&</a>", "<a/><b/>", "<a><b></a></b>"]
    {
        assert!(well_formed(wrong).is_err(), "{wrong}");
    }
}
