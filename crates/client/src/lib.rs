//! The Rust SDK: sessions that resend their history by themselves when a group is lost.
