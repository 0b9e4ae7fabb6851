//! What a session promises, against a router that fails as it is told.

use std::time::Duration;

use hawser_common::{Coded, ErrorCode};
use hawser_proto::v1::Extent;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::fake::{Act, Fake};
use crate::{Client, ClientError, Retry, Session, TurnEvent};

const QUICK: Retry = Retry { attempts: 4, base: Duration::from_millis(1), cap: Duration::from_millis(4) };

async fn session(script: &[Act]) -> (Fake, Session) {
    let (fake, uri) = Fake::start(script).await;
    let client = Client::connect(&uri).await.unwrap();
    (fake, client.session().system("be brief").retry(QUICK).start())
}

async fn turn(session: &mut Session, text: &str) -> Result<String, ClientError> {
    Ok(session.say(text).await?.outcome().await?.text)
}

fn texts(session: &Session) -> Vec<String> {
    session.history().iter().map(|message| message.content.clone()).collect()
}

/// Whatever fails on the way: once a turn ends well, the cluster holds exactly the history of this client.
#[tokio::test]
async fn after_every_good_turn_client_and_cluster_agree() {
    for seed in 0..40 {
        let mut rng = StdRng::seed_from_u64(seed);
        let script: Vec<Act> = (0..40)
            .map(|_| match rng.random_range(0..9) {
                0 => Act::Forget,
                1 => Act::Refuse(ErrorCode::Unavailable),
                2 => Act::Refuse(ErrorCode::Exhausted),
                3 => Act::Break,
                4 => Act::Truncate,
                5 => Act::CommitUnheard,
                _ => Act::Answer,
            })
            .collect();
        let (fake, mut session) = session(&script).await;
        let mut good = 0;
        for step in 0..12 {
            let before = texts(&session);
            match turn(&mut session, &format!("question {step}")).await {
                Ok(_) => {
                    good += 1;
                    assert_eq!(
                        texts(&session),
                        fake.contents(),
                        "seed {seed}, step {step}, script {script:?}"
                    );
                }
                Err(_) => assert_eq!(
                    texts(&session),
                    before,
                    "seed {seed}, step {step}: a failed turn left a trace"
                ),
            }
        }
        assert!(good > 0, "seed {seed}: nothing was tested");
        assert_eq!(texts(&session).len(), 1 + 2 * good, "seed {seed}");
    }
}

#[tokio::test]
async fn later_turns_carry_only_what_is_new() {
    let (fake, mut session) = session(&[]).await;
    assert_eq!(turn(&mut session, "one").await.unwrap(), "answer 1");
    assert_eq!(turn(&mut session, "two").await.unwrap(), "answer 2");
    assert_eq!(fake.extents(), [Extent::Whole, Extent::Delta]);
    assert_eq!(texts(&session), ["be brief", "one", "answer 1", "two", "answer 2"]);
}

#[tokio::test]
async fn a_lost_session_is_resent_without_the_caller_noticing() {
    let (fake, mut session) = session(&[Act::Answer, Act::Forget]).await;
    turn(&mut session, "one").await.unwrap();
    let outcome = session.say("two").await.unwrap().outcome().await.unwrap();
    assert!(outcome.placed.resent);
    assert_eq!(fake.extents(), [Extent::Whole, Extent::Delta, Extent::Whole]);
}

#[tokio::test]
async fn unavailable_is_retried_within_bounds_and_other_refusals_are_not() {
    let refuse = Act::Refuse(ErrorCode::Unavailable);
    let (fake, mut patient) = session(&[refuse, refuse, refuse]).await;
    assert_eq!(turn(&mut patient, "one").await.unwrap(), "answer 1");
    assert_eq!(fake.seen.lock().unwrap().requests.len(), 4);

    let (fake, mut given_up) = session(&[refuse; 9]).await;
    assert_eq!(turn(&mut given_up, "one").await.unwrap_err().code(), ErrorCode::Unavailable);
    assert_eq!(fake.seen.lock().unwrap().requests.len(), 4);

    for code in [ErrorCode::Invalid, ErrorCode::Exhausted, ErrorCode::SessionLost] {
        let (fake, mut refused) = session(&[Act::Refuse(code); 9]).await;
        assert_eq!(turn(&mut refused, "one").await.unwrap_err().code(), code);
        assert_eq!(fake.seen.lock().unwrap().requests.len(), 1, "{code:?}");
    }
}

