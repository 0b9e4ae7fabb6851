//! E14: a wrong checkpoint is a typed error that names what is wrong: never a panic, never a huge allocation.

use std::fs;
use std::path::Path;

use anyhow::Result;
use hawser_common::{Coded, ErrorCode};
use hawser_model::checkpoint::{Checkpoint, CheckpointFault as Fault};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::fixtures;
use crate::gguf::{Gguf, Tensor, Value};

fn good() -> Result<Gguf> {
    Gguf::from_checkpoint(&Checkpoint::open(fixtures::folder().join("tiny-llama"))?)
}

fn open(folder: &Path, bytes: &[u8]) -> Result<Fault> {
    let path = folder.join("model.gguf");
    fs::write(&path, bytes)?;
    let error = Checkpoint::open(&path).err().ok_or_else(|| anyhow::anyhow!("a wrong file was opened"))?;
    assert!(error.to_string().contains("model.gguf"), "{error}");
    assert_eq!(error.code(), ErrorCode::Invalid);
    Ok(error.fault)
}

/// Each damage, and the tensor or key that its error must name.
#[test]
fn a_damaged_gguf_is_refused_by_name() -> Result<()> {
    type Damage = fn(&mut Gguf);
    let damages: [(&str, Damage); 16] = [
        ("blk.1.attn_q.weight", |g| g.tensor("blk.1.attn_q.weight").dtype = 99),
        ("blk.0.attn_k.weight", |g| g.tensors.retain(|t| t.name != "blk.0.attn_k.weight")),
        ("blk.2.surplus.weight", |g| {
            let extra =
                Tensor { name: "blk.2.surplus.weight".into(), ..g.tensor("output_norm.weight").clone() };
            g.tensors.push(extra);
        }),
        ("output_norm.weight", |g| {
            let twice = g.tensor("output_norm.weight").clone();
            g.tensors.push(twice);
        }),
        ("blk.0.ffn_up.weight", |g| g.tensor("blk.0.ffn_up.weight").shift = 4),
        ("blk.0.ffn_up.weight", |g| g.tensor("blk.0.ffn_up.weight").shift = 1 << 40),
        ("blk.0.ffn_up.weight", |g| g.tensor("blk.0.ffn_up.weight").shift = 32_u64.wrapping_neg()),
        ("token_embd.weight", |g| g.tensor("token_embd.weight").shift = 32_u64.wrapping_neg()),
        ("blk.0.ffn_down.weight", |g| g.tensor("blk.0.ffn_down.weight").dims.swap(0, 1)),
        ("blk.0.ffn_down.weight", |g| g.tensor("blk.0.ffn_down.weight").dims = vec![1 << 33, 1 << 33]),
        ("blk.0.ffn_down.weight", |g| g.tensor("blk.0.ffn_down.weight").dims = vec![0, 72]),
        ("llama.block_count", |g| g.remove("llama.block_count")),
        ("llama.embedding_length", |g| g.set("llama.embedding_length", Value::Text("72".into()))),
        ("blk.3.attn_norm.weight", |g| g.set("llama.block_count", Value::U32(4000))),
        ("number of layers", |g| g.set("llama.block_count", Value::U32(u32::MAX))),
        ("llama.block_count", |g| g.pairs.push(("llama.block_count".into(), Value::U32(3)))),
    ];
    let folder = tempfile::tempdir()?;
    for (name, damage) in damages {
        let mut gguf = good()?;
        damage(&mut gguf);
        let fault = open(folder.path(), &gguf.to_bytes())?;
        println!("{fault}");
        assert!(fault.to_string().contains(name), "{name} is not named: {fault}");
    }
    Ok(())
}

#[test]
fn wrong_values_are_refused_with_the_value() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let refused = |key: &str, value: Value| -> Result<Fault> {
        let mut gguf = good()?;
        gguf.set(key, value);
        open(folder.path(), &gguf.to_bytes())
    };
    let other = refused("general.architecture", Value::Text("mamba".into()))?;
    assert!(matches!(&other, Fault::Architecture { found } if found == "mamba"), "{other}");
    assert!(matches!(refused("llama.attention.head_count_kv", Value::U32(2))?, Fault::KeyValue { .. }));
    assert!(matches!(refused("llama.attention.head_count", Value::U32(0))?, Fault::KeyValue { .. }));
    assert!(matches!(refused("llama.rope.freq_base", Value::F32(f32::NAN))?, Fault::KeyValue { .. }));
    assert!(matches!(refused("llama.rope.dimension_count", Value::U32(4))?, Fault::KeyValue { .. }));
    assert!(matches!(refused("llama.context_length", Value::U32(u32::MAX))?, Fault::KeyValue { .. }));
    assert!(matches!(refused("general.alignment", Value::U32(0))?, Fault::KeyValue { .. }));
    assert!(matches!(refused("general.alignment", Value::U32(48))?, Fault::KeyValue { .. }));
    assert!(matches!(refused("llama.expert_count", Value::U32(8))?, Fault::Unsupported { .. }));
    assert!(matches!(refused("llama.attention.sliding_window", Value::U32(64))?, Fault::Unsupported { .. }));
    Ok(())
}

