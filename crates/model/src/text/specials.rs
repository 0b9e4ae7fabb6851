//! The special tokens of a vocabulary and where a text spells one. The longest special that begins at the leftmost
//! place wins, as in the reference tokenizer.

use std::collections::BTreeSet;
use std::ops::Bound;

/// One special token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Special {
    pub(super) id: u32,
    pub(super) text: String,
    /// The token swallows white space before it.
    pub(super) lstrip: bool,
    /// The token swallows white space after it.
    pub(super) rstrip: bool,
}

/// All special tokens, ready to be looked for.
#[derive(Clone, Debug, Default)]
pub(super) struct Specials {
    /// Longest first within each first byte.
    list: Vec<Special>,
    /// Where the specials with this first byte are in `list`.
    ranges: Vec<(u32, u32)>,
    /// Ids in order, with their place in `list`.
    ids: Vec<(u32, u32)>,
    /// Every proper beginning and every proper end of a special, mere words left out.
    heads: BTreeSet<String>,
    tails: BTreeSet<String>,
    /// Bytes of the longest special.
    longest: usize,
}

impl Specials {
    /// Specials of fewer than two bytes are left out: their text cannot be told apart from plain text by breaking it,
    /// so it stays plain.
    pub(super) fn new(specials: impl IntoIterator<Item = Special>) -> Self {
        let mut list: Vec<Special> = specials.into_iter().filter(|s| s.text.len() >= 2).collect();
        list.sort_by(|a, b| {
            let first = |s: &Special| s.text.as_bytes().first().copied();
            first(a).cmp(&first(b)).then(b.text.len().cmp(&a.text.len())).then(a.id.cmp(&b.id))
        });
        let mut ranges = vec![(0, 0); 256];
        let mut ids = Vec::with_capacity(list.len());
        for (place, special) in (0u32..).zip(&list) {
            let range: &mut (u32, u32) = &mut ranges[usize::from(special.text.as_bytes()[0])];
            *range = if range.1 == 0 { (place, place + 1) } else { (range.0, place + 1) };
            ids.push((special.id, place));
        }
        ids.sort_unstable();
        let cuts =
            || list.iter().flat_map(|s| s.text.char_indices().skip(1).map(|(cut, _)| s.text.split_at(cut)));
        let heads = cuts().map(|(head, _)| head).filter(|head| !is_word(head)).map(str::to_owned).collect();
        let tails = cuts().map(|(_, tail)| tail).filter(|tail| !is_word(tail)).map(str::to_owned).collect();
        let longest = list.iter().map(|s| s.text.len()).max().unwrap_or(0);
        Self { list, ranges, ids, heads, tails, longest }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Special> {
        self.list.iter()
    }

    /// The special with this id.
    pub(super) fn by_id(&self, id: u32) -> Option<&Special> {
        let found = self.ids.binary_search_by_key(&id, |(id, _)| *id).ok()?;
        self.list.get(self.ids[found].1 as usize)
    }

    /// The longest special whose text begins at byte `at` of `text`.
    pub(super) fn at(&self, text: &str, at: usize) -> Option<&Special> {
        let rest = text.as_bytes().get(at..)?;
        let (from, to) = *self.ranges.get(usize::from(*rest.first()?))?;
        self.list[from as usize..to as usize].iter().find(|s| rest.starts_with(s.text.as_bytes()))
    }

    /// The first place at or after byte `from` where a special begins.
    pub(super) fn find(&self, text: &str, from: usize) -> Option<(usize, &Special)> {
        (from..text.len()).find_map(|at| self.at(text, at).map(|special| (at, special)))
    }

    /// Whether some special could come to be by joining text before the start of this text: the text begins with the
    /// end of one, or lies inside one. A mere word (`name` lies in `<filename>`) does not count: it must stay as it is
    /// to be compared and looked up, and only a template that spells out the rest on both sides could make it special.
    pub(super) fn may_continue_into(&self, text: &str) -> bool {
        let ends = (1..=self.longest.min(text.len())).filter_map(|length| text.get(..length));
        let inside = || {
            self.tails
                .range::<str, _>((Bound::Included(text), Bound::Unbounded))
                .next()
                .is_some_and(|tail| tail.starts_with(text))
        };
        !is_word(text) && (ends.into_iter().any(|end| self.tails.contains(end)) || inside())
    }

    /// Whether some special could come to be by joining text behind the end of this text.
    pub(super) fn may_begin_in(&self, text: &str) -> bool {
        let mut ends =
            (1..=self.longest.min(text.len())).filter_map(|length| text.get(text.len() - length..));
        ends.any(|end| self.heads.contains(end))
    }
}

/// Only letters, digits and `_`, or nothing.
fn is_word(text: &str) -> bool {
    text.chars().all(|c| c.is_alphanumeric() || c == '_')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn specials(texts: &[&str]) -> Specials {
        Specials::new((0u32..).zip(texts).map(|(id, text)| Special {
            id,
            text: (*text).to_owned(),
            lstrip: false,
            rstrip: false,
        }))
    }

    #[test]
    fn the_longest_special_at_the_leftmost_place_wins() {
        let s = specials(&["<a>", "<a><b>", "[x]", "<b>", "y"]);
        let found = |text: &str, from| s.find(text, from).map(|(at, special)| (at, special.id));
        assert_eq!(found("..<a><b>", 0), Some((2, 1)));
        assert_eq!(found("..<a><c><b>", 0), Some((2, 0)));
        assert_eq!(found("[x]<a>", 1), Some((3, 0)));
        assert_eq!(found("é[x", 0), None);
        assert_eq!(found("y", 0), None, "one byte is never special");
        assert_eq!(s.by_id(3).map(|s| s.text.as_str()), Some("<b>"));
        assert_eq!(s.by_id(9), None);
    }

    #[test]
    fn joins_are_seen_from_both_sides() {
        let s = specials(&["<|end|>"]);
        assert!(s.may_begin_in("a <"));
        assert!(s.may_begin_in("a <|end|"));
        assert!(!s.may_begin_in("a |end"));
        assert!(s.may_continue_into("> b"));
        assert!(s.may_continue_into("|end"));
        assert!(!s.may_continue_into("< b"));
        assert!(!s.may_continue_into("end"), "a mere word is left as it is");
        assert!(!s.may_continue_into(""));
    }
}
