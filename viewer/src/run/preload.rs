//! What the program needs to be started under memlab: the library, and a program that exists.

use std::env;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::fault::{CannotStart, bad_input};

const LIBRARY: &str = "libmemlab.so";

/// libmemlab.so: what `MEMLAB_LIB` names, else the one next to this executable, else the one in `../lib`.
pub fn find_library() -> anyhow::Result<PathBuf> {
    if let Some(path) = env::var_os("MEMLAB_LIB").filter(|path| !path.is_empty()) {
        let path = PathBuf::from(path);
        return std::path::absolute(&path).ok().filter(|path| path.is_file()).ok_or_else(|| {
            bad_input(format!("MEMLAB_LIB={}: there is no such file; it must name {LIBRARY}", path.display()))
        });
    }
    let executable = env::current_exe().and_then(|path| path.canonicalize());
    let folder = executable.ok().and_then(|path| path.parent().map(Path::to_owned)).unwrap_or_default();
    let candidates = [folder.join(LIBRARY), folder.join("../lib").join(LIBRARY)];
    let found = candidates.iter().find(|path| path.is_file()).and_then(|path| path.canonicalize().ok());
    found.ok_or_else(|| {
        anyhow::anyhow!(
            "{LIBRARY} is neither in {0} nor in {0}/../lib: build it with `cargo build --release --workspace`, or name it \
             with MEMLAB_LIB",
            folder.display()
        )
    })
}

/// The value of LD_PRELOAD: the library first, what was there after it.
pub fn ld_preload(library: &Path, before: Option<OsString>) -> anyhow::Result<OsString> {
    // The loader takes both for separators and knows no way to quote them.
    if library.as_os_str().as_bytes().iter().any(|byte| matches!(byte, b' ' | b':')) {
        return Err(anyhow::anyhow!(
            "{}: LD_PRELOAD cannot hold a path with a space or a colon: move memlab to another folder, or name a copy of \
             {LIBRARY} with MEMLAB_LIB",
            library.display()
        ));
    }
    let mut value = library.as_os_str().as_bytes().to_vec();
    if let Some(before) = before.filter(|before| !before.is_empty()) {
        value.push(b':');
        value.extend_from_slice(before.as_bytes());
    }
    Ok(OsString::from_vec(value))
}

/// Looks the program up as execvp does, so that a mistake is said before anything is started.
pub fn check_program(program: &OsStr) -> anyhow::Result<()> {
    let name = program.to_string_lossy().into_owned();
    let not_found = |message: String| anyhow::Error::new(CannotStart { message, code: 127 });
    if program.as_bytes().contains(&b'/') {
        return match std::fs::metadata(program) {
            Ok(found) if found.is_dir() => {
                Err(CannotStart { message: format!("{name}: is a folder, not a program"), code: 126 }.into())
            }
            Ok(found) if found.permissions().mode() & 0o111 == 0 => Err(CannotStart {
                message: format!(
                    "{name}: is not executable: start it with its interpreter, as in `memlab run -- python {name}`"
                ),
                code: 126,
            }
            .into()),
            Ok(_) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Err(not_found(format!("{name}: there is no such program")))
            }
            Err(error) => Err(CannotStart { message: format!("{name}: cannot be started: {error}"), code: 126 }.into()),
        };
    }
    let path = env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    let is_executable = |file: PathBuf| {
        std::fs::metadata(file).is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
    };
    if env::split_paths(&path).any(|folder| is_executable(folder.join(program))) {
        return Ok(());
    }
    let hint = if Path::new(program).is_file() {
        format!("there is a file of that name here: `memlab run -- python {name}` or `memlab run -- ./{name}`")
    } else {
        "check the spelling, or give its path".to_owned()
    };
    Err(not_found(format!("{name}: no such program in PATH: {hint}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_preload_keeps_what_was_there() {
        let library = Path::new("/opt/memlab/libmemlab.so");
        assert_eq!(ld_preload(library, None).unwrap(), "/opt/memlab/libmemlab.so");
        assert_eq!(ld_preload(library, Some("".into())).unwrap(), "/opt/memlab/libmemlab.so");
        assert_eq!(ld_preload(library, Some("a.so b.so".into())).unwrap(), "/opt/memlab/libmemlab.so:a.so b.so");
        assert!(ld_preload(Path::new("/my folder/libmemlab.so"), None).is_err());
    }

    #[test]
    fn programs_are_looked_up() {
        let code =
            |program: &str| check_program(OsStr::new(program)).err().map(|error| crate::fault::exit_code(&error));
        assert_eq!([code("sh"), code("/bin/sh")], [None, None]);
        assert_eq!([code("no-such-program"), code("/no/such/program")], [Some(127), Some(127)]);
        let file = tempfile::NamedTempFile::new().unwrap();
        assert_eq!([code("/etc"), code(file.path().to_str().unwrap())], [Some(126), Some(126)]);
    }
}
