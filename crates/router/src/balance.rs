//! Where a call goes that no group owns. Pure.
//!
//! 1. Groups that were just found unreachable, and groups without room, only where there is no other.
//! 2. Of these, the groups that were sent a conversation that begins alike, as long as they carry no more than their
//!    share and a quarter, so that a common system message does not pile everything up on the group that has it (after
//!    Mirrokni, Thorup and Zadimoghaddam, "Consistent Hashing with Bounded Loads", 2016).
//! 3. Two random choices, the cheaper one wins. Two choices instead of the best: routers see loads that are a second
//!    old, and all taking the best would pile up on it (Mitzenmacher, "The Power of Two Choices in Randomized Load
//!    Balancing", 2001).
//!
//! What a group costs is what runs there now and what its sessions can be expected to run: a session stays for dozens of
//! turns, so that who has many of them is busy later, whatever it does now.

use hawser_common::GroupId;
use hawser_common::clock::Tick;
use rand::{Rng, RngExt as _};

use crate::fleet::Member;

/// Sessions or calls that a group may have for the sake of a common beginning, however little the others have.
const FEW: u64 = 4;
/// How much more what a group's sessions can be expected to run counts than what runs there at the moment: one is over
/// with this turn, the other goes on for all turns of the session that is placed.
const LASTING: u128 = 3;

/// How many sessions a group owns.
pub(crate) type SessionsAt<'a> = dyn Fn(&GroupId) -> u64 + 'a;

/// Chooses one of `candidates`, which all may take the call. `near` are groups that hold rows which the call may share,
/// and `sessions` says how many sessions a group owns.
pub(crate) fn choose<'a>(
    mut candidates: Vec<&'a Member>,
    (near, sessions): (&[GroupId], &SessionsAt<'_>),
    now: Tick,
    rng: &mut impl Rng,
) -> Option<&'a Member> {
    prefer(&mut candidates, |member| member.shunned_until <= now);
    prefer(&mut candidates, |member| !member.is_trusted(now) || room(member) > 0);
    let weigh = |member: &&'a Member| {
        let (calls, sessions) = (member.calls(now), sessions(&member.record.id));
        Weighed { member, is_trusted: member.is_trusted(now), calls, sessions }
    };
    let mut weighed: Vec<_> = candidates.iter().map(weigh).collect();
    let all = Sums::of(&weighed);
    prefer(&mut weighed, |one| near.contains(&one.member.record.id) && all.leaves_room_at(one));
    let first = weighed.swap_remove(index(weighed.len(), rng)?);
    // The second choice is among the others.
    let Some(second) = index(weighed.len(), rng).map(|at| &weighed[at]) else { return Some(first.member) };
    Some(if all.dearer(&first, second) { second.member } else { first.member })
}

fn index(len: usize, rng: &mut impl Rng) -> Option<usize> {
    (len > 0).then(|| rng.random_range(0..len))
}

/// Keeps the good ones, where there are any.
fn prefer<T>(candidates: &mut Vec<T>, good: impl Fn(&T) -> bool) {
    if candidates.iter().any(&good) {
        candidates.retain(good);
    }
}

/// A candidate, and what it carries.
struct Weighed<'a> {
    member: &'a Member,
    is_trusted: bool,
    calls: u64,
    sessions: u64,
}

/// What all candidates carry together, of which each has a share by the size of its pool.
struct Sums {
    calls: u64,
    sessions: u64,
    slots: u64,
}

