//! The file of API keys: who may call, as whom, and within which limits. Pure: from its text to what it says.
//!
//! ```toml
//! [[keys]]
//! tenant = "team-a"
//! sha256 = "…64 hexadecimal digits…"
//! name = "the build server"      # for people; may be left out
//! operator = false               # may list groups and join workers; false where it is left out
//!
//! [tenants.team-a]               # limits other than the router's defaults; may be left out
//! max_sessions = 500
//! ```
//!
//! Keys are kept as SHA-256: they are drawn at random with 256 bits, so that nothing is gained by a slow hash.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use hawser_common::ids::InvalidId;
use hawser_common::{Coded, ErrorCode, Secret, TenantId};
use serde::Deserialize;
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;
use thiserror::Error;

use crate::options::InvalidOptions;
use crate::quota::{Quota, QuotaChoice};

/// Most keys of one file.
const MAX_KEYS: usize = 10_000;
/// Largest file.
pub(crate) const MAX_BYTES: usize = 4 << 20;
/// What a key that [`ApiKey::draw`] made begins with, so that one that leaked is recognised.
const PREFIX: &str = "hawser-";

type Hash = [u8; 32];

/// A file of keys that cannot be used. Texts name entries by their place, from 1.
#[derive(Debug, Error)]
pub enum InvalidKeys {
    #[error("it cannot be read: {0}")]
    Read(#[from] std::io::Error),
    #[error("it has {bytes} bytes; at most {MAX_BYTES} are allowed")]
    TooLarge { bytes: u64 },
    #[error("it is no list of keys: {reason}")]
    Malformed { reason: String },
    #[error("it has {found} keys; 1 to {MAX_KEYS} are allowed")]
    Count { found: usize },
    #[error("key {place}: {source}")]
    Tenant { place: usize, source: InvalidId },
    #[error("key {place}: sha256 is not 64 hexadecimal digits; make a key with `hawser key`")]
    Hash { place: usize },
    #[error("key {place} is key {first} again")]
    Twice { place: usize, first: usize },
    #[error("tenants.{tenant}: {source}")]
    Limits { tenant: String, source: InvalidOptions },
    #[error("tenants.{tenant} has no key")]
    Keyless { tenant: String },
}

impl Coded for InvalidKeys {
    fn code(&self) -> ErrorCode {
        ErrorCode::Invalid
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    keys: Vec<Line>,
    #[serde(default)]
    tenants: BTreeMap<String, QuotaChoice>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    tenant: String,
    sha256: String,
    #[serde(default)]
    operator: bool,
    #[serde(default, rename = "name")]
    _name: Option<String>,
}

/// Whom a key stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Caller {
    pub(crate) tenant: TenantId,
    pub(crate) operator: bool,
    pub(crate) quota: Quota,
}

/// Every key there is.
pub(crate) struct Keys {
    /// By the first bytes of the hash. Nobody can choose a hash, so that the place says nothing about the rest of it;
    /// the whole is compared in constant time.
    by_hash: HashMap<[u8; 8], Vec<(Hash, Caller)>>,
    count: usize,
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keys").field("count", &self.count).finish_non_exhaustive()
    }
}

impl Keys {
    pub(crate) fn parse(text: &str, defaults: &Quota) -> Result<Self, InvalidKeys> {
        // The message, not the excerpt that comes with it, which might show a key that was put into the wrong place.
        let malformed =
            |error: toml::de::Error| InvalidKeys::Malformed { reason: error.message().to_owned() };
        let file: File = toml::from_str(text).map_err(malformed)?;
        if !(1..=MAX_KEYS).contains(&file.keys.len()) {
            return Err(InvalidKeys::Count { found: file.keys.len() });
        }
        let mut quotas = BTreeMap::new();
        for (tenant, choice) in &file.tenants {
            let quota = choice.over(defaults);
            let named = |source| InvalidKeys::Limits { tenant: tenant.clone(), source };
            quota.validate().map_err(named)?;
            quotas.insert(tenant.as_str(), quota);
        }
        let (mut by_hash, mut places) = (HashMap::<_, Vec<_>>::new(), HashMap::new());
        for (line, place) in file.keys.iter().zip(1..) {
            let tenant =
                TenantId::parse(&line.tenant).map_err(|source| InvalidKeys::Tenant { place, source })?;
            let hash = unhex(&line.sha256).ok_or(InvalidKeys::Hash { place })?;
            if let Some(first) = places.insert(hash, place) {
                return Err(InvalidKeys::Twice { place, first });
            }
            let quota = quotas.get(tenant.as_str()).unwrap_or(defaults).clone();
            let caller = Caller { tenant, operator: line.operator, quota };
            by_hash.entry(bucket(&hash)).or_default().push((hash, caller));
        }
        let used = |tenant: &String| file.keys.iter().any(|line| line.tenant == *tenant);
        if let Some(tenant) = file.tenants.keys().find(|tenant| !used(tenant)) {
            return Err(InvalidKeys::Keyless { tenant: tenant.clone() });
        }
        Ok(Self { by_hash, count: places.len() })
    }

    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Whom `key` stands for.
    pub(crate) fn caller(&self, key: &str) -> Option<&Caller> {
        let hash = sha256(key);
        let found = self.by_hash.get(&bucket(&hash))?.iter().find(|(known, _)| known.ct_eq(&hash).into());
        found.map(|(_, caller)| caller)
    }
}

