//! The interface of an object: what the loader finds in it, and what its programs require of the kernel. It does not
//! depend on the compiler's version.

use crate::failure::{Failure, Outcome};
use aya_obj::generated::bpf_insn;
use aya_obj::{Map, Object};
use std::collections::BTreeSet;

/// The code of the instruction that calls a function.
const CALL: u8 = 0x85;

/// Returns the differences of two objects, `+` for what only the second one has.
pub(super) fn differences(checked_in: &[u8], compiled: &[u8]) -> Outcome<Vec<String>> {
    let (written, found) = (lines(checked_in)?, lines(compiled)?);
    let missing = found.difference(&written).map(|line| format!("+ {line}"));
    Ok(missing.chain(written.difference(&found).map(|line| format!("- {line}"))).collect())
}

/// Returns the license, the programs with their kinds, the maps with their sizes, and the helper functions that the
/// programs call.
fn lines(object: &[u8]) -> Outcome<BTreeSet<String>> {
    let object = Object::parse(object).map_err(Failure::during("reading an object"))?;
    let mut lines = BTreeSet::from([format!("license {}", object.license.to_string_lossy())]);
    lines.extend(object.programs.iter().map(|(name, program)| format!("program {name}: {:?}", program.section)));
    for (name, map) in &object.maps {
        lines.insert(format!("map {name}: {}", shape(map)));
        lines.extend(map.inner().map(|inner| format!("map in {name}: {}", shape(&inner))));
    }
    let instructions = object.functions.values().flat_map(|function| &function.instructions);
    lines.extend(instructions.filter_map(helper).map(|number| format!("helper function {number}")));
    Ok(lines)
}

fn shape(map: &Map) -> String {
    let (kind, flags) = (map.map_type(), map.map_flags());
    let (key, value, entries) = (map.key_size(), map.value_size(), map.max_entries());
    format!("type {kind}, {entries} entries of {key} and {value} bytes, flags {flags}")
}

/// Returns the number of the helper function that an instruction calls. A call of a function of the object, or of a
/// function of the kernel that is no helper, has a source register.
fn helper(instruction: &bpf_insn) -> Option<i32> {
    (instruction.code == CALL && instruction.src_reg() == 0).then_some(instruction.imm)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::place::Repository;

    fn object(name: &str) -> Vec<u8> {
        let place = Repository::find().unwrap();
        std::fs::read(super::super::folder(&place).join(name)).unwrap()
    }

    #[test]
    fn both_processors_have_the_same_interface() {
        let objects = super::super::Processor::ALL.map(|processor| object(processor.object()));
        assert_ne!(objects[0], objects[1]);
        assert_eq!(differences(&objects[0], &objects[1]).unwrap(), Vec::<String>::new());
    }

    #[test]
    fn the_interface_has_programs_maps_and_helper_functions() {
        let lines = lines(&object("pindown-x86_64.bpf.o")).unwrap();
        let has = |start: &str| lines.iter().any(|line| line.starts_with(start));
        for start in [
            "license Dual MIT/GPL",
            "program identify: ",
            "map pages: type 13, 4096 entries of 8 and 4 bytes",
            "map in pages: type 2, 1 entries of 4 and 36864 bytes, flags 1024",
            "map .rodata: ",
            "helper function 180",
        ] {
            assert!(has(start), "{start}: {lines:#?}");
        }
    }

    #[test]
    fn another_license_is_a_difference() {
        let whole = object("pindown-x86_64.bpf.o");
        let at = whole.windows(12).position(|text| text == b"Dual MIT/GPL").unwrap();
        let mut other = whole.clone();
        other[at + 9..at + 12].copy_from_slice(b"BSD");
        let found = differences(&whole, &other).unwrap();
        assert_eq!(found, ["+ license Dual MIT/BSD", "- license Dual MIT/GPL"]);
    }
}
