//! The cases. Each takes a fresh store.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::future::join_all;
use hawser_common::group::{Capacity, Owner};
use hawser_common::{Epoch, GroupId, SessionKey};

use super::{Harness, Mirror, group, key, record};
use crate::store::{ClaimOutcome, LeaseId, MAX_BATCH, StoreError};

const TTL: Duration = Duration::from_secs(10);

impl Harness {
    async fn lease(&self) -> LeaseId {
        self.store.grant(TTL).await.expect("a lease is granted").id
    }

    async fn registered(&self, id: &str) -> (LeaseId, Epoch) {
        let lease = self.lease().await;
        (lease, self.store.register(lease, record(id)).await.expect("the group is registered"))
    }

    async fn claim(&self, lease: LeaseId, id: &str, session: &SessionKey) -> ClaimOutcome {
        let outcomes = self.store.claim(lease, &group(id), vec![session.clone()]).await;
        outcomes.expect("the claim is answered").pop().expect("one outcome per session")
    }

    async fn assert_gone(&self, lease: LeaseId, id: &GroupId) {
        let gone = StoreError::LeaseGone { lease };
        let sessions = vec![key("t", "s")];
        assert_eq!(self.store.renew(lease).await, Err(gone.clone()));
        assert_eq!(self.store.register(lease, record(id.as_str())).await, Err(gone.clone()));
        let capacity = Capacity::default();
        assert_eq!(self.store.publish(lease, id, capacity, false).await, Err(gone.clone()));
        assert_eq!(self.store.claim(lease, id, sessions.clone()).await, Err(gone.clone()));
        assert_eq!(self.store.release(lease, sessions).await, Err(gone));
    }
}

pub(super) async fn a_lease_lives_from_renewal_to_renewal(h: &Harness) {
    let lease = h.store.grant(TTL).await.expect("a lease is granted");
    for _ in 0..3 {
        (h.advance)(lease.ttl * 7 / 10).await;
        assert_eq!(h.store.renew(lease.id).await, Ok(lease.ttl));
    }
}

pub(super) async fn an_expired_lease_can_do_nothing(h: &Harness) {
    let (lease, _) = h.registered("g").await;
    assert_eq!(h.claim(lease, "g", &key("t", "s")).await, ClaimOutcome::Won);
    (h.advance)(TTL * 2).await;
    h.assert_gone(lease, &group("g")).await;
    let (heir, _) = h.registered("g").await;
    assert_eq!(h.claim(heir, "g", &key("t", "s")).await, ClaimOutcome::Won);
    // The dead lease cannot touch what its heir holds.
    h.assert_gone(lease, &group("g")).await;
    assert_eq!(h.store.revoke(lease).await, Ok(()));
    assert_eq!(h.store.renew(heir).await.map(|_| ()), Ok(()));
    let (other, _) = h.registered("h").await;
    assert!(matches!(h.claim(other, "h", &key("t", "s")).await, ClaimOutcome::Owned(_)));
}

pub(super) async fn an_expired_lease_takes_every_claim_with_it(h: &Harness) {
    let (lease, _) = h.registered("g").await;
    let sessions: Vec<_> = (0..300).map(|i| key("t", &format!("s{i}"))).collect();
    let claimed = h.store.claim(lease, &group("g"), sessions.clone()).await;
    assert_eq!(claimed, Ok(vec![ClaimOutcome::Won; 300]));
    let mut watch = h.store.watch().await.expect("the store is watched");
    let mut mirror = Mirror::default();
    mirror.until(&mut watch, |mirror| mirror.claims.len() == 300).await;
    (h.advance)(TTL * 2).await;
    mirror.until(&mut watch, |mirror| mirror.groups.is_empty()).await;
    assert!(mirror.claims.is_empty(), "{} claims outlived their lease", mirror.claims.len());
    let (heir, _) = h.registered("heir").await;
    let claimed = h.store.claim(heir, &group("heir"), sessions).await;
    assert_eq!(claimed, Ok(vec![ClaimOutcome::Won; 300]));
    mirror.until(&mut watch, |mirror| mirror.claims.len() == 300).await;
}

pub(super) async fn revoking_ends_everything_and_can_be_repeated(h: &Harness) {
    let (lease, _) = h.registered("g").await;
    assert_eq!(h.claim(lease, "g", &key("t", "s")).await, ClaimOutcome::Won);
    assert_eq!(h.store.revoke(lease).await, Ok(()));
    assert_eq!(h.store.revoke(lease).await, Ok(()));
    h.assert_gone(lease, &group("g")).await;
    let mut mirror = Mirror::default();
    let mut watch = h.store.watch().await.expect("the store is watched");
    mirror.until(&mut watch, |mirror| mirror.snapshots == 1).await;
    assert!(mirror.groups.is_empty() && mirror.claims.is_empty(), "{mirror:?}");
}

