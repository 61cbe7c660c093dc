//! Checks the `python` and `python3` in PATH, and their PyTorch.

use std::env;
use std::ffi::OsStr;
use std::io::Read;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde::Deserialize;

use super::check::Check;
use memlab_base::clock::patience;
use memlab_base::preload::{check_program, why_untraced};

const SCRIPT: &str = include_str!("interpreter.py");

/// Longest wait for a Python's answer.
const PYTHON_TIMEOUT: Duration = Duration::from_secs(20);
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Versions of CPython 3 whose stacks memlab reads: `interpose/python/src/layout.rs`.
const PYTHONS: [u32; 2] = [9, 14];
/// Oldest and newest PyTorch that memlab was tested with: `docs/versions.md`.
const TORCHES: [(u32, u32); 2] = [(2, 1), (2, 15)];

/// A Python interpreter.
#[derive(Debug)]
pub struct Python {
    name: &'static str,
    /// Its answer, or the reason why it gives none.
    answer: Result<Answer, String>,
    /// Its CUPTI files, which PyTorch loads.
    pub cupti: Vec<PathBuf>,
}

#[derive(Debug, Deserialize)]
struct Answer {
    executable: String,
    /// Folder of the environment.
    prefix: String,
    implementation: String,
    version: [u32; 3],
    free_threaded: bool,
    torch: Option<Torch>,
    cupti: Vec<PathBuf>,
    memlab: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Torch {
    version: String,
    cuda: Option<String>,
    folder: String,
}

/// Returns the interpreters in PATH.
///
/// One that both names mean appears once.
pub fn in_path() -> Vec<Python> {
    let mut pythons: Vec<Python> = Vec::new();
    for name in ["python", "python3"] {
        if check_program(OsStr::new(name), "run").is_err() {
            continue;
        }
        let answer = query(name);
        let is_same = |known: &Python| match (&known.answer, &answer) {
            (Ok(known), Ok(answer)) => known.prefix == answer.prefix,
            _ => false,
        };
        if pythons.iter().any(is_same) {
            continue;
        }
        let cupti = answer.as_ref().map_or_else(|_| Vec::new(), |answer| answer.cupti.clone());
        pythons.push(Python { name, answer, cupti });
    }
    pythons
}

fn query(name: &str) -> Result<Answer, String> {
    let mut command = Command::new(name);
    command.args(["-c", SCRIPT]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().map_err(|error| format!("it cannot be started: {error}"))?;
    let stdout = child.stdout.take();
    let reader = thread::spawn(move || {
        let mut text = String::new();
        stdout.map(|mut stdout| stdout.read_to_string(&mut text));
        text
    });
    let (started, limit) = (Instant::now(), patience(PYTHON_TIMEOUT));
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if started.elapsed() < limit => thread::sleep(POLL_INTERVAL),
            _ => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("it has not answered for {} seconds", limit.as_secs()));
            }
        }
    };
    let text = reader.join().unwrap_or_default();
    let answer = text.lines().last().and_then(|line| serde_json::from_str(line).ok());
    answer.ok_or_else(|| format!("it does not run a script ({status})"))
}

/// Checks each Python and its PyTorch.
///
/// `cuda`: the newest CUDA that the driver supports.
pub fn checks(pythons: &[Python], cuda: Option<(u32, u32)>) -> Vec<Check> {
    if pythons.is_empty() {
        let found = "neither `python` nor `python3` is in PATH: only programs without Python can be recorded";
        return vec![Check::warning("Python", found, "activate the environment of your program")];
    }
    let of_each = pythons.iter().map(|python| match &python.answer {
        Ok(answer) => vec![of_python(python.name, answer), of_torch(answer.torch.as_ref(), cuda)]
            .into_iter()
            .chain(of_package(answer))
            .collect(),
        Err(why) => vec![of_silent(python.name, why)],
    });
    of_each.collect::<Vec<Vec<Check>>>().concat()
}

fn of_silent(name: &str, why: &str) -> Check {
    match why_untraced(OsStr::new(name)) {
        Some(why) => untraced(name, why),
        None => Check::warning("Python", format!("{name}: {why}"), format!("try `{name} -c 'print(1)'`")),
    }
}

fn untraced(shown: &str, why: &str) -> Check {
    Check::cannot("Python", format!("{shown}: {why}"), "use a CPython that is linked dynamically with glibc")
}

fn of_python(name: &str, answer: &Answer) -> Check {
    let Answer { executable, implementation, version: [major, minor, patch], .. } = answer;
    let shown = format!("{name} is {implementation} {major}.{minor}.{patch}, {executable}");
    let [oldest, newest] = PYTHONS;
    let known = format!("use CPython 3.{oldest} to 3.{newest} with the GIL");
    let without_lines =
        |why: &str| Check::warning("Python", format!("{shown}: {why}: no Python lines, no layers"), &*known);
    if let Some(why) = why_untraced(OsStr::new(executable)) {
        untraced(&shown, why)
    } else if implementation != "CPython" {
        without_lines("it is no CPython")
    } else if answer.free_threaded {
        without_lines("it is free-threaded")
    } else if *major != 3 || !(oldest..=newest).contains(minor) {
        without_lines("this memlab does not know that version")
    } else {
        Check::ok("Python", shown)
    }
}

