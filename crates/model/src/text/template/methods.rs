//! Python's methods on values: those of the engine's own compatibility set, and the few string methods it lacks.

use minijinja::value::from_args;
use minijinja::{Error, ErrorKind, State, Value};

/// Calls a method that the engine does not know.
pub(super) fn call(
    state: &mut State<'_, '_>,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    match value.as_str() {
        Some(text)
            if matches!(method, "rsplit" | "partition" | "rpartition" | "removeprefix" | "removesuffix") =>
        {
            state.consume_fuel(text.len() as u64 / 16 + 1)?;
            string_method(text, method, args)
        }
        _ => minijinja_contrib::pycompat::unknown_method_callback(state, value, method, args),
    }
}

fn string_method(text: &str, method: &str, args: &[Value]) -> Result<Value, Error> {
    if method == "rsplit" {
        let (separator, limit): (Option<&str>, Option<i64>) = from_args(args)?;
        return rsplit(text, separator, limit);
    }
    let (part,): (&str,) = from_args(args)?;
    match method {
        "removeprefix" => Ok(Value::from(text.strip_prefix(part).unwrap_or(text))),
        "removesuffix" => Ok(Value::from(text.strip_suffix(part).unwrap_or(text))),
        _ if part.is_empty() => Err(Error::new(ErrorKind::InvalidOperation, "empty separator")),
        "partition" => Ok(three(text.split_once(part).map_or([text, "", ""], |(a, b)| [a, part, b]))),
        _ => Ok(three(text.rsplit_once(part).map_or(["", "", text], |(a, b)| [a, part, b]))),
    }
}

fn three(parts: [&str; 3]) -> Value {
    Value::from(parts.map(Value::from).to_vec())
}

/// From the right, at most `limit` times; no limit if it is negative. Without a separator at runs of white space.
fn rsplit(text: &str, separator: Option<&str>, limit: Option<i64>) -> Result<Value, Error> {
    let parts = limit
        .and_then(|limit| usize::try_from(limit).ok())
        .map_or(usize::MAX, |limit| limit.saturating_add(1));
    let mut found: Vec<Value> = match separator {
        Some("") => return Err(Error::new(ErrorKind::InvalidOperation, "empty separator")),
        Some(separator) => text.rsplitn(parts, separator).map(Value::from).collect(),
        None => {
            let mut words = Vec::new();
            let mut rest = text.trim_end();
            while !rest.is_empty() {
                let at = rest.rfind(char::is_whitespace).filter(|_| words.len() + 1 < parts);
                let from = at.map_or(0, |at| at + rest[at..].chars().next().map_or(0, char::len_utf8));
                words.push(Value::from(&rest[from..]));
                rest = rest[..from].trim_end();
            }
            words
        }
    };
    found.reverse();
    Ok(Value::from(found))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn eval(expression: &str) -> String {
        let mut environment = minijinja::Environment::new();
        environment.set_unknown_method_callback(call);
        environment.render_str(&format!("{{{{ {expression} }}}}"), ()).unwrap()
    }

    #[test]
    fn methods_do_what_pythons_do() {
        assert_eq!(eval("'a-b-c'.rsplit('-', 1)"), "['a-b', 'c']");
        assert_eq!(eval("'a-b-c'.rsplit('-')"), "['a', 'b', 'c']");
        assert_eq!(eval("' a  b c '.rsplit()"), "['a', 'b', 'c']");
        assert_eq!(eval("' a  b c '.rsplit(none, 1)"), "[' a  b', 'c']");
        assert_eq!(eval("'k=v=w'.partition('=')"), "['k', '=', 'v=w']");
        assert_eq!(eval("'k=v=w'.rpartition('=')"), "['k=v', '=', 'w']");
        assert_eq!(eval("'kv'.rpartition('=')"), "['', '', 'kv']");
        assert_eq!(eval("'abc'.removeprefix('a').removesuffix('c').removesuffix('x')"), "b");
        assert_eq!(eval("'ab'.upper()"), "AB");
    }
}
