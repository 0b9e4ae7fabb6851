//! From the residual stream to logits. Each rank multiplies its rows of the vocabulary; the leader puts them together.

use hawser_device::linear::Write;

use super::{Executor, Logits};
use crate::layers::{Buffers, ForwardError};

impl Executor {
    /// The logits of the `wanted` rows of a step of `rows` rows; on ranks that do not lead, none.
    pub(super) fn logits(&mut self, rows: usize, wanted: &[usize]) -> Result<Logits, ForwardError> {
        let (model, count) = (&*self.model, wanted.len());
        let vocab = model.config().vocab;
        if count == 0 {
            return Ok(Logits::new(vocab, Vec::new()));
        }
        let Buffers { stream, normed, logits, gathered, linear, .. } = &mut self.buffers;
        let normed = normed.first(count);
        model.norm_rows(&self.threads, stream.first(rows), wanted, normed);
        if self.group.is_alone() {
            let mut values = vec![0.0; count * vocab];
            model.head().forward(&self.threads, normed, &mut values, Write::Store, linear)?;
            return Ok(Logits::new(vocab, values));
        }
        // Followers need no logits, and hold no place for them.
        let leads = self.group.rank() == 0;
        let (part, gathered) = (logits.first(count), gathered.first(if leads { count } else { 0 }));
        model.head().forward(&self.threads, normed, part, Write::Store, linear)?;
        let counts: Vec<usize> = model.shard().vocab_counts.iter().map(|tokens| tokens * count).collect();
        self.group.gather(part, &counts, gathered)?;
        if !leads {
            return Ok(Logits::new(vocab, Vec::new()));
        }
        Ok(Logits::new(vocab, interleave(gathered, &model.shard().vocab_counts)))
    }
}

/// Puts the ranks' parts `[ranks][rows][tokens of the rank]` beside each other, as `[rows][vocab]`.
fn interleave(parts: &[f32], tokens: &[usize]) -> Vec<f32> {
    let vocab: usize = tokens.iter().sum();
    let mut out = vec![0.0; parts.len()];
    let mut from = 0;
    for &tokens in tokens {
        let part = &parts[from * (parts.len() / vocab)..][..tokens * (parts.len() / vocab)];
        for (row, part) in out.chunks_exact_mut(vocab).zip(part.chunks_exact(tokens)) {
            row[from..from + tokens].copy_from_slice(part);
        }
        from += tokens;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::interleave;

    #[test]
    fn parts_of_rows_become_rows() {
        let parts = [0.0, 1.0, 10.0, 11.0, 2.0, 12.0, 3.0, 4.0, 13.0, 14.0];
        assert_eq!(interleave(&parts, &[2, 1, 2]), [0.0, 1.0, 2.0, 3.0, 4.0, 10.0, 11.0, 12.0, 13.0, 14.0]);
    }
}
