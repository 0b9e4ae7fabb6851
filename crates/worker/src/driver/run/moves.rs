//! The driver's part of moving sessions: rows out and in, between two steps.

use std::sync::Arc;

use std::sync::Weak;

use hawser_common::SessionKey;
use hawser_common::clock::Tick;

use super::Driver;
use crate::driver::moves::{Arriving, Left, LeftParts, MoveCommand, MoveError};
use crate::ranks::{Leader, RankError};
use crate::scheduler::{ArrivalId, StepPlan};
use crate::turn::TurnError;

/// A session that moves, for as long as somebody holds the other end.
pub(super) struct Moving {
    alive: Weak<()>,
    what: Which,
}

enum Which {
    Leaving(SessionKey),
    Arriving(ArrivalId),
}

impl Driver {
    pub(super) fn obey_move(&mut self, command: MoveCommand, now: Tick) {
        match command {
            MoveCommand::Leave(key, alive, done) => {
                let _ = done.send(self.leave(&key, alive));
            }
            MoveCommand::Read(key, rows, done) => {
                let slots = self.scheduler.leaving_slots(&key, rows).ok_or(MoveError::Gone);
                let read = slots.and_then(|slots| self.with_leader(|leader| leader.read_rows(slots)));
                let _ = done.send(read);
            }
            MoveCommand::Arrive(arriving, alive, done) => {
                let _ = done.send(self.arrive(*arriving, alive, now));
            }
            MoveCommand::Write(id, first, bytes, done) => {
                let _ = done.send(self.write_rows(id, first, bytes));
            }
            MoveCommand::Commit(id, key, done) => {
                let committed = self.scheduler.commit_arrival(id, key);
                let _ = done.send(if committed { Ok(()) } else { Err(MoveError::Gone) });
            }
            MoveCommand::Sweep => self.sweep(),
        }
    }

    /// Lets sessions stay, and forgets those that do not arrive, whose other end is gone.
    pub(super) fn sweep(&mut self) {
        let Self { moving, scheduler, .. } = self;
        moving.retain(|moving| {
            let held = moving.alive.strong_count() > 0;
            match &moving.what {
                _ if held => {}
                Which::Leaving(key) => scheduler.stay(key),
                Which::Arriving(id) => {
                    scheduler.drop_arrival(*id);
                }
            }
            held
        });
    }

    fn leave(&mut self, key: &SessionKey, alive: Weak<()>) -> Result<Option<Box<LeftParts>>, MoveError> {
        // A request that was taken back is taken back on the ranks too before its memory is read.
        self.flush()?;
        let Some(leaving) = self.scheduler.leave(key) else { return Ok(None) };
        self.moving.push(Moving { alive, what: Which::Leaving(key.clone()) });
        let memory = match leaving.memory {
            Some(id) => self.with_leader(|leader| leader.read_memory(id))?,
            None => None,
        };
        let row_bytes = self.with_leader(|leader| Ok(leader.sizes().0))?;
        Ok(Some(Box::new(LeftParts(Left { state: leaving.state, memory, row_bytes }))))
    }

    fn arrive(
        &mut self,
        arriving: Arriving,
        alive: Weak<()>,
        now: Tick,
    ) -> Result<(ArrivalId, usize), MoveError> {
        let Arriving { key, state, memory, idle, vocabulary } = arriving;
        let (row_bytes, numbers) = self.with_leader(|leader| Ok(leader.sizes()))?;
        if memory.as_ref().is_some_and(|memory| !memory.fits(numbers, state.tokens.len())) {
            return Err(MoveError::Memory);
        }
        let last_used = Tick(now.0.saturating_sub(idle));
        let history = (last_used, memory.is_some());
        let (id, remembers) = self.scheduler.arrive(state, key.tenant, history, vocabulary)?;
        self.moving.push(Moving { alive, what: Which::Arriving(id) });
        // Moves into the archive that still wait read slots that are this session's now.
        self.flush()?;
        if let Some((id, memory)) = remembers.zip(memory) {
            self.with_leader(|leader| leader.write_memory(id, memory))?;
        }
        Ok((id, row_bytes))
    }

    fn write_rows(&mut self, id: ArrivalId, first: usize, bytes: Vec<u8>) -> Result<(), MoveError> {
        let (row_bytes, _) = self.with_leader(|leader| Ok(leader.sizes()))?;
        let (found, rows) = (bytes.len(), bytes.len() / row_bytes);
        let end = first.checked_add(rows).filter(|_| rows * row_bytes == found);
        let end = end.ok_or(MoveError::Rows { found, row_bytes })?;
        let slots = self.scheduler.arriving_slots(id, first..end).ok_or(MoveError::Gone)?;
        self.with_leader(|leader| leader.write_rows(slots, bytes))
    }

    /// Has the ranks do what waits for the next plan.
    fn flush(&mut self) -> Result<(), MoveError> {
        let changes = self.scheduler.take_changes();
        if changes.is_empty() {
            return Ok(());
        }
        let plan = Arc::new(StepPlan { changes, ..StepPlan::default() });
        self.with_leader(|leader| leader.step(&plan).map(drop))
    }

    fn with_leader<T>(
        &mut self,
        call: impl FnOnce(&mut Leader) -> Result<T, RankError>,
    ) -> Result<T, MoveError> {
        let leader = self.leader.as_mut().ok_or(TurnError::GroupDown)?;
        call(leader).map_err(|error| {
            self.fail_group(&error);
            MoveError::Driver(TurnError::GroupFailed { reason: error.to_string() })
        })
    }
}
