//! How numbers and names are written in reports, and how text from outside is kept from becoming markup.

use crate::stats::Interval;

/// A loss in nats, with three digits that count: `0.251`, `1.03`, `0.000420`.
pub(super) fn nats(value: f64) -> String {
    fixed(value, decimals(value))
}

/// The same with its sign.
pub(super) fn signed_nats(value: f64) -> String {
    signed(value, decimals(value))
}

/// A mean with its bounds, all to the same digit: `−0.12 [−0.20, −0.05]`.
pub(super) fn interval(interval: &Interval) -> String {
    let values = [interval.mean, interval.low, interval.high];
    let digits = decimals(values.into_iter().map(f64::abs).fold(0.0, f64::max));
    let [mean, low, high] = values.map(|value| signed(value, digits));
    format!("{mean} [{low}, {high}]")
}

/// Digits after the point that leave three that count, at most 6.
fn decimals(value: f64) -> usize {
    if value == 0.0 { 0 } else { (2.0 - value.abs().log10().floor()).clamp(0.0, 6.0) as usize }
}

fn fixed(value: f64, decimals: usize) -> String {
    format!("{value:.decimals$}").replace('-', "−")
}

fn signed(value: f64, decimals: usize) -> String {
    let text = fixed(value, decimals);
    if value > 0.0 { format!("+{text}") } else { text }
}

/// A share as `31.4 %`.
pub(super) fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

/// What stands where there is no number.
pub(super) const NONE: &str = "–";

/// A number where there is one.
pub(super) fn or_none(value: Option<f64>, write: impl Fn(f64) -> String) -> String {
    value.map_or_else(|| NONE.to_owned(), write)
}

/// Seconds since 1970 as a day, in UTC: `2026-05-03`.
pub(super) fn utc_day(unix_s: u64) -> String {
    // Days from the civil calendar: eras of 400 years that begin on 1 March, so that leap days come last.
    let days = unix_s / 86_400 + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}

/// Text in a cell of a Markdown table or on a line of its own.
pub(super) fn markdown_text(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '|' | '\\' | '`' | '*' | '_' | '[' | ']' | '#' => escaped.extend(['\\', character]),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '&' => escaped.push_str("&amp;"),
            control if control.is_control() => escaped.push(' '),
            other => escaped.push(other),
        }
    }
    escaped
}

/// Text between tags or in an attribute of XML. Characters that XML cannot hold become spaces.
pub(super) fn xml_text(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            '\u{fffe}' | '\u{ffff}' => escaped.push(' '),
            control if control.is_control() => escaped.push(' '),
            other => escaped.push(other),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_show_three_digits_that_count() {
        let shown = [(0.0, "0"), (0.2512, "0.251"), (1.026, "1.03"), (0.000_42, "0.000420"), (12.34, "12.3")];
        for (value, text) in shown {
            assert_eq!(nats(value), text);
        }
        assert_eq!([nats(1e-8), nats(123_456.7)], ["0.000000", "123457"]);
        assert_eq!([signed_nats(0.5), signed_nats(-0.5), signed_nats(0.0)], ["+0.500", "−0.500", "0"]);
        let uneven = Interval { mean: -0.1, low: -0.2, high: 0.0051 };
        assert_eq!(interval(&uneven), "−0.100 [−0.200, +0.005]");
        assert_eq!(percent(0.3141), "31.4 %");
    }

    #[test]
    fn days_are_those_of_the_calendar() {
        let known = [
            (0, "1970-01-01"),
            (951_782_400, "2000-02-29"),
            (1_709_164_800, "2024-02-29"),
            (1_735_689_599, "2024-12-31"),
            (4_107_542_400, "2100-03-01"),
        ];
        for (unix_s, day) in known {
            assert_eq!(utc_day(unix_s), day);
        }
    }

    #[test]
    fn text_from_outside_is_no_markup() {
        assert_eq!(markdown_text("a|b\n<b> *c*"), "a\\|b &lt;b&gt; \\*c\\*");
        assert_eq!(xml_text("<a b=\"c\">&'\u{1}\u{ffff}"), "&lt;a b=&quot;c&quot;&gt;&amp;&#39;  ");
    }
}
