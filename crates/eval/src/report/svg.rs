//! The summary as a picture: loss against reads, one line for each policy through its budgets.
//!
//! One self-contained SVG: no script, no style sheet, no font, nothing fetched. Every line has its name at its end, its
//! own mark and, among many, its own dashes, so that no line is told by colour alone.

use std::collections::BTreeSet;

use hawser_common::numbers::counted;

use super::budget::BudgetLabel;
use super::form::{nats, percent, xml_text};
use super::ink::{FAINT, GRID, INK, Style, Styles, mark, rule, text};
use super::plot::{Scale, log_ticks, share_ticks, spread};
use super::summary::{Row, Summary};

const WIDTH_PX: f64 = 820.0;
const HEAD_PX: f64 = 66.0;
const PANEL_PX: f64 = 430.0;
/// Left, right, top and bottom of a panel's plot, from the panel's corner. Names of lines stand right of it.
const LEFT_PX: f64 = 72.0;
const RIGHT_PX: f64 = 640.0;
const TOP_PX: f64 = 40.0;
const BOTTOM_PX: f64 = 370.0;
const LABEL_GAP_PX: f64 = 15.0;
const LABEL_CHARS: usize = 21;

/// The plot of every split and mode that the summary has, one below the other.
///
/// Points without reads or with a KL of 0, such as those of `full`, have no place on the axes and are left out.
#[must_use]
pub fn svg(summary: &Summary) -> String {
    let names: BTreeSet<&str> =
        summary.rows.iter().filter(|row| point(row).is_some()).map(|row| row.policy.as_str()).collect();
    let styles = Styles { names: names.into_iter().filter(|name| *name != "random").collect() };
    let panels: Vec<&[Row]> =
        summary.rows.chunk_by(|a, b| (&a.split, a.mode) == (&b.split, b.mode)).collect();
    let height = HEAD_PX + PANEL_PX * panels.len().max(1) as f64;
    let mut picture = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH_PX} {height}\" width=\"{WIDTH_PX}\" \
         height=\"{height}\" font-family=\"system-ui, sans-serif\" font-size=\"12\" role=\"img\">\n\
         <title>What pruning loses against what it reads</title>\n\
         <rect width=\"{WIDTH_PX}\" height=\"{height}\" fill=\"#ffffff\"/>\n"
    );
    let under = format!("{} · lower and further left is better", summary.run.model);
    picture.push_str(&text(
        16.0,
        28.0,
        &format!("fill=\"{INK}\" font-size=\"17\" font-weight=\"600\""),
        HEADING,
    ));
    picture.push_str(&text(16.0, 48.0, &format!("fill=\"{FAINT}\""), &under));
    if panels.is_empty() {
        picture.push_str(&text(16.0, HEAD_PX + 24.0, &format!("fill=\"{INK}\""), "There are no results."));
    }
    for (index, rows) in panels.into_iter().enumerate() {
        picture.push_str(&format!("<g transform=\"translate(0 {})\">\n", HEAD_PX + PANEL_PX * index as f64));
        picture.push_str(&panel(rows, &styles));
        picture.push_str("</g>\n");
    }
    picture.push_str("</svg>\n");
    picture
}

const HEADING: &str = "Loss to the full cache against rows read";

/// One policy at one budget, where it has a place on the axes.
struct Point {
    budget: BudgetLabel,
    /// Share of the full cache's reads.
    reads: f64,
    /// In nats, above 0.
    kl: f64,
}

fn point(row: &Row) -> Option<Point> {
    let kl = row.all?.kl;
    (kl > 0.0).then_some(Point { budget: row.budget, reads: row.reads_share?, kl })
}

fn panel(rows: &[Row], styles: &Styles<'_>) -> String {
    let lines = lines_of(rows);
    let all = || lines.iter().flat_map(|line| &line.points);
    let x_ticks = share_ticks(all().map(|point| point.reads).fold(0.0, f64::max));
    let (y_span, y_ticks) = log_ticks(&all().map(|point| point.kl).collect::<Vec<_>>());
    let scales = Scales {
        x: Scale::new((0.0, x_ticks.last().copied().unwrap_or(1.0)), (LEFT_PX, RIGHT_PX)),
        log_y: Scale::new((y_span.0.log10(), y_span.1.log10()), (BOTTOM_PX, TOP_PX)),
    };
    let sessions = rows.iter().map(|row| row.sessions).max().unwrap_or(0);
    let title = format!("{}, {}, {}", rows[0].split, rows[0].mode, counted(sessions as u64, "session"));
    let mut picture = text(LEFT_PX, 22.0, &format!("fill=\"{INK}\" font-weight=\"600\""), &title);
    picture.push_str(&axes(&scales, &x_ticks, &y_ticks));
    lines.iter().for_each(|line| picture.push_str(&draw_line(line, &scales, &styles.of(line.policy))));
    picture.push_str(&labels(&lines, &scales, styles));
    picture
}

