//! Session handles: names that a router gives and only a router can make.
//!
//! A handle is `hs1.` and, in base64url, the session's id and a tag over the tenant and the id (HMAC-SHA256, cut to 128
//! bits). Clients send it back in place of an id. It is good for its tenant only: under another one the tag is wrong,
//! and what is said is the same as for a handle that was tampered with. Ids that clients choose stay as they are; one
//! that begins as handles do is refused.

use std::fmt;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hawser_common::{Coded, ErrorCode, SessionId, SessionKey, TenantId};
use ring::hmac;
use subtle::ConstantTimeEq as _;
use thiserror::Error;

/// What every handle begins with.
const PREFIX: &str = "hs1.";
const TAG_BYTES: usize = 16;
const MIN_SECRET_BYTES: usize = 16;
const MAX_SECRETS: usize = 8;
/// Longest handle: an id of 128 bytes and the tag.
const MAX_HANDLE_BYTES: usize = 256;

/// Secrets that cannot be used.
#[derive(Debug, Error)]
pub enum InvalidSecrets {
    #[error("{path:?} cannot be read: {source}")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{path:?} has {found} secrets; 1 to {MAX_SECRETS} lines are allowed")]
    Count { path: PathBuf, found: usize },
    #[error("line {line} of {path:?} has less than {MIN_SECRET_BYTES} bytes; try `openssl rand -hex 32`")]
    Short { path: PathBuf, line: usize },
}

impl Coded for InvalidSecrets {
    fn code(&self) -> ErrorCode {
        ErrorCode::Invalid
    }
}

/// A handle that no router of this cluster gave to this tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("session: the handle is not one that was given to this tenant")]
pub struct InvalidHandle;

/// Makes and reads handles. Without secrets it makes none.
#[derive(Default)]
pub(crate) struct Handles {
    secrets: Vec<hmac::Key>,
}

impl fmt::Debug for Handles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handles").field("secrets", &self.secrets.len()).finish()
    }
}

impl Handles {
    /// From a file of secrets, one a line; the first signs.
    pub(crate) fn load(path: Option<&Path>) -> Result<Self, InvalidSecrets> {
        let Some(path) = path else { return Ok(Self::default()) };
        let read = |source| InvalidSecrets::Read { path: path.to_owned(), source };
        let text = std::fs::read_to_string(path).map_err(read)?;
        let lines: Vec<_> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        if !(1..=MAX_SECRETS).contains(&lines.len()) {
            return Err(InvalidSecrets::Count { path: path.to_owned(), found: lines.len() });
        }
        if let Some(place) = lines.iter().position(|line| line.len() < MIN_SECRET_BYTES) {
            return Err(InvalidSecrets::Short { path: path.to_owned(), line: place + 1 });
        }
        let secrets = lines.iter().map(|line| hmac::Key::new(hmac::HMAC_SHA256, line.as_bytes())).collect();
        Ok(Self { secrets })
    }

    /// What a client is told to call the session.
    pub(crate) fn name(&self, key: &SessionKey) -> String {
        let Some(secret) = self.secrets.first() else { return key.session.to_string() };
        let mut content = key.session.as_str().as_bytes().to_vec();
        content.extend(tag(secret, &key.tenant, key.session.as_str()));
        format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(content))
    }

    /// Whether `text` is a handle, or would be one.
    pub(crate) fn is_handle(text: &str) -> bool {
        text.starts_with(PREFIX)
    }

    /// The session that a handle of `tenant` names.
    pub(crate) fn read(&self, tenant: &TenantId, text: &str) -> Result<SessionId, InvalidHandle> {
        let encoded =
            text.strip_prefix(PREFIX).filter(|_| text.len() <= MAX_HANDLE_BYTES).ok_or(InvalidHandle)?;
        let content = URL_SAFE_NO_PAD.decode(encoded).map_err(|_| InvalidHandle)?;
        let (id, given) =
            content.split_at_checked(content.len().wrapping_sub(TAG_BYTES)).ok_or(InvalidHandle)?;
        let id = std::str::from_utf8(id).map_err(|_| InvalidHandle)?;
        let good = self.secrets.iter().any(|secret| bool::from(tag(secret, tenant, id).ct_eq(given)));
        if good { SessionId::parse(id).map_err(|_| InvalidHandle) } else { Err(InvalidHandle) }
    }
}

