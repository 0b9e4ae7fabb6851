//! The architecture as the crates' manifests have it: who may depend on whom, and who may use what.

use std::collections::BTreeSet;
use std::path::Path;

use cargo_metadata::{DependencyKind, Metadata, MetadataCommand, Package};

/// Each crate and the workspace crates that it may depend on. A new arrow needs a note in docs/adr/.
const ARROWS: &[(&str, &[&str])] = &[
    ("common", &[]),
    ("proto", &["common"]),
    ("placement", &["common"]),
    ("kv", &["common"]),
    ("device", &["common"]),
    ("model", &["common", "kv", "device"]),
    ("eval", &["common", "kv", "device", "model"]),
    ("worker", &["common", "proto", "placement", "kv", "device", "model"]),
    ("router", &["common", "proto", "placement"]),
    ("client", &["common", "proto"]),
    ("telemetry", &["common"]),
    (
        "cli",
        &[
            "common",
            "proto",
            "placement",
            "device",
            "model",
            "eval",
            "worker",
            "router",
            "client",
            "telemetry",
        ],
    ),
    (
        "tests",
        &[
            "common",
            "proto",
            "placement",
            "kv",
            "device",
            "model",
            "eval",
            "worker",
            "router",
            "client",
            "testkit",
            "telemetry",
        ],
    ),
    // Nothing that is shipped is in the list of those that may use it.
    ("testkit", &["common", "proto", "placement"]),
];

/// Outside crates that only some of ours may use.
const KEPT_TO: &[(&str, &[&str])] = &[
    ("etcd-client", &["placement", "testkit", "tests"]),
    ("candle-core", &["model"]),
    ("tokenizers", &["model"]),
    ("minijinja", &["model"]),
    ("tonic", &["proto", "worker", "router", "client", "cli", "testkit", "tests"]),
    ("tonic-prost", &["proto"]),
    ("prost", &["proto", "worker", "router", "tests"]),
    ("opentelemetry", &["common", "telemetry"]),
    ("opentelemetry_sdk", &["telemetry"]),
    ("opentelemetry-otlp", &["telemetry"]),
    ("opentelemetry-prometheus", &["telemetry"]),
    ("prometheus", &["telemetry"]),
    ("axum", &["telemetry"]),
    (
        "tokio",
        &[
            "common",
            "proto",
            "placement",
            "worker",
            "router",
            "client",
            "cli",
            "telemetry",
            "testkit",
            "tests",
        ],
    ),
    ("libc", &["device"]),
    // Others have TLS from tonic.
    ("rustls", &["device", "proto"]),
    ("h2", &["proto"]),
    ("memmap2", &["device"]),
    ("gemm", &["device"]),
    ("cudarc", &["device"]),
    ("libloading", &["device"]),
    ("anyhow", &["cli", "tests"]),
    ("clap", &["cli"]),
    ("figment", &["common"]),
    ("turmoil", &["tests"]),
    ("mad-turmoil", &["tests"]),
];

fn metadata() -> Metadata {
    MetadataCommand::new().no_deps().exec().expect("cargo metadata describes the workspace")
}

fn short(package: &Package) -> &str {
    package.name.strip_prefix("hawser-").unwrap_or(&package.name)
}

/// What a package depends on, but for its own tests.
fn dependencies(package: &Package) -> BTreeSet<&str> {
    let used =
        package.dependencies.iter().filter(|dependency| dependency.kind != DependencyKind::Development);
    used.map(|dependency| dependency.name.as_str()).collect()
}

#[test]
fn crates_depend_only_along_the_arrows() {
    let metadata = metadata();
    let mut wrong = Vec::new();
    for package in &metadata.packages {
        let Some((_, allowed)) = ARROWS.iter().find(|(name, _)| *name == short(package)) else {
            wrong.push(format!("{} is not in the list of arrows", package.name));
            continue;
        };
        for used in dependencies(package).iter().filter_map(|name| name.strip_prefix("hawser-")) {
            if !allowed.contains(&used) {
                wrong.push(format!("{} → {used}", short(package)));
            }
        }
    }
    assert!(wrong.is_empty(), "arrows that the architecture does not have: {wrong:?}");
    assert_eq!(metadata.packages.len(), ARROWS.len(), "the list names crates that do not exist");
}

#[test]
fn outside_crates_stay_where_they_belong() {
    let metadata = metadata();
    let mut wrong = Vec::new();
    for package in &metadata.packages {
        let used = dependencies(package);
        for (outside, allowed) in KEPT_TO {
            if used.contains(outside) && !allowed.contains(&short(package)) {
                wrong.push(format!("{} → {outside}", short(package)));
            }
        }
    }
    assert!(wrong.is_empty(), "dependencies outside their place: {wrong:?}");
}

#[test]
fn every_crate_takes_the_workspace_lints_and_only_device_lifts_the_one_on_unsafe() {
    for package in &metadata().packages {
        let manifest = std::fs::read_to_string(&package.manifest_path).unwrap();
        assert!(manifest.contains("[lints]\nworkspace = true"), "{} has its own lints", package.name);
        let folder = package.manifest_path.parent().unwrap();
        let lifts = rust_files(folder.as_std_path()).iter().any(|path| {
            let text = std::fs::read_to_string(path).unwrap();
            // Split, so that this file does not find itself.
            text.contains(concat!("allow(", "unsafe_code"))
        });
        assert_eq!(lifts, short(package) == "device", "{}", package.name);
    }
}

#[test]
fn files_and_their_headers_are_as_agreed() {
    let mut wrong = Vec::new();
    for package in &metadata().packages {
        let folder = package.manifest_path.parent().unwrap();
        for path in rust_files(folder.as_std_path()) {
            let text = std::fs::read_to_string(&path).unwrap();
            let lines = text.lines().count();
            if lines > 500 {
                wrong.push(format!("{} has {lines} lines; split it", path.display()));
            }
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let tests = name == "tests.rs" || name.ends_with("_tests.rs");
            if !tests && !text.starts_with("//!") {
                wrong.push(format!("{} does not say what it owns and promises (//!)", path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn rust_files(folder: &Path) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![folder.to_owned()];
    while let Some(folder) = open.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }
    found
}
