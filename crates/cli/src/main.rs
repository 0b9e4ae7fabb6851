//! The `hawser` command: one binary with everything.
//!
//! Owns what people type and read. Promises that what goes wrong ends in one line that says what to do and exit
//! code 1 (2 for wrong usage), never in a backtrace.
#![allow(unreachable_pub, reason = "a binary has no outside; `pub` says what a module offers to the others")]

mod args;
mod checks;
mod commands;
mod config;
mod console;
mod models;
mod table;

use std::process::ExitCode;

use clap::Parser;

use crate::args::Cli;

/// Frames, texts and token lists are small, short-lived and freed on other threads than the one that made them.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let cli = Cli::parse();
    match commands::run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            console::error(format!("error: {}", one_line(&error)));
            ExitCode::FAILURE
        }
    }
}

/// The chain of causes, each once: some errors repeat their cause in their own text.
fn one_line(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain() {
        let cause = cause.to_string();
        if !text.contains(&cause) {
            if !text.is_empty() {
                text.push_str(": ");
            }
            text.push_str(&cause);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_are_told_once() {
        let error =
            anyhow::anyhow!("no such file").context("cannot open x: no such file").context("cannot start");
        assert_eq!(one_line(&error), "cannot start: cannot open x: no such file");
    }
}
