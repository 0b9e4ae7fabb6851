//! What is in the keys: JSON with a version, so that a person can read it with etcd's own tools.
//!
//! A value of another version, or with a field that this version does not know, is refused and never guessed at. Names
//! and epochs are in the key and in etcd's own revisions where they can be, not twice.

use hawser_common::group::{Capacity, GroupRecord, Owner};
use hawser_common::{Epoch, GroupId};
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Longest value that is read; ours are below a tenth of it.
const MAX_BYTES: usize = 16 << 10;

/// Why a value is not one of ours.
#[derive(Debug, Error)]
pub(super) enum InvalidValue {
    #[error("a value of {found} bytes; at most {MAX_BYTES} are read")]
    TooLong { found: usize },
    #[error("{0}")]
    Json(#[from] serde_json::Error),
    #[error("{0}")]
    Id(#[from] hawser_common::ids::InvalidId),
}

/// The version of every value: 1.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
struct V1;

impl TryFrom<u32> for V1 {
    type Error = String;
    fn try_from(found: u32) -> Result<Self, String> {
        match found {
            1 => Ok(Self),
            _ => Err(format!("version {found}; this program reads version 1")),
        }
    }
}

impl From<V1> for u32 {
    fn from(_: V1) -> Self {
        1
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct GroupValue {
    v: V1,
    model: String,
    address: String,
    tp: u32,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct CapacityValue {
    v: V1,
    slots_total: u64,
    slots_free: u64,
    slots_idle: u64,
    slots_reclaimed: u64,
    slots_reserved: u64,
    sessions: u64,
    running: u32,
    queued: u32,
    draining: bool,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ClaimValue {
    v: V1,
    group: String,
    epoch: u64,
}

fn write(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("values are structs of texts and numbers, which always are JSON")
}

fn read<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, InvalidValue> {
    if bytes.len() > MAX_BYTES {
        return Err(InvalidValue::TooLong { found: bytes.len() });
    }
    Ok(serde_json::from_slice(bytes)?)
}

/// `None` for a record that is too long to be read back.
pub(super) fn write_group(record: &GroupRecord) -> Option<Vec<u8>> {
    let (model, address) = (record.model.clone(), record.address.clone());
    let written = write(&GroupValue { v: V1, model, address, tp: record.tp });
    (written.len() <= MAX_BYTES).then_some(written)
}

/// A registration as its key has it; what is left is in the key of its capacity.
pub(super) fn read_group(id: GroupId, epoch: Epoch, bytes: &[u8]) -> Result<GroupRecord, InvalidValue> {
    let GroupValue { v: V1, model, address, tp } = read(bytes)?;
    Ok(GroupRecord { id, model, address, tp, epoch, capacity: Capacity::default(), draining: false })
}

pub(super) fn write_capacity(capacity: &Capacity, draining: bool) -> Vec<u8> {
    // Without `..`, here and below: a field that is forgotten does not compile.
    let &Capacity {
        slots_total,
        slots_free,
        slots_idle,
        slots_reclaimed,
        slots_reserved,
        sessions,
        running,
        queued,
    } = capacity;
    write(&CapacityValue {
        v: V1,
        slots_total,
        slots_free,
        slots_idle,
        slots_reclaimed,
        slots_reserved,
        sessions,
        running,
        queued,
        draining,
    })
}

pub(super) fn read_capacity(bytes: &[u8]) -> Result<(Capacity, bool), InvalidValue> {
    let CapacityValue {
        v: V1,
        slots_total,
        slots_free,
        slots_idle,
        slots_reclaimed,
        slots_reserved,
        sessions,
        running,
        queued,
        draining,
    } = read(bytes)?;
    let capacity = Capacity {
        slots_total,
        slots_free,
        slots_idle,
        slots_reclaimed,
        slots_reserved,
        sessions,
        running,
        queued,
    };
    Ok((capacity, draining))
}

pub(super) fn write_owner(owner: &Owner) -> Vec<u8> {
    write(&ClaimValue { v: V1, group: owner.group.to_string(), epoch: owner.epoch.0 })
}

pub(super) fn read_owner(bytes: &[u8]) -> Result<Owner, InvalidValue> {
    let ClaimValue { v: V1, group, epoch } = read(bytes)?;
    Ok(Owner { group: GroupId::parse(&group)?, epoch: Epoch(epoch) })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::conformance::{group, record};

    #[test]
    fn values_are_the_documented_json() {
        let owner = Owner { group: group("g"), epoch: Epoch(7) };
        assert_eq!(write_owner(&owner), br#"{"v":1,"group":"g","epoch":7}"#);
        assert_eq!(
            write_group(&record("g")).as_deref(),
            Some(br#"{"v":1,"model":"m","address":"http://127.0.0.1:1","tp":1}"#.as_slice())
        );
        let long = GroupRecord { model: "m".repeat(MAX_BYTES), ..record("g") };
        assert_eq!(write_group(&long), None);
    }

    #[test]
    fn other_versions_and_unknown_fields_are_refused() {
        for wrong in [
            r#"{"v":2,"group":"g","epoch":7}"#,
            r#"{"group":"g","epoch":7}"#,
            r#"{"v":1,"group":"g","epoch":7,"budget":4}"#,
            r#"{"v":1,"group":"a/b","epoch":7}"#,
            r#"{"v":1,"group":"g","epoch":-1}"#,
            r#"{"v":1,"group":"g"}"#,
            "[]",
            "",
        ] {
            assert!(read_owner(wrong.as_bytes()).is_err(), "{wrong}");
        }
        let long = format!(r#"{{"v":1,"group":"g","epoch":7{}}}"#, " ".repeat(MAX_BYTES));
        assert!(matches!(read_owner(long.as_bytes()), Err(InvalidValue::TooLong { .. })));
    }

    proptest! {
        #[test]
        fn values_come_back(n in any::<[u64; 6]>(), m in any::<[u32; 3]>(), draining: bool, text in "\\PC*") {
            let [slots_total, slots_free, slots_idle, slots_reclaimed, slots_reserved, sessions] = n;
            let [running, queued, tp] = m;
            let capacity = Capacity {
                slots_total,
                slots_free,
                slots_idle,
                slots_reclaimed,
                slots_reserved,
                sessions,
                running,
                queued,
            };
            prop_assert_eq!(read_capacity(&write_capacity(&capacity, draining)).unwrap(), (capacity, draining));
            let owner = Owner { group: group("g"), epoch: Epoch(n[0]) };
            prop_assert_eq!(read_owner(&write_owner(&owner)).unwrap(), owner);
            let base = record("g");
            let record = GroupRecord { model: text.clone(), address: text, tp, epoch: Epoch(n[1]), ..base };
            let read = read_group(record.id.clone(), record.epoch, &write_group(&record).unwrap()).unwrap();
            prop_assert_eq!(read, GroupRecord { capacity: Capacity::default(), ..record });
        }
    }
}
