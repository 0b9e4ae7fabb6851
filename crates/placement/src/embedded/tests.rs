//! The suite, a model check over random histories, and size.

use std::collections::BTreeMap;

use futures_util::StreamExt as _;
use hawser_common::clock::ManualClock;
use hawser_common::group::Owner;
use proptest::prelude::*;

use super::*;
use crate::conformance::{self, Harness, Mirror, group, key, record};

fn store(options: EmbeddedOptions) -> (Arc<EmbeddedStore>, ManualClock) {
    let (clock, hand) = Clock::manual();
    (Arc::new(EmbeddedStore::new(clock, options)), hand)
}

#[tokio::test]
async fn the_embedded_store_passes_the_suite() {
    conformance::run(async || {
        let (store, hand) = store(EmbeddedOptions { max_events: 64, ..EmbeddedOptions::default() });
        let swept = Arc::clone(&store);
        let advance = move |by| {
            hand.advance(by);
            swept.sweep();
            std::future::ready(()).boxed()
        };
        Harness { store, advance: Box::new(advance) }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn the_sweeper_tells_watchers_without_anyone_asking() {
    let (clock, hand) = Clock::manual();
    let tasks = Tasks::new();
    let store = EmbeddedStore::start(clock, &tasks, EmbeddedOptions::default());
    let lease = store.grant(Duration::from_secs(5)).await.unwrap().id;
    store.register(lease, record("g")).await.unwrap();
    let mut watch = store.watch().await.unwrap();
    let mut mirror = Mirror::default();
    mirror.until(&mut watch, |mirror| mirror.groups.len() == 1).await;
    hand.advance(Duration::from_secs(5));
    mirror.until(&mut watch, |mirror| mirror.groups.is_empty()).await;
    drop(store);
    assert!(watch.next().await.is_none(), "a watch ends with its store");
    assert!(tasks.shutdown(Duration::from_secs(5)).await);
}

#[tokio::test]
async fn full_means_refused_and_nothing_changed() {
    let (store, _) = store(EmbeddedOptions { max_leases: 1, max_claims: 2, ..EmbeddedOptions::default() });
    let lease = store.grant(Duration::from_secs(5)).await.unwrap().id;
    assert!(matches!(store.grant(Duration::from_secs(5)).await, Err(StoreError::Full { .. })));
    store.register(lease, record("g")).await.unwrap();
    let id = group("g");
    let claim = |names: [&str; 2]| store.claim(lease, &id, names.map(|n| key("t", n)).to_vec());
    assert_eq!(claim(["a", "b"]).now_or_never().unwrap(), Ok(vec![ClaimOutcome::Won; 2]));
    assert!(matches!(claim(["c", "d"]).now_or_never().unwrap(), Err(StoreError::Full { .. })));
    store.release(lease, vec![key("t", "a"), key("t", "b")]).await.unwrap();
    assert_eq!(claim(["c", "d"]).now_or_never().unwrap(), Ok(vec![ClaimOutcome::Won; 2]));
    assert!(matches!(store.grant(Duration::ZERO).await, Err(StoreError::Invalid { .. })));
}

#[tokio::test]
async fn a_hundred_thousand_sessions_fit() {
    let (store, _) = store(EmbeddedOptions::default());
    let (clock, mut leases) = (Clock::system(), Vec::new());
    let start = clock.now();
    for g in 0..100 {
        let id = format!("g{g}");
        let lease = store.grant(Duration::from_secs(60)).await.unwrap().id;
        store.register(lease, record(&id)).await.unwrap();
        let sessions = (0..1000).map(|s| key("default", &format!("session-{g}-{s}"))).collect();
        let outcomes = store.claim(lease, &group(&id), sessions).await.unwrap();
        assert!(outcomes.iter().all(|outcome| *outcome == ClaimOutcome::Won));
        leases.push(lease);
    }
    let claimed = clock.now();
    let mut watch = store.watch().await.unwrap();
    let mut mirror = Mirror::default();
    mirror.until(&mut watch, |mirror| mirror.snapshots == 1).await;
    assert_eq!((mirror.groups.len(), mirror.claims.len()), (100, 100_000));
    let seen = clock.now();
    store.revoke(leases[0]).await.unwrap();
    let revoked = clock.now();
    mirror.until(&mut watch, |mirror| mirror.groups.len() == 99).await;
    assert_eq!(mirror.claims.len(), 99_000);
    println!(
        "100,000 sessions: claimed in {:?}, snapshot read in {:?}, one group of 1,000 ended in {:?}",
        claimed.since(start),
        seen.since(claimed),
        revoked.since(seen)
    );
}

/// One step of a random history; numbers are indices modulo what there is.
#[derive(Clone, Debug)]
enum Op {
    Grant(u64),
    Renew(usize),
    Revoke(usize),
    Register(usize, u8),
    Claim(usize, u8, Vec<u8>),
    Release(usize, Vec<u8>),
    Advance(u64),
    Watch,
}

fn op() -> impl Strategy<Value = Op> {
    let sessions = || prop::collection::vec(0u8..6, 1..4);
    prop_oneof![
        2 => (1u64..8).prop_map(Op::Grant),
        2 => any::<usize>().prop_map(Op::Renew),
        1 => any::<usize>().prop_map(Op::Revoke),
        4 => (any::<usize>(), 0u8..3).prop_map(|(l, g)| Op::Register(l, g)),
        6 => (any::<usize>(), 0u8..3, sessions()).prop_map(|(l, g, s)| Op::Claim(l, g, s)),
        3 => (any::<usize>(), sessions()).prop_map(|(l, s)| Op::Release(l, s)),
        3 => (1u64..5).prop_map(Op::Advance),
        2 => Just(Op::Watch),
    ]
}

/// The same store, written as plainly as it can be.
#[derive(Default)]
struct Model {
    now: u64,
    /// Every lease ever granted, with its end and its time to live in seconds.
    leases: Vec<(LeaseId, u64, u64)>,
    groups: BTreeMap<GroupId, (LeaseId, Epoch)>,
    claims: BTreeMap<SessionKey, LeaseId>,
    last_epoch: u64,
}

impl Model {
    fn lease(&self, index: usize) -> Option<LeaseId> {
        self.leases.get(index.checked_rem(self.leases.len())?).map(|lease| lease.0)
    }
    fn live(&self, lease: LeaseId) -> bool {
        self.leases.iter().any(|l| l.0 == lease && l.1 > self.now)
    }
    fn settle(&mut self) {
        let live: Vec<_> = self.leases.iter().filter(|l| l.1 > self.now).map(|l| l.0).collect();
        self.groups.retain(|_, (lease, _)| live.contains(lease));
        self.claims.retain(|_, lease| live.contains(lease));
    }
    fn group_of(&self, lease: LeaseId) -> Option<&GroupId> {
        self.groups.iter().find(|(_, held)| held.0 == lease).map(|(id, _)| id)
    }
    fn owners(&self) -> BTreeMap<SessionKey, Owner> {
        let owner = |lease: &LeaseId| {
            let (id, (_, epoch)) = self.groups.iter().find(|(_, held)| held.0 == *lease).unwrap();
            Owner { group: id.clone(), epoch: *epoch }
        };
        self.claims.iter().map(|(session, lease)| (session.clone(), owner(lease))).collect()
    }
}

fn now<T>(future: StoreFuture<'_, T>) -> Result<T, StoreError> {
    future.now_or_never().expect("an embedded store answers at once")
}

/// Runs one operation on both, and compares the answers.
fn step(op: Op, store: &EmbeddedStore, hand: &ManualClock, model: &mut Model) {
    let session = |s: &u8| key("t", &format!("s{s}"));
    match op {
        Op::Grant(ttl) => {
            let lease = now(store.grant(Duration::from_secs(ttl))).unwrap();
            model.leases.push((lease.id, model.now + ttl, ttl));
        }
        Op::Renew(i) => {
            let Some(lease) = model.lease(i) else { return };
            assert_eq!(now(store.renew(lease)).is_ok(), model.live(lease));
            let clock = model.now;
            model.leases.iter_mut().filter(|l| l.0 == lease && l.1 > clock).for_each(|l| l.1 = clock + l.2);
        }
        Op::Revoke(i) => {
            let Some(lease) = model.lease(i) else { return };
            now(store.revoke(lease)).unwrap();
            model.leases.iter_mut().filter(|l| l.0 == lease).for_each(|l| l.1 = 0);
            model.settle();
        }
        Op::Register(i, g) => {
            let (Some(lease), id) = (model.lease(i), group(&format!("g{g}"))) else { return };
            let other = model.group_of(lease).is_some_and(|held| *held != id);
            let taken = model.groups.get(&id).is_some_and(|held| held.0 != lease);
            match now(store.register(lease, record(id.as_str()))) {
                Ok(epoch) => {
                    assert!(model.live(lease) && !other && !taken);
                    assert!(epoch.0 > model.last_epoch, "epochs grow");
                    model.last_epoch = epoch.0;
                    model.claims.retain(|_, holder| *holder != lease);
                    model.groups.insert(id, (lease, epoch));
                }
                Err(_) => assert!(!model.live(lease) || other || taken),
            }
        }
        Op::Claim(i, g, sessions) => {
            let (Some(lease), id) = (model.lease(i), group(&format!("g{g}"))) else { return };
            let allowed = model.live(lease) && model.group_of(lease) == Some(&id);
            match now(store.claim(lease, &id, sessions.iter().map(session).collect())) {
                Err(_) => assert!(!allowed),
                Ok(outcomes) => {
                    assert!(allowed);
                    for (s, outcome) in sessions.iter().map(session).zip(outcomes) {
                        let holder = *model.claims.entry(s).or_insert(lease);
                        assert_eq!(outcome == ClaimOutcome::Won, holder == lease);
                    }
                }
            }
        }
        Op::Release(i, sessions) => {
            let Some(lease) = model.lease(i) else { return };
            assert_eq!(
                now(store.release(lease, sessions.iter().map(session).collect())).is_ok(),
                model.live(lease)
            );
            model.claims.retain(|s, holder| *holder != lease || !sessions.iter().any(|r| session(r) == *s));
        }
        Op::Advance(seconds) => {
            hand.advance(Duration::from_secs(seconds));
            model.now += seconds;
            model.settle();
        }
        Op::Watch => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]
    #[test]
    fn random_histories_keep_one_owner_and_every_watcher_agrees(
        ops in prop::collection::vec(op(), 1..80),
        max_events in 1usize..40,
    ) {
        let (store, hand) = store(EmbeddedOptions { max_events, ..EmbeddedOptions::default() });
        let mut model = Model::default();
        let mut watch = now(store.watch()).unwrap();
        let mut mirror = Mirror::default();
        for op in ops {
            let look = matches!(op, Op::Watch);
            step(op, &store, &hand, &mut model);
            if look {
                store.sweep();
                while let Some(update) = watch.next().now_or_never() {
                    mirror.apply(update.unwrap().unwrap());
                }
                prop_assert_eq!(&mirror.claims, &model.owners());
                let groups: BTreeMap<_, _> =
                    mirror.groups.values().map(|group| (group.id.clone(), group.epoch)).collect();
                let expected: BTreeMap<_, _> =
                    model.groups.iter().map(|(id, held)| (id.clone(), held.1)).collect();
                prop_assert_eq!(groups, expected);
            }
        }
    }
}
