//! Finds the traces to read when a command names a folder or nothing: the newest, with the other ranks of its job.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use memlab_job::{TraceFile, are_one_job, ranks_of};

use crate::error::bad_input;
use crate::output;
use memlab_units::format;

/// Maximum number of traces named in one line.
const NAMED_TRACES: usize = 8;

/// Finds the traces of a command's arguments.
///
/// A file stands for itself, a folder for its newest trace. Without arguments, the working directory is searched. With
/// `all_ranks`, the other ranks of a trace found in a folder are included.
///
/// # Errors
///
/// If a folder contains no trace.
pub fn traces(arguments: &[PathBuf], all_ranks: bool) -> anyhow::Result<Vec<PathBuf>> {
    if arguments.is_empty() {
        return newest(Path::new("."), all_ranks);
    }
    let mut traces = Vec::new();
    for argument in arguments {
        if argument.is_dir() {
            traces.extend(newest(argument, all_ranks)?);
        } else {
            traces.push(argument.clone());
        }
    }
    Ok(traces)
}

/// Checks that the file exists that an argument of `memlab report` or another such command names.
///
/// # Errors
///
/// If it does not exist. The message names the command without an argument.
pub fn check_exists(file: &Path, command: &str) -> anyhow::Result<()> {
    if file.try_exists().unwrap_or(true) {
        return Ok(());
    }
    let file = file.display();
    Err(bad_input(format!(
        "{file}: no such file; without a name, `memlab {command}` opens the newest trace in this folder"
    )))
}

/// Ranks among these traces, sorted by rank, if they belong to one job.
///
/// Traces of processes that a rank started are left out, with a note on standard error.
pub fn job(traces: &[PathBuf]) -> Option<Vec<PathBuf>> {
    let files = traces.iter().map(|path| TraceFile::open(path)).collect::<Option<Vec<TraceFile>>>()?;
    if !are_one_job(&files) {
        return None;
    }
    let ranks = paths(&ranks_of(&files[0].header, &files));
    for left_out in traces.iter().filter(|trace| !ranks.contains(trace)) {
        output::note(format_args!("{}: left out, because a rank started this process", shown(left_out)));
    }
    (ranks.len() > 1).then_some(ranks)
}

/// Finds the newest trace in a folder, and names it on standard error.
fn newest(folder: &Path, all_ranks: bool) -> anyhow::Result<Vec<PathBuf>> {
    let mut found: Vec<(SystemTime, TraceFile)> = Vec::new();
    for entry in fs::read_dir(folder).map_err(|error| bad_input(format!("{}: {error}", folder.display())))?.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if !name.ends_with(".jsonl") && !name.ends_with(".jsonl.zst") {
            continue;
        }
        // Opens only files: opening a pipe would block until it has a writer.
        let Ok(facts) = fs::metadata(entry.path()) else { continue };
        if facts.is_file()
            && let Some(file) = TraceFile::open(&entry.path())
        {
            found.push((facts.modified().unwrap_or(SystemTime::UNIX_EPOCH), file));
        }
    }
    found.sort_by(|(age, file), (other, others)| (age, &file.path).cmp(&(other, &others.path)));
    let files: Vec<TraceFile> = found.into_iter().map(|(_, file)| file).collect();
    let Some(newest) = files.last() else {
        let place = if folder == Path::new(".") { "here".to_owned() } else { format!("in {}", folder.display()) };
        return Err(bad_input(format!("no trace {place}: name one, or record one with `memlab run -- CMD`")));
    };
    let ranks = if all_ranks { ranks_of(&newest.header, &files) } else { Vec::new() };
    let traces = if ranks.is_empty() { vec![newest.path.clone()] } else { paths(&ranks) };
    output::note(chosen(&traces, files.len()));
    Ok(traces)
}

fn paths(files: &[&TraceFile]) -> Vec<PathBuf> {
    files.iter().map(|file| file.path.clone()).collect()
}

/// Describes the chosen traces among `found`, in a line.
fn chosen(traces: &[PathBuf], found: usize) -> String {
    let mut names: Vec<String> = traces.iter().take(NAMED_TRACES).map(|path| shown(path)).collect();
    if traces.len() > NAMED_TRACES {
        names.push(format!("… ({} traces)", traces.len()));
    }
    let left_out = found - traces.len();
    if traces.len() > 1 && left_out > 0 {
        names.push(format!("(the newest job; {} left out)", format::counted(left_out as u64, "other trace")));
    }
    names.join(" ")
}

fn shown(path: &Path) -> String {
    path.strip_prefix(".").unwrap_or(path).display().to_string()
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    /// The start of the second job: an hour after the first.
    const SECOND_JOB_START: u64 = 3_600_000_000_000;

    #[test]
    fn the_newest_trace_of_a_folder_is_meant_and_the_other_ranks_with_it() {
        // GIVEN a folder of traces of two jobs, other files, and a pipe
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str, age: u64| {
            let path = folder.path().join(name);
            fs::write(&path, text).unwrap();
            let then = SystemTime::now() - std::time::Duration::from_secs(age);
            File::options().write(true).open(&path).unwrap().set_modified(then).unwrap();
            path
        };
        let rank = |rank: u32, start: u64| {
            format!(
                "{{\"memlab\":1,\"pid\":1,\"command\":[\"a\"],\"rank\":{rank},\"world_size\":2,\"start_unix_ns\":{start}}}\n"
            )
        };
        write("old-0.jsonl", &rank(0, 1), 500);
        write("other.jsonl", "{\"loss\":1}\n", 1);
        write("notes.txt", &rank(0, 1), 1);
        let first = write("new-0.jsonl", &rank(0, SECOND_JOB_START), 90);
        let second = write("new-1.jsonl", &rank(1, SECOND_JOB_START + 1), 100);
        // WHEN the folder is named THEN its newest trace is found, with the other rank if requested
        let named = [folder.path().to_owned()];
        assert_eq!(traces(&named, false).unwrap(), std::slice::from_ref(&first));
        assert_eq!(traces(&named, true).unwrap(), [first.clone(), second.clone()]);
        let ranks = [first.clone(), second.clone()];
        assert_eq!((job(&[second, first.clone()]), job(&ranks[..1])), (Some(ranks.to_vec()), None));
        // AND files stay unchanged, existing or not
        let files = [folder.path().join("gone.jsonl"), first];
        assert_eq!(traces(&files, true).unwrap(), files);
        assert_eq!(job(&files), None);
        // AND one line names the traces chosen of three
        let line = chosen(&[PathBuf::from("./a.jsonl"), PathBuf::from("./b.jsonl")], 3);
        assert_eq!(line, "a.jsonl b.jsonl (the newest job; 1 other trace left out)");
        // AND a folder without a trace is refused with a message
        let empty = tempfile::tempdir().unwrap();
        let error = traces(&[empty.path().to_owned()], false).unwrap_err().to_string();
        assert!(error.contains("no trace in"), "{error}");
    }
}
