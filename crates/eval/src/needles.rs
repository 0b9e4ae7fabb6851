//! Numbers that an answer repeats from an earlier turn: needles in the session's hay.
//!
//! What is looked for is decided by the text alone: a number of at least [`LEAST_DIGITS`] digits in a recorded answer
//! that stands, as a whole number, somewhere before the request. The codes of synthetic sessions are such; of other
//! sessions it finds what it finds. Whether a model could have answered without the needle is not asked.

use std::ops::Range;

use hawser_common::Position;
use hawser_kv::SlotMap;
use hawser_model::text::Tokenizer;

/// Shorter numbers occur by chance.
pub const LEAST_DIGITS: usize = 4;

/// One number of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Needle {
    /// Where it stands in earlier turns, in positions; at least once.
    pub places: Vec<Range<u32>>,
    /// Where it stands in the answer, in tokens from the answer's first.
    pub answer: Range<usize>,
}

impl Needle {
    /// Tokens of its best place, and how many of them are live: the place of which the largest share is.
    #[must_use]
    pub fn live(&self, map: &SlotMap) -> (usize, usize) {
        let live = |place: &Range<u32>| {
            let is_live = |position: &u32| map.slot(Position(*position)).is_some_and(|slot| !slot.is_dead());
            (place.len(), place.clone().filter(is_live).count())
        };
        let places = self.places.iter().map(live);
        // `a` of `b` is more than `c` of `d`, in whole numbers; of equal ones the first.
        places.reduce(|(d, c), (b, a)| if a * d > c * b { (b, a) } else { (d, c) }).unwrap_or_default()
    }
}

/// The needles of an answer in the tokens of earlier turns.
#[must_use]
pub fn needles(tokenizer: &Tokenizer, before: &[u32], answer: &[u32]) -> Vec<Needle> {
    let (before, answer) = (Text::new(tokenizer, before), Text::new(tokenizer, answer));
    let hay = before.numbers();
    let mut found = Vec::new();
    for number in answer.numbers() {
        let same = hay.iter().filter(|place| before.bytes[(*place).clone()] == answer.bytes[number.clone()]);
        let places: Vec<Range<u32>> = same.map(|place| positions(before.tokens(place))).collect();
        if !places.is_empty() {
            found.push(Needle { places, answer: answer.tokens(&number) });
        }
    }
    found
}

fn positions(tokens: Range<usize>) -> Range<u32> {
    let position = |index: usize| u32::try_from(index).expect("positions are 32-bit");
    position(tokens.start)..position(tokens.end)
}

/// Bytes of tokens, and where each token ends.
struct Text {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Text {
    fn new(tokenizer: &Tokenizer, tokens: &[u32]) -> Self {
        let (mut bytes, mut ends) = (Vec::new(), Vec::with_capacity(tokens.len()));
        for &token in tokens {
            bytes.extend_from_slice(tokenizer.text_bytes(token));
            ends.push(bytes.len());
        }
        Self { bytes, ends }
    }

    /// Every whole number that is long enough, in bytes.
    fn numbers(&self) -> Vec<Range<usize>> {
        let (mut numbers, mut start) = (Vec::new(), None);
        for (at, byte) in self.bytes.iter().chain([&b' ']).enumerate() {
            match (byte.is_ascii_digit(), start) {
                (true, None) => start = Some(at),
                (false, Some(from)) => {
                    start = None;
                    numbers.push(from..at);
                }
                _ => {}
            }
        }
        numbers.retain(|number| number.len() >= LEAST_DIGITS);
        numbers
    }

    /// The tokens that have a part in some bytes.
    fn tokens(&self, bytes: &Range<usize>) -> Range<usize> {
        let first = self.ends.partition_point(|&end| end <= bytes.start);
        let last = self.ends.partition_point(|&end| end < bytes.end);
        first..last + 1
    }
}

#[cfg(test)]
mod tests {
    use hawser_kv::SlotPool;

    use super::*;

    fn text(pieces: &[&str]) -> Text {
        let (mut bytes, mut ends) = (Vec::new(), Vec::new());
        for piece in pieces {
            bytes.extend_from_slice(piece.as_bytes());
            ends.push(bytes.len());
        }
        Text { bytes, ends }
    }

    #[test]
    fn whole_numbers_are_found_with_the_tokens_that_hold_them() {
        let text = text(&["code ", "48", "213", ".", " 12 ", "x9", "000", "y ", "77777"]);
        let numbers = text.numbers();
        let shown: Vec<&str> =
            numbers.iter().map(|at| std::str::from_utf8(&text.bytes[at.clone()]).unwrap()).collect();
        assert_eq!(shown, ["48213", "9000", "77777"]);
        let tokens: Vec<Range<usize>> = numbers.iter().map(|at| text.tokens(at)).collect();
        assert_eq!(tokens, [1..3, 5..7, 8..9]);
    }

    #[test]
    fn the_place_that_is_live_most_counts() {
        let (mut pool, mut map) = (SlotPool::new(16), SlotMap::new());
        map.append(&pool.allocate(10).unwrap());
        let needle = Needle { places: vec![1..4, 6..8], answer: 0..3 };
        assert_eq!(needle.live(&map), (3, 3));
        map.evict(&[2].map(Position), &mut pool).unwrap();
        assert_eq!(needle.live(&map), (2, 2));
        map.evict(&[6].map(Position), &mut pool).unwrap();
        assert_eq!(needle.live(&map), (3, 2));
        map.evict(&[1, 3, 7].map(Position), &mut pool).unwrap();
        assert_eq!(needle.live(&map), (3, 0));
    }
}
