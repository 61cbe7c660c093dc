//! Names of holders in words that a person can act on: Python expressions, places and cures.

use crate::answer::{Holder, PathStep};
use crate::graph::{EdgeKind, NodeKind};

impl Holder {
    /// The holder in a word: `list`, `exception`, `garbage`.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        kind_of(self)
    }

    /// Its paths as Python expressions: `history`, `trainer.outputs`, `cache['task7']`. Several if only the release of all
    /// these names frees the memory.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        self.paths.iter().map(|path| expression(path)).collect()
    }

    /// Where it is stored: file, line and function; `None`: unknown.
    #[must_use]
    pub fn place(&self) -> Option<StoredAt<'_>> {
        self.paths.first().and_then(|path| place(path))
    }

    /// The change to the program that releases the memory.
    #[must_use]
    pub fn cure(&self) -> String {
        cure(self, &self.names())
    }

    /// True if it is hardly what the program wants to keep: an exception, garbage, a cache, or graphs for backward in a
    /// container.
    #[must_use]
    pub fn is_avoidable(&self) -> bool {
        match self.paths.first().and_then(|path| path.last()).map(|step| step.object.kind) {
            Some(NodeKind::Exception | NodeKind::Traceback | NodeKind::Garbage | NodeKind::Cache) => true,
            Some(NodeKind::Sequence | NodeKind::Mapping) => self.for_backward > 0,
            _ => false,
        }
    }
}

/// A place in a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredAt<'a> {
    /// File as Python names it.
    pub file: &'a str,
    /// Line, from 1.
    pub line: u32,
    /// Function; empty at the level of a module.
    pub function: &'a str,
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
            EdgeKind::Item => "item",
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
            EdgeKind::Item if label.is_empty() && text.ends_with("[…]") => {}
            EdgeKind::Item if label.is_empty() => text.push_str("[…]"),
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

/// Where the last reference with a known line is stored.
fn place(path: &[PathStep]) -> Option<StoredAt<'_>> {
    let stored = path.iter().enumerate().rev().find(|(_, step)| step.stored_at > 0);
    if let Some((index, step)) = stored
        && let Some(holder) = index.checked_sub(1).map(|before| &path[before].object)
        && !holder.file.is_empty()
    {
        let function = if holder.kind == NodeKind::Frame { holder.name.as_str() } else { "" };
        return Some(StoredAt { file: &holder.file, line: step.stored_at, function });
    }
    let named = path.iter().rev().find(|step| !step.object.file.is_empty() && step.object.line > 0)?;
    Some(StoredAt { file: &named.object.file, line: named.object.line, function: &named.object.name })
}

/// The change to the program that releases the memory.
fn cure(holder: &Holder, paths: &[String]) -> String {
    let has_graph = holder.for_backward * 4 >= holder.releases;
    let Some(last) = holder.paths.first().and_then(|path| path.last()) else { return String::new() };
    let name = paths.first().map_or("", String::as_str);
    if paths.len() > 1 {
        let names = paths.join(", ");
        return if has_graph {
            format!(
                "Detach what you carry over (x = x.detach()), or delete the names before the next forward: del {names}"
            )
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
        NodeKind::Native => {
            "Enable no autocast across iterations, release CUDA graphs, and let other processes drop what \
                             they received."
                .to_owned()
        }
        NodeKind::Sequence | NodeKind::Mapping if has_graph => {
            "Detach what you keep: append x.detach(), or a number (x.item()).".to_owned()
        }
        _ if !holder.keys.is_empty() => "Delete entries that are no longer used (delete_adapter).".to_owned(),
        NodeKind::Sequence | NodeKind::Mapping => {
            format!("Keep numbers (.item()) or CPU copies (.cpu()) in it, or bound or clear it: {name}.clear()")
        }
        _ if has_graph => format!("{name} = {name}.detach(), or del {name} before the next forward."),
        _ => format!("del {name}"),
    }
}
