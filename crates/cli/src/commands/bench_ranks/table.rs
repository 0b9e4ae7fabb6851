//! The report as text.

use super::{Figures, RanksReport};
use crate::console::{bold, count};
use crate::table::{Align, Table};

/// Tables of decode and prefill, each way beside the two that have one rank.
pub fn text(report: &RanksReport) -> String {
    let decode = table(report, "AFTER", |way| &way.decode);
    let prefill = table(report, "TOKENS", |way| &way.prefill);
    let (decode_title, prefill_title) = (bold("decode, per step"), bold("prefill, per prompt"));
    let rounds = report.rounds;
    format!("medians of {rounds} rounds\n\n{decode_title}\n{decode}\n\n{prefill_title}\n{prefill}")
}

fn table(report: &RanksReport, length: &'static str, of: fn(&super::WayReport) -> &Vec<Figures>) -> Table {
    let (left, right) = (Align::Left, Align::Right);
    let mut table = Table::new(&[
        ("", left),
        (length, right),
        ("TOK/S", right),
        ("OF MANY", right),
        ("OF ONE", right),
        ("ACROSS", right),
        ("CALLS", right),
        ("MESSAGES", right),
        ("BYTES", right),
        ("COMPUTES (MS)", left),
    ]);
    let lengths = report.ways.first().map_or(0, |way| of(way).len());
    for index in 0..lengths {
        let speed =
            |way: usize| report.ways.get(way).map_or(f64::NAN, |way| of(way)[index].tokens_per_second);
        let (many, one) = (speed(0), speed(1));
        for way in &report.ways {
            let figures = &of(way)[index];
            let whole = |number: f64| count(number.round() as u64);
            let computing = figures.computing_seconds.iter().map(|seconds| format!("{:.2}", seconds * 1e3));
            table.row(vec![
                way.way.clone(),
                count(figures.tokens as u64),
                format!("{:.1}", figures.tokens_per_second),
                format!("{:.2}", figures.tokens_per_second / many),
                format!("{:.2}", figures.tokens_per_second / one),
                format!("{:.0} %", figures.share_across_ranks * 100.0),
                whole(figures.calls),
                whole(figures.messages),
                whole(figures.bytes),
                computing.collect::<Vec<_>>().join(" | "),
            ]);
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::bench_ranks::{WayReport, tests::figures};

    #[test]
    fn each_way_stands_beside_one_rank() {
        let way = |way: &str, speed| WayReport {
            way: way.to_owned(),
            decode: vec![figures(1_024, speed)],
            prefill: vec![figures(512, 10.0 * speed)],
        };
        let ways =
            vec![way("1 rank, 2 threads", 200.0), way("1 rank, 1 thread", 100.0), way("2 ranks", 180.0)];
        let shown = text(&RanksReport { ranks: 2, rounds: 5, ways });
        for part in ["1,024", "180.0", "0.90", "1.80", "25 %", "147,456", "4.00 | 3.00", "5 rounds"] {
            assert!(shown.contains(part), "{part:?} is not in\n{shown}");
        }
    }
}
