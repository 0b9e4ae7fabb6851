//! Lines that people type, or that come through a pipe.

use std::io::IsTerminal;

use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;

/// Longest line that is taken from a pipe.
const MAX_LINE_BYTES: u64 = 16 << 20;

/// What came.
pub enum Line {
    Text(String),
    /// Ctrl-C at the prompt.
    Interrupted,
    End,
}

/// Where lines come from: an editor with history on a terminal, else plain standard input.
pub enum Lines {
    /// Absent only while a line is being read.
    Editor(Option<Box<DefaultEditor>>),
    Pipe,
}

impl Lines {
    pub fn open() -> Result<Self, ReadlineError> {
        let terminal = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
        if terminal { Ok(Self::Editor(Some(Box::new(DefaultEditor::new()?)))) } else { Ok(Self::Pipe) }
    }

    pub fn interactive(&self) -> bool {
        matches!(self, Self::Editor(_))
    }

    /// The next line. Reading blocks, so that it runs on a thread of its own.
    pub async fn next(&mut self) -> anyhow::Result<Line> {
        match self {
            Self::Pipe => Ok(tokio::task::spawn_blocking(read_pipe).await??),
            Self::Editor(slot) => {
                let mut editor = match slot.take() {
                    Some(editor) => editor,
                    None => Box::new(DefaultEditor::new()?),
                };
                let (editor, read) = tokio::task::spawn_blocking(move || {
                    let read = editor.readline("> ");
                    (editor, read)
                })
                .await?;
                let editor = slot.insert(editor);
                match read {
                    Ok(text) => {
                        // History is a convenience; a line that it refuses is a line all the same.
                        let _ = editor.add_history_entry(&text);
                        Ok(Line::Text(text))
                    }
                    Err(ReadlineError::Interrupted) => Ok(Line::Interrupted),
                    Err(ReadlineError::Eof) => Ok(Line::End),
                    Err(error) => Err(error.into()),
                }
            }
        }
    }
}

fn read_pipe() -> std::io::Result<Line> {
    use std::io::{BufRead, Read};
    let mut text = String::new();
    let read = std::io::stdin().lock().take(MAX_LINE_BYTES).read_line(&mut text)?;
    if read == 0 { Ok(Line::End) } else { Ok(Line::Text(text)) }
}
