//! A whole cluster in this process: embedded store, router and worker groups on loopback, as `hawser up` runs them.

use std::sync::Arc;
use std::time::Duration;

use hawser_client::{Client, Frame, Sampling, wire};
use hawser_common::clock::Clock;
use hawser_common::tasks::Tasks;
use hawser_common::telemetry::Telemetry;
use hawser_placement::{EmbeddedStore, Store};
use hawser_router::{Router, RouterHandle, RouterOptions};
use hawser_tests::demo_model;
use hawser_worker::{Worker, WorkerHandle, WorkerOptions};

/// Long enough for anything that ends, short enough to fail a run that hangs.
pub(crate) const LIMIT: Duration = Duration::from_secs(120);

pub(crate) struct Cluster {
    pub(crate) client: Client,
    pub(crate) workers: Vec<WorkerHandle>,
    router: RouterHandle,
    tasks: Tasks,
    store: Arc<dyn Store>,
    clock: Clock,
    telemetry: Telemetry,
}

impl Cluster {
    /// `groups` groups named `g0`, `g1`, … over the demo model.
    pub(crate) async fn start(groups: usize, adjust: impl Fn(&mut WorkerOptions)) -> Self {
        Self::start_observed(groups, adjust, Telemetry::off()).await
    }

    pub(crate) async fn start_observed(
        groups: usize,
        adjust: impl Fn(&mut WorkerOptions),
        telemetry: Telemetry,
    ) -> Self {
        let (clock, tasks) = (Clock::system(), Tasks::new());
        let store: Arc<dyn Store> = EmbeddedStore::start(clock.clone(), &tasks, Default::default());
        let options = RouterOptions { listen: ([127, 0, 0, 1], 0).into(), ..RouterOptions::default() };
        let router =
            Router::start_observed(&options, Arc::clone(&store), None, clock.clone(), &telemetry).unwrap();
        let client = Client::connect(&format!("http://{}", router.addr())).await.unwrap();
        let mut cluster = Self { client, workers: Vec::new(), router, tasks, store, clock, telemetry };
        for index in 0..groups {
            cluster.add_worker(&format!("g{index}"), &adjust).await;
        }
        cluster.wait_for_groups(groups).await;
        cluster
    }

    pub(crate) fn store(&self) -> Arc<dyn Store> {
        Arc::clone(&self.store)
    }

    pub(crate) fn worker(&self, group: &str) -> &WorkerHandle {
        self.workers.iter().find(|worker| worker.group().as_str() == group).unwrap()
    }

    pub(crate) async fn add_worker(&mut self, group: &str, adjust: &impl Fn(&mut WorkerOptions)) {
        let mut options = WorkerOptions {
            group: group.to_owned(),
            model: demo_model(),
            kv_slots: 4_097,
            step_tokens: 128,
            threads: 2,
            ..WorkerOptions::default()
        };
        adjust(&mut options);
        let started =
            Worker::start_observed(options, Arc::clone(&self.store), self.clock.clone(), &self.telemetry);
        let worker = started.await.unwrap();
        self.workers.push(worker);
    }

    /// Until the router knows exactly so many groups.
    pub(crate) async fn wait_for_groups(&self, count: usize) {
        let known = async || self.client.list_groups().await.is_ok_and(|groups| groups.len() == count);
        eventually("the router knows the groups", known).await;
    }

    /// The group of this name leaves the cluster, gracefully.
    pub(crate) async fn stop_worker(&mut self, group: &str) {
        let index = self.workers.iter().position(|worker| worker.group().as_str() == group).unwrap();
        let worker = self.workers.remove(index);
        assert!(worker.shutdown(Duration::from_secs(10)).await, "no turn was cut off");
    }

