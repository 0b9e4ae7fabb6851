//! Users, passwords and certificates.

use std::path::Path;

use etcd_client::{Permission, PermissionType};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

use super::*;
use crate::conformance::TlsFiles;

/// Turns users on: `root`, and `hawser`, who may do everything below the prefix and nothing else.
async fn with_users(server: &EtcdServer) {
    let mut raw = raw(server).await;
    raw.user_add("root", "root-password", None).await.unwrap();
    raw.user_grant_role("root", "root").await.unwrap();
    raw.user_add("hawser", "good", None).await.unwrap();
    raw.role_add("hawser").await.unwrap();
    let below = Permission::new(PermissionType::Readwrite, "/hawser/v1/").with_prefix();
    raw.role_grant_permission("hawser", below).await.unwrap();
    raw.user_grant_role("hawser", "hawser").await.unwrap();
    raw.auth_enable().await.unwrap();
}

fn as_user(server: &EtcdServer, prefix: &str, password: &str) -> EtcdStore {
    let (user, password) = (Some("hawser".to_owned()), Some(password.to_owned()));
    EtcdStore::new(&EtcdOptions { user, password, ..server.options(prefix) }).unwrap()
}

#[tokio::test]
async fn a_user_needs_the_password_and_the_right_to_the_prefix() {
    let mut server = etcd!();
    with_users(&server).await;
    let store_as_user = as_user(&server, "/hawser/v1", "good");
    let (lease, _) = registered(&store_as_user, "g", LONG).await;
    let mut watch = store_as_user.watch().await.unwrap();
    let mut mirror = Mirror::default();
    mirror.until(&mut watch, |mirror| mirror.groups.len() == 1).await;

    for wrong in [as_user(&server, "/hawser/v1", "bad"), store(&server)] {
        let refused = wrong.register(lease, record("h")).await;
        assert!(matches!(refused, Err(StoreError::Invalid { .. })), "{refused:?}");
    }
    let elsewhere = as_user(&server, "/other", "good").watch().await.err();
    assert!(
        matches!(&elsewhere, Some(StoreError::Invalid { reason }) if reason.contains("denied")),
        "{elsewhere:?}"
    );

    // Tokens end with the process that gave them: new ones are asked for, and the watch goes on.
    server.restart().await;
    assert_eq!(store_as_user.renew(lease).await, Ok(LONG));
    store_as_user.claim(lease, &group("g"), vec![key("t", "s")]).await.unwrap();
    mirror.until(&mut watch, |mirror| mirror.claims.len() == 1).await;
}

/// An authority and, for each of two owners, a certificate of it.
fn certificates(folder: &Path) -> [TlsFiles; 2] {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let write = |name: &str, text: &str| {
        std::fs::write(folder.join(name), text).unwrap();
        folder.join(name)
    };
    ["server", "client"].map(|owner| {
        let key = KeyPair::generate().unwrap();
        let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
        let cert = CertificateParams::new(names).unwrap().signed_by(&key, &ca).unwrap();
        TlsFiles {
            ca: write("ca.pem", &ca.pem()),
            cert: write(&format!("{owner}.pem"), &cert.pem()),
            key: write(&format!("{owner}.key"), &key.serialize_pem()),
        }
    })
}

#[tokio::test]
async fn with_certificates_both_sides_show_theirs() {
    let folder = tempfile::tempdir().unwrap();
    let [of_server, of_client] = certificates(folder.path());
    let Some(server) = EtcdServer::start(Some(of_server)).await else {
        return println!("passed over: HAWSER_SKIP_ETCD is set");
    };
    let options = EtcdOptions {
        cert_file: Some(of_client.cert),
        key_file: Some(of_client.key),
        ..server.options("/hawser/v1")
    };
    let store = EtcdStore::new(&options).unwrap();
    registered(&store, "g", LONG).await;
    assert_eq!(listed(&store).await.groups.len(), 1);

    // Without one's own certificate, or under another authority, there is no connection.
    let bare = EtcdOptions { cert_file: None, key_file: None, ..options.clone() };
    let other_folder = tempfile::tempdir().unwrap();
    let [other, _] = certificates(other_folder.path());
    let foreign = EtcdOptions { ca_file: Some(other.ca), ..options.clone() };
    for (wrong, says) in [
        // TLS 1.3 asks for a client's certificate once the client takes the connection for made: how it breaks is chance.
        (bare, ""),
        (foreign, "is not accepted here: it is not signed by the trusted authority"),
    ] {
        let refused = EtcdStore::new(&wrong).unwrap().grant(LONG).await.unwrap_err();
        assert!(
            matches!(&refused, StoreError::Unreachable { reason } if reason.contains(says)),
            "{refused:?}"
        );
    }
    let missing = EtcdOptions { ca_file: Some("nowhere.pem".into()), ..options };
    let error = EtcdStore::new(&missing).unwrap_err().to_string();
    assert!(error.contains("ca_file names \"nowhere.pem\""), "{error}");
}
