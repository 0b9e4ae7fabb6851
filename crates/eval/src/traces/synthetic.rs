//! Synthetic sessions in which the intent switches: topic A, then others, then A again.
//!
//! Each topic is a site with desks, and each desk has an access code. A site's directory arrives once, as a tool
//! result in which the facts stand among filler and among distractors of the same template; every later question about
//! the site can only be answered from that result. Owns the words, the schedule of visits and the right answers
//! ([`Probe`]). Promises that the same options give the same sessions, that every code of a session is different, and
//! that no filler contains one. Never asks a model.

mod options;
mod words;

use hawser_common::chat::Role;
use rand::rngs::StdRng;
use rand::seq::{IndexedRandom, SliceRandom};
use rand::{RngExt, SeedableRng};
use serde_json::{Map, Value, json};

pub use options::{Answer, InvalidSynthetic, SyntheticOptions};

use super::{Split, Trace, TraceCall, TraceMessage, TraceTool};
use words::{COLOURS, DESKS, FILLER, SITES};

/// Source of every synthetic session.
pub const SOURCE: &str = "synthetic";
/// Codes have five digits.
const CODES: std::ops::Range<u32> = 10_000..100_000;
const FILLER_WORDS: std::ops::RangeInclusive<usize> = 8..=16;
const SYSTEM: &str = "You look after the access codes of desks at several sites. Read a site's directory with a tool \
    once, then answer from it. Give codes exactly as the directory has them.";

/// A session and what the right answers in it are.
#[derive(Clone, Debug, PartialEq)]
pub struct Synthetic {
    pub trace: Trace,
    /// In the order of the session, one for each turn.
    pub probes: Vec<Probe>,
}

/// One answer that has to come from earlier in the session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// The assistant message that gives the code, as an index into the trace's messages.
    pub message: usize,
    /// The right code.
    pub code: String,
    /// Turns about other sites between the last turn about this one and this turn; none on a first visit.
    pub gap: Option<usize>,
    /// Codes of the same site that are wrong here, the site's other facts included.
    pub rivals: Vec<String>,
}

/// The first `sessions` sessions of the options' seed. Session *i* is the same, however many are made.
///
/// # Errors
/// [`InvalidSynthetic`] for options beyond their bounds.
pub fn synthetic_traces(
    options: &SyntheticOptions,
    sessions: usize,
) -> Result<Vec<Synthetic>, InvalidSynthetic> {
    options.check()?;
    let mut root = StdRng::seed_from_u64(options.seed);
    Ok((0..sessions).map(|index| session(options, index, &mut StdRng::from_rng(&mut root))).collect())
}

/// A desk and its code.
#[derive(Clone)]
struct Fact {
    desk: String,
    code: String,
}

/// A topic: its facts first, then its distractors, and the directory that has them all.
struct Site {
    name: &'static str,
    facts: Vec<Fact>,
    directory: String,
}

fn session(options: &SyntheticOptions, index: usize, rng: &mut StdRng) -> Synthetic {
    let sites = sites(options, rng);
    let mut script = Script::new();
    let mut last_turns: Vec<Option<usize>> = vec![None; sites.len()];
    let mut visits = vec![0; sites.len()];
    for (turn, topic) in schedule(options).into_iter().enumerate() {
        let site = &sites[topic];
        let asked = visits[topic] % options.facts;
        script.turn(site, asked, last_turns[topic].map(|last| turn - last - 1), options.answer);
        last_turns[topic] = Some(turn);
        visits[topic] += 1;
    }
    let split = if index.is_multiple_of(2) { Split::Dev } else { Split::Test };
    let trace = Trace {
        id: format!("{SOURCE}/{}/{index}", options.name()),
        source: SOURCE.to_owned(),
        split: Some(split),
        tools: tools(options.answer),
        messages: script.messages,
    };
    Synthetic { trace, probes: script.probes }
}

/// The topic of each turn: the first one as often as it has facts, `gap` turns about the others in turn between.
fn schedule(options: &SyntheticOptions) -> Vec<usize> {
    let mut others = (1..options.topics).cycle();
    let mut topics = vec![0];
    for _ in 1..options.facts {
        topics.extend(others.by_ref().take(options.gap));
        topics.push(0);
    }
    topics
}

