//! A registration against an embedded store that can be made slow or silent, in simulated time.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use futures_util::future::join_all;
use hawser_common::clock::ManualClock;

use super::*;
use crate::conformance::{Mirror, group, key, record};
use crate::embedded::{EmbeddedOptions, EmbeddedStore};
use crate::store::{ClaimOutcome, Lease, StoreFuture, Watch};

const TTL: Duration = Duration::from_secs(10);
const TICK: Duration = Duration::from_millis(10);

/// An embedded store behind a bad network.
#[derive(Debug)]
struct Flaky {
    inner: Arc<EmbeddedStore>,
    silent: AtomicBool,
    claims: AtomicUsize,
    published: Mutex<Vec<(Capacity, bool)>>,
    /// Claims wait here until it is open.
    gate: watch::Sender<bool>,
}

impl Flaky {
    fn call<'a, T: Send + 'a>(&'a self, call: StoreFuture<'a, T>) -> StoreFuture<'a, T> {
        Box::pin(async move {
            if self.silent.load(Ordering::SeqCst) {
                std::future::pending::<()>().await;
            }
            call.await
        })
    }
}

impl Store for Flaky {
    fn grant(&self, ttl: Duration) -> StoreFuture<'_, Lease> {
        self.call(Box::pin(async move { self.inner.grant(ttl).await }))
    }
    fn renew(&self, lease: LeaseId) -> StoreFuture<'_, Duration> {
        self.call(Box::pin(async move { self.inner.renew(lease).await }))
    }
    fn revoke(&self, lease: LeaseId) -> StoreFuture<'_, ()> {
        self.call(Box::pin(async move { self.inner.revoke(lease).await }))
    }
    fn register(&self, lease: LeaseId, group: GroupRecord) -> StoreFuture<'_, Epoch> {
        self.call(Box::pin(async move { self.inner.register(lease, group).await }))
    }
    fn publish<'a>(
        &'a self,
        lease: LeaseId,
        group: &'a GroupId,
        capacity: Capacity,
        draining: bool,
    ) -> StoreFuture<'a, ()> {
        self.published.lock().unwrap().push((capacity, draining));
        self.call(Box::pin(async move { self.inner.publish(lease, group, capacity, draining).await }))
    }
    fn claim<'a>(
        &'a self,
        lease: LeaseId,
        group: &'a GroupId,
        sessions: Vec<SessionKey>,
    ) -> StoreFuture<'a, Vec<ClaimOutcome>> {
        self.claims.fetch_add(1, Ordering::SeqCst);
        let mut gate = self.gate.subscribe();
        self.call(Box::pin(async move {
            gate.wait_for(|open| *open).await.unwrap();
            self.inner.claim(lease, group, sessions).await
        }))
    }
    fn release(&self, lease: LeaseId, sessions: Vec<SessionKey>) -> StoreFuture<'_, ()> {
        self.call(Box::pin(async move { self.inner.release(lease, sessions).await }))
    }
    fn watch(&self) -> StoreFuture<'_, Watch> {
        self.inner.watch()
    }
}

/// A store, a clock that follows tokio's simulated time, and tasks.
struct World {
    store: Arc<Flaky>,
    clock: Clock,
    hand: ManualClock,
    tasks: Tasks,
}

impl World {
    fn new() -> Self {
        let (clock, hand) = Clock::manual();
        let inner = Arc::new(EmbeddedStore::new(clock.clone(), EmbeddedOptions::default()));
        let store = Arc::new(Flaky {
            inner,
            silent: AtomicBool::new(false),
            claims: AtomicUsize::new(0),
            published: Mutex::new(Vec::new()),
            gate: watch::Sender::new(true),
        });
        Self { store, clock, hand, tasks: Tasks::new() }
    }

    async fn start(&self, id: &str) -> Result<RegistrationHandle, StoreError> {
        let store: Arc<dyn Store> = Arc::clone(&self.store) as _;
        let start = Registration::start(store, self.clock.clone(), &self.tasks, record(id), TTL);
        tokio::select! {
            handle = start => handle,
            () = self.pass(TTL * 100, || ()) => panic!("a registration neither began nor failed"),
        }
    }

    /// One that waits for its group.
    fn start_suspended(&self, id: &str) -> RegistrationHandle {
        let store: Arc<dyn Store> = Arc::clone(&self.store) as _;
        let (clock, metrics) = (self.clock.clone(), PlacementMetrics::default());
        Registration::start_suspended(store, clock, &self.tasks, record(id), TTL, metrics)
    }

    /// Lets time pass, looking at every tick.
    async fn pass(&self, time: Duration, mut look: impl FnMut()) {
        let mut passed = Duration::ZERO;
        while passed < time {
            tokio::time::sleep(TICK).await;
            self.hand.advance(TICK);
            passed += TICK;
            look();
        }
    }

