//! Tests of the check on small example crates.

use std::fs;

use layers::check::check;

/// Returns the violations in a crate of these files; the first is its root.
fn wrong(files: &[(&str, &str)]) -> String {
    let folder = tempfile::tempdir().unwrap();
    for (name, source) in files {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, source).unwrap();
    }
    let root = folder.path().join(files[0].0);
    check(&root).join("\n").replace(&format!("{}/", folder.path().display()), "")
}

/// A root with `hook` above `recorder` above `log`.
const ROOT: &str = "//! # Layers\n//!\n//! ```text\n//! hook        calls\n//! recorder    records\n//! log         lines\n//! ```\n\
                    mod hook;\nmod log;\nmod recorder;\n";

#[test]
fn imports_from_lower_layers_are_allowed() {
    let found = wrong(&[
        ("lib.rs", ROOT),
        ("hook.rs", "use crate::recorder::{self, Recorder};\nfn a() { recorder::b(); crate::log::c(); }"),
        ("recorder.rs", "use super::log;\npub struct Recorder;\npub fn b() { log::c() }"),
        ("log.rs", "use std::sync;\npub fn c() { sync::atomic::fence(sync::atomic::Ordering::SeqCst) }"),
    ]);
    assert_eq!(found, "");
}

#[test]
fn an_import_from_a_layer_above_is_found_however_it_is_written() {
    for import in [
        "use crate::hook::Hook;",
        "use crate::{hook::{Hook as Other}};",
        "use super::hook::*;",
        "fn a() { crate::hook::a() }",
        "fn a(_: super::hook::Hook) {}",
        "fn a() { use crate::hook; }",
        "fn a() { println!(\"{}\", crate::hook::A) }",
        "macro_rules! a { () => { $crate::hook::a() } }",
        "mod inner { use super::super::hook::Hook; }",
    ] {
        let found = wrong(&[("lib.rs", ROOT), ("hook.rs", ""), ("recorder.rs", import), ("log.rs", "")]);
        assert!(found.starts_with("not from a lower layer: recorder.rs:1  "), "{import}: {found}");
    }
}

#[test]
fn imports_of_tests_are_ignored() {
    let import = "#[cfg(test)]\nmod tests { use crate::hook::Hook; }\n#[cfg(test)]\nuse crate::hook;";
    assert_eq!(wrong(&[("lib.rs", ROOT), ("hook.rs", ""), ("recorder.rs", import), ("log.rs", "")]), "");
}

#[test]
fn files_of_one_folder_must_not_form_a_circle() {
    let found = wrong(&[
        ("lib.rs", ROOT),
        ("hook.rs", ""),
        ("log.rs", ""),
        ("recorder.rs", "mod a;\nmod b;\npub use a::A;"),
        ("recorder/a.rs", "use super::b::B;\npub struct A;"),
        ("recorder/b.rs", "use super::A;\npub struct B;"),
    ]);
    assert_eq!(
        found,
        "3 files in a circle:\n  recorder.rs:3  a::A\n  recorder/a.rs:1  super::b::B\n  recorder/b.rs:1  super::A"
    );
}

#[test]
fn the_drawing_has_every_module_and_no_other() {
    let root = ROOT.replace("mod log;", "mod log_file;");
    let found = wrong(&[("lib.rs", &root), ("hook.rs", ""), ("recorder.rs", ""), ("log_file.rs", "")]);
    assert_eq!(found, "the drawing names a module that does not exist: log\nthe drawing has no layer for log_file");
    let undrawn = wrong(&[("lib.rs", "mod a;\nmod b;"), ("a.rs", ""), ("b.rs", "")]);
    assert_eq!(undrawn, "lib.rs draws no layers");
}

#[test]
fn modules_of_one_layer_do_not_import_from_each_other() {
    let root = "//! # Layers\n//!\n//! ```text\n//! a, b    beside each other\n//! ```\nmod a;\nmod b;\n";
    let found = wrong(&[("lib.rs", root), ("a.rs", "use crate::b::B;"), ("b.rs", "pub struct B;")]);
    assert_eq!(found, "not from a lower layer: a.rs:1  crate::b::B");
}
