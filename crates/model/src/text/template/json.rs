//! `tojson` as the reference renderer defines it: Python's `json.dumps` with `ensure_ascii` off, no HTML escaping and
//! key order kept. Arguments: `ensure_ascii`, `indent`, `separators`, `sort_keys`.

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, State, Value};

/// Deepest nesting written.
const MAX_DEPTH: usize = 200;

/// How the text is laid out.
struct Layout {
    ensure_ascii: bool,
    /// What one level adds in front of a line; `None`: all on one line.
    indent: Option<String>,
    item: String,
    key: String,
    sort_keys: bool,
}

/// The filter.
pub(super) fn tojson(state: &State<'_, '_>, value: &Value, kwargs: Kwargs) -> Result<Value, Error> {
    let layout = Layout::parse(&kwargs)?;
    kwargs.assert_all_used()?;
    let mut writer = Writer { state, layout: &layout, out: String::new(), charged: 0 };
    writer.value(value, 0)?;
    Ok(Value::from(writer.out))
}

fn wrong(detail: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, detail.into())
}

impl Layout {
    fn parse(kwargs: &Kwargs) -> Result<Self, Error> {
        let flag = |name: &str| kwargs.get::<Option<Value>>(name).map(|v| v.is_some_and(|v| v.is_true()));
        let indent = match kwargs.get::<Option<Value>>("indent")? {
            None => None,
            Some(value) if value.is_none() => None,
            Some(value) => Some(match value.as_str() {
                Some(text) => text.to_owned(),
                None => {
                    let width = i64::try_from(value)
                        .map_err(|_| wrong("tojson: indent is no number and no string"))?;
                    " ".repeat(usize::try_from(width).unwrap_or(0).min(64))
                }
            }),
        };
        let (mut item, mut key) = (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned());
        if let Some(pair) = kwargs.get::<Option<Value>>("separators")?.filter(|value| !value.is_none()) {
            let parts: Vec<String> = pair.try_iter()?.map(|part| part.to_string()).collect();
            let [item_part, key_part] =
                <[String; 2]>::try_from(parts).map_err(|_| wrong("tojson: separators are two strings"))?;
            (item, key) = (item_part, key_part);
        }
        Ok(Self { ensure_ascii: flag("ensure_ascii")?, indent, item, key, sort_keys: flag("sort_keys")? })
    }
}

struct Writer<'s> {
    state: &'s State<'s, 's>,
    layout: &'s Layout,
    out: String,
    /// Bytes of `out` that are paid for.
    charged: usize,
}

impl Writer<'_> {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        self.charge()?;
        if depth > MAX_DEPTH {
            return Err(wrong("tojson: the value is nested too deeply"));
        }
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.number(value)?,
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<Value> = value.try_iter()?.collect();
                self.list(&items, depth)?;
            }
            ValueKind::Map => self.map(value, depth)?,
            ValueKind::Undefined => return Err(wrong("tojson: an undefined value has no JSON")),
            other => return Err(wrong(format!("tojson: a {other} has no JSON"))),
        }
        Ok(())
    }

    /// Pays for what was written since the last time.
    fn charge(&mut self) -> Result<(), Error> {
        let units = (self.out.len() - self.charged) / 16 + 1;
        self.charged = self.out.len();
        self.state.consume_fuel(units as u64)
    }

    fn list(&mut self, items: &[Value], depth: usize) -> Result<(), Error> {
        self.out.push('[');
        for (index, item) in items.iter().enumerate() {
            self.separate(index, depth + 1);
            self.value(item, depth + 1)?;
        }
        self.close(']', items.is_empty(), depth);
        Ok(())
    }

    fn map(&mut self, map: &Value, depth: usize) -> Result<(), Error> {
        let mut entries = Vec::new();
        for key in map.try_iter()? {
            let name = key_text(&key)?;
            entries.push((name, map.get_item(&key)?));
        }
        if self.layout.sort_keys {
            entries.sort_by(|a, b| a.0.cmp(&b.0));
        }
        self.out.push('{');
        for (index, (name, value)) in entries.iter().enumerate() {
            self.separate(index, depth + 1);
            self.string(name);
            self.out.push_str(&self.layout.key);
            self.value(value, depth + 1)?;
        }
        self.close('}', entries.is_empty(), depth);
        Ok(())
    }

    fn separate(&mut self, index: usize, depth: usize) {
        if index > 0 {
            self.out.push_str(&self.layout.item);
        }
        self.line(depth);
    }

    fn close(&mut self, bracket: char, empty: bool, depth: usize) {
        if !empty {
            self.line(depth);
        }
        self.out.push(bracket);
    }

    fn line(&mut self, depth: usize) {
        if let Some(indent) = &self.layout.indent {
            self.out.push('\n');
            for _ in 0..depth {
                self.out.push_str(indent);
            }
        }
    }

    fn number(&mut self, value: &Value) -> Result<(), Error> {
        if value.is_integer() {
            self.out.push_str(&value.to_string());
        } else {
            let number = f64::try_from(value.clone())?;
            self.out.push_str(&python_float(number));
        }
        Ok(())
    }

    fn string(&mut self, text: &str) {
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                c if c < ' ' || (self.layout.ensure_ascii && !c.is_ascii()) => self.unicode_escape(c),
                c => self.out.push(c),
            }
        }
        self.out.push('"');
    }

    fn unicode_escape(&mut self, c: char) {
        for unit in c.encode_utf16(&mut [0; 2]) {
            self.out.push_str(&format!("\\u{unit:04x}"));
        }
    }
}

