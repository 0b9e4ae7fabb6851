//! What routers and workers tell people of who comes and goes, and of what they wait for.

use crate::cluster::eventually;
use crate::lifecycle::{groups, simulated};
use crate::process::{Server, connect};

#[tokio::test(flavor = "multi_thread")]
async fn who_comes_and_goes_is_told_once_and_a_taken_name_at_once() {
    let mut router = Server::start_heard(&["router", "--listen", "127.0.0.1:0"]);
    let uri = router.uri_after("router listens on ").await;
    let joins = ["--router", uri.as_str()];
    let mut first = Server::start(&simulated(joins, "a", &[]));
    let address = first.uri_after("group a serves at ").await;
    let client = connect(&uri).await;
    eventually("the router knows it", async || groups(&client).await.len() == 1).await;

    let short = ["--set", "worker.lease_ttl_ms=500"];
    let mut second = Server::start_heard(&simulated(joins, "a", &short));
    let waits = second.complaint("not registered yet; waiting for the one that has its name").await;
    let told = waits.lines().find(|line| line.contains("name a is taken")).unwrap_or_default();
    assert!(told.contains("WARN") && told.contains(&address) && told.contains("--group"), "{waits}");
    let (code, rest) = second.outcome().await;
    assert_eq!(code, Some(1), "{rest}");
    assert!(!rest.contains("not registered yet"), "it is said once: {rest}");

    first.stop().await;
    drop(client);
    let said = router.complaint("group a left").await;
    assert_eq!(said.matches("group a joined").count(), 1, "{said}");
    let joined = said.lines().find(|line| line.contains("group a joined")).unwrap_or_default();
    assert!(joined.contains("INFO") && joined.contains(&address) && joined.contains("epoch"), "{said}");
    router.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_router_whose_etcd_was_never_there_has_not_lost_it() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut router =
        Server::start_heard(&["router", "--listen", "127.0.0.1:0", "--etcd", &format!("http://{free}")]);
    router.line_with("router listens on ").await;
    let mut said = router.complaint("cannot reach the placement store yet").await;
    router.terminate();
    let (_, rest) = router.outcome().await;
    said.push_str(&rest);
    assert!(!said.contains("lost the placement store"), "{said}");
    assert_eq!(said.matches("cannot reach the placement store").count(), 1, "{said}");
}
