//! What a run of the cluster benchmark does: named scenarios, and their sizes at a scale. Pure.

use clap::ValueEnum;
use hawser_router::Strategy;
use hawser_worker::SimulatedOptions;
use serde::Serialize;

/// A named scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Preset {
    /// What the router adds to a warm turn, at about half load
    Warm,
    /// Relayed frames per second and router core, with a thousand streams open
    Frames,
    /// Memory of a router that knows a hundred thousand sessions
    Memory,
    /// New sessions per second, each one claimed in the store
    Claims,
    /// A hundred groups of which twenty leave and twenty come while ten thousand sessions run
    Churn,
    /// Time to the first token against round robin, least loaded and hashed placement
    Sticky,
}

/// Which groups of a run leave, and by what many others come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Churn {
    pub groups: usize,
}

/// Sizes of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Plan {
    pub preset: Preset,
    pub scale: f64,
    pub routers: usize,
    /// Threads of each router's runtime.
    pub router_threads: usize,
    pub groups: usize,
    pub sessions: usize,
    pub turns: u32,
    /// Turns that run at once.
    pub streams: usize,
    /// Connections to each router.
    pub connections: usize,
    /// Tokens that all sessions begin with.
    pub shared_tokens: usize,
    /// Tokens of a session's own beginning.
    pub first_tokens: usize,
    /// Tokens that a later turn adds.
    pub turn_tokens: usize,
    pub answer_tokens: u32,
    /// Pause of a stream after each turn, in milliseconds.
    pub think_ms: u64,
    /// Tokens of each group's pool.
    pub slots: usize,
    pub simulated: SimulatedOptions,
    pub churn: Option<Churn>,
    /// Every second warm turn goes to the owner itself, to tell what the router adds; of those one in three through
    /// something that passes bytes on, and one in three through something that passes calls on.
    pub direct: bool,
    /// Each session is claimed in a transaction of its own.
    pub claims_singly: bool,
    #[serde(skip)]
    pub strategy: Strategy,
}

/// `count` at a scale, and at least `least`.
#[allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "counts far below 2^52, and a scale that is positive"
)]
fn scaled(count: usize, scale: f64, least: usize) -> usize {
    ((count as f64 * scale).round() as usize).max(least)
}

impl Plan {
    /// The scenario at a scale of its full size.
    pub fn new(preset: Preset, scale: f64) -> Self {
        let at = |count, least| scaled(count, scale, least);
        let free = SimulatedOptions { time_scale: 0.0, ..SimulatedOptions::default() };
        let base = Self {
            preset,
            scale,
            routers: 1,
            router_threads: 1,
            groups: at(4, 2),
            sessions: 0,
            turns: 1,
            streams: 0,
            connections: 4,
            shared_tokens: 64,
            first_tokens: 64,
            turn_tokens: 32,
            answer_tokens: 8,
            think_ms: 0,
            slots: 131_072,
            simulated: free.clone(),
            churn: None,
            direct: false,
            claims_singly: false,
            strategy: Strategy::Balanced,
        };
        match preset {
            Preset::Warm => {
                // Tokens come one by one, and two cores are half busy with all that is between agents and engines.
                let sessions = at(32, 4);
                let simulated = SimulatedOptions { time_scale: 0.1, ..free };
                Self {
                    sessions,
                    streams: sessions,
                    turns: 200,
                    think_ms: 40,
                    direct: true,
                    simulated,
                    ..base
                }
            }
            Preset::Frames => {
                let sessions = at(1_024, 8);
                let simulated = SimulatedOptions { time_scale: 1.0, decode_step_us: 100_000, ..slow(&free) };
                Self { sessions, streams: sessions, turns: 3, answer_tokens: 100, simulated, ..base }
            }
            Preset::Memory => Self { groups: at(1_000, 10), sessions: at(100_000, 100), ..base },
            Preset::Claims => {
                Self { sessions: at(50_000, 100), streams: at(512, 8), answer_tokens: 1, ..base }
            }
            Preset::Churn => {
                let groups = at(100, 5);
                let churn = Some(Churn { groups: (groups / 5).max(1) });
                let (sessions, streams) = (at(10_000, 40), at(256, 8));
                Self { routers: 3, groups, churn, sessions, streams, turns: 10, slots: 65_536, ..base }
            }
            Preset::Sticky => Self {
                groups: at(8, 2),
                sessions: at(2_200, 24),
                streams: at(1_021, 11),
                turns: 20,
                shared_tokens: 300,
                first_tokens: 150,
                turn_tokens: 60,
                answer_tokens: 12,
                // Every session has room at one group, and not at two.
                slots: 500_000,
                simulated: SimulatedOptions { time_scale: 0.5, ..free },
                ..base
            },
        }
    }

    /// Whether sessions are named to the cluster, or every turn carries everything.
    pub fn names_sessions(&self) -> bool {
        matches!(self.strategy, Strategy::Balanced | Strategy::Hashed)
    }

    /// Tokens of a session's longest prompt and answer.
    pub fn longest(&self) -> usize {
        let turns = self.turns as usize;
        self.shared_tokens + self.first_tokens + turns * (self.turn_tokens + self.answer_tokens as usize)
    }
}

/// Nothing takes time but a step.
fn slow(free: &SimulatedOptions) -> SimulatedOptions {
    SimulatedOptions { prefill_token_ns: 0, live_token_ns: 0, candidate_ns: 0, ..free.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_size_is_as_promised_and_the_smallest_still_is_a_cluster() {
        let churn = Plan::new(Preset::Churn, 1.0);
        assert_eq!((churn.groups, churn.routers, churn.sessions, churn.turns), (100, 3, 10_000, 10));
        assert_eq!(churn.churn, Some(Churn { groups: 20 }));
        let sticky = Plan::new(Preset::Sticky, 1.0);
        assert_eq!((sticky.groups, sticky.streams, sticky.sessions, sticky.turns), (8, 1_021, 2_200, 20));
        assert!(Plan::new(Preset::Frames, 1.0).streams >= 1_000);
        assert_eq!(Plan::new(Preset::Memory, 1.0).sessions, 100_000);
        for preset in Preset::value_variants() {
            let plan = Plan::new(*preset, 0.001);
            assert!(plan.groups >= 2 && plan.sessions >= 2, "{plan:?}");
            assert!(plan.longest() < plan.slots / 2, "{plan:?}");
            plan.simulated.validate().unwrap();
        }
    }
}
