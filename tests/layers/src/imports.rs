//! Finds the imports between files: `use` lines, and full paths in code.

use std::collections::HashMap;

use proc_macro2::{Span, TokenStream, TokenTree};
use syn::visit::{self, Visit};

use crate::tree::{Module, ModulePath, Tree, is_for_tests};

/// A place where a file names an item of another file of its crate.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Import {
    /// The importing module.
    pub from: ModulePath,
    /// The line in the file of `from`, from 1.
    pub line: usize,
    /// The module imported from.
    pub to: ModulePath,
    /// The imported name, as written.
    pub name: String,
}

/// All imports between different files of a crate.
pub fn imports(tree: &Tree) -> Vec<Import> {
    let mut all = Vec::new();
    for (path, module) in &tree.modules {
        let mut reader = Reader { tree, from: path, names: HashMap::new(), found: Vec::new() };
        reader.read(module);
        all.extend(reader.found.into_iter().filter(|import| tree.file(&import.to) != module.file));
    }
    all.sort();
    all.dedup();
    all
}

struct Reader<'a> {
    tree: &'a Tree,
    from: &'a ModulePath,
    /// Modules named by a `use` line: `use crate::cuda;` makes `cuda::calls::free` a path of the crate.
    names: HashMap<String, ModulePath>,
    found: Vec<Import>,
}

impl Reader<'_> {
    fn read(&mut self, module: &Module) {
        // `use` lines first, because code above a line may use its names.
        for item in &module.items {
            if let syn::Item::Use(item) = item
                && !is_for_tests(&item.attrs)
            {
                self.use_tree(&mut Vec::new(), &item.tree);
            }
        }
        for item in &module.items {
            // A nested module has a separate entry in the tree.
            if !matches!(item, syn::Item::Use(_) | syn::Item::Mod(_)) {
                self.visit_item(item);
            }
        }
    }

    fn use_tree(&mut self, prefix: &mut Vec<String>, tree: &syn::UseTree) {
        match tree {
            syn::UseTree::Path(path) => {
                prefix.push(path.ident.to_string());
                self.use_tree(prefix, &path.tree);
                prefix.pop();
            }
            syn::UseTree::Group(group) => group.items.iter().for_each(|item| self.use_tree(prefix, item)),
            syn::UseTree::Glob(glob) => self.add(prefix, glob.star_token.spans[0]),
            syn::UseTree::Name(name) => self.use_name(prefix, &name.ident, &name.ident),
            syn::UseTree::Rename(rename) => self.use_name(prefix, &rename.ident, &rename.rename),
        }
    }

    fn use_name(&mut self, prefix: &[String], imported: &syn::Ident, name: &syn::Ident) {
        let path: Vec<String> = match imported == "self" {
            true => prefix.to_vec(),
            false => prefix.iter().cloned().chain([imported.to_string()]).collect(),
        };
        if let Some((module, rest)) = self.resolve(&path)
            && rest.is_empty()
        {
            let name = if name == "self" { path.last().cloned().unwrap_or_default() } else { name.to_string() };
            self.names.insert(name, module);
        }
        self.add(&path, imported.span());
    }

    fn add(&mut self, path: &[String], span: Span) {
        if let Some((to, _)) = self.resolve(path) {
            self.found.push(Import { from: self.from.clone(), line: span.start().line, to, name: path.join("::") });
        }
    }

    /// Returns the module of a path, and the rest of the path within it.
    ///
    /// `None` for names from other crates or from `use` lines.
    fn resolve<'p>(&self, path: &'p [String]) -> Option<(ModulePath, &'p [String])> {
        let (first, mut rest) = path.split_first()?;
        let child = [self.from.as_slice(), std::slice::from_ref(first)].concat();
        let mut module = match first.as_str() {
            "crate" => Vec::new(),
            "self" => self.from.clone(),
            "super" => self.from.split_last()?.1.to_vec(),
            _ if self.tree.modules.contains_key(&child) => child,
            _ => self.names.get(first)?.clone(),
        };
        while let Some((next, after)) = rest.split_first() {
            if next == "super" {
                module.pop();
            } else {
                let child = [module.as_slice(), std::slice::from_ref(next)].concat();
                if !self.tree.modules.contains_key(&child) {
                    break;
                }
                module = child;
            }
            rest = after;
        }
        Some((module, rest))
    }

    /// Finds paths in the arguments or the definition of a macro, which are not parsed as code.
    fn tokens(&mut self, tokens: TokenStream) {
        let mut path: Vec<(String, Span)> = Vec::new();
        let mut colons = 0;
        for token in tokens {
            match token {
                TokenTree::Ident(ident) if colons == 2 || path.is_empty() => {
                    path.push((ident.to_string(), ident.span()));
                    colons = 0;
                    continue;
                }
                TokenTree::Punct(punct) if punct.as_char() == ':' && colons < 2 && !path.is_empty() => {
                    colons += 1;
                    continue;
                }
                other => {
                    self.written_path(&path);
                    path.clear();
                    colons = 0;
                    match other {
                        TokenTree::Ident(ident) => path.push((ident.to_string(), ident.span())),
                        TokenTree::Group(group) => self.tokens(group.stream()),
                        _ => {}
                    }
                }
            }
        }
        self.written_path(&path);
    }

    fn written_path(&mut self, path: &[(String, Span)]) {
        if path.len() > 1 {
            let names: Vec<String> = path.iter().map(|(name, _)| name.clone()).collect();
            self.add(&names, path[0].1);
        }
    }
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        let attributes = match item {
            syn::Item::Fn(item) => &item.attrs[..],
            syn::Item::Impl(item) => &item.attrs[..],
            syn::Item::Struct(item) => &item.attrs[..],
            syn::Item::Static(item) => &item.attrs[..],
            syn::Item::Const(item) => &item.attrs[..],
            _ => &[],
        };
        if !is_for_tests(attributes) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        self.use_tree(&mut Vec::new(), &item.tree);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.segments.len() > 1 {
            let names: Vec<String> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
            self.add(&names, path.segments[0].ident.span());
        }
        visit::visit_path(self, path);
    }

    /// `pub(super)` and `pub(in crate::cuda)` import nothing.
    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {}

    fn visit_macro(&mut self, called: &'ast syn::Macro) {
        self.visit_path(&called.path);
        self.tokens(called.tokens.clone());
    }
}
