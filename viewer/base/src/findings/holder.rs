//! Holders of memory in words: the object or the names, the memory that their release frees, and the cure.

use std::mem;

use memlab_trace::holders::{EdgeKind, Holder, NodeKind, PathStep};
use memlab_trace::{HeldView, Model};
use memlab_units::format::{self, size};

use super::words::Words;
use crate::file_names::FileNames;

/// An object or names that keep memory alive, for people and for JSON.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HolderView {
    /// One path as Python code; several if only their release together frees the memory.
    pub paths: Vec<String>,
    /// The holder in a word: `list`, `exception`, `garbage`.
    pub kind: &'static str,
    /// File and line that store it, and function; empty if unknown.
    pub place: String,
    /// Bytes of the memory in question that it keeps.
    pub bytes: u64,
    /// Bytes that its release frees.
    pub releases: u64,
    /// Blocks that its release frees.
    pub blocks: usize,
    /// The object or the names, with the file and the line.
    pub short: Words,
    /// Description in a sentence.
    pub what: Words,
    /// The change to the program.
    pub cure: String,
    /// True if graphs for backward are part of what it keeps.
    pub has_graph: bool,
    /// True if it is hardly what the program wants to keep: an exception, garbage, graphs for backward in a container.
    pub is_avoidable: bool,
}

impl HolderView {
    /// True if these are several names, among them all names of another holder.
    ///
    /// They keep memory that is freed only with the other holder's: mostly what the program uses at that time.
    pub fn includes(&self, other: &Self) -> bool {
        self.paths.len() > other.paths.len() && other.paths.iter().all(|path| self.paths.contains(path))
    }
}

/// The holders of memory, largest first.
pub fn holders(held: &HeldView, files: &FileNames) -> Vec<HolderView> {
    let mut views: Vec<HolderView> = held.explanation.holders.iter().map(|holder| view(holder, files)).collect();
    if !held.skipped.is_empty() {
        for view in &mut views {
            view.what = mem::take(&mut view.what).and(format!("; the search left out {}", held.skipped));
        }
    }
    views
}

/// Message about a search that found nothing.
pub fn search_failed(why: &str) -> String {
    format!("the search failed: {why}")
}

/// Message about a trace without a search that has a result.
pub fn no_search(model: &Model) -> String {
    let why = model.failed_searches().next().map_or_else(
        || "memory did not grow, and no error needed one. Search a running program by its process id".to_owned(),
        |why| format!("the last one failed: {why}"),
    );
    format!("the trace has no search for what holds the memory: {why}")
}

fn view(holder: &Holder, files: &FileNames) -> HolderView {
    let (paths, kind, cure, is_avoidable) = (holder.names(), holder.kind(), holder.cure(), holder.is_avoidable());
    let place = holder.place().map_or_else(String::new, |at| {
        let function = if at.function.is_empty() { String::new() } else { format!(" {}", at.function) };
        format!("{}:{}{function}", files.file(at.file), at.line)
    });
    let mut what = Words::default();
    let named = |words: Words, path: &str| if path.is_empty() { words } else { words.and(" ").and_code(path) };
    what = match holder.object().map(|object| object.kind) {
        Some(NodeKind::Garbage) => match &holder.cycle {
            Some(cycle) => what.and("reference cycles through ").and_code(cycle_name(cycle)),
            None => what.and("reference cycles"),
        },
        Some(NodeKind::Native) => what.and(match kind {
            "autocast cache" => "autocast's weight cache",
            "DDP buckets" => "buckets of gradients of DistributedDataParallel",
            "other process" => "another process that received the tensors",
            _ => "C or C++ alone, no Python object",
        }),
        _ if paths.len() > 1 => {
            let mut words = what;
            for (index, path) in paths.iter().enumerate() {
                words = words.and(if index == 0 {
                    ""
                } else if index + 1 == paths.len() {
                    " and "
                } else {
                    ", "
                });
                words = words.and_code(path);
            }
            if holder.more > 0 {
                words = words.and(format!(" and {} more names", holder.more));
            }
            words.and(" together")
        }
        _ => named(what.and(kind), paths.first().map_or("", String::as_str)),
    };
    let mut short = what.clone();
    if let Some(at) = holder.place() {
        short = short.and(" (").and_code(format!("{}:{}", files.file(at.file), at.line)).and(")");
    }
    if !place.is_empty() {
        what = what.and(" (").and_code(&place).and(")");
    }
    if !holder.keys.is_empty() {
        what = what.and(format!(", keys {}", keys(&holder.keys)));
    }
    if holder.object().is_some_and(|object| object.kind == NodeKind::Garbage) {
        what = what.and(match holder.collections {
            ..2 => ", which only the garbage collector frees".to_owned(),
            collections => format!(", which only {collections} runs of the garbage collector free"),
        });
    }
    let mut parts = Vec::new();
    if holder.tensors > 1 && !holder.is_native_by_sign() {
        parts.push(format!("{} tensors", format::grouped(u64::from(holder.tensors))));
    }
    if holder.for_backward > 0 && !holder.is_native_by_sign() {
        parts.push(format!("{} saved for backward", size(holder.for_backward)));
    }
    if !parts.is_empty() {
        what = what.and(format!(": {}", parts.join(", ")));
    }
    let (bytes, releases, blocks) = (holder.bytes, holder.releases, holder.blocks);
    let has_graph = holder.has_graph();
    HolderView { paths, kind, place, bytes, releases, blocks, short, what, cure, has_graph, is_avoidable }
}

fn keys(keys: &[String]) -> String {
    let quoted = |key: &String| format!("'{key}'");
    match keys {
        [first, .., last] if keys.len() > 3 => format!("{} to {} ({})", quoted(first), quoted(last), keys.len()),
        _ => keys.iter().map(quoted).collect::<Vec<_>>().join(", "),
    }
}

fn cycle_name(cycle: &PathStep) -> String {
    match cycle.reference {
        EdgeKind::Closure => format!("{} closure {}", cycle.object.name, cycle.label),
        _ => format!("ctx.{}", cycle.label),
    }
}