    async fn groups(&self) -> Mirror {
        let mut mirror = Mirror::default();
        let mut watch = self.store.watch().await.unwrap();
        mirror.until(&mut watch, |mirror| mirror.snapshots == 1).await;
        mirror
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_kept_for_as_long_as_the_store_answers() {
    let world = World::new();
    let handle = world.start("g").await.unwrap();
    let epoch = handle.epoch();
    world.pass(TTL * 10, || assert!(handle.valid(world.clock.now()))).await;
    assert_eq!(handle.epoch(), epoch);
}

#[tokio::test(start_paused = true)]
async fn a_short_silence_changes_nothing_whenever_it_begins() {
    let world = World::new();
    let handle = world.start("g").await.unwrap();
    let epoch = handle.epoch();
    for i in 0..40 {
        // Steps of an odd length put the silence at every phase of the renewals.
        world.pass(TTL + TICK * (37 * i % 400), || assert!(handle.valid(world.clock.now()))).await;
        world.store.silent.store(true, Ordering::SeqCst);
        world.pass(TTL * 3 / 10, || assert!(handle.valid(world.clock.now()))).await;
        world.store.silent.store(false, Ordering::SeqCst);
    }
    world.pass(TTL, || assert!(handle.valid(world.clock.now()))).await;
    assert_eq!(handle.epoch(), epoch);
}

#[tokio::test(start_paused = true)]
async fn a_worker_cut_off_fences_itself_first_and_comes_back_with_a_new_epoch() {
    let world = World::new();
    let mut handle = world.start("g").await.unwrap();
    let first = handle.epoch();
    handle.claim(key("t", "s")).await.unwrap();
    world.store.silent.store(true, Ordering::SeqCst);
    let mut watch = world.store.watch().await.unwrap();
    let mut mirror = Mirror::default();
    world
        .pass(TTL * 2, || {
            use futures_util::{FutureExt as _, StreamExt as _};
            while let Some(Some(Ok(update))) = watch.next().now_or_never() {
                mirror.apply(update);
            }
            world.store.inner.sweep();
            let valid = handle.valid(world.clock.now());
            assert!(!valid || !mirror.groups.is_empty(), "served after the store had given the group up");
        })
        .await;
    assert!(!handle.valid(world.clock.now()) && mirror.groups.is_empty());
    let refused = handle.claim(key("t", "other")).await;
    assert!(matches!(refused, Err(ClaimError::Unavailable { .. })), "{refused:?}");

    world.store.silent.store(false, Ordering::SeqCst);
    world.pass(TTL, || ()).await;
    assert!(handle.valid(world.clock.now()));
    assert!(handle.epoch() > first);
    assert_eq!(handle.standing().term, 2);
    assert_eq!(handle.changed().await.epoch, handle.epoch());
    let mirror = world.groups().await;
    assert_eq!(mirror.groups[&group("g")].epoch, handle.epoch());
    assert!(mirror.claims.is_empty(), "claims of the old epoch are gone");
    // What was held under the old epoch is claimed anew, not remembered.
    assert_eq!(handle.claim(key("t", "s")).await, Ok(handle.epoch()));
    assert_eq!(world.groups().await.claims.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn what_is_given_up_and_asked_for_again_is_held() {
    let world = World::new();
    let handle = world.start("g").await.unwrap();
    handle.claim(key("t", "s")).await.unwrap();
    for _ in 0..3 {
        handle.give_up(key("t", "s"));
        handle.claim(key("t", "s")).await.unwrap();
    }
    world.pass(TTL, || ()).await;
    assert_eq!(world.groups().await.claims.len(), 1);
    handle.give_up(key("t", "s"));
    world.pass(TTL, || ()).await;
    assert!(world.groups().await.claims.is_empty());
}

#[tokio::test(start_paused = true)]
async fn many_claims_are_few_calls_and_each_has_its_outcome() {
    let world = World::new();
    let (a, b) = (world.start("a").await.unwrap(), world.start("b").await.unwrap());
    let sessions: Vec<_> = (0..500).map(|i| key("t", &format!("s{i}"))).collect();
    let claims = sessions.iter().map(|session| a.claim(session.clone()));
    assert!(join_all(claims).await.iter().all(|won| *won == Ok(a.epoch())));
    let calls = world.store.claims.load(Ordering::SeqCst);
    assert!(calls <= 3, "{calls} calls for 500 claims");
    let owner = Owner { group: group("a"), epoch: a.epoch() };
    assert_eq!(b.claim(sessions[7].clone()).await, Err(ClaimError::Owned(owner)));
    // Held already: nobody is asked.
    let calls = world.store.claims.load(Ordering::SeqCst);
    assert_eq!(a.claim(sessions[7].clone()).await, Ok(a.epoch()));
    assert_eq!(world.store.claims.load(Ordering::SeqCst), calls);
    a.release(sessions[7].clone()).await;
    world.pass(TICK, || ()).await;
    assert_eq!(b.claim(sessions[7].clone()).await, Ok(b.epoch()));
}

#[tokio::test(start_paused = true)]
async fn a_claim_nobody_waits_for_is_given_up() {
    let world = World::new();
    let handle = world.start("g").await.unwrap();
    world.store.gate.send_replace(false);
    let dropped = tokio::time::timeout(TICK, handle.claim(key("t", "dropped"))).await;
    assert!(dropped.is_err(), "the gate is shut");
    world.store.gate.send_replace(true);
    world.pass(TTL / 2, || ()).await;
    assert!(world.groups().await.claims.is_empty());

    // Answered, but dropped before anyone looked; another claim of the same session stands.
    let mut seen = Box::pin(handle.claim(key("t", "twice")));
    let mut unseen = Box::pin(handle.claim(key("t", "twice")));
    assert!(futures_util::poll!(&mut seen).is_pending() && futures_util::poll!(&mut unseen).is_pending());
    world.pass(TICK, || ()).await;
    drop(unseen);
    world.pass(TTL / 2, || ()).await;
    assert_eq!(world.groups().await.claims.len(), 1);
    drop(seen);
    world.pass(TTL / 2, || ()).await;
    assert!(world.groups().await.claims.is_empty());
}

#[tokio::test(start_paused = true)]
async fn stopping_revokes_and_so_does_dropping_the_last_handle() {
    let world = World::new();
    let (a, b) = (world.start("a").await.unwrap(), world.start("b").await.unwrap());
    a.claim(key("t", "s")).await.unwrap();
    a.stop().await;
    assert!(!a.valid(world.clock.now()));
    assert_eq!(a.claim(key("t", "s")).await, Err(ClaimError::Stopped));
    let left = world.groups().await;
    assert_eq!((left.groups.len(), left.claims.len()), (1, 0));
    drop(b);
    world.pass(TTL / 10, || ()).await;
    assert!(world.groups().await.groups.is_empty());
    assert!(world.tasks.shutdown(TTL).await);
}

#[tokio::test(start_paused = true)]
async fn capacity_is_published_at_most_once_a_second_and_the_last_one_arrives() {
    let world = World::new();
    let handle = world.start("g").await.unwrap();
    let mut running = 0;
    let report = || {
        running += 1;
        handle.report(Capacity { running, slots_total: 100, ..Capacity::default() });
    };
    world.pass(Duration::from_secs(3), report).await;
    handle.drain();
    world.pass(Duration::from_secs(2), || ()).await;
    let published = world.store.published.lock().unwrap().clone();
    assert!((3..=5).contains(&published.len()), "{published:?}");
    let group_seen = &world.groups().await.groups[&group("g")];
    assert_eq!((group_seen.capacity.running, group_seen.draining), (running, true));
}

#[tokio::test(start_paused = true)]
async fn a_first_registration_that_cannot_succeed_fails_in_time() {
    let world = World::new();
    let holder = world.start("g").await.unwrap();
    let taken = world.start("g").await.expect_err("the id is taken");
    assert!(matches!(taken, StoreError::GroupTaken { .. }), "{taken}");
    assert!(holder.valid(world.clock.now()));
    world.store.silent.store(true, Ordering::SeqCst);
    let silent = world.start("h").await.expect_err("the store is silent");
    assert!(matches!(silent, StoreError::Unreachable { .. }), "{silent}");
}

#[tokio::test(start_paused = true)]
async fn a_store_that_leaves_while_a_model_loads_is_waited_for_beyond_its_leases() {
    let world = World::new();
    world.store.silent.store(true, Ordering::SeqCst);
    let (store, metrics) = (Arc::clone(&world.store) as Arc<dyn Store>, PlacementMetrics::default());
    let terms = Terms { ttl: TTL, away_limit: None };
    let clock = world.clock.clone();
    let mut start =
        Box::pin(Registration::start_observed(store, clock, &world.tasks, record("g"), terms, metrics));
    tokio::select! {
        ended = &mut start => panic!("it did not wait: {:?}", ended.map(|handle| handle.epoch())),
        () = world.pass(TTL * 10, || ()) => {}
    }
    world.store.silent.store(false, Ordering::SeqCst);
    let handle = tokio::select! {
        handle = start => handle.unwrap(),
        () = world.pass(TTL, || ()) => panic!("it did not notice that the store is back"),
    };
    assert!(handle.valid(world.clock.now()));
}

#[tokio::test(start_paused = true)]
async fn a_restarted_worker_takes_its_id_back_once_the_old_lease_ends() {
    let world = World::new();
    let old = world.store.grant(TTL).await.unwrap().id;
    let first = world.store.register(old, record("g")).await.unwrap();
    let handle = world.start("g").await.unwrap();
    assert!(handle.epoch() > first);
}

#[tokio::test(start_paused = true)]
async fn a_group_that_cannot_serve_yet_is_not_in_the_store_until_it_can() {
    let world = World::new();
    let handle = world.start_suspended("g");
    let now = || world.clock.now();
    world.pass(TTL * 3, || assert!(!handle.valid(now()), "nothing was registered")).await;
    assert!(world.groups().await.groups.is_empty());
    assert!(matches!(handle.claim(key("t", "s")).await, Err(ClaimError::Unavailable { .. })));
    handle.suspend(false);
    world.pass(TTL / 5, || ()).await;
    assert!(handle.valid(now()) && handle.standing().term == 1);
    assert!(world.groups().await.groups.contains_key(&group("g")));
    let other = world.start_suspended("h");
    world.pass(TICK, || ()).await;
    // It ends without a word to the store.
    other.stop().await;
    assert_eq!(other.standing().term, 0);
}
