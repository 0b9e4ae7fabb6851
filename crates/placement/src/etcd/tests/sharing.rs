//! An etcd that others use too: other clients, other prefixes, other versions, and people with etcd's own tools.

use std::collections::BTreeMap;

use etcd_client::{AlarmAction, AlarmOptions, AlarmType, PutOptions};
use futures_util::StreamExt as _;
use futures_util::future::join_all;
use hawser_common::group::Owner;

use super::*;
use crate::store::{Change, Update};

#[tokio::test]
async fn of_several_clients_that_race_exactly_one_wins() {
    let server = etcd!();
    let clients: Vec<EtcdStore> = (0..4).map(|_| store(&server)).collect();
    let sessions: Vec<_> = (0..400).map(|i| key("t", &format!("s{i}"))).collect();
    let mut groups = Vec::new();
    for (i, client) in clients.iter().enumerate() {
        let id = format!("g{i}");
        let (lease, epoch) = registered(client, &id, LONG).await;
        groups.push((client, lease, Owner { group: group(&id), epoch }));
    }
    // The same order for all: every transaction of one meets those of the others.
    let claims = groups.iter().map(|(client, lease, owner)| {
        let sessions = sessions.clone();
        async move { client.claim(*lease, &owner.group, sessions).await.unwrap() }
    });
    let outcomes = join_all(claims).await;
    let mut winners = BTreeMap::new();
    for (i, session) in sessions.iter().enumerate() {
        let won = groups.iter().zip(&outcomes).filter(|(_, outcomes)| outcomes[i] == ClaimOutcome::Won);
        let won: Vec<Owner> = won.map(|((_, _, owner), _)| owner.clone()).collect();
        assert_eq!(won.len(), 1, "{session:?}");
        for outcomes in &outcomes {
            assert!(
                matches!(&outcomes[i], ClaimOutcome::Won)
                    || outcomes[i] == ClaimOutcome::Owned(won[0].clone())
            );
        }
        winners.insert(session.clone(), won[0].clone());
    }
    assert_eq!(listed(&clients[0]).await.claims, winners);
}

#[tokio::test]
async fn changes_come_at_every_revision_in_order() {
    let server = etcd!();
    let store = store(&server);
    let (lease, _) = registered(&store, "g", LONG).await;
    let mut watch = store.watch().await.unwrap();
    let Some(Ok(Update { revision: first, change: Change::Snapshot(_) })) = watch.next().await else {
        panic!("a watch begins with a snapshot");
    };
    let rounds = 40;
    for i in 0..rounds {
        let session = vec![key("t", &format!("s{i}"))];
        store.claim(lease, &group("g"), session.clone()).await.unwrap();
        store
            .publish(lease, &group("g"), Capacity { queued: i, ..Capacity::default() }, false)
            .await
            .unwrap();
        store.release(lease, session).await.unwrap();
    }
    store.revoke(lease).await.unwrap();
    // Nobody else writes, so that every revision is one of these, and none may be missing.
    for revision in first + 1..=first + u64::from(rounds) * 3 + 1 {
        let update = watch.next().await.unwrap().unwrap();
        assert_eq!(update.revision, revision);
        assert!(matches!(&update.change, Change::Events(events) if events.len() == 1), "{update:?}");
    }
}

#[tokio::test]
async fn a_listing_of_many_pages_is_of_one_revision() {
    let server = etcd!();
    let store = store(&server);
    let (a, _) = registered(&store, "a", LONG).await;
    let (b, _) = registered(&store, "b", LONG).await;
    for batch in 0..3 {
        let sessions = (0..4000).map(|s| key("t", &format!("s-{batch}-{s}"))).collect();
        store.claim(a, &group("a"), sessions).await.unwrap();
    }
    // A session that moves from one end of the listing to the other is there, once or twice, at every revision.
    let (early, late) = (vec![key("t", "a")], vec![key("t", "z")]);
    store.claim(b, &group("b"), early.clone()).await.unwrap();
    let flip = async {
        for _ in 0..20 {
            store.claim(b, &group("b"), late.clone()).await.unwrap();
            store.release(b, early.clone()).await.unwrap();
            store.claim(b, &group("b"), early.clone()).await.unwrap();
            store.release(b, late.clone()).await.unwrap();
        }
    };
    let look = async {
        for _ in 0..8 {
            let listed = listed(&store).await;
            let of_b = listed.claims.values().filter(|owner| owner.group == group("b")).count();
            assert!(
                (1..=2).contains(&of_b) && listed.claims.len() == 12_000 + of_b,
                "{of_b} moving sessions"
            );
        }
    };
    tokio::join!(flip, look);
    assert_eq!(listed(&store).await.claims.len(), 12_001);
}

#[tokio::test]
async fn prefixes_are_clusters_of_their_own() {
    let server = etcd!();
    let (one, two) = (server.options("/hawser/v1"), server.options("/hawser/v10"));
    let (one, two) = (EtcdStore::new(&one).unwrap(), EtcdStore::new(&two).unwrap());
    let (a, _) = registered(&one, "g", LONG).await;
    let (b, _) = registered(&two, "g", LONG).await;
    let session = vec![key("t", "s")];
    assert_eq!(one.claim(a, &group("g"), session.clone()).await, Ok(vec![ClaimOutcome::Won]));
    assert_eq!(two.claim(b, &group("g"), session).await, Ok(vec![ClaimOutcome::Won]));
    one.revoke(a).await.unwrap();
    assert_eq!(listed(&one).await.claims.len(), 0);
    assert_eq!(listed(&two).await.claims.len(), 1);
}

