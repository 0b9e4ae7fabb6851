//! The session-affine entry point: admission, affinity, balance, relay.
