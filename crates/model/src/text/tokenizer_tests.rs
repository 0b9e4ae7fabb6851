use proptest::prelude::*;

use super::super::GgufVocab;
use super::super::testing::{END, LONG, SHORT, START, WORD, tokenizer, vocab};
use super::*;

proptest! {
    /// Whatever a text spells, no special token comes out, and decoding gives the text back.
    #[test]
    fn e21_plain_text_never_becomes_a_special_token(text in "(<\\|s\\|>|<\\|e\\|>|<x>|<\\|end\\|>|<\\||\\|>|hello|[ -~]|漢|😀|\n){0,12}") {
        let tokenizer = tokenizer();
        let ids = tokenizer.encode(&text);
        prop_assert!(ids.iter().all(|id| !tokenizer.is_special(*id)));
        prop_assert_eq!(tokenizer.decode(&ids), text);
    }

    /// Special parsing is plain encoding between the special tokens.
    #[test]
    fn special_parsing_is_plain_encoding_in_between(parts in prop::collection::vec("[ac-z ]{0,6}", 1..5)) {
        let tokenizer = tokenizer();
        let mut expected = tokenizer.encode(&parts[0]);
        for part in &parts[1..] {
            expected.push(END);
            expected.extend(tokenizer.encode(part));
        }
        prop_assert_eq!(tokenizer.encode_special(&parts.join("<|end|>")), expected);
    }
}

#[test]
fn e21_special_text_is_special_only_where_asked_for() {
    let tokenizer = tokenizer();
    assert_eq!(tokenizer.encode_special("<|s|><|e|><x><|e|>"), [START, LONG, SHORT]);
    assert!(tokenizer.encode("<|s|>").len() > 1);
    // A user-defined word is a word in any text, as the reference has it, and it has text of its own.
    assert_eq!(tokenizer.encode("<w>"), [WORD]);
    assert_eq!(tokenizer.text_bytes(WORD), b"<w>");
    assert_eq!(tokenizer.text_bytes(END), b"");
    assert_eq!(tokenizer.token_bytes(END), Some(b"<|end|>".as_slice()));
    assert_eq!(tokenizer.token_bytes(9999), None);
}

#[test]
fn e21_exactly_one_begin_token() {
    let with = Tokenizer::from_vocab(GgufVocab { add_bos: true, ..vocab() }).unwrap();
    assert_eq!(with.with_bos(vec![7, 8]), [START, 7, 8]);
    assert_eq!(with.with_bos(vec![START, 8]), [START, 8]);
    assert_eq!(with.with_bos(Vec::new()), [START]);
    assert_eq!(tokenizer().with_bos(vec![7, 8]), [7, 8]);
    assert_eq!(with.encode("a").len(), 1, "plain encoding adds none");
}

#[test]
fn turn_ends_are_named_listed_or_given() {
    let tokenizer = tokenizer().with_end_ids([WORD, WORD]);
    assert_eq!(tokenizer.end_ids(), [END, WORD]);
    assert!(tokenizer.is_end(END) && tokenizer.is_end(WORD) && !tokenizer.is_end(START));
    let mut named = vocab();
    named.tokens[3] = "<|im_end|>".to_owned();
    assert!(Tokenizer::from_vocab(named).unwrap().is_end(SHORT));
}

#[test]
fn smollm_splits_single_digits_before_gpt2_does() {
    let words = |pre: &str, text: &str| {
        let tokenizer = Tokenizer::from_vocab(GgufVocab { pre: pre.to_owned(), ..vocab() }).unwrap();
        let mut pieces = tokenizers::PreTokenizedString::from(text);
        let pre = tokenizer.parts.engine.get_pre_tokenizer().unwrap();
        tokenizers::PreTokenizer::pre_tokenize(pre, &mut pieces).unwrap();
        let splits = pieces.get_splits(tokenizers::OffsetReferential::Original, tokenizers::OffsetType::Byte);
        splits.into_iter().map(|(_, (from, to), _)| text[from..to].to_owned()).collect::<Vec<_>>()
    };
    let text = "it's 2024!\n\n x  y";
    assert_eq!(words("smollm", text), ["it", "'s", " ", "2", "0", "2", "4", "!", "\n\n", " x", " ", " y"]);
    assert_eq!(words("gpt-2", text), ["it", "'s", " 2024", "!", "\n\n", " x", " ", " y"]);
    assert_eq!(words("qwen2", text), ["it", "'s", " ", "2", "0", "2", "4", "!\n\n", " x", " ", " y"]);
    assert_eq!(words("llama-bpe", text), ["it", "'s", " ", "202", "4", "!\n\n", " x", " ", " y"]);
}

