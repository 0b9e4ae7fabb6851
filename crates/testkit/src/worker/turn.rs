//! One turn of a scripted worker.

use std::sync::Arc;

use futures_util::Stream;
use futures_util::stream::unfold;
use hawser_common::{Epoch, SessionKey};
use hawser_placement::{ClaimError, Standing};
use hawser_proto::v1::generate_request::Input;
use hawser_proto::v1::generate_response::Frame;
use hawser_proto::{status, v1};
use tokio::sync::OwnedMutexGuard;
use tonic::Status;

use super::refusal::Refusal;
use super::sessions::Transcript;
use super::{MODEL, Shared};
use crate::history::{Event, TurnId};

pub(super) struct Turn {
    shared: Arc<Shared>,
    key: SessionKey,
    /// `None` once the session is checked in.
    held: Option<OwnedMutexGuard<Transcript>>,
    /// The registration, and so the claim, that everything sent depends on.
    standing: Standing,
    routed: Epoch,
    turns: Vec<TurnId>,
    id: TurnId,
    /// Tokens that another worker has delivered.
    begun: u32,
    next: Next,
}

#[derive(Clone, Copy)]
enum Next {
    Placed,
    Token(u32),
    End,
}

/// What a request says, in turns: the ones before it, and its own.
fn asked(request: &v1::GenerateRequest) -> Result<(Vec<TurnId>, TurnId, v1::Extent), Refusal> {
    let Some(Input::Conversation(conversation)) = &request.input else { return Err(Refusal::Empty) };
    let users = conversation.messages.iter().filter(|message| message.role() == v1::Role::User);
    let mut turns: Vec<TurnId> = users.map(|message| TurnId(message.content.clone())).collect();
    let last = turns.pop().ok_or(Refusal::Empty)?;
    Ok((turns, last, conversation.extent()))
}

impl Turn {
    /// Everything up to the first frame. Nothing has left when it fails.
    pub(super) async fn start(
        shared: Arc<Shared>,
        key: SessionKey,
        routed: Epoch,
        request: &v1::GenerateRequest,
        begun: u32,
    ) -> Result<Self, Refusal> {
        let (whole, id, extent) = asked(request)?;
        let held = shared.sessions.checkout(&key).await;
        // Dropped from here on, it checks the session in as it was.
        let (turns, next) = (Vec::new(), Next::Placed);
        let standing = shared.registration.standing();
        let mut turn = Self { shared, key, held: Some(held), standing, routed, turns, id, begun, next };
        turn.claim(extent, whole).await?;
        tokio::time::sleep(turn.shared.script.prefill).await;
        Ok(turn)
    }

    async fn claim(&mut self, extent: v1::Extent, whole: Vec<TurnId>) -> Result<(), Refusal> {
        let Some(held) = &mut self.held else { return Err(Refusal::Lost) };
        let is_continued = held.claimed == Some(self.standing.term);
        self.turns = match extent {
            // Under an earlier registration someone else may have had the session since.
            v1::Extent::Delta if !is_continued || held.turns.is_empty() => return Err(Refusal::Lost),
            v1::Extent::Delta => held.turns.clone(),
            v1::Extent::Whole | v1::Extent::Unspecified => whole,
        };
        if !is_continued {
            let claimed = self.shared.registration.claim(self.key.clone()).await;
            claimed.map_err(|error| match error {
                ClaimError::Owned(owner) => Refusal::Stale(owner),
                other => Refusal::NotClaimed(other.to_string()),
            })?;
            held.claimed = Some(self.standing.term);
        }
        if !self.is_owner() {
            return Err(Refusal::Fenced);
        }
        self.shared.recorder.record(Event::Served {
            session: self.key.clone(),
            turn: self.id.clone(),
            owner: self.shared.owner(self.standing.epoch),
            routed: self.routed.0,
            history: self.turns.clone(),
        });
        Ok(())
    }

    /// Whether the claim that this turn runs under may still be relied on.
    fn is_owner(&self) -> bool {
        let standing = self.shared.registration.standing();
        standing.term == self.standing.term && standing.valid(self.shared.clock.now())
    }

    pub(super) fn into_frames(self) -> impl Stream<Item = Result<v1::GenerateResponse, Status>> + Send {
        unfold(Some(self), |turn| async {
            let mut turn = turn?;
            match turn.frame().await {
                Ok(frame) => {
                    let over = matches!(frame, Frame::Finished(_));
                    let frame = v1::GenerateResponse { frame: Some(frame) };
                    Some((Ok(frame), (!over).then_some(turn)))
                }
                Err(refusal) => Some((Err(status(&refusal)), None)),
            }
        })
    }

    async fn frame(&mut self) -> Result<Frame, Refusal> {
        let (script, owner) = (self.shared.script, self.shared.owner(self.standing.epoch));
        if let Next::Token(token) = self.next
            && token > 0
        {
            tokio::time::sleep(script.step).await;
        }
        if !self.is_owner() {
            self.shared.recorder.record(Event::Fenced { owner });
            return Err(Refusal::Fenced);
        }
        match self.next {
            Next::Placed => {
                self.next =
                    if self.begun < self.shared.script.tokens { Next::Token(self.begun) } else { Next::End };
                Ok(Frame::Placed(v1::Placed {
                    session: self.key.session.to_string(),
                    group: owner.group.to_string(),
                    epoch: owner.epoch.0,
                    model: MODEL.to_owned(),
                    continued_tokens: self.begun,
                }))
            }
            Next::Token(token) => {
                self.next = if token + 1 < script.tokens { Next::Token(token + 1) } else { Next::End };
                let (session, turn) = (self.key.clone(), self.id.clone());
                self.shared.recorder.record(Event::Sent { session, turn, owner, token });
                let text = format!("{token} ");
                Ok(Frame::Chunk(v1::Chunk { text, token_ids: vec![token], logprobs: Vec::new() }))
            }
            Next::End => Ok(Frame::Finished(self.commit())),
        }
    }

    fn commit(&mut self) -> v1::Finished {
        let mut turns = std::mem::take(&mut self.turns);
        turns.push(self.id.clone());
        let turn = u32::try_from(turns.len()).unwrap_or(u32::MAX);
        if let Some(held) = &mut self.held {
            held.turns = turns;
        }
        // The next turn may start as soon as this frame is read.
        self.check_in();
        let generated_tokens = self.shared.script.tokens;
        v1::Finished {
            reason: v1::FinishReason::Length.into(),
            usage: Some(v1::Usage { generated_tokens, ..v1::Usage::default() }),
            turn,
            ..v1::Finished::default()
        }
    }

    /// A session that nothing was ever committed to leaves no claim.
    fn check_in(&mut self) {
        let Some(held) = self.held.take() else { return };
        if held.turns.is_empty() {
            if held.claimed.is_some() {
                self.shared.registration.give_up(self.key.clone());
            }
            self.shared.sessions.forget(&self.key);
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.check_in();
    }
}
