//! Where a session with a name stands: others may talk in it too.
//!
//! Promises that a turn never takes the place of a conversation that others have there: the chat goes on after it and
//! says so. Between the question and the turn another client may still be faster; the turn's report tells.

use std::time::Duration;

use hawser_client::{Client, ClientError, ErrorCode, SessionId, wire};
use hawser_common::Coded;

use crate::console::{count, counted};

const POLL: Duration = Duration::from_millis(100);
/// How often a session is asked for whose first turn is running: five minutes.
const POLLS: u32 = 3_000;

/// What the cluster holds, beside what this chat knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// As many turns as this chat knows of; none for a session that nobody holds.
    Same,
    /// Others have added turns: more than this chat knows of.
    Ahead { turns: u32, others: u32 },
    /// Others have begun it anew: it has fewer turns than this chat knows of.
    Anew { turns: u32 },
}

impl Standing {
    pub fn new(known: u32, held: u32) -> Self {
        if held > known {
            Self::Ahead { turns: held, others: held - known }
        } else if 0 < held && held < known {
            Self::Anew { turns: held }
        } else {
            // A session that was lost is resent by the SDK, or refused where its history is not known here.
            Self::Same
        }
    }

    /// What people are told before the turn.
    pub fn notice(self, session: &SessionId) -> Option<String> {
        match self {
            Self::Same => None,
            Self::Ahead { turns, others } => {
                let (turns, others) = (counted(turns.into(), "turn"), count(others.into()));
                Some(format!("{session} has {turns}, {others} of them from elsewhere; going on from there"))
            }
            Self::Anew { turns } => {
                let turns = counted(turns.into(), "turn");
                Some(format!("{session} was begun anew elsewhere and has {turns}; going on from there"))
            }
        }
    }
}

/// Whether nobody could say what is held: the session's owner does not answer, and is still the owner.
pub fn is_silence(error: &ClientError) -> bool {
    matches!(error.code(), ErrorCode::Deadline | ErrorCode::Unavailable)
}

/// What the cluster holds of a session, `None` for nothing. Waits for the first turn of a session that another client
/// runs: a turn that does not know it would take its place.
///
/// # Errors
/// Any [`ClientError`] other than that nobody holds it.
pub async fn held(client: &Client, session: &SessionId) -> Result<Option<wire::SessionInfo>, ClientError> {
    let mut polls = 0;
    loop {
        let found = match client.describe_session(session.as_str()).await {
            Ok(info) => info,
            Err(error) if matches!(error.code(), ErrorCode::NotFound | ErrorCode::SessionLost) => {
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        if found.turns > 0 || !found.busy || polls == POLLS {
            return Ok(Some(found));
        }
        polls += 1;
        tokio::time::sleep(POLL).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_that_does_not_answer_says_nothing_of_what_is_held() {
        assert!(is_silence(&ClientError::Deadline { limit: Duration::from_secs(10) }));
        assert!(!is_silence(&ClientError::HistoryUnknown { session: "s".into() }));
    }

    #[test]
    fn turns_from_elsewhere_are_seen_and_told() {
        let session = SessionId::parse("talk").unwrap();
        let told = |known, held| Standing::new(known, held).notice(&session);
        for (known, held) in [(0, 0), (3, 3), (3, 0)] {
            assert_eq!(told(known, held), None, "{known} {held}");
        }
        let ahead = told(0, 1).unwrap();
        assert_eq!(ahead, "talk has 1 turn, 1 of them from elsewhere; going on from there");
        assert!(told(2, 5).unwrap().contains("has 5 turns, 3 of them"));
        assert!(told(5, 2).unwrap().contains("was begun anew elsewhere and has 2 turns"));
    }
}
