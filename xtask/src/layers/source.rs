//! The modules of a crate, read from its source files, and the paths that each module names.
//!
//! Module declarations are followed from the crate's root in the same way as by the compiler, including `#[path]`. A
//! module may have several files if `cfg` selects between them, and all of them are read. Code that is compiled only
//! for tests is ignored: items under `#[cfg(test)]`, `#[cfg(doctest)]` or a combination that needs one of them, and
//! `#[test]` functions.

use super::paths::{self, Named};
use crate::failure::{Failure, Outcome};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Component, Path, PathBuf};
use syn::{Attribute, Expr, Item, ItemMod, Lit, Meta};

/// The index of a module in [`Source::modules`]. The crate's root has index 0.
pub(crate) type ModuleId = usize;

/// The contents of the sources of one crate.
pub(crate) struct Source {
    /// The name of the package, or `package/target` for another program of a package.
    pub(crate) name: String,
    pub(crate) modules: Vec<Module>,
    pub(crate) files: Vec<SourceFile>,
    pub(crate) imports: Vec<Import>,
}

/// One module of a crate.
pub(crate) struct Module {
    pub(crate) name: String,
    pub(crate) parent: Option<ModuleId>,
    pub(crate) children: BTreeMap<String, ModuleId>,
    /// The names that `use` declarations import into the module, each with its path in the source.
    pub(crate) bindings: BTreeMap<String, Vec<String>>,
}

/// One source file.
pub(crate) struct SourceFile {
    /// The path relative to the repository.
    pub(crate) path: String,
    pub(crate) lines: usize,
}

/// A path that begins with `crate`, `self` or `super`, and its location.
pub(crate) struct Import {
    pub(crate) module: ModuleId,
    pub(crate) segments: Vec<String>,
    pub(crate) file: usize,
    pub(crate) line: usize,
}

/// The directories of the files of child modules.
#[derive(Clone)]
struct Directories {
    /// The base directory of a `#[path]` attribute.
    attribute: PathBuf,
    /// The directory that contains `child.rs` or `child/mod.rs`.
    children: PathBuf,
}

struct Reader<'a> {
    repository: &'a Path,
    source: Source,
}

impl Source {
    /// Reads the crate with this root file.
    ///
    /// # Errors
    /// Fails if a file is missing or is not valid Rust. The error names the file, and the line if it is known.
    pub(crate) fn read(repository: &Path, name: &str, root: &Path) -> Outcome<Self> {
        let source = Self { name: name.to_owned(), modules: Vec::new(), files: Vec::new(), imports: Vec::new() };
        let mut reader = Reader { repository, source };
        let crate_root = reader.module("crate", None);
        reader.file(crate_root, root, parent_of(root))?;
        Ok(reader.source)
    }

    /// Returns the path of a module: `crate::endpoint::engine`.
    pub(crate) fn path(&self, module: ModuleId) -> String {
        let Module { name, parent, .. } = &self.modules[module];
        parent.map_or_else(|| name.clone(), |parent| format!("{}::{name}", self.path(parent)))
    }
}

impl Reader<'_> {
    /// Returns the module with this name. Adds it if it does not exist.
    fn module(&mut self, name: &str, parent: Option<ModuleId>) -> ModuleId {
        if let Some(known) = parent.and_then(|parent| self.source.modules[parent].children.get(name)) {
            return *known;
        }
        let id = self.source.modules.len();
        let (children, bindings) = (BTreeMap::new(), BTreeMap::new());
        self.source.modules.push(Module { name: name.to_owned(), parent, children, bindings });
        if let Some(parent) = parent {
            self.source.modules[parent].children.insert(name.to_owned(), id);
        }
        id
    }

    /// Reads the file of a module. The files of its children are in the directory `children`.
    fn file(&mut self, module: ModuleId, path: &Path, children: &Path) -> Outcome {
        let shown = path.strip_prefix(self.repository).unwrap_or(path).display().to_string();
        let text = fs::read_to_string(path).map_err(Failure::during(format!("reading {shown}")))?;
        let parsed = syn::parse_file(&text).map_err(|error| {
            let line = error.span().start().line;
            Failure::new(format!("{shown}:{line}: the file does not parse as Rust: {error}; run cargo check"))
        })?;
        let file = self.source.files.len();
        self.source.files.push(SourceFile { path: shown, lines: text.lines().count() });
        let directories = Directories { attribute: parent_of(path).to_owned(), children: children.to_owned() };
        self.items(module, file, &parsed.items, &directories)
    }

    fn items(&mut self, module: ModuleId, file: usize, items: &[Item], directories: &Directories) -> Outcome {
        for item in items.iter().filter(|item| !paths::is_for_tests(paths::attributes(item))) {
            if let Item::Mod(declared) = item {
                self.declared(module, file, declared, directories)?;
                continue;
            }
            if let Item::Use(used) = item {
                self.source.modules[module].bindings.extend(paths::bindings(used));
            }
            let imports = paths::named_in(item).into_iter();
            let imports = imports.map(|Named { segments, line }| Import { module, segments, file, line });
            self.source.imports.extend(imports);
        }
        Ok(())
    }

    /// Reads a module from the block of its declaration or from its file.
    fn declared(&mut self, parent: ModuleId, file: usize, declared: &ItemMod, at: &Directories) -> Outcome {
        let name = paths::name(&declared.ident);
        let module = self.module(&name, Some(parent));
        let given = given_path(&declared.attrs).map(|path| at.attribute.join(path));
        let beside = at.children.join(&name);
        if let Some((_, items)) = &declared.content {
            let directory = given.unwrap_or(beside);
            let inside = Directories { attribute: directory.clone(), children: directory };
            return self.items(module, file, items, &inside);
        }
        if let Some(path) = given {
            let path = without_detours(&path);
            return self.file(module, &path, parent_of(&path));
        }
        let candidates = [at.children.join(format!("{name}.rs")), beside.join("mod.rs")];
        match candidates.iter().find(|path| path.exists()) {
            Some(path) => self.file(module, path, &beside),
            None => {
                let (shown, line) = (&self.source.files[file].path, declared.ident.span().start().line);
                let [first, second] = candidates.map(|path| path.display().to_string());
                Err(Failure::new(format!("{shown}:{line}: module {name} has no file: expected {first} or {second}")))
            }
        }
    }
}

fn parent_of(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new(""))
}

/// Returns the path with each `x/..` removed.
fn without_detours(path: &Path) -> PathBuf {
    path.components().fold(PathBuf::new(), |mut so_far, part| {
        if part == Component::ParentDir && so_far.file_name().is_some() {
            so_far.pop();
        } else {
            so_far.push(part);
        }
        so_far
    })
}

/// Returns the value of `#[path = "..."]`.
fn given_path(attributes: &[Attribute]) -> Option<String> {
    attributes.iter().find_map(|attribute| match &attribute.meta {
        Meta::NameValue(pair) if pair.path.is_ident("path") => match &pair.value {
            Expr::Lit(literal) => match &literal.lit {
                Lit::Str(text) => Some(text.value()),
                _ => None,
            },
            _ => None,
        },
        _ => None,
    })
}
