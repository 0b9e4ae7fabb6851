//! The conservation law of slots, checked after every operation in tests and on demand in a running group:
//! free + distinct held + the dead slot = total.

use hawser_common::SlotId;
use thiserror::Error;

use crate::map::SlotMap;
use crate::pool::SlotPool;
use crate::tree::PrefixTree;

/// A broken invariant, with the slot that shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum AuditError {
    #[error("slot {0:?} is on the free list twice, dead, or out of range")]
    FreeList(SlotId),
    #[error("slot {slot:?} has {refs} holders by its count, but {holders} maps and trees hold it")]
    Holders { slot: SlotId, refs: u32, holders: u32 },
    #[error("slot {0:?} is neither free nor held, or both")]
    Leaked(SlotId),
    #[error("a map's live list is not its positions with a slot, in order")]
    LiveList,
    #[error("the prefix tree holds slot {0:?} twice, or it is dead or out of range")]
    TreeSlot(SlotId),
    #[error("the prefix tree is inconsistent: {0}")]
    TreeShape(&'static str),
}

/// Checks the pool against all maps over it, where no prefix tree holds slots of it.
///
/// # Errors
/// [`AuditError`] for the first invariant that does not hold.
pub fn audit<'a>(pool: &SlotPool, maps: impl Iterator<Item = &'a SlotMap>) -> Result<(), AuditError> {
    audit_with_tree(pool, maps, &PrefixTree::new())
}

/// Checks the pool against all maps and the prefix tree over it, and the tree's own links.
///
/// # Errors
/// [`AuditError`] for the first invariant that does not hold.
pub fn audit_with_tree<'a>(
    pool: &SlotPool,
    maps: impl Iterator<Item = &'a SlotMap>,
    tree: &PrefixTree,
) -> Result<(), AuditError> {
    let mut in_tree = vec![false; pool.total()];
    for slot in tree.slots() {
        let known = !slot.is_dead() && slot.index() < in_tree.len();
        if !known || std::mem::replace(&mut in_tree[slot.index()], true) {
            return Err(AuditError::TreeSlot(slot));
        }
    }
    let mut holders: Vec<u32> = in_tree.iter().map(|&held| u32::from(held)).collect();
    for map in maps {
        check_live(map)?;
        for slot in map.live().iter().copied().chain(map.parked()) {
            holders[slot.index()] += 1;
        }
    }
    let mut free = vec![false; pool.total()];
    for &slot in pool.free_list() {
        let known = !slot.is_dead() && slot.index() < free.len();
        if !known || std::mem::replace(&mut free[slot.index()], true) {
            return Err(AuditError::FreeList(slot));
        }
    }
    for (index, (&held, &is_free)) in holders.iter().zip(&free).enumerate().skip(1) {
        let slot = SlotId(u32::try_from(index).expect("slot ids are 32-bit"));
        if pool.refs(slot) != held {
            return Err(AuditError::Holders { slot, refs: pool.refs(slot), holders: held });
        }
        if is_free == (held > 0) {
            return Err(AuditError::Leaked(slot));
        }
    }
    tree.check(pool).map_err(AuditError::TreeShape)
}

fn check_live(map: &SlotMap) -> Result<(), AuditError> {
    let len = u32::try_from(map.len()).expect("positions are 32-bit");
    let positions = (0..len).map(hawser_common::Position);
    let with_slot =
        positions.filter_map(|p| map.slot(p).filter(|slot| !slot.is_dead()).map(|slot| (p, slot)));
    let listed = map.live_positions().iter().copied().zip(map.live().iter().copied());
    let same_length = map.live().len() == map.live_positions().len();
    if same_length && with_slot.eq(listed) { Ok(()) } else { Err(AuditError::LiveList) }
}