/// A policy's budgets, from the fewest reads to the most.
struct Line<'a> {
    policy: &'a str,
    points: Vec<Point>,
}

/// Every policy that has points, in the order of the rows.
fn lines_of(rows: &[Row]) -> Vec<Line<'_>> {
    let mut lines: Vec<Line<'_>> = Vec::new();
    for row in rows {
        let Some(point) = point(row) else { continue };
        match lines.iter_mut().find(|line| line.policy == row.policy) {
            Some(line) => line.points.push(point),
            None => lines.push(Line { policy: &row.policy, points: vec![point] }),
        }
    }
    for line in &mut lines {
        line.points.sort_by(|a, b| a.reads.total_cmp(&b.reads));
    }
    lines
}

/// Where values stand in a panel.
struct Scales {
    x: Scale,
    /// Of the logarithm to base 10.
    log_y: Scale,
}

impl Scales {
    fn px(&self, point: &Point) -> (f64, f64) {
        (self.x.px(point.reads), self.log_y.px(point.kl.log10()))
    }
}

fn axes(scales: &Scales, x_ticks: &[f64], y_ticks: &[f64]) -> String {
    let mut picture = String::new();
    for tick in y_ticks {
        let at = scales.log_y.px(tick.log10());
        picture.push_str(&rule((LEFT_PX, at), (RIGHT_PX, at), GRID));
        picture.push_str(&text(
            LEFT_PX - 8.0,
            at + 4.0,
            &format!("fill=\"{FAINT}\" text-anchor=\"end\""),
            &tick_nats(*tick),
        ));
    }
    for tick in x_ticks {
        let at = scales.x.px(*tick);
        picture.push_str(&rule((at, BOTTOM_PX), (at, BOTTOM_PX + 5.0), INK));
        let share = format!("{:.0} %", tick * 100.0);
        picture.push_str(&text(
            at,
            BOTTOM_PX + 19.0,
            &format!("fill=\"{FAINT}\" text-anchor=\"middle\""),
            &share,
        ));
    }
    picture.push_str(&rule((LEFT_PX, BOTTOM_PX), (RIGHT_PX, BOTTOM_PX), INK));
    let middle = (LEFT_PX + RIGHT_PX) / 2.0;
    let name = format!("fill=\"{INK}\" text-anchor=\"middle\"");
    picture.push_str(&text(middle, BOTTOM_PX + 40.0, &name, "bytes read, share of the full cache's"));
    let turned = format!("{name} transform=\"rotate(-90 20 {0})\"", (TOP_PX + BOTTOM_PX) / 2.0);
    picture.push_str(&text(20.0, (TOP_PX + BOTTOM_PX) / 2.0, &turned, "KL per token, nats (log)"));
    picture
}

/// A tick without the zeros that three digits would bring.
fn tick_nats(tick: f64) -> String {
    if (0.000_099..1e6).contains(&tick) {
        let digits = (-tick.log10()).ceil().max(0.0) as usize;
        format!("{tick:.digits$}")
    } else {
        format!("{tick:.0e}")
    }
}

fn draw_line(line: &Line<'_>, scales: &Scales, style: &Style) -> String {
    let place = |point: &Point| {
        let (x, y) = scales.px(point);
        format!("{x:.1},{y:.1}")
    };
    let path: Vec<String> = line.points.iter().map(place).collect();
    let dash =
        if style.dash.is_empty() { String::new() } else { format!(" stroke-dasharray=\"{}\"", style.dash) };
    let mut picture = format!(
        "<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\"{dash}/>\n",
        path.join(" "),
        style.colour
    );
    for point in &line.points {
        let (kl, reads) = (nats(point.kl), percent(point.reads));
        let shown = format!("{} at {}: KL {kl}, reads {reads}", line.policy, point.budget);
        picture.push_str(&format!(
            "<path d=\"{}\" fill=\"{}\" stroke=\"#ffffff\"><title>{}</title></path>\n",
            mark(style.mark, scales.px(point)),
            style.colour,
            xml_text(&shown)
        ));
    }
    picture
}

