//! Checks memlab's library, and other preloaded libraries.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use super::check::Check;
use memlab_base::preload::{find_library, ld_preload};
use memlab_base::simulation;

const LIBRARY: &str = "memlab's library";
const OTHERS: &str = "other preloads";

/// Checks that memlab's library exists and loads.
pub fn library() -> Check {
    if env::var_os("MEMLAB").is_some_and(|value| value == "0") {
        return Check::cannot(LIBRARY, "MEMLAB=0 switches memlab off", "unset MEMLAB");
    }
    let library = match find_library() {
        Ok(library) => library,
        Err(error) => return Check::cannot(LIBRARY, error.to_string(), "install memlab again"),
    };
    let shown = library.display();
    match ld_preload(&library, None).and_then(|value| complaints(&value)) {
        Err(error) => Check::cannot(LIBRARY, error.to_string(), "install memlab in another folder"),
        Ok(Some(complaint)) => Check::cannot(
            LIBRARY,
            format!("{shown} cannot be loaded: {complaint}"),
            "install memlab again, on a file system that allows programs (no noexec)",
        ),
        Ok(None) => Check::ok(LIBRARY, shown.to_string()),
    }
}

/// Returns the dynamic linker's complaints about a value of `LD_PRELOAD`, after starting this program with it.
fn complaints(value: &OsStr) -> anyhow::Result<Option<String>> {
    let mut command = Command::new(env::current_exe()?);
    command.arg("--version").env("LD_PRELOAD", value).stdin(Stdio::null()).stdout(Stdio::null());
    let output = command.output()?;
    let errors = String::from_utf8_lossy(&output.stderr);
    let said = errors.lines().find_map(|line| line.strip_prefix("ERROR: ld.so: "));
    Ok(said.map(str::to_owned).or_else(|| (!output.status.success()).then(|| format!("{}", output.status))))
}

/// Checks the libraries in `LD_PRELOAD` and in `/etc/ld.so.preload` under `root`.
pub fn others(root: &Path) -> Check {
    let variable = env::var_os("LD_PRELOAD").unwrap_or_default();
    let file = fs::read_to_string(root.join("etc/ld.so.preload")).unwrap_or_default();
    of_both(&variable.to_string_lossy(), &file)
}

fn of_both(variable: &str, file: &str) -> Check {
    let file: Vec<&str> = file.lines().map(|line| line.split('#').next().unwrap_or_default()).collect();
    let in_file = file.iter().flat_map(|line| libraries(line)).map(|library| (library, "/etc/ld.so.preload"));
    let all: Vec<(&str, &str)> = libraries(variable)
        .map(|library| (library, "LD_PRELOAD"))
        .chain(in_file)
        .filter(|(l, _)| !is_ours(l))
        .collect();
    for (library, place) in &all {
        let name = file_name(library);
        if name.starts_with("libasan.so") || name.starts_with("libclang_rt.asan") {
            return Check::warning(
                OTHERS,
                format!(
                    "{library} in {place}: AddressSanitizer has to come first, and `memlab run` puts its library there"
                ),
                "set LD_PRELOAD yourself, with AddressSanitizer before libmemlab.so, and start the program without \
                 `memlab run`",
            );
        }
        if library.contains('/') && !Path::new(library).exists() {
            return Check::warning(
                OTHERS,
                format!("{library} in {place}: there is no such file, and every program says so when it starts"),
                format!("remove it from {place}"),
            );
        }
        if let Some(function) = hooks_cuda(Path::new(library)) {
            return Check::warning(
                OTHERS,
                format!(
                    "{library} in {place} knows {function}, as tools do that hook it: one of the two may miss calls"
                ),
                format!("if figures are missing, remove it from {place}"),
            );
        }
    }
    let names: Vec<&str> = all.iter().map(|(library, _)| file_name(library)).collect();
    match names.as_slice() {
        [] => Check::ok(OTHERS, "none"),
        names => Check::ok(OTHERS, format!("{}: work beside memlab's", names.join(", "))),
    }
}

fn libraries(list: &str) -> impl Iterator<Item = &str> {
    list.split([':', ' ', '\t']).filter(|library| !library.is_empty())
}

fn file_name(library: &str) -> &str {
    library.rsplit('/').next().unwrap_or(library)
}

fn is_ours(library: &str) -> bool {
    file_name(library) == "libmemlab.so" || simulation::is_preloaded_by_simulation(file_name(library))
}

/// Returns a CUDA function that memlab hooks and that this library names.
///
/// Tools that hook the function also name it.
fn hooks_cuda(library: &Path) -> Option<&'static str> {
    let bytes = fs::read(library).ok()?;
    ["cuMemAlloc_v2", "cudaMalloc"].into_iter().find(|name| {
        bytes
            .windows(name.len() + 2)
            .any(|at| at[0] == 0 && at.ends_with(&[0]) && &at[1..=name.len()] == name.as_bytes())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::check::CheckState;

    #[test]
    fn conflicting_preloads_are_detected() {
        // GIVEN an allocator's library, and a library that hooks CUDA's functions
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            fs::write(folder.path().join(name), text).unwrap();
            folder.path().join(name).display().to_string()
        };
        let allocator = file("libjemalloc.so.2", "\0malloc\0free\0");
        let profiler = file("libprofiler.so", "\0cuInit\0cuMemAlloc_v2\0");
        // THEN the allocator, memlab itself and the simulated card cause no warning
        let fine = of_both(&format!("/opt/libmemlab.so:{allocator} /x/libsimgpu_cudart.so"), "# none\n");
        assert_eq!(fine, Check::ok(OTHERS, "libjemalloc.so.2: work beside memlab's"));
        assert_eq!(of_both("", ""), Check::ok(OTHERS, "none"));
        // AND the profiler does, in the variable and in the file, as do a missing library and AddressSanitizer
        for (check, said) in [
            (of_both(&profiler, ""), "libprofiler.so in LD_PRELOAD knows cuMemAlloc_v2, as"),
            (of_both("", &format!("{profiler} # all\n")), "libprofiler.so in /etc/ld.so.preload knows"),
            (of_both("/no/such.so", ""), "/no/such.so in LD_PRELOAD: there is no such file"),
            (of_both("/usr/lib/libasan.so.8", ""), "AddressSanitizer has to come first"),
        ] {
            assert!(check.state == CheckState::Warning && check.found.contains(said), "{check:?}");
        }
    }
}
