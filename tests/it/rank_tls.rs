//! Groups of processes whose ranks show each other certificates, as real processes.

use std::path::Path;

use hawser_client::Client;

use crate::cluster::{run, token_request, words};
use crate::process::{self, Server, connect};
use crate::ranks::{LIMIT, follower_arguments, free_address, served, start_leader};
use crate::secured::{Files, certificates};

/// A configuration with the certificates in `folder`, which it makes.
fn secured(folder: &Path) -> String {
    let Files { ca, cert, key } = certificates(folder);
    let path = folder.join("rank.toml");
    let config = format!("[worker.rank_tls]\nca_file = {ca:?}\ncert_file = {cert:?}\nkey_file = {key:?}\n");
    std::fs::write(&path, config).unwrap();
    path.to_str().unwrap().to_owned()
}

fn follower(meeting: &str, more: &[&str]) -> Vec<String> {
    let mut arguments = follower_arguments(meeting);
    arguments.extend(more.iter().map(|&more| more.to_owned()));
    arguments
}

/// A follower that is not let in: it ends by itself, and says why.
async fn refused(meeting: &str, more: &[&str]) -> String {
    let arguments = follower(meeting, more);
    let output = process::run(&arguments.iter().map(String::as_str).collect::<Vec<_>>(), "").await;
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    said
}

async fn turn(client: &Client) -> Vec<u32> {
    served(client, LIMIT).await;
    run(client, token_request("", &words(603, 40), 60)).await.unwrap().tokens
}

/// What a group says whose leader and follower have this in common; before that, what `strangers` are told.
async fn said(uri: &str, client: &Client, common: &[&str], strangers: &[(&[&str], &str)]) -> Vec<u32> {
    let meeting = free_address();
    let leader = start_leader(uri, &meeting, common).await;
    for (arguments, expected) in strangers {
        let told = refused(&meeting, arguments).await;
        assert!(told.contains(expected), "{arguments:?} is not told {expected:?}: {told}");
    }
    let arguments = follower(&meeting, common);
    let other = Server::start(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
    let tokens = turn(client).await;
    leader.stop().await;
    drop(other);
    tokens
}

#[tokio::test(flavor = "multi_thread")]
async fn ranks_with_certificates_say_the_same_and_let_no_other_in() {
    let (ours, theirs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (ours, theirs) = (secured(ours.path()), secured(theirs.path()));
    let (ours, theirs) = (["--config", &ours], ["--config", &theirs]);
    let (router, uri) = Server::router(&[]).await;
    let client = connect(&uri).await;
    let plain = said(&uri, &client, &[], &[(&ours, "it talks plain text, and this end TLS")]).await;
    // The one without certificates reads why; the one of another authority does not believe the leader.
    let strangers = [(&[][..], "worker.rank_tls"), (&theirs[..], "its certificate is not accepted here")];
    assert_eq!(said(&uri, &client, &ours, &strangers).await, plain);
    drop(client);
    router.stop().await;
}
