//! One compiled product per instruction set, chosen when weights are packed.

use std::ops::Range;

use super::activations::{Block, quantise};
use super::lanes::Lanes;
use super::portable::Portable;
use super::product::{Product, run};
use crate::cpu::{Features, Isa};

#[cfg(target_arch = "x86_64")]
use super::{avx2::Avx2, avx512::Avx512};

/// An instruction set that products are compiled for. A value exists only where this CPU has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kernel(Set);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Set {
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl Kernel {
    /// For `isa`, which must be available. Wide vectors without integer dot products are no faster than AVX2 here.
    pub(super) fn of(isa: Isa) -> Self {
        assert!(isa.is_available(), "{} does not run on this CPU", isa.name());
        #[cfg(target_arch = "x86_64")]
        match isa {
            Isa::Portable => {}
            Isa::Avx512 if Features::detected().avx512_vnni => return Self(Set::Avx512),
            Isa::Avx2 | Isa::Avx512 => return Self(Set::Avx2),
        }
        Self(Set::Portable)
    }

    /// Rows of a tile.
    pub(super) fn lanes(self) -> usize {
        match self.0 {
            Set::Portable => Portable::LANES,
            #[cfg(target_arch = "x86_64")]
            Set::Avx2 => Avx2::LANES,
            #[cfg(target_arch = "x86_64")]
            Set::Avx512 => Avx512::LANES,
        }
    }

    /// Quantises whole blocks of `x`.
    pub(super) fn quantise(self, x: &[f32], blocks: &mut [Block]) {
        match self.0 {
            Set::Portable => quantise(x, blocks),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the CPU has the features, or this value would not exist.
            Set::Avx2 => unsafe { quantise_avx2(x, blocks) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Set::Avx512 => unsafe { quantise_avx512(x, blocks) },
        }
    }

    /// Computes and writes the outputs of `tiles`.
    ///
    /// # Safety
    /// No other thread computes the same tiles of this product meanwhile.
    pub(super) unsafe fn run(self, product: &Product<'_>, tiles: Range<usize>) {
        assert_eq!(product.weights.layout.lanes, self.lanes(), "weights are packed for their kernel");
        match self.0 {
            // SAFETY: plain Rust needs no feature; the caller keeps tiles apart.
            Set::Portable => unsafe { run::<Portable>(product, tiles) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the CPU has the features, or this value would not exist; the caller keeps tiles apart.
            Set::Avx2 => unsafe { run_avx2(product, tiles) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Set::Avx512 => unsafe { run_avx512(product, tiles) },
        }
    }
}

/// # Safety
/// As [`Kernel::run`], and the CPU has the features.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn run_avx2(product: &Product<'_>, tiles: Range<usize>) {
    // SAFETY: passed on.
    unsafe { run::<Avx2>(product, tiles) }
}

/// # Safety
/// As [`Kernel::run`], and the CPU has the features.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn run_avx512(product: &Product<'_>, tiles: Range<usize>) {
    // SAFETY: passed on.
    unsafe { run::<Avx512>(product, tiles) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
fn quantise_avx2(x: &[f32], blocks: &mut [Block]) {
    quantise(x, blocks);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
fn quantise_avx512(x: &[f32], blocks: &mut [Block]) {
    quantise(x, blocks);
}
