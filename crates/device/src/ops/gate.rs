//! The gated activation of a feed-forward block: silu(gate) · up (Shazeer 2020, SwiGLU).

use super::{isa, share};
use crate::simd::{Kernel, MAX_LANES, Simd, dispatch, sigmoid};
use crate::threads::{SharedMut, Threads};

/// `out[i] = silu(gate[i]) * up[i]` per row; `gate_up`: `[m][gate: ffn | up: ffn]`, `out`: `[m][ffn]`.
///
/// # Panics
/// If the shapes do not fit.
pub fn silu_mul(threads: &Threads, gate_up: &[f32], ffn: usize, out: &mut [f32]) {
    assert!(ffn > 0 && out.len().is_multiple_of(ffn), "{} numbers in rows of {ffn}", out.len());
    assert_eq!(gate_up.len(), 2 * out.len(), "a gate and a value per output");
    let rows = out.len() / ffn;
    let out = SharedMut::new(out);
    // An exponential per number: as much work as eight numbers elsewhere. One row is cut by columns.
    if rows == 1 {
        share(threads, ffn.div_ceil(MAX_LANES), 8 * MAX_LANES, &|part| {
            let range = part.start * MAX_LANES..(part.end * MAX_LANES).min(ffn);
            // SAFETY: parts are disjoint.
            let out = unsafe { out.slice(range.clone()) };
            dispatch(isa(), Gate { gate: &gate_up[range.clone()], up: &gate_up[ffn..][range], out });
        });
        return;
    }
    share(threads, rows, 8 * ffn, &|part| {
        for row in part {
            let (gate, up) = gate_up[row * 2 * ffn..(row + 1) * 2 * ffn].split_at(ffn);
            // SAFETY: each row is in one part.
            let out = unsafe { out.slice(row * ffn..(row + 1) * ffn) };
            dispatch(isa(), Gate { gate, up, out });
        }
    });
}

/// silu(gate) · up.
pub(super) struct Gate<'a> {
    pub(super) gate: &'a [f32],
    pub(super) up: &'a [f32],
    pub(super) out: &'a mut [f32],
}

impl Kernel for Gate<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { gate, up, out } = self;
        let n = out.len();
        assert!(gate.len() == n && up.len() == n, "one gate and one value per output");
        let vectors = n - n % S::LANES;
        for i in (0..vectors).step_by(S::LANES) {
            // SAFETY: i + LANES is at most the length of all three.
            unsafe {
                let product = gated(s, s.load(gate.as_ptr().add(i)), s.load(up.as_ptr().add(i)));
                s.store(product, out.as_mut_ptr().add(i));
            }
        }
        // The tail goes through the same arithmetic, so that where a row is cut changes no bit.
        let rest = n - vectors;
        let (mut a, mut b) = ([0.0; MAX_LANES], [0.0; MAX_LANES]);
        a[..rest].copy_from_slice(&gate[vectors..]);
        b[..rest].copy_from_slice(&up[vectors..]);
        // SAFETY: both arrays have MAX_LANES >= LANES numbers.
        unsafe { s.store(gated(s, s.load(a.as_ptr()), s.load(b.as_ptr())), a.as_mut_ptr()) };
        out[vectors..].copy_from_slice(&a[..rest]);
    }
}

#[inline(always)]
fn gated<S: Simd>(s: S, gate: S::V, up: S::V) -> S::V {
    s.mul(s.mul(gate, sigmoid(s, gate)), up)
}
