//! Groups, capacity and owners.

use hawser_common::Epoch;
use hawser_common::group::{Capacity, GroupRecord, Owner};

use super::{InvalidRequest, group_id, model_name};
use crate::v1;

/// Longest address of a group in bytes.
const MAX_ADDRESS_BYTES: usize = 1024;

/// What a group has left; absent means nothing known.
#[must_use]
pub fn capacity(wire: Option<&v1::Capacity>) -> Capacity {
    // Without `..`, here and below: a field that is forgotten does not compile.
    let v1::Capacity {
        slots_total,
        slots_free,
        slots_idle,
        slots_reclaimed,
        slots_reserved,
        sessions,
        running,
        queued,
    } = wire.copied().unwrap_or_default();
    Capacity {
        slots_total,
        slots_free,
        slots_idle,
        slots_reclaimed,
        slots_reserved,
        sessions,
        running,
        queued,
    }
}

/// A group's registration.
///
/// # Errors
/// [`InvalidRequest`] for an id outside the alphabet, or a model or address that is missing or too long.
pub fn group_record(wire: &v1::Group) -> Result<GroupRecord, InvalidRequest> {
    let address = &wire.address;
    if address.is_empty() {
        return Err(InvalidRequest::Empty { field: "address", expected: "give the URI of the leader" });
    }
    if address.len() > MAX_ADDRESS_BYTES {
        let (found, limit) = (address.len(), MAX_ADDRESS_BYTES);
        return Err(InvalidRequest::TooMany { field: "address".to_owned(), found, limit, unit: "bytes" });
    }
    Ok(GroupRecord {
        id: group_id(&wire.id)?,
        model: model_name(&wire.model)?,
        address: address.clone(),
        tp: wire.tp,
        epoch: Epoch(wire.epoch),
        capacity: capacity(wire.capacity.as_ref()),
        draining: wire.draining,
    })
}

/// Who owns a session.
///
/// # Errors
/// [`InvalidRequest`] where it is missing or its group is not an id.
pub fn owner(wire: Option<&v1::Owner>) -> Result<Owner, InvalidRequest> {
    let owner = wire.ok_or(InvalidRequest::Missing { field: "owner", expected: "name group and epoch" })?;
    Ok(Owner { group: group_id(&owner.group)?, epoch: Epoch(owner.epoch) })
}

impl From<Capacity> for v1::Capacity {
    fn from(capacity: Capacity) -> Self {
        let Capacity {
            slots_total,
            slots_free,
            slots_idle,
            slots_reclaimed,
            slots_reserved,
            sessions,
            running,
            queued,
        } = capacity;
        Self {
            slots_total,
            slots_free,
            slots_idle,
            slots_reclaimed,
            slots_reserved,
            sessions,
            running,
            queued,
        }
    }
}

impl From<&GroupRecord> for v1::Group {
    fn from(record: &GroupRecord) -> Self {
        Self {
            id: record.id.to_string(),
            model: record.model.clone(),
            address: record.address.clone(),
            tp: record.tp,
            epoch: record.epoch.0,
            capacity: Some(record.capacity.into()),
            draining: record.draining,
            departed: false,
        }
    }
}

impl From<&Owner> for v1::Owner {
    fn from(owner: &Owner) -> Self {
        Self { group: owner.group.to_string(), epoch: owner.epoch.0 }
    }
}
