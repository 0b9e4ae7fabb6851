use std::collections::{BTreeMap, BTreeSet, VecDeque};

use proptest::prelude::*;

use super::*;

fn tenant(id: usize) -> TenantId {
    TenantId::parse(&format!("t{id}")).unwrap()
}

fn quota(max_in_flight: u32, max_queued: u32, weight: u32) -> Quota {
    Quota { max_in_flight, max_queued, weight, ..Quota::default() }
}

const NOW: Tick = Tick(Duration::from_secs(1));

fn ticket(entry: Entry) -> Ticket {
    match entry {
        Entry::Waits(ticket) => ticket,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_tenant_at_its_own_limit_waits_and_others_do_not() {
    let mut fair = Fair::new(100);
    let small = quota(2, 1, 1);
    let mut enter = |id: usize| fair.enter(&tenant(id), &small, NOW);
    assert_eq!([enter(0), enter(0)], [Entry::Admitted; 2]);
    let waiting = ticket(enter(0));
    assert_eq!(enter(0), Entry::QueueFull { queued: 1 });
    assert_eq!(enter(1), Entry::Admitted);
    assert_eq!(fair.leave(&tenant(1), NOW), []);
    assert_eq!(fair.leave(&tenant(0), NOW), [waiting]);
}

#[test]
fn a_flood_of_one_tenant_lets_the_other_in_with_the_next_place() {
    let mut fair = Fair::new(4);
    let large = quota(1_000, 1_000, 1);
    for _ in 0..4 {
        assert_eq!(fair.enter(&tenant(0), &large, NOW), Entry::Admitted);
    }
    let flood: Vec<_> = (0..500).map(|_| ticket(fair.enter(&tenant(0), &large, NOW))).collect();
    let other = ticket(fair.enter(&tenant(1), &large, NOW));
    assert_eq!(fair.leave(&tenant(0), NOW), [flood[0]]);
    assert_eq!(fair.leave(&tenant(0), NOW), [other]);
    assert_eq!(fair.leave(&tenant(0), NOW), [flood[1]]);
}

#[test]
fn weights_are_shares_of_the_places() {
    let mut fair = Fair::new(1);
    let quotas = [quota(100, 1_000, 3), quota(100, 1_000, 1)];
    assert_eq!(fair.enter(&tenant(0), &quotas[0], NOW), Entry::Admitted);
    let mut of = BTreeMap::new();
    for _ in 0..100 {
        for (id, quota) in quotas.iter().enumerate() {
            of.insert(ticket(fair.enter(&tenant(id), quota, NOW)).0, id);
        }
    }
    let (mut served, mut running) = ([0, 0], 0);
    for _ in 0..80 {
        let next = fair.leave(&tenant(running), NOW)[0];
        running = of[&next.0];
        served[running] += 1;
    }
    assert_eq!(served, [60, 20]);
}

#[test]
fn calls_that_come_too_soon_are_refused_with_the_time_to_wait() {
    let mut fair = Fair::new(10);
    let slow = Quota { requests_per_s: 2, burst: 1, ..Quota::default() };
    assert_eq!(fair.enter(&tenant(0), &slow, NOW), Entry::Admitted);
    fair.leave(&tenant(0), NOW);
    // What the tenant sent is remembered though it has no call left.
    let retry_after = Duration::from_millis(500);
    assert_eq!(fair.enter(&tenant(0), &slow, NOW), Entry::TooSoon { retry_after });
    assert_eq!(fair.enter(&tenant(0), &slow, NOW.after(retry_after)), Entry::Admitted);
    fair.leave(&tenant(0), NOW.after(retry_after * 2));
    assert!(fair.lanes.is_empty(), "nothing is remembered for ever");
}

/// Calls as the outside sees them.
#[derive(Default)]
struct Model {
    running: Vec<usize>,
    waiting: Vec<VecDeque<Ticket>>,
    /// Places that others got while a tenant that might have run more waited.
    passed_over: Vec<u32>,
}

impl Model {
    fn admitted(&mut self, tickets: &[Ticket], quotas: &[Quota]) -> Result<(), TestCaseError> {
        for ticket in tickets {
            let id = self.waiting.iter().position(|waiting| waiting.front() == Some(ticket));
            let id = id.ok_or_else(|| TestCaseError::fail("not the first of its tenant"))?;
            self.waiting[id].pop_front();
            self.running[id] += 1;
            self.passed_over[id] = 0;
            for (other, quota) in quotas.iter().enumerate() {
                if other != id
                    && !self.waiting[other].is_empty()
                    && self.running[other] < quota.max_in_flight as usize
                {
                    self.passed_over[other] += 1;
                }
            }
        }
        Ok(())
    }
}

proptest! {
    /// P18 and fairness, over any order of arrivals, ends and aborts: the counts are those of the calls there are, no
    /// bound is passed, a place is never free while a call might have it, and no tenant is passed over for longer than
    /// one round of the others. When all have gone, nothing is left.
    #[test]
    fn p18_counts_are_exact_bounds_hold_and_no_tenant_starves(
        limit in 1usize..6,
        quotas in prop::collection::vec((1u32..5, 0u32..6, 1u32..4), 1..5),
        ops in prop::collection::vec((0u8..6, 0usize..5, any::<prop::sample::Index>()), 0..400),
    ) {
        let quotas: Vec<_> = quotas.into_iter().map(|(run, wait, weight)| quota(run, wait, weight)).collect();
        let mut fair = Fair::new(limit);
        let n = quotas.len();
        let mut model =
            Model { running: vec![0; n], waiting: vec![VecDeque::new(); n], passed_over: vec![0; n] };
        let mut seen = BTreeSet::new();
        for (op, id, which) in ops {
            let id = id % n;
            match op {
                0..3 => match fair.enter(&tenant(id), &quotas[id], NOW) {
                    Entry::Admitted => model.running[id] += 1,
                    Entry::Waits(ticket) => {
                        prop_assert!(seen.insert(ticket.0), "a ticket is new");
                        model.waiting[id].push_back(ticket);
                    }
                    Entry::QueueFull { queued } => {
                        prop_assert_eq!(queued, quotas[id].max_queued as usize);
                    }
                    Entry::TooSoon { .. } => prop_assert!(false, "there is no rate"),
                },
                3 | 4 if model.running[id] > 0 => {
                    model.running[id] -= 1;
                    let admitted = fair.leave(&tenant(id), NOW);
                    model.admitted(&admitted, &quotas)?;
                }
                _ if !model.waiting[id].is_empty() => {
                    let place = which.index(model.waiting[id].len());
                    let ticket = model.waiting[id].remove(place).unwrap();
                    prop_assert!(fair.abandon(&tenant(id), ticket));
                    prop_assert!(!fair.abandon(&tenant(id), ticket), "once");
                    if model.waiting[id].is_empty() {
                        model.passed_over[id] = 0;
                    }
                }
                _ => {}
            }
            let running: usize = model.running.iter().sum();
            prop_assert_eq!((fair.running(), fair.queued()), (running, model.waiting.iter().map(VecDeque::len).sum()));
            prop_assert!(running <= limit);
            let round: u32 = quotas.iter().map(|quota| quota.weight).sum();
            for (id, quota) in quotas.iter().enumerate() {
                prop_assert!(model.running[id] <= quota.max_in_flight as usize);
                prop_assert!(model.waiting[id].len() <= quota.max_queued as usize);
                let may = model.running[id] < quota.max_in_flight as usize;
                prop_assert!(running == limit || model.waiting[id].is_empty() || !may, "a place is free");
                prop_assert!(model.passed_over[id] <= 2 * round, "{:?}", model.passed_over);
            }
        }
        for id in 0..n {
            while let Some(ticket) = model.waiting[id].pop_front() {
                prop_assert!(fair.abandon(&tenant(id), ticket));
            }
        }
        for id in 0..n {
            for _ in 0..model.running[id] {
                prop_assert_eq!(fair.leave(&tenant(id), NOW), []);
            }
        }
        prop_assert_eq!((fair.running(), fair.queued()), (0, 0));
    }
}
