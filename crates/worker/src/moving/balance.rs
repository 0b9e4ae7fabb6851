//! The task that gives sessions away while others are less loaded, and the answer to those that want to give one.
//!
//! It looks at its own numbers every period. Only where turns wait or the pool is nearly full does it ask the driver
//! what sessions have, and begin to watch the store; what it then does is decided by [`Rebalancer`]. Promises at most
//! one move at a time each way, and none while the group drains or may have lost its lease.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hawser_common::GroupId;
use hawser_common::group::GroupRecord;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use super::BalanceOptions;
use super::pace::Pace;
use super::rebalance::{Candidate, Own, Proposal, Rebalancer, Stay, Terms};
use super::receiver::ImportError;
use super::sender::give;
use crate::server::Shared;
use crate::turn::{TurnEnd, TurnError};

/// What a group knows for the sake of balance.
#[derive(Debug)]
pub(crate) struct Balance {
    options: BalanceOptions,
    /// Turns that may run at once.
    places: usize,
    rebalancer: Mutex<Rebalancer>,
    pace: Mutex<Pace>,
    /// One comes at a time, so that each is judged by all that came before.
    coming: Arc<Semaphore>,
}

fn lock<T>(held: &Mutex<T>) -> MutexGuard<'_, T> {
    held.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Balance {
    pub(super) fn new(options: &BalanceOptions, places: usize, row_bytes: u64) -> Self {
        Self {
            options: options.clone(),
            places,
            rebalancer: Mutex::new(Rebalancer::new(options.bounds())),
            pace: Mutex::new(Pace::new(options.bytes_per_s(), row_bytes)),
            coming: Arc::new(Semaphore::new(1)),
        }
    }

    /// A turn went well.
    pub(crate) fn turn_ended(&self, end: &TurnEnd) {
        if self.options.enabled {
            lock(&self.pace).turn(end);
        }
    }

    pub(super) fn pace(&self) -> MutexGuard<'_, Pace> {
        lock(&self.pace)
    }

    pub(super) fn rebalancer(&self) -> MutexGuard<'_, Rebalancer> {
        lock(&self.rebalancer)
    }
}

/// Whether a session that another group wants to give may come; for as long as the answer is held no other one may.
pub(super) async fn accept(shared: &Shared, terms: &Terms) -> Result<OwnedSemaphorePermit, ImportError> {
    let balance = &shared.moves.balance;
    if !balance.options.enabled {
        return Err(ImportError::Disabled);
    }
    let permit = Arc::clone(&balance.coming).try_acquire_owned().map_err(|_| ImportError::Full)?;
    let own = own(shared).await?;
    balance.rebalancer().accept(&own, terms, shared.clock.now())?;
    Ok(permit)
}

/// What the group has, exactly.
async fn own(shared: &Shared) -> Result<Own, TurnError> {
    let weights = shared.driver.weigh().await?;
    let rows: HashMap<_, _> =
        weights.sessions.into_iter().map(|weight| (weight.key, (weight.rows, weight.needs))).collect();
    let now = shared.clock.now();
    let term = shared.registration.standing().term;
    let mut sessions = shared.sessions.summaries(|_| true);
    sessions.retain(|(_, summary)| summary.claimed == Some(term));
    let sessions = sessions.into_iter().map(|(key, summary)| {
        // Without rows or a log it is computed from its tokens.
        let (rows, needs) = rows.get(&key).copied().unwrap_or((0, summary.tokens));
        let here = summary.came.map(|came| now.since(came));
        Candidate { key, rows, needs, idle: now.since(summary.last_used), here, busy: summary.busy }
    });
    let sessions = sessions.collect();
    Ok(Own { capacity: weights.capacity, places: shared.moves.balance.places, sessions })
}

/// Gives sessions away, one each period at most, until the group drains or stops.
pub(crate) async fn keep_balance(shared: Arc<Shared>, stopping: CancellationToken) {
    let options = &shared.moves.balance.options;
    if !(options.enabled && shared.moves.enabled) {
        return;
    }
    let (period, draining) = (options.period(), shared.draining.clone());
    loop {
        // Cancel-safe: all of them only wait.
        tokio::select! {
            () = stopping.cancelled() => return,
            () = draining.cancelled() => return,
            () = tokio::time::sleep(period) => {}
        }
        match propose(&shared).await {
            Ok((proposal, target)) => carry_out(&shared, &proposal, &target).await,
            Err(Stay::Calm) => {}
            Err(stay) => tracing::debug!(%stay, "no session moves"),
        }
    }
}

async fn propose(shared: &Arc<Shared>) -> Result<(Proposal, GroupRecord), Stay> {
    let balance = &shared.moves.balance;
    let capacity = *shared.driver.capacity().borrow();
    let looks = balance.rebalancer().sample(&capacity);
    if !looks || !shared.registration.valid(shared.clock.now()) {
        return Err(Stay::Calm);
    }
    let mut others = shared.moves.peers.groups(&shared.tasks).await;
    others.retain(|group| group.id != shared.group && group.model == shared.model);
    balance.rebalancer().sample_others(&others, shared.clock.now());
    let own = own(shared).await.map_err(|_| Stay::Calm)?;
    let speeds = balance.pace().speeds();
    let proposal = balance.rebalancer().decide(&own, &others, &speeds, shared.clock.now())?;
    let target = find(others, &proposal.target).ok_or(Stay::Alone)?;
    Ok((proposal, target))
}

fn find(groups: Vec<GroupRecord>, id: &GroupId) -> Option<GroupRecord> {
    groups.into_iter().find(|group| group.id == *id)
}

async fn carry_out(shared: &Arc<Shared>, proposal: &Proposal, target: &GroupRecord) {
    let Proposal { session, gain_s, cost_s, .. } = proposal;
    let given = give(shared, proposal, target).await;
    let (now, mut rebalancer) = (shared.clock.now(), shared.moves.balance.rebalancer());
    match given {
        Ok(owner) => {
            tracing::info!(session = %session.session, to = %owner.group, gain_s, cost_s, "gave a session away");
            rebalancer.gave(proposal, now);
        }
        Err(error) => {
            let to = &target.id;
            tracing::info!(session = %session.session, %to, %error, "a session was not given away");
            if error.is_released() {
                rebalancer.gave(proposal, now);
            }
            if error.lies_there() {
                rebalancer.refused(&target.id, now);
            }
        }
    }
}
