//! Helpers: small libraries and programs compiled from C.

use std::path::{Path, PathBuf};
use std::process::Command;

/// A folder for one test.
pub fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&folder).expect("makes a folder");
    folder
}

/// Compiles a C file.
pub fn compile(source: &Path, output: &Path, flags: &[&str]) {
    let built = Command::new("cc").args(flags).arg("-o").args([output, source]).arg("-ldl").status();
    assert!(built.expect("there is a C compiler").success());
}

/// A library compiled from C source.
pub fn library(folder: &Path, soname: &str, source: &str) -> PathBuf {
    let source_file = folder.join(format!("{soname}.c"));
    std::fs::write(&source_file, source).expect("writes the source");
    let library = folder.join(soname);
    compile(&source_file, &library, &["-shared", "-fPIC", &format!("-Wl,-soname,{soname}")]);
    library
}
