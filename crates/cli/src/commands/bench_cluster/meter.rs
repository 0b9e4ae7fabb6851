//! What this process used, as the kernel counts it.

use std::collections::BTreeMap;
use std::time::Duration;

/// CPU time of each of `names`, as [`cpu_of`].
pub fn cpu_by(names: &[&'static str]) -> BTreeMap<&'static str, Duration> {
    names.iter().map(|&name| (name, cpu_of(name))).collect()
}

/// CPU time of this process's threads whose names begin with `name` (of at most 15 bytes). Threads that have ended are
/// not counted. Zero where the kernel does not say.
pub fn cpu_of(name: &str) -> Duration {
    let threads = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let named = threads.filter(|thread| {
        let own = std::fs::read_to_string(thread.path().join("comm")).unwrap_or_default();
        own.starts_with(name)
    });
    let nanos = named.filter_map(|thread| {
        let stat = std::fs::read_to_string(thread.path().join("schedstat")).ok()?;
        stat.split_whitespace().next()?.parse::<u64>().ok()
    });
    Duration::from_nanos(nanos.sum())
}

/// CPU time of this process, threads that have ended included. Zero where the kernel does not say.
pub fn cpu() -> Duration {
    // After the name, which is in brackets and may hold spaces, come the state and ten numbers more; then the ticks in
    // user and in kernel mode, of which Linux shows a hundred a second whatever its own clock is.
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields).split_whitespace();
    let ticks: u64 = fields.skip(11).take(2).filter_map(|ticks| ticks.parse::<u64>().ok()).sum();
    Duration::from_millis(10 * ticks)
}

/// Threads of this process.
pub fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").map_or(0, Iterator::count)
}

/// Resident memory of this process in bytes; 0 where the kernel does not say.
pub fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|rest| rest.split_whitespace().next()).and_then(|kib| kib.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

/// The value below which a share of the sorted values lies; 0 without values.
#[allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "an index into a list in memory"
)]
pub fn quantile(sorted: &[u32], share: f64) -> u32 {
    let at = (sorted.len() as f64 * share).ceil() as usize;
    sorted.get(at.saturating_sub(1).min(sorted.len().saturating_sub(1))).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_values_that_were_there() {
        let values: Vec<u32> = (1..=100).collect();
        assert_eq!([0.5, 0.95, 0.99, 1.0].map(|share| quantile(&values, share)), [50, 95, 99, 100]);
        assert_eq!((quantile(&[7], 0.01), quantile(&[], 0.5)), (7, 0));
    }

    #[test]
    fn this_process_has_memory_and_threads() {
        assert!(resident() > 1 << 20 && threads() >= 1);
        assert_eq!(cpu_of("no-thread-of-this-name"), Duration::ZERO);
    }

    #[test]
    fn time_on_the_processor_is_counted_of_threads_that_have_ended_too() {
        let before = cpu();
        let limit = Duration::from_millis(100);
        let own = || cpu_of("burns");
        let burn = move || while own() < limit {};
        std::thread::Builder::new().name("burns".into()).spawn(burn).unwrap().join().unwrap();
        // In ticks, of which one may be cut off at each end.
        assert!(cpu().saturating_sub(before) >= limit - Duration::from_millis(20));
    }
}
