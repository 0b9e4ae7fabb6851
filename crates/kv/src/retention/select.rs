//! From scores to the evicted positions: priors, decay, threshold, blocks, top-k.
//!
//! The order is (score, position), both descending: of two equal scores the later position wins, so the outcome is a
//! function of the integers alone.

use std::cmp::Reverse;

use hawser_common::Position;
use hawser_common::retention::{Policy, Retention};

use super::Evidence;
use super::candidates::Event;
use super::marks::{Marks, Origin};

/// What an event keeps and evicts; both ascending, together all candidates.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    pub kept: Vec<Position>,
    pub evicted: Vec<Position>,
}

/// Decides an event. `scores[i]` is that of `event.candidates[i]`.
///
/// # Panics
/// If there is not one score per candidate, a bug.
#[must_use]
pub fn select(retention: &Retention, marks: &Marks, event: &Event, scores: &[i64]) -> Selection {
    let candidates = &event.candidates;
    assert_eq!(scores.len(), candidates.len(), "one score per candidate");
    let scores = weighted(retention, marks, candidates, scores);
    let keep = threshold(retention, event, &scores);
    let mut kept = if keep >= candidates.len() {
        vec![true; candidates.len()]
    } else if retention.block_tokens > 1 {
        best_blocks(retention.block_tokens, candidates, &scores, keep)
    } else if retention.policy == Policy::H2o {
        newest_and_best(weighed(retention, marks, candidates), candidates, &scores, keep)
    } else {
        let mut kept = vec![false; candidates.len()];
        mark_best(&mut kept, candidates, &scores, keep);
        kept
    }
    .into_iter();
    let mut selection = Selection::default();
    for &position in candidates {
        let list = if kept.next() == Some(true) { &mut selection.kept } else { &mut selection.evicted };
        list.push(position);
    }
    selection
}

/// Scores with the prior of the agent's own messages and the decay by age. Where neither is asked for, as they are.
pub(super) fn weighted(
    retention: &Retention,
    marks: &Marks,
    candidates: &[Position],
    scores: &[i64],
) -> Vec<i64> {
    let mut scores = scores.to_vec();
    if retention.age_decay > 0.0 {
        let now = marks.turn();
        for (score, position) in scores.iter_mut().zip(candidates) {
            let age = now.saturating_sub(marks.at(position.0).1);
            *score = (*score as f64 * (-f64::from(retention.age_decay) * f64::from(age)).exp()) as i64;
        }
    }
    let weighs = Evidence::of(retention.policy) != Evidence::Local;
    if weighs && retention.role_weight.max(retention.user_weight) > 0.0 {
        let mean = scores.iter().map(|&score| score as f64).sum::<f64>() / scores.len().max(1) as f64;
        for (score, position) in scores.iter_mut().zip(candidates) {
            let prior = mean.max(1.0) * f64::from(role_weight(retention, marks.at(position.0).0));
            *score = score.saturating_add(prior as i64);
        }
    }
    scores
}

/// What the author of a position adds to its score, in mean scores.
fn role_weight(retention: &Retention, origin: Origin) -> f32 {
    match origin {
        Origin::Assistant => retention.role_weight,
        Origin::User => retention.user_weight,
        Origin::System | Origin::Tool | Origin::Template => 0.0,
    }
}

/// How many candidates stay: the budget, or fewer where a threshold is set.
fn threshold(retention: &Retention, event: &Event, scores: &[i64]) -> usize {
    if retention.threshold <= 0.0 {
        return event.keep;
    }
    let mean = scores.iter().map(|&score| score as f64).sum::<f64>() / scores.len().max(1) as f64;
    let least = mean * f64::from(retention.threshold);
    let passing = scores.iter().filter(|&&score| score as f64 >= least).count();
    let floor = (retention.threshold_min_tokens as usize).saturating_sub(event.forced).min(event.keep);
    passing.clamp(floor, event.keep)
}

/// Marks the best `count` of the candidates that are not marked yet.
fn mark_best(kept: &mut [bool], candidates: &[Position], scores: &[i64], count: usize) {
    let mut order: Vec<usize> = (0..candidates.len()).filter(|&index| !kept[index]).collect();
    if count == 0 || order.is_empty() {
        return;
    }
    let count = count.min(order.len());
    order.select_nth_unstable_by_key(count - 1, |&index| Reverse((scores[index], candidates[index])));
    order[..count].iter().for_each(|&index| kept[index] = true);
}

/// Which candidates have the weight of a role.
fn weighed(retention: &Retention, marks: &Marks, candidates: &[Position]) -> Vec<bool> {
    let weighs = |position: &Position| role_weight(retention, marks.at(position.0).0) > 0.0;
    candidates.iter().map(weighs).collect()
}

/// H2O: the newest half, then the rest by score. Where roles have weights, it is half of what their positions leave:
/// a newest half that came first would push the agent's own messages out of a tight budget.
fn newest_and_best(weighed: Vec<bool>, candidates: &[Position], scores: &[i64], keep: usize) -> Vec<bool> {
    let mut kept: Vec<bool> = weighed.iter().map(|weighed| !weighed).collect();
    let first = weighed.iter().filter(|weighed| **weighed).count().min(keep);
    // The weighed ones are all that is not marked yet.
    mark_best(&mut kept, candidates, scores, first);
    for (kept, weighed) in kept.iter_mut().zip(&weighed) {
        *kept &= weighed;
    }
    let newest = (keep - first) / 2;
    let others = (0..candidates.len()).rev().filter(|&index| !weighed[index]);
    others.take(newest).for_each(|index| kept[index] = true);
    mark_best(&mut kept, candidates, scores, keep - first - newest);
    kept
}

/// Whole blocks by their mean score; of the block that does not fit any more, its end.
fn best_blocks(block: u32, candidates: &[Position], scores: &[i64], keep: usize) -> Vec<bool> {
    let mut blocks: Vec<(i64, std::ops::Range<usize>)> = Vec::new();
    let mut start = 0;
    while start < candidates.len() {
        let number = candidates[start].0 / block;
        let len = candidates[start..].iter().take_while(|position| position.0 / block == number).count();
        let range = start..start + len;
        let sum: i128 = scores[range.clone()].iter().map(|&score| i128::from(score)).sum();
        let mean = i64::try_from(sum / len as i128).expect("a mean of i64");
        blocks.push((mean, range));
        start += len;
    }
    blocks.sort_unstable_by_key(|(mean, range)| Reverse((*mean, range.start)));
    let mut kept = vec![false; candidates.len()];
    let mut left = keep;
    for (_, range) in blocks {
        let take = left.min(range.len());
        kept[range.end - take..range.end].fill(true);
        left -= take;
    }
    kept
}
