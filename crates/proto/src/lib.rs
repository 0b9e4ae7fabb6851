//! The wire contract: generated code, conversions, and the only maker of tonic::Status.
