//! Origin of a frame's code. It decides which line of a stack counts an allocation.
//!
//! The first matching rule decides:
//!
//! 1. Files that the process declared part of the program (the package started by `python -m`, the script): the program.
//! 2. Code that was typed or passed as text (`python -c`, standard input, notebook cells): the program.
//! 3. Other code compiled from text (`<eval_with_key>.5`, `<frozen runpy>`, methods of `dataclasses`), and files in the caches
//!    of torch.compile: generated.
//! 4. Files in PyTorch's folder: PyTorch.
//! 5. Files in `site-packages` or `dist-packages`: a library.
//! 6. Files in Python's folder or in a folder `lib/python3.x`: the standard library.
//! 7. Everything else: the program. This includes packages installed as editable.

use serde::{Deserialize, Serialize};

use memlab_format::record::{self, BENCHMARKS, UNKNOWN_COMPILED};

/// Origin of code, best first. A stack counts at its innermost frame of the best origin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CodeOrigin {
    /// The program.
    User,
    /// An installed package.
    Library,
    /// PyTorch.
    Torch,
    /// Python's standard library.
    StandardLibrary,
    /// Generated code: graphs of torch.fx, output of torch.compile, frozen modules, methods of data classes.
    #[default]
    Generated,
}

impl CodeOrigin {
    /// All origins, best first.
    pub const ALL: [Self; 5] = [Self::User, Self::Library, Self::Torch, Self::StandardLibrary, Self::Generated];

    /// Returns its name in the JSON of reports.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Library => "library",
            Self::Torch => "torch",
            Self::StandardLibrary => "standard_library",
            Self::Generated => "generated",
        }
    }
}

/// Maximum number of folders kept; a process has a handful.
const MAX_ROOTS: usize = 64;

/// Folders that distinguish the origins, as far as the trace has defined them.
#[derive(Clone, Debug, Default)]
pub(crate) struct CodeRoots {
    torch: Option<String>,
    python: Option<String>,
    pub(crate) roots: Vec<record::CodeRoot>,
}

impl CodeRoots {
    /// Adds the folder of a software. Returns true if it changes the rules.
    pub(crate) fn define_software(&mut self, software: &record::Software) -> bool {
        let known = match software.software.as_str() {
            "torch" => &mut self.torch,
            "python" => &mut self.python,
            _ => return false,
        };
        let root = Some(software.root.trim_end_matches('/').to_owned()).filter(|root| !root.is_empty());
        let changes = root.is_some() && *known != root;
        if changes {
            *known = root;
        }
        changes
    }

    /// Adds a declared folder. Returns true if it is new.
    pub(crate) fn define_root(&mut self, root: record::CodeRoot) -> bool {
        let is_new = !root.root.is_empty() && !self.roots.contains(&root) && self.roots.len() < MAX_ROOTS;
        if is_new {
            self.roots.push(root);
        }
        is_new
    }

    /// Returns the origin of a function in a file.
    pub(crate) fn code_origin(&self, file: &str, function: &str) -> CodeOrigin {
        let said = |kind| self.roots.iter().any(|known| known.code == kind && is_below(file, &known.root));
        if said(record::CodeKind::Program) || is_typed(file, function) || [UNKNOWN_COMPILED, BENCHMARKS].contains(&file)
        {
            return CodeOrigin::User;
        }
        if !file.starts_with('/') || said(record::CodeKind::Generated) || is_compilers(file) {
            return CodeOrigin::Generated;
        }
        if self.torch.as_deref().is_some_and(|root| is_below(file, root)) {
            return CodeOrigin::Torch;
        }
        if parts(file).any(|part| part == "site-packages" || part == "dist-packages") {
            return CodeOrigin::Library;
        }
        if self.python.as_deref().is_some_and(|root| is_below(file, root)) || is_in_python(file) {
            return CodeOrigin::StandardLibrary;
        }
        CodeOrigin::User
    }
}

