//! Requests about keys: reads, writes, and transactions inside transactions.
//!
//! As etcd does it: all conditions are decided first, over the state before; then what would fail is refused; then
//! the chosen branches are applied as one revision.

use std::collections::BTreeSet;

use etcd_client::proto::{
    PbCompare, PbDeleteRequest, PbDeleteResponse, PbPutRequest, PbPutResponse, PbRangeRequest,
    PbRangeResponse, PbResponseOp, PbTargetUnion, PbTxnOpRequest, PbTxnOpResponse, PbTxnRequest,
    PbTxnRequestOp, PbTxnResponse,
};
use hawser_common::clock::Tick;
use tonic::Status;

use super::mvcc::Range;
use super::state::{State, lease_missing, unreadable};

/// Operations of one transaction, counted along each path through it.
const MAX_OPS: usize = 128;

pub(super) fn range(state: &State, request: PbRangeRequest) -> Result<PbRangeResponse, Status> {
    let range = Range::new(request.key, request.range_end);
    let found = state.mvcc.read(&range, request.revision, request.limit).map_err(unreadable)?;
    let count = i64::try_from(found.count).unwrap_or(i64::MAX);
    let mut kvs = if request.count_only { Vec::new() } else { found.kvs };
    if request.keys_only {
        kvs.iter_mut().for_each(|kv| kv.value.clear());
    }
    Ok(PbRangeResponse { header: state.header(), kvs, more: found.more, count })
}

pub(super) fn put(state: &mut State, request: PbPutRequest, now: Tick) -> Result<PbPutResponse, Status> {
    if !state.has_lease(request.lease) {
        return Err(lease_missing());
    }
    state.put(request.key, request.value, request.lease);
    state.commit(now);
    Ok(PbPutResponse { header: state.header(), prev_kv: None })
}

pub(super) fn delete(state: &mut State, request: PbDeleteRequest, now: Tick) -> PbDeleteResponse {
    let gone = state.delete(&Range::new(request.key, request.range_end));
    state.commit(now);
    let deleted = i64::try_from(gone.len()).unwrap_or(i64::MAX);
    PbDeleteResponse { header: state.header(), deleted, prev_kvs: Vec::new() }
}

pub(super) fn txn(state: &mut State, request: PbTxnRequest, now: Tick) -> Result<PbTxnResponse, Status> {
    check_size(&request, MAX_OPS)?;
    written(&request.success)?;
    written(&request.failure)?;
    let decided = decide(state, request);
    check(state, &decided)?;
    let mut response = apply(state, decided);
    state.commit(now);
    stamp(&mut response, state);
    Ok(response)
}

fn check_size(request: &PbTxnRequest, left: usize) -> Result<(), Status> {
    let most = request.compare.len().max(request.success.len()).max(request.failure.len());
    let Some(left) = left.checked_sub(most) else {
        return Err(Status::invalid_argument("etcdserver: too many operations in txn request"));
    };
    for op in request.success.iter().chain(&request.failure) {
        if let Some(PbTxnOpRequest::RequestTxn(inner)) = &op.request {
            check_size(inner, left)?;
        }
    }
    Ok(())
}

/// Keys that some path of these operations writes. No path may write one twice.
fn written(ops: &[PbTxnRequestOp]) -> Result<BTreeSet<&[u8]>, Status> {
    let mut keys = BTreeSet::new();
    for op in ops {
        let more = match &op.request {
            Some(PbTxnOpRequest::RequestPut(put)) => BTreeSet::from([put.key.as_slice()]),
            Some(PbTxnOpRequest::RequestTxn(inner)) => {
                let mut either = written(&inner.success)?;
                either.append(&mut written(&inner.failure)?);
                either
            }
            Some(PbTxnOpRequest::RequestRange(_) | PbTxnOpRequest::RequestDeleteRange(_)) | None => continue,
        };
        for key in more {
            if !keys.insert(key) {
                return Err(Status::invalid_argument("etcdserver: duplicate key given in txn request"));
            }
        }
    }
    Ok(keys)
}

/// A transaction whose branch is chosen.
struct Decided {
    succeeded: bool,
    ops: Vec<Op>,
}

