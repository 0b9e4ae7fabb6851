//! Groups with random loads and old news of each other: the decisions come to an end.

use std::collections::HashMap;
use std::time::Duration;

use hawser_common::clock::Tick;
use hawser_common::group::{Capacity, GroupRecord};
use hawser_common::{Epoch, GroupId, SessionId, SessionKey, TenantId};
use proptest::prelude::*;
use rand::SeedableRng as _;
use rand::rngs::StdRng;

use super::*;

const PERIOD: Duration = Duration::from_secs(2);
const SPEEDS: Speeds = Speeds { turn_s: 1.0, row_s: 1e-3, bytes_per_s: 1e8, row_bytes: 1e4 };

fn key(n: usize) -> SessionKey {
    SessionKey { tenant: TenantId::single(), session: SessionId::parse(&format!("s{n}")).unwrap() }
}

fn options(stay_s: u64, rest_s: u64) -> Options {
    Options {
        session_stay: Duration::from_secs(stay_s),
        group_rest: Duration::from_secs(rest_s),
        gain_factor: 2.0,
    }
}

#[derive(Clone)]
struct Session {
    number: usize,
    needs: usize,
    idle: Duration,
    /// Turns in progress, on average.
    calls: f64,
    came: Option<Tick>,
}

struct Group {
    id: GroupId,
    slots: usize,
    places: usize,
    sessions: Vec<Session>,
    rebalancer: Rebalancer,
    /// What others know.
    published: GroupRecord,
}

impl Group {
    fn new(number: usize, slots: usize, places: usize, options: Options) -> Self {
        let id = GroupId::parse(&format!("g{number}")).unwrap();
        let published = GroupRecord {
            id: id.clone(),
            model: "m".to_owned(),
            address: String::new(),
            tp: 1,
            epoch: Epoch(1),
            capacity: Capacity::default(),
            draining: false,
        };
        let rebalancer = Rebalancer::new(options);
        let mut group = Self { id, slots, places, sessions: Vec::new(), rebalancer, published };
        group.publish();
        group
    }

    fn capacity(&self) -> Capacity {
        let held: usize = self.sessions.iter().map(|session| session.needs).sum();
        let calls: f64 = self.sessions.iter().map(|session| session.calls).sum();
        let running = (calls.round() as u32).min(self.places as u32);
        Capacity {
            slots_total: self.slots as u64,
            slots_free: self.slots.saturating_sub(held) as u64,
            slots_idle: held.min(self.slots) as u64,
            sessions: self.sessions.len() as u64,
            running,
            queued: calls.round() as u32 - running,
            ..Capacity::default()
        }
    }

    fn publish(&mut self) {
        self.published.capacity = self.capacity();
    }

    fn own(&self, now: Tick) -> Own {
        let candidate = |session: &Session| Candidate {
            key: key(session.number),
            rows: session.needs,
            needs: session.needs,
            idle: session.idle,
            here: session.came.map(|came| now.since(came)),
            busy: false,
        };
        let sessions = self.sessions.iter().map(candidate).collect();
        Own { capacity: self.capacity(), places: self.places, sessions }
    }

    fn level(&self, now: Tick) -> f64 {
        self.rebalancer.own_load(&self.own(now)).level()
    }
}

struct World {
    groups: Vec<Group>,
    now: Tick,
    rng: StdRng,
    /// How many rounds in a hundred a group's news is heard in.
    heard: u32,
}

/// A move that happened.
#[derive(Debug)]
struct Moved {
    session: usize,
    to: usize,
    at: Tick,
    /// By how much the sum of squared levels fell.
    fell: f64,
    share: f64,
}

impl World {
    fn new(seed: u64, sizes: &[(usize, usize)], options: Options, heard: u32) -> Self {
        let groups = sizes.iter().enumerate();
        let groups = groups.map(|(n, &(slots, places))| Group::new(n, slots, places, options)).collect();
        Self { groups, now: Tick(Duration::from_secs(1_000)), rng: StdRng::seed_from_u64(seed), heard }
    }

    fn fill(&mut self, sessions: usize, calls: f64) {
        for number in 0..sessions {
            // Most of them at few groups: what routers did before others joined.
            let at = self.rng.random_range(0..self.groups.len());
            let at = at.min(self.rng.random_range(0..self.groups.len()));
            let needs = self.rng.random_range(20..400);
            let idle = Duration::from_secs(self.rng.random_range(1..300));
            let calls = self.rng.random_range(0.0..=calls);
            self.groups[at].sessions.push(Session { number, needs, idle, calls, came: None });
        }
    }

    /// Sessions are used, grow and pause, come and go.
    fn disturb(&mut self) {
        let Self { groups, rng, .. } = self;
        for session in groups.iter_mut().flat_map(|group| &mut group.sessions) {
            match rng.random_range(0..10) {
                0 => (session.idle, session.needs) = (Duration::from_secs(1), session.needs + 20),
                1 => session.needs = rng.random_range(20..400),
                _ => session.idle += PERIOD,
            }
        }
    }

