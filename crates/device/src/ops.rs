//! The small operations of a layer: norms, rotary embedding, gated activation, residual addition.
//!
//! Promises that each row's result depends on that row only, bit for bit, whatever the batch and the threads. Works
//! in place where it can and allocates nothing.

use std::ops::Range;

use crate::cpu::Isa;
use crate::threads::{SharedMut, Threads, split};

mod gate;
mod norm;
mod rope;

pub use gate::silu_mul;
pub use norm::{rms_norm, rms_norm_heads};
pub use rope::{Phases, Rope};

/// Numbers below which starting other threads costs more than it saves.
const LEAST_SHARED: usize = 1 << 14;

/// Adds `y` to `x`, number by number.
///
/// # Panics
/// If their lengths differ.
pub fn add_assign(threads: &Threads, x: &mut [f32], y: &[f32]) {
    assert_eq!(x.len(), y.len(), "one addend per number");
    let len = x.len();
    let x = SharedMut::new(x);
    share(threads, len, 1, &|part: Range<usize>| {
        // SAFETY: parts are disjoint.
        let x = unsafe { x.slice(part.clone()) };
        x.iter_mut().zip(&y[part]).for_each(|(x, y)| *x += y);
    });
}

/// Cuts `rows` rows of `len` numbers into parts, one per thread, or does all of them here if there are few.
fn share(threads: &Threads, rows: usize, len: usize, job: &(dyn Fn(Range<usize>) + Sync)) {
    if rows * len < LEAST_SHARED {
        job(0..rows);
        return;
    }
    // Cache lines of single numbers stay with one thread.
    let align = 16_usize.div_ceil(len.max(1));
    threads.run(&|index| job(split(rows, threads.count(), index, align)));
}

/// The instruction set of all operations here; tests compare the others with it.
fn isa() -> Isa {
    Isa::best()
}

#[cfg(test)]
mod tests;
