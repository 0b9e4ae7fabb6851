//! What a message tells its reader to do.
//!
//! A message of ours ends with its hint: a clause after a semicolon, such as "; try again". Promises that an error which
//! quotes another one, and has a hint of its own, can leave the other's away, so that each is told once.

/// How hints begin.
const VERBS: [&str; 7] = ["try", "send", "resend", "start", "close", "open", "wait"];

/// `message` without the hint at its end.
#[must_use]
pub fn without_hint(message: &str) -> &str {
    split(message).0
}

/// Whether `message` ends with a hint.
#[must_use]
pub fn has_hint(message: &str) -> bool {
    split(message).1.is_some()
}

fn split(message: &str) -> (&str, Option<&str>) {
    let hint = |clause: &str| VERBS.contains(&clause.split([' ', ',']).next().unwrap_or_default());
    match message.rsplit_once("; ") {
        Some((said, clause)) if hint(clause) => (said, Some(clause)),
        _ => (message, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hint_is_the_last_clause_and_says_what_to_do() {
        for (message, rest) in [
            ("no group takes new sessions now; try again", "no group takes new sessions now"),
            ("the owner is silent; try again, its lease ends soon", "the owner is silent"),
            ("no place; 3 wait; try again later", "no place; 3 wait"),
            ("it broke; resend the whole conversation", "it broke"),
        ] {
            assert_eq!((without_hint(message), has_hint(message)), (rest, true));
        }
        for message in ["the lease ended; it serves nothing", "a; tryst", "; ", "", "try again"] {
            assert_eq!((without_hint(message), has_hint(message)), (message, false));
        }
    }
}
