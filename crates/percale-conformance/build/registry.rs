//! Finds the tests of the suite, and the transports that each runs on.
//!
//! A public function of a module of `suite` is a test. Its only parameter is the type of a transport. The bounds of
//! this parameter are the requirements of the test:
//!
//! ```text
//! pub fn a_directed_receive_waits_for_its_peer<F: Peers>() {
//! ```
//!
//! The bounds are traits of `fabric.rs`. The test runs on each transport for which `fabric.rs` implements all of them.
//! The following items look like tests and would not run, so they are build errors:
//!
//! 1. a public function of a different form (helpers are private, `pub(super)` or `pub(crate)`, so that the compiler
//!    reports unused ones);
//! 2. a function that has the form of a test but is not public;
//! 3. a test with bounds that no transport satisfies;
//! 4. modules, attributes and macros that could hide tests from this search.
//!
//! The tests of a file that `suite` does not declare as a module are registered, too, so the test program does not
//! compile.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use syn::{Attribute, GenericParam, Item, ItemFn, ItemImpl, ReturnType, Safety, Type, TypeParamBound, Visibility};

/// The bound that registers a test in the program `device`.
const DEVICES: &str = "Devices";

/// A file of the suite.
#[derive(Debug)]
pub(crate) struct Source {
    /// The file's name, for errors.
    pub(crate) file: String,
    /// The module's path below `suite`; empty for `suite` itself.
    pub(crate) module: Vec<String>,
    /// The contents of the file.
    pub(crate) text: String,
}

impl Source {
    /// Returns an error at the first line that contains `what`.
    fn error(&self, what: &str, why: &str) -> String {
        let ends = |rest: &str| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_');
        let line = self.text.lines().position(|line| line.split(what).skip(1).any(ends));
        let place = line.map_or_else(String::new, |line| format!(":{}", line + 1));
        format!("{}{place}: {what}: {why}", self.file)
    }
}

/// A test of the suite.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Test {
    /// The path below `suite`: `messages::messages_of_every_size_arrive`.
    pub(crate) path: String,
    /// The function's name.
    pub(crate) name: String,
    /// The traits that a transport must implement to run the test.
    pub(crate) needs: BTreeSet<String>,
}

/// A program with tests of the suite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Program {
    /// Tests of messages, accesses, connections.
    Conformance,
    /// Tests of device memory, each in a separate process.
    Device,
}

/// The transports, and the traits of each.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Transports(BTreeMap<String, BTreeSet<String>>);

impl Transports {
    /// Finds the implementations `impl Trait for Transport` in the text of `fabric.rs`.
    pub(crate) fn parse(file: &str, text: &str) -> Result<Self, Vec<String>> {
        let mut found = Self::default();
        for item in parse(file, text)?.items {
            let Item::Impl(ItemImpl { trait_: Some((path, _)), self_ty, .. }) = item else { continue };
            let Type::Path(transport) = *self_ty else { continue };
            if let (Some(trait_), Some(transport)) = (path.get_ident(), transport.path.get_ident()) {
                found.0.entry(transport.to_string()).or_default().insert(trait_.to_string());
            }
        }
        found.0.retain(|_, traits| traits.contains("Fabric"));
        if found.0.is_empty() { Err(vec![format!("{file}: no transport")]) } else { Ok(found) }
    }

    /// Returns whether the test runs on one of the transports.
    fn any_runs(&self, test: &Test) -> bool {
        self.0.values().any(|traits| test.needs.is_subset(traits))
    }
}

impl Test {
    fn program(&self) -> Program {
        if self.needs.contains(DEVICES) { Program::Device } else { Program::Conformance }
    }
}

/// Reads the files below the directory of `suite`.
pub(crate) fn sources(suite: &Path) -> Result<Vec<Source>, Vec<String>> {
    let mut found = Vec::new();
    read(suite, &[], &mut found).map_err(|error| vec![format!("{}: {error}", suite.display())])?;
    Ok(found)
}

fn read(directory: &Path, above: &[String], found: &mut Vec<Source>) -> std::io::Result<()> {
    let mut paths = fs::read_dir(directory)?.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>()?;
    paths.sort();
    for path in paths {
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let mut module = above.to_vec();
        if name != "mod" {
            module.push(name);
        }
        if path.is_dir() {
            read(&path, &module, found)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(Source { file: path.display().to_string(), module, text: fs::read_to_string(&path)? });
        }
    }
    Ok(())
}

fn parse(file: &str, text: &str) -> Result<syn::File, Vec<String>> {
    syn::parse_file(text).map_err(|error| vec![format!("{file}: {error} (`rustfmt --check {file}` shows the place)")])
}

