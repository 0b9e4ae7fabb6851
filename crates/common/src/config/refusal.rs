//! What is wrong with a configuration, in the words of people who write one: the key, what was given and where, what is
//! expected. Nothing of the library that reads it is shown.

use figment::error::Kind;
use figment::{Error, Figment, Source};

use super::nearest::nearest;
use super::{ConfigError, ENV_PREFIX};

/// Longest value that is shown, in characters.
const SHOWN_CHARS: usize = 60;

/// The first thing that is wrong. `keys` are all that there are.
pub(super) fn refusal(figment: &Figment, error: &Error, keys: &[String]) -> ConfigError {
    let key = error.path.join(".");
    let place = place(error, &key);
    match &error.kind {
        Kind::UnknownField(field, siblings) => {
            let key = if error.path.last() == Some(field) || key.is_empty() {
                key
            } else {
                format!("{key}.{field}")
            };
            let key = if key.is_empty() { field.clone() } else { key };
            let advice = match nearest(&key, keys) {
                Some(meant) => format!("did you mean {meant}?"),
                None => format!("there are {}", siblings.join(", ")),
            };
            ConfigError::UnknownKey { key, place, advice }
        }
        Kind::Message(reason) if key.is_empty() => ConfigError::Malformed { place, reason: one_line(reason) },
        kind => {
            let found = figment.find_value(&key).ok().and_then(|value| serde_json::to_string(&value).ok());
            let found = shortened(&found.unwrap_or_else(|| "not set".to_owned()));
            ConfigError::Value { found, expected: expected(kind, &key), key, place }
        }
    }
}

/// Where the value comes from.
fn place(error: &Error, key: &str) -> String {
    let Some(metadata) = &error.metadata else { return "in the configuration".to_owned() };
    match &metadata.source {
        Some(Source::File(path)) => format!("in {}", path.display()),
        _ if metadata.name.contains("environment") => {
            format!("in {ENV_PREFIX}{}", key.to_uppercase().replace('.', "__"))
        }
        _ => "on the command line".to_owned(),
    }
}

fn expected(kind: &Kind, key: &str) -> String {
    match kind {
        Kind::InvalidType(_, name) | Kind::InvalidValue(_, name) | Kind::InvalidLength(_, name) => {
            expected_name(name, key)
        }
        Kind::UnknownVariant(_, names) => format!("one of {}", names.join(", ")),
        Kind::ISizeOutOfRange(_) | Kind::USizeOutOfRange(_) => "a smaller number".to_owned(),
        Kind::Message(text) if text.contains("socket address") => {
            "an address with a port, such as 127.0.0.1:7070".to_owned()
        }
        Kind::Message(text) => one_line(text),
        other => one_line(&other.to_string()),
    }
}

/// A type's name in words.
fn expected_name(name: &str, key: &str) -> String {
    match name {
        "u8" | "u16" => "a small whole number, at least 0".to_owned(),
        "u32" => format!("a whole number from 0 to {}", u32::MAX),
        "u64" | "usize" => "a whole number, at least 0".to_owned(),
        "i8" | "i16" | "i32" | "i64" | "isize" => "a whole number".to_owned(),
        "f32" | "f64" => "a number".to_owned(),
        "a boolean" => "true or false".to_owned(),
        "a string" | "path string" => "text".to_owned(),
        table if table.starts_with("struct ") || table == "a map" => {
            format!("a table; set its keys one by one, as {key}.NAME")
        }
        choice if choice.starts_with("enum ") || choice == "string or map" => {
            "the name of a choice".to_owned()
        }
        other => other.to_owned(),
    }
}

/// A parser's message without the picture of the line.
fn one_line(text: &str) -> String {
    let drawn =
        |line: &str| line.trim_start_matches(|c: char| c.is_ascii_digit() || c == ' ').starts_with('|');
    let lines: Vec<&str> = text.lines().filter(|line| !drawn(line)).map(str::trim).collect();
    lines.into_iter().filter(|line| !line.is_empty()).collect::<Vec<_>>().join(", ")
}

