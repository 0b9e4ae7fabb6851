//! Directories that differ in form from the fixtures: shards, names of other folders, templates.

use std::fs;

use super::*;
use crate::checkpoint::{Checkpoint, LayerPart, TensorRole};

fn fixture() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/tiny-qwen3")
}

/// Writes the fixture's weights as two shards, with names in `weight_map` as given.
fn shard(folder: &Path, names: [&str; 2]) {
    let bytes = fs::read(fixture().join("model.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let (mut parts, mut map) = ([Vec::new(), Vec::new()], serde_json::Map::new());
    for (index, (name, view)) in tensors.iter().enumerate() {
        map.insert(name.to_owned(), names[index % 2].into());
        parts[index % 2].push((name, view));
    }
    for (name, part) in names.iter().zip(parts) {
        fs::write(folder.join(name.trim_start_matches("../")), safetensors::serialize(part, None).unwrap())
            .unwrap();
    }
    let index = serde_json::json!({ "metadata": {}, "weight_map": map });
    fs::write(folder.join("model.safetensors.index.json"), index.to_string()).unwrap();
    fs::copy(fixture().join("config.json"), folder.join("config.json")).unwrap();
}

#[test]
fn shards_hold_what_one_file_holds() {
    let folder = tempfile::tempdir().unwrap();
    shard(folder.path(), ["a.safetensors", "b.safetensors"]);
    let (whole, sharded) = (Checkpoint::open(fixture()).unwrap(), Checkpoint::open(folder.path()).unwrap());
    assert_eq!(whole.config(), sharded.config());
    assert_ne!(whole.digest(), sharded.digest());
    for role in
        [TensorRole::Head, TensorRole::Layer(3, LayerPart::Down), TensorRole::Layer(0, LayerPart::Query)]
    {
        assert_eq!(whole.matrix(role).unwrap().data, sharded.matrix(role).unwrap().data, "{role:?}");
    }
    fs::remove_file(folder.path().join("b.safetensors")).unwrap();
    let error = Checkpoint::open(folder.path()).unwrap_err();
    assert!(
        error.path.ends_with("b.safetensors") && matches!(error.fault, CheckpointFault::NotFound),
        "{error}"
    );
}

#[test]
fn a_shard_outside_the_folder_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    shard(folder.path(), ["../a.safetensors", "b.safetensors"]);
    let error = Checkpoint::open(folder.path()).unwrap_err();
    assert!(matches!(error.fault, CheckpointFault::Json { .. }), "{error}");
}

#[test]
fn templates_come_from_their_own_file_or_from_the_tokenizers_configuration() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
    assert_eq!(chat_template(folder.path()).unwrap(), None);
    write("tokenizer_config.json", r#"{"chat_template": "one"}"#);
    assert_eq!(chat_template(folder.path()).unwrap().as_deref(), Some("one"));
    let named = r#"[{"name": "rag", "template": "no"}, {"name": "default", "template": "two"}]"#;
    write("tokenizer_config.json", &format!(r#"{{"chat_template": {named}}}"#));
    assert_eq!(chat_template(folder.path()).unwrap().as_deref(), Some("two"));
    write("chat_template.jinja", "three");
    assert_eq!(chat_template(folder.path()).unwrap().as_deref(), Some("three"));
    write("generation_config.json", r#"{"eos_token_id": [5, 2, 5]}"#);
    fs::copy(fixture().join("config.json"), folder.path().join("config.json")).unwrap();
    assert_eq!(describe(folder.path()).unwrap().end_tokens, [2, 5]);
}
