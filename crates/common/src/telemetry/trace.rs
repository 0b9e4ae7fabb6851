//! Spans, and what travels between processes so that their spans become one trace.
//!
//! Times are given and not taken, because the work of a turn is timed by the scheduler's clock and told afterwards.
//! Promises that a span ends exactly once, at the latest when it is dropped, and that a trace that comes in goes out
//! again where this process records nothing.

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use opentelemetry::global::BoxedTracer;
use opentelemetry::trace::{
    Span as _, SpanBuilder, SpanContext, SpanId, Status, TraceContextExt as _, TraceFlags, TraceId,
    TraceState, Tracer as _,
};
use opentelemetry::{Context, KeyValue};

pub use opentelemetry::trace::SpanKind;

use crate::ErrorCode;

/// Longest `tracestate` that is passed on; W3C asks for at least 512.
const MAX_STATE_BYTES: usize = 512;

/// The span that others hang under, as W3C Trace Context has it; none where there is no trace.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TraceParent(Option<SpanContext>);

impl TraceParent {
    /// What the headers `traceparent` and `tracestate` say. What is malformed counts as not there, as W3C asks for.
    #[must_use]
    pub fn parse(parent: &str, state: Option<&str>) -> Self {
        let state = state.filter(|state| state.len() <= MAX_STATE_BYTES).and_then(|state| state.parse().ok());
        Self(parse(parent, state.unwrap_or_default()))
    }

    /// Both headers; the second where there is something to say.
    #[must_use]
    pub fn headers(&self) -> Option<(String, Option<String>)> {
        let context = self.0.as_ref()?;
        let (trace, span) = (context.trace_id(), context.span_id());
        // Flags that this version does not know are not passed on.
        let flags = u8::from(context.is_sampled());
        let state = context.trace_state().header();
        Some((format!("00-{trace}-{span}-{flags:02x}"), (!state.is_empty()).then_some(state)))
    }

    /// Whether somebody upstream records the trace.
    #[must_use]
    pub fn is_sampled(&self) -> bool {
        self.0.as_ref().is_some_and(SpanContext::is_sampled)
    }

    /// For log lines.
    #[must_use]
    pub fn trace_id(&self) -> Option<String> {
        self.0.as_ref().map(|context| context.trace_id().to_string())
    }

    /// Trace and span of a trace that is recorded, for messages that are not gRPC.
    #[must_use]
    pub fn ids(&self) -> Option<(u128, u64)> {
        let context = self.0.as_ref().filter(|context| context.is_sampled())?;
        let trace = u128::from_be_bytes(context.trace_id().to_bytes());
        Some((trace, u64::from_be_bytes(context.span_id().to_bytes())))
    }

    /// The other side of [`TraceParent::ids`].
    #[must_use]
    pub fn from_ids((trace, span): (u128, u64)) -> Self {
        let (trace, span) =
            (TraceId::from_bytes(trace.to_be_bytes()), SpanId::from_bytes(span.to_be_bytes()));
        let context = SpanContext::new(trace, span, TraceFlags::SAMPLED, true, TraceState::default());
        Self(context.is_valid().then_some(context))
    }
}

/// `00-{32 hex}-{16 hex}-{2 hex}`; later versions may go on behind it.
fn parse(text: &str, state: TraceState) -> Option<SpanContext> {
    let mut parts = text.split('-');
    let (version, trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let is_hex = |text: &str, len: usize| {
        text.len() == len && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    };
    let is_well_formed = is_hex(version, 2) && is_hex(trace, 32) && is_hex(span, 16) && is_hex(flags, 2);
    if !is_well_formed || version == "ff" || (version == "00" && parts.next().is_some()) {
        return None;
    }
    let flags = TraceFlags::new(u8::from_str_radix(flags, 16).ok()? & 1);
    let (trace, span) = (TraceId::from_hex(trace).ok()?, SpanId::from_hex(span).ok()?);
    let context = SpanContext::new(trace, span, flags, true, state);
    context.is_valid().then_some(context)
}

/// Starts spans. One that is off starts none.
#[derive(Clone, Default)]
pub struct Tracer(Option<Arc<BoxedTracer>>);

impl fmt::Debug for Tracer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tracer").field("on", &self.0.is_some()).finish()
    }
}

impl Tracer {
    #[must_use]
    pub fn new(tracer: BoxedTracer) -> Self {
        Self(Some(Arc::new(tracer)))
    }

    /// Whether spans go anywhere.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// A span under `parent`, or the first of a trace, that began at `from`. Whether it is recorded is decided with a
    /// trace's first span.
    #[must_use]
    pub fn span(&self, name: &'static str, kind: SpanKind, parent: &TraceParent, from: SystemTime) -> Span {
        let Some(tracer) = &self.0 else {
            return Span { tracer: Self(None), span: None, parent: parent.clone(), to: None };
        };
        let above = match &parent.0 {
            Some(context) => Context::new().with_remote_span_context(context.clone()),
            None => Context::new(),
        };
        let builder = SpanBuilder::from_name(name).with_kind(kind).with_start_time(from);
        let span = tracer.build_with_context(builder, &above);
        let parent = TraceParent(Some(span.span_context().clone()).filter(SpanContext::is_valid));
        Span { tracer: self.clone(), span: Some(span), parent, to: None }
    }
}

/// A span that runs. It ends when it is dropped.
pub struct Span {
    tracer: Tracer,
    span: Option<opentelemetry::global::BoxedSpan>,
    /// What hangs under this span is told so.
    parent: TraceParent,
    /// Its end, where that is known.
    to: Option<SystemTime>,
}

impl fmt::Debug for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Span").field("parent", &self.parent).finish_non_exhaustive()
    }
}