enum Op {
    Range(PbRangeRequest),
    Put(PbPutRequest),
    Delete(PbDeleteRequest),
    Txn(Decided),
}

fn decide(state: &State, request: PbTxnRequest) -> Decided {
    let succeeded = request.compare.iter().all(|compare| holds(state, compare));
    let branch = if succeeded { request.success } else { request.failure };
    let ops = branch.into_iter().filter_map(|op| {
        Some(match op.request? {
            PbTxnOpRequest::RequestRange(range) => Op::Range(range),
            PbTxnOpRequest::RequestPut(put) => Op::Put(put),
            PbTxnOpRequest::RequestDeleteRange(delete) => Op::Delete(delete),
            PbTxnOpRequest::RequestTxn(inner) => Op::Txn(decide(state, inner)),
        })
    });
    Decided { succeeded, ops: ops.collect() }
}

/// Whether a condition holds. A key that is not there has no value, and zero for everything else.
fn holds(state: &State, compare: &PbCompare) -> bool {
    use std::cmp::Ordering;
    let kv = state.mvcc.latest(&compare.key);
    let order = match compare.target_union.as_ref() {
        Some(PbTargetUnion::Version(version)) => kv.map_or(0, |kv| kv.version).cmp(version),
        Some(PbTargetUnion::CreateRevision(revision)) => kv.map_or(0, |kv| kv.create_revision).cmp(revision),
        Some(PbTargetUnion::ModRevision(revision)) => kv.map_or(0, |kv| kv.mod_revision).cmp(revision),
        Some(PbTargetUnion::Lease(lease)) => kv.map_or(0, |kv| kv.lease).cmp(lease),
        Some(PbTargetUnion::Value(value)) => match kv {
            Some(kv) => kv.value.cmp(value),
            None => return false,
        },
        None => return false,
    };
    match compare.result {
        0 => order == Ordering::Equal,
        1 => order == Ordering::Greater,
        2 => order == Ordering::Less,
        _ => order != Ordering::Equal,
    }
}

fn check(state: &State, decided: &Decided) -> Result<(), Status> {
    for op in &decided.ops {
        match op {
            Op::Put(put) if !state.has_lease(put.lease) => return Err(lease_missing()),
            Op::Range(range) => {
                let found = Range::new(range.key.clone(), range.range_end.clone());
                state.mvcc.read(&found, range.revision, 1).map_err(unreadable)?;
            }
            Op::Txn(inner) => check(state, inner)?,
            Op::Put(_) | Op::Delete(_) => {}
        }
    }
    Ok(())
}

fn apply(state: &mut State, decided: Decided) -> PbTxnResponse {
    let succeeded = decided.succeeded;
    let responses = decided.ops.into_iter().map(|op| PbResponseOp { response: Some(apply_one(state, op)) });
    PbTxnResponse { header: None, succeeded, responses: responses.collect() }
}

fn apply_one(state: &mut State, op: Op) -> PbTxnOpResponse {
    match op {
        Op::Range(request) => PbTxnOpResponse::ResponseRange(range(state, request).unwrap_or_default()),
        Op::Put(put) => {
            state.put(put.key, put.value, put.lease);
            PbTxnOpResponse::ResponsePut(PbPutResponse::default())
        }
        Op::Delete(delete) => {
            let gone = state.delete(&Range::new(delete.key, delete.range_end));
            let deleted = i64::try_from(gone.len()).unwrap_or(i64::MAX);
            PbTxnOpResponse::ResponseDeleteRange(PbDeleteResponse { deleted, ..PbDeleteResponse::default() })
        }
        Op::Txn(inner) => PbTxnOpResponse::ResponseTxn(apply(state, inner)),
    }
}

/// Headers say the revision after the whole transaction.
fn stamp(response: &mut PbTxnResponse, state: &State) {
    response.header = state.header();
    for op in &mut response.responses {
        match &mut op.response {
            Some(PbTxnOpResponse::ResponseRange(range)) => range.header = state.header(),
            Some(PbTxnOpResponse::ResponsePut(put)) => put.header = state.header(),
            Some(PbTxnOpResponse::ResponseDeleteRange(delete)) => delete.header = state.header(),
            Some(PbTxnOpResponse::ResponseTxn(inner)) => stamp(inner, state),
            None => {}
        }
    }
}