pub(super) async fn epochs_grow_and_a_group_has_one_holder(h: &Harness) {
    let (a, first) = h.registered("a").await;
    let (_, second) = h.registered("b").await;
    assert!(second > first, "{second} after {first}");
    let rival = h.lease().await;
    let holder = Owner { group: group("a"), epoch: first };
    let taken = StoreError::taken(holder, &record("a").address);
    assert_eq!(h.store.register(rival, record("a")).await, Err(taken));
    assert_eq!(h.store.revoke(a).await, Ok(()));
    let third = h.store.register(rival, record("a")).await.expect("the id is free again");
    assert!(third > second, "{third} after {second}");
    let twice = h.store.register(rival, record("c")).await;
    assert!(matches!(twice, Err(StoreError::Invalid { .. })), "{twice:?}");
}

pub(super) async fn registering_again_ends_the_earlier_claims(h: &Harness) {
    let (lease, first) = h.registered("a").await;
    let (other, _) = h.registered("b").await;
    assert_eq!(h.claim(lease, "a", &key("t", "s")).await, ClaimOutcome::Won);
    let second = h.store.register(lease, record("a")).await.expect("the same lease may register again");
    assert!(second > first);
    assert_eq!(h.claim(other, "b", &key("t", "s")).await, ClaimOutcome::Won);
}

pub(super) async fn a_claim_is_won_once_and_can_be_repeated(h: &Harness) {
    let (a, epoch) = h.registered("a").await;
    let (b, _) = h.registered("b").await;
    let (one, two) = (key("t", "one"), key("t", "two"));
    assert_eq!(h.claim(a, "a", &one).await, ClaimOutcome::Won);
    assert_eq!(h.claim(a, "a", &one).await, ClaimOutcome::Won);
    let owned = ClaimOutcome::Owned(Owner { group: group("a"), epoch });
    let outcomes = h.store.claim(b, &group("b"), vec![two.clone(), one.clone(), two.clone()]).await;
    assert_eq!(outcomes, Ok(vec![ClaimOutcome::Won, owned.clone(), ClaimOutcome::Won]));
    // Releasing what another lease holds leaves it alone.
    assert_eq!(h.store.release(b, vec![one.clone(), key("t", "never")]).await, Ok(()));
    assert_eq!(h.claim(b, "b", &one).await, owned);
    assert_eq!(h.store.release(a, vec![one.clone()]).await, Ok(()));
    assert_eq!(h.claim(b, "b", &one).await, ClaimOutcome::Won);
}

pub(super) async fn a_claim_needs_the_group_of_its_lease(h: &Harness) {
    let (a, _) = h.registered("a").await;
    h.registered("b").await;
    let bare = h.lease().await;
    for (lease, id) in [(a, "b"), (a, "nowhere"), (bare, "a")] {
        let outcome = h.store.claim(lease, &group(id), vec![key("t", "s")]).await;
        assert!(matches!(outcome, Err(StoreError::Invalid { .. })), "{outcome:?}");
        let published = h.store.publish(lease, &group(id), Capacity::default(), false).await;
        assert!(matches!(published, Err(StoreError::Invalid { .. })), "{published:?}");
    }
}

pub(super) async fn a_batch_is_answered_session_by_session(h: &Harness) {
    let (a, epoch) = h.registered("a").await;
    let (b, _) = h.registered("b").await;
    let sessions: Vec<_> = (0..500).map(|i| key("t", &format!("s{i}"))).collect();
    let taken: Vec<_> = sessions.iter().step_by(3).cloned().collect();
    let own: Vec<_> = sessions.iter().skip(1).step_by(3).cloned().collect();
    h.store.claim(a, &group("a"), taken).await.expect("claimed");
    h.store.claim(b, &group("b"), own).await.expect("claimed");
    let outcomes = h.store.claim(b, &group("b"), sessions).await.expect("the batch is answered");
    let owned = ClaimOutcome::Owned(Owner { group: group("a"), epoch });
    let expected = |i| if i % 3 == 0 { owned.clone() } else { ClaimOutcome::Won };
    assert_eq!(outcomes, (0..500).map(expected).collect::<Vec<_>>());
}

pub(super) async fn racing_claims_have_one_winner_each(h: &Harness) {
    const GROUPS: usize = 4;
    const SESSIONS: usize = 120;
    let mut groups = Vec::new();
    for i in 0..GROUPS {
        let id = format!("g{i}");
        let (lease, epoch) = h.registered(&id).await;
        groups.push((lease, Owner { group: group(&id), epoch }));
    }
    let session = |i: usize| key("t", &format!("s{}", i % SESSIONS));
    // Everyone wants everything, begins elsewhere, and asks in batches of an odd size.
    let races = groups.iter().enumerate().map(|(i, (lease, owner))| async move {
        let order: Vec<_> = (0..SESSIONS).map(|n| session(n + i * SESSIONS / GROUPS)).collect();
        let mut outcomes = Vec::new();
        for batch in order.chunks(7) {
            let answers = h.store.claim(*lease, &owner.group, batch.to_vec()).await.expect("answered");
            outcomes.extend(batch.iter().cloned().zip(answers));
        }
        outcomes
    });
    let results = join_all(races).await;
    let mut winners = BTreeMap::new();
    for ((_, owner), outcomes) in groups.iter().zip(&results) {
        for (session, _) in outcomes.iter().filter(|(_, outcome)| *outcome == ClaimOutcome::Won) {
            let before = winners.insert(session.clone(), owner.clone());
            assert_eq!(before, None, "{session:?} was won twice");
        }
    }
    assert_eq!(winners.len(), SESSIONS, "someone wins every session");
    for (session, outcome) in results.iter().flatten() {
        if let ClaimOutcome::Owned(owner) = outcome {
            assert_eq!(
                winners.get(session),
                Some(owner),
                "{session:?} was lost to someone who did not win it"
            );
        }
    }
    let mut watch = h.store.watch().await.expect("the store is watched");
    let mut mirror = Mirror::default();
    mirror.until(&mut watch, |mirror| mirror.claims.len() == SESSIONS).await;
    assert_eq!(mirror.claims, winners);
}

