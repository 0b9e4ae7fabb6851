//! Wire ↔ domain. Inwards a conversion parses and may refuse, naming the field; outwards it cannot fail.

mod chat;
mod error;
mod group;
mod ids;
mod retention;
mod sampling;
mod turn;

pub use chat::{MAX_CONTENT_BYTES, MAX_MESSAGES, MAX_TOOL_CALLS, MAX_TOOLS, conversation, message, tool};
pub use error::InvalidRequest;
pub use group::{capacity, group_record, owner};
pub use ids::{group_id, optional_session, route, session_id, session_key};
pub use retention::{MAX_INTENT_BYTES, MAX_INTENT_SPANS, intent, retention};
pub use sampling::sampling;
pub use turn::{MAX_INPUT_TOKENS, MAX_MODEL_BYTES, begun, extent, model_name, optional_model, turn_request};
