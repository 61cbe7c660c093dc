//! Which traces are meant where a folder is named, or nothing: the newest, with the other ranks of its job.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use memlab_trace::record::Header;
use memlab_trace::{Record, decode_line};

use crate::error::bad_input;
use crate::text::clean;

/// The longest header believed.
const HEADER: u64 = 1 << 16;

/// Ranks of one job begin within this time, in nanoseconds.
const JOB: u64 = 600_000_000_000;

/// The traces that arguments of a command mean: files as they are, for a folder the newest trace in it, and without any
/// argument that of the working directory. With `all_ranks` the other ranks of a trace found so come with it.
///
/// # Errors
///
/// If there is no trace in a folder.
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

/// The newest trace in a folder, which is said on standard error.
fn newest(folder: &Path, all_ranks: bool) -> anyhow::Result<Vec<PathBuf>> {
    let mut found: Vec<(SystemTime, PathBuf)> = Vec::new();
    for entry in fs::read_dir(folder).map_err(|error| bad_input(format!("{}: {error}", folder.display())))?.flatten() {
        let path = entry.path();
        let name = entry.file_name().to_string_lossy().into_owned();
        let is_named_so = name.ends_with(".jsonl") || name.ends_with(".jsonl.zst");
        // Only files are opened: opening a pipe would block until there is a writer.
        let Ok(facts) = fs::metadata(&path) else { continue };
        if is_named_so && facts.is_file() && (name.ends_with(".zst") || header(&path).is_some()) {
            found.push((facts.modified().unwrap_or(SystemTime::UNIX_EPOCH), path));
        }
    }
    found.sort();
    let Some((_, newest)) = found.last() else {
        let place = if folder == Path::new(".") { "here".to_owned() } else { format!("in {}", folder.display()) };
        return Err(bad_input(format!("there is no trace {place}: name one, or record one with `memlab run -- CMD`")));
    };
    let traces = if all_ranks { job(newest, &found) } else { vec![newest.clone()] };
    let names: Vec<String> = traces.iter().map(|path| shown(path)).collect();
    eprintln!("memlab: {}", clean(&names.join(" ")));
    Ok(traces)
}

fn shown(path: &Path) -> String {
    path.strip_prefix(".").unwrap_or(path).display().to_string()
}

/// A trace and those of the other ranks of its job, by rank.
fn job(newest: &Path, found: &[(SystemTime, PathBuf)]) -> Vec<PathBuf> {
    let Some(of) = header(newest).filter(|header| header.rank.is_some()) else { return vec![newest.to_owned()] };
    let mut ranks: BTreeMap<u32, &Path> = BTreeMap::new();
    for (_, path) in found {
        if let Some(header) = header(path)
            && let Some(rank) = header.rank
            && (&header.command, header.world_size, &header.directory) == (&of.command, of.world_size, &of.directory)
            && header.start_unix_ns.abs_diff(of.start_unix_ns) < JOB
        {
            // The newest of each.
            ranks.insert(rank, path);
        }
    }
    ranks.into_values().map(Path::to_owned).collect()
}

/// The header of a trace that is not compressed; `None`: it is no trace.
fn header(path: &Path) -> Option<Header> {
    let mut line = Vec::new();
    BufReader::new(File::open(path).ok()?.take(HEADER)).read_until(b'\n', &mut line).ok()?;
    match decode_line(&line).ok()? {
        Record::Header(header) => Some(*header),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let first = write("new-0.jsonl", &rank(0, JOB * 2), 90);
        let second = write("new-1.jsonl", &rank(1, JOB * 2 + 1), 100);
        // WHEN the folder is named THEN the newest trace is meant, with the other rank where that is wanted
        let named = [folder.path().to_owned()];
        assert_eq!(traces(&named, false).unwrap(), std::slice::from_ref(&first));
        assert_eq!(traces(&named, true).unwrap(), [first.clone(), second]);
        // AND files stay as they are, there or not
        let files = [folder.path().join("gone.jsonl"), first];
        assert_eq!(traces(&files, true).unwrap(), files);
        // AND a folder without a trace is refused in words
        let empty = tempfile::tempdir().unwrap();
        let error = traces(&[empty.path().to_owned()], false).unwrap_err().to_string();
        assert!(error.contains("there is no trace in"), "{error}");
    }
}
