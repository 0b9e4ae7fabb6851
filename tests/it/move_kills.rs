//! Moves in which a real process is killed: the source or the target, at chosen bytes of the stream between them and at
//! chosen changes of the store. A group drains with its sessions; whatever is left of the cluster then must answer each
//! session's turns as if nothing had been, with one owner each and with every slot back at the end.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::time::Duration;

use futures_util::future::join_all;
use hawser_client::{Client, ClientError, wire};
use hawser_common::tasks::Tasks;
use hawser_common::{Coded as _, ErrorCode};
use hawser_proto::v1;
use hawser_tests::demo_model;
use tokio::sync::watch;
use v1::store_event::Event;

use crate::cluster::{Answer, eventually, run_within, token_request, words};
use crate::hop::{Hop, Point};
use crate::process::{Server, connect};
use crate::rebalance::letters;

/// Longest that anything may take, the end of a dead group's lease included.
const LIMIT: Duration = Duration::from_secs(30);
const ANSWER: u32 = 6;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Victim {
    Source,
    Target,
}

/// When it is killed.
#[derive(Clone, Debug)]
enum Moment {
    /// So many bytes of each session's move have come to the target.
    Bytes(Vec<usize>),
    /// All is staged and the claims are released, which the target has not heard.
    Released,
    /// The target has the claims, which the source has not heard.
    Claimed,
    /// The store says that the first claim was released, and nothing is held up.
    FirstReleased,
}

/// What becomes of a turn that carries only what is new.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Delta {
    Answered,
    Lost,
    Either,
}

impl Moment {
    fn points(&self, sessions: usize) -> Vec<Point> {
        match self {
            Self::Bytes(counts) => counts.iter().map(|&count| Point::Bytes(count)).collect(),
            // The second answer is that all is staged, and the third that the claim is won.
            Self::Released => vec![Point::AfterAnswer(2); sessions],
            Self::Claimed => vec![Point::BeforeAnswer(3); sessions],
            Self::FirstReleased => Vec::new(),
        }
    }

    fn delta(&self, victim: Victim) -> Delta {
        match (self, victim) {
            // Its owner is dead, or it was released and nobody has claimed it, or who has is dead.
            (Self::Bytes(_), Victim::Source) | (Self::Released | Self::Claimed, Victim::Target) => {
                Delta::Lost
            }
            // The target claims it, though nobody tells it to; the source offers it to the next group.
            (Self::Released | Self::Claimed, Victim::Source) | (Self::Bytes(_), Victim::Target) => {
                Delta::Answered
            }
            (Self::FirstReleased, _) => Delta::Either,
        }
    }
}

/// What groups compute with.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Engine {
    Simulated,
    Model,
}

impl Engine {
    fn tokens(self, seed: usize, count: usize) -> Vec<u32> {
        match self {
            Self::Simulated => letters(seed, count),
            Self::Model => words(seed as u32, count),
        }
    }

    /// Sessions of a round, and tokens of their first prompts.
    fn sizes(self) -> (usize, usize) {
        match self {
            Self::Simulated => (4, 3_000),
            Self::Model => (2, 130),
        }
    }

    async fn start(self, uri: &str, group: &str, room: usize, hop: Option<&Hop>) -> Server {
        let room = match self {
            Self::Simulated => 20_000 * room,
            Self::Model => 1_000 * room,
        };
        let (room, model) = (room.to_string(), demo_model());
        let mut arguments =
            vec!["worker", "--router", uri, "--group", group, "--slots", &room, "--threads", "1"];
        match self {
            Self::Simulated => {
                arguments.extend(["--engine", "simulated", "--set", "worker.simulated.time_scale=0.0"]);
            }
            Self::Model => arguments.extend(["--model", model.to_str().unwrap()]),
        }
        arguments.extend(["--set", "worker.lease_ttl_ms=2000"]);
        let advertise = hop.map(|hop| format!("worker.advertise={}", hop.uri()));
        arguments.extend(advertise.iter().flat_map(|advertise| ["--set", advertise]));
        let mut server = Server::start(&arguments);
        let address = server.uri_after(&format!("group {group} serves at ")).await;
        if let Some(hop) = hop {
            hop.leads_to(&address);
        }
        server
    }
}