#[tokio::test]
async fn what_others_write_below_the_prefix_harms_nobody() {
    let server = etcd!();
    let (store, mut raw) = (store(&server), raw(&server).await);
    let (lease, epoch) = registered(&store, "g", LONG).await;
    let mut watch = store.watch().await.unwrap();
    let mut mirror = Mirror::default();
    let owner = format!(r#"{{"v":1,"group":"g","epoch":{epoch}}}"#);
    for (name, value) in [
        ("ranks/g/7/nccl", "anything"),
        ("sessions/t/s/u", owner.as_str()),
        ("sessions/t", owner.as_str()),
        ("sessions/t/next", r#"{"v":2,"group":"g","epoch":1}"#),
        ("sessions/t/extra", r#"{"v":1,"group":"g","epoch":1,"budget":5}"#),
        // Of a registration that never was.
        ("sessions/t/orphan", r#"{"v":1,"group":"g","epoch":1}"#),
        ("groups/later", r#"{"v":2,"shards":[]}"#),
        ("groups/a/b", "{}"),
        ("capacity/g", "not JSON"),
    ] {
        raw.put(format!("/hawser/v1/{name}"), value, None).await.unwrap();
    }
    store.claim(lease, &group("g"), vec![key("t", "s")]).await.unwrap();
    mirror.until(&mut watch, |mirror| mirror.claims.len() == 1).await;
    assert_eq!(mirror.claims.keys().collect::<Vec<_>>(), [&key("t", "s")]);
    assert_eq!(mirror.groups.keys().collect::<Vec<_>>(), [&group("g")]);
    assert_eq!(mirror.groups[&group("g")].capacity, record("g").capacity, "the last one that could be read");
    assert_eq!(listed(&store).await.claims, mirror.claims);
    // A session whose owner cannot be read is not claimed over its head.
    let refused = store.claim(lease, &group("g"), vec![key("t", "next")]).await;
    assert!(
        matches!(&refused, Err(StoreError::Unreachable { reason }) if reason.contains("version 2")),
        "{refused:?}"
    );
    // Who deletes a session's key by hand releases it.
    raw.delete("/hawser/v1/sessions/t/s", None).await.unwrap();
    mirror.until(&mut watch, |mirror| mirror.claims.is_empty()).await;
}

#[tokio::test]
async fn a_lease_that_somebody_else_made_is_a_lease() {
    let server = etcd!();
    let (store, mut raw) = (store(&server), raw(&server).await);
    let id = raw.lease_grant(60, None).await.unwrap().id();
    let lease = LeaseId(u64::try_from(id).unwrap());
    raw.put("/elsewhere", "", Some(PutOptions::new().with_lease(id))).await.unwrap();
    assert_eq!(store.renew(lease).await, Ok(LONG));
    let epoch = store.register(lease, record("g")).await.unwrap();
    // Another process that knows the lease may claim under it without having registered.
    let other = super::store(&server);
    assert_eq!(other.claim(lease, &group("g"), vec![key("t", "s")]).await, Ok(vec![ClaimOutcome::Won]));
    // What it remembers of the registration does not outlive it.
    let again = store.register(lease, record("g")).await.unwrap();
    assert!(again > epoch);
    assert_eq!(other.claim(lease, &group("g"), vec![key("t", "s")]).await, Ok(vec![ClaimOutcome::Won]));
    let owner = Owner { group: group("g"), epoch: again };
    assert_eq!(listed(&store).await.claims, BTreeMap::from([(key("t", "s"), owner)]));
    for wrong in [LeaseId(0), LeaseId(u64::MAX)] {
        let (renewed, revoked) = (store.renew(wrong).await, store.revoke(wrong).await);
        assert_eq!((renewed, revoked), (Err(StoreError::LeaseGone { lease: wrong }), Ok(())));
    }
    assert!(matches!(store.grant(Duration::ZERO).await, Err(StoreError::Invalid { .. })));
    assert!(store.grant(Duration::from_millis(2_100)).await.unwrap().ttl >= Duration::from_millis(2_100));
}

#[tokio::test]
async fn a_full_etcd_refuses_groups_and_keeps_what_there_is() {
    let server = etcd!();
    let (store, mut raw) = (store(&server), raw(&server).await);
    let (lease, _) = registered(&store, "g", LONG).await;
    let (id, session) = (group("g"), vec![key("t", "s")]);
    store.claim(lease, &id, session).await.unwrap();
    let second = store.grant(LONG).await.unwrap().id;
    raw.alarm(AlarmAction::Activate, AlarmType::Nospace, None).await.unwrap();
    for refused in [
        store.register(second, record("h")).await.map(|_| ()),
        store.publish(lease, &id, Capacity::default(), false).await,
    ] {
        assert!(matches!(refused, Err(StoreError::Full { .. })), "{refused:?}");
    }
    assert_eq!(store.renew(lease).await, Ok(LONG));
    let listed = listed(&store).await;
    assert_eq!((listed.groups.len(), listed.claims.len()), (1, 1));
    let mut everywhere = AlarmOptions::new();
    everywhere.with_member(0);
    raw.alarm(AlarmAction::Deactivate, AlarmType::Nospace, Some(everywhere)).await.unwrap();
    store.register(second, record("h")).await.unwrap();
}