#[tokio::test]
async fn nothing_is_retried_after_the_first_frame() {
    for (act, code) in [(Act::Break, "broke off after 1 tokens"), (Act::Truncate, "ended after 1 tokens")] {
        let (fake, mut session) = session(&[Act::Answer, act]).await;
        turn(&mut session, "one").await.unwrap();
        let error = turn(&mut session, "two").await.unwrap_err();
        assert!(error.to_string().contains(code), "{error}");
        assert_eq!(error.code(), ErrorCode::Unavailable);
        assert_eq!(texts(&session), ["be brief", "one", "answer 1"]);
        turn(&mut session, "three").await.unwrap();
        assert_eq!(
            fake.extents(),
            [Extent::Whole, Extent::Delta, Extent::Whole],
            "what is held is not known"
        );
    }
}

#[tokio::test]
async fn a_dropped_turn_leaves_the_history_alone() {
    let (_fake, mut session) = session(&[Act::Answer, Act::Hang]).await;
    turn(&mut session, "one").await.unwrap();
    let mut dropped = session.say("two").await.unwrap();
    assert!(matches!(dropped.next().await.unwrap(), Some(TurnEvent::Placed(placed)) if placed.group == "g1"));
    drop(dropped);
    assert_eq!(texts(&session), ["be brief", "one", "answer 1"]);
    turn(&mut session, "three").await.unwrap();
    assert_eq!(texts(&session).len(), 5);
}

#[tokio::test]
async fn a_deadline_travels_and_ends_a_turn_that_hangs() {
    let (fake, mut session) = session(&[Act::Hang]).await;
    session.set_deadline(Some(Duration::from_millis(60)));
    let error = turn(&mut session, "one").await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::Deadline, "{error}");
    let sent = fake.seen.lock().unwrap().deadlines[0].expect("grpc-timeout is set");
    assert!(sent <= Duration::from_millis(60), "{sent:?}");
}

#[tokio::test]
async fn frames_out_of_order_are_an_error() {
    let (_fake, mut session) = session(&[Act::Disorder]).await;
    assert!(matches!(turn(&mut session, "one").await, Err(ClientError::Protocol { .. })));
}

#[tokio::test]
async fn a_resumed_session_adds_to_what_it_cannot_resend() {
    let (fake, mut first) = session(&[Act::Answer, Act::Answer, Act::Forget]).await;
    turn(&mut first, "one").await.unwrap();
    let client = Client::connect(first.client().uri()).await.unwrap();
    let mut resumed = client.session().id(first.id().clone()).resume().retry(QUICK).start();
    turn(&mut resumed, "two").await.unwrap();
    assert_eq!(fake.contents(), ["be brief", "one", "answer 1", "two", "answer 2"]);
    assert!(matches!(turn(&mut resumed, "three").await, Err(ClientError::HistoryUnknown { .. })));
}

#[tokio::test]
async fn a_report_says_what_the_turn_cost() {
    let (_fake, mut session) = session(&[]).await;
    let report = session.say("one").await.unwrap().outcome().await.unwrap().report;
    assert_eq!((report.usage.reused_tokens, report.turn), (4, 1));
    assert_eq!(report.time_to_first_token(), Duration::from_millis(3));
    assert!((report.decode_rate() - 100.0).abs() < 1e-9, "one step in 10 ms");
    assert_eq!(session.close().await.unwrap(), 3);
}

#[tokio::test]
async fn nobody_there_is_said_so() {
    let (_, uri) = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let uri = format!("http://{}", listener.local_addr().unwrap());
        (listener, uri)
    };
    let error = Client::connect(&uri).await.unwrap_err();
    assert!(matches!(error, ClientError::Connect { .. }), "{error}");
    assert!(error.to_string().contains("hawser up"), "{error}");
}
