//! What to do after a group refused a call or did not answer. Pure; time is an argument.
//!
//! | what came back | from the owner | from a chosen group |
//! |---|---|---|
//! | stale owner | ask the one it names, else look again | the same |
//! | unavailable, or no connection | wait for it until its lease ends, within limits | another group |
//! | exhausted | passed on | another group |
//! | connection broke after sending | as unavailable if the call can be repeated, else an error | the same |
//! | anything else | passed on | passed on |
//!
//! Bounded: by the number of groups asked, of redirects, and by the time an owner is waited for.

use std::time::Duration;

use hawser_common::clock::Tick;
use hawser_common::group::Owner;
use hawser_common::{ErrorCode, GroupId};
use hawser_proto::fault::{Fault, Origin};

use crate::error::RouteError;

/// Most redirects of one call.
pub(crate) const MAX_REDIRECTS: u32 = 4;
/// Pause before looking again when nobody knows the owner yet.
pub(crate) const SETTLE: Duration = Duration::from_millis(50);
const FIRST_BACKOFF: Duration = Duration::from_millis(50);
const MAX_BACKOFF: Duration = Duration::from_secs(1);

/// What it means to send a call again whose fate is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Replay {
    /// The outcome is the same.
    Safe,
    /// A turn that carries only what is new: it might be added twice. The caller resends the whole.
    Delta,
    /// It might be done twice.
    Never,
}

/// Bounds of one call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Most groups asked that do not own the session.
    pub(crate) groups: u32,
    /// Longest wait for an owner that does not answer.
    pub(crate) owner_wait: Duration,
}

/// What comes next.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Next {
    /// Choose again.
    Choose,
    /// Ask this owner.
    Ask(Owner),
    /// Choose again after this long, or as soon as the session's owner changes.
    Wait(Duration),
    Fail(RouteError),
}

/// The history of one call.
#[derive(Debug)]
pub(crate) struct Attempts {
    limits: Limits,
    replay: Replay,
    redirects: u32,
    excluded: Vec<GroupId>,
    /// Why the last group that was asked by choice refused.
    refusal: Option<Fault>,
    silent_since: Option<Tick>,
    silences: u32,
}

enum Answer {
    Stale,
    /// Nothing happened.
    Silent,
    /// Whether something happened is not known.
    Broken,
    Full,
    Final,
}

impl Attempts {
    pub(crate) fn new(limits: Limits, replay: Replay) -> Self {
        let excluded = Vec::new();
        Self { limits, replay, redirects: 0, excluded, refusal: None, silent_since: None, silences: 0 }
    }

    /// Groups that are not to be chosen again.
    pub(crate) fn excluded(&self) -> &[GroupId] {
        &self.excluded
    }

    /// What to fail with when there is no group left to choose: what the last one said, if that is known.
    pub(crate) fn exhausted(self, otherwise: RouteError) -> RouteError {
        match (otherwise, self.refusal) {
            (RouteError::NoneLeft { .. }, Some(refusal)) => RouteError::Worker(refusal),
            (otherwise, _) => otherwise,
        }
    }

    /// After `asked` failed with `fault`; `held` says that it was asked as the session's owner.
    pub(crate) fn after(&mut self, asked: &Owner, held: bool, fault: Fault, now: Tick) -> Next {
        let group = asked.group.clone();
        match answer(&fault) {
            Answer::Final => Next::Fail(RouteError::Worker(fault)),
            Answer::Full if held => Next::Fail(RouteError::Worker(fault)),
            Answer::Full => self.another(group, fault),
            Answer::Stale => self.redirect(asked, fault),
            Answer::Broken if self.replay == Replay::Never => {
                Next::Fail(RouteError::Broken { group, reason: fault.message })
            }
            Answer::Broken if self.replay == Replay::Delta => {
                Next::Fail(RouteError::BrokenDelta { group, reason: fault.message })
            }
            Answer::Broken | Answer::Silent if held => self.wait_for(group, fault, now),
            Answer::Broken | Answer::Silent => self.another(group, fault),
        }
    }

    fn another(&mut self, group: GroupId, fault: Fault) -> Next {
        self.excluded.push(group);
        if u32::try_from(self.excluded.len()).is_ok_and(|asked| asked < self.limits.groups) {
            self.refusal = Some(fault);
            Next::Choose
        } else {
            Next::Fail(RouteError::Worker(fault))
        }
    }

    fn redirect(&mut self, asked: &Owner, fault: Fault) -> Next {
        self.redirects += 1;
        if self.redirects > MAX_REDIRECTS {
            return Next::Fail(RouteError::Unsettled { redirects: self.redirects });
        }
        match fault.owner {
            Some(owner) if owner != *asked => Next::Ask(owner),
            _ => Next::Wait(SETTLE),
        }
    }

    fn wait_for(&mut self, group: GroupId, fault: Fault, now: Tick) -> Next {
        let since = *self.silent_since.get_or_insert(now);
        if now.since(since) >= self.limits.owner_wait {
            return Next::Fail(RouteError::OwnerSilent { group, reason: fault.message });
        }
        let wait = FIRST_BACKOFF * 2u32.saturating_pow(self.silences.min(10));
        self.silences += 1;
        Next::Wait(wait.min(MAX_BACKOFF))
    }
}

fn answer(fault: &Fault) -> Answer {
    match (fault.origin, fault.code) {
        (Origin::Answered, ErrorCode::StaleOwner) => Answer::Stale,
        (Origin::Answered, ErrorCode::Unavailable) | (Origin::Connect, _) => Answer::Silent,
        (Origin::Answered, ErrorCode::Exhausted) => Answer::Full,
        (Origin::Answered, _) => Answer::Final,
        // The caller's own deadline, and what the transport refuses by rule, such as a message that is too large.
        (Origin::Transport, ErrorCode::Deadline | ErrorCode::Invalid | ErrorCode::Exhausted) => Answer::Final,
        (Origin::Transport, _) => Answer::Broken,
    }
}

