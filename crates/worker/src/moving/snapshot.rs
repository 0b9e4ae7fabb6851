//! A session as bytes: what is offered, what is said of it, and its rows, in chunks with checksums.
//!
//! An offer says what is to come and for which model. Behind it come the bytes of a [`Manifest`], then the live rows in
//! the order of their positions. Promises that nothing is taken for a session that is not, to the last bit, what was
//! sent: every chunk has a checksum seeded with its place, and all of them together with the offer have one at the end.
//! What was read before the end is the reader's to throw away. Never keeps rows.

use hawser_common::{Coded, ErrorCode};
use hawser_model::executor::MemoryState;
use serde::{Deserialize, Serialize};
use thiserror::Error;
use xxhash_rust::xxh3::{Xxh3, xxh3_64_with_seed};

use crate::options::KvType;
use crate::scheduler::SessionState;
use crate::session::Transcript;

/// Of the whole format. Another one is refused.
pub const VERSION: u32 = 1;
/// Longest manifest: transcript, tokens, marks, prunes, query memory.
pub const MAX_MANIFEST_BYTES: u64 = 64 << 20;
/// Bytes of a chunk, or one row where that is longer.
pub const CHUNK_BYTES: usize = 1 << 20;
/// Longest chunk that is taken.
pub const MAX_CHUNK_BYTES: usize = 16 << 20;

/// What two groups must have in common to go on with each other's rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Of the checkpoint.
    pub digest: String,
    pub kv_type: KvType,
    pub layers: u32,
    pub heads: u32,
    pub kv_heads: u32,
    pub head_dim: u32,
}

impl Shape {
    /// Bytes of one row as it travels.
    #[must_use]
    pub fn row_bytes(&self) -> u64 {
        let number = match self.kv_type {
            KvType::F32 => 4,
            KvType::F16 | KvType::Bf16 => 2,
        };
        [self.layers, self.kv_heads, self.head_dim].iter().map(|&n| u64::from(n)).product::<u64>()
            * 2
            * number
    }
}

/// What is to come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    pub version: u32,
    pub digest: String,
    pub kv_type: String,
    /// Layers, query heads, KV heads, numbers per head.
    pub sizes: [u32; 4],
    pub manifest_bytes: u64,
    pub rows: u64,
    pub row_bytes: u64,
}

/// All of a session but its rows.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    pub transcript: Transcript,
    /// `None`: the group has no rows of it, and no log.
    pub state: Option<SessionState>,
    pub memory: Option<MemoryState>,
    /// How long ago it was used last.
    pub idle_ms: u64,
}

/// Why a snapshot is not taken over. Nothing is kept of it.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SnapshotError {
    #[error("the snapshot has version {found}; this group reads version {VERSION}")]
    Version { found: u32 },
    #[error(
        "the snapshot is of another model or another KV pool: its {what} is {found}, this group's is {own}"
    )]
    Foreign { what: &'static str, found: String, own: String },
    #[error("the snapshot announces {found} {what}; at most {most} are taken")]
    TooLarge { what: &'static str, found: u64, most: u64 },
    #[error("bytes from {found} on came where {expected} was due, or more than announced")]
    Order { expected: u64, found: u64 },
    #[error("the chunk at {offset} is damaged")]
    Damaged { offset: u64 },
    #[error("the snapshot ends after {found} of {expected} bytes")]
    Truncated { expected: u64, found: u64 },
    #[error("the snapshot as a whole is damaged")]
    Total,
    #[error("the manifest cannot be read: {reason}")]
    Manifest { reason: String },
    #[error("the manifest is not that of a session: {what}")]
    Unsound { what: &'static str },
}

impl Coded for SnapshotError {
    fn code(&self) -> ErrorCode {
        match self {
            Self::TooLarge { .. } => ErrorCode::Exhausted,
            _ => ErrorCode::Invalid,
        }
    }
}

impl Manifest {
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        postcard::to_allocvec(self).expect("a manifest is plain data")
    }

    /// # Errors
    /// [`SnapshotError`] where it is no manifest, or not one of a session with `rows` live rows.
    pub fn decode(bytes: &[u8], rows: u64, vocabulary: usize) -> Result<Self, SnapshotError> {
        let unreadable = |error: postcard::Error| SnapshotError::Manifest { reason: error.to_string() };
        let (manifest, rest): (Self, &[u8]) = postcard::take_from_bytes(bytes).map_err(unreadable)?;
        let check = |ok: bool, what| if ok { Ok(()) } else { Err(SnapshotError::Unsound { what }) };
        check(rest.is_empty(), "there is more behind it")?;
        check(manifest.transcript.is_sound(vocabulary), "its transcript")?;
        let live = manifest.state.as_ref().map_or(0, |state| state.live.len());
        check(live as u64 == rows, "its number of live rows")?;
        if let Some(state) = &manifest.state {
            state.check(vocabulary).map_err(|unsound| SnapshotError::Unsound { what: unsound.what })?;
        }
        Ok(manifest)
    }
}

impl Offer {
    #[must_use]
    pub fn new(shape: &Shape, manifest_bytes: usize, rows: usize) -> Self {
        Self {
            version: VERSION,
            digest: shape.digest.clone(),
            kv_type: shape.kv_type.name().to_owned(),
            sizes: [shape.layers, shape.heads, shape.kv_heads, shape.head_dim],
            manifest_bytes: manifest_bytes as u64,
            rows: rows as u64,
            row_bytes: shape.row_bytes(),
        }
    }

    /// Whether a group of this shape with so many slots could take it.
    ///
    /// # Errors
    /// [`SnapshotError`] says what does not fit.
    pub fn check(&self, shape: &Shape, slots: u64) -> Result<(), SnapshotError> {
        if self.version != VERSION {
            return Err(SnapshotError::Version { found: self.version });
        }
        let own = Self::new(shape, 0, 0);
        let equal = |what, found: String, own: String| {
            if found == own { Ok(()) } else { Err(SnapshotError::Foreign { what, found, own }) }
        };
        equal("model digest", self.digest.clone(), own.digest)?;
        equal("KV type", self.kv_type.clone(), own.kv_type)?;
        for (index, what) in
            ["number of layers", "number of heads", "number of KV heads", "head size"].into_iter().enumerate()
        {
            equal(what, self.sizes[index].to_string(), own.sizes[index].to_string())?;
        }
        equal("row size", self.row_bytes.to_string(), own.row_bytes.to_string())?;
        let most = |what, found, most| {
            if found <= most { Ok(()) } else { Err(SnapshotError::TooLarge { what, found, most }) }
        };
        most("bytes of manifest", self.manifest_bytes, MAX_MANIFEST_BYTES)?;
        most("rows", self.rows, slots)
    }

    /// Rows of one chunk.
    #[must_use]
    pub fn chunk_rows(&self) -> usize {
        (CHUNK_BYTES / usize::try_from(self.row_bytes).unwrap_or(usize::MAX).max(1)).max(1)
    }

    fn bytes(&self) -> u64 {
        self.manifest_bytes.saturating_add(self.rows.saturating_mul(self.row_bytes))
    }

    fn total(&self) -> Xxh3 {
        let mut total = Xxh3::new();
        for number in [u64::from(self.version), self.manifest_bytes, self.rows, self.row_bytes] {
            total.update(&number.to_le_bytes());
        }
        for size in self.sizes {
            total.update(&size.to_le_bytes());
        }
        for text in [&self.digest, &self.kv_type] {
            total.update(&(text.len() as u64).to_le_bytes());
            total.update(text.as_bytes());
        }
        total
    }
}

/// One piece of the bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    pub offset: u64,
    pub data: Vec<u8>,
    pub checksum: u64,
}

