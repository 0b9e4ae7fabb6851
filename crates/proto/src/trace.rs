//! Trace context in metadata, as W3C and OpenTelemetry write it.

use hawser_common::telemetry::TraceParent;
use tonic::metadata::MetadataMap;

const PARENT: &str = "traceparent";
const STATE: &str = "tracestate";

/// The caller's span; none where there is none or it is malformed.
#[must_use]
pub fn trace_parent(metadata: &MetadataMap) -> TraceParent {
    let text = |key| metadata.get(key).and_then(|value| value.to_str().ok());
    text(PARENT).map_or_else(TraceParent::default, |parent| TraceParent::parse(parent, text(STATE)))
}

/// Tells whoever is called which span calls.
pub fn set_trace_parent(metadata: &mut MetadataMap, parent: &TraceParent) {
    let Some((parent, state)) = parent.headers() else { return };
    if let Ok(parent) = parent.parse() {
        metadata.insert(PARENT, parent);
    }
    if let Some(Ok(state)) = state.map(|state| state.parse()) {
        metadata.insert(STATE, state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_is_heard() {
        let parent =
            TraceParent::parse("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", Some("a=b"));
        let mut metadata = MetadataMap::new();
        assert_eq!(trace_parent(&metadata), TraceParent::default());
        set_trace_parent(&mut metadata, &TraceParent::default());
        assert!(metadata.is_empty());
        set_trace_parent(&mut metadata, &parent);
        assert_eq!(trace_parent(&metadata), parent);
    }
}
