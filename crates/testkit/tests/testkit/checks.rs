//! Histories that the checks must refuse, each a right one with one thing changed.

use std::time::Duration;

use hawser_common::clock::Tick;
use hawser_common::group::Owner;
use hawser_common::{Epoch, ErrorCode, GroupId, SessionId, SessionKey, TenantId};
use hawser_testkit::history::{End, Entry, Event, Rules, TurnId, check};

const RULES: Rules =
    Rules { tokens: 2, after_loss: Duration::from_secs(1), recovery: Duration::from_secs(10) };

fn session() -> SessionKey {
    SessionKey { tenant: TenantId::single(), session: SessionId::parse("s").unwrap() }
}

fn owner(group: &str, epoch: u64) -> Owner {
    Owner { group: GroupId::parse(group).unwrap(), epoch: Epoch(epoch) }
}

fn id(turn: &str) -> TurnId {
    TurnId(turn.to_owned())
}

fn sent(turn: &str, owner: &Owner, token: u32) -> Event {
    Event::Sent { session: session(), turn: id(turn), owner: owner.clone(), token }
}

fn received(turn: &str, tokens: &[u32]) -> Event {
    Event::Received { turn: id(turn), tokens: tokens.to_vec() }
}

fn finished(turn: &str) -> Event {
    Event::Ended { turn: id(turn), end: End::Finished { tokens: 2 } }
}

fn claimed(owner: &Owner) -> Event {
    Event::Claimed { session: session(), owner: owner.clone() }
}

/// A turn of `owner` from start to end.
fn turn(name: &str, owner: &Owner, history: &[&str]) -> Vec<Event> {
    let history: Vec<TurnId> = history.iter().map(|turn| id(turn)).collect();
    vec![
        Event::Asked { session: session(), turn: id(name), history: history.clone() },
        Event::Served {
            session: session(),
            turn: id(name),
            owner: owner.clone(),
            routed: owner.epoch.0,
            history,
        },
        Event::Placed { turn: id(name), owner: owner.clone() },
        sent(name, owner, 0),
        received(name, &[0]),
        sent(name, owner, 1),
        received(name, &[1]),
        finished(name),
    ]
}

/// Two turns at one owner, then one at another, which took over; then everything is well.
fn right() -> Vec<Event> {
    let (a, b) = (owner("a", 1), owner("b", 2));
    let mut events = vec![claimed(&a)];
    events.extend(turn("t1", &a, &[]));
    events.extend(turn("t2", &a, &["t1"]));
    events.push(Event::Released { session: session() });
    events.push(claimed(&b));
    events.extend(turn("t3", &b, &["t1", "t2"]));
    events.push(Event::Healed);
    events.extend(turn("t4", &b, &["t1", "t2", "t3"]));
    events
}

fn violations(events: Vec<Event>) -> Vec<String> {
    let at = |i: usize| Tick(Duration::from_millis(10 * i as u64));
    let history: Vec<Entry> =
        events.into_iter().enumerate().map(|(i, event)| Entry { at: at(i), event }).collect();
    check(RULES, &history).into_iter().map(|violation| violation.what).collect()
}

#[track_caller]
fn refused(change: impl FnOnce(&mut Vec<Event>), expected: &str) {
    let mut events = right();
    change(&mut events);
    let found = violations(events);
    assert!(found.iter().any(|what| what.contains(expected)), "expected {expected:?} among {found:?}");
}

fn at(events: &[Event], event: &Event) -> usize {
    events.iter().position(|found| found == event).unwrap()
}

#[test]
fn a_right_history_is_right() {
    assert_eq!(violations(right()), Vec::<String>::new());
    let mut failed = right();
    let end = at(&failed, &finished("t2"));
    failed[end] = Event::Ended { turn: id("t2"), end: End::Failed { code: ErrorCode::Unavailable } };
    assert_eq!(violations(failed), Vec::<String>::new());
}

#[test]
fn two_owners_at_once_are_refused() {
    refused(|events| events.retain(|event| *event != Event::Released { session: session() }), "while Owner");
    refused(|events| events.insert(0, Event::Released { session: session() }), "taken from nobody");
}

#[test]
fn a_token_of_an_owner_that_is_none_any_more_is_refused() {
    let stale = sent("t2", &owner("a", 1), 1);
    refused(|events| events.push(stale.clone()), "sends token 1 of t2");
    // Between two owners there is none.
    refused(|events| events.insert(at(events, &claimed(&owner("b", 2))), stale.clone()), "owned by None");
    // The same group under an epoch before this one.
    refused(|events| events.push(sent("t4", &owner("b", 1), 1)), "sends token 1 of t4");
}

#[test]
fn what_a_store_forgot_is_forgiven_for_a_while_only() {
    let mut events = right();
    events.push(Event::StoreLost);
    events.push(sent("t4", &owner("b", 2), 1));
    assert_eq!(violations(events.clone()), Vec::<String>::new());
    events.extend((0..100).map(|_| Event::Fault { what: "time passes".to_owned() }));
    events.push(sent("t4", &owner("b", 2), 1));
    assert_eq!(violations(events).len(), 1);
}

#[test]
fn a_stale_epoch_and_a_foreign_history_are_refused() {
    let served = |routed, history: &[&str]| Event::Served {
        session: session(),
        turn: id("t3"),
        owner: owner("b", 2),
        routed,
        history: history.iter().map(|turn| id(turn)).collect(),
    };
    let right = served(2, &["t1", "t2"]);
    refused(
        |events| *events.iter_mut().find(|event| **event == right).unwrap() = served(1, &["t1", "t2"]),
        "epoch 1",
    );
    refused(
        |events| *events.iter_mut().find(|event| **event == right).unwrap() = served(2, &["t1"]),
        "its client knows",
    );
}

#[test]
fn tokens_out_of_order_twice_or_missing_are_refused() {
    let second = received("t1", &[1]);
    let change = |new: Option<Event>| {
        let second = second.clone();
        move |events: &mut Vec<Event>| {
            let place = at(events, &second);
            events.splice(place..=place, new);
        }
    };
    refused(change(Some(received("t1", &[0]))), "delivers [0]");
    refused(change(Some(received("t1", &[2]))), "next come [1]");
    refused(change(None), "ends well with 1 tokens");
    refused(|events| events.push(received("t1", &[2])), "after its end");
    let placed = Event::Placed { turn: id("t1"), owner: owner("a", 1) };
    refused(|events| events.insert(at(events, &second), placed), "placed again");
}

#[test]
fn turns_end_exactly_once() {
    refused(|events| events.push(finished("t4")), "t4 ends after its end");
    refused(|events| events.retain(|event| *event != finished("t1")), "t1 never ends");
    refused(|events| events.insert(0, finished("t1")), "t1 ends before");
}

#[test]
fn a_session_that_stays_broken_is_refused() {
    let failed = Event::Ended { turn: id("t4"), end: End::Failed { code: ErrorCode::Unavailable } };
    refused(
        |events| {
            let end = at(events, &finished("t4"));
            events[end] = failed;
        },
        "no turn of",
    );
}
