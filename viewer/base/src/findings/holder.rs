//! What keeps memory alive, in words: the object or the names, what their release frees, and the cure.

use memlab_trace::HeldView;
use memlab_trace::holders::{EdgeKind, Holder, NodeKind, PathStep};
use memlab_units::format::{self, size};

use super::words::Words;
use crate::text;

/// What keeps memory alive, for people and for JSON.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HolderView {
    /// One path as Python code; several if only their release together frees the memory.
    pub paths: Vec<String>,
    /// What it is: `list`, `exception`, `garbage`.
    pub kind: &'static str,
    /// File and line that store it, and function; empty if unknown.
    pub place: String,
    /// Bytes of the memory in question that it keeps.
    pub bytes: u64,
    /// Bytes that its release frees.
    pub releases: u64,
    /// Blocks that its release frees.
    pub blocks: usize,
    /// Description in a sentence.
    pub what: Words,
    /// What to change.
    pub cure: String,
}

/// The holders of memory, largest first.
pub fn holders(held: &HeldView, directory: &str) -> Vec<HolderView> {
    held.explanation.holders.iter().map(|holder| view(holder, directory)).collect()
}

fn view(holder: &Holder, directory: &str) -> HolderView {
    let paths: Vec<String> = holder.paths.iter().map(|path| expression(path)).collect();
    let last = holder.paths.first().and_then(|path| path.last());
    let kind = kind_of(holder);
    let place = holder.paths.first().map(|path| place(path, directory)).unwrap_or_default();
    let cure = cure(holder, &paths);
    let mut what = Words::default();
    let named = |words: Words, path: &str| if path.is_empty() { words } else { words.and(" ").and_code(path) };
    what = match last.map(|step| step.object.kind) {
        Some(NodeKind::Garbage) => what.and("objects that only the garbage collector frees"),
        Some(NodeKind::Native) => what.and("C or C++ alone, no Python object"),
        _ if paths.len() > 1 => {
            let mut words = what;
            for (index, path) in paths.iter().enumerate() {
                words = words.and(if index == 0 { "" } else if index + 1 == paths.len() { " and " } else { ", " });
                words = words.and_code(path);
            }
            words.and(" together")
        }
        _ => named(what.and(kind), paths.first().map_or("", String::as_str)),
    };
    if !place.is_empty() {
        what = what.and(" (").and_code(&place).and(")");
    }
    if !holder.keys.is_empty() {
        what = what.and(format!(", keys {}", keys(&holder.keys)));
    }
    if let Some(cycle) = &holder.cycle {
        what = what.and(", in cycles through ").and_code(cycle_name(cycle));
    }
    let mut parts = Vec::new();
    if holder.tensors > 1 {
        parts.push(format!("{} tensors", format::grouped(u64::from(holder.tensors))));
    }
    if holder.for_backward > 0 {
        parts.push(format!("{} saved for backward", size(holder.for_backward)));
    }
    if !parts.is_empty() {
        what = what.and(format!(": {}", parts.join(", ")));
    }
    HolderView { paths, kind, place, bytes: holder.bytes, releases: holder.releases, blocks: holder.blocks, what, cure }
}

fn kind_of(holder: &Holder) -> &'static str {
    if holder.paths.len() > 1 {
        return "names";
    }
    let Some(last) = holder.paths.first().and_then(|path| path.last()) else { return "object" };
    match last.object.kind {
        NodeKind::Sequence => match last.object.name.as_str() {
            "tuple" => "tuple",
            "set" | "frozenset" => "set",
            "deque" => "deque",
            _ => "list",
        },
        NodeKind::Mapping => "dict",
        NodeKind::Exception => "exception",
        NodeKind::Traceback => "traceback",
        NodeKind::Cache => "cache of",
        NodeKind::Generator => "generator",
        NodeKind::Context => "ctx",
        NodeKind::Garbage => "garbage",
        NodeKind::Native => "native",
        NodeKind::Module => "module",
        NodeKind::Frame => "frame of",
        NodeKind::Class => "class",
        NodeKind::Function => "function",
        _ => match last.reference {
            EdgeKind::Local => "local",
            EdgeKind::Global => "variable",
            EdgeKind::Attribute => "attribute",
            _ => "object",
        },
    }
}

