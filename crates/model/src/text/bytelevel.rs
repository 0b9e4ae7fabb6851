//! The byte-level alphabet of GPT-2: every byte has one printable character, so that a vocabulary of strings can hold
//! any bytes. Printable Latin-1 bytes stand for themselves; the other 68 follow from U+0100 in order of their value.
//! Source: `bytes_to_unicode` of the GPT-2 encoder.

use std::sync::LazyLock;

/// Number of characters of the alphabet beyond Latin-1's end.
const LAST: usize = 0x143;

const fn stands_for_itself(byte: u32) -> bool {
    matches!(byte, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF)
}

/// The byte of each character below U+0144.
static BYTES: LazyLock<[Option<u8>; LAST + 1]> = LazyLock::new(|| {
    let mut bytes = [None; LAST + 1];
    let mut next = 0x100;
    for byte in 0..=u8::MAX {
        if stands_for_itself(u32::from(byte)) {
            bytes[usize::from(byte)] = Some(byte);
        } else {
            bytes[next] = Some(byte);
            next += 1;
        }
    }
    bytes
});

/// The bytes that a vocabulary entry stands for; `None` if it has a character outside the alphabet.
pub(super) fn decode(entry: &str) -> Option<Vec<u8>> {
    entry.chars().map(|c| BYTES.get(c as usize).copied().flatten()).collect()
}

/// The alphabet's character of every byte, by byte.
pub(super) fn alphabet() -> Vec<char> {
    let mut chars = vec!['\0'; 256];
    for (code, byte) in BYTES.iter().enumerate() {
        let character = u32::try_from(code).ok().and_then(char::from_u32);
        if let (Some(byte), Some(c)) = (byte, character) {
            chars[usize::from(*byte)] = c;
        }
    }
    chars
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_one_character_of_its_own() {
        let chars = alphabet();
        let distinct: std::collections::BTreeSet<_> = chars.iter().collect();
        assert_eq!(distinct.len(), 256);
        for byte in 0..=255u8 {
            assert_eq!(decode(&chars[usize::from(byte)].to_string()), Some(vec![byte]));
        }
        assert_eq!(decode("Ġhello"), Some(b" hello".to_vec()));
        assert_eq!(decode("Ċ"), Some(b"\n".to_vec()));
        assert_eq!(decode("漢"), None);
    }
}
