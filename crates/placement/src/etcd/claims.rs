//! Claims and releases as transactions: many sessions in one, each decided for itself.
//!
//! A transaction of etcd has one condition and two branches. The outer one here holds the group's registration against
//! its condition; inside it is one transaction per session, which etcd decides one by one within the same revision:
//! absent, and then it is put, or present, and then it is read. So one round trip answers up to [`PER_TXN`] claims, a
//! claim that is lost takes no other with it, and nothing is claimed for a registration that has ended.

use std::collections::HashMap;

use etcd_client::{Compare, CompareOp, DeleteOptions, PutOptions, Txn, TxnOp, TxnOpResponse, TxnResponse};
use hawser_common::SessionKey;
use hawser_common::group::Owner;

use super::fault::Fault;
use super::keys::Keys;
use super::values::{read_owner, write_owner};
use crate::store::ClaimOutcome;

/// Most sessions of one transaction. etcd allows 128 operations, counting those inside with those outside.
pub(super) const PER_TXN: usize = 100;

/// The registration that `owner` stands for lives under `lease`.
fn registered(keys: &Keys, lease: i64, owner: &Owner) -> Vec<Compare> {
    let key = keys.group(&owner.group);
    let epoch = i64::try_from(owner.epoch.0).unwrap_or(i64::MAX);
    vec![
        Compare::create_revision(key.clone(), CompareOp::Equal, epoch),
        Compare::lease(key, CompareOp::Equal, lease),
    ]
}

/// Create-if-absent of each session, if the registration lives. The sessions differ from each other: etcd takes no
/// two writes of one key.
pub(super) fn claim(keys: &Keys, lease: i64, owner: &Owner, sessions: &[SessionKey]) -> Txn {
    let value = write_owner(owner);
    let one = |session: &SessionKey| {
        let key = keys.session(session);
        let put = TxnOp::put(key.clone(), value.clone(), Some(PutOptions::new().with_lease(lease)));
        TxnOp::txn(
            Txn::new()
                .when([Compare::create_revision(key.clone(), CompareOp::Equal, 0)])
                .and_then([put])
                .or_else([TxnOp::get(key, None)]),
        )
    };
    Txn::new().when(registered(keys, lease, owner)).and_then(sessions.iter().map(one).collect::<Vec<_>>())
}

/// What became of each of `count` claims; `None` if the registration has ended.
pub(super) fn outcomes(
    response: &TxnResponse,
    lease: i64,
    count: usize,
) -> Result<Option<Vec<ClaimOutcome>>, Fault> {
    if !response.succeeded() {
        return Ok(None);
    }
    let answers = response.op_responses();
    if answers.len() != count {
        return Err(malformed(format!("{} answers to {count} claims", answers.len())));
    }
    answers.iter().map(|answer| outcome(answer, lease)).collect::<Result<_, _>>().map(Some)
}

fn outcome(answer: &TxnOpResponse, lease: i64) -> Result<ClaimOutcome, Fault> {
    let TxnOpResponse::Txn(answer) = answer else { return Err(malformed("no transaction in a transaction")) };
    if answer.succeeded() {
        return Ok(ClaimOutcome::Won);
    }
    let read = answer.op_responses();
    let Some(TxnOpResponse::Get(found)) = read.first() else {
        return Err(malformed("a claim was lost to nobody"));
    };
    let Some(kv) = found.kvs().first() else { return Err(malformed("a claim was lost to nobody")) };
    if kv.lease() == lease {
        return Ok(ClaimOutcome::Won);
    }
    let owner = read_owner(kv.value()).map_err(|error| {
        let key = String::from_utf8_lossy(kv.key()).into_owned();
        Fault::Unreachable(format!("the owner in {key} cannot be read: {error}"))
    })?;
    Ok(ClaimOutcome::Owned(owner))
}

/// Deletes each session that `lease` holds.
pub(super) fn release(keys: &Keys, lease: i64, sessions: &[SessionKey]) -> Txn {
    let one = |session: &SessionKey| {
        let key = keys.session(session);
        TxnOp::txn(
            Txn::new()
                .when([Compare::lease(key.clone(), CompareOp::Equal, lease)])
                .and_then([TxnOp::delete(key, Some(DeleteOptions::new()))]),
        )
    };
    Txn::new().and_then(sessions.iter().map(one).collect::<Vec<_>>())
}

/// Whether any session was released.
pub(super) fn released_any(response: &TxnResponse) -> bool {
    let released = |answer: &TxnOpResponse| matches!(answer, TxnOpResponse::Txn(txn) if txn.succeeded());
    response.op_responses().iter().any(released)
}

/// `sessions` once each, and where each one of the input is among them.
pub(super) fn distinct(sessions: Vec<SessionKey>) -> (Vec<SessionKey>, Vec<usize>) {
    let mut places = HashMap::with_capacity(sessions.len());
    let mut once = Vec::with_capacity(sessions.len());
    let of_each = sessions
        .into_iter()
        .map(|session| {
            *places.entry(session.clone()).or_insert_with(|| {
                once.push(session);
                once.len() - 1
            })
        })
        .collect();
    (once, of_each)
}

pub(super) fn malformed(what: impl std::fmt::Display) -> Fault {
    Fault::Unreachable(format!("etcd's answer makes no sense: {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::key;

    #[test]
    fn doubles_are_asked_once_and_answered_each() {
        let sessions = ["a", "b", "a", "c", "b"].map(|s| key("t", s)).to_vec();
        let (once, places) = distinct(sessions.clone());
        assert_eq!(once, ["a", "b", "c"].map(|s| key("t", s)));
        assert_eq!(places.into_iter().map(|place| once[place].clone()).collect::<Vec<_>>(), sessions);
        assert_eq!(distinct(Vec::new()), (Vec::new(), Vec::new()));
    }
}
