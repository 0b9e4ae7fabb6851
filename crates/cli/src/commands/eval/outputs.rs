//! The files that an evaluation writes: where they lie, whether they can be written, and that each is whole at any time.
//!
//! Promises that what is wrong with the place is said before any work is done, with its path. Never looks into a file.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

/// Why nothing can be written there.
#[derive(Debug, Error)]
pub enum OutError {
    #[error("{} is a folder; name a file in it, such as {}", out.display(), out.join("retention").display())]
    IsFolder { out: PathBuf },
    #[error("cannot make the folder {}: {source}", folder.display())]
    Folder { folder: PathBuf, source: io::Error },
    #[error("cannot write {}: {source}", path.display())]
    Write { path: PathBuf, source: io::Error },
}

/// Every number, the report, and the picture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outputs {
    pub json: PathBuf,
    pub markdown: PathBuf,
    pub svg: PathBuf,
    /// Of a run that only counts hits.
    pub hits: PathBuf,
}

impl Outputs {
    /// The files of `OUT`, which may be written with `.json` at its end. Makes the folder where there is none, and
    /// tries whether files can be made in it.
    ///
    /// # Errors
    /// [`OutError`] with the path that cannot be written.
    pub fn prepare(out: &Path) -> Result<Self, OutError> {
        let text = out.as_os_str().to_string_lossy();
        if out.is_dir() || text.ends_with('/') || out.file_name().is_none() {
            return Err(OutError::IsFolder { out: out.to_owned() });
        }
        let stem = if out.extension().is_some_and(|end| end == "json") {
            out.with_extension("")
        } else {
            out.to_owned()
        };
        let outputs = Self {
            hits: with_end(&stem, "hits.json"),
            json: with_end(&stem, "json"),
            markdown: with_end(&stem, "md"),
            svg: with_end(&stem, "svg"),
        };
        make_folder(out)?;
        for path in [&outputs.json, &outputs.markdown, &outputs.svg, &outputs.hits] {
            if path.is_dir() {
                return Err(OutError::IsFolder { out: path.clone() });
            }
        }
        let partial = partial(&outputs.json);
        let tried = std::fs::File::create(&partial).and_then(|_| std::fs::remove_file(&partial));
        tried.map_err(|source| OutError::Write { path: outputs.json.clone(), source })?;
        Ok(outputs)
    }
}

/// Makes the folder that a file is to lie in.
///
/// # Errors
/// [`OutError::Folder`].
pub fn make_folder(file: &Path) -> Result<(), OutError> {
    let Some(folder) = file.parent().filter(|folder| !folder.as_os_str().is_empty()) else { return Ok(()) };
    std::fs::create_dir_all(folder).map_err(|source| OutError::Folder { folder: folder.to_owned(), source })
}

/// Writes a file so that it is whole at any time.
///
/// # Errors
/// [`OutError::Write`].
pub fn write(path: &Path, text: &str) -> Result<(), OutError> {
    let partial = partial(path);
    std::fs::write(&partial, text)
        .and_then(|()| std::fs::rename(&partial, path))
        .map_err(|source| OutError::Write { path: path.to_owned(), source })
}

fn partial(path: &Path) -> PathBuf {
    with_end(path, "partial")
}

/// `stem.end`, whatever dots the stem has.
fn with_end(stem: &Path, end: &str) -> PathBuf {
    let mut name = stem.as_os_str().to_owned();
    name.push(".");
    name.push(end);
    PathBuf::from(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_that_cannot_be_written_is_named_before_any_work() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        std::fs::write(dir.join("file"), "").unwrap();
        std::fs::create_dir(dir.join("taken.json")).unwrap();
        let end = |text: &str| format!("{}/{text}", dir.display());
        for (out, says) in [
            (end(""), "is a folder; name a file in it"),
            (end("new/"), "is a folder"),
            (dir.display().to_string(), "is a folder"),
            (end("taken"), "taken.json is a folder"),
            (end("file/in/a/file"), "cannot make the folder"),
        ] {
            let error = Outputs::prepare(Path::new(&out)).unwrap_err().to_string();
            assert!(error.contains(says) && error.contains(&dir.display().to_string()), "{out}: {error}");
        }
        let error = Outputs::prepare(&dir.join("x".repeat(300))).unwrap_err();
        assert!(matches!(&error, OutError::Write { .. }), "{error}");
    }

    #[test]
    fn folders_are_made_and_dots_in_names_stay() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("a/b/share-0.5");
        let outputs = Outputs::prepare(&out).unwrap();
        assert_eq!(outputs.json, dir.path().join("a/b/share-0.5.json"));
        assert_eq!(outputs.svg, dir.path().join("a/b/share-0.5.svg"));
        assert_eq!(std::fs::read_dir(dir.path().join("a/b")).unwrap().count(), 0, "trying leaves nothing");
        assert_eq!(Outputs::prepare(&outputs.json).unwrap(), outputs);
        write(&outputs.json, "{}").unwrap();
        assert_eq!(std::fs::read_to_string(&outputs.json).unwrap(), "{}");
    }
}
