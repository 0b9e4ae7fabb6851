use super::*;

/// Applies a function of vectors to 16 numbers.
struct Map<F>(Vec<f32>, F);

trait Function {
    fn of<S: Simd>(&self, s: S, x: S::V) -> S::V;
}

impl<F: Function> Kernel for Map<F> {
    type Output = Vec<f32>;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> Vec<f32> {
        let mut out = vec![0.0; self.0.len()];
        for (x, y) in self.0.chunks_exact(S::LANES).zip(out.chunks_exact_mut(S::LANES)) {
            // SAFETY: both chunks have LANES items.
            unsafe { s.store(self.1.of(s, s.load(x.as_ptr())), y.as_mut_ptr()) };
        }
        out
    }
}

struct Exp2;
impl Function for Exp2 {
    #[inline(always)]
    fn of<S: Simd>(&self, s: S, x: S::V) -> S::V {
        exp2(s, x)
    }
}

struct Sigmoid;
impl Function for Sigmoid {
    #[inline(always)]
    fn of<S: Simd>(&self, s: S, x: S::V) -> S::V {
        sigmoid(s, x)
    }
}

/// `n` numbers from `from` to `to`, both included, and `n` a multiple of the widest vector.
fn grid(from: f32, to: f32, n: usize) -> Vec<f32> {
    (0..n).map(|i| from + (to - from) * (i as f32 / (n - 1) as f32)).collect()
}

#[test]
fn exp2_is_within_its_documented_error_everywhere() {
    for isa in Isa::available() {
        for (from, to) in [(-125.0, 127.4), (-1.0, 1.0), (-1e-4, 1e-4), (-20.0, 0.0)] {
            let x = grid(from, to, 1 << 20);
            let y = dispatch(isa, Map(x.clone(), Exp2));
            let error = |(&x, &y): (&f32, &f32)| (f64::from(y) / f64::from(x).exp2() - 1.0).abs();
            let worst = x.iter().zip(&y).map(error).fold(0.0, f64::max);
            assert!(worst <= 2.5e-7, "{isa:?} on {from}..{to}: {worst:e}");
        }
    }
}

#[test]
fn exp2_keeps_its_special_values() {
    let inf = f32::INFINITY;
    let mut x = vec![0.0, -0.0, 1.0, -1.0, -inf, inf, f32::NAN, -125.01, -1e30, 1e30, 128.0, 10.0, -125.0];
    x.resize(MAX_LANES, f32::from_bits(0x7fc0_0001));
    for isa in Isa::available() {
        let y = dispatch(isa, Map(x.clone(), Exp2));
        assert_eq!(y[..6], [1.0, 1.0, 2.0, 0.5, 0.0, inf], "{isa:?}");
        assert!(y[6].is_nan(), "{isa:?}");
        assert_eq!(y[7..13], [0.0, 0.0, inf, inf, 1024.0, 2f32.powi(-125)], "{isa:?}");
        assert!(y[13..].iter().all(|y| y.is_nan()), "{isa:?}: a NaN with a payload");
    }
}

#[test]
fn sigmoid_is_within_its_documented_error() {
    for isa in Isa::available() {
        let x = grid(-100.0, 100.0, 1 << 20);
        let y = dispatch(isa, Map(x.clone(), Sigmoid));
        let error = |(&x, &y): (&f32, &f32)| (f64::from(y) - 1.0 / (1.0 + (-f64::from(x)).exp())).abs();
        let worst = x.iter().zip(&y).map(error).fold(0.0, f64::max);
        assert!(worst <= 2e-7, "{isa:?}: {worst:e}");
    }
}

/// Loads in all three formats and sums in both ways.
struct Sums<'a>(&'a [f32; MAX_LANES], &'a [u16; MAX_LANES], &'a [u16; MAX_LANES]);

impl Kernel for Sums<'_> {
    type Output = (Vec<f32>, [f32; 4], f32);

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> Self::Output {
        let mut four = [0.0; 4];
        // SAFETY: each array has MAX_LANES >= LANES items, and `four` has 4.
        let vectors = unsafe {
            let x = s.load(self.0.as_ptr());
            let vectors = [x, s.load_f16(self.1.as_ptr()), s.load_bf16(self.2.as_ptr()), s.mul(x, x)];
            s.store_sums(vectors, [four.as_mut_ptr(), four.as_mut_ptr().add(2)]);
            vectors
        };
        (vectors.map(|v| s.sum(v)).to_vec(), four, s.largest(vectors[0]))
    }
}

#[test]
fn loads_and_sums_agree_whatever_their_grouping() {
    let x: [f32; MAX_LANES] = std::array::from_fn(|i| (i as f32 * 0.7).sin() * 8.0);
    let f16s = x.map(|x| half::f16::from_f32(x).to_bits());
    let bf16s = x.map(|x| half::bf16::from_f32(x).to_bits());
    for isa in Isa::available() {
        let lanes = if isa == Isa::Avx512 { 16 } else { 8 };
        let (sums, four, largest) = dispatch(isa, Sums(&x, &f16s, &bf16s));
        assert_eq!(sums, four, "{isa:?}");
        let sum = |item: &dyn Fn(usize) -> f32| (0..lanes).map(item).map(f64::from).sum::<f64>();
        let expected = [
            sum(&|i| x[i]),
            sum(&|i| half::f16::from_bits(f16s[i]).to_f32()),
            sum(&|i| half::bf16::from_bits(bf16s[i]).to_f32()),
            sum(&|i| x[i] * x[i]),
        ];
        for (found, expected) in sums.iter().zip(expected) {
            assert!((f64::from(*found) - expected).abs() < 1e-4, "{isa:?}: {found} {expected}");
        }
        assert_eq!(largest, x[..lanes].iter().copied().fold(f32::NEG_INFINITY, f32::max));
    }
}
