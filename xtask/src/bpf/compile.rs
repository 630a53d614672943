//! Compiles the programs with clang, and removes from the object what loading does not need.

use crate::failure::{Failure, Outcome};
use crate::packages::{self, CLANG};
use crate::place::Repository;
use crate::program::Program;
use object::build::Id as _;
use object::build::elf::{Builder, SectionData};
use object::elf::{SHT_STRTAB, STB_GLOBAL, STT_FUNC, STT_OBJECT, STT_SECTION};
use std::collections::HashSet;
use std::fs;
use std::path::Path;
use std::time::Duration;

/// The source, relative to the folder. The compiler runs in the folder, so the object contains no other path.
const SOURCE: &str = "pindown.bpf.c";

/// The options that determine the code. Instructions of version 3 are supported from Linux 5.12 on.
const OPTIONS: [&str; 9] =
    ["-target", "bpf", "-mcpu=v3", "-O2", "-g", "-Wall", "-Werror", "-fdebug-compilation-dir=.", "-fno-addrsig"];

/// The time limit of the compiler.
const LIMIT: Duration = Duration::from_secs(120);

/// A processor for which there are programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Processor {
    X86_64,
    Aarch64,
}

impl Processor {
    pub(super) const ALL: [Self; 2] = [Self::X86_64, Self::Aarch64];

    /// Returns the name of the object's file.
    pub(super) fn object(self) -> &'static str {
        match self {
            Self::X86_64 => "pindown-x86_64.bpf.o",
            Self::Aarch64 => "pindown-aarch64.bpf.o",
        }
    }

    /// Returns the option that selects the processor in the sources.
    fn definition(self) -> &'static str {
        match self {
            Self::X86_64 => "-DPINDOWN_X86_64",
            Self::Aarch64 => "-DPINDOWN_AARCH64",
        }
    }
}

/// Returns the version of clang, such as `14.0.6`. Installs clang if it is missing and this is permitted.
///
/// # Errors
/// Fails if clang is missing.
pub(super) fn version() -> Outcome<String> {
    packages::ensure(&[CLANG])?;
    let output = Program::new(CLANG.program).arg("--version").limit(LIMIT).output()?;
    let text = output.success()?;
    parse_version(text).ok_or_else(|| Failure::new(format!("`clang --version` prints no version: {text}")))
}

fn parse_version(text: &str) -> Option<String> {
    let version = text.split_once("clang version ")?.1.split_whitespace().next()?;
    Some(version.split(['-', '+', '~']).next().unwrap_or(version).to_owned())
}

/// Compiles the programs for a processor. Returns the object.
pub(super) fn compile(place: &Repository, processor: Processor) -> Outcome<Vec<u8>> {
    let directory = place.target.join("bpf");
    fs::create_dir_all(&directory).map_err(Failure::during(format!("creating {}", directory.display())))?;
    let path = directory.join(processor.object());
    let compiler = Program::new(CLANG.program).within(&super::folder(place)).args(OPTIONS);
    let compiler = compiler.args([processor.definition(), "-c", SOURCE, "-o"]).arg(&path);
    compiler.limit(LIMIT).output()?.success()?;
    let whole = fs::read(&path).map_err(Failure::during(format!("reading {}", path.display())))?;
    strip(&whole).map_err(Failure::during(format!("removing debug information from {}", path.display())))
}

/// Removes the sections and symbols that no loader reads: the debugger's types and lines (the kernel's, in `.BTF` and
/// `.BTF.ext`, stay), relocations between these, and the labels of branches.
fn strip(whole: &[u8]) -> Result<Vec<u8>, object::build::Error> {
    let mut builder = Builder::read(whole)?;
    for section in &mut builder.sections {
        let name = section.name.to_string();
        let target = name.strip_prefix(".rel").unwrap_or(&name);
        // A section of references holds zeros where the referenced positions are already written.
        let is_reference = name != target && target.starts_with(".BTF");
        section.delete = target.starts_with(".debug") || is_reference;
    }
    builder.delete_orphans();
    // clang puts the names of sections into the table of the symbols' names, which the builder does not support.
    let names = builder.sections.add();
    names.name = ".shstrtab".into();
    names.sh_type = SHT_STRTAB;
    names.sh_addralign = 1;
    names.data = SectionData::SectionString;
    let mut used = HashSet::new();
    for section in &builder.sections {
        if let SectionData::Relocation(relocations) = &section.data {
            used.extend(relocations.iter().filter_map(|relocation| relocation.symbol).map(|symbol| symbol.index()));
        }
    }
    for symbol in &mut builder.symbols {
        let is_kept = symbol.st_bind() == STB_GLOBAL || matches!(symbol.st_type(), STT_FUNC | STT_OBJECT | STT_SECTION);
        symbol.delete = !is_kept && !used.contains(&symbol.id().index());
    }
    let mut stripped = Vec::new();
    builder.write(&mut stripped)?;
    Ok(stripped)
}

/// Compares the numbers of system calls in the sources with the kernel's headers. Returns whether this is possible: the
/// headers of another processor than x86-64 do not have the table of x86-64.
///
/// # Errors
/// Fails if a number differs.
pub(super) fn check_numbers(folder: &Path) -> Outcome<bool> {
    if !cfg!(target_arch = "x86_64") {
        return Ok(false);
    }
    for processor in Processor::ALL {
        let compiler = Program::new(CLANG.program).within(folder).args(["-fsyntax-only", "-w", processor.definition()]);
        let checked = compiler.arg("numbers.c").limit(LIMIT).output()?;
        checked
            .success()
            .map_err(Failure::during("comparing the numbers of system calls with the kernel's headers"))?;
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_distributions_are_those_of_llvm() {
        for (text, version) in [
            ("Debian clang version 14.0.6\nTarget: x86_64-pc-linux-gnu\n", "14.0.6"),
            ("Ubuntu clang version 18.1.3 (1ubuntu1)\n", "18.1.3"),
            ("clang version 19.1.7-3~deb13u1\n", "19.1.7"),
        ] {
            assert_eq!(parse_version(text).as_deref(), Some(version));
        }
        assert_eq!(parse_version("cc (Debian) 12.2.0"), None);
    }
}
