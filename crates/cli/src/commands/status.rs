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

Slots hold the KV rows of one token each. FREE are on the free list; IDLE are held by no running turn and may be taken: \
they are of sessions between turns, of the prefix tree alone, which keeps what other sessions may begin with, or left of \
sessions that went elsewhere while the group had lost its lease. SESSIONS are those that it has a claim for; PRUNED are \
slots that sessions would hold more if nothing of them had been pruned.
Numbers of a group are those that it published last: a second ago at most where sessions, requests or 2 % of the pool \
have changed since the time before, else up to ten seconds ago. Sessions and ranks are asked for now.
Groups of several ranks are shown rank by rank: up, slow (others wait for it), missing (it has not joined) or gone. One \
whose ranks have not all been there yet is not listed: its leader's log says which ones it waits for.
A group that has left the cluster stays listed for ten minutes. One that is registered and does not answer is named below \
the tables: its sessions are not among those listed.";

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
    /// There are more sessions than these, or a group did not list its own.
    sessions_truncated: bool,
    /// Groups that are registered and did not answer.
    silent: Vec<Silent>,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
struct Silent {
    group: String,
    reason: String,
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
    let described = match client.list_groups_and_departed().await {
        Ok(groups) => Some(described(&client, groups).await),
        Err(error) if error.code() == ErrorCode::Forbidden => None,
        Err(error) => return Err(error.into()),
    };
    let limit = options.sessions.max(1);
    let status = status(described, client.list_sessions(limit).await?);
    if options.json {
        line(serde_json::to_string_pretty(&status)?);
    } else {
        line(text(&status, limit));
    }
    Ok(())
}

/// The groups, and what each one's leader says of its ranks. Those beyond the first few hundred are not asked.
async fn described(client: &Client, groups: Vec<wire::Group>) -> Vec<wire::DescribeGroupResponse> {
    let ask = |(at, group): (usize, wire::Group)| {
        let client = client.clone();
        async move {
            let asked = if at < MAX_ASKED { client.describe_group(&group.id).await.ok() } else { None };
            let described = asked.unwrap_or_default();
            wire::DescribeGroupResponse { group: Some(group), ..described }
        }
    };
    let asked: Vec<_> = groups.into_iter().enumerate().map(ask).collect();
    stream::iter(asked).buffered(FAN_OUT).collect().await
}

/// What the router said, in one: a group that did not answer is told once, whoever noticed it.
fn status(described: Option<Vec<wire::DescribeGroupResponse>>, listed: wire::ListSessionsResponse) -> Status {
    let mut silent: Vec<Silent> = described
        .iter()
        .flatten()
        .filter(|described| !described.silence.is_empty())
        .filter_map(|described| Some((described.group.as_ref()?, &described.silence)))
        .filter(|(group, _)| !group.departed)
        .map(|(group, reason)| Silent { group: group.id.clone(), reason: reason.clone() })
        .chain(listed.silent.into_iter().map(|wire| Silent { group: wire.group, reason: wire.reason }))
        .collect();
    silent.sort();
    silent.dedup_by(|next, kept| next.group == kept.group);
    let of_group = |described: wire::DescribeGroupResponse| {
        group(described.group.unwrap_or_default(), described.state.map(State::of))
    };
    Status {
        groups: described.map(|groups| groups.into_iter().map(of_group).collect()),
        sessions: listed.sessions.into_iter().map(session).collect(),
        sessions_truncated: listed.truncated,
        silent,
    }
}

