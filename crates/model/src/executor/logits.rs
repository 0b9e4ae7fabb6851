//! The outcome of a step.

/// One row of logits per wanted row of the batch, in the order of the batch.
#[derive(Clone, Debug, PartialEq)]
pub struct Logits {
    /// Length of a row.
    pub vocab: usize,
    values: Vec<f32>,
}

impl Logits {
    /// Rows of `vocab` values each.
    #[must_use]
    pub fn new(vocab: usize, values: Vec<f32>) -> Self {
        debug_assert!(values.len().is_multiple_of(vocab), "logits are whole rows");
        Self { vocab, values }
    }

    /// How many rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.values.len() / self.vocab
    }

    /// The logits of the `index`-th wanted row. A value that is not finite stands for a fault in the model's
    /// arithmetic: whoever samples from the row must refuse it.
    ///
    /// # Panics
    /// If there is no such row, a bug of the caller.
    #[must_use]
    pub fn row(&self, index: usize) -> &[f32] {
        &self.values[index * self.vocab..(index + 1) * self.vocab]
    }

    /// The same, to change: sampling applies penalties in place.
    pub fn row_mut(&mut self, index: usize) -> &mut [f32] {
        &mut self.values[index * self.vocab..][..self.vocab]
    }
}
