use std::collections::BTreeMap;

use hawser_common::{Epoch, SessionId};
use proptest::prelude::*;

use super::*;

fn key(tenant: &str, session: &str) -> SessionKey {
    let tenant = TenantId::parse(tenant).unwrap();
    SessionKey { tenant, session: SessionId::parse(session).unwrap() }
}

fn owner(group: u8) -> Owner {
    Owner { group: GroupId::parse(&format!("g{group}")).unwrap(), epoch: Epoch(group.into()) }
}

#[test]
fn p5_ids_that_begin_alike_are_different_sessions() {
    let mut affinity = Affinity::new(100);
    affinity.claimed(key("t", "session-1"), owner(1));
    affinity.claimed(key("t", "session-12"), owner(2));
    affinity.claimed(key("ab", "c"), owner(3));
    assert_eq!(affinity.owner(&key("t", "session-1")), Some(&Arc::new(owner(1))));
    assert_eq!(affinity.owner(&key("t", "session-12")), Some(&Arc::new(owner(2))));
    assert_eq!(affinity.owner(&key("a", "bc")), None);
    affinity.group_gone(&owner(1).group);
    assert_eq!(affinity.owner(&key("t", "session-1")), None);
    assert_eq!(affinity.owner(&key("t", "session-12")), Some(&Arc::new(owner(2))));
}

#[test]
fn p2_a_refusal_leaves_no_placement_and_a_commit_lasts_until_the_claim_is_seen() {
    let (mut affinity, session, now) = (Affinity::new(10), key("t", "s"), Tick::default());
    let (g1, g2) = (owner(1).group, owner(2).group);
    let first = affinity.hold(&session, &g1).unwrap();
    assert_eq!(affinity.standing(&session, now), Standing::Held(&g1));
    assert_eq!(affinity.hold(&session, &g1), Some(first), "a second first turn follows");
    assert_eq!(affinity.hold(&session, &g2), None);
    affinity.refuse(&session, first);
    assert_eq!(affinity.standing(&session, now), Standing::Unknown);
    let second = affinity.hold(&session, &g2).unwrap();
    // What the turn of the hold that is over says later changes nothing.
    affinity.give_up(&session, first);
    assert_eq!(affinity.standing(&session, now), Standing::Held(&g2));
    affinity.commit(&session, second, now);
    assert_eq!(affinity.standing(&session, now), Standing::Held(&g2));
    affinity.claimed(session.clone(), owner(2));
    assert_eq!(affinity.standing(&session, now), Standing::Leased(&Arc::new(owner(2))));
    affinity.released(&session);
    assert_eq!(affinity.standing(&session, now), Standing::Unknown);
    let third = affinity.hold(&session, &g1).unwrap();
    affinity.commit(&session, third, now);
    assert_eq!(affinity.standing(&session, now.after(COMMITTED_FOR)), Standing::Unknown);
}

/// What a turn under way holds.
type Turn = (u8, u8, HoldId);

proptest! {
    /// Whatever the store says and turns do, in any order: what is remembered as leased is what the store said, never
    /// more than the limit; turns of one session never hold two groups; and when all turns are over and some time has
    /// passed nothing is held.
    #[test]
    fn leases_are_the_stores_and_holds_the_turns(
        limit in 1usize..10,
        ops in prop::collection::vec((0u8..9, 0u8..12, 0u8..3), 0..200),
    ) {
        let mut affinity = Affinity::new(limit);
        let mut truth: BTreeMap<u8, u8> = BTreeMap::new();
        let mut turns: Vec<Turn> = Vec::new();
        let mut now = Tick::default();
        for (op, session, group) in ops {
            let id = key("t", &session.to_string());
            let ended = |turns: &mut Vec<Turn>| {
                let at = turns.iter().position(|(s, ..)| *s == session)?;
                Some(turns.remove(at).2)
            };
            match op {
                0 | 1 => {
                    truth.insert(session, group);
                    affinity.claimed(id.clone(), owner(group));
                }
                2 => {
                    truth.remove(&session);
                    affinity.released(&id);
                }
                3 => {
                    truth.retain(|_, held| *held != group);
                    affinity.group_gone(&owner(group).group);
                }
                4 | 5 => {
                    let at = match affinity.standing(&id, now) {
                        Standing::Held(held) => held.clone(),
                        Standing::Leased(_) | Standing::Unknown => owner(group).group,
                    };
                    if let Some(hold) = affinity.hold(&id, &at) {
                        prop_assert_eq!(affinity.standing(&id, now), Standing::Held(&at));
                        turns.push((session, group, hold));
                    }
                }
                6 => if let Some(hold) = ended(&mut turns) { affinity.commit(&id, hold, now) },
                7 => if let Some(hold) = ended(&mut turns) { affinity.refuse(&id, hold) },
                _ => if let Some(hold) = ended(&mut turns) { affinity.give_up(&id, hold) },
            }
            now = now.after(Duration::from_millis(300));
            prop_assert!(affinity.leases.len() <= limit && affinity.holds.len() <= limit);
            prop_assert_eq!(affinity.sessions_of(&id.tenant), affinity.leases.len() as u64);
            for group in (0..3).map(|group| owner(group).group) {
                let there = affinity.leases.iter().filter(|(_, owner)| owner.group == group).count();
                prop_assert_eq!(affinity.sessions_at(&group), there as u64);
            }
            for (session, known) in affinity.leases.iter() {
                let held = truth.get(&session.session.as_str().parse().unwrap());
                prop_assert_eq!(held.map(|group| owner(*group)), Some((**known).clone()));
                prop_assert!(!affinity.holds.contains_key(session));
            }
        }
        for (session, _, hold) in turns {
            affinity.give_up(&key("t", &session.to_string()), hold);
        }
        affinity.standing(&key("t", "none"), now.after(COMMITTED_FOR));
        prop_assert!(affinity.holds.is_empty() && affinity.commits.is_empty());
    }
}
