//! `hawser status`: groups, their ranks, sessions and pools.

mod ranks;

use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use hawser_client::{Client, ErrorCode, wire};
use hawser_common::Coded as _;
use serde::Serialize;

use self::ranks::{State, ranks_table};

use crate::args::Global;
use crate::console::{count, line, time};
use crate::table::{Align, Table};

const EXAMPLES: &str = "\
Examples:
  hawser status
  hawser status --server http://router:7070
  hawser status --json | jq '.groups[] | {id, slots_free}'
  hawser status --json | jq '.groups[].state.ranks[] | {rank, health, step}'

Slots hold the KV rows of one token each. FREE are on the free list; IDLE are held by sessions between turns, or left of
some that went elsewhere while the group had lost its lease, and may be taken; SESSIONS are those that it has a claim for;
PRUNED are those that sessions would hold more if nothing of them had been pruned.
Groups of several ranks are shown rank by rank: up, slow (others wait for it), missing (it has not joined) or gone.
A group that has left the cluster stays listed for ten minutes.";

/// Leaders asked at the same time.
const FAN_OUT: usize = 16;
/// Groups whose ranks are asked for.
const MAX_ASKED: usize = 256;

/// Show groups, sessions and what is left of the pools.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Options {
    /// URI of the router
    #[arg(long, value_name = "URI")]
    server: Option<String>,
    /// Print JSON instead of tables
    #[arg(long)]
    json: bool,
    /// Most sessions to show
    #[arg(long, value_name = "N", default_value_t = 50)]
    sessions: u32,
}

#[derive(Debug, Serialize)]
struct Status {
    /// Not set where the API key is not an operator's.
    groups: Option<Vec<Group>>,
    sessions: Vec<Session>,
    /// There are more sessions than these.
    sessions_truncated: bool,
}

#[derive(Debug, Serialize)]
struct Group {
    id: String,
    model: String,
    address: String,
    epoch: u64,
    draining: bool,
    /// It has left the cluster and serves nothing; its numbers are the last it published.
    departed: bool,
    /// How its ranks are; null where its leader does not answer.
    state: Option<State>,
    slots_total: u64,
    slots_free: u64,
    slots_idle: u64,
    slots_reclaimed: u64,
    slots_reserved: u64,
    sessions: u64,
    running: u32,
    queued: u32,
}

#[derive(Debug, Serialize)]
struct Session {
    id: String,
    group: String,
    model: String,
    turns: u32,
    tokens: u64,
    live_tokens: u64,
    busy: bool,
    idle_ms: u64,
}

pub async fn run(global: &Global, options: &Options) -> anyhow::Result<()> {
    let client = super::connect(global, options.server.as_deref()).await?;
    let groups = match client.list_groups_and_departed().await {
        Ok(groups) => {
            let states = states(&client, &groups).await;
            Some(groups.into_iter().zip(states).map(|(wire, state)| group(wire, state)).collect())
        }
        Err(error) if error.code() == ErrorCode::Forbidden => None,
        Err(error) => return Err(error.into()),
    };
    let sessions = client.list_sessions(options.sessions.max(1)).await?;
    let status = Status {
        groups,
        sessions: sessions.sessions.into_iter().map(session).collect(),
        sessions_truncated: sessions.truncated,
    };
    if options.json {
        line(serde_json::to_string_pretty(&status)?);
    } else {
        line(text(&status));
    }
    Ok(())
}

/// What each group's leader says of its ranks.
async fn states(client: &Client, groups: &[wire::Group]) -> Vec<Option<State>> {
    let ask = |group: &wire::Group| {
        let (client, id) = (client.clone(), group.id.clone());
        async move { client.describe_group(&id).await.ok().and_then(|described| described.state).map(State::of) }
    };
    let asked: Vec<_> = groups.iter().take(MAX_ASKED).map(ask).collect();
    let mut states: Vec<_> = stream::iter(asked).buffered(FAN_OUT).collect().await;
    states.resize_with(groups.len(), || None);
    states
}

fn group(wire: wire::Group, state: Option<State>) -> Group {
    let capacity = wire.capacity.unwrap_or_default();
    Group {
        id: wire.id,
        model: wire.model,
        address: wire.address,
        epoch: wire.epoch,
        draining: wire.draining,
        departed: wire.departed,
        state,
        slots_total: capacity.slots_total,
        slots_free: capacity.slots_free,
        slots_idle: capacity.slots_idle,
        slots_reclaimed: capacity.slots_reclaimed,
        slots_reserved: capacity.slots_reserved,
        sessions: capacity.sessions,
        running: capacity.running,
        queued: capacity.queued,
    }
}

