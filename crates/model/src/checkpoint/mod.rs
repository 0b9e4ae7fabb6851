//! A model on disk: GGUF files and Hugging Face directories, memory-mapped, behind one type.
//!
//! Owns the mapped files. Promises that an open checkpoint has exactly the tensors its configuration asks for, each in
//! its shape and inside its file, so that loading it cannot fail halfway for a wrong number in a header. Never copies
//! a weight and never trusts a size.

mod digest;
mod error;
mod gguf;
mod huggingface;
mod names;
mod tensors;

use std::path::{Path, PathBuf};

use hawser_device::mapped::MappedFile;

pub use digest::Digest;
pub use error::{CheckpointError, CheckpointFault};
pub use names::{LayerPart, TensorRole};
pub use tensors::MatrixView;
pub(crate) use tensors::quantized_storage;

use self::digest::Digester;
use self::names::Naming;
use self::tensors::TensorTable;
use crate::config::{Architecture, InvalidConfig, ModelConfig};
use crate::text::Tokenizer;

/// An open checkpoint.
#[derive(Debug)]
pub struct Checkpoint {
    path: PathBuf,
    config: ModelConfig,
    tensors: TensorTable,
    files: Vec<MappedFile>,
    kind: Kind,
    end_tokens: Vec<u32>,
    chat_template: Option<String>,
    digest: Digest,
}

/// What differs between the two layouts.
#[derive(Debug)]
enum Kind {
    Gguf(gguf::Metadata),
    HuggingFace,
}

