//! `cargo xtask bpf`: compiles pindown's kernel programs (`crates/pindown/bpf`) for each processor. The objects are
//! checked in, so that no build of pindown needs clang.
//!
//! # What is compared
//! `objects.sha256` names the version of clang, and the digests of the sources and of the objects. `--check`, which is
//! also a step of `cargo xtask test`, compares in this order:
//!
//! 1. The digests, without a compiler. So a change of a source without new objects, or of an object alone, is detected
//!    on every machine.
//! 2. The objects, compiled again. With the version of clang that the file names, the bytes must be the same. Another
//!    version generates other instructions: then only the interface of the objects is compared ([`interface`]), and the
//!    result says so.
//! 3. The numbers of system calls in the sources, with the kernel's headers (`numbers.c`), on x86-64.

mod compile;
mod interface;
mod record;

use crate::failure::{Failure, Outcome};
use crate::place::Repository;
use crate::steps::Findings;
use compile::Processor;
use record::Record;
use std::fs;
use std::path::PathBuf;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Compares the objects with the sources, without writing
    #[arg(long)]
    check: bool,
}

/// What to do about objects that do not belong to the sources.
const REMEDY: &str = "run `cargo xtask bpf` and commit crates/pindown/bpf";

/// The folder with the sources and the objects.
fn folder(place: &Repository) -> PathBuf {
    place.root.join("crates/pindown/bpf")
}

pub(crate) fn run(place: &Repository, arguments: &Arguments) -> Outcome<bool> {
    if arguments.check {
        let findings = check(place)?;
        println!("{}", findings.note);
        return Ok(findings.failed == 0);
    }
    let folder = folder(place);
    let clang = compile::version()?;
    compile::check_numbers(&folder)?;
    for processor in Processor::ALL {
        let object = compile::compile(place, processor)?;
        let path = folder.join(processor.object());
        fs::write(&path, &object).map_err(Failure::during(format!("writing {}", path.display())))?;
        println!("{}: {} bytes, by clang {clang}", processor.object(), object.len());
    }
    Record::of(&folder, &clang)?.write(&folder)?;
    Ok(true)
}

/// Compares the objects with the sources.
pub(crate) fn check(place: &Repository) -> Outcome<Findings> {
    let folder = folder(place);
    let written = Record::read(&folder)?;
    let stale = written.differences(&folder)?;
    if !stale.is_empty() {
        println!("  the objects do not belong to the sources; {REMEDY}");
        stale.iter().for_each(|line| println!("  {line}"));
        return Ok(Findings::new(0, stale.len(), "the sources or the objects have changed"));
    }
    let clang = match compile::version() {
        Ok(clang) => clang,
        Err(why) if crate::machine::is_ci() => {
            return Err(Failure::new(format!("CI must compile the objects again, and clang is {why}")));
        }
        Err(why) => {
            let remark = format!("the objects were not compiled again: clang is {why}");
            return Ok(Findings::new(1, 0, "only digests were compared").with_remarks(vec![remark]));
        }
    };
    let is_same_clang = clang == written.clang;
    let (mut passed, mut failed) = (1, 0);
    for processor in Processor::ALL {
        let path = folder.join(processor.object());
        let checked_in = fs::read(&path).map_err(Failure::during(format!("reading {}", path.display())))?;
        let compiled = compile::compile(place, processor)?;
        let differences = if is_same_clang {
            let differs = format!("its bytes differ from those that clang {clang} generates; {REMEDY}");
            if checked_in == compiled { Vec::new() } else { vec![differs] }
        } else {
            interface::differences(&checked_in, &compiled)?
        };
        differences.iter().for_each(|line| println!("  {}: {line}", processor.object()));
        if differences.is_empty() { passed += 1 } else { failed += 1 }
    }
    if compile::check_numbers(&folder)? {
        passed += 1;
    }
    if is_same_clang {
        return Ok(Findings::new(passed, failed, format!("the same bytes by clang {clang}")));
    }
    let remark = format!(
        "the objects were made by clang {}, and this is clang {clang}: programs, maps and helper functions were \
         compared, and not the instructions",
        written.clang
    );
    let note = format!("only interfaces were compared: clang {clang} is not {}", written.clang);
    Ok(Findings::new(passed, failed, note).with_remarks(vec![remark]))
}
