//! Numbers as people read them: digits in groups, the noun in the right number, and times for log lines.

use std::time::Duration;

/// Milliseconds with one decimal: a field of a log line, whose name ends with `_ms`. Not to be had of `Duration`'s own
/// text, whose unit changes from line to line.
#[must_use]
pub fn millis(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e4).round() / 10.0
}

/// `12345` as `12,345`.
#[must_use]
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut grouped = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// A number with its noun, which takes an `s` unless it is one: `1 session`, `2,000 sessions`.
#[must_use]
pub fn counted(number: u64, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{} {noun}{plural}", count(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_plain_numbers_with_one_decimal() {
        let shown =
            [0, 40, 1_234, 12_345_678].map(|micros| millis(Duration::from_micros(micros)).to_string());
        assert_eq!(shown, ["0", "0", "1.2", "12345.7"]);
    }

    #[test]
    fn digits_are_grouped_and_nouns_agree() {
        let shown = [0, 999, 1_000, 1_234_567].map(count);
        assert_eq!(shown, ["0", "999", "1,000", "1,234,567"]);
        let nouns = [0, 1, 2, 1_000].map(|number| counted(number, "prune event"));
        assert_eq!(nouns, ["0 prune events", "1 prune event", "2 prune events", "1,000 prune events"]);
    }
}
