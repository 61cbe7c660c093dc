//! Names of holders in words that a person can act on: Python expressions, places and cures.

use crate::answer::{Holder, PathStep};
use crate::graph::{DDP, EdgeKind, Node, NodeKind};

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

    /// The object at the end of its first path.
    #[must_use]
    pub fn object(&self) -> Option<&Node> {
        self.paths.first()?.last().map(|step| &step.object)
    }

    /// The statement that deletes its names, or the names if they are no Python code.
    #[must_use]
    pub fn deletion(&self) -> String {
        deleted(&names_to_delete(&self.paths))
    }

    /// True if its names lead to tensors: no container collects them, except for small ones among several names.
    #[must_use]
    pub fn names_tensors(&self) -> bool {
        let are_several = self.paths.len() > 1;
        let is_tensor = |object: &Node| object.kind == NodeKind::Tensor || are_several && is_small_container(object);
        self.paths.iter().all(|path| path.last().is_some_and(|step| is_tensor(&step.object)))
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

    /// True if much of what it keeps was saved for backward.
    #[must_use]
    pub fn has_graph(&self) -> bool {
        self.for_backward * 4 >= self.releases && !self.is_native_by_sign()
    }

    /// True if it is autocast's weight cache, another process or the buckets of `DistributedDataParallel`.
    #[must_use]
    pub fn is_native_by_sign(&self) -> bool {
        self.object().is_some_and(Node::is_native_by_sign)
    }

    /// True if it is hardly what the program wants to keep: an exception, garbage, a cache, or graphs for backward in a
    /// container.
    #[must_use]
    pub fn is_avoidable(&self) -> bool {
        match self.object().map(|object| object.kind) {
            Some(NodeKind::Exception | NodeKind::Traceback | NodeKind::Garbage | NodeKind::Cache) => true,
            Some(NodeKind::Sequence | NodeKind::Mapping) => self.for_backward > 0,
            Some(NodeKind::Native) => self.object().is_some_and(Node::holds_the_rest),
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
            "ndarray" => "array",
            _ => "list",
        },
        NodeKind::Mapping => "dict",
        NodeKind::Exception => "exception",
        NodeKind::Traceback => "traceback",
        NodeKind::Cache => "cache of",
        NodeKind::Generator => "generator",
        NodeKind::Context => "ctx",
        NodeKind::Garbage => "garbage",
        NodeKind::Native => match last.object.name.as_str() {
            "autocast" => "autocast cache",
            "ipc" => "other process",
            DDP => "DDP buckets",
            _ => "native",
        },
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
            EdgeKind::Attribute if matches!(label, "_modules" | "_python_modules" | "_parameters" | "_buffers") => {
                is_part = true;
                continue;
            }
            EdgeKind::Attribute if step.object.name == "ScriptModule" && label == "_c" => {}
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

/// True for a container of which a person deletes all at once.
fn is_small_container(object: &Node) -> bool {
    object.kind.is_container() && (1..=MAX_DELETED_ITEMS).contains(&object.items)
}

/// The names of paths for a `del`, each once: of a small container in a local variable, the variable.
fn names_to_delete(paths: &[Vec<PathStep>]) -> String {
    let mut names: Vec<String> = Vec::new();
    for path in paths {
        let local = path.iter().position(|step| step.reference == EdgeKind::Local);
        let is_small = local.is_some_and(|at| is_small_container(&path[at].object));
        let end = local.filter(|_| is_small).map_or(path.len(), |at| at + 1);
        let name = expression(&path[..end]);
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names.join(", ")
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

/// True if the path ends in the container of a queue, of `queue` or `multiprocessing`.
fn is_in_queue(path: &[PathStep]) -> bool {
    path.iter().rev().nth(1).is_some_and(|step| {
        matches!(step.object.name.as_str(), "Queue" | "LifoQueue" | "PriorityQueue" | "JoinableQueue" | "SimpleQueue")
    })
}

/// A container with more elements is not deleted as a whole.
const MAX_DELETED_ITEMS: u32 = 8;

/// The change to the program that releases the memory.
fn cure(holder: &Holder, paths: &[String]) -> String {
    let has_graph = holder.has_graph();
    let Some(last) = holder.paths.first().and_then(|path| path.last()) else { return String::new() };
    let name = paths.first().map_or("", String::as_str);
    if paths.len() > 1 {
        let names = names_to_delete(&holder.paths);
        return if has_graph {
            format!(
                "Detach what you carry over (.detach()), or delete the names before the next forward: {}",
                deleted(&names)
            )
        } else {
            format!("Delete the names when they are no longer needed: {}", deleted(&names))
        };
    }
    match last.object.kind {
        NodeKind::Garbage => match &holder.cycle {
            Some(cycle) if cycle.reference == EdgeKind::Closure => format!(
                "Break the cycle: let the function refer to `{}` by weakref.ref, or remove the hook that holds it.",
                cycle.label
            ),
            Some(_) => "Save tensors with ctx.save_for_backward, not as attributes of ctx.".to_owned(),
            None => "Break the reference cycle, or collect the objects when they are no longer needed: `gc.collect()`"
                .to_owned(),
        },
        NodeKind::Exception | NodeKind::Traceback => {
            "Do not keep the exception: its traceback holds the frames of the failed call. Keep its text.".to_owned()
        }
        NodeKind::Cache => {
            format!("Bound the cache (maxsize=1), or clear it{}", code(name, &format!("{name}.cache_clear()")))
        }
        NodeKind::Native => match last.object.name.as_str() {
            "autocast" => {
                "Enter a new autocast block for each task, or pass cache_enabled=False: until the outermost block \
                           ends, autocast keeps a copy of every new leaf."
                    .to_owned()
            }
            "ipc" => {
                "Bound what the receiving process keeps, or send CPU tensors: a tensor that was sent stays allocated \
                      here until the receiver drops it and this process calls `torch.cuda.ipc_collect()`."
                    .to_owned()
            }
            DDP => {
                "Pass `gradient_as_bucket_view=True` to DistributedDataParallel: then the gradients lie in the buckets."
                    .to_owned()
            }
            _ => "Release what holds the tensors in C++: CUDA graphs, streams of data, extensions.".to_owned(),
        },
        _ if is_in_queue(&holder.paths[0]) => {
            let buffer = last.label == "_buffer"; // Of a queue between processes.
            let receiver = if buffer { " and what the receiving process keeps" } else { "" };
            format!("Bound the queue (maxsize=…){receiver}, take from it in time, or send CPU tensors.")
        }
        NodeKind::Sequence | NodeKind::Mapping if has_graph => {
            "Detach what you keep: append results of .detach(), or numbers (.item()).".to_owned()
        }
        _ if !holder.keys.is_empty() => "Delete entries that are no longer used (delete_adapter).".to_owned(),
        NodeKind::Generator => {
            let close = code(name, &format!("{name}.close()"));
            format!("Finish the generator, or close it when it is no longer needed{close}")
        }
        NodeKind::Sequence if matches!(kind_of(holder), "tuple" | "array") => {
            format!("Keep numbers (.item()) or CPU copies (.cpu()) in it, or delete it: {}", deleted(name))
        }
        NodeKind::Sequence | NodeKind::Mapping => {
            let clear = code(name, &format!("{name}.clear()"));
            format!("Keep numbers (.item()) or CPU copies (.cpu()) in it, or bound or clear it{clear}")
        }
        NodeKind::Object if has_graph => {
            format!("Detach what you keep in it (.detach()), or delete it before the next forward: {}", deleted(name))
        }
        _ if has_graph => {
            let detach = code(name, &format!("{name} = {name}.detach()"));
            format!("Detach it before the next forward{detach}, or delete it: {}", deleted(name))
        }
        _ => format!("Delete it when it is no longer needed: {}", deleted(name)),
    }
}

/// A statement that deletes names, or the names if they are no Python code.
fn deleted(names: &str) -> String {
    if is_code(names) { format!("`del {names}`") } else { names.to_owned() }
}

/// A statement about a name; empty if the name is no Python code.
fn code(name: &str, statement: &str) -> String {
    if is_code(name) { format!(": `{statement}`") } else { String::new() }
}

/// True if an expression is Python code: no element of unknown index is in it, and no variable of a closure.
fn is_code(expression: &str) -> bool {
    let is_name = |name: &str| !name.is_empty() && !name.contains([' ', '…', '<']);
    expression.split(", ").all(is_name)
}