fn shortened(text: &str) -> String {
    if text.chars().count() <= SHOWN_CHARS {
        return text.to_owned();
    }
    let start: String = text.chars().take(SHOWN_CHARS).collect();
    format!("{start}…")
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use serde::{Deserialize, Serialize};
    use serde_json::{Value, json};

    use super::super::load;

    #[derive(Debug, Serialize, Deserialize, PartialEq)]
    #[serde(deny_unknown_fields, default)]
    struct Config {
        groups: usize,
        inner: Inner,
    }

    #[derive(Debug, Serialize, Deserialize, PartialEq)]
    #[serde(deny_unknown_fields, default)]
    struct Inner {
        threads: u32,
        share: f32,
        on: bool,
        name: String,
        listen: SocketAddr,
        kind: Kinds,
        seed: Option<u64>,
    }

    #[derive(Debug, Serialize, Deserialize, PartialEq)]
    #[serde(rename_all = "kebab-case")]
    enum Kinds {
        One,
        Another,
    }

    impl Default for Config {
        fn default() -> Self {
            Self { groups: 1, inner: Inner::default() }
        }
    }

    impl Default for Inner {
        fn default() -> Self {
            let listen = SocketAddr::from(([127, 0, 0, 1], 1));
            Self {
                threads: 1,
                share: 0.5,
                on: true,
                name: String::new(),
                listen,
                kind: Kinds::One,
                seed: None,
            }
        }
    }

    fn refused(flags: &Value) -> String {
        load(&Config::default(), None, flags).unwrap_err().to_string()
    }

    #[test]
    fn a_wrong_value_is_named_with_what_was_given_and_what_is_expected() {
        for (key, value, found, expected) in [
            ("threads", json!("x"), "\"x\"", "a whole number from 0 to 4294967295"),
            ("threads", json!(-3), "-3", "a whole number from 0 to 4294967295"),
            ("threads", json!([1]), "[1]", "a whole number from 0 to 4294967295"),
            ("share", json!("a"), "\"a\"", "a number"),
            ("on", json!("maybe"), "\"maybe\"", "true or false"),
            ("name", json!(3), "3", "text"),
            ("listen", json!("abc"), "\"abc\"", "an address with a port, such as 127.0.0.1:7070"),
            ("kind", json!("two"), "\"two\"", "one of one, another"),
            ("seed", json!("a"), "\"a\"", "a whole number, at least 0"),
        ] {
            let says = format!("inner.{key} is {found} (on the command line); expected is {expected}");
            assert_eq!(refused(&json!({ "inner": { key: value } })), says);
        }
        let table = refused(&json!({ "inner": 3 }));
        assert_eq!(
            table,
            "inner is 3 (on the command line); expected is a table; set its keys one by one, as inner.NAME"
        );
        let long = refused(&json!({ "groups": "x".repeat(1_000) }));
        assert!(long.len() < 200 && long.contains('…'), "{long}");
    }

    #[test]
    fn an_unknown_key_comes_with_the_one_that_was_meant() {
        let says = "there is no key inner.thread (on the command line); did you mean inner.threads?";
        assert_eq!(refused(&json!({ "inner": { "thread": 1 } })), says);
        assert!(refused(&json!({ "colour": 1 })).ends_with("there are groups, inner"));
    }

    #[test]
    fn a_file_is_named_and_where_it_breaks_off() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("hawser.toml");
        let read = |text: &str| {
            std::fs::write(&file, text).unwrap();
            load(&Config::default(), Some(&file), &json!({})).unwrap_err().to_string()
        };
        let place = format!("in {}", file.display());
        let unknown = read("[inner]\nthreds = 2\n");
        assert!(unknown.contains("inner.threds") && unknown.contains(&place), "{unknown}");
        let broken = read("groups = = 2\n");
        assert!(broken.contains("line 1, column") && broken.contains(&place), "{broken}");
        assert!(!broken.contains('\n') && !broken.contains('|'), "{broken}");
    }
}