/// The tenant's length comes first, so that tenant and id cannot be cut in another place.
fn tag(secret: &hmac::Key, tenant: &TenantId, session: &str) -> [u8; TAG_BYTES] {
    let mut context = hmac::Context::with_key(secret);
    context.update(&(tenant.as_str().len() as u64).to_be_bytes());
    context.update(tenant.as_str().as_bytes());
    context.update(session.as_bytes());
    let mut tag = [0; TAG_BYTES];
    tag.copy_from_slice(&context.sign().as_ref()[..TAG_BYTES]);
    tag
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn handles(secrets: &[&str]) -> Handles {
        let secrets = secrets.iter().map(|s| hmac::Key::new(hmac::HMAC_SHA256, s.as_bytes())).collect();
        Handles { secrets }
    }

    fn key(tenant: &str, session: &str) -> SessionKey {
        let tenant = TenantId::parse(tenant).unwrap();
        SessionKey { tenant, session: SessionId::parse(session).unwrap() }
    }

    #[test]
    fn without_a_secret_a_handle_is_the_id_and_nothing_passes_for_one() {
        let none = Handles::default();
        assert_eq!(none.name(&key("a", "s")), "s");
        let made = handles(&["one"]).name(&key("a", "s"));
        assert_eq!(none.read(&key("a", "s").tenant, &made), Err(InvalidHandle));
    }

    #[test]
    fn secrets_are_replaced_one_after_the_other() {
        let (old, both) = (handles(&["old"]), handles(&["new", "old"]));
        let (a, session) = (key("a", "s"), SessionId::parse("s").unwrap());
        assert_eq!(both.read(&a.tenant, &old.name(&a)), Ok(session.clone()));
        assert_eq!(handles(&["new"]).read(&a.tenant, &both.name(&a)), Ok(session));
        assert_eq!(handles(&["new"]).read(&a.tenant, &old.name(&a)), Err(InvalidHandle));
    }

    #[test]
    fn files_of_secrets_are_checked() {
        let dir = tempfile::tempdir().unwrap();
        let check = |text: &str| {
            let path = dir.path().join("secret");
            std::fs::write(&path, text).unwrap();
            Handles::load(Some(&path)).map(|handles| handles.secrets.len()).map_err(|error| error.to_string())
        };
        assert_eq!(check("0123456789abcdef\n\n fedcba9876543210 \n"), Ok(2));
        assert!(check("short").unwrap_err().contains("line 1"));
        assert!(check("\n").unwrap_err().contains("0 secrets"));
        assert!(Handles::load(Some(&dir.path().join("no"))).is_err());
    }

    proptest! {
        /// P6: a handle names its session to its tenant, and to nobody after any change.
        #[test]
        fn p6_a_handle_is_its_tenants_and_cannot_be_changed(
            tenant in "[a-z.]{1,12}",
            session in "[A-Za-z0-9._:-]{1,128}",
            place in any::<prop::sample::Index>(),
            other in any::<char>(),
        ) {
            let handles = handles(&["a secret"]);
            let key = key(&tenant, &session);
            let handle = handles.name(&key);
            prop_assert!(handle.len() <= MAX_HANDLE_BYTES && Handles::is_handle(&handle));
            prop_assert!(!handle.contains(&session) || session.len() < 12);
            prop_assert_eq!(handles.read(&key.tenant, &handle), Ok(key.session.clone()));

            let foreign = TenantId::parse(&format!("{tenant}x")).unwrap();
            prop_assert_eq!(handles.read(&foreign, &handle), Err(InvalidHandle));
            let mut changed: Vec<char> = handle.chars().collect();
            let place = place.index(changed.len());
            if changed[place] != other {
                changed[place] = other;
                let changed: String = changed.into_iter().collect();
                prop_assert_eq!(handles.read(&key.tenant, &changed), Err(InvalidHandle), "{}", changed);
            }
            prop_assert_eq!(handles.read(&key.tenant, &handle[..handle.len() - 1]), Err(InvalidHandle));
            // A byte that moves from the tenant to the session is another pair.
            if let Some((last, rest)) = tenant.split_at_checked(1).filter(|(_, rest)| !rest.is_empty()) {
                let moved = TenantId::parse(last).unwrap();
                let session = format!("{rest}{session}");
                if session.len() <= 128 {
                    let moved = SessionKey { tenant: moved, session: SessionId::parse(&session).unwrap() };
                    prop_assert_ne!(handles.name(&moved), handle);
                }
            }
        }
    }
}
