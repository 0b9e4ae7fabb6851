//! What the demo's agent works on: a checkout service that fails after a deployment.
//!
//! The questions, the tool calls and the tool results are written in advance, because a model of 135 million
//! parameters does not call tools reliably. The answers are the model's own, and stay in the history as they are.

/// One tool call and its result.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// Name of the tool.
    pub tool: &'static str,
    /// Arguments as JSON.
    pub arguments: &'static str,
    pub result: &'static str,
}

pub const SYSTEM: &str = "You are an operations agent. You investigate a failing deployment with tools. \
    After each tool result, say in one or two short sentences what it shows and what to check next.";

pub const TASK: &str = "Since the deployment at 14:02 the checkout service of our shop answers one request in five \
    with an error 502. Find out why, and say what to do. What would you look at first?";

/// Asked last, without a tool.
pub const CONCLUSION: &str =
    "Thank you. Sum up in two sentences: what was the cause, and what should we do now?";

/// The tool calls in order; a turn each.
pub const STEPS: &[Step] = &[
    Step {
        tool: "list_pods",
        arguments: r#"{"namespace": "shop", "selector": "app=checkout"}"#,
        result: include_str!("script/pods.txt"),
    },
    Step {
        tool: "read_logs",
        arguments: r#"{"pod": "checkout-6c9f7d-x2kqp", "previous": true, "tail": 32}"#,
        result: include_str!("script/logs.txt"),
    },
    Step {
        tool: "fetch_config",
        arguments: r#"{"namespace": "shop", "deployment": "checkout"}"#,
        result: include_str!("script/config.txt"),
    },
    Step {
        tool: "query_metrics",
        arguments: r#"{"query": "container_memory_working_set_bytes", "range": "30m"}"#,
        result: include_str!("script/metrics.txt"),
    },
    Step {
        tool: "diff_release",
        arguments: r#"{"from": "v2.13.4", "to": "v2.14.0", "service": "checkout"}"#,
        result: include_str!("script/diff.txt"),
    },
    Step {
        tool: "run_canary",
        arguments: r#"{"image": "checkout:v2.14.0", "set": {"CART_CACHE_MB": "96"}, "minutes": 5}"#,
        result: include_str!("script/canary.txt"),
    },
];

/// What the second session is asked, turn by turn.
pub const BESIDE: &[&str] = &[
    "Name three things to pack for a weekend at the sea.",
    "And if it rains?",
    "Suggest a simple dinner for the first evening.",
    "What could we do on Sunday morning?",
    "Write a one-line message that invites a friend.",
    "Make it sound more cheerful.",
    "What should we buy before we leave?",
    "Thanks! Say goodbye in one sentence.",
];

pub const BESIDE_SYSTEM: &str = "You help to plan a trip. You answer in one short sentence.";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_session_is_long_and_its_tool_results_are_too() {
        assert!(STEPS.len() + 2 >= 6, "a task, a turn for each tool call, a conclusion");
        let long = STEPS.iter().filter(|step| step.result.len() >= 1_200).count();
        assert!(long >= 3, "1,200 bytes are about 500 tokens of such text");
        assert!(BESIDE.len() >= STEPS.len() + 2, "the second session has a turn beside each of the first");
        for step in STEPS {
            serde_json::from_str::<serde_json::Value>(step.arguments).expect("arguments are JSON");
        }
    }
}
