//! What is left of sessions that were claimed under an earlier registration.
//!
//! A group that lost its lease keeps tokens and rows of its sessions: a turn that brings the whole conversation may come
//! back to them. Once the store says that another group has such a session, nothing can, and they are given back. Looks at
//! the store only while something is left over, and less and less often. Never touches a session that the group holds by a
//! claim.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use hawser_common::group::Owner;
use hawser_common::{GroupId, SessionKey};
use hawser_placement::{Change, Snapshot, Store};
use tokio_util::sync::CancellationToken;

use crate::server::Shared;

/// Before the first look at what others have claimed.
const FIRST_LOOK: Duration = Duration::from_secs(2);
/// Between two looks at most: a look lists every claim of the cluster.
const LAST_LOOK: Duration = Duration::from_secs(300);
/// Longest that a look may take.
const LOOK_LIMIT: Duration = Duration::from_secs(10);

/// Gives back what is left of sessions that other groups have, until `stopping`.
pub(super) async fn give_back_taken(shared: Arc<Shared>, store: Arc<dyn Store>, stopping: CancellationToken) {
    let mut pause = FIRST_LOOK;
    loop {
        // A random part of up to half less, so that groups which lost the store together do not list it together.
        let wait = pause.mul_f64(1.0 - rand::random::<f64>() / 2.0);
        // Cancel-safe: both only wait.
        tokio::select! {
            () = stopping.cancelled() => return,
            () = tokio::time::sleep(wait) => {}
        }
        let standing = shared.registration.standing();
        let left = shared.sessions.left_over(standing.term);
        if left.is_empty() || !standing.valid(shared.clock.now()) {
            pause = FIRST_LOOK;
            continue;
        }
        pause = (pause * 2).min(LAST_LOOK);
        // Cancel-safe: a look that is dropped is done again, and dropping a watch leaves nothing behind.
        let looked = tokio::select! {
            () = stopping.cancelled() => return,
            looked = tokio::time::timeout(LOOK_LIMIT, look(&*store)) => looked,
        };
        let Ok(Some(snapshot)) = looked else { continue };
        for key in taken(left, &snapshot.claims, &shared.group) {
            give_back(&shared, &key).await;
        }
    }
}

/// Everything there is in the store; `None` where it does not say.
pub(super) async fn look(store: &dyn Store) -> Option<Snapshot> {
    let mut watch = store.watch().await.ok()?;
    match watch.next().await?.ok()?.change {
        Change::Snapshot(snapshot) => Some(snapshot),
        Change::Events(_) => None,
    }
}

/// Which of the sessions that are left over another group has.
fn taken(left: Vec<SessionKey>, claims: &[(SessionKey, Owner)], own: &GroupId) -> Vec<SessionKey> {
    let others: HashSet<_> =
        claims.iter().filter(|(_, owner)| owner.group != *own).map(|(session, _)| session).collect();
    left.into_iter().filter(|session| others.contains(session)).collect()
}

async fn give_back(shared: &Arc<Shared>, key: &SessionKey) {
    // One that a turn has is claimed by it, or given back by it.
    let Some(held) = shared.sessions.try_checkout(key) else { return };
    if shared.owns(&held) {
        return;
    }
    shared.give_rows_back(key).await;
    held.forget();
    tracing::info!(session = %key.session, "another group has the session: gave back what was left of it");
}

#[cfg(test)]
mod tests {
    use hawser_common::{Epoch, SessionId, TenantId};

    use super::*;

    #[test]
    fn only_what_another_group_has_is_given_back() {
        let key =
            |name: &str| SessionKey { tenant: TenantId::single(), session: SessionId::parse(name).unwrap() };
        let owner = |group: &str| Owner { group: GroupId::parse(group).unwrap(), epoch: Epoch(1) };
        let claims = [(key("a"), owner("other")), (key("b"), owner("own")), (key("d"), owner("other"))];
        let own = GroupId::parse("own").unwrap();
        assert_eq!(taken(vec![key("a"), key("b"), key("c")], &claims, &own), [key("a")]);
        assert!(taken(vec![], &claims, &own).is_empty());
    }
}