/// Numbers the bytes and adds checksums.
#[derive(Clone)]
pub struct Writer {
    offset: u64,
    total: Xxh3,
}

impl Writer {
    #[must_use]
    pub fn new(offer: &Offer) -> Self {
        Self { offset: 0, total: offer.total() }
    }

    pub fn chunk(&mut self, data: Vec<u8>) -> Chunk {
        let offset = self.offset;
        self.offset += data.len() as u64;
        self.total.update(&data);
        Chunk { offset, checksum: xxh3_64_with_seed(&data, offset), data }
    }

    /// The checksum of everything.
    #[must_use]
    pub fn end(self) -> u64 {
        self.total.digest()
    }
}

/// What a chunk brings.
#[derive(Clone, Debug, PartialEq)]
pub enum Piece {
    /// A part of the manifest.
    Part,
    Manifest(Box<Manifest>),
    /// Whole rows from the first on.
    Rows {
        first: usize,
        bytes: Vec<u8>,
    },
}

/// Takes chunks in order.
pub struct Reader {
    offer: Offer,
    vocabulary: usize,
    offset: u64,
    total: Xxh3,
    manifest: Vec<u8>,
}

impl Reader {
    /// A reader of an offer that was checked.
    #[must_use]
    pub fn new(offer: Offer, vocabulary: usize) -> Self {
        Self { total: offer.total(), offer, vocabulary, offset: 0, manifest: Vec::new() }
    }

    /// # Errors
    /// [`SnapshotError`]: the snapshot is not to be taken over.
    pub fn chunk(&mut self, chunk: Chunk) -> Result<Piece, SnapshotError> {
        let Chunk { offset, data, checksum } = chunk;
        let end = offset.saturating_add(data.len() as u64);
        let of_manifest = offset < self.offer.manifest_bytes;
        let last = if of_manifest { self.offer.manifest_bytes } else { self.offer.bytes() };
        if offset != self.offset || end > last || data.is_empty() || data.len() > MAX_CHUNK_BYTES {
            return Err(SnapshotError::Order { expected: self.offset, found: offset });
        }
        if xxh3_64_with_seed(&data, offset) != checksum {
            return Err(SnapshotError::Damaged { offset });
        }
        self.total.update(&data);
        self.offset = end;
        if of_manifest {
            self.manifest.extend_from_slice(&data);
            if end < self.offer.manifest_bytes {
                return Ok(Piece::Part);
            }
            let bytes = std::mem::take(&mut self.manifest);
            let manifest = Manifest::decode(&bytes, self.offer.rows, self.vocabulary)?;
            return Ok(Piece::Manifest(Box::new(manifest)));
        }
        let row = self.offer.row_bytes.max(1);
        let behind = offset - self.offer.manifest_bytes;
        if !behind.is_multiple_of(row) || !(data.len() as u64).is_multiple_of(row) {
            return Err(SnapshotError::Order { expected: self.offset, found: offset });
        }
        let first = usize::try_from(behind / row).unwrap_or(usize::MAX);
        Ok(Piece::Rows { first, bytes: data })
    }

    /// # Errors
    /// [`SnapshotError::Truncated`] or [`SnapshotError::Total`].
    pub fn end(self, checksum: u64) -> Result<(), SnapshotError> {
        let (expected, found) = (self.offer.bytes(), self.offset);
        if expected != found {
            return Err(SnapshotError::Truncated { expected, found });
        }
        if self.total.digest() == checksum { Ok(()) } else { Err(SnapshotError::Total) }
    }
}

impl std::fmt::Debug for Reader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reader")
            .field("offer", &self.offer)
            .field("offset", &self.offset)
            .finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Writer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writer").field("offset", &self.offset).finish_non_exhaustive()
    }
}