    /// Every group decides by what it has heard, all at the same time; then each target decides by what is.
    fn round(&mut self) -> Vec<Moved> {
        self.now = self.now.after(PERIOD);
        let now = self.now;
        for group in &mut self.groups {
            if self.rng.random_range(0..100) < self.heard {
                group.publish();
            }
        }
        let records: Vec<GroupRecord> = self.groups.iter().map(|group| group.published.clone()).collect();
        let mut proposals = Vec::new();
        for (from, group) in self.groups.iter_mut().enumerate() {
            let others: Vec<_> = records.iter().filter(|record| record.id != group.id).cloned().collect();
            let capacity = group.capacity();
            let looks = group.rebalancer.sample(&capacity);
            group.rebalancer.sample_others(&others, now);
            let decided = group.rebalancer.decide(&group.own(now), &others, &SPEEDS, now);
            assert!(looks || decided.is_err(), "a group that does not look has no reason to move");
            proposals.extend(decided.ok().map(|proposal| (from, proposal)));
        }
        proposals.into_iter().filter_map(|(from, proposal)| self.carry_out(from, &proposal)).collect()
    }

    fn carry_out(&mut self, from: usize, proposal: &Proposal) -> Option<Moved> {
        let now = self.now;
        let to = self.groups.iter().position(|group| group.id == proposal.target).unwrap();
        assert!(proposal.gain_s > 2.0 * proposal.cost_s);
        let own = self.groups[to].own(now);
        if self.groups[to].rebalancer.accept(&own, &proposal.terms, now).is_err() {
            self.groups[from].rebalancer.refused(&proposal.target, now);
            return None;
        }
        let before: Vec<f64> = self.groups.iter().map(|group| group.level(now)).collect();
        let sessions = &mut self.groups[from].sessions;
        let at = sessions.iter().position(|session| key(session.number) == proposal.session).unwrap();
        let mut session = sessions.remove(at);
        let number = session.number;
        session.came = Some(now);
        self.groups[to].sessions.push(session);
        self.groups[from].rebalancer.gave(proposal, now);
        self.groups[to].rebalancer.took(Some(&proposal.terms), now);
        let after: Vec<f64> = self.groups.iter().map(|group| group.level(now)).collect();
        assert!(after[to] + MARGIN <= after[from] + 1e-9, "{before:?} became {after:?}");
        assert!(after[from].max(after[to]) < before[from], "{before:?} became {after:?}");
        let squares = |levels: &[f64]| levels.iter().map(|level| level * level).sum::<f64>();
        let fell = squares(&before) - squares(&after);
        Some(Moved { session: number, to, at: now, fell, share: after[to] - before[to] })
    }

    fn squares(&self) -> f64 {
        self.groups.iter().map(|group| group.level(self.now).powi(2)).sum()
    }
}

