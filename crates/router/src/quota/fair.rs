//! Who gets the router's next free place: queues per tenant, served in turn. Pure; time is an argument.
//!
//! A tenant's calls run up to its own limit and wait behind one another. Free places go to the tenants that wait and may
//! run more, in turn, `weight` places at a time, so that none waits for more than one round of the others however many
//! calls those send. Everything is counted and bounded: calls that run, by the router's and the tenant's limit; calls
//! that wait, by the tenant's limit and [`MAX_QUEUED`].

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use hawser_common::TenantId;
use hawser_common::clock::Tick;

use super::Quota;
use super::bucket::Bucket;

/// Most calls that wait at one router.
const MAX_QUEUED: usize = 1 << 16;
/// Tenants that are remembered before those that do nothing are forgotten.
const MAX_LANES: usize = 1 << 14;

/// A waiting call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Ticket(u64);

/// What becomes of a call that arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    Admitted,
    Waits(Ticket),
    TooSoon { retry_after: Duration },
    QueueFull { queued: usize },
}

#[derive(Debug)]
pub(crate) struct Fair {
    limit: usize,
    running: usize,
    queued: usize,
    lanes: HashMap<TenantId, Lane>,
    /// Tenants with waiting calls, each once; the first one is next.
    turns: VecDeque<TenantId>,
    next: u64,
}

/// What a tenant does.
#[derive(Debug)]
struct Lane {
    quota: Quota,
    bucket: Bucket,
    running: u32,
    waiting: VecDeque<Ticket>,
    /// The tenant is among `turns`.
    in_turns: bool,
    /// Places that it may still take before the turn goes on.
    credit: u32,
}

impl Lane {
    fn new(quota: &Quota) -> Self {
        let (bucket, waiting) = (Bucket::default(), VecDeque::new());
        Self { quota: quota.clone(), bucket, running: 0, waiting, in_turns: false, credit: 0 }
    }

    fn may_run(&self) -> bool {
        self.running < self.quota.max_in_flight
    }

    fn is_idle(&self, now: Tick) -> bool {
        self.running == 0 && self.waiting.is_empty() && !self.in_turns && self.bucket.is_full(now)
    }
}

impl Fair {
    pub(crate) fn new(limit: usize) -> Self {
        Self { limit, running: 0, queued: 0, lanes: HashMap::new(), turns: VecDeque::new(), next: 0 }
    }

    pub(crate) fn running(&self) -> usize {
        self.running
    }

    pub(crate) fn queued(&self) -> usize {
        self.queued
    }

    /// A call arrives. The tenant's limits are those of now: they may have been changed since its last call.
    pub(crate) fn enter(&mut self, tenant: &TenantId, quota: &Quota, now: Tick) -> Entry {
        if self.lanes.len() >= MAX_LANES {
            self.lanes.retain(|_, lane| !lane.is_idle(now));
        }
        let lane = self.lanes.entry(tenant.clone()).or_insert_with(|| Lane::new(quota));
        if lane.quota != *quota {
            lane.quota = quota.clone();
        }
        if let Err(retry_after) = lane.bucket.take(&lane.quota, now) {
            return Entry::TooSoon { retry_after };
        }
        if self.running < self.limit && lane.waiting.is_empty() && lane.may_run() {
            lane.running += 1;
            self.running += 1;
            return Entry::Admitted;
        }
        let queued = lane.waiting.len();
        if queued >= lane.quota.max_queued as usize || self.queued >= MAX_QUEUED {
            return Entry::QueueFull { queued };
        }
        let ticket = Ticket(self.next);
        self.next += 1;
        lane.waiting.push_back(ticket);
        self.queued += 1;
        if !lane.in_turns {
            lane.in_turns = true;
            self.turns.push_back(tenant.clone());
        }
        Entry::Waits(ticket)
    }

    /// A running call of `tenant` ended. Gives the calls that run from now on.
    pub(crate) fn leave(&mut self, tenant: &TenantId, now: Tick) -> Vec<Ticket> {
        let lane = self.lanes.get_mut(tenant).expect("a tenant with a running call has a lane");
        lane.running = lane.running.checked_sub(1).expect("a call ends once");
        self.running = self.running.checked_sub(1).expect("a call ends once");
        let admitted = self.admit();
        if self.lanes.get(tenant).is_some_and(|lane| lane.is_idle(now)) {
            self.lanes.remove(tenant);
        }
        admitted
    }

    /// A waiting call gives up. `false` where it is not waiting any more: it runs, and has to leave.
    pub(crate) fn abandon(&mut self, tenant: &TenantId, ticket: Ticket) -> bool {
        let Some(lane) = self.lanes.get_mut(tenant) else { return false };
        let Some(place) = lane.waiting.iter().position(|waiting| *waiting == ticket) else { return false };
        lane.waiting.remove(place);
        self.queued -= 1;
        // Its tenant stays among the turns if it was there for this call only: the next round passes over it.
        true
    }

    /// Gives free places away.
    fn admit(&mut self) -> Vec<Ticket> {
        let mut admitted = Vec::new();
        let mut passed = 0;
        while self.running < self.limit && passed < self.turns.len() {
            let Some(tenant) = self.turns.pop_front() else { break };
            let Some(lane) = self.lanes.get_mut(&tenant) else { continue };
            if !lane.may_run() && !lane.waiting.is_empty() {
                lane.credit = 0;
                self.turns.push_back(tenant);
                passed += 1;
                continue;
            }
            let Some(ticket) = lane.waiting.pop_front() else {
                (lane.in_turns, lane.credit) = (false, 0);
                continue;
            };
            if lane.credit == 0 {
                lane.credit = lane.quota.weight;
            }
            lane.credit -= 1;
            lane.running += 1;
            self.running += 1;
            self.queued -= 1;
            admitted.push(ticket);
            passed = 0;
            if lane.waiting.is_empty() {
                (lane.in_turns, lane.credit) = (false, 0);
            } else if lane.credit > 0 {
                self.turns.push_front(tenant);
            } else {
                self.turns.push_back(tenant);
            }
        }
        admitted
    }
}

#[cfg(test)]
#[path = "fair_tests.rs"]
mod tests;