/// Returns true if a file is `root` or inside it.
fn is_below(file: &str, root: &str) -> bool {
    file.strip_prefix(root.trim_end_matches('/')).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

fn parts(file: &str) -> impl Iterator<Item = &str> {
    file.split(['/', '\\'])
}

/// Returns true for code that was typed, or passed to Python as text.
fn is_typed(file: &str, function: &str) -> bool {
    /// Prefixes of the names that Python, IPython and others give to typed code.
    const TYPED: [&str; 12] = [
        "In[",
        "<ipython-input-",
        "<python-input-",
        "<stdin>",
        "<input>",
        "<console>",
        "<timed ",
        "<magic-timeit>",
        "<timeit-src>",
        "<doctest ",
        "<unknown>",
        "<ast>",
    ];
    match file {
        // File name of `python -c`, of `exec`, and of the methods that dataclasses generate.
        "<string>" => {
            let is_special = function.starts_with("__") && function.ends_with("__");
            !is_special && !function.contains("__create_fn__")
        }
        _ => TYPED.iter().any(|typed| file.starts_with(typed)),
    }
}

/// Returns true for a file in a cache of torch.compile or Triton: `/tmp/torchinductor_ada/…`, `~/.triton/cache/…`.
fn is_compilers(file: &str) -> bool {
    parts(file).any(|part| part.starts_with("torchinductor_") || part == ".triton")
}

/// Returns true for a file in a folder `lib/python3.x`, which holds the standard library.
fn is_in_python(file: &str) -> bool {
    let is_version = |part: &str| {
        let minor = part.strip_prefix("python3.").unwrap_or_default();
        !minor.is_empty() && minor.bytes().all(|digit| digit.is_ascii_digit())
    };
    parts(file).zip(parts(file).skip(1)).any(|(lib, python)| lib.starts_with("lib") && is_version(python))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_determines_the_origin_of_code() {
        // GIVEN the folders that a process declares
        let mut places = CodeRoots::default();
        let software = |software: &str, root: &str| record::Software {
            software: software.to_owned(),
            root: root.to_owned(),
            ..record::Software::default()
        };
        assert!(places.define_software(&software("torch", "/src/pytorch/torch")));
        assert!(places.define_software(&software("python", "/opt/py")));
        let root = |code, root: &str| record::CodeRoot { code, root: root.to_owned() };
        assert!(places.define_root(root(record::CodeKind::Program, "/venv/lib/python3.11/site-packages/trainer/")));
        assert!(places.define_root(root(record::CodeKind::Generated, "/scratch/cache")));
        // WHEN files are classified THEN each has the expected origin
        for (file, function, origin) in [
            ("/home/ada/train.py", "main", CodeOrigin::User),
            ("/home/ada/lib/python/train.py", "main", CodeOrigin::User),
            ("/home/ada/site-packages.py", "main", CodeOrigin::User),
            ("/venv/lib/python3.11/site-packages/trainer/loop.py", "fit", CodeOrigin::User),
            ("/venv/lib/python3.11/site-packages/trainers/loop.py", "fit", CodeOrigin::Library),
            ("/usr/lib/python3/dist-packages/numpy/core.py", "f", CodeOrigin::Library),
            ("/src/pytorch/torch/nn/modules/linear.py", "Linear.forward", CodeOrigin::Torch),
            ("/src/pytorch/torchvision/x.py", "f", CodeOrigin::User),
            ("/usr/lib/python3.11/copy.py", "deepcopy", CodeOrigin::StandardLibrary),
            ("/opt/py/threading.py", "run", CodeOrigin::StandardLibrary),
            ("/tmp/torchinductor_ada/ab/cab.py", "call", CodeOrigin::Generated),
            ("/scratch/cache/ab/cab.py", "call", CodeOrigin::Generated),
            ("/scratch/cached.py", "call", CodeOrigin::User),
            ("<eval_with_key>.5", "forward", CodeOrigin::Generated),
            ("<frozen runpy>", "_run_code", CodeOrigin::Generated),
            ("<string>", "<module>", CodeOrigin::User),
            ("<string>", "Net.forward", CodeOrigin::User),
            ("<string>", "__create_fn__.<locals>.__init__", CodeOrigin::Generated),
            ("<string>", "__init__", CodeOrigin::Generated),
            ("<stdin>", "<module>", CodeOrigin::User),
            ("<ipython-input-3-0a1b>", "<module>", CodeOrigin::User),
            ("<timed exec>", "<module>", CodeOrigin::User),
            ("/tmp/ipykernel_12/345.py", "<module>", CodeOrigin::User),
            ("In[3]", "<module>", CodeOrigin::User),
            ("", "", CodeOrigin::Generated),
        ] {
            assert_eq!(places.code_origin(file, function), origin, "{file} {function}");
        }
    }
}