impl Sums {
    fn of(candidates: &[Weighed<'_>]) -> Self {
        let sum = |of: fn(&Weighed<'_>) -> u64| candidates.iter().map(of).sum();
        Self {
            calls: sum(|one| one.calls),
            sessions: sum(|one| one.sessions),
            slots: sum(|one| slots(one.member)),
        }
    }

    /// Whether one more leaves the group at no more than five quarters of its share, or at a few.
    fn leaves_room_at(&self, one: &Weighed<'_>) -> bool {
        let fits = |has: u64, all: u64| {
            let (share, whole) = (u128::from(slots(one.member)), u128::from(self.slots));
            let most = (u128::from(all + 1) * share * 5).div_ceil(whole * 4);
            u128::from(has + 1) <= most.max(u128::from(FEW))
        };
        fits(one.calls, self.calls) && fits(one.sessions, self.sessions)
    }

    /// Whether `a` costs more than `b`: load per space, and calls of this router alone where either group's word cannot
    /// be gone by.
    fn dearer(&self, a: &Weighed<'_>, b: &Weighed<'_>) -> bool {
        if !(a.is_trusted && b.is_trusted) {
            return a.member.load.count() > b.member.load.count();
        }
        // a.load / a.space > b.load / b.space, without dividing.
        self.load(a).saturating_mul(space(b.member)) > self.load(b).saturating_mul(space(a.member))
    }

    /// Calls with the new one, and those to be expected of the group's sessions if they run as many as all sessions do
    /// now; times the number of all sessions.
    fn load(&self, one: &Weighed<'_>) -> u128 {
        let (calls, sessions) = (u128::from(one.calls), u128::from(one.sessions));
        let (all_calls, all_sessions) = (u128::from(self.calls), u128::from(self.sessions));
        (calls + 1) * (all_sessions + 1) + LASTING * sessions * (all_calls + 1)
    }
}

/// A group that does not say how large its pool is has a share all the same.
fn slots(member: &Member) -> u64 {
    member.record.capacity.slots_total.max(1)
}

/// A slot that an idle session holds is worth half a free one: taking it costs that session a prefill. What is promised
/// to requests that are there already is no room.
fn room(member: &Member) -> u64 {
    let capacity = &member.record.capacity;
    let free = capacity.slots_free.saturating_add(capacity.slots_idle.div_ceil(2));
    free.saturating_sub(capacity.slots_reserved)
}

/// Room, and an eighth of the pool: what a pool that is all but full has left at one moment says little of the next.
fn space(member: &Member) -> u128 {
    u128::from(room(member)) + u128::from(slots(member).div_ceil(8))
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::HashMap;
    use std::sync::Arc;

    use hawser_common::group::{Capacity, GroupRecord};
    use hawser_common::{Epoch, GroupId};
    use rand::SeedableRng as _;
    use rand::rngs::StdRng;

    use super::*;
    use crate::fleet::{Fleet, InFlight, STALE_AFTER};

    pub(crate) fn record(id: &str, free: u64, running: u32) -> GroupRecord {
        GroupRecord {
            id: GroupId::parse(id).unwrap(),
            model: "m".to_owned(),
            address: format!("http://{id}"),
            tp: 1,
            epoch: Epoch(1),
            capacity: Capacity { slots_total: 1000, slots_free: free, running, ..Capacity::default() },
            draining: false,
        }
    }

    fn fleet(records: &[GroupRecord]) -> Fleet {
        let mut fleet = Fleet::default();
        for record in records {
            fleet.changed(record.clone(), Tick::default());
        }
        fleet
    }

    /// How often each group is chosen in 10,000 draws.
    fn shares(fleet: &Fleet, now: Tick) -> HashMap<String, u32> {
        let mut rng = StdRng::seed_from_u64(7);
        let mut shares = HashMap::new();
        for _ in 0..10_000 {
            let mut members: Vec<_> = fleet.members().collect();
            members.sort_by(|a, b| a.record.id.cmp(&b.record.id));
            let chosen = choose(members, (&[], &|_| 0), now, &mut rng).unwrap().record.id.to_string();
            *shares.entry(chosen).or_insert(0) += 1;
        }
        shares
    }

    #[test]
    fn equal_groups_share_evenly() {
        let records: Vec<_> = (0..8).map(|i| record(&format!("g{i}"), 500, 1)).collect();
        let shares = shares(&fleet(&records), Tick::default());
        assert_eq!(shares.len(), 8);
        assert!(shares.values().all(|&n| (1000..1500).contains(&n)), "{shares:?}");
    }

    #[test]
    fn the_busiest_is_never_chosen_while_another_is_there() {
        let mut records: Vec<_> = (0..7).map(|i| record(&format!("g{i}"), 500, 2)).collect();
        records.push(record("small", 40, 2));
        assert_eq!(shares(&fleet(&records), Tick::default()).get("small"), None);
    }

    #[test]
    fn a_full_group_waits_for_the_rest_to_fill() {
        let full = [record("a", 0, 0), record("b", 0, 0), record("c", 1, 50)];
        let shares = shares(&fleet(&full), Tick::default());
        assert_eq!(shares.get("c"), Some(&10_000), "{shares:?}");
        let only = fleet(&full[..1]);
        let mut rng = StdRng::seed_from_u64(1);
        assert!(choose(only.members().collect(), (&[], &|_| 0), Tick::default(), &mut rng).is_some());
        assert!(choose(Vec::new(), (&[], &|_| 0), Tick::default(), &mut rng).is_none());
    }

    #[test]
    fn what_is_promised_to_others_is_no_room() {
        let mut promised = record("a", 900, 1);
        promised.capacity.slots_reserved = 900;
        let shares = shares(&fleet(&[promised, record("b", 10, 1)]), Tick::default());
        assert_eq!(shares.get("a"), None, "{shares:?}");
    }

    #[test]
    fn what_this_router_sent_counts_before_the_group_reports_it() {
        let fleet = fleet(&[record("a", 500, 0), record("b", 500, 0)]);
        let a = GroupId::parse("a").unwrap();
        let sent: Vec<_> =
            (0..3).map(|_| InFlight::enter(Arc::clone(&fleet.member(&a).unwrap().load))).collect();
        assert_eq!(shares(&fleet, Tick::default()).get("a"), None);
        drop(sent);
        assert!(shares(&fleet, Tick::default()).contains_key("a"));
    }

    #[test]
    fn a_group_that_stopped_reporting_is_judged_by_own_counts() {
        // It said long ago that it is idle with all its room; this router has a call there.
        let mut fleet = fleet(&[record("quiet", 1000, 0)]);
        let later = Tick(STALE_AFTER * 2);
        fleet.changed(record("live", 10, 5), later);
        let quiet = GroupId::parse("quiet").unwrap();
        let _call = InFlight::enter(Arc::clone(&fleet.member(&quiet).unwrap().load));
        assert_eq!(shares(&fleet, later).get("quiet"), None);
    }

    #[test]
    fn an_unreachable_group_is_passed_over_for_a_while() {
        let mut fleet = fleet(&[record("a", 500, 0), record("b", 1, 90)]);
        fleet.shun(&GroupId::parse("a").unwrap(), Tick::default());
        assert_eq!(shares(&fleet, Tick::default()).get("a"), None);
        assert!(shares(&fleet, Tick(crate::fleet::SHUN_FOR)).contains_key("a"));
    }

    /// Places sessions one after the other, as a router does, each with the same beginning if `alike`; says how many
    /// each group got. Groups report what they have after every eighth.
    fn place(records: Vec<GroupRecord>, sessions: usize, alike: bool) -> HashMap<String, u64> {
        let (mut fleet, mut rng) = (fleet(&records), StdRng::seed_from_u64(3));
        let mut got: HashMap<GroupId, u64> = HashMap::new();
        let mut near: Vec<GroupId> = Vec::new();
        for n in 0..sessions {
            let mut members: Vec<_> = fleet.members().collect();
            members.sort_by(|a, b| a.record.id.cmp(&b.record.id));
            let known = if alike { near.as_slice() } else { &[] };
            let sessions = &|group: &GroupId| got.get(group).copied().unwrap_or(0);
            let chosen = choose(members, (known, sessions), Tick::default(), &mut rng).unwrap();
            let group = chosen.record.id.clone();
            *got.entry(group.clone()).or_default() += 1;
            near.retain(|held| *held != group);
            near.insert(0, group);
            near.truncate(4);
            if n % 8 == 0 {
                for record in &records {
                    let has = got.get(&record.id).copied().unwrap_or(0);
                    let mut record = record.clone();
                    // Every session leaves ten idle slots behind.
                    let idle = (has * 10).min(record.capacity.slots_total);
                    record.capacity.slots_free = record.capacity.slots_total - idle;
                    (record.capacity.slots_idle, record.capacity.sessions) = (idle, has);
                    fleet.changed(record, Tick::default());
                }
            }
        }
        got.into_iter().map(|(group, count)| (group.to_string(), count)).collect()
    }

    #[test]
    fn p19_a_small_pool_among_eight_is_not_piled_upon() {
        let mut records: Vec<_> = (0..7).map(|i| record(&format!("g{i}"), 1000, 0)).collect();
        let mut small = record("small", 100, 0);
        small.capacity.slots_total = 100;
        records.push(small);
        for alike in [false, true] {
            let got = place(records.clone(), 400, alike);
            let of = |id: &str| got.get(id).copied().unwrap_or(0);
            let all = (0..7).map(|i| of(&format!("g{i}")));
            let (least, most) = (all.clone().min().unwrap(), all.max().unwrap());
            assert!(of("small") <= 20 && most <= 75, "alike {alike}: {got:?}");
            // Where sessions begin alike, some group stays a while without the beginning.
            assert!(alike || least >= 35, "{got:?}");
        }
    }

    /// How unevenly 100 sessions for each group are spread over groups whose calls and room jump about: 1 on average where
    /// each goes to any group by chance alone (the variance of their numbers, as a share of that of a fair draw).
    fn unevenness(seed: u64, groups: u64) -> f64 {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut got: HashMap<GroupId, u64> = HashMap::new();
        for _ in 0..100 * groups {
            let records: Vec<_> = (0..groups)
                .map(|n| record(&format!("g{n}"), rng.random_range(1..30), rng.random_range(0..8)))
                .collect();
            let fleet = fleet(&records);
            let sessions = &|group: &GroupId| got.get(group).copied().unwrap_or(0);
            let chosen = choose(fleet.members().collect(), (&[], sessions), Tick::default(), &mut rng);
            *got.entry(chosen.unwrap().record.id.clone()).or_default() += 1;
        }
        assert_eq!(got.len() as u64, groups, "every group gets some");
        let squares: f64 = got.values().map(|&n| (n as f64 - 100.0).powi(2)).sum();
        squares / (100.0 * (groups as f64 - 1.0))
    }

    /// Whatever groups do at the moment, and whatever is left of pools that are all but full.
    #[test]
    fn sessions_are_spread_more_evenly_than_by_chance_while_calls_and_room_jump_about() {
        for groups in [4, 7, 11] {
            let drawn: Vec<f64> = (0..40).map(|seed| unevenness(seed, groups)).collect();
            let mean = drawn.iter().sum::<f64>() / drawn.len() as f64;
            assert!(mean < 0.5, "{groups} groups: {mean} {drawn:?}");
        }
    }

    #[test]
    fn who_owns_many_idle_sessions_is_passed_over_for_who_is_busy_with_few() {
        let fleet = fleet(&[record("many", 500, 0), record("few", 500, 2)]);
        let sessions = |group: &GroupId| if group.as_str() == "many" { 100 } else { 5 };
        for seed in 0..20 {
            let mut rng = StdRng::seed_from_u64(seed);
            let chosen = choose(fleet.members().collect(), (&[], &sessions), Tick::default(), &mut rng);
            assert_eq!(chosen.unwrap().record.id.as_str(), "few");
        }
    }

    #[test]
    fn a_common_beginning_is_preferred_up_to_a_bound() {
        let records: Vec<_> = (0..8).map(|i| record(&format!("g{i}"), 1000, 0)).collect();
        let few = place(records.clone(), 4, true);
        assert_eq!(few.len(), 1, "the first few stay together: {few:?}");
        let many = place(records, 800, true);
        let most = many.values().max().unwrap();
        assert!(many.len() == 8 && *most <= 130, "never more than their share and a quarter: {many:?}");
    }

    #[test]
    fn a_near_group_that_is_busy_full_or_unreachable_is_passed_over() {
        let near = [GroupId::parse("near").unwrap()];
        let others: Vec<_> = (0..3).map(|i| record(&format!("g{i}"), 500, 1)).collect();
        let chosen = |near_one: GroupRecord, shunned: bool| {
            let mut fleet = fleet(&[others.clone(), vec![near_one]].concat());
            if shunned {
                fleet.shun(&near[0], Tick::default());
            }
            let mut rng = StdRng::seed_from_u64(5);
            let hits = (0..100).filter(|_| {
                let members = fleet.members().collect();
                choose(members, (&near, &|_| 0), Tick::default(), &mut rng).unwrap().record.id == near[0]
            });
            hits.count()
        };
        assert_eq!(chosen(record("near", 500, 1), false), 100);
        assert_eq!(chosen(record("near", 500, 9), false), 0, "busy");
        assert_eq!(chosen(record("near", 0, 1), false), 0, "full");
        assert_eq!(chosen(record("near", 500, 1), true), 0, "unreachable");
    }
}