fn sites(options: &SyntheticOptions, rng: &mut StdRng) -> Vec<Site> {
    let count = options.facts + options.distractors;
    let mut desks: Vec<String> =
        COLOURS.iter().flat_map(|colour| DESKS.iter().map(move |desk| format!("{colour} {desk}"))).collect();
    desks.shuffle(rng);
    let codes = rand::seq::index::sample(rng, CODES.len(), options.topics * count);
    let mut facts = desks.into_iter().zip(codes).map(|(desk, offset)| {
        let code = CODES.start + u32::try_from(offset).expect("an offset lies within the range of codes");
        Fact { desk, code: code.to_string() }
    });
    let mut sites = Vec::with_capacity(options.topics);
    for &name in SITES.sample(rng, options.topics) {
        let facts: Vec<Fact> = facts.by_ref().take(count).collect();
        sites.push((name, facts));
    }
    let site = |(name, facts): (&'static str, Vec<Fact>)| {
        let directory = directory(name, &facts, options.filler_bytes, rng);
        Site { name, facts, directory }
    };
    sites.into_iter().map(site).collect()
}

/// The tool result: facts and distractors at random places among filler.
fn directory(site: &str, facts: &[Fact], filler_bytes: usize, rng: &mut StdRng) -> String {
    let mut entries: Vec<String> = facts
        .iter()
        .map(|fact| format!("The access code of the {} desk is {}.", fact.desk, fact.code))
        .collect();
    let mut filler = 0;
    while filler < filler_bytes {
        let words = rng.random_range(FILLER_WORDS);
        let words: Vec<&str> =
            (0..words).map(|_| *FILLER.choose(rng).expect("the list is not empty")).collect();
        let sentence = format!("Note: {}.", words.join(" "));
        filler += sentence.len();
        entries.push(sentence);
    }
    entries.shuffle(rng);
    let entries: Vec<Value> =
        entries.into_iter().enumerate().map(|(id, text)| json!({ "id": id + 1, "text": text })).collect();
    json!({ "site": site, "entries": entries }).to_string()
}

/// The conversation as it is written.
struct Script {
    messages: Vec<TraceMessage>,
    probes: Vec<Probe>,
    calls: usize,
}

impl Script {
    fn new() -> Self {
        Self { messages: vec![TraceMessage::text(Role::System, SYSTEM)], probes: Vec::new(), calls: 0 }
    }

    /// One question about one desk; the first about a site reads its directory before.
    fn turn(&mut self, site: &Site, asked: usize, gap: Option<usize>, answer: Answer) {
        let fact = &site.facts[asked];
        let question = match answer {
            Answer::Text => {
                format!("What is the access code of the {} desk at the {}?", fact.desk, site.name)
            }
            Answer::Call => format!("Please unlock the {} desk at the {}.", fact.desk, site.name),
        };
        self.messages.push(TraceMessage::text(Role::User, question));
        if gap.is_none() {
            self.call("read_directory", json!({ "site": site.name }), site.directory.clone());
        }
        let rivals = site.facts.iter().map(|other| other.code.clone()).filter(|code| *code != fact.code);
        let message = self.messages.len();
        self.probes.push(Probe { message, code: fact.code.clone(), gap, rivals: rivals.collect() });
        let said = match answer {
            Answer::Text => format!("The access code of the {} desk is {}.", fact.desk, fact.code),
            Answer::Call => {
                let arguments = json!({ "site": site.name, "desk": fact.desk, "code": fact.code });
                self.call("unlock_desk", arguments, json!({ "unlocked": true }).to_string());
                format!("The {} desk is unlocked.", fact.desk)
            }
        };
        self.messages.push(TraceMessage::text(Role::Assistant, said));
    }

    fn call(&mut self, name: &str, arguments: Value, result: String) {
        self.calls += 1;
        let id = format!("call_{}", self.calls);
        let call = TraceCall { id, name: name.to_owned(), arguments: object(arguments) };
        let result = TraceMessage::result(&call, result);
        self.messages.extend([TraceMessage::call(call), result]);
    }
}

fn tools(answer: Answer) -> Vec<TraceTool> {
    let read = tool("read_directory", "Reads the directory of a site.", &["site"]);
    match answer {
        Answer::Text => vec![read],
        Answer::Call => {
            vec![read, tool("unlock_desk", "Unlocks a desk with its access code.", &["site", "desk", "code"])]
        }
    }
}

/// A tool that takes texts, all of them required.
fn tool(name: &str, description: &str, arguments: &[&str]) -> TraceTool {
    let properties: Map<String, Value> =
        arguments.iter().map(|&argument| (argument.to_owned(), json!({ "type": "string" }))).collect();
    let parameters = json!({ "type": "object", "properties": properties, "required": arguments });
    TraceTool { name: name.to_owned(), description: description.to_owned(), parameters: object(parameters) }
}

/// The entries of a literal object.
fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(entries) => entries,
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => Map::new(),
    }
}
