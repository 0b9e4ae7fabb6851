//! The marked form of a sequence: one text in which a special token is spelled out and plain text that spells one is
//! broken by an invisible sign, so that the two can never be taken for each other.
//!
//! Two histories with the same marked form have the same special tokens at the same places and the same plain text
//! between them. A break is U+10F8F1 after the first character of what would be read as a special token; the two signs
//! themselves, where they occur in plain text, are written as U+10F8F2 and a digit.

use std::borrow::Cow;

use super::specials::Specials;
use super::tokenizer::{Part, Tokenizer};

/// Breaks a special token's spelling; stands for nothing.
const BREAK: char = '\u{10F8F1}';
/// With a digit behind it: one of the two signs as plain text.
const QUOTE: char = '\u{10F8F2}';

/// A stretch of a sequence. Two plain stretches never follow each other, and none is empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    Special(u32),
    Plain(String),
}

/// Appends plain text, joining it to plain text before it.
pub(super) fn push_plain(pieces: &mut Vec<Piece>, text: &str) {
    if text.is_empty() {
        return;
    }
    match pieces.last_mut() {
        Some(Piece::Plain(last)) => last.push_str(text),
        _ => pieces.push(Piece::Plain(text.to_owned())),
    }
}

/// Text from a message, made safe to stand in a template: nothing in it can be read as a special token, not even
/// together with what the template puts around it.
pub(super) fn guard<'t>(specials: &Specials, text: &'t str) -> Cow<'t, str> {
    let front = specials.may_continue_into(text);
    let back = specials.may_begin_in(text);
    let inside = specials.find(text, 0).is_some() || text.contains([BREAK, QUOTE]);
    if !front && !back && !inside {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    if front {
        out.push(BREAK);
    }
    write_plain(&mut out, specials, text, 0, text.len());
    if back {
        out.push(BREAK);
    }
    Cow::Owned(out)
}

/// Appends the plain bytes `from..to` of `flat`, breaking every special token that `flat` spells from there.
fn write_plain(out: &mut String, specials: &Specials, flat: &str, from: usize, to: usize) {
    let mut copied = from;
    for (offset, c) in flat[from..to].char_indices() {
        let at = from + offset;
        let next = at + c.len_utf8();
        let sign = match c {
            BREAK => Some('0'),
            QUOTE => Some('1'),
            _ if specials.at(flat, at).is_some() => None,
            _ => continue,
        };
        out.push_str(&flat[copied..at]);
        copied = next;
        match sign {
            Some(digit) => out.extend([QUOTE, digit]),
            None => out.extend([c, BREAK]),
        }
    }
    out.push_str(&flat[copied..to]);
}

/// Plain text without its breaks.
pub(super) fn unguard(text: &str) -> Cow<'_, str> {
    if !text.contains([BREAK, QUOTE]) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            BREAK => {}
            QUOTE => match chars.next() {
                Some('0') => out.push(BREAK),
                Some('1') => out.push(QUOTE),
                // A template cut the pair apart; what is left of it is dropped.
                Some(other) => out.push(other),
                None => {}
            },
            other => out.push(other),
        }
    }
    Cow::Owned(out)
}

/// The pieces of a text in marked form.
pub(super) fn parse(tokenizer: &Tokenizer, marked: &str) -> Vec<Piece> {
    let mut pieces = Vec::new();
    for part in tokenizer.split(marked) {
        match part {
            Part::Special(special) => pieces.push(Piece::Special(special.id)),
            Part::Plain(text) => push_plain(&mut pieces, &tokenizer.normalize(&unguard(text))),
        }
    }
    pieces
}

/// The marked form of pieces.
pub(super) fn write(specials: &Specials, pieces: &[Piece]) -> String {
    let spelled = |piece: &Piece| match piece {
        Piece::Special(id) => specials.by_id(*id).map(|s| s.text.clone()).unwrap_or_default(),
        Piece::Plain(text) => text.clone(),
    };
    let flat: String = pieces.iter().map(spelled).collect();
    let mut out = String::with_capacity(flat.len() + 16);
    let mut at = 0;
    for piece in pieces {
        let end = match piece {
            Piece::Plain(text) => {
                write_plain(&mut out, specials, &flat, at, at + text.len());
                at + text.len()
            }
            Piece::Special(id) => {
                let text = specials.by_id(*id).map_or("", |s| s.text.as_str());
                out.push_str(text);
                // A longer special token would be read where this one and what follows happen to spell it.
                if specials.at(&flat, at).is_some_and(|found| found.text.len() > text.len()) {
                    out.push(BREAK);
                }
                at + text.len()
            }
        };
        at = end;
    }
    out
}

/// How a special token is written; nothing for an id that is none.
pub(super) fn spelling(tokenizer: &Tokenizer, id: u32) -> &str {
    tokenizer.specials().by_id(id).map_or("", |special| special.text.as_str())
}

/// Tokens of pieces.
pub(super) fn encode(tokenizer: &Tokenizer, pieces: &[Piece]) -> Vec<u32> {
    let mut ids = Vec::new();
    for piece in pieces {
        match piece {
            Piece::Special(id) => ids.push(*id),
            Piece::Plain(text) => ids.extend(tokenizer.encode(text)),
        }
    }
    ids
}

/// Pieces of tokens. Bytes that are no UTF-8 become U+FFFD, as in the text a client got; so does an id outside the
/// vocabulary, which therefore equals nothing a template writes.
pub(super) fn of_tokens(tokenizer: &Tokenizer, ids: &[u32]) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let mut bytes = Vec::new();
    let flush = |bytes: &mut Vec<u8>, pieces: &mut Vec<Piece>| {
        let text = String::from_utf8_lossy(bytes);
        push_plain(pieces, &tokenizer.normalize(&text));
        bytes.clear();
    };
    for &id in ids {
        if tokenizer.is_special(id) {
            flush(&mut bytes, &mut pieces);
            pieces.push(Piece::Special(id));
        } else {
            bytes.extend_from_slice(tokenizer.token_bytes(id).unwrap_or("\u{FFFD}".as_bytes()));
        }
    }
    flush(&mut bytes, &mut pieces);
    pieces
}

/// Tokens of a text in marked form, or of the rest of one.
#[must_use]
pub fn encode_marked(tokenizer: &Tokenizer, marked: &str) -> Vec<u32> {
    encode(tokenizer, &parse(tokenizer, marked))
}

/// The marked form of tokens: what a rendering of the same conversation begins with.
#[must_use]
pub fn mark_tokens(tokenizer: &Tokenizer, ids: &[u32]) -> String {
    write(tokenizer.specials(), &of_tokens(tokenizer, ids))
}
