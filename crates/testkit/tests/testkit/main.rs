//! The test kit's own tests: the fake etcd beside a real one, and histories that the checks must refuse.

mod checks;
mod fake_etcd;
