//! Checks the crates of this workspace.

use std::path::{Path, PathBuf};

use layers::check::check;
use layers::tree::Tree;

fn workspace() -> PathBuf {
    // Read at run time: several checkouts may share a target folder.
    Path::new(&std::env::var_os("CARGO_MANIFEST_DIR").unwrap()).join("../..").canonicalize().unwrap()
}

#[test]
fn no_file_of_any_crate_imports_upwards_or_in_a_circle() {
    // GIVEN every member of the workspace
    let manifest = std::fs::read_to_string(workspace().join("Cargo.toml")).unwrap();
    let members = manifest.lines().find_map(|line| line.strip_prefix("members = ")).unwrap();
    let members: Vec<&str> = members.split('"').skip(1).step_by(2).collect();
    assert!(members.contains(&"interpose") && members.contains(&"viewer/cli"), "{members:?}");
    let only = std::env::var("LAYERS_OF").ok();

    // WHEN their imports are compared with their drawn layers
    let mut wrong = Vec::new();
    for member in members.iter().filter(|member| only.as_deref().is_none_or(|only| only == **member)) {
        let Some(root) = Tree::root_file(&workspace().join(member)) else { continue };
        wrong.extend(check(&root).into_iter().map(|paragraph| format!("{member}: {paragraph}")));
    }

    // THEN no import violates the rules
    let prefix = format!("{}/", workspace().display());
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n").replace(&prefix, ""));
}