type Owner = (String, u64);

/// Who owns what, as the store tells everyone.
#[derive(Clone, Debug, Default)]
struct Claims {
    owners: BTreeMap<String, Owner>,
    /// A claim that was made while another group had one.
    broken: Option<String>,
}

impl Claims {
    async fn follow(uri: &str) -> watch::Receiver<Self> {
        let mut store = v1::store_client::StoreClient::connect(uri.to_owned()).await.unwrap();
        let mut changes = store.watch(v1::WatchRequest {}).await.unwrap().into_inner();
        let (claims, followed) = watch::channel(Self::default());
        Tasks::new().spawn(async move {
            while let Ok(Some(update)) = changes.message().await {
                claims.send_modify(|claims| {
                    update.events.into_iter().filter_map(|event| event.event).for_each(|e| claims.heard(e));
                });
            }
        });
        followed
    }

    fn heard(&mut self, event: Event) {
        match event {
            Event::Claimed(v1::ClaimChanged { session, owner }) => {
                let (id, owner) = (session.unwrap().session, owner.unwrap());
                let owner = (owner.group, owner.epoch);
                if let Some(other) = self.owners.insert(id.clone(), owner.clone())
                    && other != owner
                {
                    self.broken = Some(format!("{id} is claimed by {owner:?} while {other:?} has it"));
                }
            }
            Event::Released(key) => drop(self.owners.remove(&key.session)),
            // Its claims with it: no more is said of them.
            Event::GroupGone(gone) => self.owners.retain(|_, (group, _)| *group != gone),
            Event::GroupChanged(_) => {}
        }
    }
}

/// A session and what it would say if it stayed where it is.
struct Script {
    id: String,
    /// All tokens up to the end of its first answer.
    whole: Vec<u32>,
    new: [Vec<u32>; 2],
    answers: [Vec<u32>; 2],
}

/// A cluster whose groups are killed round by round; one is always left.
struct Stage {
    engine: Engine,
    uri: String,
    router: Server,
    client: Client,
    claims: watch::Receiver<Claims>,
    source: Server,
    rounds: usize,
    /// Bytes of one session's move up to its end, once one has passed.
    asked: usize,
}

impl Stage {
    async fn start(engine: Engine) -> Self {
        let (router, uri) = Server::router(&[]).await;
        let (client, claims) = (connect(&uri).await, Claims::follow(&uri).await);
        let source = engine.start(&uri, "first", 1, None).await;
        Self { engine, uri, router, client, claims, source, rounds: 0, asked: 0 }
    }

    /// The first turn here, and the others as requests of their own before anything moves.
    async fn begin(&self, seed: usize) -> Script {
        let id = format!("s{seed:04}");
        let prompt = self.engine.tokens(seed, self.engine.sizes().1);
        let first = self.turn(&id, &prompt, wire::Extent::Whole).await.unwrap();
        let whole = [prompt, first.tokens].concat();
        let new = [17, 9].map(|count| self.engine.tokens(seed + 5_000 + count, count));
        let (mut all, mut answers) = (whole.clone(), [Vec::new(), Vec::new()]);
        for (new, answer) in new.iter().zip(&mut answers) {
            all.extend(new);
            *answer = self.turn("", &all, wire::Extent::Whole).await.unwrap().tokens;
            all.extend(&*answer);
        }
        Script { id, whole, new, answers }
    }

    async fn turn(&self, id: &str, tokens: &[u32], extent: wire::Extent) -> Result<Answer, ClientError> {
        let mut request = token_request(id, tokens, ANSWER);
        if let Some(wire::generate_request::Input::Tokens(input)) = &mut request.input {
            input.extent = extent.into();
        }
        run_within(&self.client, request, LIMIT).await
    }

