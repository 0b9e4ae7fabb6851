//! What `hawser eval retention` writes: the file of results, what it says in short, and the forms people read.
//!
//! Owns the format of the result file ([`RunResult`]), its summary ([`Summary`]), the comparison at equal reads
//! ([`equal_reads()`]) and the forms of both ([`markdown()`], [`json()`], [`svg()`]). Everything is a pure function of the
//! results: no clock, no files, no model.

mod budget;
mod equal;
mod form;
mod ink;
mod markdown;
mod measure;
mod plot;
mod result;
mod summary;
mod svg;
#[cfg(test)]
mod tests;

pub use budget::{BudgetError, BudgetLabel};
pub use equal::{AtBudget, CompareError, Comparison, Gain, equal_reads};
pub use markdown::markdown;
pub use result::{
    FORMAT, Mode, PrefixHit, ResultError, RunInfo, RunResult, Scores, SessionResult, TurnResult,
};
pub use summary::{
    Fidelity, Needles, Options, Refused, Row, Summary, Versus, json, summarise, summarise_with,
};
pub use svg::svg;