/// Returns the tests in these files. Reports items that look like tests but would not run.
pub(crate) fn tests(sources: &[Source], transports: &Transports) -> Result<Vec<Test>, Vec<String>> {
    let (mut tests, mut errors) = (Vec::new(), Vec::new());
    for source in sources {
        let items = match parse(&source.file, &source.text) {
            Ok(file) => file.items,
            Err(error) => {
                errors.extend(error);
                continue;
            }
        };
        for item in items {
            match test(&source.module, &item) {
                Ok(Some(test)) if transports.any_runs(&test) => tests.push(test),
                Ok(Some(test)) => {
                    let what = format!("fn {}", test.name);
                    errors.push(source.error(&what, "no transport of fabric.rs has all traits of its bounds"));
                }
                Ok(None) => {}
                Err((what, why)) => errors.push(source.error(&what, why)),
            }
        }
    }
    if errors.is_empty() { Ok(tests) } else { Err(errors) }
}

/// Returns the test if this item is a test. If the item looks like a test but would not run, returns an error with its
/// name (`fn name`, `mod name`, `name!`) and the reason.
fn test(module: &[String], item: &Item) -> Result<Option<Test>, (String, &'static str)> {
    match item {
        Item::Fn(function) => {
            let test = function_test(module, function);
            test.map_err(|why| (format!("fn {}", function.sig.ident), why))
        }
        Item::Mod(inner) if inner.content.is_some() => Err((
            format!("mod {}", inner.ident),
            "tests in an inline module would not be found: move it to a separate file",
        )),
        Item::Mod(inner) if !inner.attrs.iter().all(is_neutral) => Err((
            format!("mod {}", inner.ident),
            "tests in a module with attributes would not be found: only documentation and lints are allowed",
        )),
        Item::Macro(call) if call.mac.tokens.to_string().contains("pub fn") => {
            let name = call.mac.path.segments.last().map_or_else(String::new, |last| last.ident.to_string());
            Err((format!("{name}!"), "a public function that a macro makes would not be found"))
        }
        _ => Ok(None),
    }
}

fn function_test(module: &[String], function: &ItemFn) -> Result<Option<Test>, &'static str> {
    let public = matches!(function.vis, Visibility::Public(_));
    let Some(needs) = needs(function) else {
        return if public {
            Err(
                "a public function is a test, `pub fn name<F: Fabric>()`: a helper is private, pub(super) or pub(crate)",
            )
        } else {
            Ok(None)
        };
    };
    if !public {
        return Err("this looks like a test but would not run: make it `pub`");
    }
    if !function.attrs.iter().all(is_neutral) {
        return Err("a test has no other attributes than documentation and lints");
    }
    let name = function.sig.ident.to_string();
    let path = module.iter().chain([&name]).map(String::as_str).collect::<Vec<_>>().join("::");
    Ok(Some(Test { path, name, needs }))
}

/// Returns the bounds of the transport, if the function has the form of a test.
fn needs(function: &ItemFn) -> Option<BTreeSet<String>> {
    let signature = &function.sig;
    let plain = signature.inputs.is_empty()
        && matches!(signature.output, ReturnType::Default)
        && signature.generics.where_clause.is_none()
        && signature.constness.is_none()
        && signature.asyncness.is_none()
        && matches!(signature.safety, Safety::Default)
        && signature.abi.is_none();
    let mut parameters = signature.generics.params.iter();
    let (true, Some(GenericParam::Type(transport)), None) = (plain, parameters.next(), parameters.next()) else {
        return None;
    };
    let needs = transport.bounds.iter().map(|bound| match bound {
        TypeParamBound::Trait(bound) => bound.path.get_ident().map(ToString::to_string),
        _ => None,
    });
    needs.collect::<Option<BTreeSet<_>>>().filter(|needs| !needs.is_empty())
}

/// Returns whether the attribute leaves the item unchanged, as documentation and lint attributes do.
fn is_neutral(attribute: &Attribute) -> bool {
    ["doc", "expect", "allow"].iter().any(|name| attribute.path().is_ident(name))
}

/// Writes the tests of a program: a module `<transport>::rust` for each transport.
pub(crate) fn program(program: Program, tests: &[Test], transports: &Transports) -> String {
    let mut text = String::from("// Written by build/main.rs of percale-conformance.\n");
    for (transport, traits) in &transports.0 {
        let functions: Vec<_> = tests
            .iter()
            .filter(|test| test.program() == program && test.needs.is_subset(traits))
            .map(|test| program.function(test, transport))
            .collect();
        if functions.is_empty() {
            continue;
        }
        let (module, functions) = (transport.to_lowercase(), functions.concat());
        let uses = if program == Program::Device { "device, fabric, suite" } else { "fabric, suite" };
        text += &format!(
            "
mod {module} {{
    mod rust {{
        use percale_conformance::{{{uses}}};
{functions}    }}
}}
"
        );
    }
    text
}

impl Program {
    fn function(self, test: &Test, transport: &str) -> String {
        let Test { path, name, .. } = test;
        let run = match self {
            Self::Conformance => format!("fabric::run::<fabric::{transport}>("),
            Self::Device => "device::run(env!(\"CARGO_TARGET_TMPDIR\"), ".to_owned(),
        };
        format!(
            "
        #[test]
        fn {name}() {{
            {run}suite::{path}::<fabric::{transport}>);
        }}
"
        )
    }
}