    async fn until(&self, what: &str, holds: impl Fn(&Claims) -> bool) {
        let mut claims = self.claims.clone();
        let held = tokio::time::timeout(LIMIT, claims.wait_for(holds)).await;
        assert!(held.is_ok_and(|held| held.is_ok()), "did not happen: {what}");
    }

    /// One drain of the source with a kill in it.
    async fn round(&mut self, victim: Victim, moment: Moment) {
        let (engine, round) = (self.engine, self.rounds);
        self.rounds += 1;
        let at = format!("{engine:?}, round {round}, {victim:?} killed at {moment:?}");
        let (sessions, _) = engine.sizes();
        let seeds: Range<usize> = round * sessions..(round + 1) * sessions;
        let scripts = join_all(seeds.map(|seed| self.begin(seed))).await;
        let hop = Hop::start().await;
        // So much room that every session is offered to it first.
        let mut target = engine.start(&self.uri, &format!("target-{round}"), 100, Some(&hop)).await;
        let other = match victim {
            Victim::Source => None,
            Victim::Target => Some(engine.start(&self.uri, &format!("other-{round}"), 1, None).await),
        };
        hop.arm(&moment.points(sessions));
        self.source.terminate();
        self.wait_for(&moment, &hop, (&scripts, &at)).await;
        match other {
            None => {
                self.source.kill_now().await;
                self.source = target;
            }
            Some(other) => {
                target.kill_now().await;
                let source = std::mem::replace(&mut self.source, other);
                let ended = tokio::time::timeout(LIMIT, source.ended()).await;
                assert!(ended.is_ok(), "{at}: the source does not end");
            }
        }
        let delta = moment.delta(victim);
        join_all(scripts.iter().enumerate().map(|(n, script)| {
            // Every other one is asked for the whole at once.
            let delta = (n % 2 == 0).then_some(delta);
            self.goes_on(script, delta, format!("{at}, session {}", script.id))
        }))
        .await;
        self.everything_is_back(&scripts, &at).await;
        self.asked = hop.asked();
    }

    /// Until it is time to kill.
    async fn wait_for(&self, moment: &Moment, hop: &Hop, (scripts, at): (&[Script], &str)) {
        let owned = |claims: &Claims| scripts.iter().filter(|s| claims.owners.contains_key(&s.id)).count();
        let holds = |count| async move {
            let held = tokio::time::timeout(LIMIT, hop.holds(count)).await;
            assert!(held.is_ok(), "{at}: not every session came to its point");
        };
        match moment {
            Moment::Bytes(counts) => holds(counts.len()).await,
            Moment::Released => {
                holds(scripts.len()).await;
                self.until(&format!("{at}: all are released"), |claims| owned(claims) == 0).await;
            }
            Moment::Claimed => holds(scripts.len()).await,
            Moment::FirstReleased => {
                self.until(&format!("{at}: one is released"), |claims| owned(claims) < scripts.len()).await;
            }
        }
    }