/// The names of the lines, right of the plot, each tied to the right end of its line.
fn labels(lines: &[Line<'_>], scales: &Scales, styles: &Styles<'_>) -> String {
    let ends: Vec<(&str, f64, f64)> = lines
        .iter()
        .filter_map(|line| {
            let (x, y) = scales.px(line.points.last()?);
            Some((line.policy, x, y))
        })
        .collect();
    let wanted: Vec<f64> = ends.iter().map(|(_, _, y)| *y).collect();
    let heights = spread(&wanted, LABEL_GAP_PX, (TOP_PX, BOTTOM_PX - 6.0));
    let mut picture = String::new();
    for ((policy, x, y), height) in ends.into_iter().zip(heights) {
        let style = styles.of(policy);
        picture.push_str(&format!(
            "<polyline points=\"{:.1},{y:.1} {:.1},{height:.1} {:.1},{height:.1}\" fill=\"none\" stroke=\"{}\" \
             stroke-opacity=\"0.45\"/>\n",
            x + 6.0,
            RIGHT_PX + 8.0,
            RIGHT_PX + 14.0,
            style.colour
        ));
        picture.push_str(&format!(
            "<path d=\"{}\" fill=\"{}\"/>\n",
            mark(style.mark, (RIGHT_PX + 20.0, height)),
            style.colour
        ));
        picture.push_str(&text(
            RIGHT_PX + 30.0,
            height + 4.0,
            &format!("fill=\"{INK}\""),
            &shortened(policy),
        ));
    }
    picture
}

/// A name as long as there is room for.
fn shortened(name: &str) -> String {
    match name.char_indices().nth(LABEL_CHARS) {
        Some((end, _)) => format!("{}…", &name[..end]),
        None => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::summary::summarise;
    use super::super::tests::{hand_made, lines, well_formed};
    use super::*;

    #[test]
    fn a_plot_is_well_formed_and_fetches_nothing() {
        for run in [hand_made(), lines(), lines().of_split("no such split")] {
            let picture = svg(&summarise(&run));
            well_formed(&picture).unwrap_or_else(|error| panic!("{error} in\n{picture}"));
            let outside = picture.replace("http://www.w3.org/2000/svg", "");
            for part in ["http", "<script", "@import", "url(", "href"] {
                assert!(!outside.contains(part), "{part:?} is in\n{picture}");
            }
        }
    }

    #[test]
    fn every_policy_has_a_named_line_through_its_budgets() {
        let picture = svg(&summarise(&lines()));
        for policy in ["random", "snapkv"] {
            assert!(picture.contains(&format!(">{policy}</text>")), "{picture}");
            assert_eq!(picture.matches(&format!("<title>{policy} at ")).count(), 3, "{picture}");
        }
        assert!(!picture.contains(">full</text>"), "a loss of 0 has no place on a logarithmic axis");
        assert!(picture.contains("snapkv at 25%: KL 0.650, reads 25.0 %"), "{picture}");
        for part in ["KL per token, nats (log)", "bytes read, share of the full cache", "test, closed loop"] {
            assert!(picture.contains(part), "{part:?} is not in\n{picture}");
        }
    }

    #[test]
    fn a_lower_loss_stands_lower_and_more_reads_stand_further_right() {
        let rows = summarise(&lines()).rows;
        let rows: Vec<Row> = rows.into_iter().filter(|row| row.policy == "snapkv").collect();
        let picture = panel(&rows, &Styles { names: vec!["snapkv"] });
        let (_, points) = picture.split_once("<polyline points=\"").unwrap();
        let points = points.split('"').next().unwrap().split(' ');
        let points: Vec<(f64, f64)> = points
            .map(|point| point.split_once(',').unwrap())
            .map(|(x, y)| (x.parse().unwrap(), y.parse().unwrap()))
            .collect();
        assert!(points.len() == 3 && points.windows(2).all(|pair| pair[0].0 < pair[1].0), "{points:?}");
        assert!(points.windows(2).all(|pair| pair[0].1 < pair[1].1), "{points:?}");
    }

    #[test]
    fn ticks_have_no_needless_zeros() {
        let shown =
            [(0.02, "0.02"), (0.1, "0.1"), (1.0, "1"), (0.0005, "0.0005"), (20.0, "20"), (1e-6, "1e-6")];
        for (tick, text) in shown {
            assert_eq!(tick_nats(tick), text);
        }
    }

    #[test]
    fn long_names_are_shortened_between_characters() {
        assert_eq!(shortened("intent-memory-revive"), "intent-memory-revive");
        assert_eq!(shortened(&"é".repeat(30)), format!("{}…", "é".repeat(21)));
    }

    #[test]
    fn names_from_outside_are_text() {
        let mut run = lines();
        run.run.model = "<script>alert(1)</script> & \"co\"".into();
        for session in &mut run.sessions {
            session.policy = session.policy.replace("snapkv", "a<b>&\"c\u{b}");
            session.split = "</svg><script>".into();
        }
        let picture = svg(&summarise(&run));
        well_formed(&picture).unwrap_or_else(|error| panic!("{error} in\n{picture}"));
        assert!(!picture.contains("<script") && picture.contains("a&lt;b&gt;&amp;&quot;c "), "{picture}");
    }
}