fn session(wire: wire::SessionInfo) -> Session {
    Session {
        id: wire.id,
        group: wire.group,
        model: wire.model,
        turns: wire.turns,
        tokens: wire.tokens,
        live_tokens: wire.live_tokens,
        busy: wire.busy,
        idle_ms: wire.idle_ms,
    }
}

fn text(status: &Status) -> String {
    let sessions = sessions_text(status);
    match &status.groups {
        Some(groups) if groups.is_empty() => {
            "no worker group is registered; start one with: hawser worker --router URI --group NAME"
                .to_owned()
        }
        Some(groups) => {
            let ranks = ranks_table(groups.iter().map(|group| (group.id.as_str(), group.state.as_ref())));
            let ranks = ranks.map_or_else(String::new, |table| format!("\n\n{table}"));
            format!("{}{ranks}\n\n{sessions}", groups_text(groups))
        }
        None => format!("{sessions}\n(groups are shown to operators)"),
    }
}

fn groups_text(shown: &[Group]) -> Table {
    let (left, right) = (Align::Left, Align::Right);
    let mut groups = Table::new(&[
        ("GROUP", left),
        ("STATE", left),
        ("SLOTS", right),
        ("FREE", right),
        ("IDLE", right),
        ("PRUNED", right),
        ("SESSIONS", right),
        ("RUNNING", right),
        ("QUEUED", right),
        ("EPOCH", right),
        ("ADDRESS", left),
        ("MODEL", left),
    ]);
    for group in shown {
        let state = match (group.departed, group.draining) {
            (true, _) => "left",
            (false, true) => "draining",
            (false, false) => "serving",
        };
        let numbers =
            [group.slots_total, group.slots_free, group.slots_idle, group.slots_reclaimed, group.sessions];
        let load = [u64::from(group.running), u64::from(group.queued), group.epoch].map(|n| n.to_string());
        let names = [group.address.clone(), group.model.clone()];
        groups.row(
            [group.id.clone(), state.to_owned()]
                .into_iter()
                .chain(numbers.map(count))
                .chain(load)
                .chain(names)
                .collect(),
        );
    }
    groups
}

fn sessions_text(status: &Status) -> String {
    let (left, right) = (Align::Left, Align::Right);
    let mut sessions = Table::new(&[
        ("SESSION", left),
        ("GROUP", left),
        ("TURNS", right),
        ("TOKENS", right),
        ("LIVE", right),
        ("STATE", left),
    ]);
    for session in &status.sessions {
        let idle = || format!("idle {}", time(Duration::from_millis(session.idle_ms)));
        sessions.row(vec![
            session.id.clone(),
            session.group.clone(),
            session.turns.to_string(),
            count(session.tokens),
            count(session.live_tokens),
            if session.busy { "busy".to_owned() } else { idle() },
        ]);
    }
    let more = if status.sessions_truncated { "\n(there are more; see --sessions)" } else { "" };
    let sessions = if status.sessions.is_empty() { "no sessions".to_owned() } else { sessions.to_string() };
    format!("{sessions}{more}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_show_every_group_and_session() {
        let capacity =
            wire::Capacity { slots_total: 40_000, slots_free: 39_000, sessions: 1, ..Default::default() };
        let wire_group = wire::Group { id: "a".into(), capacity: Some(capacity), ..Default::default() };
        let wire_session = wire::SessionInfo {
            id: "s-1".into(),
            turns: 6,
            tokens: 1_000,
            idle_ms: 1_500,
            ..Default::default()
        };
        let status = Status {
            groups: Some(vec![group(wire_group, None)]),
            sessions: vec![session(wire_session)],
            sessions_truncated: true,
        };
        let shown = text(&status);
        for part in ["40,000", "39,000", "serving", "s-1", "1,000", "idle 1.50 s", "there are more"] {
            assert!(shown.contains(part), "{part:?} is not in\n{shown}");
        }
        let empty = Status { groups: Some(vec![]), sessions: vec![], sessions_truncated: false };
        assert!(text(&empty).contains("hawser worker"));
        let of_tenant = Status { groups: None, ..status };
        let shown = text(&of_tenant);
        assert!(
            shown.contains("s-1") && shown.contains("operators") && !shown.contains("serving"),
            "{shown}"
        );
    }
}
