//! Which instructions this CPU has, found once at run time. Kernels take an [`Isa`] as an argument, so that tests
//! can compare them all on one machine; only callers at the edge ask for [`Isa::best`].

use std::sync::OnceLock;

/// An instruction set that kernels are written for. The order is from least to most capable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Isa {
    /// Plain Rust: every target.
    Portable,
    /// AVX2 with FMA and F16C.
    Avx2,
    /// AVX-512 F, BW, DQ and VL.
    Avx512,
}

/// Finer features that a kernel may test on top of its [`Isa`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// AVX2, FMA and F16C: what [`Isa::Avx2`] needs.
    pub avx2: bool,
    /// AVX-512 F, BW, DQ and VL: what [`Isa::Avx512`] needs.
    pub avx512: bool,
    /// int8 dot products in 512-bit registers.
    pub avx512_vnni: bool,
    /// int8 dot products in 256-bit registers, VEX encoded.
    pub avx_vnni: bool,
    /// bf16 dot products and conversions.
    pub avx512_bf16: bool,
    /// int8 tiles, with the kernel's permission to use tile registers.
    pub amx_int8: bool,
    /// bf16 tiles, with the kernel's permission to use tile registers.
    pub amx_bf16: bool,
}

impl Features {
    /// Of this CPU. The first call asks the CPU, and the operating system for the use of tile registers.
    #[must_use]
    pub fn detected() -> &'static Self {
        static FOUND: OnceLock<Features> = OnceLock::new();
        FOUND.get_or_init(detect)
    }
}

impl Isa {
    /// The most capable one of this CPU.
    #[must_use]
    pub fn best() -> Self {
        let features = Features::detected();
        match (features.avx512, features.avx2) {
            (true, _) => Self::Avx512,
            (false, true) => Self::Avx2,
            (false, false) => Self::Portable,
        }
    }

    /// All that run on this CPU, least capable first.
    #[must_use]
    pub fn available() -> Vec<Self> {
        [Self::Portable, Self::Avx2, Self::Avx512].into_iter().filter(|isa| isa.is_available()).collect()
    }

    /// Whether this CPU runs it. Every kernel with a raw instruction checks this before it trusts its argument.
    #[must_use]
    pub fn is_available(self) -> bool {
        match self {
            Self::Portable => true,
            Self::Avx2 => Features::detected().avx2,
            Self::Avx512 => Features::detected().avx512,
        }
    }

    /// Name for reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn detect() -> Features {
    use std::arch::is_x86_feature_detected as has;
    let avx2 = has!("avx2") && has!("fma") && has!("f16c");
    let avx512 = avx2 && has!("avx512f") && has!("avx512bw") && has!("avx512dq") && has!("avx512vl");
    let tiles = amx::detect();
    Features {
        avx2,
        avx512,
        avx512_vnni: avx512 && has!("avx512vnni"),
        avx_vnni: avx2 && has!("avxvnni"),
        avx512_bf16: avx512 && has!("avx512bf16"),
        amx_int8: avx512 && tiles.int8,
        amx_bf16: avx512 && tiles.bf16,
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn detect() -> Features {
    Features::default()
}

/// Tile registers: the standard library does not detect them, and Linux wants to be asked before their first use.
#[cfg(target_arch = "x86_64")]
mod amx {
    use std::arch::x86_64::{__cpuid, __cpuid_count, _xgetbv};

    #[derive(Clone, Copy, Default)]
    pub(super) struct Tiles {
        pub(super) int8: bool,
        pub(super) bf16: bool,
    }

    /// CPUID leaf 7 subleaf 0, register EDX (Intel SDM volume 2, CPUID).
    const BF16_BIT: u32 = 1 << 22;
    const TILE_BIT: u32 = 1 << 24;
    const INT8_BIT: u32 = 1 << 25;
    /// CPUID leaf 1, register ECX: the operating system has turned XSAVE on.
    const OSXSAVE_BIT: u32 = 1 << 27;
    /// XCR0: tile configuration and tile data are saved on a context switch.
    const TILE_STATE: u64 = 0b11 << 17;

    pub(super) fn detect() -> Tiles {
        if __cpuid(0).eax < 7 || __cpuid(1).ecx & OSXSAVE_BIT == 0 {
            return Tiles::default();
        }
        let edx = __cpuid_count(7, 0).edx;
        // SAFETY: OSXSAVE is set, so XGETBV exists.
        let enabled = edx & TILE_BIT != 0 && unsafe { xcr0() } & TILE_STATE == TILE_STATE;
        if !enabled || !permitted() {
            return Tiles::default();
        }
        Tiles { int8: edx & INT8_BIT != 0, bf16: edx & BF16_BIT != 0 }
    }

    /// # Safety
    /// The CPU must have XSAVE enabled by the operating system.
    #[target_feature(enable = "xsave")]
    unsafe fn xcr0() -> u64 {
        // SAFETY: the caller guarantees XSAVE; register 0 always exists.
        unsafe { _xgetbv(0) }
    }

    /// Asks Linux for tile data (Documentation/arch/x86/xstate.rst). Holds for the whole process.
    #[cfg(target_os = "linux")]
    fn permitted() -> bool {
        const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
        const XFEATURE_XTILEDATA: libc::c_long = 18;
        // SAFETY: this request takes numbers only and changes no memory of ours.
        unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0 }
    }

    #[cfg(not(target_os = "linux"))]
    fn permitted() -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_is_available_and_portable_always_is() {
        let available = Isa::available();
        assert_eq!(available.first(), Some(&Isa::Portable));
        assert_eq!(available.last(), Some(&Isa::best()));
        assert!(available.iter().all(|isa| isa.is_available()));
    }
}
