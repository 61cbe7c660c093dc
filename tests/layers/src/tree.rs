//! The modules of a crate and their files.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// The path of a module within its crate: `["cuda", "calls"]`.
///
/// The root's path is empty.
pub type ModulePath = Vec<String>;

/// A module: a file, or a `mod name { … }` within a file.
pub struct Module {
    pub file: PathBuf,
    pub items: Vec<syn::Item>,
}

/// All modules of a crate, except those compiled only for tests.
pub struct Tree {
    pub modules: BTreeMap<ModulePath, Module>,
}

impl Tree {
    /// Reads a crate from its root file (`lib.rs` or `main.rs`).
    ///
    /// # Panics
    ///
    /// If a file is missing or is not Rust.
    pub fn read(root: &Path) -> Self {
        let mut tree = Self { modules: BTreeMap::new() };
        let folder = root.parent().expect("a root file is in a folder");
        tree.add_file(Vec::new(), root, folder);
        tree
    }

    /// Returns the root file of the crate in `folder`, if it has Rust code.
    pub fn root_file(folder: &Path) -> Option<PathBuf> {
        ["src/lib.rs", "src/main.rs"].map(|name| folder.join(name)).into_iter().find(|file| file.exists())
    }

    pub fn file(&self, module: &[String]) -> &Path {
        &self.modules[module].file
    }

    fn add_file(&mut self, path: ModulePath, file: &Path, children: &Path) {
        let source = fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let parsed = syn::parse_file(&source).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        self.add_items(path, file, children, parsed.items);
    }

    fn add_items(&mut self, path: ModulePath, file: &Path, children: &Path, items: Vec<syn::Item>) {
        for item in &items {
            let syn::Item::Mod(module) = item else { continue };
            if is_for_tests(&module.attrs) {
                continue;
            }
            let name = module.ident.to_string();
            let child = [path.clone(), vec![name.clone()]].concat();
            match &module.content {
                Some((_, items)) => self.add_items(child, file, &children.join(&name), items.clone()),
                None => {
                    let beside = children.join(format!("{name}.rs"));
                    let within = children.join(&name).join("mod.rs");
                    let found = if beside.exists() { beside } else { within };
                    self.add_file(child, &found, &children.join(&name));
                }
            }
        }
        self.modules.insert(path, Module { file: file.to_path_buf(), items });
    }
}

/// Returns true if an item is compiled only for tests.
pub fn is_for_tests(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg")
            && attribute.parse_args::<syn::Ident>().is_ok_and(|condition| condition == "test")
    })
}
