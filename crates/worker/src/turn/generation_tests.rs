use hawser_model::text::GgufVocab;
use proptest::prelude::*;

use super::*;

const END: u32 = 0;

/// A vocabulary in which characters come in pieces, and stop strings over several tokens.
fn tokenizer() -> (Arc<Tokenizer>, usize) {
    let itself = |byte: u8| matches!(byte, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF);
    let entry = |byte: u8| {
        let before = (0..byte).filter(|byte| !itself(*byte)).count();
        let code = if itself(byte) { u32::from(byte) } else { 0x100 + u32::try_from(before).unwrap() };
        char::from_u32(code).unwrap().to_string()
    };
    let mut tokens = vec!["<|end|>".to_owned()];
    for piece in ["a", "b", "c", "ab", "ca"] {
        tokens.push(piece.to_owned());
    }
    for byte in "漢字😀".bytes().filter(|byte| *byte != 0xE5) {
        if !tokens.contains(&entry(byte)) {
            tokens.push(entry(byte));
        }
    }
    let mut token_types = vec![1; tokens.len()];
    token_types[0] = 3;
    let (count, model, pre) = (tokens.len(), "gpt2".to_owned(), "smollm".to_owned());
    let vocab = GgufVocab { tokens, token_types, pre, model, eos: Some(END), ..GgufVocab::default() };
    (Arc::new(Tokenizer::from_vocab(vocab).unwrap()), count)
}

/// Logits that depend on the place alone, as those of a model depend on the tokens before it.
fn logits(salt: u64, place: usize, count: usize) -> Vec<f32> {
    let mut state = salt ^ (place as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 40) % 400) as f32 / 100.0
    };
    let mut logits: Vec<f32> = (0..count).map(|_| next()).collect();
    logits[END as usize] -= 3.0;
    logits
}

/// What a reader sees: after each token all of the text so far, and how it ended.
#[derive(Debug, PartialEq)]
struct Seen {
    tokens: Vec<u32>,
    text: Vec<String>,
    finish: Finish,
}

fn run(mut generation: Generation, salt: u64, count: usize, mut seen: String) -> Seen {
    let (mut tokens, mut text) = (Vec::new(), Vec::new());
    loop {
        let mut logits = logits(salt, generation.generated(), count);
        let (piece, finish) = generation.next(&mut logits).unwrap();
        tokens.push(piece.token);
        seen.push_str(&piece.text);
        text.push(seen.clone());
        if let Some(finish) = finish {
            assert_eq!(generation.into_output().1, seen, "what is committed is what was streamed");
            return Seen { tokens, text, finish };
        }
    }
}

proptest! {
    /// An answer broken off after any of its tokens and taken up by another generation is the unbroken one: the same
    /// tokens with penalties and a seed, the same text, nothing twice and nothing lost, the same end.
    #[test]
    fn p3_taken_up_after_any_token_it_is_the_unbroken_answer(
        salt in any::<u64>(),
        seed in any::<u64>(),
        max_new in 1usize..40,
        stop in prop::collection::vec(prop::sample::select(vec!["abc", "bca", "漢", "ca漢", "cc", "😀a"]), 0..3),
        greedy in any::<bool>(),
    ) {
        let (tokenizer, count) = tokenizer();
        let sampling = Sampling {
            temperature: if greedy { 0.0 } else { 0.9 },
            repetition_penalty: 1.3,
            presence_penalty: 0.2,
            frequency_penalty: 0.4,
            stop: stop.into_iter().map(str::to_owned).collect(),
            ..Sampling::default()
        };
        let prompt = [1, 2, 7];
        let new = || Generation::new(&GenerationOptions {
            tokenizer: Some(Arc::clone(&tokenizer)),
            sampling: &sampling,
            seed,
            prompt: &prompt,
            max_new,
            end_ids: &[END],
        });
        let whole = run(new(), salt, count, String::new());
        for broken in 0..=whole.tokens.len() {
            let (before, after) = whole.tokens.split_at(broken);
            let seen = broken.checked_sub(1).map_or("", |last| whole.text[last].as_str());
            let begun = Begun { tokens: before.to_vec(), text_bytes: seen.len() };
            let mut generation = new();
            let ended = generation.resume(&begun).unwrap();
            if after.is_empty() {
                prop_assert_eq!(ended, Some((whole.finish.clone(), String::new())));
                // The text that came out at the end may not have been delivered.
                let before = broken.checked_sub(2).map_or("", |last| whole.text[last].as_str());
                let mut generation = new();
                let begun = Begun { tokens: whole.tokens.clone(), text_bytes: before.len() };
                let rest = seen[before.len()..].to_owned();
                prop_assert_eq!(generation.resume(&begun).unwrap(), Some((whole.finish.clone(), rest)));
                continue;
            }
            prop_assert_eq!(ended, None);
            prop_assert_eq!(generation.generated(), broken);
            let rest = run(generation, salt, count, seen.to_owned());
            prop_assert_eq!(&rest.tokens, after);
            prop_assert_eq!(&rest.text, &whole.text[broken..]);
            prop_assert_eq!(&rest.finish, &whole.finish);
            // What cannot be is refused: another text, or tokens after the end.
            let wrong = Begun { tokens: before.to_vec(), text_bytes: seen.len() + 1 };
            let refused = matches!(new().resume(&wrong), Err(TurnError::Begun { .. }));
            prop_assert!(refused);
        }
        let tokens = whole.tokens.iter().copied().chain([1]).collect();
        let beyond = Begun { tokens, text_bytes: whole.text.last().map_or(0, String::len) };
        let refused = matches!(new().resume(&beyond), Err(TurnError::Begun { .. }));
        prop_assert!(refused);
    }
}
