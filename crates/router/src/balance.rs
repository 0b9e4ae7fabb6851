//! Where a call goes that no group owns: two random choices, the cheaper one wins. Pure.
//!
//! Two choices instead of the best: routers see loads that are a second old, and all taking the best would pile up on
//! it (Mitzenmacher, "The Power of Two Choices in Randomized Load Balancing", 2001).

use hawser_common::clock::Tick;
use rand::{Rng, RngExt as _};

use crate::fleet::{Member, STALE_AFTER};

/// Chooses one of `candidates`, which all may take the call. Groups that were just found unreachable, and groups
/// without room, are taken only where there is no other.
pub(crate) fn choose<'a>(candidates: Vec<&'a Member>, now: Tick, rng: &mut impl Rng) -> Option<&'a Member> {
    let candidates = prefer(candidates, |member| member.shunned_until <= now);
    let candidates = prefer(candidates, |member| stale(member, now) || room(member) > 0);
    let first = *candidates.get(index(candidates.len(), rng)?)?;
    if candidates.len() == 1 {
        return Some(first);
    }
    // The second choice is among the others.
    let others: Vec<_> = candidates.iter().filter(|other| other.record.id != first.record.id).collect();
    let second = **others.get(index(others.len(), rng)?)?;
    Some(if dearer(first, second, now) { second } else { first })
}

fn index(len: usize, rng: &mut impl Rng) -> Option<usize> {
    (len > 0).then(|| rng.random_range(0..len))
}

fn prefer(candidates: Vec<&Member>, good: impl Fn(&Member) -> bool) -> Vec<&Member> {
    let preferred: Vec<_> = candidates.iter().copied().filter(|member| good(member)).collect();
    if preferred.is_empty() { candidates } else { preferred }
}

/// Whether `a` costs more than `b`: calls per slot that is free or may be made free, and calls alone where either
/// group has stopped reporting.
fn dearer(a: &Member, b: &Member, now: Tick) -> bool {
    if stale(a, now) || stale(b, now) {
        return a.load.count() > b.load.count();
    }
    // a.calls / a.room > b.calls / b.room, without dividing by what may be zero.
    let cost = |calls: u64, other_room: u64| u128::from(calls + 1) * u128::from(other_room + 1);
    cost(calls(a), room(b)) > cost(calls(b), room(a))
}

/// Running and queued calls: what the group said, or what this router sent it since.
fn calls(member: &Member) -> u64 {
    let capacity = &member.record.capacity;
    (u64::from(capacity.running) + u64::from(capacity.queued)).max(member.load.count().into())
}

fn room(member: &Member) -> u64 {
    member.record.capacity.slots_free.saturating_add(member.record.capacity.slots_idle)
}

fn stale(member: &Member, now: Tick) -> bool {
    now.since(member.reported) > STALE_AFTER
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
    use crate::fleet::{Fleet, InFlight};

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
        records.iter().for_each(|record| fleet.changed(record.clone(), Tick::default()));
        fleet
    }

    /// How often each group is chosen in 10,000 draws.
    fn shares(fleet: &Fleet, now: Tick) -> HashMap<String, u32> {
        let mut rng = StdRng::seed_from_u64(7);
        let mut shares = HashMap::new();
        for _ in 0..10_000 {
            let mut members: Vec<_> = fleet.members().collect();
            members.sort_by(|a, b| a.record.id.cmp(&b.record.id));
            let chosen = choose(members, now, &mut rng).unwrap().record.id.to_string();
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
        assert!(choose(only.members().collect(), Tick::default(), &mut rng).is_some());
        assert!(choose(Vec::new(), Tick::default(), &mut rng).is_none());
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
}