#[test]
fn absurd_counts_are_refused_before_anything_is_allocated_for_them() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let good = good()?.to_bytes();
    // The counts of tensors and of pairs, then the length of the first key.
    for at in [8, 16, 24] {
        for absurd in [u64::MAX, u64::MAX / 2, 1 << 40, good.len() as u64] {
            let mut bytes = good.clone();
            bytes[at..at + 8].copy_from_slice(&absurd.to_le_bytes());
            let fault = open(folder.path(), &bytes)?;
            assert!(matches!(fault, Fault::Count { .. } | Fault::Truncated { .. }), "{at} {absurd}: {fault}");
        }
    }
    let mut bytes = good.clone();
    bytes[4..8].copy_from_slice(&1_u32.to_le_bytes());
    assert!(matches!(open(folder.path(), &bytes)?, Fault::Version { found: 1 }));
    bytes[..4].copy_from_slice(b"PK\x03\x04");
    assert!(matches!(open(folder.path(), &bytes)?, Fault::NotGguf { .. }));
    assert!(matches!(open(folder.path(), b"")?, Fault::Truncated { .. }));
    Ok(())
}

/// Every truncation is an error; any flipped byte of the header is an error or changes nothing that matters.
#[test]
fn no_damage_to_the_header_panics() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let good = good()?.to_bytes();
    let seed = rand::random();
    println!("seed {seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    let header = 4096;
    for _ in 0..100 {
        open(folder.path(), &good[..rng.random_range(0..header)])?;
        open(folder.path(), &good[..rng.random_range(header..good.len() - 32)])?;
    }
    let path = folder.path().join("flipped.gguf");
    for _ in 0..500 {
        let mut bytes = good.clone();
        for _ in 0..rng.random_range(1..4) {
            bytes[rng.random_range(0..header)] = rng.random();
        }
        fs::write(&path, &bytes)?;
        // Loaded too: what opens must be safe to load.
        if let Ok(checkpoint) = Checkpoint::open(&path) {
            hawser_model::layers::Model::load(&checkpoint)?;
            let _ = checkpoint.tokenizer().map_err(|error| error.to_string());
        }
    }
    Ok(())
}

#[test]
fn a_checkpoint_without_a_tokenizer_says_so() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("model.gguf");
    let mut gguf = good()?;
    gguf.set("tokenizer.ggml.model", Value::Text("gpt2".into()));
    gguf.set("tokenizer.ggml.add_bos_token", Value::Bool(false));
    fs::write(&path, gguf.to_bytes())?;
    let error = Checkpoint::open(&path)?.tokenizer().err().map(|error| error.to_string()).unwrap_or_default();
    assert!(error.contains("tokenizer.ggml.tokens"), "{error}");
    gguf.set("tokenizer.ggml.tokens", Value::Texts(vec!["a".into(), "b".into()]));
    gguf.set("tokenizer.ggml.merges", Value::I32s(vec![1]));
    fs::write(&path, gguf.to_bytes())?;
    let error = Checkpoint::open(&path)?.tokenizer().err().map(|error| error.to_string()).unwrap_or_default();
    assert!(error.contains("tokenizer.ggml.merges"), "{error}");
    let tiny = Checkpoint::open(fixtures::folder().join("tiny-qwen2"))?;
    let error = tiny.tokenizer().err().map(|error| error.to_string()).unwrap_or_default();
    assert!(error.contains("tokenizer.json"), "{error}");
    Ok(())
}

#[test]
fn paths_and_hugging_face_folders_are_checked() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let fault = |path: &Path| Checkpoint::open(path).err().map(|error| error.fault);
    assert!(matches!(fault(&folder.path().join("absent")), Some(Fault::NotFound)));
    assert!(matches!(fault(folder.path()), Some(Fault::NotACheckpoint)));
    fs::write(folder.path().join("a.gguf"), good()?.to_bytes())?;
    assert!(Checkpoint::open(folder.path()).is_ok(), "a folder with one GGUF file is that file");
    fs::write(folder.path().join("b.gguf"), b"")?;
    assert!(matches!(fault(folder.path()), Some(Fault::SeveralGguf { found: 2 })));

    let source = fixtures::folder().join("tiny-qwen3");
    let config = fs::read_to_string(source.join("config.json"))?;
    let weights = fs::read(source.join("model.safetensors"))?;
    let write = |config: &str, weights: &[u8]| -> Result<Option<Fault>> {
        fs::write(folder.path().join("config.json"), config)?;
        fs::write(folder.path().join("model.safetensors"), weights)?;
        Ok(fault(folder.path()))
    };
    assert!(write(&config, &weights)?.is_none());
    assert!(matches!(write("{", &weights)?, Some(Fault::Json { .. })));
    let without = config.replace("hidden_size", "hidden_sizes");
    assert!(
        matches!(write(&without, &weights)?, Some(Fault::Json { reason }) if reason.contains("hidden_size"))
    );
    let deeper = config.replace("\"num_hidden_layers\": 4", "\"num_hidden_layers\": 5");
    assert!(
        matches!(write(&deeper, &weights)?, Some(Fault::MissingTensor { tensor }) if tensor.contains(".4."))
    );
    let shallower = config.replace("\"num_hidden_layers\": 4", "\"num_hidden_layers\": 3");
    assert!(
        matches!(write(&shallower, &weights)?, Some(Fault::ExtraTensor { tensor, .. }) if tensor.contains(".3."))
    );
    let scaled = config.replace("\"rope_type\": \"default\"", "\"rope_type\": \"longrope\"");
    assert!(matches!(write(&scaled, &weights)?, Some(Fault::Unsupported { .. })));
    assert!(matches!(write(&config, &weights[..weights.len() - 1])?, Some(Fault::Safetensors { .. })));
    assert!(matches!(write(&config, &weights[..100])?, Some(Fault::Safetensors { .. })));
    Ok(())
}
