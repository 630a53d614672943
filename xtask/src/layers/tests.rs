//! Tests with generated crates in a temporary directory.

use super::graph::Graph;
use super::list::List;
use super::source::Source;
use super::workspace::{CrateDependency, WorkspaceSources};
use crate::failure::Outcome;
use std::fs;
use std::path::PathBuf;

/// A directory with the files of a crate. It is removed on drop.
struct Crate(PathBuf);

impl Crate {
    fn new(test: &str, files: &[(&str, &str)]) -> Self {
        let root = std::env::temp_dir().join(format!("percale-layers-{}-{test}", std::process::id()));
        for (file, text) in files {
            let path = root.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        Self(root)
    }

    fn read(&self) -> Outcome<Graph> {
        Ok(Graph::of(&Source::read(&self.0, "a", &self.0.join("src/lib.rs"))?))
    }

    fn found(&self) -> WorkspaceSources {
        WorkspaceSources { graphs: vec![self.read().unwrap()], dependencies: Vec::new() }
    }
}

impl Drop for Crate {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).ok();
    }
}

/// Returns the arrows at the level of a parent, in a crate with these files: `from -> to uses example`.
fn arrows(test: &str, parent: &str, files: &[(&str, &str)]) -> Vec<String> {
    let graph = Crate::new(test, files).read().unwrap();
    let level = graph.levels.iter().find(|level| level.parent == parent).unwrap();
    let shown = level.arrows.iter().map(|((from, to), arrow)| {
        format!("{} -> {} {} {}", level.members[*from], level.members[*to], arrow.uses, arrow.example)
    });
    shown.collect()
}

const CLEAN: [(&str, &str); 4] = [
    ("src/lib.rs", "mod low;\nmod high;\n"),
    ("src/low.rs", "pub struct Low;\n"),
    ("src/high/mod.rs", "mod inner;\nuse crate::low::Low;\n"),
    ("src/high/inner.rs", "use super::super::low;\n"),
];

fn problems(list: &str, found: &WorkspaceSources) -> Vec<String> {
    List::parse(list).unwrap().problems(found)
}

#[test]
fn a_clean_crate_has_no_problem() {
    let made = Crate::new("clean", &CLEAN);
    let found = made.found();
    assert_eq!(problems("a: high -> low\n", &found), [""; 0]);
    let top = found.graphs[0].top();
    assert_eq!(top.layers, [vec![vec![1]], vec![vec![0]]]);
    assert_eq!((found.graphs[0].modules, found.graphs[0].files, found.graphs[0].lines), (4, 4, 6));
    // A written list is read back unchanged.
    let written = List::of(&found).text();
    assert_eq!(problems(&written, &found), [""; 0]);
}

#[test]
fn an_arrow_that_is_not_in_the_list_is_named_with_its_place() {
    let mut files = CLEAN;
    files[3].1 = "use crate::low;\nuse super::super::base::Base;\n";
    files[0].1 = "mod base;\nmod high;\nmod low;\n";
    let made = Crate::new("upward", &[&files[..], &[("src/base.rs", "")]].concat());
    let found = problems("a: high -> low\n", &made.found());
    assert_eq!(found.len(), 1);
    assert!(found[0].starts_with("src/high/inner.rs:2: `a: high -> base` is not in xtask/layers.txt"), "{found:?}");
}

#[test]
fn arrow_that_closes_a_cycle_is_a_problem() {
    let mut files = CLEAN;
    files[1].1 = "\nuse crate::high;\n";
    let made = Crate::new("cycle", &files);
    let found = problems("a: high -> low\n", &made.found());
    assert_eq!(found.len(), 1);
    let begins = "src/low.rs:2: `a: low -> high` is not in xtask/layers.txt and is in a cycle of 2 modules";
    assert!(found[0].starts_with(begins), "{found:?}");
    let unmarked = problems("a: high -> low\na: low -> high !\n", &made.found());
    assert_eq!(unmarked.len(), 1);
    let begins =
        "src/high/inner.rs:1: `a: high -> low` is in a cycle of 2 modules and has no mark in xtask/layers.txt:1";
    assert!(unmarked[0].starts_with(begins), "{unmarked:?}");
    assert_eq!(problems("a: high -> low !\na: low -> high !\n", &made.found()), [""; 0]);
}

