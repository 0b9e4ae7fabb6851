//! Identifiers, parsed once at the edge.

use std::fmt;
use std::sync::Arc;

use thiserror::Error;

/// Longest id in bytes.
pub const MAX_ID_BYTES: usize = 128;

/// Why a text is not an id.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum InvalidId {
    #[error("{kind} id is empty")]
    Empty { kind: &'static str },
    #[error("{kind} id has {bytes} bytes; at most {MAX_ID_BYTES} are allowed")]
    TooLong { kind: &'static str, bytes: usize },
    #[error("{kind} id has the character {found:?}; allowed are letters, digits and . _ : -")]
    Character { kind: &'static str, found: char },
}

fn parse(kind: &'static str, text: &str) -> Result<Arc<str>, InvalidId> {
    if text.is_empty() {
        return Err(InvalidId::Empty { kind });
    }
    if text.len() > MAX_ID_BYTES {
        return Err(InvalidId::TooLong { kind, bytes: text.len() });
    }
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | ':' | '-');
    match text.chars().find(|&c| !allowed(c)) {
        Some(found) => Err(InvalidId::Character { kind, found }),
        None => Ok(Arc::from(text)),
    }
}

macro_rules! text_id {
    ($(#[$doc:meta])* $name:ident, $kind:literal) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            /// # Errors
            /// [`InvalidId`] unless `text` is 1 to [`MAX_ID_BYTES`] of `[A-Za-z0-9._:-]`.
            pub fn parse(text: &str) -> Result<Self, InvalidId> {
                parse($kind, text).map(Self)
            }

            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}", self.0)
            }
        }

        impl std::str::FromStr for $name {
            type Err = InvalidId;
            fn from_str(text: &str) -> Result<Self, InvalidId> {
                Self::parse(text)
            }
        }
    };
}

text_id!(
    /// A session, unique within its tenant.
    SessionId, "session"
);
text_id!(
    /// Whose sessions these are. Tenants never share a prefix.
    TenantId, "tenant"
);
text_id!(
    /// A worker group: one model replica.
    GroupId, "group"
);

impl TenantId {
    /// The tenant of a cluster without keys.
    #[must_use]
    pub fn single() -> Self {
        Self(Arc::from("default"))
    }
}

/// A session's full name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionKey {
    pub tenant: TenantId,
    pub session: SessionId,
}

/// One registration of a group: grows with every registration in a store, so a stale owner can be told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub u64);

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_take_their_alphabet_and_nothing_else() {
        assert_eq!(
            SessionId::parse("agent-7:run.3_b").map(|id| id.to_string()),
            Ok("agent-7:run.3_b".to_owned())
        );
        assert_eq!(SessionId::parse(""), Err(InvalidId::Empty { kind: "session" }));
        assert_eq!(GroupId::parse("a/b"), Err(InvalidId::Character { kind: "group", found: '/' }));
        assert_eq!(TenantId::parse(&"x".repeat(129)), Err(InvalidId::TooLong { kind: "tenant", bytes: 129 }));
    }
}
