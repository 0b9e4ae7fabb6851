//! When people hear which ranks a group waits for: at once where that changes, and again ever more rarely while it does
//! not, since nothing else tells of a group that has never been whole. Pure; time is an argument.

use std::net::SocketAddr;
use std::time::Duration;

use hawser_common::clock::Tick;
use hawser_common::numbers::millis;

/// From the first word to the second; it doubles with each.
const FIRST_REPEAT: Duration = Duration::from_secs(15);
const LAST_REPEAT: Duration = Duration::from_secs(300);

/// The ranks that a group waits for.
#[derive(Debug, Default)]
pub struct Awaited {
    ranks: Vec<usize>,
    told: Option<Told>,
}

/// What people have heard.
#[derive(Clone, Copy, Debug)]
struct Told {
    first: Tick,
    next: Tick,
    wait: Duration,
}

impl Awaited {
    /// All are there.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// Says which ranks are missing, and where the leader listens for them, if it is time to.
    pub fn tell(&mut self, ranks: &[usize], (world, meeting): (usize, Option<SocketAddr>), now: Tick) {
        let meeting = meeting.map(tracing::field::display);
        match self.news(ranks, now) {
            None => {}
            Some(Duration::ZERO) => tracing::info!(missing = ?ranks, world, meeting, "waiting for ranks"),
            Some(waited) => tracing::warn!(
                missing = ?ranks,
                world,
                meeting,
                waited_ms = millis(waited),
                "still waiting for ranks; the group serves nothing until they come"
            ),
        }
    }

    /// For how long these very ranks have been missing, where people are to hear of it now.
    fn news(&mut self, ranks: &[usize], now: Tick) -> Option<Duration> {
        let told = match self.told {
            Some(told) if self.ranks == ranks && now < told.next => return None,
            Some(Told { first, wait, .. }) if self.ranks == ranks => {
                let wait = (wait * 2).min(LAST_REPEAT);
                Told { first, next: now.after(wait), wait }
            }
            _ => Told { first: now, next: now.after(FIRST_REPEAT), wait: FIRST_REPEAT },
        };
        self.ranks = ranks.to_vec();
        self.told = Some(told);
        Some(now.since(told.first))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_told_at_once_and_the_same_ever_more_rarely() {
        let at = |seconds| Tick(Duration::from_secs(seconds));
        let mut awaited = Awaited::default();
        let told: Vec<u64> =
            (0..2_000).filter(|&second| awaited.news(&[1, 2], at(second)).is_some()).collect();
        assert_eq!(told, [0, 15, 45, 105, 225, 465, 765, 1065, 1365, 1665, 1965]);
        assert_eq!(awaited.news(&[2], at(2_000)), Some(Duration::ZERO), "one has come");
        assert_eq!(awaited.news(&[2], at(2_014)), None);
        assert_eq!(awaited.news(&[2], at(2_015)), Some(Duration::from_secs(15)));
        awaited.clear();
        assert_eq!(awaited.news(&[2], at(2_016)), Some(Duration::ZERO), "it was there, and has gone");
    }
}
