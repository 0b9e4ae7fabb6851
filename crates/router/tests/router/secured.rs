//! TLS between all parts: who shows which certificate, and who is refused.

use std::path::Path;
use std::sync::Arc;

use hawser_common::ErrorCode;
use hawser_common::clock::Clock;
use hawser_common::tasks::Tasks;
use hawser_common::tls::{ClientTls, ServerTls};
use hawser_placement::{EmbeddedOptions, EmbeddedStore, Store as _};
use hawser_proto::v1::hawser_client::HawserClient;
use hawser_proto::{Dial, Fault};
use hawser_router::{Router, RouterHandle, RouterOptions};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};

use crate::cluster::{LONG, options, request, turn};
use crate::remote_store::RemoteStore;
use crate::worker::{FakeWorker, Listening};

/// An authority, and certificates of it for a server and a client on loopback.
struct Certificates {
    server: ServerTls,
    client: ClientTls,
}

fn certificates(folder: &Path, authority: &str) -> Certificates {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, authority);
    let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let write = |name: String, text: &str| {
        let path = folder.join(name);
        std::fs::write(&path, text).unwrap();
        Some(path)
    };
    let ca_file = write(format!("{authority}.pem"), &ca.pem());
    let [of_server, of_client] = ["server", "client"].map(|owner| {
        let key = KeyPair::generate().unwrap();
        let cert =
            CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap().signed_by(&key, &ca).unwrap();
        let cert_file = write(format!("{authority}-{owner}.pem"), &cert.pem());
        (cert_file, write(format!("{authority}-{owner}.key"), &key.serialize_pem()))
    });
    Certificates {
        server: ServerTls { cert_file: of_server.0, key_file: of_server.1, client_ca_file: ca_file.clone() },
        client: ClientTls { ca_file, cert_file: of_client.0, key_file: of_client.1 },
    }
}

/// A router with its store, and what runs them.
struct Running {
    router: RouterHandle,
    store: Arc<EmbeddedStore>,
    tasks: Tasks,
}

fn start(tls: &ServerTls, worker_tls: &ClientTls) -> Running {
    let tasks = Tasks::new();
    let store = EmbeddedStore::start(Clock::system(), &tasks, EmbeddedOptions::default());
    let options = RouterOptions { tls: tls.clone(), worker_tls: worker_tls.clone(), ..options() };
    let served = Some(Arc::clone(&store));
    let router = Router::start(&options, Arc::clone(&store) as _, served, Clock::system()).unwrap();
    Running { router, store, tasks }
}

impl Running {
    async fn worker(&self, tls: &ServerTls, scheme: &'static str) -> FakeWorker {
        let advertise = move |addr| format!("{scheme}://{addr}");
        let advertise: Option<Box<dyn Fn(_) -> _ + Send + Sync>> = Some(Box::new(advertise));
        let listening = Listening { tls: tls.clone(), advertise, ..Listening::default() };
        let store = Arc::clone(&self.store) as _;
        let worker = FakeWorker::secured("g0", "m", store, &self.tasks, &listening).await;
        assert!(self.router.wait_for_groups(1, LONG).await);
        worker
    }

    async fn turn(&self, scheme: &str, tls: &ClientTls) -> Result<u32, Fault> {
        let dial = Dial::new(tls, Default::default()).unwrap();
        let endpoint = dial.endpoint(&format!("{scheme}://{}", self.router.addr())).unwrap();
        let mut client = HawserClient::new(endpoint.connect_lazy());
        turn(&mut client, request("s")).await.map(|turn| turn.number)
    }
}

fn without_own(tls: &ClientTls) -> ClientTls {
    ClientTls { cert_file: None, key_file: None, ..tls.clone() }
}

#[tokio::test]
async fn every_hop_is_encrypted_and_both_ends_show_their_certificates() {
    let folder = tempfile::tempdir().unwrap();
    let (outer, inner) = (certificates(folder.path(), "outer"), certificates(folder.path(), "inner"));
    let running = start(&outer.server, &inner.client);
    let _worker = running.worker(&inner.server, "https").await;
    for number in 1..3 {
        assert_eq!(running.turn("https", &outer.client).await.unwrap(), number);
    }
    // The store is behind the same door.
    let uri = format!("https://{}", running.router.addr());
    RemoteStore::secured(&uri, &outer.client, None).unwrap().grant(LONG).await.unwrap();

    // No certificate, one of another authority, a server that cannot be checked, and plain text: all refused.
    let stranger = ClientTls { ca_file: outer.client.ca_file.clone(), ..inner.client.clone() };
    for (scheme, tls) in [
        ("https", &without_own(&outer.client)),
        ("https", &stranger),
        ("https", &inner.client),
        ("http", &ClientTls::default()),
    ] {
        let refused = running.turn(scheme, tls).await.unwrap_err();
        assert_eq!(refused.code, ErrorCode::Unavailable, "{scheme} {tls:?}: {refused}");
    }
    let bare = RemoteStore::secured(&uri, &without_own(&outer.client), None).unwrap();
    assert!(bare.grant(LONG).await.is_err());
    assert_eq!(running.turn("https", &outer.client).await.unwrap(), 3);
}

#[tokio::test]
async fn a_server_may_ask_for_no_certificate() {
    let folder = tempfile::tempdir().unwrap();
    let outer = certificates(folder.path(), "outer");
    let server = ServerTls { client_ca_file: None, ..outer.server };
    let running = start(&server, &ClientTls::default());
    let _worker = running.worker(&ServerTls::default(), "http").await;
    assert_eq!(running.turn("https", &without_own(&outer.client)).await.unwrap(), 1);
}

#[tokio::test]
async fn a_router_takes_no_worker_that_it_cannot_check() {
    let folder = tempfile::tempdir().unwrap();
    let (inner, other) = (certificates(folder.path(), "inner"), certificates(folder.path(), "other"));
    // Plain text where certificates are expected, the other way round, and certificates of another authority.
    for (worker, scheme, dial, says) in [
        (&ServerTls::default(), "http", &inner.client, "plain text"),
        (&inner.server, "https", &ClientTls::default(), "needs TLS"),
        (
            &other.server,
            "https",
            &inner.client,
            "is not accepted here: it is signed by none of the authorities",
        ),
        // TLS 1.3 asks for a client's certificate once the client takes the connection for made: how it breaks is chance.
        (&inner.server, "https", &without_own(&inner.client), ""),
    ] {
        let running = start(&ServerTls::default(), dial);
        let _worker = running.worker(worker, scheme).await;
        let refused = running.turn("http", &ClientTls::default()).await.unwrap_err();
        assert_eq!(refused.code, ErrorCode::Unavailable, "{refused}");
        assert!(refused.message.contains(says), "{refused}");
        assert!(Arc::clone(&running.store).watch().await.is_ok());
    }
}
