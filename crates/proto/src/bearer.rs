//! API keys as calls carry them: `authorization: Bearer <key>`, on both sides.

use hawser_common::{Coded, ErrorCode, Secret};
use thiserror::Error;
use tonic::metadata::{AsciiMetadataValue, MetadataMap};
use tonic::service::Interceptor;
use tonic::{Request, Status};

const HEADER: &str = "authorization";
const SCHEME: &str = "bearer";

/// A key that cannot be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "the API key is empty or has characters that a header cannot carry; use printable ASCII without spaces"
)]
pub struct InvalidKey;

impl Coded for InvalidKey {
    fn code(&self) -> ErrorCode {
        ErrorCode::Invalid
    }
}

/// Adds a key to every call, where there is one.
#[derive(Clone, Debug, Default)]
pub struct Bearer(Option<AsciiMetadataValue>);

impl Bearer {
    /// # Errors
    /// [`InvalidKey`].
    pub fn new(key: Option<&Secret>) -> Result<Self, InvalidKey> {
        let Some(key) = key else { return Ok(Self(None)) };
        let text = key.expose();
        if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(InvalidKey);
        }
        let mut value = AsciiMetadataValue::try_from(format!("Bearer {text}")).map_err(|_| InvalidKey)?;
        // Not printed with the request, and not put into the tables that compress headers.
        value.set_sensitive(true);
        Ok(Self(Some(value)))
    }
}

impl Interceptor for Bearer {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(value) = &self.0 {
            request.metadata_mut().insert(HEADER, value.clone());
        }
        Ok(request)
    }
}

/// The key that a call came with. The name of the scheme is matched in any case, as HTTP has it.
#[must_use]
pub fn token(metadata: &MetadataMap) -> Option<&str> {
    let (scheme, key) = metadata.get(HEADER)?.to_str().ok()?.split_once(' ')?;
    let key = key.trim();
    (scheme.eq_ignore_ascii_case(SCHEME) && !key.is_empty()).then_some(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sent_is_what_is_read_and_is_not_printed() {
        let mut bearer = Bearer::new(Some(&Secret::new("hk-1_x"))).unwrap();
        let request = bearer.call(Request::new(())).unwrap();
        assert_eq!(token(request.metadata()), Some("hk-1_x"));
        assert!(!format!("{request:?} {bearer:?}").contains("hk-1"), "{request:?} {bearer:?}");
        let bare = Bearer::new(None).unwrap().call(Request::new(())).unwrap();
        assert_eq!(token(bare.metadata()), None);
        for wrong in ["", "a b", "a\n", "é"] {
            assert!(Bearer::new(Some(&Secret::new(wrong))).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn other_schemes_are_no_keys() {
        let read = |text: &str| {
            let mut metadata = MetadataMap::new();
            metadata.insert(HEADER, text.parse().unwrap());
            token(&metadata).map(str::to_owned)
        };
        assert_eq!(read("bearer  k").as_deref(), Some("k"));
        for wrong in ["k", "Bearer", "Bearer ", "Basic k", "Bearerk"] {
            assert_eq!(read(wrong), None, "{wrong:?}");
        }
    }
}
