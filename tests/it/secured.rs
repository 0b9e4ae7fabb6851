//! Real processes with API keys and certificates on every connection.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use hawser_client::{Client, ClientTls, Sampling};
use hawser_tests::demo_model;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

use crate::process::{Server, run};

/// An authority, and a certificate of it for loopback.
pub(crate) struct Files {
    pub(crate) ca: PathBuf,
    pub(crate) cert: PathBuf,
    pub(crate) key: PathBuf,
}

pub(crate) fn certificates(folder: &Path) -> Files {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let cert = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap().signed_by(&key, &ca).unwrap();
    let write = |name: &str, text: &str| {
        std::fs::write(folder.join(name), text).unwrap();
        folder.join(name)
    };
    Files {
        ca: write("ca.pem", &ca.pem()),
        cert: write("cert.pem", &cert.pem()),
        key: write("key.pem", &key.serialize_pem()),
    }
}

/// A key as `hawser key` makes it, and its entry.
async fn api_key(more: &[&str]) -> (String, String) {
    let mut arguments = vec!["key"];
    arguments.extend(more);
    let output = run(&arguments, "").await;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let (first, entry) = text.split_once('\n').unwrap();
    let key = first.strip_prefix("# the key: HAWSER_API_KEY=").unwrap();
    assert!(!entry.contains(key), "the entry does not hold the key");
    (key.to_owned(), entry.to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_with_keys_and_certificates_serves_who_has_them() {
    let folder = tempfile::tempdir().unwrap();
    let files = certificates(folder.path());
    let (operator, of_operator) = api_key(&["--tenant", "ops", "--operator"]).await;
    let (tenant, of_tenant) = api_key(&["--tenant", "team-a", "--name", "a \"test\""]).await;
    let keys = folder.path().join("keys.toml");
    std::fs::write(&keys, format!("{of_operator}\n{of_tenant}")).unwrap();
    // One file for all: each command uses the keys it needs.
    let text = |name: &Path| name.display().to_string();
    let config = format!(
        "[tls]\nca_file = {ca:?}\ncert_file = {cert:?}\nkey_file = {key:?}\n\
         [router.auth]\nkeys_file = {keys:?}\n\
         [router.tls]\ncert_file = {cert:?}\nkey_file = {key:?}\nclient_ca_file = {ca:?}\n\
         [router.worker_tls]\nca_file = {ca:?}\ncert_file = {cert:?}\nkey_file = {key:?}\n\
         [worker.tls]\ncert_file = {cert:?}\nkey_file = {key:?}\nclient_ca_file = {ca:?}\n",
        ca = text(&files.ca),
        cert = text(&files.cert),
        key = text(&files.key),
        keys = text(&keys),
    );
    let path = folder.path().join("hawser.toml");
    std::fs::write(&path, config).unwrap();
    let config = ["--config", path.to_str().unwrap()];
    let with = |key: &str| format!("api_key={key}");
    let (as_operator, as_tenant) = (with(&operator), with(&tenant));

    let (router, uri) = Server::router(&config).await;
    assert!(uri.starts_with("https://"), "{uri}");
    let model = demo_model();
    let mut arguments = vec!["worker", "--router", &uri, "--group", "a", "--threads", "1"];
    arguments.extend(["--model", model.to_str().unwrap(), "--kv-memory-mib", "64"]);
    arguments.extend(config);
    arguments.extend(["--set", &as_operator]);
    let mut worker = Server::start(&arguments);
    assert!(worker.uri_after("group a serves at ").await.starts_with("https://"));

    let call = async |command: &[&str], set: Option<&str>, config: &[&str]| {
        let mut arguments = command.to_vec();
        arguments.extend(["--server", &uri]);
        arguments.extend(config);
        arguments.extend(set.map(|set| ["--set", set]).into_iter().flatten());
        let output = run(&arguments, "").await;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let complained = String::from_utf8_lossy(&output.stderr).into_owned();
        for key in [&operator, &tenant] {
            assert!(!said.contains(key) && !complained.contains(key), "a key was printed");
        }
        if output.status.success() { Ok(said) } else { Err(complained) }
    };
    let generate = ["generate", "--max-tokens", "3", "Hello"];
    assert!(!call(&generate, Some(&as_tenant), &config).await.unwrap().is_empty());
    let of_tenant = call(&["status"], Some(&as_tenant), &config).await.unwrap();
    assert!(of_tenant.contains("operators"), "{of_tenant}");
    let of_operator = call(&["status"], Some(&as_operator), &config).await.unwrap();
    assert!(of_operator.contains("serving") && of_operator.contains("https://"), "{of_operator}");

    let join = ["worker", "--engine", "simulated", "--group", "b"];
    let outsider = call(&join, Some(&as_tenant), &config).await.unwrap_err();
    assert!(outsider.contains("operator"), "it does not wait for what stays so: {outsider}");
    let stranger = call(&join, Some("api_key=nobody"), &config).await.unwrap_err();
    assert!(stranger.contains("not known"), "{stranger}");
    let bare = call(&generate, None, &config).await.unwrap_err();
    assert!(bare.contains("API key"), "{bare}");
    let unknown = call(&generate, Some("api_key=nobody"), &config).await.unwrap_err();
    assert!(unknown.contains("not known"), "{unknown}");
    let unsafe_one = call(&generate, Some(&as_tenant), &[]).await.unwrap_err();
    assert!(unsafe_one.contains("ca_file"), "{unsafe_one}");
    let shown = run(&["config", "--set", &as_tenant], "").await;
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(shown.contains("<set>") && !shown.contains(&tenant), "{shown}");
    worker.stop().await;
    router.stop().await;
}

/// Certificates on both ends of every connection.
fn mutual(files: &Files) -> String {
    let text = |name: &Path| name.display().to_string();
    let (ca, cert, key) = (text(&files.ca), text(&files.cert), text(&files.key));
    let client = format!("ca_file = {ca:?}\ncert_file = {cert:?}\nkey_file = {key:?}\n");
    let server = format!("cert_file = {cert:?}\nkey_file = {key:?}\nclient_ca_file = {ca:?}\n");
    format!(
        "[tls]\n{client}[router.tls]\n{server}[router.worker_tls]\n{client}\
         [worker.tls]\n{server}[worker.peer_tls]\n{client}"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_move_between_groups_that_ask_each_other_for_certificates() {
    let folder = tempfile::tempdir().unwrap();
    let files = certificates(folder.path());
    let path = folder.path().join("hawser.toml");
    std::fs::write(&path, mutual(&files)).unwrap();
    let config = ["--config", path.to_str().unwrap()];
    let (router, uri) = Server::router(&config).await;
    let mut workers = HashMap::new();
    for group in ["a", "b"] {
        let mut arguments = vec!["worker", "--router", &uri, "--group", group, "--engine", "simulated"];
        arguments.extend(["--set", "worker.simulated.time_scale=0", "--set", "worker.share_prefixes=false"]);
        arguments.extend(config);
        let mut worker = Server::start(&arguments);
        let address = worker.uri_after(&format!("group {group} serves at ")).await;
        assert!(address.starts_with("https://"), "{address}");
        workers.insert(group.to_owned(), worker);
    }
    let Files { ca, cert, key } = files;
    let tls = ClientTls { ca_file: Some(ca), cert_file: Some(cert), key_file: Some(key) };
    let client = Client::builder(&uri).tls(tls).connect().await.unwrap();
    let mut session = client.session().sampling(Sampling::greedy().max_tokens(8)).start();
    session.say("Tell me about rivers.").await.unwrap().outcome().await.unwrap();
    let second = session.say("And about towns.").await.unwrap().outcome().await.unwrap();
    let before = second.report.usage;
    workers.remove(&second.placed.group).unwrap().stop().await;
    let third = session.say("And about hills.").await.unwrap().outcome().await.unwrap();
    assert_ne!(third.placed.group, second.placed.group);
    assert!(!third.placed.resent, "it was handed over: what is new was enough");
    let held = before.prompt_tokens + before.generated_tokens - 1;
    assert_eq!(third.report.usage.reused_tokens, held, "its rows came with it");
    drop((session, client));
    for worker in workers.into_values() {
        worker.stop().await;
    }
    router.stop().await;
}
