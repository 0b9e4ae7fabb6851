//! What a plot is drawn with: colours, dashes and marks of policies, rules and text.
//!
//! Text is escaped here, so nothing above this file can forget it.

use super::form::xml_text;

pub(super) const INK: &str = "#1f2328";
pub(super) const FAINT: &str = "#59636e";
pub(super) const GRID: &str = "#e4e7eb";
/// The line that others must beat stands back.
const REFERENCE: &str = "#6e7781";
/// Okabe and Ito's colours, which people with any colour vision tell apart, without black and the yellow that
/// vanishes on white; the light ones a little darker, to stand out from white.
const COLOURS: [&str; 6] = ["#0072b2", "#d55e00", "#008f68", "#b8578f", "#c77f00", "#3a9ad9"];
const DASHES: [&str; 3] = ["", "7 3", "2 3"];

/// How each policy is drawn, the same in every panel.
pub(super) struct Styles<'a> {
    pub(super) names: Vec<&'a str>,
}

pub(super) struct Style {
    pub(super) colour: &'static str,
    pub(super) dash: &'static str,
    pub(super) mark: usize,
}

impl Styles<'_> {
    pub(super) fn of(&self, policy: &str) -> Style {
        match self.names.iter().position(|name| *name == policy) {
            Some(index) => Style {
                colour: COLOURS[index % COLOURS.len()],
                dash: DASHES[index / COLOURS.len() % DASHES.len()],
                mark: index,
            },
            None => Style { colour: REFERENCE, dash: "5 4", mark: 0 },
        }
    }
}

/// A circle, a square, a triangle or a diamond around a point.
pub(super) fn mark(kind: usize, (x, y): (f64, f64)) -> String {
    match kind % 4 {
        0 => format!("M{:.1} {y:.1}a4 4 0 1 0 8 0a4 4 0 1 0 -8 0z", x - 4.0),
        1 => format!("M{:.1} {:.1}h7v7h-7z", x - 3.5, y - 3.5),
        2 => format!("M{x:.1} {:.1}l4.6 8h-9.2z", y - 5.0),
        _ => format!("M{x:.1} {:.1}l5 5l-5 5l-5 -5z", y - 5.0),
    }
}

pub(super) fn rule(from: (f64, f64), to: (f64, f64), colour: &str) -> String {
    format!(
        "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" stroke=\"{colour}\"/>\n",
        from.0, from.1, to.0, to.1
    )
}

pub(super) fn text(x: f64, y: f64, attributes: &str, content: &str) -> String {
    format!("<text x=\"{x:.1}\" y=\"{y:.1}\" {attributes}>{}</text>\n", xml_text(content))
}
