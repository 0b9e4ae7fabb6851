//! Incremental detokenisation: bytes in, whole characters out.
//!
//! Promises: what all calls return, joined, is exactly [`String::from_utf8_lossy`] of all bytes joined. A character is
//! held back until its last byte is there. Special tokens have no bytes here, so they produce no text.

/// Turns the bytes of tokens into text, piece by piece. Cheap to clone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Detokenizer {
    /// The begun character: at most three bytes.
    begun: Vec<u8>,
}

impl Detokenizer {
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the bytes of one token ([`super::Tokenizer::text_bytes`]) and returns the characters that are whole now.
    /// Bytes that can never be part of a character become U+FFFD.
    pub fn push(&mut self, bytes: &[u8]) -> String {
        self.begun.extend_from_slice(bytes);
        let mut text = String::new();
        let mut rest = self.begun.as_slice();
        loop {
            match std::str::from_utf8(rest) {
                Ok(valid) => {
                    text.push_str(valid);
                    rest = &[];
                    break;
                }
                Err(error) => {
                    let (valid, after) = rest.split_at(error.valid_up_to());
                    text.push_str(&String::from_utf8_lossy(valid));
                    let Some(bad) = error.error_len() else {
                        rest = after;
                        break;
                    };
                    text.push(char::REPLACEMENT_CHARACTER);
                    rest = &after[bad..];
                }
            }
        }
        self.begun = rest.to_vec();
        text
    }

    /// The end of the stream: a character that is still begun becomes U+FFFD.
    pub fn finish(&mut self) -> String {
        let text = String::from_utf8_lossy(&self.begun).into_owned();
        self.begun.clear();
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn stream(chunks: &[Vec<u8>]) -> (String, Vec<String>) {
        let mut detokenizer = Detokenizer::new();
        let mut parts: Vec<String> = chunks.iter().map(|bytes| detokenizer.push(bytes)).collect();
        parts.push(detokenizer.finish());
        (parts.concat(), parts)
    }

    proptest! {
        /// Any bytes, cut anywhere, give the text that decoding all at once gives.
        #[test]
        fn e20_streamed_text_is_the_text(chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..6), 0..24)) {
            let (text, _) = stream(&chunks);
            prop_assert_eq!(text, String::from_utf8_lossy(&chunks.concat()).into_owned());
        }

        /// Valid text, cut anywhere, never shows a replacement that is not in it.
        #[test]
        fn e20_only_whole_characters_are_streamed(text in "[a-zé漢😀\u{301}\u{200d}]{0,24}", size in 1usize..5) {
            let chunks: Vec<Vec<u8>> = text.as_bytes().chunks(size).map(<[u8]>::to_vec).collect();
            let (whole, parts) = stream(&chunks);
            prop_assert_eq!(&whole, &text);
            prop_assert!(parts.iter().all(|part| !part.contains(char::REPLACEMENT_CHARACTER)));
        }
    }

    #[test]
    fn e20_byte_by_byte_and_an_end_inside_a_character() {
        let bytes: Vec<Vec<u8>> = "😀漢é".bytes().map(|b| vec![b]).collect();
        let (text, parts) = stream(&bytes);
        assert_eq!(text, "😀漢é");
        assert_eq!(parts, ["", "", "", "😀", "", "", "漢", "", "é", ""]);
        // max_tokens was reached two bytes into the emoji.
        let (text, parts) = stream(&bytes[..2]);
        assert_eq!((text.as_str(), parts.len()), ("\u{FFFD}", 3));
        assert_eq!(parts[2], "\u{FFFD}");
    }
}
