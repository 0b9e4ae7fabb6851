//! Which key was meant by one that does not exist.

use serde::Serialize;
use serde_json::Value;

/// Every key of a configuration, tables joined by dots.
pub(super) fn keys(defaults: &impl Serialize) -> Vec<String> {
    let mut keys = Vec::new();
    collect(&mut keys, "", &serde_json::to_value(defaults).unwrap_or_default());
    keys
}

fn collect(keys: &mut Vec<String>, prefix: &str, value: &Value) {
    match value {
        Value::Object(table) => {
            for (key, value) in table {
                let key = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
                collect(keys, &key, value);
            }
        }
        _ => keys.push(prefix.to_owned()),
    }
}

/// The key that is most like `wrong`: one that ends like it, one that goes on from it, or one with few other letters.
pub(super) fn nearest<'a>(wrong: &str, keys: &'a [String]) -> Option<&'a str> {
    let (_, name) = wrong.rsplit_once('.').unwrap_or(("", wrong));
    let ends = |key: &&String| key.ends_with(&format!(".{wrong}")) || key.rsplit('.').next() == Some(name);
    let goes_on = |key: &&String| key.starts_with(wrong);
    let close = || {
        let measured = keys.iter().map(|key| (distance(wrong, key), key));
        measured.min().filter(|(changes, _)| *changes <= 1 + name.len() / 4).map(|(_, key)| key)
    };
    let found = keys.iter().find(ends).or_else(|| keys.iter().find(goes_on)).or_else(close);
    found.map(String::as_str)
}

/// How many letters must be put in, left out or changed.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (index, letter) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = index + 1;
        for at in 1..=b.len() {
            let change = diagonal + usize::from(letter != b[at - 1]);
            diagonal = row[at];
            row[at] = change.min(row[at] + 1).min(row[at - 1] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_that_was_meant_is_found_or_none() {
        let keys = ["groups", "worker.threads", "worker.retention.budget_tokens", "worker.retention.policy"];
        let keys: Vec<String> = keys.map(str::to_owned).to_vec();
        for (wrong, meant) in [
            ("worker.thread", Some("worker.threads")),
            ("worker.treads", Some("worker.threads")),
            ("threads", Some("worker.threads")),
            ("retention.policy", Some("worker.retention.policy")),
            ("worker.policy", Some("worker.retention.policy")),
            ("worker.retention.budget", Some("worker.retention.budget_tokens")),
            ("group", Some("groups")),
            ("colour", None),
        ] {
            assert_eq!(nearest(wrong, &keys), meant, "{wrong}");
        }
    }

    #[test]
    fn distances_are_those_of_letters() {
        for (a, b, changes) in [("", "", 0), ("", "abc", 3), ("abc", "abc", 0), ("kitten", "sitting", 3)] {
            assert_eq!((distance(a, b), distance(b, a)), (changes, changes));
        }
    }
}
