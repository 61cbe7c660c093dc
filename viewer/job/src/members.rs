//! Groups traces into the ranks of one job.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};

use memlab_trace::read_header_at;
use memlab_trace::record::Header;

/// Largest spread of the start times of one job's ranks, in nanoseconds.
const MAX_START_SPREAD_NS: u64 = 600_000_000_000;

/// A trace, known by its first line.
#[derive(Clone, Debug, PartialEq)]
pub struct TraceFile {
    /// Path of the trace.
    pub path: PathBuf,
    /// Its first line.
    pub header: Header,
}

impl TraceFile {
    /// Opens a trace, plain or compressed; `None`: the file is not a trace.
    pub fn open(path: &Path) -> Option<Self> {
        Some(Self { path: path.to_owned(), header: read_header_at(path)? })
    }
}

/// Returns the ranks of the job that `of` belongs to, by rank.
///
/// Of several traces of a rank, the newest counts. Traces of ranks' children do not count. Returns nothing if `of` has no
/// rank.
pub fn ranks_of<'f>(of: &Header, among: &'f [TraceFile]) -> Vec<&'f TraceFile> {
    let members: Vec<&TraceFile> = among.iter().filter(|file| is_same_job(of, &file.header)).collect();
    let mut ranks: BTreeMap<Option<u32>, &TraceFile> = BTreeMap::new();
    for file in without_children(&members) {
        let known = ranks.entry(file.header.rank).or_insert(file);
        if known.header.start_unix_ns < file.header.start_unix_ns {
            *known = file;
        }
    }
    ranks.into_values().collect()
}

/// Returns true if the traces belong to one job with one trace per rank, not counting children of ranks.
pub fn are_one_job(files: &[TraceFile]) -> bool {
    let Some(first) = files.first() else { return false };
    let members: Vec<&TraceFile> = files.iter().collect();
    files.iter().all(|file| is_same_job(&first.header, &file.header))
        && ranks_of(&first.header, files).len() == without_children(&members).count()
}

fn is_same_job(a: &Header, b: &Header) -> bool {
    a.rank.is_some()
        && b.rank.is_some()
        && (a.world_size, &a.directory) == (b.world_size, &b.directory)
        && a.start_unix_ns.abs_diff(b.start_unix_ns) < MAX_START_SPREAD_NS
        && without_rank(&a.command).eq(without_rank(&b.command))
}

/// The command without the argument with which some launchers (DeepSpeed's) set the rank's number.
fn without_rank(command: &[String]) -> impl Iterator<Item = &String> {
    let is_rank = |argument: &str| argument.starts_with("--local_rank=") || argument.starts_with("--local-rank=");
    command.iter().filter(move |argument| !is_rank(argument))
}

/// Leaves out processes that a rank started, which inherit its number.
fn without_children<'f>(files: &[&'f TraceFile]) -> impl Iterator<Item = &'f TraceFile> {
    let process = |host: &str, pid: u32, rank: Option<u32>| (host.to_owned(), pid, rank);
    let parents: HashSet<_> =
        files.iter().map(|file| process(&file.header.host, file.header.pid, file.header.rank)).collect();
    files.iter().copied().filter(move |TraceFile { header, .. }| {
        header.parent_pid == header.pid || !parents.contains(&process(&header.host, header.parent_pid, header.rank))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trace(rank: u32, pid: u32, parent_pid: u32, start_unix_ns: u64) -> TraceFile {
        let command = ["python", "train.py", &format!("--local_rank={rank}"), "--lr=1"].map(str::to_owned).to_vec();
        let (rank, world_size) = (Some(rank), Some(2));
        let header = Header { pid, parent_pid, start_unix_ns, rank, world_size, command, ..Header::default() };
        TraceFile { path: format!("{pid}.jsonl").into(), header }
    }

    #[test]
    fn a_jobs_ranks_are_found_among_restarts_children_and_other_jobs() {
        // GIVEN two ranks, one started twice and one with a child, an earlier job, and a trace without a rank
        let mut files = vec![
            trace(1, 21, 9, MAX_START_SPREAD_NS),
            trace(0, 10, 9, MAX_START_SPREAD_NS),
            trace(1, 22, 9, MAX_START_SPREAD_NS + 5),
            trace(0, 11, 10, MAX_START_SPREAD_NS + 7),
        ];
        files.push(trace(0, 5, 4, 0));
        files.push(TraceFile { header: Header { rank: None, ..files[0].header.clone() }, ..files[0].clone() });
        // WHEN the ranks of any of them are requested THEN each rank appears once, with its latest start
        let pids = |of: usize| -> Vec<u32> {
            ranks_of(&files[of].header, &files).iter().map(|file| file.header.pid).collect()
        };
        assert_eq!([pids(0), pids(3)], [[10, 22], [10, 22]]);
        assert_eq!(pids(4), [5]);
        assert!(ranks_of(&files[5].header, &files).is_empty());
        // AND only traces of different ranks are one job, with or without children
        assert!(are_one_job(&files[..2]) && are_one_job(&[files[1].clone(), files[2].clone(), files[3].clone()]));
        assert!(!are_one_job(&files[..3]) && !are_one_job(&files[1..]) && !are_one_job(&[]));
    }
}
