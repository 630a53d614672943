//! Checks that the header agrees with this module: sizes, offsets and values as compiled by cc, and the names of
//! functions.

use std::fmt::Write as _;
use std::mem::offset_of;
use std::path::Path;
use std::process::Command;

use super::handles::{OwnRegistration, reason};
use super::lane::UseOfLane;
use super::open::{Attr, CHECK_RIGHTS, DEFAULT_COUNT, MERGE, NO_LIMIT, NO_UNSEEN_CHANGES, REFUSE_GUARDS};
use super::pindown_version;
use super::registrar::PinnedKeys;
use super::stats::Counts;
use super::table::Functions;
use crate::access::Access;
use crate::cache::{TICKET_BITS, Use};
use crate::monitor::Refusal;

/// The name and size of a structure, and its fields with their offsets.
type Structure = (&'static str, usize, &'static [(&'static str, usize)]);

macro_rules! structure {
    ($c:literal, $rust:ident: $($field:ident),+ $(,)?) => {{
        /// Does not compile unless all fields are named.
        fn _complete(value: $rust) {
            let $rust { $($field: _),+ } = value;
        }
        ($c, size_of::<$rust>(), &[$((stringify!($field), offset_of!($rust, $field))),+])
    }};
}

fn structures() -> [Structure; 6] {
    [
        structure!("pindown_attr", Attr: size, pin, unpin, context, monitor, max_bytes, max_count, flags, answers),
        structure!("pindown_pinned", PinnedKeys: size, local_key, remote_key, pin),
        structure!("pindown_use", UseOfLane: local_key, remote_key, ticket),
        structure!("pindown_registration", OwnRegistration: size, handle, local_key, remote_key, unwatched, reserved),
        structure!(
            "pindown_stats", Counts:
            size, hits, slow_hits, misses, failures, evictions, invalidations, flushes, own, entries, bytes, retired,
            retired_bytes, single_not_caching, single_too_large, single_not_watchable, single_in_use, single_changed,
            single_monitor_ended,
        ),
        structure!(
            "pindown_functions", Functions:
            size, version, open, close, monitor, monitor_why, last_error, lane_open, lane_close, get, end, sweep, flush,
            read_stats, reason_text, register_memory, deregister, check, wait, interrupt, changed, changed_everything,
            alloc, free, hold,
        ),
    ]
}

fn constants() -> Vec<(&'static str, u64)> {
    let (single, held) = (1 << (TICKET_BITS - 2), 1 << (TICKET_BITS - 1));
    let of = |ticket| Use::from_ticket(ticket, 0);
    assert!(of(single).is_single() && !of(single - 1).is_single());
    assert!(of(held).is_held() && ![single, single - 1].map(of).iter().any(Use::is_held));
    let access = |name| u64::from(Access::from_name(name).expect("a right").bits());
    let of = |refusal| u64::from(reason(refusal));
    vec![
        ("PINDOWN_VERSION", pindown_version().into()),
        ("PINDOWN_NO_LIMIT", NO_LIMIT),
        ("PINDOWN_DEFAULT_COUNT", DEFAULT_COUNT.into()),
        ("PINDOWN_NO_UNSEEN_CHANGES", NO_UNSEEN_CHANGES.into()),
        ("PINDOWN_CHECK_RIGHTS", CHECK_RIGHTS.into()),
        ("PINDOWN_REFUSE_GUARDS", REFUSE_GUARDS.into()),
        ("PINDOWN_MERGE", MERGE.into()),
        ("PINDOWN_USE_SINGLE", single),
        ("PINDOWN_USE_HELD", held),
        ("PINDOWN_LOCAL_WRITE", access("LOCAL_WRITE")),
        ("PINDOWN_REMOTE_READ", access("REMOTE_READ")),
        ("PINDOWN_REMOTE_WRITE", access("REMOTE_WRITE")),
        ("PINDOWN_REMOTE_ATOMIC", access("REMOTE_ATOMIC")),
        ("PINDOWN_WATCHED", 0),
        ("PINDOWN_NOT_CACHING", of(Refusal::NotCaching)),
        ("PINDOWN_TOO_LARGE", of(Refusal::TooLarge)),
        ("PINDOWN_NOT_WATCHABLE", of(Refusal::NotWatchable)),
        ("PINDOWN_IN_USE", of(Refusal::InUse)),
        ("PINDOWN_CHANGED", of(Refusal::Changed)),
        ("PINDOWN_MONITOR_ENDED", of(Refusal::MonitorEnded)),
    ]
}

/// Returns the text of the header.
fn header() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("include/pindown.h");
    std::fs::read_to_string(path).expect("the header")
}

/// Returns the values of these expressions, as printed by a C program.
fn measure<'a>(expressions: impl Iterator<Item = &'a String>) -> Vec<u64> {
    let mut program = String::from("#include <stdio.h>\n#include \"pindown.h\"\nint main(void) {\n");
    for expression in expressions {
        writeln!(program, "printf(\"%llu\\n\", (unsigned long long)({expression}));").expect("writing to a string");
    }
    program += "return 0; }\n";
    let directory = std::env::temp_dir().join(format!("pindown-layout-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("a directory");
    let (source, binary) = (directory.join("layout.c"), directory.join("layout"));
    std::fs::write(&source, program).expect("written");
    let mut compiler = Command::new("cc");
    compiler.args(["-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror", "-I"]);
    compiler.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("include")).arg("-o").args([&binary, &source]);
    let compiled = compiler.output().expect("cc is installed, because Rust links with it");
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let printed = Command::new(&binary).output().expect("the program runs");
    std::fs::remove_dir_all(&directory).expect("removed");
    let printed = String::from_utf8(printed.stdout).expect("numbers");
    printed.lines().map(|line| line.parse().expect("a number")).collect()
}

#[test]
fn layouts_and_values_match_the_header() {
    let mut wanted = Vec::new();
    for (name, size, fields) in structures() {
        wanted.push((format!("sizeof(struct {name})"), size as u64));
        let of = |(field, at): &(&str, usize)| (format!("offsetof(struct {name}, {field})"), *at as u64);
        wanted.extend(fields.iter().map(of));
        let (first, value) = if fields[0].0 == "size" { ("size", size as u64) } else { ("ticket", 0) };
        wanted.push((format!("((struct {name}){}_INIT).{first}", name.to_uppercase()), value));
    }
    wanted.extend(constants().into_iter().map(|(name, value)| (name.to_owned(), value)));
    let measured = measure(wanted.iter().map(|(expression, _)| expression));
    assert_eq!(measured.len(), wanted.len());
    let wrong = |((expression, ours), theirs): (&(String, u64), &u64)| {
        (ours != theirs).then(|| format!("{expression}: {ours} here, {theirs} in the header"))
    };
    let wrong: Vec<_> = wanted.iter().zip(&measured).filter_map(wrong).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_header_has_only_compared_structures_and_constants() {
    let header = header();
    let declared = header.lines().filter_map(|line| line.strip_prefix("struct ")?.strip_suffix(" {"));
    let declared: Vec<_> = declared.collect();
    assert_eq!(declared.len(), structures().len(), "{declared:?}");
    assert!(structures().iter().all(|(name, ..)| declared.contains(name)));
    let named = |line: &&str| line.trim_start().starts_with("PINDOWN_") || line.starts_with("#define PINDOWN_");
    let constant = |line: &&str| !line.ends_with("PINDOWN_H") && !line.contains("_INIT ");
    let count = header.lines().filter(named).filter(constant).count();
    assert_eq!(count, constants().len());
    assert_eq!(Refusal::ALL.len() + 1, header.matches("\tPINDOWN_").count() - Access::all().iter().count());
}

#[test]
fn the_header_compiles_as_cplusplus() {
    let mut compiler = Command::new("c++");
    compiler.args(["-std=c++11", "-pedantic", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-x", "c++"]);
    match compiler.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("include/pindown.h")).output() {
        Ok(compiled) => assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr)),
        Err(error) => eprintln!("SKIPPED (C++ compiler) the header in C++: {error}"),
    }
}
