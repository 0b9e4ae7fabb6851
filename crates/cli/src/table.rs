//! Tables of aligned columns.

use std::fmt;

/// Which side a column's cells stand at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    Left,
    Right,
}

/// Rows of cells under a heading. Every row has as many cells as the heading.
#[derive(Clone, Debug)]
pub struct Table {
    columns: Vec<(&'static str, Align)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub fn new(columns: &[(&'static str, Align)]) -> Self {
        Self { columns: columns.to_vec(), rows: Vec::new() }
    }

    /// Adds a row; missing cells are empty, surplus ones are dropped.
    pub fn row(&mut self, mut cells: Vec<String>) {
        cells.resize(self.columns.len(), String::new());
        self.rows.push(cells);
    }

    fn width(&self, column: usize) -> usize {
        let cells = self.rows.iter().map(|row| row[column].chars().count());
        cells.chain([self.columns[column].0.chars().count()]).max().unwrap_or(0)
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let widths: Vec<usize> = (0..self.columns.len()).map(|column| self.width(column)).collect();
        let heading: Vec<String> = self.columns.iter().map(|(name, _)| (*name).to_owned()).collect();
        for (index, row) in [&heading].into_iter().chain(&self.rows).enumerate() {
            let mut line = String::new();
            for ((cell, width), (_, align)) in row.iter().zip(&widths).zip(&self.columns) {
                match align {
                    Align::Left => line.push_str(&format!("{cell:<width$}  ")),
                    Align::Right => line.push_str(&format!("{cell:>width$}  ")),
                }
            }
            if index > 0 {
                writeln!(f)?;
            }
            write!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_whatever_their_cells() {
        let mut table = Table::new(&[("NAME", Align::Left), ("SLOTS", Align::Right)]);
        table.row(vec!["é".into(), "1".into()]);
        table.row(vec!["a-long-name".into(), "1,234,567".into()]);
        table.row(vec![]);
        let text = table.to_string();
        assert_eq!(text, "NAME             SLOTS\né                    1\na-long-name  1,234,567\n");
    }
}
