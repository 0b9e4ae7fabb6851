//! CPU kernels over slot lists and packed weights; the only crate with unsafe code.
