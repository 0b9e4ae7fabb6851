//! Where things are in etcd. One key per group, per group's capacity and per session, below one prefix.
//!
//! Names come as ids, whose alphabet has no slash: a name cannot leave its place, and a key is read back as what it
//! was made of. What this version does not know below the prefix is left alone.

use hawser_common::{GroupId, SessionId, SessionKey, TenantId};

const GROUPS: &str = "groups";
const CAPACITY: &str = "capacity";
const SESSIONS: &str = "sessions";

/// Makes and reads keys below one prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Keys {
    /// With its final slash.
    prefix: String,
}

/// What a key stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Key {
    Group(GroupId),
    Capacity(GroupId),
    Session(SessionKey),
}

impl Keys {
    /// `prefix` without a final slash.
    pub(super) fn new(prefix: &str) -> Self {
        Self { prefix: format!("{prefix}/") }
    }

    /// The first key, and the first one after the last.
    pub(super) fn range(&self) -> (Vec<u8>, Vec<u8>) {
        let start = self.prefix.clone().into_bytes();
        let mut end = start.clone();
        // The character after the slash.
        end.pop();
        end.push(b'/' + 1);
        (start, end)
    }

    /// The keys of all groups: the first one, and the first one after the last.
    pub(super) fn groups(&self) -> (Vec<u8>, Vec<u8>) {
        // The character after the slash.
        let end = char::from(b'/' + 1);
        (
            format!("{}{GROUPS}/", self.prefix).into_bytes(),
            format!("{}{GROUPS}{end}", self.prefix).into_bytes(),
        )
    }

    pub(super) fn group(&self, group: &GroupId) -> String {
        format!("{}{GROUPS}/{group}", self.prefix)
    }

    pub(super) fn capacity(&self, group: &GroupId) -> String {
        format!("{}{CAPACITY}/{group}", self.prefix)
    }

    pub(super) fn session(&self, session: &SessionKey) -> String {
        format!("{}{SESSIONS}/{}/{}", self.prefix, session.tenant, session.session)
    }

    /// `None` for a key that this version did not make.
    pub(super) fn parse(&self, key: &[u8]) -> Option<Key> {
        let rest = std::str::from_utf8(key).ok()?.strip_prefix(&self.prefix)?;
        let (kind, name) = rest.split_once('/')?;
        // An id with a slash in it does not parse, so a key with more parts is none of these.
        match kind {
            GROUPS => GroupId::parse(name).ok().map(Key::Group),
            CAPACITY => GroupId::parse(name).ok().map(Key::Capacity),
            SESSIONS => {
                let (tenant, session) = name.split_once('/')?;
                let (tenant, session) = (TenantId::parse(tenant).ok()?, SessionId::parse(session).ok()?);
                Some(Key::Session(SessionKey { tenant, session }))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::conformance::{group, key};

    fn keys() -> Keys {
        Keys::new("/hawser/v1")
    }

    #[test]
    fn keys_are_where_the_documentation_says() {
        let keys = keys();
        assert_eq!(keys.group(&group("g")), "/hawser/v1/groups/g");
        assert_eq!(keys.capacity(&group("g")), "/hawser/v1/capacity/g");
        assert_eq!(keys.session(&key("t", "s")), "/hawser/v1/sessions/t/s");
        assert_eq!(keys.groups(), (b"/hawser/v1/groups/".to_vec(), b"/hawser/v1/groups0".to_vec()));
        assert_eq!(keys.range(), (b"/hawser/v1/".to_vec(), b"/hawser/v10".to_vec()));
    }

    #[test]
    fn what_is_not_ours_is_left_alone() {
        for foreign in [
            "/hawser/v1/groups/",
            "/hawser/v1/groups/a/b",
            "/hawser/v1/sessions/t",
            "/hawser/v1/sessions//s",
            "/hawser/v1/sessions/t/",
            "/hawser/v1/sessions/t/s/u",
            "/hawser/v1/ranks/g/7/nccl",
            "/hawser/v1/",
            "/hawser/v10/groups/g",
            "/hawser/v2/groups/g",
            "",
        ] {
            assert_eq!(keys().parse(foreign.as_bytes()), None, "{foreign:?}");
        }
        assert_eq!(keys().parse(b"/hawser/v1/groups/\xff"), None);
    }

    proptest! {
        #[test]
        fn names_stay_in_their_place_and_come_back(
            tenant in "[A-Za-z0-9._:-]{1,128}",
            session in "[A-Za-z0-9._:-]{1,128}",
        ) {
            let (keys, group) = (keys(), GroupId::parse(&session).unwrap());
            let session = key(&tenant, &session);
            let (start, end) = keys.range();
            for (text, meant) in [
                (keys.session(&session), Key::Session(session.clone())),
                (keys.group(&group), Key::Group(group.clone())),
                (keys.capacity(&group), Key::Capacity(group.clone())),
            ] {
                prop_assert_eq!(keys.parse(text.as_bytes()), Some(meant));
                prop_assert!(text.as_bytes() > start.as_slice() && text.as_bytes() < end.as_slice());
            }
        }

        #[test]
        fn a_name_with_anything_else_in_it_is_refused_before_it_is_a_key(name in "\\PC{1,20}") {
            let legal = name.chars().all(|c| c.is_ascii_alphanumeric() || "._:-".contains(c));
            prop_assert_eq!(TenantId::parse(&name).is_ok(), legal);
            prop_assert_eq!(SessionId::parse(&name).is_ok(), legal);
            prop_assert_eq!(GroupId::parse(&name).is_ok(), legal);
        }
    }
}
