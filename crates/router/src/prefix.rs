//! Which groups were sent a conversation that begins so: with the same tools and the same system message. Pure.
//!
//! What is compared is a hash of the request's text; a collision costs a wrong preference and nothing else. Requests of
//! token ids have no beginning that the router knows, since it does not read tokens.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use hawser_common::GroupId;
use hawser_proto::v1;
use hawser_proto::v1::generate_request::Input;

use crate::generations::Generations;

/// Beginnings that are remembered.
const MAX_PREFIXES: usize = 4_096;
/// Groups that are remembered of each, the latest first.
const MAX_GROUPS: usize = 4;

/// How a conversation begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Prefix(u64);

impl Prefix {
    /// The beginning of a whole conversation; `None` where there is neither a system message nor a tool. `namespace` is
    /// within whom rows are shared.
    pub(crate) fn of(namespace: &str, request: &v1::GenerateRequest) -> Option<Self> {
        let Some(Input::Conversation(conversation)) = &request.input else { return None };
        if conversation.extent() == v1::Extent::Delta {
            return None;
        }
        let is_system = |message: &&v1::Message| message.role() == v1::Role::System;
        let system: Vec<_> = conversation.messages.iter().take_while(is_system).collect();
        if system.is_empty() && conversation.tools.is_empty() {
            return None;
        }
        let mut hasher = DefaultHasher::new();
        (namespace, &request.model).hash(&mut hasher);
        for message in system {
            (&message.content, &message.name).hash(&mut hasher);
        }
        for tool in &conversation.tools {
            (&tool.name, &tool.description, &tool.parameters_json).hash(&mut hasher);
        }
        Some(Self(hasher.finish()))
    }
}

#[derive(Debug)]
pub(crate) struct Prefixes(Generations<Prefix, Vec<GroupId>>);

impl Default for Prefixes {
    fn default() -> Self {
        Self(Generations::new(MAX_PREFIXES))
    }
}

impl Prefixes {
    pub(crate) fn groups(&mut self, prefix: Prefix) -> &[GroupId] {
        self.0.touch(&prefix).map_or(&[], |groups| groups.as_slice())
    }

    /// A conversation that begins so went to `group`.
    pub(crate) fn sent(&mut self, prefix: Prefix, group: &GroupId) {
        let Some(groups) = self.0.touch(&prefix) else {
            self.0.insert(prefix, vec![group.clone()]);
            return;
        };
        if groups.first() != Some(group) {
            groups.retain(|held| held != group);
            groups.insert(0, group.clone());
            groups.truncate(MAX_GROUPS);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(model: &str, messages: &[(v1::Role, &str)], tools: &[&str]) -> v1::GenerateRequest {
        let message = |&(role, text): &(v1::Role, &str)| v1::Message {
            role: role.into(),
            content: text.into(),
            ..Default::default()
        };
        let tool = |name: &&str| v1::Tool { name: (*name).to_owned(), ..Default::default() };
        let conversation = v1::Conversation {
            messages: messages.iter().map(message).collect(),
            tools: tools.iter().map(tool).collect(),
            ..Default::default()
        };
        let input = Some(Input::Conversation(conversation));
        v1::GenerateRequest { model: model.into(), input, ..Default::default() }
    }

    #[test]
    fn system_message_tools_model_and_namespace_make_a_beginning() {
        use v1::Role::{System, User};
        let base = request("m", &[(System, "be kind"), (User, "hi")], &["a", "bc"]);
        let same = request("m", &[(System, "be kind"), (User, "other")], &["a", "bc"]);
        let of = |request: &v1::GenerateRequest| Prefix::of("t", request);
        assert!(of(&base).is_some());
        assert_eq!(of(&base), of(&same));
        for other in [
            request("n", &[(System, "be kind"), (User, "hi")], &["a", "bc"]),
            request("m", &[(System, "be brief"), (User, "hi")], &["a", "bc"]),
            request("m", &[(System, "be kind"), (User, "hi")], &["ab", "c"]),
            request("m", &[(System, "be kind"), (System, "hi")], &["a", "bc"]),
        ] {
            assert_ne!(of(&base), of(&other));
        }
        assert_ne!(Prefix::of("u", &base), of(&base));
        assert_eq!(of(&request("m", &[(User, "hi")], &[])), None);
        assert_eq!(of(&v1::GenerateRequest::default()), None);
    }

    #[test]
    fn the_latest_groups_are_remembered() {
        let (mut prefixes, prefix) = (Prefixes::default(), Prefix(1));
        assert_eq!(prefixes.groups(prefix), []);
        let groups: Vec<_> = (0..6).map(|n| GroupId::parse(&format!("g{n}")).unwrap()).collect();
        groups.iter().chain([&groups[3]]).for_each(|group| prefixes.sent(prefix, group));
        let latest = [3, 5, 4, 2].map(|n: usize| groups[n].clone());
        assert_eq!(prefixes.groups(prefix), latest);
    }
}
