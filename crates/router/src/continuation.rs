//! What a client has of a turn, and the memory that it takes to go on with it elsewhere. Pure.
//!
//! A turn goes on from the last token that its client has. Text may lag behind tokens, since the worker holds back what
//! may become a stop string or is half a character; that is a function of the tokens, so the next group derives it from
//! them, and the length of the text that was delivered is there to check it.
//!
//! Bounded: all turns together keep no more than a budget. A turn that finds no room in it cannot go on elsewhere.

use std::sync::Arc;

use hawser_common::ErrorCode;
use hawser_proto::Fault;
use hawser_proto::fault::Origin;
use hawser_proto::v1::generate_response::Frame;
use hawser_proto::v1::{ContinueFrom, GenerateResponse, Placed};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

const KIB_PER_MIB: u64 = 1 << 10;
/// Tokens that one further unit of the budget covers: their ids take four bytes each.
const TOKENS_PER_KIB: usize = (1 << 10) / 4;
/// Units taken at a time.
const STEP_KIB: u32 = 4;

/// How turns of this router go on after a loss.
#[derive(Clone, Debug)]
pub(crate) struct Continuations {
    /// Most of one turn.
    pub(crate) most: u32,
    memory: Arc<Semaphore>,
}

impl Continuations {
    pub(crate) fn new(most: u32, memory_mib: u64) -> Self {
        let kib = usize::try_from(memory_mib * KIB_PER_MIB).unwrap_or(Semaphore::MAX_PERMITS);
        Self { most, memory: Arc::new(Semaphore::new(kib.min(Semaphore::MAX_PERMITS))) }
    }

    /// Room for a request of so many bytes; `None` where there is none, or no turn goes on.
    pub(crate) fn keep(&self, request_bytes: usize) -> Option<Kept> {
        let kib = u32::try_from(request_bytes >> 10).ok()?.checked_add(STEP_KIB)?;
        let room = Arc::clone(&self.memory).try_acquire_many_owned(kib).ok().filter(|_| self.most > 0)?;
        Some(Kept { room, memory: Arc::clone(&self.memory), covered: STEP_KIB as usize * TOKENS_PER_KIB })
    }
}

/// A turn's part of the budget, given back when dropped.
#[derive(Debug)]
pub(crate) struct Kept {
    room: OwnedSemaphorePermit,
    memory: Arc<Semaphore>,
    /// Tokens that it has room for.
    covered: usize,
}

impl Kept {
    /// Whether there is room for so many tokens, taking more of the budget if need be.
    pub(crate) fn covers(&mut self, tokens: usize) -> bool {
        while self.covered < tokens {
            let Ok(more) = Arc::clone(&self.memory).try_acquire_many_owned(STEP_KIB) else { return false };
            self.room.merge(more);
            self.covered += STEP_KIB as usize * TOKENS_PER_KIB;
        }
        true
    }
}

/// What a client has of its turn.
#[derive(Debug, Default)]
pub(crate) struct Delivered {
    pub(crate) frames: u64,
    pub(crate) finished: bool,
    tokens: Vec<u32>,
    text_bytes: u64,
}

impl Delivered {
    /// Counts a frame; remembers its tokens where the turn may go on elsewhere.
    pub(crate) fn count(&mut self, frame: &GenerateResponse, remember: bool) {
        self.frames += 1;
        match &frame.frame {
            Some(Frame::Chunk(chunk)) if remember => {
                self.tokens.extend_from_slice(&chunk.token_ids);
                self.text_bytes += chunk.text.len() as u64;
            }
            Some(Frame::Finished(_)) => self.finished = true,
            Some(Frame::Chunk(_) | Frame::Placed(_)) | None => {}
        }
    }

    pub(crate) fn tokens(&self) -> usize {
        self.tokens.len()
    }

    /// Where another group is to go on.
    pub(crate) fn point(&self) -> ContinueFrom {
        ContinueFrom { token_ids: self.tokens.clone(), text_bytes: self.text_bytes }
    }

    /// Nothing will be gone on with.
    pub(crate) fn forget(&mut self) {
        self.tokens = Vec::new();
    }

    /// The placement with which a group takes the turn up; `None` if it begins anywhere else. A worker of an earlier
    /// version does not know what it was asked and would begin anew.
    pub(crate) fn taken_up(&self, first: Option<GenerateResponse>) -> Option<Placed> {
        match first.and_then(|response| response.frame) {
            Some(Frame::Placed(placed)) if placed.continued_tokens as usize == self.tokens.len() => {
                Some(placed)
            }
            _ => None,
        }
    }
}

/// Whether a stream that failed so is one that another group may go on with: its group is gone, or says that nothing is
/// left of the turn.
pub(crate) fn is_loss(fault: &Fault) -> bool {
    match (fault.origin, fault.code) {
        (Origin::Answered, code) => code == ErrorCode::Unavailable,
        // The caller's own deadline, and what the transport refuses by rule.
        (_, ErrorCode::Deadline | ErrorCode::Invalid | ErrorCode::Exhausted) => false,
        (Origin::Connect | Origin::Transport, _) => true,
    }
}

#[cfg(test)]
mod tests {
    use hawser_proto::v1::Chunk;

    use super::*;

    fn chunk(ids: &[u32], text: &str) -> GenerateResponse {
        let chunk = Chunk { text: text.into(), token_ids: ids.to_vec(), ..Default::default() };
        GenerateResponse { frame: Some(Frame::Chunk(chunk)) }
    }

    fn placed(continued_tokens: u32) -> Option<GenerateResponse> {
        Some(GenerateResponse {
            frame: Some(Frame::Placed(Placed { continued_tokens, ..Default::default() })),
        })
    }

    #[test]
    fn what_was_delivered_is_where_it_goes_on_and_nowhere_else() {
        let mut delivered = Delivered::default();
        for frame in [chunk(&[1, 2], "ä"), chunk(&[3], ""), chunk(&[], "x")] {
            delivered.count(&frame, true);
        }
        assert_eq!(delivered.point(), ContinueFrom { token_ids: vec![1, 2, 3], text_bytes: 3 });
        assert!(delivered.taken_up(placed(3)).is_some());
        for wrong in [placed(0), placed(2), Some(chunk(&[4], "y")), None] {
            assert!(delivered.taken_up(wrong.clone()).is_none(), "{wrong:?}");
        }
    }

    #[test]
    fn memory_is_bounded_and_comes_back() {
        let all = Continuations::new(1, 1);
        let mut first = all.keep(1000 << 10).unwrap();
        assert!(all.keep(100 << 10).is_none(), "the budget is used up");
        assert!(first.covers(1 << 10) && first.covers(5 << 10) && !first.covers(10 << 10));
        drop(first);
        assert!(all.keep(1000 << 10).is_some());
        assert!(Continuations::new(0, 1).keep(1).is_none());
        assert!(Continuations::new(1, 0).keep(1).is_none());
    }
}
