use super::*;
use proptest::prelude::*;
use std::sync::atomic::AtomicU64;

fn pool(count: usize) -> Threads {
    Threads::new(NonZeroUsize::new(count).unwrap())
}

#[test]
fn every_part_runs_once_per_section() {
    for count in 1..=5 {
        let threads = pool(count);
        assert_eq!(threads.count(), count);
        let runs: Vec<AtomicU64> = (0..count).map(|_| AtomicU64::new(0)).collect();
        for section in 1..=2_000 {
            threads.run(&|i| {
                runs[i].fetch_add(1, Ordering::Relaxed);
            });
            assert!(runs.iter().all(|runs| runs.load(Ordering::Relaxed) == section), "section {section}");
        }
    }
}

#[test]
fn a_sleeping_pool_wakes_up() {
    let threads = pool(3);
    for _ in 0..20 {
        // Workers sleep as soon as nobody else is waited for; then a section must still reach them.
        while !threads.core.workers.iter().all(|worker| worker.0.asleep.load(Ordering::SeqCst)) {
            std::thread::yield_now();
        }
        let parts = AtomicU64::new(0);
        threads.run(&|_| {
            parts.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(parts.into_inner(), 3);
    }
}

#[test]
fn a_panic_reaches_the_caller_and_the_pool_goes_on() {
    let threads = pool(3);
    for bad in 0..3 {
        let ended = AtomicU64::new(0);
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            threads.run(&|i| {
                ended.fetch_add(1, Ordering::SeqCst);
                assert!(i != bad, "part {i} fails");
            });
        }));
        assert!(outcome.unwrap_err().downcast_ref::<String>().unwrap().contains("fails"));
        assert_eq!(ended.into_inner(), 3, "all parts ended before the panic was raised");
        threads.run(&|_| {});
    }
}

#[test]
fn sections_of_many_callers_and_nested_sections_do_not_mix() {
    let threads = pool(2);
    let total = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..200 {
                    threads.run(&|_| {
                        threads.run(&|_| {
                            total.fetch_add(1, Ordering::Relaxed);
                        });
                    });
                }
            });
        }
    });
    assert_eq!(total.into_inner(), 4 * 200 * 2 * 2);
}

proptest! {
    #[test]
    fn parts_cover_the_whole_without_overlap(len in 0usize..5_000, parts in 1usize..20, align in 1usize..70) {
        let mut end = 0;
        for index in 0..parts {
            let part = split(len, parts, index, align);
            prop_assert_eq!(part.start, end);
            prop_assert!(part.start.is_multiple_of(align) || part.start == len);
            prop_assert!(part.len() <= len.div_ceil(align).div_ceil(parts) * align);
            end = part.end;
        }
        prop_assert_eq!(end, len);
    }
}
