//! Requirements for starting a program under memlab: the library, and a program that exists.

use std::env;
use std::ffi::{OsStr, OsString};
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::error::{StartError, bad_input};

const LIBRARY: &str = "libmemlab.so";

/// Finds libmemlab.so: the one in `MEMLAB_LIB`, or else next to this executable, or else in `../lib`.
pub fn find_library() -> anyhow::Result<PathBuf> {
    if let Some(path) = env::var_os("MEMLAB_LIB").filter(|path| !path.is_empty()) {
        let path = PathBuf::from(path);
        return std::path::absolute(&path).ok().filter(|path| path.is_file()).ok_or_else(|| {
            bad_input(format!("MEMLAB_LIB={}: no such file; set it to the path of {LIBRARY}", path.display()))
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

/// Value of LD_PRELOAD: the library, followed by the previous value.
pub fn ld_preload(library: &Path, before: Option<OsString>) -> anyhow::Result<OsString> {
    // The loader treats both as separators, and cannot quote them.
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

/// A program as typed after `--`: a script with its interpreter.
pub fn as_command(program: &str) -> String {
    if program.ends_with(".py") { format!("python {program}") } else { program.to_owned() }
}

/// Looks up the program of `memlab COMMAND` like execvp, to report a mistake before anything starts.
pub fn check_program(program: &OsStr, command: &str) -> anyhow::Result<()> {
    let name = program.to_string_lossy().into_owned();
    let not_found = |message: String| anyhow::Error::new(StartError { message, code: 127 });
    if program.as_bytes().contains(&b'/') {
        return match std::fs::metadata(program) {
            Ok(found) if found.is_dir() => {
                Err(StartError { message: format!("{name}: is a folder, not a program"), code: 126 }.into())
            }
            Ok(found) if found.permissions().mode() & 0o111 == 0 => Err(StartError {
                message: format!(
                    "{name}: is not executable: start it with its interpreter, as in `memlab {command} -- python {name}`"
                ),
                code: 126,
            }
            .into()),
            Ok(_) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Err(not_found(format!("{name}: no such program")))
            }
            Err(error) => Err(StartError { message: format!("{name}: cannot be started: {error}"), code: 126 }.into()),
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
        format!("a file here has that name: use `memlab {command} -- python {name}` or `memlab {command} -- ./{name}`")
    } else {
        "check the spelling, or give its path".to_owned()
    };
    Err(not_found(format!("{name}: no such program in PATH: {hint}")))
}

/// Obvious reason why a program cannot be traced.
pub fn why_untraced(program: &OsStr) -> Option<&'static str> {
    if env::var_os("MEMLAB").is_some_and(|value| value == "0") {
        return Some("MEMLAB=0 switches memlab off");
    }
    let file = file_of(program)?;
    let found = std::fs::metadata(&file).ok()?;
    let (user, group) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    if takes_rights(found.mode(), (found.uid(), found.gid()), (user, group)) {
        return Some("it is a setuid program, and the system disables LD_PRELOAD for those");
    }
    match loader_in(&start_of(&file)?)? {
        Loader::None => Some("it is linked statically, and LD_PRELOAD has no effect on it"),
        Loader::Musl => Some("it is linked with musl, but libmemlab.so needs glibc"),
        Loader::Other => None,
    }
}

/// True if a program fails to start with the library preloaded: musl's loader rejects glibc's symbols.
pub fn refuses_library(program: &OsStr) -> bool {
    let start = file_of(program).and_then(|file| start_of(&file));
    start.and_then(|start| loader_in(&start)) == Some(Loader::Musl)
}

/// File of a program name, as execvp finds it.
fn file_of(program: &OsStr) -> Option<PathBuf> {
    if program.as_bytes().contains(&b'/') {
        return Some(PathBuf::from(program));
    }
    let path = env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    env::split_paths(&path).map(|folder| folder.join(program)).find(|file| file.is_file())
}

/// Beginning of a file, which contains an executable's headers.
fn start_of(file: &Path) -> Option<Vec<u8>> {
    let mut start = Vec::new();
    std::fs::File::open(file).ok()?.take(4096).read_to_end(&mut start).ok()?;
    Some(start)
}

/// True if a program of this mode and owner runs with other privileges than its parent.
fn takes_rights(mode: u32, owner: (u32, u32), starter: (u32, u32)) -> bool {
    mode & 0o4000 != 0 && owner.0 != starter.0 || mode & 0o2000 != 0 && owner.1 != starter.1
}

/// Loader of an executable's libraries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Loader {
    /// None: the executable is linked statically.
    None,
    Musl,
    Other,
}

/// Dynamic loader named in the first bytes of an executable. `None`: unknown.
fn loader_in(start: &[u8]) -> Option<Loader> {
    const INTERPRETER: u64 = 3;
    let number = |at: u64, length: u64| {
        let bytes = start.get(usize::try_from(at).ok()?..usize::try_from(at.checked_add(length)?).ok()?)?;
        Some(bytes.iter().rev().fold(0_u64, |number, byte| number << 8 | u64::from(*byte)))
    };
    // 64 bits, little-endian: the only format that memlab runs on.
    if !start.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let (table, size, count) = (number(32, 8)?, number(54, 2)?, number(56, 2)?);
    for index in 0..count {
        let header = table.checked_add(index * size)?;
        // Headers beyond the bytes read are ignored.
        if number(header, 4)? == INTERPRETER {
            let (at, length) = (number(header.checked_add(8)?, 8)?, number(header.checked_add(32)?, 8)?);
            let path = start.get(usize::try_from(at).ok()?..usize::try_from(at.checked_add(length)?).ok()?)?;
            let is_musl = path.windows(8).any(|part| part == b"/ld-musl");
            return Some(if is_musl { Loader::Musl } else { Loader::Other });
        }
    }
    Some(Loader::None)
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
    fn programs_that_cannot_be_traced_are_known() {
        // GIVEN a usual program, which names its loader (PT_INTERP, its second header) behind the headers
        let program = |kind: u8, loader: &[u8]| {
            let mut program = vec![0; 64 + 2 * 56];
            program[..6].copy_from_slice(b"\x7fELF\x02\x01");
            (program[32], program[54], program[56]) = (64, 56, 2);
            (program[64], program[120]) = (6, kind);
            (program[128], program[152]) = (176, loader.len() as u8);
            program.extend_from_slice(loader);
            program
        };
        let usual = program(3, b"/lib64/ld-linux-x86-64.so.2\0");
        // THEN it differs from a static program and from one of musl, and a file that is not a program has no result
        assert_eq!(loader_in(&usual), Some(Loader::Other));
        assert_eq!(loader_in(&program(1, b"")), Some(Loader::None));
        assert_eq!(loader_in(&program(3, b"/lib/ld-musl-x86_64.so.1\0")), Some(Loader::Musl));
        assert_eq!([loader_in(&usual[..100]), loader_in(&usual[..180]), loader_in(b"#!/bin/sh\n")], [None; 3]);
        assert_eq!(why_untraced(OsStr::new("sh")), None);
        // AND a change of privileges differs from privileges that the caller has already
        assert!(takes_rights(0o104_755, (0, 0), (1000, 1000)) && takes_rights(0o102_755, (0, 5), (0, 0)));
        assert!(!takes_rights(0o104_755, (1000, 0), (1000, 1000)) && !takes_rights(0o100_755, (0, 0), (1000, 1000)));
    }

    #[test]
    fn programs_are_looked_up() {
        let code = |program: &str| {
            check_program(OsStr::new(program), "run").err().map(|error| crate::error::exit_code(&error))
        };
        assert_eq!([code("sh"), code("/bin/sh")], [None, None]);
        assert_eq!([code("no-such-program"), code("/no/such/program")], [Some(127), Some(127)]);
        let file = tempfile::NamedTempFile::new().unwrap();
        assert_eq!([code("/etc"), code(file.path().to_str().unwrap())], [Some(126), Some(126)]);
    }
}
