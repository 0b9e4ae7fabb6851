//! What the reference renderer reads differently from the template engine, brought into the engine's words.
//!
//! - A backslash before a line end inside a string is nothing, as in Python.
//! - `{% generation %}`, which marks the assistant's text for training and prints nothing itself, becomes a block that
//!   is always taken.
//! - A loop over none is an error: what a loop runs over goes through the filter [`EACH`].
//!
//! Everything else is passed on as it is, syntax errors included.

use std::borrow::Cow;

use minijinja::{Error, ErrorKind, Value};

/// Name of the filter that refuses to run over none.
pub(super) const EACH: &str = "hawser_each";

/// The filter: its value unchanged, unless that is none.
pub(super) fn each(value: Value) -> Result<Value, Error> {
    if value.is_none() {
        return Err(Error::new(ErrorKind::InvalidOperation, "none is not iterable"));
    }
    Ok(value)
}

/// The template in the engine's words.
pub(super) fn translate(source: &str) -> String {
    let mut out = String::with_capacity(source.len() + 256);
    let mut rest = source;
    while let Some(at) = next_opening(rest) {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let end = if rest.starts_with("{#") { rest.find("#}").map(|at| at + 2) } else { tag_end(rest) };
        let Some(end) = end else { break };
        let (tag, after) = rest.split_at(end);
        rest = after;
        if tag.starts_with("{%") {
            out.push_str(&block(&joined(tag)));
            if word(tag) == "raw" {
                let raw = rest.find("endraw").unwrap_or(0);
                out.push_str(&rest[..raw]);
                rest = &rest[raw..];
            }
        } else if tag.starts_with("{{") {
            out.push_str(&joined(tag));
        } else {
            out.push_str(tag);
        }
    }
    out.push_str(rest);
    out
}

fn next_opening(text: &str) -> Option<usize> {
    text.match_indices('{')
        .map(|(at, _)| at)
        .find(|at| matches!(text.as_bytes().get(at + 1), Some(b'{' | b'%' | b'#')))
}

/// The characters of a tag that are in no string, each with its place and the number of brackets it is in.
fn code(tag: &str) -> impl Iterator<Item = (usize, char, usize)> {
    let mut quote = None;
    let mut escaped = false;
    let mut depth = 0usize;
    tag.char_indices().filter_map(move |(at, c)| {
        if let Some(open) = quote {
            if !escaped && c == open {
                quote = None;
            }
            escaped = !escaped && c == '\\';
            return None;
        }
        match c {
            '"' | '\'' => {
                quote = Some(c);
                return None;
            }
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        Some((at, c, depth))
    })
}

/// Where the tag that the text begins with ends.
fn tag_end(text: &str) -> Option<usize> {
    let close = if text.starts_with("{{") { "}}" } else { "%}" };
    let inner = &text[2..];
    let mut before = 0;
    for (at, _, depth) in code(inner) {
        // A bracket of the tag's own expression is not its end.
        if before == 0 && inner[at..].starts_with(close) {
            return Some(at + 4);
        }
        before = depth;
    }
    None
}

/// A tag with its continued strings joined. Only in strings can a backslash end a line.
fn joined(tag: &str) -> Cow<'_, str> {
    if !tag.contains("\\\n") && !tag.contains("\\\r\n") {
        return Cow::Borrowed(tag);
    }
    let mut out = String::with_capacity(tag.len());
    let mut chars = tag.chars().peekable();
    while let Some(c) = chars.next() {
        if c != '\\' {
            out.push(c);
            continue;
        }
        match chars.next() {
            Some('\n') => {}
            Some('\r') if chars.peek() == Some(&'\n') => {
                chars.next();
            }
            Some(other) => out.extend([c, other]),
            None => out.push(c),
        }
    }
    Cow::Owned(out)
}

/// A block tag's inside without the signs that trim white space around it.
fn inside(tag: &str) -> &str {
    let inner = tag[2..].trim_end_matches("%}");
    inner.trim_start_matches(['-', '+']).trim_end_matches(['-', '+']).trim()
}

