//! Generates the wire types and the descriptor set that server reflection serves.

use std::path::PathBuf;

#[allow(clippy::print_stdout, reason = "this is how a build script talks to cargo")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let root = PathBuf::from("../../proto");
    // Outside this package: cargo would not see a change there by itself.
    println!("cargo::rerun-if-changed={}", root.display());
    let files =
        ["types", "hawser", "worker", "store"].map(|name| root.join(format!("hawser/v1/{name}.proto")));
    let out = PathBuf::from(std::env::var_os("OUT_DIR").ok_or("OUT_DIR is not set")?);
    tonic_prost_build::configure()
        .file_descriptor_set_path(out.join("hawser.bin"))
        .compile_protos(&files, &[root])?;
    Ok(())
}