#[cfg(test)]
mod tests {
    use hawser_common::Epoch;

    use super::*;

    const LIMITS: Limits = Limits { groups: 3, owner_wait: Duration::from_secs(10) };

    fn owner(id: &str) -> Owner {
        Owner { group: GroupId::parse(id).unwrap(), epoch: Epoch(1) }
    }

    fn fault(origin: Origin, code: ErrorCode, owner: Option<Owner>) -> Fault {
        Fault { code, message: "x".into(), owner, retry_after: None, origin }
    }

    fn said(code: ErrorCode) -> Fault {
        fault(Origin::Answered, code, None)
    }

    fn at(seconds: u64) -> Tick {
        Tick(Duration::from_secs(seconds))
    }

    #[test]
    fn a_chosen_group_that_cannot_is_replaced_until_the_limit() {
        let mut attempts = Attempts::new(LIMITS, Replay::Safe);
        let no = said(ErrorCode::Exhausted);
        assert_eq!(attempts.after(&owner("a"), false, no.clone(), at(0)), Next::Choose);
        let dead = fault(Origin::Connect, ErrorCode::Unavailable, None);
        assert_eq!(attempts.after(&owner("b"), false, dead, at(0)), Next::Choose);
        assert_eq!(attempts.excluded(), &[owner("a").group, owner("b").group]);
        assert_eq!(attempts.after(&owner("c"), false, no.clone(), at(0)), Next::Fail(RouteError::Worker(no)));
    }

    #[test]
    fn with_no_group_left_the_last_refusal_is_the_answer() {
        let mut attempts = Attempts::new(LIMITS, Replay::Safe);
        assert_eq!(attempts.after(&owner("a"), false, said(ErrorCode::Exhausted), at(0)), Next::Choose);
        let error = attempts.exhausted(RouteError::NoneLeft { tried: 1 });
        assert_eq!(error, RouteError::Worker(said(ErrorCode::Exhausted)));
        let none = RouteError::NoneLeft { tried: 0 };
        assert_eq!(Attempts::new(LIMITS, Replay::Safe).exhausted(none.clone()), none);
    }

    #[test]
    fn a_redirect_goes_to_the_owner_named_and_redirects_are_bounded() {
        let mut attempts = Attempts::new(LIMITS, Replay::Safe);
        let stale = |id| fault(Origin::Answered, ErrorCode::StaleOwner, Some(owner(id)));
        assert_eq!(attempts.after(&owner("a"), false, stale("b"), at(0)), Next::Ask(owner("b")));
        assert_eq!(attempts.after(&owner("b"), true, stale("a"), at(0)), Next::Ask(owner("a")));
        assert_eq!(attempts.after(&owner("a"), true, stale("a"), at(0)), Next::Wait(SETTLE));
        assert_eq!(attempts.after(&owner("a"), true, said(ErrorCode::StaleOwner), at(0)), Next::Wait(SETTLE));
        let end = attempts.after(&owner("a"), true, stale("b"), at(0));
        assert_eq!(end, Next::Fail(RouteError::Unsettled { redirects: 5 }));
    }

    #[test]
    fn a_silent_owner_is_waited_for_and_not_for_ever() {
        let mut attempts = Attempts::new(LIMITS, Replay::Delta);
        let dead = || fault(Origin::Connect, ErrorCode::Unavailable, None);
        let waits: Vec<_> = [0, 1, 2, 3, 4, 9]
            .map(|s| match attempts.after(&owner("a"), true, dead(), at(s)) {
                Next::Wait(wait) => wait,
                other => panic!("{other:?}"),
            })
            .to_vec();
        assert!(waits.windows(2).all(|pair| pair[0] <= pair[1]) && waits[5] == MAX_BACKOFF, "{waits:?}");
        let end = attempts.after(&owner("a"), true, dead(), at(10));
        assert!(matches!(end, Next::Fail(RouteError::OwnerSilent { .. })), "{end:?}");
    }

    #[test]
    fn what_broke_after_sending_is_repeated_only_where_that_is_safe() {
        let broke = || fault(Origin::Transport, ErrorCode::Unavailable, None);
        let check = |replay, held| Attempts::new(LIMITS, replay).after(&owner("a"), held, broke(), at(0));
        assert_eq!(check(Replay::Safe, false), Next::Choose);
        assert!(matches!(check(Replay::Safe, true), Next::Wait(_)));
        for held in [false, true] {
            assert!(matches!(check(Replay::Never, held), Next::Fail(RouteError::Broken { .. })));
            assert!(matches!(check(Replay::Delta, held), Next::Fail(RouteError::BrokenDelta { .. })));
        }
    }

    #[test]
    fn what_a_worker_decided_is_passed_on() {
        for code in [ErrorCode::Invalid, ErrorCode::NotFound, ErrorCode::SessionLost, ErrorCode::Internal] {
            for held in [false, true] {
                let next = Attempts::new(LIMITS, Replay::Safe).after(&owner("a"), held, said(code), at(0));
                assert_eq!(next, Next::Fail(RouteError::Worker(said(code))));
            }
        }
        let full = said(ErrorCode::Exhausted);
        let next = Attempts::new(LIMITS, Replay::Safe).after(&owner("a"), true, full.clone(), at(0));
        assert_eq!(next, Next::Fail(RouteError::Worker(full)));
    }
}