#[test]
fn stale_list_lines_are_problems() {
    let made = Crate::new("stale", &CLEAN);
    let list = "a => b\na: high -> low !\na: low -> high !\na: arrows in cycles below the top: 1\n";
    let found = problems(list, &made.found());
    let begins = [
        "xtask/layers.txt:2: `a: high -> low` is no longer in a cycle: remove the mark",
        "xtask/layers.txt:1: `a => b`: no Cargo.toml declares this: remove the line",
        "xtask/layers.txt:3: `a: low -> high`: no source needs this: remove the line",
        "xtask/layers.txt:4: a has no arrows in cycles below the top: remove the line",
    ];
    assert_eq!(found, begins);
}

#[test]
fn a_dependency_of_crates_that_is_not_in_the_list_is_named() {
    let (from, to, place) = ("a".to_owned(), "b".to_owned(), "a/Cargo.toml:7".to_owned());
    let dependencies = vec![CrateDependency { from, to, is_dev: true, place }];
    let found = WorkspaceSources { graphs: Vec::new(), dependencies };
    let missing = problems("a => b\n", &found);
    assert!(missing[0].starts_with("a/Cargo.toml:7: `a => b (dev)` is not in xtask/layers.txt"), "{missing:?}");
    assert_eq!(problems("a => b (dev)\n", &found), [""; 0]);
}

#[test]
fn arrows_in_cycles_below_the_top_are_counted() {
    let inner = "mod b { use super::c; mod x { use super::y; } mod y { use super::x::Z; } } mod c { use super::b; }";
    let made = Crate::new("below", &[("src/lib.rs", "mod a;"), ("src/a.rs", inner)]);
    let found = made.found();
    assert_eq!((found.graphs[0].cycles_below(), found.graphs[0].cyclic_arrows_below()), (2, 4));
    let more = problems("a: arrows in cycles below the top: 1\n", &found);
    assert!(
        more[0].starts_with("xtask/layers.txt:1: a has 4 arrows in cycles below the top, 1 are allowed"),
        "{more:?}"
    );
    assert!(more[0].contains("crate::a, crate::a::b"), "{more:?}");
    let fewer = problems("a: arrows in cycles below the top: 5\n", &found);
    assert!(fewer[0].ends_with("lower it to 4"), "{fewer:?}");
    assert_eq!(problems("a: arrows in cycles below the top: 4\n", &found), [""; 0]);
}

#[test]
fn test_only_code_is_ignored() {
    let root = "mod x; mod y; #[cfg(test)] mod tests; #[cfg(all(test, not(loom)))] mod more_tests;";
    let x = "#[cfg(test)]\nmod tests { use crate::y; }\n#[test]\nfn a() { crate::y::b(); }\n\
             struct S;\nimpl S { #[cfg(test)] fn b() { crate::y::b(); } }\n#[cfg(doctest)] mod read { use crate::y; }\n";
    assert_eq!(arrows("tests", "crate", &[("src/lib.rs", root), ("src/x.rs", x), ("src/y.rs", "")]), [""; 0]);
    let x = "#[cfg(not(test))]\nuse crate::y;\n#[cfg(any(test, loom))]\nuse crate::y as z;\n";
    let found = arrows("not-tests", "crate", &[("src/lib.rs", "mod x; mod y;"), ("src/x.rs", x), ("src/y.rs", "")]);
    assert_eq!(found, ["x -> y 2 src/x.rs:2"]);
}

