//! What follows a prompt: the scores of a prune and of a revival, and what becomes of them.

use hawser_kv::retention::Exchange;

use super::Driver;
use crate::ranks::{Phase, RankError, Scoring};
use crate::scheduler::SequenceId;
use crate::turn::PruneTime;

/// Prunes of one turn that are told one by one: a long prompt inside a small budget may have hundreds.
const MAX_PRUNES_TOLD: usize = 32;

impl Driver {
    /// Scores a sequence's history, evicts what the policy does not keep, and brings back what the request asks for.
    pub(super) fn prune(&mut self, id: SequenceId) -> Result<(), RankError> {
        let (started, before) = (self.clock.now(), self.scheduler.kept(id));
        let scores = match self.scheduler.scoring(id) {
            Some(scoring) => self.score(scoring)?,
            None => None,
        };
        self.scheduler.settle(id, scores);
        let mut exchanged = Exchange::default();
        if let Some(scoring) = self.scheduler.revival(id) {
            // What the prune moved to the archive is scored there.
            let scores = self.score(scoring)?;
            exchanged = self.scheduler.settle_revival(id, scores.as_deref());
            let (revived, is_refilling) = (exchanged.revived.len(), self.scheduler.is_refilling(id));
            tracing::debug!(sequence = id.0, revived, is_refilling, "a revival was decided");
        }
        let (ended, after) = (self.clock.now(), self.scheduler.kept(id));
        self.metrics.pruned(ended.since(started));
        if let Some(turn) = self.running.get_mut(&id) {
            turn.pruning += ended.since(started);
            if turn.prunes.len() < MAX_PRUNES_TOLD {
                let evicted = after.evicted.saturating_sub(before.evicted);
                let revived = exchanged.revived.len();
                turn.prunes.push(PruneTime { from: started, to: ended, evicted, revived });
            }
        }
        Ok(())
    }

    fn score(&mut self, scoring: Scoring) -> Result<Option<Vec<i64>>, RankError> {
        let changes = self.scheduler.take_changes();
        self.enter(Phase::Scoring);
        let Some(leader) = &mut self.leader else { return Ok(None) };
        let scores = leader.score(changes, scoring)?;
        self.done();
        if let Some(scores) = scores.as_ref().filter(|scores| scores.non_finite > 0) {
            tracing::warn!(count = scores.non_finite, "scores were no numbers and count as none");
        }
        Ok(scores.map(|scores| scores.values))
    }
}
