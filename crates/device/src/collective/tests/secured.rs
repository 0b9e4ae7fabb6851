//! Connections with certificates: who is let in, who is told what, and what is cut or renewed on the way.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::sync::LazyLock;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::crypto::CryptoProvider;

use super::*;

/// How long ranks that meet wait: for ever, as the watchdog sees it.
const PATIENCE: Duration = Duration::from_secs(60);

struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    /// A rank that trusts `trusted` and shows a certificate of this authority for `name`.
    fn rank(&self, trusted: &Self, name: &str) -> RankTls {
        self.rank_over(rustls::crypto::ring::default_provider(), trusted, name)
    }

    fn rank_over(&self, provider: CryptoProvider, trusted: &Self, name: &str) -> RankTls {
        let key = KeyPair::generate().unwrap();
        let cert = CertificateParams::new(vec![name.to_owned()]).unwrap().signed_by(&key, &self.0).unwrap();
        let texts = [trusted.0.pem(), cert.pem(), key.serialize_pem()];
        let [ca, cert, key] = texts.each_ref().map(String::as_bytes);
        RankTls::over(provider, (ca, cert, key)).unwrap()
    }
}

static OURS: LazyLock<Authority> = LazyLock::new(Authority::new);
static OWN: LazyLock<RankTls> = LazyLock::new(|| OURS.rank(&OURS, "127.0.0.1"));

/// What the ranks of these tests have.
pub(super) fn own() -> &'static RankTls {
    &OWN
}

/// What each end finds where the dialled one has `first` and the one that dials has `second`: the connection, and one
/// byte to and fro.
fn met(first: Option<&RankTls>, second: Option<&RankTls>) -> [Result<(), ConnectionError>; 2] {
    let (dialled, dials) = sockets();
    std::thread::scope(|scope| {
        let dials = scope.spawn(move || {
            let connection = Connection::dial((dials, "127.0.0.1"), second, PATIENCE)?;
            connection.send(&[0; 4], PATIENCE)?;
            connection.receive(&mut [0], PATIENCE)
        });
        let dialled = Connection::accept(dialled, first, PATIENCE).and_then(|connection| {
            let mut greeting = [0; 4];
            connection.receive(&mut greeting, PATIENCE)?;
            if Connection::is_tls([greeting[0], greeting[1], greeting[2]]) {
                return Err(ConnectionError::TalksTls);
            }
            connection.send(&[1], PATIENCE)
        });
        [dialled, dials.join().unwrap()]
    })
}

#[test]
fn ranks_of_one_authority_meet() {
    let other = OURS.rank(&OURS, "another.example");
    for second in [own(), &other] {
        let [dialled, dials] = met(Some(own()), Some(second));
        assert!(dialled.is_ok() && dials.is_ok(), "{dialled:?} {dials:?}");
    }
}

#[test]
fn a_certificate_of_another_authority_is_refused_at_both_ends() {
    let theirs = Authority::new();
    // Its own authority signed it, and ours is the one that it trusts: it believes us, and we do not believe it.
    let stranger = theirs.rank(&OURS, "127.0.0.1");
    let [dialled, dials] = met(Some(own()), Some(&stranger));
    // The two authorities have the same name.
    let is_told = |reason: &str| reason.starts_with("it is not signed by the trusted authority of that name");
    assert!(matches!(&dialled, Err(ConnectionError::Untrusted { reason }) if is_told(reason)), "{dialled:?}");
    assert!(matches!(&dials, Err(ConnectionError::NotTrusted { reason }) if is_told(reason)), "{dials:?}");
    let [dialled, dials] = met(Some(&stranger), Some(own()));
    assert!(matches!(dialled, Err(ConnectionError::NotTrusted { .. })), "{dialled:?}");
    assert!(matches!(dials, Err(ConnectionError::Untrusted { .. })), "{dials:?}");
    // Of another cluster: it does not believe us either.
    let foreign = theirs.rank(&theirs, "127.0.0.1");
    let [dialled, dials] = met(Some(own()), Some(&foreign));
    assert!(matches!(dialled, Err(ConnectionError::NotTrusted { .. })), "{dialled:?}");
    assert!(matches!(dials, Err(ConnectionError::Untrusted { .. })), "{dials:?}");
}

#[test]
fn the_name_that_was_dialled_must_stand_in_the_certificate() {
    let elsewhere = OURS.rank(&OURS, "another.example");
    let [dialled, dials] = met(Some(&elsewhere), Some(own()));
    assert!(
        matches!(&dials, Err(ConnectionError::Untrusted { reason })
            if reason == "it is not for \"127.0.0.1\"; it is only valid for \"another.example\""),
        "{dials:?}"
    );
    assert!(matches!(dialled, Err(ConnectionError::NotTrusted { .. })), "{dialled:?}");
    let (_dialled, dials) = sockets();
    let bad = Connection::dial((dials, "no name"), Some(own()), PATIENCE).unwrap_err();
    assert!(matches!(bad, ConnectionError::Name { .. }) && bad.is_lasting(), "{bad:?}");
}