#[test]
fn groups_renames_and_paths_in_code_are_found() {
    let x = "use crate::{\n    b::{self, B as Other},\n    c::{d::*, E},\n};\nfn f(a: &super::e::F) -> crate::g::G {\n    \
             match a { self::super::h::H => crate::r#i::J::<crate::k::L>::new() }\n}\n";
    let root = "mod x; mod b {} mod c { mod d {} } mod e {} mod g {} mod h {} mod i {} mod k {}";
    let found = arrows("groups", "crate", &[("src/lib.rs", root), ("src/x.rs", x)]);
    let expected = [
        "x -> b 2 src/x.rs:2",
        "x -> c 2 src/x.rs:3",
        "x -> e 1 src/x.rs:5",
        "x -> g 1 src/x.rs:5",
        "x -> h 1 src/x.rs:6",
        "x -> i 1 src/x.rs:6",
        "x -> k 1 src/x.rs:6",
    ];
    assert_eq!(found, expected);
}

#[test]
fn paths_in_macros_are_found() {
    let x = "macro_rules! m { ($a:expr) => { $crate::b::c($a) }; }\nfn f() {\n    println!(\"{}\", [super::c::D]);\n    \
             m! { use crate::{d::{self, E}, e::F as G}; self.x; self::y::Y }\n}\nmod y {}\n";
    let root = "mod x; mod b {} mod c {} mod d {} mod e {}";
    let found = arrows("macros", "crate", &[("src/lib.rs", root), ("src/x.rs", x)]);
    let expected = ["x -> b 1 src/x.rs:1", "x -> c 1 src/x.rs:3", "x -> d 2 src/x.rs:4", "x -> e 1 src/x.rs:4"];
    assert_eq!(found, expected);
}

#[test]
fn an_arrow_is_between_siblings() {
    let files = [
        ("src/lib.rs", "mod a; mod b;"),
        ("src/a/mod.rs", "mod x; mod y; use x::X;"),
        ("src/a/x.rs", "use super::y::Y;\nuse super::Z;\nuse super::super::b::c::D;\n"),
        ("src/a/y.rs", ""),
        ("src/b.rs", "pub mod c {}"),
    ];
    assert_eq!(arrows("siblings-top", "crate", &files), ["a -> b 1 src/a/x.rs:3"]);
    assert_eq!(arrows("siblings-below", "crate::a", &files), ["x -> y 1 src/a/x.rs:1"]);
}

#[test]
fn path_attributes_are_followed() {
    let files = [
        ("src/lib.rs", "mod a; mod b {}"),
        ("src/a.rs", "#[path = \"../src/other/file.rs\"] mod c; mod inline { #[path = \"deep.rs\"] mod d; }"),
        ("src/other/file.rs", "mod e;\nuse crate::b::B;\n"),
        ("src/other/e.rs", "\n\n\nuse super::super::inline::d;\n"),
        ("src/a/inline/deep.rs", "use crate::b::B;\n"),
    ];
    assert_eq!(arrows("path-top", "crate", &files), ["a -> b 2 src/other/file.rs:2"]);
    assert_eq!(arrows("path-below", "crate::a", &files), ["c -> inline 1 src/other/e.rs:4"]);
}

#[test]
fn a_re_export_of_a_containing_module_is_followed() {
    let root = "mod a; mod b { mod c {} } pub use b::{B, c::C as Renamed}; use std::fmt;";
    let a = "use crate::B;\nfn f() -> crate::Renamed { crate::fmt() }\n";
    let found = arrows("re-export", "crate", &[("src/lib.rs", root), ("src/a.rs", a)]);
    assert_eq!(found, ["a -> b 2 src/a.rs:1"]);
}

#[test]
fn a_missing_file_and_an_unreadable_one_are_named() {
    let failure = Crate::new("missing", &[("src/lib.rs", "\nmod a;")]).read().err().unwrap().to_string();
    assert!(failure.starts_with("src/lib.rs:2: module a has no file: expected "), "{failure}");
    let failure = Crate::new("unreadable", &[("src/lib.rs", "\n\nfn {")]).read().err().unwrap().to_string();
    assert!(failure.starts_with("src/lib.rs:3: the file does not parse as Rust"), "{failure}");
}