/// A file from elsewhere may say anything: each contradiction has its own error, and none is a panic.
#[test]
fn e14_a_wrong_vocabulary_is_a_typed_error() {
    type Change = fn(&mut GgufVocab);
    let cases: [(Change, &str); 10] = [
        (|v| v.model = "llama".to_owned(), "\"llama\" is not supported"),
        (|v| v.pre = "tekken".to_owned(), "\"tekken\" is not known"),
        (|v| v.tokens.clear(), "tokens is empty"),
        (|v| v.token_types.truncate(3), "3 entries for"),
        (|v| v.bos = Some(9999), "the bos token is 9999"),
        (|v| v.eos = Some(9999), "the eos token is 9999"),
        (|v| v.tokens[10] = v.tokens[11].clone(), "twice"),
        (|v| v.merges.push("nospace".to_owned()), "two tokens with a space"),
        (|v| v.merges.push("a zz".to_owned()), "\"zz\", which the vocabulary lacks"),
        (|v| v.merges.push("hello hello".to_owned()), "\"hellohello\", which the vocabulary lacks"),
    ];
    for (change, message) in cases {
        let mut wrong = vocab();
        change(&mut wrong);
        let error = Tokenizer::from_vocab(wrong).expect_err(message);
        assert!(error.to_string().contains(message), "{error} lacks {message:?}");
    }
}

#[test]
fn a_tokenizer_file_gives_the_tokens_of_its_vocabulary() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokenizer.json");
    let mut engine = tokenizers::Tokenizer::from_bytes(from_vocab_json()).unwrap();
    let special = |text: &str| tokenizers::AddedToken::from(text, true).normalized(false);
    engine.add_special_tokens(["<|s|>", "<|end|>", "<|e|><x>", "<|e|>"].map(special)).unwrap();
    engine.save(&path, false).unwrap();
    let config = r#"{"bos_token": {"content": "<|s|>"}, "eos_token": "<|end|>", "add_bos_token": true}"#;
    std::fs::write(folder.path().join("tokenizer_config.json"), config).unwrap();

    let file = Tokenizer::from_file(&path).unwrap();
    let gguf = tokenizer();
    for text in ["hello hello", "abc 123 <|end|> <|e|><x>", "漢😀\n\n"] {
        assert_eq!(file.encode(text), gguf.encode(text));
        assert_eq!(file.encode_special(text), gguf.encode_special(text));
        assert_eq!(file.decode(&file.encode(text)), text);
    }
    assert_eq!((file.bos(), file.eos(), file.adds_bos()), (Some(START), Some(END), true));
    assert_eq!(file.end_ids(), [END]);

    // A merge that the library would index out of bounds on is an error here.
    let text = std::fs::read_to_string(&path).unwrap();
    let broken = text.replace("[\"h\",\"e\"]", "[\"hello\",\"zzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzz\"]");
    assert_ne!(text, broken);
    std::fs::write(&path, broken).unwrap();
    assert!(matches!(Tokenizer::from_file(&path), Err(TokenizerError::MergeToken { index: 0, .. })));
    std::fs::write(&path, &text[..text.len() / 2]).unwrap();
    assert!(matches!(Tokenizer::from_file(&path), Err(TokenizerError::File { .. })));
    assert!(matches!(Tokenizer::from_file(&folder.path().join("none")), Err(TokenizerError::File { .. })));
}

/// The test vocabulary as a `tokenizer.json`.
fn from_vocab_json() -> Vec<u8> {
    let vocab = vocab();
    let entries: serde_json::Map<_, _> =
        vocab.tokens.iter().enumerate().map(|(id, text)| (text.clone(), serde_json::json!(id))).collect();
    let merges: Vec<Vec<&str>> = vocab.merges.iter().map(|merge| merge.split(' ').collect()).collect();
    let word = serde_json::json!([{"id": WORD, "content": "<w>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": false}]);
    let byte_level = serde_json::json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    let pre = serde_json::json!({"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": true}, byte_level]});
    serde_json::to_vec(&serde_json::json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": word, "normalizer": null,
        "pre_tokenizer": pre, "post_processor": null, "decoder": byte_level,
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                  "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
                  "vocab": entries, "merges": merges},
    }))
    .unwrap()
}

/// Long words, long white space and long runs of digits cost what their length is worth: were any of them quadratic,
/// this test would not come to an end.
#[test]
fn long_texts_are_encoded_in_one_go() {
    let tokenizer = tokenizer();
    for part in ["a", " ", "\n", "7", "<|", "<|end|>", "ab ", "漢"] {
        let text = part.repeat(150_000 / part.len());
        assert_eq!(tokenizer.decode(&tokenizer.encode(&text)), text);
        assert_eq!(tokenizer.decode(&tokenizer.encode_special(&text)), text.replace("<|end|>", ""));
    }
}