/// The first word of a block tag.
fn word(tag: &str) -> &str {
    let inner = inside(tag);
    &inner[..inner.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(inner.len())]
}

fn block(tag: &str) -> Cow<'_, str> {
    let inner = inside(tag);
    match (word(tag), inner) {
        (_, "generation") => Cow::Owned(tag.replacen("generation", "if true", 1)),
        (_, "endgeneration") => Cow::Owned(tag.replacen("endgeneration", "endif", 1)),
        ("for", _) => loop_over(tag).map_or(Cow::Borrowed(tag), Cow::Owned),
        _ => Cow::Borrowed(tag),
    }
}

/// A `for` tag whose iterable goes through the filter; `None` if it has no form that is known.
fn loop_over(tag: &str) -> Option<String> {
    let keyword = |name: &str, from: usize| {
        let is_part = |c: char| c.is_alphanumeric() || c == '_' || c == '.';
        let stands_alone = |at: usize| {
            tag[at..].starts_with(name)
                && !tag[..at].ends_with(is_part)
                && !tag[at + name.len()..].starts_with(is_part)
        };
        // The tag's own opening brace is one level.
        code(tag).find(|(at, _, depth)| *at >= from && *depth == 1 && stands_alone(*at)).map(|(at, ..)| at)
    };
    let from = keyword("in", 0)? + 2;
    let end = tag.trim_end_matches("%}").trim_end_matches(['-', '+']).len();
    let to = [keyword("if", from), keyword("recursive", from)].into_iter().flatten().fold(end, usize::min);
    let iterable = tag.get(from..to).filter(|text| !text.trim().is_empty())?.trim();
    Some(format!("{} ({iterable})|{EACH} {}", &tag[..from], &tag[to..]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// A template without these things stays as it is, whatever it is.
        #[test]
        fn other_templates_stay_as_they_are(source in "([{}%#'\" x(-]|\\{%|%\\}|\\{\\{|\\}\\}|\\{#|#\\}|raw|endraw|\n|é|\\\\['\"n]){0,30}") {
            prop_assert_eq!(translate(&source), source);
        }
    }

    #[test]
    fn continued_strings_are_joined_and_only_those() {
        assert_eq!(
            translate("{{ 'a\\\nb' + \"c\\\\\\\r\nd\" }}\\\n{# '\\\n #}"),
            "{{ 'ab' + \"c\\\\d\" }}\\\n{# '\\\n #}"
        );
        assert_eq!(translate("it's {{ 'x\\'\\\ny' }} '\\\n'"), "it's {{ 'x\\'y' }} '\\\n'");
        assert_eq!(translate("{% raw %}{{ 'a\\\nb' }}{% endraw %}"), "{% raw %}{{ 'a\\\nb' }}{% endraw %}");
    }

    #[test]
    fn generation_tags_become_blocks_that_are_taken() {
        assert_eq!(translate("a{%- generation -%}b{% endgeneration %}"), "a{%- if true -%}b{% endif %}");
        assert_eq!(translate("{%generation%}{%-endgeneration-%}"), "{%if true%}{%-endif-%}");
        assert_eq!(translate("{% generations %}{% generation"), "{% generations %}{% generation");
    }

    #[test]
    fn loops_go_through_the_filter() {
        let cases = [
            ("{% for t in tools %}", "{% for t in (tools)|hawser_each %}"),
            ("{%-for a, b in x.items()-%}", "{%-for a, b in (x.items())|hawser_each -%}"),
            (
                "{% for x in a['in if'] if x.if recursive %}",
                "{% for x in (a['in if'])|hawser_each if x.if recursive %}",
            ),
            (
                "{% for x in [y if y in z else {'%}': 1}] %}",
                "{% for x in ([y if y in z else {'%}': 1}])|hawser_each %}",
            ),
            ("{% for x in 1, 2 %}", "{% for x in (1, 2)|hawser_each %}"),
            ("{% for x in %}", "{% for x in %}"),
            ("{% format in x %}", "{% format in x %}"),
        ];
        for (source, expected) in cases {
            assert_eq!(translate(source), expected);
        }
    }
}