fn group(wire: wire::Group, state: Option<State>) -> Group {
    // Without `..`: a field that is forgotten does not compile.
    let wire::Group { id, model, address, tp: _, epoch, capacity, draining, departed } = wire;
    let wire::Capacity {
        slots_total,
        slots_free,
        slots_idle,
        slots_reclaimed,
        slots_reserved,
        sessions,
        running,
        queued,
    } = capacity.unwrap_or_default();
    Group {
        id,
        model,
        address,
        epoch,
        draining,
        departed,
        state,
        slots_total,
        slots_free,
        slots_idle,
        slots_reclaimed,
        slots_reserved,
        sessions,
        running,
        queued,
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

fn text(status: &Status, limit: u32) -> String {
    let sessions = sessions_text(status, limit);
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
        let load = [group.running, group.queued].map(|n| n.to_string());
        let mut numbers: Vec<String> = numbers.map(count).into_iter().chain(load).collect();
        if group.departed {
            // It has nothing any more: its sessions are others', or nobody's.
            numbers.fill_with(|| "-".to_owned());
        }
        let names = [group.epoch.to_string(), group.address.clone(), group.model.clone()];
        groups.row([group.id.clone(), state.to_owned()].into_iter().chain(numbers).chain(names).collect());
    }
    groups
}

fn sessions_text(status: &Status, limit: u32) -> String {
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
    let shown = status.sessions.len();
    let sessions = if shown == 0 { "no sessions".to_owned() } else { sessions.to_string() };
    // Fewer than were asked for are all that those who answered have.
    let is_full = shown >= usize::try_from(limit).unwrap_or(usize::MAX);
    let has_more = status.sessions_truncated && (is_full || status.silent.is_empty());
    let more = if has_more { "\n(there are more; see --sessions)" } else { "" };
    let silent = status.silent.iter().map(|Silent { group, reason }| {
        format!("\ngroup {group} does not answer ({reason}): its sessions are not listed")
    });
    format!("{sessions}{more}{}", silent.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_show_every_group_and_session() {
        let capacity =
            wire::Capacity { slots_total: 40_000, slots_free: 39_000, sessions: 1, ..Default::default() };
        let wire_group = wire::Group { id: "a".into(), capacity: Some(capacity), ..Default::default() };
        let capacity = Some(wire::Capacity { slots_total: 70_000, ..Default::default() });
        let gone = wire::Group { id: "b".into(), capacity, departed: true, ..Default::default() };
        let wire_session = wire::SessionInfo {
            id: "s-1".into(),
            turns: 6,
            tokens: 1_000,
            idle_ms: 1_500,
            ..Default::default()
        };
        let status = Status {
            groups: Some(vec![group(wire_group, None), group(gone, None)]),
            sessions: vec![session(wire_session)],
            sessions_truncated: true,
            silent: Vec::new(),
        };
        let shown = text(&status, 1);
        for part in ["40,000", "39,000", "serving", "s-1", "1,000", "idle 1.50 s", "there are more"] {
            assert!(shown.contains(part), "{part:?} is not in\n{shown}");
        }
        assert!(
            shown.contains("left") && !shown.contains("70,000"),
            "a group that has left has nothing\n{shown}"
        );
        let empty =
            Status { groups: Some(vec![]), sessions: vec![], sessions_truncated: false, silent: vec![] };
        assert!(text(&empty, 1).contains("hawser worker"));
        let of_tenant = Status { groups: None, ..status };
        let shown = text(&of_tenant, 1);
        assert!(
            shown.contains("s-1") && shown.contains("operators") && !shown.contains("serving"),
            "{shown}"
        );
    }

    #[test]
    fn a_group_that_does_not_answer_is_named_once_and_is_not_taken_for_more_sessions() {
        let described = |id: &str, departed, silence: &str| wire::DescribeGroupResponse {
            group: Some(wire::Group { id: id.into(), departed, ..Default::default() }),
            state: None,
            silence: silence.into(),
        };
        let groups = || {
            vec![
                described("a", false, ""),
                described("b", false, "it hangs"),
                described("gone", true, "refused"),
            ]
        };
        let silent = |group: &str| wire::SilentGroup { group: group.into(), reason: "it hangs".into() };
        let listed = || wire::ListSessionsResponse {
            sessions: vec![wire::SessionInfo::default()],
            truncated: true,
            silent: vec![silent("b")],
        };
        let told = "group b does not answer (it hangs): its sessions are not listed";
        for (groups, limit, more) in [(Some(groups()), 50, false), (None, 50, false), (None, 1, true)] {
            let shown = text(&status(groups, listed()), limit);
            assert_eq!(shown.matches("does not answer").count(), 1, "{shown}");
            assert!(shown.contains(told), "{shown}");
            assert_eq!(shown.contains("there are more"), more, "{shown}");
        }
        let late = wire::ListSessionsResponse::default();
        assert!(
            text(&status(Some(groups()), late), 50).contains(told),
            "one that is silent only to its ranks"
        );
    }
}
