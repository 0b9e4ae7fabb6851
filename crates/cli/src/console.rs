//! What people read: text on standard output, and numbers in a form that is easy to take in.
//!
//! A reader that goes away (`hawser status | head`) is never an error here, and never a panic.

use std::fmt::Display;
use std::io::{IsTerminal, Write};
use std::time::Duration;

pub use hawser_common::numbers::{count, counted};

/// One line on standard output.
pub fn line(text: impl Display) {
    // A closed pipe means that nobody reads on; there is nobody to tell.
    let _ = writeln!(std::io::stdout(), "{text}");
}

/// Text without a line end, shown at once.
pub fn piece(text: impl Display) {
    let mut out = std::io::stdout();
    let _ = write!(out, "{text}");
    let _ = out.flush();
}

/// One line on standard error.
pub fn error(text: impl Display) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// Whether people are on the other side of standard output.
pub fn interactive() -> bool {
    std::io::stdout().is_terminal()
}

/// Less prominent, where the output is a terminal.
pub fn dim(text: impl Display) -> String {
    styled("2", text)
}

/// More prominent, where the output is a terminal.
pub fn bold(text: impl Display) -> String {
    styled("1", text)
}

fn styled(code: &str, text: impl Display) -> String {
    if interactive() { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_string() }
}

/// Bytes in decimal units, as disks are sold.
#[allow(clippy::cast_precision_loss, reason = "three digits are shown")]
pub fn bytes(number: u64) -> String {
    let value = number as f64;
    match number {
        0..1_000 => format!("{number} B"),
        1_000..1_000_000 => format!("{:.1} kB", value / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} MB", value / 1e6),
        _ => format!("{:.2} GB", value / 1e9),
    }
}

/// A duration with the precision that people need.
pub fn time(duration: Duration) -> String {
    let seconds = duration.as_secs_f64();
    if seconds < 0.001 {
        format!("{:.0} µs", seconds * 1e6)
    } else if seconds < 0.9995 {
        format!("{:.0} ms", seconds * 1e3)
    } else if seconds < 100.0 {
        format!("{seconds:.2} s")
    } else {
        format!("{seconds:.0} s")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_easy_to_read() {
        assert_eq!([bytes(12), bytes(98_362_432), bytes(2_500_000_000)], ["12 B", "98.4 MB", "2.50 GB"]);
        let shown = [(7, "7 µs"), (250_000, "250 ms"), (1_500_000, "1.50 s"), (125_000_000, "125 s")];
        for (micros, text) in shown {
            assert_eq!(time(Duration::from_micros(micros)), text);
        }
    }
}
