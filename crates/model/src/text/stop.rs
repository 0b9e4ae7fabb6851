//! Stop strings over streamed text.
//!
//! The stop string whose last byte comes first ends the text; of several that end at the same byte, the longest. That
//! choice depends on the text alone, never on how it arrives in pieces. No byte of the stop string found is emitted;
//! text is held back only while it may still become part of one, and comes out at the end if it does not.

/// What a piece of text led to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StopStep {
    /// Text that is surely before any stop string.
    pub emit: String,
    /// Index of the stop string that was found; nothing is emitted any more.
    pub matched: Option<usize>,
}

/// Looks for stop strings in a stream of text. Cheap to clone.
#[derive(Clone, Debug)]
pub struct StopMatcher {
    patterns: Vec<Pattern>,
    /// Text not emitted yet: the longest end of the text that begins some stop string.
    held: String,
    matched: Option<usize>,
}

/// One stop string with the state of the Knuth-Morris-Pratt search for it.
#[derive(Clone, Debug)]
struct Pattern {
    bytes: Vec<u8>,
    /// For each prefix length above 0, the longest shorter prefix that ends it.
    fallback: Vec<usize>,
    /// Bytes of the string that the text ends with.
    reached: usize,
}

impl Pattern {
    fn new(text: &str) -> Self {
        let bytes = text.as_bytes().to_vec();
        let mut fallback = vec![0; bytes.len()];
        let mut length = 0;
        for at in 1..bytes.len() {
            while length > 0 && bytes[at] != bytes[length] {
                length = fallback[length - 1];
            }
            length += usize::from(bytes[at] == bytes[length]);
            fallback[at] = length;
        }
        Self { bytes, fallback, reached: 0 }
    }

    /// Takes the next byte of the text; whether the whole string ends with it.
    fn advance(&mut self, byte: u8) -> bool {
        while self.reached > 0 && self.bytes[self.reached] != byte {
            self.reached = self.fallback[self.reached - 1];
        }
        self.reached += usize::from(self.bytes[self.reached] == byte);
        self.reached == self.bytes.len()
    }
}

impl StopMatcher {
    /// An empty stop string is ignored: it would end every text before it begins.
    #[must_use]
    pub fn new(stops: &[String]) -> Self {
        let patterns = stops.iter().map(|stop| Pattern::new(stop)).collect();
        Self { patterns, held: String::new(), matched: None }
    }

    /// Takes the next piece of text.
    pub fn push(&mut self, text: &str) -> StopStep {
        if self.matched.is_some() {
            return StopStep { emit: String::new(), matched: self.matched };
        }
        let before = self.held.len();
        self.held.push_str(text);
        for (offset, byte) in text.bytes().enumerate() {
            let mut found: Option<(usize, usize)> = None;
            for (index, pattern) in self.patterns.iter_mut().enumerate() {
                let length = pattern.bytes.len();
                if length > 0 && pattern.advance(byte) && found.is_none_or(|(_, longest)| length > longest) {
                    found = Some((index, length));
                }
            }
            if let Some((index, length)) = found {
                self.matched = Some(index);
                self.held.truncate(before + offset + 1 - length);
                return StopStep { emit: std::mem::take(&mut self.held), matched: self.matched };
            }
        }
        let hold = self.patterns.iter().map(|pattern| pattern.reached).max().unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - hold);
        StopStep { emit: std::mem::replace(&mut self.held, rest), matched: None }
    }

    /// The end of the stream: what was held back and became no stop string.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// Index of the stop string that ended the text.
    #[must_use]
    pub fn matched(&self) -> Option<usize> {
        self.matched
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The rule, by trying every end.
    fn reference(text: &str, stops: &[String]) -> (String, Option<usize>) {
        for end in 1..=text.len() {
            let ending = stops
                .iter()
                .enumerate()
                .filter(|(_, s)| !s.is_empty() && text.as_bytes()[..end].ends_with(s.as_bytes()));
            let longest = ending.max_by_key(|(index, s)| (s.len(), std::cmp::Reverse(*index)));
            if let Some((index, stop)) = longest {
                return (text[..end - stop.len()].to_owned(), Some(index));
            }
        }
        (text.to_owned(), None)
    }

    fn check(pieces: &[&str], stops: &[&str]) -> (Vec<String>, Option<usize>) {
        let stops: Vec<String> = stops.iter().map(|s| (*s).to_owned()).collect();
        let mut matcher = StopMatcher::new(&stops);
        let mut out: Vec<String> = pieces.iter().map(|piece| matcher.push(piece).emit).collect();
        out.push(matcher.finish());
        assert_eq!((out.concat(), matcher.matched()), reference(&pieces.concat(), &stops));
        (out, matcher.matched())
    }

    proptest! {
        #[test]
        fn e19_any_cut_gives_the_same_text_and_no_stop_string(
            pieces in prop::collection::vec("[ab漢字]{0,4}", 0..10),
            stops in prop::collection::vec("[ab漢字]{0,4}", 0..4),
        ) {
            let mut matcher = StopMatcher::new(&stops);
            let mut text = String::new();
            for piece in &pieces {
                let step = matcher.push(piece);
                text.push_str(&step.emit);
                // Never more is held back than the longest stop string but one byte.
                prop_assert!(matcher.held.len() < stops.iter().map(String::len).max().unwrap_or(0).max(1));
            }
            text.push_str(&matcher.finish());
            let (expected, matched) = reference(&pieces.concat(), &stops);
            prop_assert_eq!(&text, &expected);
            prop_assert_eq!(matcher.matched(), matched);
            prop_assert!(stops.iter().all(|s| s.is_empty() || !text.contains(s.as_str())));
        }
    }

    #[test]
    fn e19_over_piece_boundaries_and_inside_characters() {
        let (out, matched) = check(&["hello EN", "D OF", " TEXT more"], &["END OF TEXT"]);
        assert_eq!((out.concat().as_str(), matched), ("hello ", Some(0)));
        // The two ideographs share their first two bytes; neither is ever cut.
        let (out, matched) = check(&["x漢", "字漣"], &["漣"]);
        assert_eq!((out, matched), (vec!["x漢".to_owned(), "字".to_owned(), String::new()], Some(0)));
    }

    #[test]
    fn e19_one_is_a_prefix_or_part_of_another() {
        assert_eq!(check(&["1 ab", "c"], &["abc", "ab"]).1, Some(1), "the one that is complete first");
        assert_eq!(check(&["1 abc"], &["bc", "abc"]).1, Some(1), "both end here: the longest");
        let (out, matched) = check(&["aa", "ab"], &["aab"]);
        assert_eq!((out.concat().as_str(), matched), ("a", Some(0)));
    }

    #[test]
    fn e19_held_text_is_flushed_and_nothing_follows_a_stop() {
        let (out, matched) = check(&["wait <", "/to"], &["</tool>"]);
        assert_eq!((out, matched), (vec!["wait ".to_owned(), String::new(), "</to".to_owned()], None));
        let mut matcher = StopMatcher::new(&["x".to_owned()]);
        assert_eq!(matcher.push("axb"), StopStep { emit: "a".to_owned(), matched: Some(0) });
        assert_eq!(matcher.push("more"), StopStep { emit: String::new(), matched: Some(0) });
        assert_eq!(matcher.finish(), "");
    }
}
