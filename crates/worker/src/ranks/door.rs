//! What a leader has said of processes that it does not take, so that one which tries again and again is told of once.
//!
//! Keeps one text for each rank, and one for whoever wants to be no rank of the group. Decides nothing.

use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use hawser_common::said::Said;

#[derive(Debug)]
pub(super) struct Door {
    /// By rank. The first, the leader's own, is for everybody who is none of the others.
    said: Mutex<Vec<Said>>,
}

impl Door {
    /// For a group of `world` ranks.
    pub(super) fn new(world: usize) -> Self {
        Self { said: Mutex::new(vec![Said::default(); world]) }
    }

    fn said(&self) -> MutexGuard<'_, Vec<Said>> {
        // Texts are whole whatever happened.
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether people have yet to hear `reason` of the process at `from` that wants to be `rank`. Each try comes from
    /// another port.
    pub(super) fn is_news(&self, rank: usize, from: SocketAddr, reason: &str) -> bool {
        let mut said = self.said();
        let place = if rank < said.len() { rank } else { 0 };
        said.get_mut(place).is_none_or(|said| said.is_news(&format!("{}: {reason}", from.ip())))
    }

    /// The group forms: whatever is said of it next is news.
    pub(super) fn clear(&self) {
        self.said().fill(Said::default());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_tries_on_is_told_of_once_for_each_reason() {
        let door = Door::new(3);
        let at = |port| SocketAddr::from(([10, 0, 0, 7], port));
        assert!(door.is_news(1, at(1), "taken"));
        for port in 2..10 {
            assert!(!door.is_news(1, at(port), "taken"), "the same process");
            assert_eq!(door.is_news(2, at(port), "taken"), port == 2, "each rank has its own");
            assert_eq!(door.is_news(100 + usize::from(port), at(port), "of another group"), port == 2);
        }
        assert!(door.is_news(1, at(1), "another model"));
        assert!(door.is_news(1, SocketAddr::from(([10, 0, 0, 8], 1)), "another model"), "another machine");
        door.clear();
        assert!(door.is_news(2, at(1), "taken"));
    }
}
