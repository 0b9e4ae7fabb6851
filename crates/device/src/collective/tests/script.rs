//! Sequences of calls, what each rank gives to them, and what each rank must get: computed one value after the other.

use super::*;

#[derive(Clone, Debug)]
pub(super) enum Item {
    BeginStep(u64),
    AllReduce(Type, usize, Reduce),
    ReduceToLeader(Type, usize, Reduce),
    /// Lengths for the largest group; smaller ones take the first.
    Gather([usize; 5]),
    Broadcast(Type, usize),
    Barrier,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Type {
    F32,
    Bf16,
    F64,
    I64,
}

/// Values that a test owns.
#[derive(Clone, Debug)]
pub(super) enum Data {
    F32(Vec<f32>),
    Bf16(Vec<bf16>),
    F64(Vec<f64>),
    I64(Vec<i64>),
}

impl Data {
    /// What `rank` gives to call number `index`.
    pub(super) fn of(of: Type, len: usize, (seed, index, rank): (u64, usize, usize)) -> Self {
        let random = |i: usize| {
            [index, rank, i]
                .into_iter()
                .fold(mixed(seed), |key, number| mixed(key.wrapping_add(number as u64)))
        };
        // Exponents far apart, so that the order of a sum shows in its bits.
        let float = |i: usize| {
            let bits = random(i);
            (bits as i32 as f32 / 2f32.powi(31)) * 2f32.powi((bits >> 32) as i32 % 12)
        };
        match of {
            Type::F32 => Self::F32((0..len).map(float).collect()),
            Type::Bf16 => Self::Bf16((0..len).map(|i| bf16::from_f32(float(i))).collect()),
            Type::F64 => Self::F64((0..len).map(|i| f64::from(float(i)) / 3.0).collect()),
            Type::I64 => Self::I64((0..len).map(|i| random(i) as i64).collect()),
        }
    }

    pub(super) fn values(&mut self) -> Values<'_> {
        match self {
            Self::F32(data) => Values::F32(data),
            Self::Bf16(data) => Values::Bf16(data),
            Self::F64(data) => Values::F64(data),
            Self::I64(data) => Values::I64(data),
        }
    }

    pub(super) fn bits(&self) -> Vec<u64> {
        match self {
            Self::F32(data) => data.iter().map(|x| u64::from(x.to_bits())).collect(),
            Self::Bf16(data) => data.iter().map(|x| u64::from(x.to_bits())).collect(),
            Self::F64(data) => data.iter().map(|x| x.to_bits()).collect(),
            Self::I64(data) => data.iter().map(|&x| x as u64).collect(),
        }
    }

    fn len(&self) -> usize {
        self.bits().len()
    }

    /// All ranks' parts as one, value by value in the order of the ranks.
    fn reduced(parts: &[Self], by: Reduce) -> Self {
        let float = |a: f32, b: f32| match by {
            Reduce::Sum => a + b,
            Reduce::Max => a.max(b),
        };
        let whole = |a: i64, b: i64| match by {
            Reduce::Sum => a.wrapping_add(b),
            Reduce::Max => a.max(b),
        };
        let double = |a: f64, b: f64| match by {
            Reduce::Sum => a + b,
            Reduce::Max => a.max(b),
        };
        let column = |i: usize| parts.iter().map(move |part| part.number(i));
        let floats = |i: usize| column(i).map(|(value, _)| value as f32).reduce(float).unwrap();
        let doubles = |i: usize| column(i).map(|(value, _)| value).reduce(double).unwrap();
        let len = 0..parts[0].len();
        match parts[0] {
            Self::F32(_) => Self::F32(len.map(floats).collect()),
            Self::Bf16(_) => Self::Bf16(len.map(|i| bf16::from_f32(floats(i))).collect()),
            Self::F64(_) => Self::F64(len.map(doubles).collect()),
            Self::I64(_) => {
                Self::I64(len.map(|i| column(i).map(|(_, whole)| whole).reduce(whole).unwrap()).collect())
            }
        }
    }

    /// Value `i`, as a float or as a whole number.
    fn number(&self, i: usize) -> (f64, i64) {
        match self {
            Self::F32(data) => (f64::from(data[i]), 0),
            Self::Bf16(data) => (data[i].to_f64(), 0),
            Self::F64(data) => (data[i], 0),
            Self::I64(data) => (0.0, data[i]),
        }
    }
}

fn mixed(mut x: u64) -> u64 {
    x = x.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(0x632b_e59b_d9b4_e019);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Makes the calls of `script`, one rank's side, and returns the bits that each leaves behind. Stops at the first
/// error.
pub(super) fn follow(
    rank: &mut dyn Collective,
    script: &[Item],
    seed: u64,
) -> Result<Vec<Vec<u64>>, CollectiveError> {
    let me = rank.rank();
    (0..script.len()).map(|index| step(rank, &script[index], (seed, index, me))).collect()
}

fn step(
    rank: &mut dyn Collective,
    item: &Item,
    key: (u64, usize, usize),
) -> Result<Vec<u64>, CollectiveError> {
    match *item {
        Item::BeginStep(step) => {
            rank.begin_step(StepTag { epoch: 3, step });
            Ok(Vec::new())
        }
        Item::AllReduce(of, len, by) => {
            let mut data = Data::of(of, len, key);
            rank.all_reduce(data.values(), by)?;
            Ok(data.bits())
        }
        Item::ReduceToLeader(of, len, by) => {
            let mut data = Data::of(of, len, key);
            rank.reduce_to_leader(data.values(), by)?;
            Ok(data.bits())
        }
        Item::Gather(counts) => {
            let counts = &counts[..rank.world()];
            let Data::F32(part) = Data::of(Type::F32, counts[rank.rank()], key) else { unreachable!() };
            let mut whole = vec![f32::NAN; counts.iter().sum()];
            rank.gather(&part, counts, &mut whole)?;
            Ok(Data::F32(whole).bits())
        }
        Item::Broadcast(of, len) => {
            let mut data = Data::of(of, len, key);
            rank.broadcast(data.values())?;
            Ok(data.bits())
        }
        Item::Barrier => rank.barrier().map(|()| Vec::new()),
    }
}

/// The bits that `rank` of `world` must have after each call.
pub(super) fn reference(rank: usize, world: usize, script: &[Item], seed: u64) -> Vec<Vec<u64>> {
    let result = |(index, item): (usize, &Item)| {
        let all =
            |of, len| -> Vec<Data> { (0..world).map(|r| Data::of(of, len, (seed, index, r))).collect() };
        match *item {
            Item::BeginStep(_) | Item::Barrier => Vec::new(),
            Item::AllReduce(of, len, by) => Data::reduced(&all(of, len), by).bits(),
            Item::ReduceToLeader(of, len, by) if rank == 0 => Data::reduced(&all(of, len), by).bits(),
            Item::ReduceToLeader(of, len, _) => Data::of(of, len, (seed, index, rank)).bits(),
            // Followers keep what they had.
            Item::Gather(counts) if rank > 0 => {
                Data::F32(vec![f32::NAN; counts[..world].iter().sum()]).bits()
            }
            Item::Gather(counts) => {
                let part = |r: usize| Data::of(Type::F32, counts[r], (seed, index, r)).bits();
                (0..world).flat_map(part).collect()
            }
            Item::Broadcast(of, len) => Data::of(of, len, (seed, index, 0)).bits(),
        }
    };
    script.iter().enumerate().map(result).collect()
}