/// Keys are strings; numbers, truth values and none are written as such.
fn key_text(key: &Value) -> Result<String, Error> {
    match key.kind() {
        ValueKind::String => Ok(key.as_str().unwrap_or_default().to_owned()),
        ValueKind::None => Ok("null".to_owned()),
        ValueKind::Bool => Ok(if key.is_true() { "true" } else { "false" }.to_owned()),
        ValueKind::Number if key.is_integer() => Ok(key.to_string()),
        ValueKind::Number => Ok(python_float(f64::try_from(key.clone())?)),
        other => Err(wrong(format!("tojson: a {other} is no key"))),
    }
}

/// `repr` of a Python float: the shortest digits that read back, in exponent form from 1e16 and below 1e-4.
fn python_float(number: f64) -> String {
    if number.is_nan() {
        return "NaN".to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 { "Infinity" } else { "-Infinity" }.to_owned();
    }
    let text = format!("{number:?}");
    match text.split_once('e') {
        Some((digits, exponent)) => {
            let (sign, power) = exponent.strip_prefix('-').map_or(('+', exponent), |power| ('-', power));
            format!("{digits}e{sign}{power:0>2}").replace(".0e", "e")
        }
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(template: &str, json: &str) -> String {
        let mut environment = minijinja::Environment::new();
        environment.add_filter("tojson", tojson);
        let value: serde_json::Value = serde_json::from_str(json).unwrap();
        environment
            .render_str(
                template,
                Value::from_pairs([(
                    "v",
                    crate::text::template::values::guarded(&Default::default(), &value),
                )]),
            )
            .unwrap()
    }

    #[test]
    fn values_are_written_as_python_writes_them() {
        let json = r#"{"b": [1, -2, 1.0, 1e16, 1.5e-7, 0.0001, 123456789012345680.0, 18446744073709551615], "a": {}, "c": [], "d": [true, false, null]}"#;
        assert_eq!(
            render("{{ v | tojson }}", json),
            r#"{"b": [1, -2, 1.0, 1e+16, 1.5e-07, 0.0001, 1.2345678901234568e+17, 18446744073709551615], "a": {}, "c": [], "d": [true, false, null]}"#
        );
        let text = r#""<a href='x'>&\"\\ é漢😀 \n\t\u0001\u007f""#;
        assert_eq!(
            render("{{ v | tojson }}", text),
            format!(r#""<a href='x'>&\"\\ é漢😀 \n\t\u0001{}""#, '\u{7f}')
        );
        assert_eq!(render("{{ v | tojson(ensure_ascii=true) }}", r#""é😀""#), r#""\u00e9\ud83d\ude00""#);
    }

    #[test]
    fn layouts_are_those_of_python() {
        let json = r#"{"b": [1, {"x": []}], "a": {}}"#;
        assert_eq!(
            render("{{ v | tojson(indent=2) }}", json),
            "{\n  \"b\": [\n    1,\n    {\n      \"x\": []\n    }\n  ],\n  \"a\": {}\n}"
        );
        assert_eq!(render("{{ v | tojson(indent=0) }}", "[1, 2]"), "[\n1,\n2\n]");
        assert_eq!(render("{{ v | tojson(separators=(',', ':')) }}", json), r#"{"b":[1,{"x":[]}],"a":{}}"#);
        assert_eq!(render("{{ v | tojson(sort_keys=true) }}", json), r#"{"a": {}, "b": [1, {"x": []}]}"#);
        assert_eq!(
            render("{{ v | tojson(indent='\t', separators=(', ', '=')) }}", r#"{"a": 1}"#),
            "{\n\t\"a\"=1\n}"
        );
    }
}
