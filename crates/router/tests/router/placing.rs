//! Where sessions go, and that they stay there.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use futures_util::future::join_all;
use hawser_common::ErrorCode;
use hawser_common::clock::Clock;
use hawser_proto::v1::generate_request::Input;
use hawser_router::{Router, RouterOptions};

use crate::cluster::{Cluster, LONG, client, delta, options, request, turn};
use crate::worker::Script;

#[tokio::test]
async fn a_session_stays_with_its_group_and_sessions_spread() {
    let cluster = Cluster::start(3, options()).await;
    let mut used = BTreeSet::new();
    for s in 0..24 {
        let session = format!("session-{s}");
        let first = cluster.turn(&session).await.unwrap();
        assert_eq!(
            first.header.as_deref(),
            Some(session.as_str()),
            "the handle comes before the first token"
        );
        assert_eq!((first.chunks, first.number), (3, 1));
        for number in 2..5 {
            let next = cluster.turn(&session).await.unwrap();
            assert_eq!((&next.group, next.number), (&first.group, number));
        }
        used.insert(first.group);
    }
    assert_eq!(used.len(), 3, "{used:?}");
    assert_eq!(cluster.state().await.claims.len(), 24);
    cluster.assert_idle().await;
}

#[tokio::test]
async fn a_router_that_remembers_nothing_is_redirected_by_the_workers() {
    let cluster = Cluster::start(3, RouterOptions { max_sessions: 1, ..options() }).await;
    let mut owners = HashMap::new();
    for round in 1..4 {
        for s in 0..12 {
            let session = format!("s{s}");
            let turn = cluster.turn(&session).await.unwrap();
            assert_eq!(turn.number, round);
            let owner = owners.entry(session).or_insert_with(|| turn.group.clone());
            assert_eq!(*owner, turn.group);
        }
    }
}

#[tokio::test]
async fn first_turns_raced_through_two_routers_end_on_one_group() {
    let cluster = Cluster::start(4, options()).await;
    let other = Router::start(&options(), Arc::clone(&cluster.store) as _, None, Clock::system()).unwrap();
    assert!(other.wait_for_groups(4, LONG).await);
    let clients = [cluster.client.clone(), client(&other)];
    for s in 0..10 {
        let session = format!("raced-{s}");
        let turns = (0..16).map(|i| {
            let (mut client, request) = (clients[i % 2].clone(), request(&session));
            async move { turn(&mut client, request).await.unwrap().group }
        });
        let groups: BTreeSet<_> = join_all(turns).await.into_iter().collect();
        assert_eq!(groups.len(), 1, "{session} ran on {groups:?}");
    }
    assert_eq!(cluster.state().await.claims.len(), 10);
    cluster.assert_idle().await;
    assert!(other.shutdown(LONG).await);
}

#[tokio::test]
async fn ids_that_begin_alike_are_independent() {
    let cluster = Cluster::start(2, options()).await;
    let mut client = cluster.client.clone();
    cluster.turn("session-1").await.unwrap();
    let long = cluster.turn("session-12").await.unwrap();
    let closed = client
        .close_session(hawser_proto::v1::CloseSessionRequest { session: "session-1".into() })
        .await
        .unwrap()
        .into_inner();
    assert_eq!(closed.slots_freed, 7);
    let again = cluster.turn("session-12").await.unwrap();
    assert_eq!((again.group, again.number), (long.group, 2));
    assert_eq!(cluster.turn("session-1").await.unwrap().number, 1);
}

#[tokio::test]
async fn a_worker_that_refuses_the_open_leaves_nothing_behind() {
    let cluster = Cluster::start(3, options()).await;
    for code in [ErrorCode::Exhausted, ErrorCode::Unavailable, ErrorCode::Invalid] {
        for worker in &cluster.workers {
            worker.script(Script { refuse: Some(code), ..Script::default() });
        }
        let refused = cluster.turn("s").await.unwrap_err();
        assert_eq!(refused.code, code);
        assert!(cluster.state().await.claims.is_empty());
        cluster.assert_idle().await;
    }
    // One group that can is enough, whichever is asked first.
    for worker in &cluster.workers {
        let refuse = (worker.id() != "g2").then_some(ErrorCode::Exhausted);
        worker.script(Script { refuse, ..Script::default() });
    }
    for s in 0..8 {
        assert_eq!(cluster.turn(&format!("s{s}")).await.unwrap().group, "g2");
    }
}

