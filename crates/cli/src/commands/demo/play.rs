//! The play itself: turns of the agent's session, a second session beside them, and the loss of the owner.

use std::time::Duration;

use hawser_client::{Client, ClientError, Message, Role, Sampling, Session, tool_result};
use hawser_common::clock::Clock;

use super::cluster::Cluster;
use super::script::{BESIDE, BESIDE_SYSTEM, CONCLUSION, STEPS, SYSTEM, Step, TASK};
use crate::commands::speaking::{Spoken, Totals, speak};
use crate::console::{bold, bytes, dim, line, piece, time};

const TURN_LIMIT: Duration = Duration::from_secs(600);
/// Answers differ from run to run only with this.
const SEED: u64 = 7;

/// How much is played.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub turns: usize,
    pub stop_after: usize,
    pub max_tokens: u32,
}

/// Both sessions.
#[derive(Debug)]
pub struct Play {
    agent: Session,
    beside: Session,
    plan: Plan,
    clock: Clock,
    totals: Totals,
}

impl Play {
    pub fn new(client: Client, plan: Plan) -> Self {
        let sampling = |tokens| {
            Sampling::new().temperature(0.3).top_p(0.9).repetition_penalty(1.15).seed(SEED).max_tokens(tokens)
        };
        let session = |system, tokens| {
            client.session().system(system).sampling(sampling(tokens)).deadline(TURN_LIMIT).start()
        };
        let (agent, beside) = (session(SYSTEM, plan.max_tokens), session(BESIDE_SYSTEM, 32));
        Self { agent, beside, plan, clock: Clock::system(), totals: Totals::default() }
    }

    /// Plays all turns. With a cluster, its group that owns the agent's session is stopped on the way.
    pub async fn run(mut self, mut cluster: Option<&mut Cluster>) -> anyhow::Result<()> {
        let mut owners: Vec<String> = Vec::new();
        for turn in 1..=self.plan.turns {
            let spoken = Box::pin(self.turn(turn)).await?;
            let owner = spoken.outcome.owner().to_owned();
            if owners.last() != Some(&owner) {
                owners.push(owner.clone());
            }
            if let Some(cluster) = cluster.as_deref_mut()
                && turn == self.plan.stop_after
                && turn < self.plan.turns
            {
                self.stop_owner(cluster, &owner).await?;
            }
        }
        line(bold("── the session as a whole"));
        line(format!("owned by {}; {}", owners.join(", then "), self.totals.summary()));
        let Self { agent, beside, .. } = self;
        agent.close().await?;
        beside.close().await?;
        Ok(())
    }

    async fn stop_owner(&self, cluster: &mut Cluster, owner: &str) -> anyhow::Result<()> {
        line(bold(format!("── stopping group {owner}, which owns the session (SIGTERM to its process)")));
        let began = self.clock.now();
        cluster.stop_group(owner).await?;
        let took = time(self.clock.now().since(began));
        line(format!(
            "{owner} handed its sessions over and ended after {took}; the next turn has to run elsewhere\n"
        ));
        Ok(())
    }

    /// One turn of the agent with one of the second session beside it.
    async fn turn(&mut self, number: usize) -> Result<Spoken, ClientError> {
        line(bold(format!("── turn {number} of {}", self.plan.turns)));
        let messages = messages(number, self.plan.turns);
        let question = BESIDE[(number - 1) % BESIDE.len()];
        let began = self.clock.now();
        let (agent, beside, clock) = (&mut self.agent, &mut self.beside, &self.clock);
        let first = async {
            piece("model   │ ");
            let turn = agent.send(messages).await?;
            let shown = speak(turn, clock, began, |text| piece(text.replace('\n', "\n        │ "))).await;
            line("");
            shown
        };
        let second = async {
            let turn = beside.say(question).await?;
            speak(turn, clock, began, |_| {}).await
        };
        let (spoken, aside) = tokio::join!(first, second);
        let (spoken, aside) = (spoken?, aside?);
        if spoken.outcome.placed.resent && number > 1 {
            line("the new group has never seen this session: the SDK resent its history by itself");
        }
        line(dim(format!("        [{}]", spoken.summary())));
        line(dim(format!("beside  │ {question} → {}", one_line(&aside.outcome.text))));
        line(dim(format!("        [{}]\n", aside.summary())));
        self.totals.add(&spoken);
        Ok(spoken)
    }
}

/// What the turn adds to the session, told on the way.
fn messages(number: usize, turns: usize) -> Vec<Message> {
    if number == 1 {
        line(format!("user    │ {TASK}"));
        return vec![Message::text(Role::User, TASK)];
    }
    if number == turns || number - 2 >= STEPS.len() {
        line(format!("user    │ {CONCLUSION}"));
        return vec![Message::text(Role::User, CONCLUSION)];
    }
    let Step { tool, arguments, result } = STEPS[number - 2];
    line(format!("tool    │ {tool} {arguments} {}", dim("(scripted)")));
    line(format!("result  │ {} of text, beginning: {}", bytes(result.len() as u64), dim(first_line(result))));
    vec![tool_result(format!("call-{number}"), tool, result)]
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_play_has_a_task_every_tool_result_and_a_conclusion() {
        let turns = STEPS.len() + 2;
        let roles: Vec<Role> = (1..=turns).map(|number| messages(number, turns)[0].role).collect();
        assert_eq!((roles[0], roles[turns - 1]), (Role::User, Role::User));
        assert!(roles[1..turns - 1].iter().all(|&role| role == Role::Tool));
        assert_eq!(messages(3, 3)[0].content, CONCLUSION, "a short play is concluded too");
    }
}
