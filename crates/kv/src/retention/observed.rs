//! Which rows' queries are remembered, by what decides.

use std::ops::Range;

use hawser_common::retention::{Policy, Retention};

use super::Evidence;
use super::marks::{Marks, Origin};
use super::revive::revival_evidence;

/// Of some consecutive positions, those whose queries count.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observed {
    /// Averaged: the request's query span.
    pub span: Range<u32>,
    /// Kept one by one.
    pub window: Range<u32>,
    /// The window begins here: what it held before is forgotten.
    pub restart: bool,
    /// Rows whose attention counts: runs, ascending.
    pub mass: Vec<Range<u32>>,
}

/// Rows of a run whose attention counts. Neighbours are cheap together: they share what they read.
const MASS_RUN: u32 = 16;

impl Observed {
    /// What counts of the positions `rows`, whose marks are known, while a request asks `span`.
    #[must_use]
    pub fn of(retention: &Retention, marks: &Marks, span: &Range<u32>, rows: &Range<u32>) -> Self {
        let window_rows = retention.window_rows;
        let last = |range: Range<u32>| range.end.saturating_sub(window_rows).max(range.start)..range.end;
        let (window, restart) = match retention.policy {
            // The end of the prompt, also where the span is shorter.
            Policy::SnapKv => (both(&last(0..span.end), rows), false),
            Policy::AnswerRows => last_answer(marks, rows).map_or((0..0, false), |answer| {
                let begins = rows.contains(&answer.start);
                (last(both(&answer, rows)), begins)
            }),
            _ if retention.revive && revival_evidence(retention.policy) == Evidence::Window => {
                (both(&last(0..span.end), rows), false)
            }
            _ => (0..0, false),
        };
        let mass = match retention.policy {
            Policy::H2o => mass_runs(retention.mass_every, span, rows),
            _ => Vec::new(),
        };
        Self { span: both(span, rows), window, restart, mass }
    }
}

/// By position alone, so that a session's chunks do not matter: the last run of each stretch, and the end of the span.
fn mass_runs(every: u32, span: &Range<u32>, rows: &Range<u32>) -> Vec<Range<u32>> {
    let stretch = MASS_RUN * every.max(1);
    let first = rows.start / stretch;
    let ends = (first..=rows.end / stretch).map(|index| (index + 1) * stretch);
    let last = span.end.saturating_sub(MASS_RUN)..span.end;
    let runs = ends.map(|end| end - MASS_RUN..end).chain(std::iter::once(last));
    let mut runs: Vec<Range<u32>> = runs.map(|run| both(&run, rows)).filter(|run| !run.is_empty()).collect();
    runs.sort_unstable_by_key(|run| run.start);
    let mut merged: Vec<Range<u32>> = Vec::with_capacity(runs.len());
    for run in runs {
        match merged.last_mut().filter(|last| run.start <= last.end) {
            Some(last) => last.end = last.end.max(run.end),
            None => merged.push(run),
        }
    }
    merged
}

/// The run of the agent's own positions that is the last to reach into `rows`.
fn last_answer(marks: &Marks, rows: &Range<u32>) -> Option<Range<u32>> {
    let mut runs = marks.runs().rev().skip_while(|(run, ..)| run.start >= rows.end);
    let answer = runs.find(|(_, origin, _)| *origin == Origin::Assistant)?.0;
    (answer.end > rows.start).then_some(answer)
}

/// What two ranges have in common; empty where that is nothing.
fn both(a: &Range<u32>, b: &Range<u32>) -> Range<u32> {
    let start = a.start.max(b.start);
    start..a.end.min(b.end).max(start)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mass_comes_from_runs_at_fixed_positions_and_from_the_end_of_the_span() {
        let retention = |mass_every| Retention { policy: Policy::H2o, mass_every, ..Retention::default() };
        let runs = |every, rows| Observed::of(&retention(every), &Marks::default(), &(100..200), &rows).mass;
        assert_eq!(runs(1, 3..250), vec![3..250], "every row");
        assert_eq!(runs(8, 0..300), vec![112..128, 184..200, 240..256]);
        let cut = [runs(8, 0..120), runs(8, 120..190), runs(8, 190..300)].concat();
        assert_eq!(cut, vec![112..120, 120..128, 184..190, 190..200, 240..256], "whatever the chunks");
        assert_eq!(runs(8, 128..129), vec![]);
    }

    #[test]
    fn the_end_of_the_span_and_the_last_answer_are_windows() {
        let mut marks = Marks::default();
        for (end, origin) in
            [(10, Origin::User), (20, Origin::Assistant), (30, Origin::Tool), (34, Origin::Assistant)]
        {
            marks.extend_to(end, origin, 0);
        }
        let observed = |policy, rows| {
            let retention = Retention { policy, window_rows: 4, ..Retention::default() };
            Observed::of(&retention, &marks, &(20..30), &rows)
        };
        let all = observed(Policy::SnapKv, 0..34);
        assert_eq!((all.span, all.window, all.restart), (20..30, 26..30, false));
        assert_eq!(observed(Policy::SnapKv, 0..28).window, 26..28);
        let wide = Retention { policy: Policy::SnapKv, window_rows: 16, ..Retention::default() };
        assert_eq!(Observed::of(&wide, &marks, &(20..30), &(0..34)).window, 14..30, "longer than the span");
        let first = observed(Policy::AnswerRows, 0..22);
        assert_eq!((first.window, first.restart), (16..20, true));
        let later = observed(Policy::AnswerRows, 15..22);
        assert_eq!((later.window, later.restart), (16..20, false), "the answer began before");
        assert!(observed(Policy::AnswerRows, 22..28).window.is_empty());
        assert_eq!(observed(Policy::AnswerRows, 22..34).window, 30..34);
        assert_eq!(observed(Policy::AnswerRows, 33..34).window, 33..34);
    }
}