/// The path as Python code: `history`, `trainer.outputs`, `cache['task7']`.
fn expression(path: &[PathStep]) -> String {
    let mut text = String::new();
    let mut is_part = false;
    for step in path {
        let label = step.label.as_str();
        match step.reference {
            EdgeKind::Local | EdgeKind::Global => text.push_str(label),
            // The dictionaries of `nn.Module`: their keys are attributes.
            EdgeKind::Attribute if matches!(label, "_modules" | "_parameters" | "_buffers") => {
                is_part = true;
                continue;
            }
            EdgeKind::Attribute if !label.is_empty() => {
                text.push('.');
                text.push_str(label);
            }
            EdgeKind::Item if is_part && !label.is_empty() => {
                text.push('.');
                text.push_str(label);
            }
            EdgeKind::Item if label.is_empty() => {
                if !text.ends_with("[…]") {
                    text.push_str("[…]");
                }
            }
            EdgeKind::Item if label.bytes().all(|byte| byte.is_ascii_digit()) => text.push_str(&format!("[{label}]")),
            EdgeKind::Item => text.push_str(&format!("['{label}']")),
            EdgeKind::Closure => text.push_str(&format!(" closure {label}")),
            _ if text.is_empty() => match step.object.kind {
                NodeKind::Class => text.push_str(step.object.name.rsplit('.').next().unwrap_or_default()),
                NodeKind::Module if step.object.name != "__main__" => {
                    text.push_str(&step.object.name);
                    text.push('.');
                }
                _ => {}
            },
            _ => {}
        }
        is_part = false;
    }
    text.trim_end_matches('.').to_owned()
}

/// Where the last reference with a known line is stored: `train.py:12 main`.
fn place(path: &[PathStep], directory: &str) -> String {
    let stored = path.iter().enumerate().rev().find(|(_, step)| step.stored_at > 0);
    if let Some((index, step)) = stored
        && let Some(holder) = index.checked_sub(1).map(|before| &path[before].object)
        && !holder.file.is_empty()
    {
        let function = if holder.kind == NodeKind::Frame { format!(" {}", holder.name) } else { String::new() };
        return format!("{}:{}{function}", text::short_path(&holder.file, directory), step.stored_at);
    }
    let named = path.iter().rev().find(|step| !step.object.file.is_empty() && step.object.line > 0);
    named.map_or_else(String::new, |step| {
        let object = &step.object;
        format!("{}:{} {}", text::short_path(&object.file, directory), object.line, object.name)
    })
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

/// What to change so that the memory is released.
fn cure(holder: &Holder, paths: &[String]) -> String {
    let has_graph = holder.for_backward > 0;
    let Some(last) = holder.paths.first().and_then(|path| path.last()) else { return String::new() };
    let name = paths.first().map_or("", String::as_str);
    if paths.len() > 1 {
        let names = paths.join(", ");
        return if has_graph {
            format!("Detach what you carry over (x = x.detach()), or delete the names before the next forward: del {names}")
        } else {
            format!("Delete the names when they are no longer needed: del {names}")
        };
    }
    match last.object.kind {
        NodeKind::Garbage => match &holder.cycle {
            Some(cycle) if cycle.reference == EdgeKind::Closure => format!(
                "Break the cycle: let the function refer to `{}` by weakref.ref, or remove the hook that holds it.",
                cycle.label
            ),
            Some(_) => "Save tensors with ctx.save_for_backward, not as attributes of ctx.".to_owned(),
            None => "Break the reference cycle, or call gc.collect() when the objects are no longer needed.".to_owned(),
        },
        NodeKind::Exception | NodeKind::Traceback => {
            "Do not keep the exception: its traceback holds the frames of the failed call. Keep str(error).".to_owned()
        }
        NodeKind::Cache => format!("Bound the cache (maxsize=1), or clear it: {name}.cache_clear()"),
        NodeKind::Native => "Enable no autocast across iterations, release CUDA graphs, and let other processes drop what \
                             they received."
            .to_owned(),
        NodeKind::Sequence | NodeKind::Mapping if has_graph => {
            "Detach what you keep: append x.detach(), or a number (x.item()).".to_owned()
        }
        _ if !holder.keys.is_empty() => "Delete entries that are no longer used (delete_adapter).".to_owned(),
        NodeKind::Sequence | NodeKind::Mapping => format!("Bound or clear it: {name}.clear()"),
        _ if has_graph => format!("{name} = {name}.detach(), or del {name} before the next forward."),
        _ => format!("del {name}"),
    }
}
