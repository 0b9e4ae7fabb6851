//! Rows that move between two steps: into the archive, and back.

use hawser_kv::RowMove;

use super::Executor;

impl Executor {
    /// Carries a move out. Moves depend on those before.
    pub fn move_row(&mut self, row: &RowMove) {
        match row {
            RowMove::Copy { from, to } => self.kv.copy(*from, *to),
            RowMove::Digest { of, to } => self.kv.write_mean(of, *to),
        }
    }
}
