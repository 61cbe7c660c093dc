//! Helpers for the tests of simgpu: find the libraries, compile C programs, and run commands on simulated GPUs.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// Returns the folder of simgpu's sources.
pub fn sources() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// Files that the tests need from `make`.
const BUILT: [&str; 8] = [
    "memlab",
    "libmemlab.so",
    "libsimgpu_cuda.so",
    "libsimgpu_cudart.so",
    "libsimgpu_cupti.so",
    "libsimgpu_libraries.so",
    "libsimgpu_nccl.so",
    "libsimgpu_nvml.so",
];

/// Returns the folder with the simulated libraries and the `memlab` command. `make` builds them; tests do not.
pub fn libraries() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        // A test runs from target/<profile>/deps.
        let own = std::env::current_exe().expect("the test's own path");
        let profile = own.parent().and_then(Path::parent).expect("target/<profile>/deps");
        if let Some(problem) = missing(profile) {
            panic!("{problem}");
        }
        profile.to_owned()
    })
}

/// Returns a message with the files that a folder lacks, and the command that builds them.
fn missing(profile: &Path) -> Option<String> {
    let missing: Vec<&str> = BUILT.into_iter().filter(|name| !profile.join(name).is_file()).collect();
    let build = match profile.ends_with("release") {
        true => "`make` or `cargo build --release --workspace`",
        false => "`cargo build --workspace`",
    };
    let files = missing.join(", ");
    (!missing.is_empty()).then(|| format!("{} lacks {files}: run {build} first", profile.display()))
}

/// Returns a `memlab simulate` command, to extend with arguments, with a limit of half an hour.
pub fn simgpu() -> Command {
    let mut command = Command::new("timeout");
    command.arg("1800").arg(libraries().join("memlab")).arg("simulate");
    command
}

/// Compiles `c/<name>.c`; `extra` can make it a shared library.
pub fn compile(name: &str, extra: &[&str]) -> PathBuf {
    let folder = libraries().join("simgpu/c");
    std::fs::create_dir_all(&folder).expect("a folder for compiled programs");
    // Compiles to a temporary name first, so that concurrent tests never run an incomplete program.
    static DRAFTS: AtomicU32 = AtomicU32::new(0);
    let number = DRAFTS.fetch_add(1, Ordering::Relaxed);
    let draft = folder.join(format!("{name}.{}.{number}", std::process::id()));
    let compiled = Command::new("cc")
        .args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1"])
        .args(extra)
        .arg("-o")
        .arg(&draft)
        .arg(sources().join("c").join(format!("{name}.c")))
        .arg("-L")
        .arg(libraries())
        .arg("-lsimgpu_cudart")
        .arg(libraries().join("libsimgpu_cuda.so"))
        .args(["-ldl", "-lpthread"])
        .status()
        .expect("a C compiler, cc");
    assert!(compiled.success(), "{name}.c does not compile");
    let program = folder.join(name);
    std::fs::rename(&draft, &program).expect("the compiled program");
    program
}

/// Compiles `c/<name>.c` as a library to preload.
pub fn compile_preload(name: &str) -> PathBuf {
    compile(name, &["-shared", "-fPIC", "-Wl,--as-needed"])
}

/// Returns the Python with torch: `MEMLAB_PYTHON`, or `.venv` in the workspace.
pub fn python() -> Option<PathBuf> {
    let named = std::env::var_os("MEMLAB_PYTHON").map(PathBuf::from);
    named.or_else(|| Some(sources().join("../.venv/bin/python")).filter(|python| python.exists()))
}

/// Runs a command and returns its standard output. On failure, the test fails with all output.
pub fn succeed(command: &mut Command) -> String {
    let output = run(command);
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{command:?} ended with {}\n{out}\n{err}", output.status);
    out
}

/// Runs one ignored test of the calling test program, on simulated cards and with these environment variables.
///
/// Returns its standard output.
pub fn run_scenario(test: &str, variables: &[(&str, &str)]) -> String {
    let mut command = simgpu();
    command.arg(std::env::current_exe().expect("the test's own path"));
    command.args(["--ignored", "--exact", "--nocapture", test]).envs(variables.iter().copied());
    let out = succeed(&mut command);
    assert!(out.contains("1 passed"), "{out}");
    out
}

/// Runs a command to its end.
pub fn run(command: &mut Command) -> Output {
    command.output().expect("the command starts")
}

/// Returns output as text.
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Compiles a C program and runs it on one card of 8 GiB.
pub fn run_program(name: &str) {
    let out = succeed(simgpu().arg(compile(name, &[])));
    assert_eq!(out.lines().last(), Some("ok"));
}

/// Runs a Python program on simulated cards; does nothing without a Python with torch.
pub fn run_python(program: &str, options: &[&str]) {
    let Some(python) = python() else {
        eprintln!("skipped: no .venv with torch, and MEMLAB_PYTHON is not set");
        return;
    };
    let script = sources().join("programs").join(program);
    let output = run(simgpu().args(options).arg(python).arg(script));
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    let done = out.lines().last() == Some("ok");
    assert!(done && output.status.success(), "{program} ended with {}\n{out}\n{err}", output.status);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_libraries_are_named_with_the_command_that_builds_them() {
        // GIVEN empty folders, THEN the message has the files and the command
        let all = BUILT.join(", ");
        let release = "/nowhere/release lacks ALL: run `make` or `cargo build --release --workspace` first";
        assert_eq!(missing(Path::new("/nowhere/release")), Some(release.replace("ALL", &all)));
        let debug = "/nowhere/debug lacks ALL: run `cargo build --workspace` first";
        assert_eq!(missing(Path::new("/nowhere/debug")), Some(debug.replace("ALL", &all)));
    }
}