impl Checkpoint {
    /// Opens a `.gguf` file, a directory with `config.json` and safetensors, or a directory with one `.gguf` file.
    ///
    /// # Errors
    /// [`CheckpointError`] names the file, what in it is wrong, and what to do.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, CheckpointError> {
        let path = path.as_ref();
        let found = std::fs::metadata(path).map_err(|e| CheckpointFault::from(e).at(path))?;
        if !found.is_dir() {
            return Self::open_gguf(path);
        }
        if path.join("config.json").is_file() {
            return Self::open_hugging_face(path);
        }
        match &gguf_files(path).map_err(|fault| fault.at(path))?[..] {
            [only] => Self::open_gguf(only),
            [] => Err(CheckpointFault::NotACheckpoint.at(path)),
            several => Err(CheckpointFault::SeveralGguf { found: several.len() }.at(path)),
        }
    }

    fn open_gguf(path: &Path) -> Result<Self, CheckpointError> {
        let read = || {
            let file = MappedFile::open(path)?;
            let mut tensors = TensorTable::default();
            let header = gguf::read(&file, 0, &mut tensors)?;
            let config = gguf::model_config(&header.metadata, &tensors)?;
            names::verify(&tensors, Naming::Gguf, &config)?;
            let end_tokens = gguf::end_tokens(&header.metadata)?;
            let chat_template = header.metadata.text("tokenizer.chat_template")?.map(str::to_owned);
            let mut digester = Digester::new();
            digester.add(&file[..header.data_from]);
            let digest = finish_digest(digester, &tensors, std::slice::from_ref(&file));
            let (path, files, kind) = (path.to_owned(), vec![file], Kind::Gguf(header.metadata));
            Ok(Self { path, config, tensors, files, kind, end_tokens, chat_template, digest })
        };
        read().map_err(|fault: CheckpointFault| fault.at(path))
    }

    fn open_hugging_face(path: &Path) -> Result<Self, CheckpointError> {
        let described = huggingface::describe(path)?;
        let mut tensors = TensorTable::default();
        let mut files = Vec::new();
        let mut digester = Digester::new();
        digester.add(described.config_text.as_bytes());
        for file_path in huggingface::weight_files(path)? {
            let mut read = || {
                let file = MappedFile::open(&file_path)?;
                let header = huggingface::read_header(&file, files.len(), &mut tensors)?;
                digester.add(&file[..header]);
                files.push(file);
                Ok(())
            };
            read().map_err(|fault: CheckpointFault| fault.at(&file_path))?;
        }
        names::verify(&tensors, Naming::HuggingFace, &described.config).map_err(|fault| fault.at(path))?;
        Ok(Self {
            path: path.to_owned(),
            config: described.config,
            end_tokens: described.end_tokens,
            chat_template: huggingface::chat_template(path)?,
            digest: finish_digest(digester, &tensors, &files),
            tensors,
            files,
            kind: Kind::HuggingFace,
        })
    }

    #[must_use]
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// The file or directory it was read from.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The name a model is served under unless another is given: the file's without its suffix, or the directory's.
    #[must_use]
    pub fn name(&self) -> String {
        let name = match self.kind {
            Kind::Gguf(_) => self.path.file_stem(),
            Kind::HuggingFace => self.path.file_name(),
        };
        name.map_or_else(|| "model".to_owned(), |name| name.to_string_lossy().into_owned())
    }

    /// Identity of the content; see [`Digest`].
    #[must_use]
    pub fn digest(&self) -> Digest {
        self.digest
    }

    /// Tokens that end an answer as the checkpoint names them by number, ascending. The tokenizer adds those that are
    /// known by their text.
    #[must_use]
    pub fn end_tokens(&self) -> &[u32] {
        &self.end_tokens
    }

    /// The checkpoint's chat template, a Jinja text.
    #[must_use]
    pub fn chat_template(&self) -> Option<String> {
        self.chat_template.clone()
    }

    /// The checkpoint's tokenizer. Its end tokens include [`Checkpoint::end_tokens`].
    ///
    /// # Errors
    /// [`CheckpointError`] where there is none, or where it is none that is served.
    pub fn tokenizer(&self) -> Result<Tokenizer, CheckpointError> {
        let built = match &self.kind {
            Kind::Gguf(metadata) => {
                let vocabulary =
                    gguf::vocabulary(metadata, &self.files[0]).map_err(|fault| fault.at(&self.path))?;
                Tokenizer::from_vocab(vocabulary)
            }
            Kind::HuggingFace => {
                let path = self.path.join("tokenizer.json");
                if !path.is_file() {
                    return Err(CheckpointFault::NoTokenizer { missing: "tokenizer.json" }.at(&self.path));
                }
                Tokenizer::from_file(&path)
            }
        };
        let built = built.map_err(|error| CheckpointFault::Tokenizer(error).at(&self.path))?;
        Ok(built.with_end_ids(self.end_tokens.iter().copied()))
    }

    /// Bytes of all weights as they lie in the files.
    #[must_use]
    pub fn weight_bytes(&self) -> u64 {
        self.tensors.entries().map(|entry| entry.bytes.len() as u64).sum()
    }

    /// A matrix of the model.
    ///
    /// # Errors
    /// [`CheckpointError`] where the model has no such tensor.
    pub fn matrix(&self, role: TensorRole) -> Result<MatrixView<'_>, CheckpointError> {
        let shape = match names::shape(&self.config, role)[..] {
            [rows, cols] => [rows, cols],
            _ => [0, 0],
        };
        let name = self.naming().name(role);
        self.tensors.matrix(&self.files, &name, shape).map_err(|fault| fault.at(&self.path))
    }

    /// A vector of the model, as f32.
    ///
    /// # Errors
    /// [`CheckpointError`] where the model has no such tensor.
    pub fn vector(&self, role: TensorRole) -> Result<Vec<f32>, CheckpointError> {
        let length = names::shape(&self.config, role).first().copied().unwrap_or(0);
        let name = self.naming().name(role);
        self.tensors.vector(&self.files, &name, length).map_err(|fault| fault.at(&self.path))
    }

    /// What each RoPE frequency is divided by, in files that have such a tensor.
    ///
    /// # Errors
    /// [`CheckpointError`] where it has the wrong shape.
    pub fn rope_factors(&self) -> Result<Option<Vec<f32>>, CheckpointError> {
        match self.tensors.get(&self.naming().name(TensorRole::RopeFactors)) {
            Some(_) => self.vector(TensorRole::RopeFactors).map(Some),
            None => Ok(None),
        }
    }

    /// Whether each head's rows of q and k are stored in pairs that RoPE turns together (2i, 2i+1) rather than in
    /// halves (i, i + d/2). GGUF files of the Llama architecture are; those of Qwen, and safetensors, are not.
    #[must_use]
    pub fn rope_pairs_adjacent(&self) -> bool {
        matches!(self.kind, Kind::Gguf(_)) && self.config.architecture == Architecture::Llama
    }

    /// What the files call a tensor.
    #[must_use]
    pub fn tensor_name(&self, role: TensorRole) -> String {
        self.naming().name(role)
    }

    fn naming(&self) -> Naming {
        match self.kind {
            Kind::Gguf(_) => Naming::Gguf,
            Kind::HuggingFace => Naming::HuggingFace,
        }
    }
}

/// Adds the files' lengths and a sample of every tensor.
fn finish_digest(mut digester: Digester, tensors: &TensorTable, files: &[MappedFile]) -> Digest {
    for file in files {
        digester.add(&(file.len() as u64).to_le_bytes());
    }
    for tensor in tensors.entries() {
        digester.add_sample(&files[tensor.file], tensor);
    }
    digester.finish()
}

fn gguf_files(directory: &Path) -> Result<Vec<PathBuf>, CheckpointFault> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        if path.extension().is_some_and(|suffix| suffix == "gguf") {
            found.push(path);
        }
    }
    Ok(found)
}

/// A configuration out of bounds, as a fault of the file it came from.
pub(crate) fn invalid(error: &InvalidConfig) -> CheckpointFault {
    let (key, value, expected) = (error.name.to_owned(), error.value.clone(), error.expected.to_owned());
    CheckpointFault::KeyValue { key, value, expected }
}