#[test]
fn who_shows_no_certificate_is_refused() {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(OURS.0.der().clone()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let bare = rustls::ClientConfig::builder_with_provider(provider);
    let bare = bare.with_protocol_versions(&[&rustls::version::TLS13]).unwrap();
    let bare = bare.with_root_certificates(roots).with_no_client_auth();
    let (dialled, mut dials) = sockets();
    std::thread::scope(|scope| {
        let client = scope.spawn(move || {
            let name = "127.0.0.1".try_into().unwrap();
            let mut session = rustls::ClientConnection::new(Arc::new(bare), name).unwrap();
            let mut stream = rustls::Stream::new(&mut session, &mut dials);
            stream.read_exact(&mut [0]).unwrap_err()
        });
        let error = Connection::accept(dialled, Some(own()), PATIENCE).unwrap_err();
        assert!(
            matches!(&error, ConnectionError::Untrusted { reason } if reason == "it shows none"),
            "{error:?}"
        );
        let told = client.join().unwrap();
        assert!(told.to_string().contains("CertificateRequired"), "{told}");
    });
}

#[test]
fn plain_text_that_meets_tls_is_said_to_be_that() {
    let (dialled, mut dials) = sockets();
    dials.write_all(&[200, 0, 0, 0]).unwrap();
    let error = Connection::accept(dialled, Some(own()), PATIENCE).unwrap_err();
    assert!(matches!(error, ConnectionError::TalksPlainText) && error.is_lasting(), "{error:?}");
    // A single byte does not say it yet; a length does, even one that begins like TLS.
    let (mut dialled, dials) = sockets();
    dialled.write_all(&[22]).unwrap();
    std::thread::scope(|scope| {
        let dials = scope.spawn(move || Connection::dial((dials, "127.0.0.1"), Some(own()), PATIENCE));
        dialled.write_all(&[3, 0, 0]).unwrap();
        let error = dials.join().unwrap().unwrap_err();
        assert!(matches!(error, ConnectionError::TalksPlainText), "{error:?}");
    });
    // The other way round the one in plain text sees it in the first bytes that it reads.
    let [dialled, dials] = met(None, Some(own()));
    assert!(matches!(dialled, Err(ConnectionError::TalksTls)), "{dialled:?}");
    assert!(dials.is_err(), "{dials:?}");
}

#[test]
fn whoever_says_nothing_or_leaves_ends_the_handshake() {
    let short = Duration::from_millis(50);
    let (dialled, silent) = sockets();
    let error = Connection::accept(dialled, Some(own()), short).unwrap_err();
    assert!(matches!(error, ConnectionError::Silent { waited } if waited == short), "{error:?}");
    drop(silent);
    let (dialled, gone) = sockets();
    drop(gone);
    let error = Connection::accept(dialled, Some(own()), PATIENCE).unwrap_err();
    assert!(matches!(error, ConnectionError::Closed) && !error.is_lasting(), "{error:?}");
}

#[test]
fn an_end_that_left_is_not_open() {
    for secured in SECURED {
        let (one, other) = connected(secured);
        assert!(one.is_open() && other.is_open());
        other.send(&[7], PATIENCE).unwrap();
        while !matches!(one.receive(&mut [0], PATIENCE), Ok(())) {}
        assert!(one.is_open());
        other.end_sending();
        // What it said is on its way through the loopback.
        let until = std::iter::repeat_with(|| std::thread::sleep(Duration::from_millis(1)));
        assert!(until.take(60_000).any(|()| !one.is_open()));
        drop((one, other));
    }
}

/// Between two ranks, a relay of ciphertext that takes `bytes` from the one that dials and then closes both ends.
fn relayed(bytes: usize, damaged: bool) -> Vec<Result<(), CollectiveError>> {
    let ((inside, spoke), (hub, outside)) = (sockets(), sockets());
    let relay = std::thread::spawn(move || {
        let (back, forth) = (outside.try_clone().unwrap(), inside.try_clone().unwrap());
        let answers = std::thread::spawn(move || {
            let _ = std::io::copy(&mut &back, &mut &forth);
            let _ = forth.shutdown(Shutdown::Both);
        });
        let mut left = bytes;
        let mut room = vec![0; 4_096];
        while left > 0 {
            let most = left.min(room.len());
            let read = (&inside).read(&mut room[..most]).unwrap_or(0);
            if read == 0 {
                break;
            }
            left -= read;
            if left == 0 && damaged {
                room[read - 1] ^= 1;
            }
            if (&outside).write_all(&room[..read]).is_err() {
                break;
            }
        }
        if damaged {
            let _ = std::io::copy(&mut &inside, &mut &outside);
        }
        for end in [&inside, &outside] {
            let _ = end.shutdown(Shutdown::Both);
        }
        let _ = answers.join();
    });
    let ranks: Vec<Box<dyn FnOnce() -> TcpRank + Send>> = vec![
        Box::new(|| {
            let hub = Connection::accept(hub, Some(own()), PATIENCE).unwrap();
            TcpRank::hub(vec![hub], LONG).unwrap()
        }),
        Box::new(|| {
            let spoke = Connection::dial((spoke, "127.0.0.1"), Some(own()), PATIENCE).unwrap();
            TcpRank::spoke(1, 2, spoke, LONG).unwrap()
        }),
    ];
    let results = run_all(ranks, |open| {
        let mut rank = open();
        let mut data = vec![1.0; 200_000];
        rank.all_reduce(Values::F32(&mut data), Reduce::Sum)?;
        // Who has got everything, and whose own values the system had taken in whole, hears of it in the next call.
        rank.all_reduce(Values::F32(&mut [1.0]), Reduce::Sum)
    });
    relay.join().unwrap();
    results
}

#[test]
fn a_connection_cut_or_changed_within_a_record_ends_both_ranks() {
    // The handshake takes some two thousand bytes; what is sent, eight hundred thousand.
    for (bytes, damaged) in [(10_000, false), (100_001, false), (300_007, true)] {
        for (rank, result) in relayed(bytes, damaged).into_iter().enumerate() {
            let gone = matches!(&result, Err(CollectiveError::Gone { .. }));
            assert!(gone, "{bytes} bytes, damaged: {damaged}: rank {rank} has {result:?}");
            if damaged && rank == 0 {
                let found = result.unwrap_err().to_string();
                // The second, where it was the head of a record.
                assert!(found.contains("decrypt") || found.contains("corrupt"), "{found}");
            }
        }
    }
}

#[test]
fn long_payloads_cross_each_other_many_times() {
    // Far more than records, and than what sockets buffer.
    let lens = [1, 4_096, 70_000, 1 << 20, 3 << 20, 5];
    let results = run_all(Transport::Tls(2).open(LONG), move |mut rank| {
        lens.map(|len| {
            let mut data: Vec<f32> = (0..len).map(|i| (i % 1_000 + rank.rank()) as f32).collect();
            rank.all_reduce(Values::F32(&mut data), Reduce::Sum).unwrap();
            data.iter().enumerate().all(|(i, &sum)| sum == (2 * (i % 1_000) + 1) as f32)
        })
    });
    assert_eq!(results, [[true; 6]; 2]);
}

#[test]
fn keys_are_renewed_before_they_have_encrypted_too_much() {
    // Really 2^24 records; a step of a small model takes some sixty.
    let suite = rustls::crypto::ring::cipher_suite::TLS13_AES_128_GCM_SHA256.tls13().unwrap();
    let common = rustls::crypto::CipherSuiteCommon { confidentiality_limit: 20, ..suite.common };
    let suite: &'static _ = Box::leak(Box::new(rustls::Tls13CipherSuite { common, ..*suite }));
    let mut provider = rustls::crypto::ring::default_provider();
    provider.cipher_suites = vec![rustls::SupportedCipherSuite::Tls13(suite)];
    let tls = OURS.rank_over(provider, &OURS, "127.0.0.1");
    let (dialled, dials) = sockets();
    let ranks = std::thread::scope(|scope| {
        let dials = scope.spawn(|| Connection::dial((dials, "127.0.0.1"), Some(&tls), PATIENCE).unwrap());
        let hub = Connection::accept(dialled, Some(&tls), PATIENCE).unwrap();
        let hub = TcpRank::hub(vec![hub], LONG).unwrap();
        vec![hub, TcpRank::spoke(1, 2, dials.join().unwrap(), LONG).unwrap()]
    });
    let results = run_all(ranks, |mut rank| {
        (0..200).all(|call| {
            // Now and then many records at once.
            let mut data = vec![1.0; if call % 50 == 49 { 400_000 } else { 10 }];
            rank.all_reduce(Values::F32(&mut data), Reduce::Sum).unwrap();
            data.iter().all(|&sum| sum == 2.0)
        })
    });
    assert_eq!(results, [true; 2]);
}

#[test]
fn files_that_hold_nothing_are_named() {
    let key = KeyPair::generate().unwrap();
    let (ca, other) = (OURS.0.pem(), key.serialize_pem());
    let refused = |ca: &str, cert: &str, key: &str| {
        RankTls::from_pem(ca.as_bytes(), cert.as_bytes(), key.as_bytes()).unwrap_err().to_string()
    };
    assert!(refused("", &ca, &other).starts_with("ca_file"));
    assert!(refused(&ca, &other, &other).starts_with("cert_file"));
    assert!(refused(&ca, &ca, &ca).starts_with("key_file"));
    assert!(refused(&ca, &ca, &other).contains("certificate or its key"), "a key of another certificate");
}