#[tokio::test]
async fn the_sessions_of_a_group_that_is_gone_are_placed_anew() {
    let cluster = Cluster::start(2, options()).await;
    let first = cluster.turn("s").await.unwrap();
    let gone = cluster.worker(&first.group).clone();
    gone.kill();
    gone.registration.stop().await;
    // Only what is new: the new group has never seen the session and says so.
    let lost = turn(&mut cluster.client.clone(), delta("s")).await.unwrap_err();
    assert_eq!(lost.code, ErrorCode::SessionLost);
    let second = cluster.turn("s").await.unwrap();
    assert_ne!(second.group, first.group);
    let third = turn(&mut cluster.client.clone(), delta("s")).await.unwrap();
    assert_eq!((third.group, third.number), (second.group, 2));
}

#[tokio::test]
async fn a_turn_waits_for_a_silent_owner_until_its_lease_ends() {
    let cluster = Cluster::start(2, options()).await;
    let first = cluster.turn("s").await.unwrap();
    let dead = cluster.worker(&first.group).clone();
    dead.kill();
    let (turn, ()) = tokio::join!(cluster.turn("s"), async {
        // Not before the router has found the owner silent, which its count of calls shows.
        while cluster.router.in_flight() == 0 {
            tokio::task::yield_now().await;
        }
        dead.registration.stop().await;
    });
    assert_ne!(turn.unwrap().group, first.group);
    cluster.assert_idle().await;
}

#[tokio::test]
async fn a_silent_owner_is_not_waited_for_longer_than_allowed() {
    let cluster = Cluster::start(2, RouterOptions { owner_wait_ms: 100, ..options() }).await;
    let first = cluster.turn("s").await.unwrap();
    cluster.worker(&first.group).kill();
    let refused = cluster.turn("s").await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::Unavailable);
    assert!(refused.message.contains(&first.group), "{refused}");
    assert!(refused.retry_after.is_some());
    // The owner has not changed: the session is not stolen while the lease lives.
    assert_eq!(cluster.state().await.claims.values().next().unwrap().group.as_str(), first.group);
}

#[tokio::test]
async fn draining_groups_keep_their_sessions_and_get_no_new_ones() {
    let cluster = Cluster::start(2, options()).await;
    let first = cluster.turn("s").await.unwrap();
    cluster.worker(&first.group).registration.drain();
    let mut watch = hawser_placement::Store::watch(&*cluster.store).await.unwrap();
    hawser_placement::conformance::Mirror::default()
        .until(&mut watch, |mirror| mirror.groups.values().any(|group| group.draining))
        .await;
    // Events reach the router in the same order, but not at the same time: a claim made now comes after the drain.
    for s in 0..6 {
        cluster.turn(&format!("early-{s}")).await.unwrap();
    }
    for s in 0..12 {
        assert_ne!(cluster.turn(&format!("new-{s}")).await.unwrap().group, first.group);
    }
    assert_eq!(cluster.turn("s").await.unwrap().group, first.group);
}

#[tokio::test]
async fn first_turns_of_a_session_that_come_together_go_to_one_group() {
    let cluster = Cluster::start(4, options()).await;
    for round in 1..6 {
        let session = format!("together-{round}");
        let turns = (0..16).map(|_| {
            let (mut client, request) = (cluster.client.clone(), request(&session));
            async move { turn(&mut client, request).await.unwrap().group }
        });
        let groups: BTreeSet<_> = join_all(turns).await.into_iter().collect();
        assert_eq!(groups.len(), 1, "{groups:?}");
        let asked: usize = cluster.workers.iter().map(|worker| worker.seen.borrow().started).sum();
        assert_eq!(asked, 16 * round, "no group was asked that did not get the session");
    }
    cluster.assert_idle().await;
}

#[tokio::test]
async fn sessions_with_the_same_system_message_share_a_group_while_it_has_no_more_than_its_share() {
    let cluster = Cluster::start(3, options()).await;
    let with_system = |session: String, system: &str| {
        let mut request = request(&session);
        if let Some(Input::Conversation(conversation)) = &mut request.input {
            let message = hawser_common::chat::Message::text(hawser_common::chat::Role::System, system);
            conversation.messages.insert(0, (&message).into());
        }
        request
    };
    let mut groups = Vec::new();
    for n in 0..30 {
        let request = with_system(format!("s{n}"), "You are an agent.");
        groups.push(turn(&mut cluster.client.clone(), request).await.unwrap().group);
    }
    assert!(groups[..4].iter().all(|group| *group == groups[0]), "{groups:?}");
    let mut counts: HashMap<&String, usize> = HashMap::new();
    groups.iter().for_each(|group| *counts.entry(group).or_default() += 1);
    assert!(counts.len() == 3 && counts.values().all(|count| *count <= 14), "{counts:?}");
    cluster.assert_idle().await;
}
