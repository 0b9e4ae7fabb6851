use std::collections::BTreeSet;

use hawser_common::chat::Role;

use super::check::check;
use super::synthetic::{Answer, InvalidSynthetic, Synthetic, SyntheticOptions, synthetic_traces};
use super::{Split, TraceMessage};

/// Options over the whole range that a measurement uses.
fn spread() -> Vec<SyntheticOptions> {
    let mut all = Vec::new();
    for gap in [1, 3, 6] {
        for answer in [Answer::Text, Answer::Call] {
            for (topics, distractors) in [(2, 0), (3, 3), (12, 20)] {
                let seed = rand::random();
                let default = SyntheticOptions::default();
                all.push(SyntheticOptions { topics, gap, distractors, answer, seed, ..default });
            }
        }
    }
    all
}

fn sessions(options: &SyntheticOptions) -> Vec<Synthetic> {
    synthetic_traces(options, 4).unwrap()
}

/// What a reader of the message sees of an answer.
fn shown(message: &TraceMessage) -> String {
    let calls: Vec<String> =
        message.tool_calls.iter().map(|call| super::json_text(&call.arguments)).collect();
    format!("{}{}", message.content, calls.join(""))
}

#[test]
fn every_session_is_one_that_the_reader_takes() {
    for options in spread() {
        for session in sessions(&options) {
            check(&session.trace).unwrap_or_else(|fault| panic!("{options:?}: {fault}"));
            let line = serde_json::to_string(&session.trace).unwrap();
            assert_eq!(serde_json::from_str::<super::Trace>(&line).unwrap(), session.trace, "{options:?}");
        }
    }
}

#[test]
fn every_answer_stands_in_exactly_one_earlier_tool_result_until_it_is_given() {
    for options in spread() {
        for Synthetic { trace, probes } in sessions(&options) {
            for (number, probe) in probes.iter().enumerate() {
                let before = &trace.messages[..probe.message];
                let in_results = before
                    .iter()
                    .filter(|message| message.role == Role::Tool && message.content.contains(&probe.code));
                assert_eq!(in_results.count(), 1, "{options:?}: {probe:?}");
                assert!(
                    shown(&trace.messages[probe.message]).contains(&probe.code),
                    "{options:?}: {probe:?}"
                );
                let given = probes[..number].iter().any(|earlier| earlier.code == probe.code);
                let said = before
                    .iter()
                    .any(|message| message.role == Role::Assistant && shown(message).contains(&probe.code));
                assert_eq!(said, given, "{options:?}: {probe:?}");
            }
        }
    }
}

#[test]
fn the_first_site_comes_back_after_the_gap_and_asks_for_something_new() {
    for options in spread() {
        for Synthetic { probes, .. } in sessions(&options) {
            assert_eq!(probes.len(), options.facts + (options.facts - 1) * options.gap, "{options:?}");
            let home: Vec<_> = probes.iter().step_by(options.gap + 1).collect();
            let gaps: Vec<_> = home.iter().map(|probe| probe.gap).collect();
            assert_eq!(gaps[0], None);
            assert!(gaps[1..].iter().all(|gap| *gap == Some(options.gap)), "{options:?}: {gaps:?}");
            let codes: BTreeSet<&str> = home.iter().map(|probe| probe.code.as_str()).collect();
            assert_eq!(codes.len(), options.facts, "{options:?}");
        }
    }
}

#[test]
fn rivals_are_the_other_codes_of_the_same_result() {
    for options in spread() {
        for Synthetic { trace, probes } in sessions(&options) {
            for probe in probes {
                let rivals: BTreeSet<&str> = probe.rivals.iter().map(String::as_str).collect();
                assert_eq!(rivals.len(), options.facts + options.distractors - 1, "{options:?}");
                assert!(!rivals.contains(probe.code.as_str()), "{options:?}");
                let result =
                    trace.messages.iter().find(|message| message.content.contains(&probe.code)).unwrap();
                assert!(rivals.iter().all(|code| result.content.contains(code)), "{options:?}");
            }
        }
    }
}

#[test]
fn filler_has_the_size_that_was_asked_for_and_no_digits() {
    for filler_bytes in [0, 1_000, 20_000] {
        let options = SyntheticOptions { filler_bytes, ..SyntheticOptions::default() };
        for Synthetic { trace, .. } in sessions(&options) {
            let directories = trace.messages.iter().filter(|message| message.content.contains("\"entries\""));
            let mut seen = 0;
            for directory in directories {
                let parsed: serde_json::Value = serde_json::from_str(&directory.content).unwrap();
                let entries = parsed["entries"].as_array().unwrap().iter();
                let notes: Vec<&str> = entries
                    .filter_map(|entry| entry["text"].as_str())
                    .filter(|text| text.starts_with("Note: "))
                    .collect();
                let bytes = notes.iter().map(|note| note.len()).sum::<usize>();
                assert!((filler_bytes..filler_bytes + 250).contains(&bytes), "{bytes} of {filler_bytes}");
                assert!(notes.iter().all(|note| !note.contains(|c: char| c.is_ascii_digit())));
                seen += 1;
            }
            assert_eq!(seen, options.topics);
        }
    }
}

#[test]
fn sessions_depend_on_the_seed_and_their_number_alone() {
    let options = SyntheticOptions { seed: 7, ..SyntheticOptions::default() };
    let some = synthetic_traces(&options, 3).unwrap();
    let more = synthetic_traces(&options, 5).unwrap();
    assert_eq!(some[..], more[..3]);
    assert_ne!(more[0].probes, more[1].probes);
    let other = synthetic_traces(&SyntheticOptions { seed: 8, ..options }, 3).unwrap();
    assert_ne!(some[0].probes, other[0].probes);
    let ids: BTreeSet<&str> = more.iter().chain(&other).map(|session| session.trace.id.as_str()).collect();
    assert_eq!(ids.len(), 8);
    assert!(ids.contains("synthetic/t3-f3-g3-b1500-d3-call-s7/0"), "{ids:?}");
    let splits: Vec<_> = more.iter().filter_map(|session| session.trace.split).collect();
    assert_eq!(splits, [Split::Dev, Split::Test, Split::Dev, Split::Test, Split::Dev]);
}

#[test]
fn options_beyond_their_bounds_are_refused() {
    let good = SyntheticOptions::default();
    let cases = [
        (SyntheticOptions { topics: 1, ..good.clone() }, InvalidSynthetic::Topics { topics: 1 }),
        (SyntheticOptions { topics: 13, ..good.clone() }, InvalidSynthetic::Topics { topics: 13 }),
        (SyntheticOptions { facts: 1, ..good.clone() }, InvalidSynthetic::Facts { facts: 1 }),
        (SyntheticOptions { gap: 0, ..good.clone() }, InvalidSynthetic::Gap { gap: 0 }),
        (
            SyntheticOptions { filler_bytes: 2 << 20, ..good.clone() },
            InvalidSynthetic::Filler { filler_bytes: 2 << 20 },
        ),
        (
            SyntheticOptions { distractors: 158, ..good },
            InvalidSynthetic::Distractors { distractors: 158, most: 157 },
        ),
    ];
    for (options, expected) in cases {
        assert_eq!(synthetic_traces(&options, 1).unwrap_err(), expected);
    }
}
