//! Which query heads read which KV head: whole groups of them, or, of a shard of a model, what it has of each.

use std::ops::Range;

/// The query heads of a call, and the KV heads that they read. A whole model has as many query heads for each KV head; a
/// shard may begin and end inside such a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueryHeads {
    count: usize,
    /// Query heads that read one KV head in the whole model.
    group: usize,
    /// Query heads of the first KV head that others have.
    before: usize,
}

impl QueryHeads {
    /// Heads `range` of a model in which each `group` heads that follow each other read one KV head. `range` is not
    /// empty.
    #[must_use]
    pub fn shard(range: &Range<usize>, group: usize) -> Self {
        assert!(group > 0 && !range.is_empty(), "heads {range:?} in groups of {group}");
        Self { count: range.len(), group, before: range.start % group }
    }

    /// All `count` heads of a model with so many KV heads.
    #[must_use]
    pub fn whole(count: usize, kv_heads: usize) -> Self {
        assert!(kv_heads > 0 && count.is_multiple_of(kv_heads), "{count} heads for {kv_heads} KV heads");
        Self::shard(&(0..count), count / kv_heads)
    }

    /// Query heads.
    #[must_use]
    pub fn count(self) -> usize {
        self.count
    }

    /// KV heads that they read.
    #[must_use]
    pub fn kv_heads(self) -> usize {
        (self.before + self.count).div_ceil(self.group)
    }

    /// The query heads that read KV head `kv_head`.
    #[must_use]
    pub fn readers(self, kv_head: usize) -> Range<usize> {
        let start = (kv_head * self.group).saturating_sub(self.before);
        start..((kv_head + 1) * self.group - self.before).min(self.count)
    }

    /// The most that read one KV head.
    #[must_use]
    pub fn largest_group(self) -> usize {
        (0..self.kv_heads()).map(|kv_head| self.readers(kv_head).len()).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_head_reads_the_kv_head_that_it_reads_in_the_model(
            start in 0usize..40, count in 1usize..40, group in 1usize..9,
        ) {
            let heads = QueryHeads::shard(&(start..start + count), group);
            let mut next = 0;
            for kv_head in 0..heads.kv_heads() {
                let readers = heads.readers(kv_head);
                prop_assert!(readers.start == next && !readers.is_empty());
                prop_assert!(readers.len() <= heads.largest_group());
                for head in readers.clone() {
                    prop_assert_eq!((start + head) / group, start / group + kv_head);
                }
                next = readers.end;
            }
            prop_assert_eq!(next, count);
        }
    }
}