/// A key that was just made.
#[derive(Clone, Debug)]
pub struct ApiKey(Secret);

impl ApiKey {
    /// 256 random bits.
    #[must_use]
    pub fn draw() -> Self {
        let bits: [u8; 32] = rand::random();
        Self(Secret::new(format!("{PREFIX}{}", hex(&bits))))
    }

    /// What a client sends.
    #[must_use]
    pub fn secret(&self) -> &Secret {
        &self.0
    }

    /// What the file of keys holds.
    #[must_use]
    pub fn sha256(&self) -> String {
        hex(&sha256(self.0.expose()))
    }
}

fn sha256(text: &str) -> Hash {
    Sha256::digest(text.as_bytes()).into()
}

fn bucket(hash: &Hash) -> [u8; 8] {
    let mut first = [0; 8];
    first.copy_from_slice(&hash[..8]);
    first
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<Hash> {
    let mut hash = [0; 32];
    if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    for (byte, place) in hash.iter_mut().zip((0..64).step_by(2)) {
        *byte = u8::from_str_radix(&text[place..place + 2], 16).ok()?;
    }
    Some(hash)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SHA-256 of "abc", from FIPS 180-2.
    const ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    fn parse(text: &str) -> Result<Keys, InvalidKeys> {
        Keys::parse(text, &Quota::default())
    }

    #[test]
    fn a_key_stands_for_its_tenant_with_its_limits() {
        let drawn = ApiKey::draw();
        let text = format!(
            "[[keys]]\ntenant = \"a\"\nsha256 = \"{}\"\n[[keys]]\ntenant = \"b\"\nsha256 = \"{}\"\noperator = true\n\
             name = \"x\"\n[tenants.a]\nmax_sessions = 7\n",
            ABC.to_uppercase(),
            drawn.sha256()
        );
        let keys = parse(&text).unwrap();
        let a = keys.caller("abc").unwrap();
        assert_eq!((a.tenant.as_str(), a.operator, a.quota.max_sessions), ("a", false, 7));
        assert_eq!(a.quota.max_queued, Quota::default().max_queued);
        let b = keys.caller(drawn.secret().expose()).unwrap();
        assert_eq!((b.tenant.as_str(), b.operator, b.quota.clone()), ("b", true, Quota::default()));
        for wrong in ["", "ab", "abcd", ABC, drawn.sha256().as_str()] {
            assert_eq!(keys.caller(wrong), None, "{wrong:?}");
        }
        assert_eq!(keys.count(), 2);
    }

    #[test]
    fn two_drawn_keys_differ_and_are_not_printed() {
        let (a, b) = (ApiKey::draw(), ApiKey::draw());
        assert_ne!(a.secret().expose(), b.secret().expose());
        assert!(a.secret().expose().len() > 64 && !format!("{a:?}").contains(a.secret().expose()));
    }

    #[test]
    fn a_file_that_cannot_be_meant_is_refused_without_showing_it() {
        let key =
            |tenant: &str, hash: &str| format!("[[keys]]\ntenant = \"{tenant}\"\nsha256 = \"{hash}\"\n");
        let good = key("a", ABC);
        for (text, says) in [
            (String::new(), "0 keys"),
            ("keys = 3".to_owned(), "no list of keys"),
            (key("a b", ABC), "key 1: tenant id"),
            (key("a", "secret-in-plain-text"), "key 1: sha256"),
            (key("a", &"é".repeat(32)), "key 1: sha256"),
            (format!("{good}{good}"), "key 2 is key 1 again"),
            (format!("{good}[tenants.a]\nweight = 0\n"), "tenants.a: quota.weight is 0"),
            (format!("{good}[tenants.a]\nmax_session = 1\n"), "max_session"),
            (format!("{good}[tenants.z]\n"), "tenants.z has no key"),
            (format!("{good}secret = \"secret-in-plain-text\"\n"), "secret"),
        ] {
            let error = parse(&text).unwrap_err().to_string();
            assert!(error.contains(says) && !error.contains("secret-in-plain-text"), "{text}: {error}");
        }
    }
}
