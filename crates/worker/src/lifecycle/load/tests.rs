//! Memory: what is reserved and reported is what the ranks of this process hold.

use std::path::PathBuf;

use hawser_common::tls::MutualTls;

use super::*;

const BUDGET: u64 = 1 << 20;

/// A model of 3 layers, 9 query heads, 3 KV heads and a head of 8, with rows of f32.
fn report(adjust: impl Fn(&mut WorkerOptions)) -> LoadReport {
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/tiny-llama").into();
    let rendezvous = "127.0.0.1:0".to_owned();
    let mut options = WorkerOptions {
        model,
        rendezvous,
        kv_memory_mib: 1,
        archive_memory_mib: 0,
        kv_type: KvType::F32,
        ..WorkerOptions::default()
    };
    adjust(&mut options);
    load(&options, &Clock::system(), &Tracer::default()).unwrap().report
}

/// Bytes of one slot with so many KV heads.
fn slot(kv_heads: u64) -> u64 {
    2 * 3 * kv_heads * 8 * 4
}

#[test]
fn the_budget_is_that_of_a_process() {
    let alone = report(|_| {});
    assert_eq!(alone.kv_bytes, BUDGET / slot(3) * slot(3));
    // Ranks of one process share the budget, as they share the heads: one each.
    let threads = report(|options| options.tp = 3);
    assert_eq!((threads.slots, threads.kv_bytes), (alone.slots, alone.kv_bytes));
    // Two of them hold two heads each, one of these twice.
    let threads = report(|options| options.tp = 2);
    assert_eq!((threads.slots as u64 + 1, threads.kv_bytes), (BUDGET / slot(4), BUDGET / slot(4) * slot(4)));
    // Five ranks hold five KV heads, two of them twice.
    let copies = report(|options| options.tp = 5);
    assert_eq!(copies.slots as u64 + 1, BUDGET / slot(5));
    assert_eq!(copies.kv_bytes, BUDGET / slot(5) * slot(5));
    // A process of two holds its own heads only, and the leader holds more of them.
    let process = report(|options| options.world = 2);
    assert_eq!(process.slots as u64 + 1, BUDGET / slot(2));
    assert_eq!(process.kv_bytes, BUDGET / slot(2) * slot(2));
    assert!(process.weight_bytes < alone.weight_bytes && alone.weight_bytes <= threads.weight_bytes);
    assert!(process.weight_bytes * 2 > threads.weight_bytes, "the leader's half is the larger one");
}

#[test]
fn slots_that_were_asked_for_are_what_is_reported() {
    let process = report(|options| (options.world, options.kv_slots) = (2, 100));
    assert_eq!((process.slots, process.kv_bytes), (99, 100 * slot(2)));
}

/// Before anything is read, and with what to do about it.
#[cfg(not(feature = "cuda"))]
#[test]
fn nccl_without_cuda_is_an_error_at_start() {
    let options = WorkerOptions {
        model: "no/such/model.gguf".into(),
        world: 2,
        collective: CollectiveKind::Nccl,
        ..WorkerOptions::default()
    };
    let error = load(&options, &Clock::system(), &Tracer::default()).unwrap_err();
    assert!(matches!(error, LoadError::Collective(_)), "{error:?}");
    let said = error.to_string();
    assert!(said.contains("worker.collective is nccl") && said.contains("feature `cuda`"), "{said}");
    assert_eq!(error.code(), ErrorCode::Invalid);
}

#[test]
fn what_is_wrong_with_the_named_files_is_told_without_loading() {
    let folder = tempfile::tempdir().unwrap();
    let model = || PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/tiny-llama"));
    let told =
        |options: &WorkerOptions| check(options).err().map(|error| error.to_string()).unwrap_or_default();
    let fine = WorkerOptions { model: model(), ..WorkerOptions::default() };
    assert_eq!(told(&fine), "");
    let absent = WorkerOptions { model: folder.path().join("no.gguf"), ..fine.clone() };
    assert!(
        told(&absent).starts_with("worker.model: ") && told(&absent).contains("no.gguf"),
        "{}",
        told(&absent)
    );
    std::fs::write(folder.path().join("junk.gguf"), "junk").unwrap();
    let junk = WorkerOptions { model: folder.path().join("junk.gguf"), ..fine.clone() };
    for rank in [0, 1] {
        let text = told(&WorkerOptions { rank, world: 2, ..junk.clone() });
        assert!(text.starts_with("worker.model: ") && text.contains("junk.gguf"), "{text}");
    }
    assert!(
        told(&WorkerOptions { context_tokens: 1 << 30, ..fine.clone() })
            .starts_with("worker.context_tokens is")
    );
    let some = |name: &str| Some(folder.path().join(name));
    let rank_tls = MutualTls { ca_file: some("ca"), cert_file: some("cert"), key_file: some("key") };
    let text = told(&WorkerOptions { rank_tls, ..fine.clone() });
    assert!(text.starts_with("worker.rank_tls: ca_file names"), "{text}");
    let rank_tls =
        MutualTls { ca_file: some("junk.gguf"), cert_file: some("junk.gguf"), key_file: some("junk.gguf") };
    let text = told(&WorkerOptions { rank_tls, ..fine.clone() });
    assert!(text.contains("ca_file names") && text.contains("junk.gguf"), "{text}");
}

#[test]
fn a_place_to_meet_that_is_taken_or_nowhere_is_told_before_the_weights_are_read() {
    let taken = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    for rendezvous in [taken.local_addr().unwrap().to_string(), "nowhere.invalid:7100".to_owned()] {
        let options = WorkerOptions { world: 2, rendezvous: rendezvous.clone(), ..WorkerOptions::default() };
        let text = meeting(&options).unwrap_err().to_string();
        assert!(text.starts_with("worker.rendezvous: ") && text.contains(&rendezvous), "{text}");
    }
    assert_eq!(meeting(&WorkerOptions::default()).unwrap(), None);
}