    /// Until every slot of every group is free or may be taken: nothing runs, waits, or is bound to a session.
    pub(crate) async fn wait_until_empty(&self) {
        let empty = async || {
            self.workers.iter().map(WorkerHandle::capacity).all(|capacity| {
                let left = capacity.slots_free + capacity.slots_idle;
                left == capacity.slots_total && capacity.running == 0 && capacity.queued == 0
            })
        };
        eventually("all slots are free", empty).await;
    }

    pub(crate) async fn stop(self) {
        let Self { client, workers, router, tasks, .. } = self;
        drop(client);
        for worker in workers {
            assert!(worker.shutdown(Duration::from_secs(10)).await, "no turn was cut off");
        }
        router.shutdown(Duration::from_secs(5)).await;
        assert!(tasks.shutdown(Duration::from_secs(5)).await, "every task ended");
    }
}

/// Waits until `condition` holds.
pub(crate) async fn eventually(what: &str, condition: impl AsyncFn() -> bool) {
    let wait = async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    let done = tokio::time::timeout(Duration::from_secs(30), wait).await;
    assert!(done.is_ok(), "did not happen: {what}");
}

/// A whole turn, as the wire gave it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Answer {
    pub(crate) group: String,
    pub(crate) text: String,
    pub(crate) tokens: Vec<u32>,
    pub(crate) end: wire::Finished,
}

impl Answer {
    pub(crate) fn usage(&self) -> wire::Usage {
        self.end.usage.unwrap()
    }
}

/// Sends a request and reads its stream to the end.
pub(crate) async fn run(
    client: &Client,
    request: wire::GenerateRequest,
) -> Result<Answer, hawser_client::ClientError> {
    run_within(client, request, LIMIT).await
}

/// As [`run`], with another deadline.
pub(crate) async fn run_within(
    client: &Client,
    request: wire::GenerateRequest,
    limit: Duration,
) -> Result<Answer, hawser_client::ClientError> {
    let mut frames = client.generate(request, Some(limit)).await?;
    let (mut group, mut text, mut tokens) = (String::new(), String::new(), Vec::new());
    while let Some(frame) = frames.next().await? {
        match frame {
            Frame::Placed(placed) => group = placed.group,
            Frame::Chunk(chunk) => {
                text.push_str(&chunk.text);
                tokens.extend(chunk.token_ids);
            }
            Frame::Finished(end) => return Ok(Answer { group, text, tokens, end }),
        }
    }
    unreachable!("the SDK ends a stream with `Finished` or an error")
}

/// A greedy request over token ids.
pub(crate) fn token_request(session: &str, ids: &[u32], max_tokens: u32) -> wire::GenerateRequest {
    let input = wire::TokenInput { ids: ids.to_vec(), extent: wire::Extent::Whole.into() };
    wire::GenerateRequest {
        session: session.to_owned(),
        input: Some(wire::generate_request::Input::Tokens(input)),
        sampling: Some(Sampling::greedy().max_tokens(max_tokens).ignore_eos().to_wire()),
        ..Default::default()
    }
}

/// A greedy request over messages.
pub(crate) fn chat_request(
    session: &str,
    messages: &[(wire::Role, &str)],
    max_tokens: u32,
) -> wire::GenerateRequest {
    let message = |&(role, content): &(wire::Role, &str)| wire::Message {
        role: role.into(),
        content: content.to_owned(),
        ..Default::default()
    };
    let conversation = wire::Conversation {
        messages: messages.iter().map(message).collect(),
        extent: wire::Extent::Whole.into(),
        ..Default::default()
    };
    wire::GenerateRequest {
        session: session.to_owned(),
        input: Some(wire::generate_request::Input::Conversation(conversation)),
        sampling: Some(Sampling::greedy().max_tokens(max_tokens).to_wire()),
        ..Default::default()
    }
}

/// Reproducible token ids of ordinary words.
pub(crate) fn words(seed: u32, count: usize) -> Vec<u32> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(12_345);
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        1_000 + (state >> 8) % 30_000
    };
    (0..count).map(|_| next()).collect()
}
