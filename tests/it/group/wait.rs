//! What a turn is said to have waited.

use std::time::Duration;

use hawser_common::retention::Retention;

use super::{Group, PATIENT, Watch, end, prompt};

#[test]
fn a_turn_waits_from_when_it_came_and_not_from_when_the_driver_looked() {
    let mut group = Group::start(2, PATIENT, Watch::default());
    let first = group.send("first", &[5], 1, &Retention::default());
    group.watch.gate.wait(|gate| gate.reached);
    // The driver is in a step, and takes no commands until it ends.
    let second = group.send("second", &prompt(1, 8), 2, &Retention::default());
    let step = Duration::from_secs(3);
    group.clock.advance(step);
    group.watch.gate.open();
    assert!(end(first).is_ok());
    let second = end(second).unwrap();
    assert_eq!((second.queued, second.prefill), (step, Duration::ZERO));
}