pub(super) async fn names_that_begin_alike_are_independent(h: &Harness) {
    let (a, _) = h.registered("g-1").await;
    let (b, _) = h.registered("g-12").await;
    let short = [key("t", "session-1"), key("ab", "c")];
    let long = [key("t", "session-12"), key("a", "bc")];
    for session in &short {
        assert_eq!(h.claim(a, "g-1", session).await, ClaimOutcome::Won);
    }
    for session in &long {
        assert_eq!(h.claim(b, "g-12", session).await, ClaimOutcome::Won);
    }
    assert_eq!(h.store.release(a, short.to_vec()).await, Ok(()));
    assert_eq!(h.store.revoke(a).await, Ok(()));
    let (c, _) = h.registered("c").await;
    for session in &long {
        assert!(matches!(h.claim(c, "c", session).await, ClaimOutcome::Owned(_)), "{session:?}");
    }
}

pub(super) async fn watchers_see_a_snapshot_and_every_change(h: &Harness) {
    let (a, first) = h.registered("a").await;
    let (one, two) = (key("t", "one"), key("t", "two"));
    assert_eq!(h.claim(a, "a", &one).await, ClaimOutcome::Won);
    let mut watch = h.store.watch().await.expect("the store is watched");
    let mut mirror = Mirror::default();
    let owner = Owner { group: group("a"), epoch: first };
    mirror.until(&mut watch, |mirror| mirror.claims.get(&one) == Some(&owner)).await;
    assert_eq!(mirror.groups.len(), 1);

    assert_eq!(h.claim(a, "a", &two).await, ClaimOutcome::Won);
    assert_eq!(h.store.release(a, vec![one.clone()]).await, Ok(()));
    let capacity = Capacity { slots_free: 7, ..Capacity::default() };
    assert_eq!(h.store.publish(a, &group("a"), capacity, true).await, Ok(()));
    let published =
        |m: &Mirror| m.groups.get(&group("a")).is_some_and(|g| g.capacity == capacity && g.draining);
    mirror.until(&mut watch, published).await;
    assert_eq!(mirror.claims.keys().collect::<Vec<_>>(), vec![&two]);

    let (_, second) = h.registered("b").await;
    mirror.until(&mut watch, |m| m.groups.get(&group("b")).map(|g| g.epoch) == Some(second)).await;
    (h.advance)(TTL * 2).await;
    mirror.until(&mut watch, |m| m.groups.is_empty()).await;
    assert!(mirror.claims.is_empty(), "{mirror:?}");
}

pub(super) async fn a_watcher_that_lags_misses_nothing(h: &Harness) {
    let (a, _) = h.registered("a").await;
    let mut slow = h.store.watch().await.expect("the store is watched");
    let mut mirror = Mirror::default();
    mirror.until(&mut slow, |mirror| mirror.snapshots == 1).await;
    let sessions: Vec<_> = (0..1000).map(|i| key("t", &format!("s{i}"))).collect();
    for _ in 0..20 {
        h.store.claim(a, &group("a"), sessions.clone()).await.expect("claimed");
        h.store.release(a, sessions[1..].to_vec()).await.expect("released");
    }
    let last = Capacity { sessions: 1, slots_free: 3, ..Capacity::default() };
    assert_eq!(h.store.publish(a, &group("a"), last, false).await, Ok(()));
    mirror.until(&mut slow, |m| m.groups.get(&group("a")).is_some_and(|g| g.capacity == last)).await;
    assert_eq!(mirror.claims.keys().collect::<Vec<_>>(), vec![&sessions[0]]);
}

pub(super) async fn batches_are_bounded(h: &Harness) {
    let (a, _) = h.registered("a").await;
    let most: Vec<_> = (0..=MAX_BATCH).map(|i| key("t", &i.to_string())).collect();
    let claimed = h.store.claim(a, &group("a"), most.clone()).await;
    assert!(matches!(claimed, Err(StoreError::Invalid { .. })), "{claimed:?}");
    let released = h.store.release(a, most.clone()).await;
    assert!(matches!(released, Err(StoreError::Invalid { .. })), "{released:?}");
    let full = h.store.claim(a, &group("a"), most[1..].to_vec()).await.expect("a full batch is taken");
    assert_eq!(full.len(), MAX_BATCH);
    assert_eq!(h.store.claim(a, &group("a"), Vec::new()).await, Ok(Vec::new()));
}
