//! Why a request was refused at the edge.

use hawser_common::ids::InvalidId;
use hawser_common::retention::InvalidRetention;
use hawser_common::sampling::InvalidSampling;
use hawser_common::{Coded, ErrorCode};
use thiserror::Error;

/// A field of a request that is missing, malformed or out of its bounds. Fields are named as in the `.proto` files.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum InvalidRequest {
    #[error("{field}: {source}")]
    Id { field: &'static str, source: InvalidId },
    #[error("{field} is missing; {expected}")]
    Missing { field: &'static str, expected: &'static str },
    #[error("{field} is empty; {expected}")]
    Empty { field: &'static str, expected: &'static str },
    #[error("{field} has {found} {unit}; at most {limit} are allowed")]
    TooMany { field: String, found: usize, limit: usize, unit: &'static str },
    #[error("{field} is {found}; use {allowed}")]
    Unknown { field: String, found: String, allowed: String },
    #[error("{field} is set; it belongs to {belongs} messages only")]
    Misplaced { field: String, belongs: &'static str },
    #[error("{field} is not a JSON object: {reason}")]
    Json { field: String, reason: String },
    #[error("sampling.{0}")]
    Sampling(#[from] InvalidSampling),
    #[error(transparent)]
    Retention(#[from] InvalidRetention),
}

impl Coded for InvalidRequest {
    fn code(&self) -> ErrorCode {
        ErrorCode::Invalid
    }
}