impl Span {
    /// What other processes are told: this span, or what came in where nothing is recorded here.
    #[must_use]
    pub fn parent(&self) -> &TraceParent {
        &self.parent
    }

    /// Whether it is worth describing.
    #[must_use]
    pub fn is_recording(&self) -> bool {
        self.span.as_ref().is_some_and(|span| span.is_recording())
    }

    /// Notes a text.
    pub fn text(&mut self, key: &'static str, text: impl fmt::Display) {
        self.note(key, || text.to_string().into());
    }

    /// Notes a number.
    pub fn number(&mut self, key: &'static str, number: u64) {
        self.note(key, || i64::try_from(number).unwrap_or(i64::MAX).into());
    }

    fn note(&mut self, key: &'static str, value: impl FnOnce() -> opentelemetry::Value) {
        if let Some(span) = self.span.as_mut().filter(|span| span.is_recording()) {
            span.set_attribute(KeyValue::new(key, value()));
        }
    }

    /// Something that happened at one time, with numbers.
    pub fn event(&mut self, name: &'static str, at: SystemTime, numbers: &[(&'static str, u64)]) {
        if let Some(span) = self.span.as_mut().filter(|span| span.is_recording()) {
            let number = |&(key, number): &(&'static str, u64)| {
                KeyValue::new(key, i64::try_from(number).unwrap_or(i64::MAX))
            };
            span.add_event_with_timestamp(name, at, numbers.iter().map(number).collect());
        }
    }

    /// A part of it whose begin and end are known.
    #[must_use]
    pub fn child(&self, name: &'static str, from: SystemTime, to: SystemTime) -> Span {
        let tracer = if self.is_recording() { self.tracer.clone() } else { Tracer(None) };
        let mut child = tracer.span(name, SpanKind::Internal, &self.parent, from);
        child.to = Some(to.max(from));
        child
    }

    /// It failed, with this code and for this reason.
    pub fn failed(&mut self, code: ErrorCode, reason: impl fmt::Display) {
        self.text("error.type", code.name());
        if let Some(span) = self.span.as_mut().filter(|span| span.is_recording()) {
            span.set_status(Status::error(reason.to_string()));
        }
    }

    /// It ended at `to`.
    pub fn end(mut self, to: SystemTime) {
        self.to = Some(to);
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        let Some(mut span) = self.span.take() else { return };
        match self.to {
            Some(to) => span.end_with_timestamp(to),
            None => span.end(),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn what_w3c_shows_is_read_and_written() {
        let parent = TraceParent::parse(PARENT, Some("vendor=abc"));
        assert!(parent.is_sampled());
        assert_eq!(parent.trace_id().as_deref(), Some("0af7651916cd43dd8448eb211c80319c"));
        assert_eq!(parent.headers(), Some((PARENT.to_owned(), Some("vendor=abc".to_owned()))));
        let later = format!("cc{}-what-comes-then", &PARENT[2..]);
        assert_eq!(TraceParent::parse(&later, None).headers(), Some((PARENT.to_owned(), None)));
        let flags = format!("{}ff", &PARENT[..PARENT.len() - 2]);
        assert_eq!(TraceParent::parse(&flags, None).headers(), Some((PARENT.to_owned(), None)));
    }

    #[test]
    fn what_is_malformed_is_not_there() {
        let zero_trace = PARENT.replace("0af7651916cd43dd8448eb211c80319c", &"0".repeat(32));
        let zero_span = PARENT.replace("b7ad6b7169203331", &"0".repeat(16));
        let (upper, short) = (PARENT.to_uppercase(), &PARENT[..PARENT.len() - 1]);
        let (version, longer) = (PARENT.replacen("00", "ff", 1), format!("{PARENT}-00"));
        for text in ["", "00", "-", &zero_trace, &zero_span, &upper, short, &version, &longer, "00-é-b-c"] {
            assert_eq!(TraceParent::parse(text, None), TraceParent::default(), "{text:?}");
        }
        let state = "a=".to_owned() + &"b".repeat(600);
        assert_eq!(TraceParent::parse(PARENT, Some(&state)).headers(), Some((PARENT.to_owned(), None)));
    }

    #[test]
    fn a_trace_passes_through_where_nothing_is_recorded() {
        let parent = TraceParent::parse(PARENT, None);
        let mut span = Tracer::default().span("turn", SpanKind::Server, &parent, SystemTime::UNIX_EPOCH);
        span.text("key", "value");
        assert!(!span.is_recording());
        assert_eq!(span.parent(), &parent);
        let child = span.child("part", SystemTime::UNIX_EPOCH, SystemTime::UNIX_EPOCH);
        assert_eq!(child.parent(), &parent);
    }

    proptest! {
        #[test]
        fn whatever_is_written_is_read_back(trace in 1u128.., span in 1u64.., sampled in any::<bool>()) {
            let text = format!("00-{trace:032x}-{span:016x}-{:02x}", u8::from(sampled));
            let parent = TraceParent::parse(&text, None);
            prop_assert_eq!(parent.headers(), Some((text, None)));
            prop_assert_eq!(parent.is_sampled(), sampled);
            prop_assert_eq!(parent.ids(), sampled.then_some((trace, span)));
            if let Some(ids) = parent.ids() {
                prop_assert_eq!(TraceParent::from_ids(ids), parent);
            }
        }

        #[test]
        fn no_text_makes_it_fail(text in "\\PC*", state in "\\PC*") {
            let parent = TraceParent::parse(&text, Some(&state));
            prop_assert!(parent.headers().is_none_or(|(written, _)| written.len() == PARENT.len()));
        }
    }
}