/// Until nothing has moved for as long as any rest or refusal lasts.
fn settle(world: &mut World) -> Vec<Moved> {
    let (mut moves, mut quiet) = (Vec::new(), 0);
    for _ in 0..20_000 {
        let moved = world.round();
        quiet = if moved.is_empty() { quiet + 1 } else { 0 };
        moves.extend(moved);
        if quiet > 200 {
            return moves;
        }
    }
    panic!("it never comes to rest: {moves:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Equal groups, however old the news and however short the rests: each move brings the loads together by at least
    /// the margin, so that there are no more of them than the imbalance allows, and then none.
    #[test]
    fn moves_are_bounded_by_the_imbalance(
        seed: u64,
        count in 2usize..7,
        sessions in 1usize..120,
        heard in prop::sample::select(vec![10u32, 50, 100]),
        rest_s in prop::sample::select(vec![0u64, 6, 30]),
        disturbed in 0usize..20,
    ) {
        let mut world = World::new(seed, &vec![(4_000, 16); count], options(rest_s, rest_s), heard);
        world.fill(sessions, 0.0);
        for _ in 0..disturbed {
            world.disturb();
            world.round();
        }
        let before = world.squares();
        let moves = settle(&mut world);
        let after = world.squares();
        let mean: f64 = world.groups.iter().map(|group| group.level(world.now)).sum::<f64>() / count as f64;
        let least = moves.iter().map(|moved| moved.share).fold(f64::INFINITY, f64::min);
        for moved in &moves {
            prop_assert!(moved.fell >= 2.0 * MARGIN * moved.share - 1e-9, "{moved:?}");
        }
        let imbalance = before - mean * mean * count as f64;
        prop_assert!(moves.len() as f64 <= imbalance / (2.0 * MARGIN * least) + 1e-9, "{moves:?}");
        prop_assert!(before - after >= -1e-9);
    }

    /// Groups of any sizes, with turns that wait and of which each session has another part than is thought: it comes to
    /// rest, after a few moves of each session at most, between which it stays.
    #[test]
    fn unequal_groups_come_to_rest_and_what_moved_stays_a_while(
        seed: u64,
        sizes in prop::collection::vec((500usize..8_000, 1usize..40), 2..6),
        sessions in 1usize..100,
        calls in 0.0f64..1.5,
        heard in prop::sample::select(vec![10u32, 50, 100]),
    ) {
        let mut world = World::new(seed, &sizes, options(300, 30), heard);
        world.fill(sessions, calls);
        // Samples take a while to be what they are of.
        for group in &mut world.groups {
            let capacity = group.capacity();
            (0..50).for_each(|_| { group.rebalancer.sample(&capacity); });
        }
        let moves = settle(&mut world);
        let mut last: HashMap<usize, Tick> = HashMap::new();
        for Moved { session, at, .. } in &moves {
            let before = last.insert(*session, *at);
            let stayed = before.is_none_or(|before| at.since(before) >= Duration::from_secs(300));
            prop_assert!(stayed, "session {session} did not stay: {moves:?}");
        }
        prop_assert!(moves.len() <= 2 * sessions, "{moves:?}");
    }
}

/// One group has everything, a second one is empty.
fn scale_out(needs: usize, sessions: usize) -> World {
    let mut world = World::new(1, &[(4_000, 16), (4_000, 16)], options(300, 30), 100);
    for number in 0..sessions {
        let idle = Duration::from_secs(1);
        world.groups[0].sessions.push(Session { number, needs, idle, calls: 0.0, came: None });
    }
    world.groups[0].publish();
    world
}

#[test]
fn a_new_group_relieves_a_full_one_of_what_it_cannot_keep_and_no_more() {
    let mut world = scale_out(100, 39);
    let moves = settle(&mut world);
    assert!((6..=9).contains(&moves.len()), "{moves:?}");
    assert!(moves.iter().all(|moved| moved.to == 1), "{moves:?}");
    let load = world.groups[0].rebalancer.own_load(&world.groups[0].own(world.now));
    assert!(load.overflow() < 100.0, "{load:?}");
    // What fits stays, however empty the other group is.
    assert!(settle(&mut scale_out(100, 30)).is_empty());
}

#[test]
fn nothing_moves_that_costs_more_than_it_saves() {
    let mut world = scale_out(100, 39);
    let now = world.now;
    let others = [world.groups[1].published.clone()];
    let group = &mut world.groups[0];
    group.rebalancer.sample_others(&others, now);
    let own = group.own(now);
    let decide = |speeds: Speeds| group.rebalancer.decide(&own, &others, &speeds, now);
    assert!(decide(SPEEDS).is_ok());
    let slow = Speeds { bytes_per_s: 1e6, ..SPEEDS };
    assert_eq!(decide(slow), Err(Stay::NoGain), "the network is slower than computing");
    assert_eq!(decide(Speeds { row_s: 0.0, ..SPEEDS }), Err(Stay::NoGain), "nobody knows what rows cost");
}

#[test]
fn what_came_rests_what_is_in_use_stays_and_who_refused_is_passed_over() {
    let mut world = scale_out(100, 39);
    let now = world.now;
    let others = [world.groups[1].published.clone()];
    let group = &mut world.groups[0];
    group.rebalancer.sample_others(&others, now);
    let mut own = group.own(now);
    for session in &mut own.sessions {
        session.here = Some(Duration::from_secs(299));
    }
    assert_eq!(group.rebalancer.decide(&own, &others, &SPEEDS, now), Err(Stay::NoGain));
    own.sessions[7].here = Some(Duration::from_secs(300));
    let proposal = group.rebalancer.decide(&own, &others, &SPEEDS, now).unwrap();
    assert_eq!(proposal.session, key(7));
    own.sessions[7].busy = true;
    assert_eq!(group.rebalancer.decide(&own, &others, &SPEEDS, now), Err(Stay::NoGain));
    own.sessions[7].busy = false;
    group.rebalancer.refused(&proposal.target, now);
    assert_eq!(group.rebalancer.decide(&own, &others, &SPEEDS, now), Err(Stay::Alone));
    group.rebalancer.sample_others(&others, now.after(SHUNNED));
    assert!(group.rebalancer.decide(&own, &others, &SPEEDS, now.after(SHUNNED)).is_ok());
    group.rebalancer.took(None, now);
    assert_eq!(group.rebalancer.decide(&own, &others, &SPEEDS, now), Err(Stay::Resting));
    let terms = Terms { level: 9.0, ..proposal.terms };
    assert_eq!(group.rebalancer.accept(&own, &terms, now), Ok(()));
    assert_eq!(
        group.rebalancer.accept(&own, &Terms { level: f64::NAN, ..terms }, now),
        Err(Unbalanced::Loaded)
    );
    group.rebalancer.gave(&proposal, now);
    assert_eq!(group.rebalancer.accept(&own, &terms, now), Err(Unbalanced::Resting));
}

#[test]
fn two_groups_that_choose_the_same_one_do_not_both_fill_it() {
    let mut world = World::new(1, &[(4_000, 16), (4_000, 16), (400, 16)], options(300, 0), 10);
    for number in 0..80 {
        let idle = Duration::from_secs(1);
        let session = Session { number, needs: 100, idle, calls: 0.0, came: None };
        world.groups[number % 2].sessions.push(session);
    }
    let moves = settle(&mut world);
    let there = world.groups[2].level(world.now);
    assert!(!moves.is_empty() && there <= 0.9, "{there}: {moves:?}");
}