    /// The next turn and the one after have the tokens that they would have had.
    async fn goes_on(&self, script: &Script, delta: Option<Delta>, at: String) {
        let Script { id, whole, new, answers } = script;
        let answered = if let Some(expected) = delta {
            match self.turn(id, &new[0], wire::Extent::Delta).await {
                Ok(answer) => {
                    assert_ne!(expected, Delta::Lost, "{at}: {answer:?}");
                    assert_eq!(
                        answer.usage().prefilled_tokens as usize,
                        new[0].len() + 1,
                        "{at}: rows moved"
                    );
                    Some(answer)
                }
                Err(error) => {
                    assert_eq!(error.code(), ErrorCode::SessionLost, "{at}: {error}");
                    assert_ne!(expected, Delta::Answered, "{at}: {error}");
                    None
                }
            }
        } else {
            None
        };
        let answer = match answered {
            Some(answer) => answer,
            None => {
                let all = [&whole[..], &new[0]].concat();
                let answer = self.turn(id, &all, wire::Extent::Whole).await;
                answer.unwrap_or_else(|error| panic!("{at}: the whole conversation: {error}"))
            }
        };
        assert_eq!(answer.tokens, answers[0], "{at}: the turn after the move");
        let answer = self.turn(id, &new[1], wire::Extent::Delta).await;
        let answer = answer.unwrap_or_else(|error| panic!("{at}: the turn after that: {error}"));
        assert_eq!(answer.tokens, answers[1], "{at}: the turn after that");
        let owner = self.claims.borrow().owners.get(id).cloned();
        assert_eq!(owner.map(|(group, _)| group), Some(answer.group), "{at}: who serves has the claim");
    }

    /// One group is left, has each session once, and nothing else when they are closed.
    async fn everything_is_back(&self, scripts: &[Script], at: &str) {
        let groups = async || self.client.list_groups().await.unwrap();
        eventually(&format!("{at}: one group is left"), async || groups().await.len() == 1).await;
        let listed = self.client.list_sessions(1_000).await.unwrap();
        let mut holders: HashMap<String, Vec<Owner>> = HashMap::new();
        for session in listed.sessions {
            holders.entry(session.id).or_default().push((session.group, session.epoch));
        }
        let Claims { owners, broken } = self.claims.borrow().clone();
        assert_eq!(broken, None, "{at}");
        for script in scripts {
            let owner = &owners[&script.id];
            assert_eq!(
                holders.get(&script.id),
                Some(&vec![owner.clone()]),
                "{at}: {} has one owner",
                script.id
            );
            self.client.close_session(&script.id).await.unwrap();
        }
        let free = async || {
            groups().await.iter().filter_map(|group| group.capacity).all(|capacity| {
                let left = capacity.slots_free + capacity.slots_idle;
                left == capacity.slots_total && capacity.running + capacity.queued == 0
            })
        };
        eventually(&format!("{at}: every slot is back"), free).await;
        let gone = |claims: &Claims| scripts.iter().all(|script| !claims.owners.contains_key(&script.id));
        self.until(&format!("{at}: no claim is left"), gone).await;
    }

    async fn stop(self) {
        let Self { client, router, source, .. } = self;
        drop(client);
        source.stop().await;
        router.stop().await;
    }
}

/// Rounds over a whole simulated move: its first bytes, its parts, and its last bytes.
async fn rounds(victim: Victim) {
    let mut stage = Stage::start(Engine::Simulated).await;
    stage.round(victim, Moment::FirstReleased).await;
    let all = stage.asked;
    assert!(all > 20_000, "{all} bytes, measured on the way");
    let points =
        [0, 1, 30, 200, all / 8, all / 4, all / 3, all / 2, all * 2 / 3, all * 7 / 8, all - 200, all - 64];
    for points in points.chunks(4) {
        stage.round(victim, Moment::Bytes(points.to_vec())).await;
    }
    stage.round(victim, Moment::Released).await;
    stage.round(victim, Moment::Claimed).await;
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn p12_sessions_outlive_a_source_that_is_killed_at_any_point_of_their_move() {
    rounds(Victim::Source).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn p12_sessions_outlive_a_target_that_is_killed_at_any_point_of_their_move() {
    rounds(Victim::Target).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn p12_real_rows_on_their_way_may_be_lost_and_never_mixed_up() {
    // 130 rows of 23 kB: the manifest, the first chunk, and almost all.
    let mut stage = Stage::start(Engine::Model).await;
    stage.round(Victim::Source, Moment::Bytes(vec![700_000, 2_900_000])).await;
    stage.round(Victim::Target, Moment::Bytes(vec![20_000, 2_000_000])).await;
    stage.round(Victim::Source, Moment::Released).await;
    stage.stop().await;
}
