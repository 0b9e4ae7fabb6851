//! Files mapped read-only into memory: weights are read where they lie, and only the pages that are used.
//!
//! Owns the mapping. Never writes, never interprets a byte.

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::path::Path;

use memmap2::Mmap;

/// A whole file as a byte slice, for as long as this value lives.
#[derive(Debug)]
pub struct MappedFile(Mmap);

impl MappedFile {
    /// Maps the file at `path`.
    ///
    /// # Errors
    /// What the operating system says about opening or mapping it.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        // SAFETY: the mapping is private and read-only, and its pointer never leaves this type. The one thing that
        // could change the bytes is another process that writes or truncates the file meanwhile; checkpoints are
        // replaced by renaming, never edited in place, and the process that does otherwise dies by SIGBUS or reads
        // wrong weights, which no reader of a mapped file can prevent.
        let map = unsafe { Mmap::map(&file) }?;
        Ok(Self(map))
    }
}

impl Deref for MappedFile {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_mapped_file_reads_as_its_bytes() {
        let path = std::env::temp_dir().join(format!("hawser-mapped-{}", std::process::id()));
        let bytes: Vec<u8> = (0..10_000_u32).flat_map(u32::to_le_bytes).collect();
        File::create(&path).unwrap().write_all(&bytes).unwrap();
        let mapped = MappedFile::open(&path).unwrap();
        assert_eq!(&*mapped, &bytes[..]);
        std::fs::remove_file(&path).unwrap();
        assert!(MappedFile::open(&path).is_err());
    }
}