fn of_torch(torch: Option<&Torch>, driver: Option<(u32, u32)>) -> Check {
    let name = "PyTorch";
    let Some(Torch { version, cuda, folder }) = torch else {
        return Check::warning(
            name,
            "that Python has none: only what the CUDA driver hands out can be recorded",
            "activate the environment of your program, or install torch",
        );
    };
    let Some(cuda) = cuda else {
        return Check::cannot(
            name,
            format!("{version}, {folder}: built without CUDA, so it takes no GPU memory"),
            "install a build for CUDA",
        );
    };
    let shown = format!("{version} for CUDA {cuda}, {folder}");
    if let (Some((built_for, _)), Some((major, minor))) = (numbers(cuda), driver)
        && built_for > major
    {
        return Check::cannot(
            name,
            format!("{shown}: the driver knows CUDA up to {major}.{minor}"),
            "install a newer driver, or a PyTorch for that CUDA",
        );
    }
    let [oldest, newest] = TORCHES.map(|(major, minor)| format!("{major}.{minor}"));
    match numbers(version) {
        Some(numbers) if numbers < TORCHES[0] => Check::warning(
            name,
            format!("{shown}: older than {oldest}: only what the CUDA driver hands out may be recorded"),
            format!("use PyTorch {oldest} or newer"),
        ),
        Some(numbers) if numbers > TORCHES[1] => Check::warning(
            name,
            format!("{shown}: newer than {newest}, with which this memlab was tried"),
            "read the report's warnings: they say what could not be recorded",
        ),
        _ => Check::ok(name, shown),
    }
}

fn of_package(answer: &Answer) -> Option<Check> {
    let (version, own) = (answer.memlab.as_deref()?, env!("CARGO_PKG_VERSION"));
    Some(if version == own {
        Check::ok("Python package", format!("memlab {version}"))
    } else {
        Check::warning(
            "Python package",
            format!("that Python has memlab {version}, and this command is {own}"),
            format!("use `python -m memlab`, or install {own} there"),
        )
    })
}

/// Returns the first two numbers of a version.
fn numbers(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.split(|character: char| !character.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::check::CheckState;

    fn answer(version: [u32; 3]) -> Answer {
        Answer {
            executable: "/bin/sh".to_owned(),
            prefix: "/".to_owned(),
            implementation: "CPython".to_owned(),
            version,
            free_threaded: false,
            torch: None,
            cupti: Vec::new(),
            memlab: None,
        }
    }

    #[test]
    fn pythons_with_unreadable_stacks_are_reported() {
        let found = |answer: &Answer| of_python("python", answer);
        assert_eq!(found(&answer([3, 11, 7])), Check::ok("Python", "python is CPython 3.11.7, /bin/sh"));
        for (answer, why) in [
            (answer([3, 8, 18]), "does not know that version"),
            (answer([3, 99, 0]), "does not know that version"),
            (Answer { free_threaded: true, ..answer([3, 14, 0]) }, "free-threaded"),
            (Answer { implementation: "PyPy".to_owned(), ..answer([3, 11, 0]) }, "no CPython"),
        ] {
            let check = found(&answer);
            assert!(check.state == CheckState::Warning && check.found.contains(why), "{check:?}");
        }
    }

    #[test]
    fn pytorch_is_held_against_the_driver_and_the_versions_tried() {
        let state = |version: &str, cuda: Option<&str>, driver| {
            let (version, cuda, folder) = (version.to_owned(), cuda.map(str::to_owned), "/torch".to_owned());
            of_torch(Some(&Torch { version, cuda, folder }), driver).state
        };
        let [oldest, newest] = TORCHES.map(|(major, minor)| format!("{major}.{minor}.0+cu130"));
        assert_eq!(
            [state(&oldest, Some("13.0"), None), state(&newest, Some("13.2"), Some((13, 0)))],
            [CheckState::Ok; 2]
        );
        assert_eq!(state("2.11.0", Some("13.2"), Some((12, 8))), CheckState::Cannot);
        assert_eq!(state("2.11.0+cpu", None, None), CheckState::Cannot);
        assert_eq!(
            [state("1.13.1", Some("11.7"), None), state("2.99.0a0", Some("13.2"), None)],
            [CheckState::Warning; 2]
        );
        assert_eq!(of_torch(None, None).state, CheckState::Warning);
    }

    #[test]
    fn the_versions_are_those_of_the_recorder_and_of_the_docs() {
        // GIVEN the table of CPython's layouts, and the documented results for each version of PyTorch
        let layouts = include_str!("../../../../interpose/python/src/layout.rs");
        let minors: Vec<u32> = layouts
            .lines()
            .filter_map(|line| line.trim().strip_prefix("minor: ")?.strip_suffix(',')?.parse().ok())
            .collect();
        let results = include_str!("../../../../docs/versions.md").split("## Results").nth(1).unwrap();
        let torches: Vec<(u32, u32)> =
            results.lines().filter_map(|line| numbers(line.strip_prefix("| ")?.split(' ').next()?)).collect();
        // THEN their oldest and newest versions are the constants of this file
        assert_eq!(PYTHONS.map(Some), [minors.iter().min().copied(), minors.iter().max().copied()]);
        assert_eq!(TORCHES.map(Some), [torches.iter().min().copied(), torches.iter().max().copied()]);
    }

    #[test]
    fn another_memlab_in_the_python_is_reported() {
        let package = |version: &str| {
            of_package(&Answer { memlab: Some(version.to_owned()), ..answer([3, 11, 7]) }).map(|check| check.state)
        };
        assert_eq!(
            [package(env!("CARGO_PKG_VERSION")), package("0.0.1")],
            [Some(CheckState::Ok), Some(CheckState::Warning)]
        );
        assert_eq!(of_package(&answer([3, 11, 7])), None);
    }
}
