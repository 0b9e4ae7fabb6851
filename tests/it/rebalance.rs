//! Groups that carry more than others, and give sessions away while turns go on.

use std::collections::HashMap;

use futures_util::future::join_all;
use hawser_client::{Client, wire};
use hawser_worker::{BalanceOptions, EngineKind, SimulatedOptions, WorkerOptions};

use crate::cluster::{Answer, Cluster, run, token_request};

/// Rows of a pool that is as large as the sessions of these tests make it worth.
pub(crate) const POOL: usize = 4_096;

/// A simulated group that looks often, and whose prompts take long enough for a move to be worth it.
pub(crate) fn balanced(options: &mut WorkerOptions) {
    options.engine = EngineKind::Simulated;
    options.model = std::path::PathBuf::new();
    options.simulated = SimulatedOptions {
        prefill_token_ns: 500_000,
        decode_step_us: 8_000,
        answer_tokens: 0,
        ..SimulatedOptions::default()
    };
    options.kv_slots = POOL + 1;
    // What another session computed would count as reused.
    options.share_prefixes = false;
    options.rebalance = BalanceOptions { period_ms: 20, ..BalanceOptions::default() };
}

/// Token ids of the simulated model.
pub(crate) fn letters(seed: usize, count: usize) -> Vec<u32> {
    (0..count).map(|n| 97 + ((seed * 31 + n * 7) % 26) as u32).collect()
}

/// The first turn of a session that will have `rows` rows.
pub(crate) async fn begin(client: &Client, id: &str, seed: usize, rows: usize) -> Answer {
    run(client, token_request(id, &letters(seed, rows), 1)).await.unwrap()
}

/// A turn that carries only what is new: one token, and one more is generated.
pub(crate) async fn go_on(client: &Client, id: &str) -> Result<Answer, hawser_client::ClientError> {
    let mut request = token_request(id, &[101], 1);
    if let Some(wire::generate_request::Input::Tokens(input)) = &mut request.input {
        input.extent = wire::Extent::Delta.into();
    }
    run(client, request).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_that_joins_is_given_what_a_full_one_cannot_keep_and_nothing_goes_back() {
    const SESSIONS: usize = 45;
    const ROWS: usize = 73;
    const ROUNDS: usize = 12;
    let mut cluster = Cluster::start(1, balanced).await;
    let ids: Vec<String> = (0..SESSIONS).map(|n| format!("s{n}")).collect();
    let firsts = ids.iter().enumerate().map(|(n, id)| begin(&cluster.client, id, n, ROWS));
    let mut groups: HashMap<String, Vec<String>> = HashMap::new();
    for (id, first) in ids.iter().zip(join_all(firsts).await) {
        groups.insert(id.clone(), vec![first.group]);
    }
    cluster.add_worker("g1", &balanced).await;
    cluster.wait_for_groups(2).await;
    // Every round adds two rows to each session: in the end they have more than one pool holds.
    for round in 0..ROUNDS {
        for id in &ids {
            let answer =
                go_on(&cluster.client, id).await.unwrap_or_else(|error| panic!("{round} {id}: {error}"));
            let usage = answer.usage();
            assert_eq!(usage.prefilled_tokens, 2, "{round} {id}: its history was computed again: {usage:?}");
            groups.get_mut(id).unwrap().push(answer.group);
        }
    }
    let mut moved = 0;
    for (id, mut groups) in groups {
        groups.dedup();
        assert!(groups.len() <= 2 && groups[0] == "g0", "{id} went back: {groups:?}");
        moved += groups.len() - 1;
        let session = cluster.client.describe_session(&id).await.unwrap();
        assert_eq!(session.turns as usize, ROUNDS + 1, "{id}: no turn was lost, and none ran twice");
    }
    let rows = SESSIONS * (ROWS + 2 * ROUNDS);
    let surplus = rows - POOL * 8 / 10;
    let most = surplus.div_ceil(ROWS) + 3;
    println!("{moved} of {SESSIONS} sessions moved; {rows} rows, {surplus} more than a pool should hold");
    assert!((3..=most).contains(&moved), "{moved} sessions moved, at most {most} had to");
    let capacity = cluster.worker("g0").capacity();
    assert!(capacity.slots_free > 0, "nobody lost rows: {capacity:?}");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn groups_that_have_room_give_nothing_away() {
    let mut cluster = Cluster::start(1, balanced).await;
    for n in 0..20 {
        begin(&cluster.client, &format!("s{n}"), n, 100).await;
    }
    cluster.add_worker("g1", &balanced).await;
    cluster.wait_for_groups(2).await;
    for _ in 0..5 {
        for n in 0..20 {
            assert_eq!(go_on(&cluster.client, &format!("s{n}")).await.unwrap().group, "g0");
        }
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_that_is_told_so_keeps_its_sessions() {
    let alone = |options: &mut WorkerOptions| {
        balanced(options);
        options.rebalance.enabled = options.group == "g0";
    };
    let mut cluster = Cluster::start(1, alone).await;
    for n in 0..40 {
        begin(&cluster.client, &format!("s{n}"), n, 90).await;
    }
    // It takes none, and the one that is full goes on as before.
    cluster.add_worker("g1", &alone).await;
    cluster.wait_for_groups(2).await;
    for _ in 0..3 {
        for n in 0..40 {
            assert_eq!(go_on(&cluster.client, &format!("s{n}")).await.unwrap().group, "g0");
        }
    }
    cluster.stop().await;
}
