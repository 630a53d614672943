//! The pairs of memory and operation.

use super::kinds::{self, MemoryKind};
use super::monitors::{self, Monitor};
use super::operations::{self, Operation};

/// A kind of memory and an operation on it.
pub(super) struct Pair {
    pub(super) kind: &'static MemoryKind,
    pub(super) operation: &'static Operation,
}

/// Returns the valid pairs with names that contain a text.
pub(super) fn pairs(filter: Option<&str>) -> Vec<Pair> {
    let all = kinds::ALL.iter().flat_map(|kind| operations::all().map(move |operation| Pair { kind, operation }));
    let wanted = |pair: &Pair| {
        let name = format!("{}, {}", pair.kind.name, pair.operation.name);
        pair.operation.suits(pair.kind) && filter.is_none_or(|part| name.contains(part))
    };
    all.filter(wanted).collect()
}

/// Returns the monitors with these names. Without names, returns all that are not intentionally broken.
pub(super) fn monitors(names: &[String]) -> impl Iterator<Item = &'static Monitor> + '_ {
    monitors::ALL.iter().filter(move |monitor| match names {
        [] => !monitor.broken,
        names => names.iter().any(|name| name == monitor.name),
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn names_are_unique_and_every_kind_and_operation_is_in_a_pair() {
        let pairs = pairs(None);
        let names: HashSet<_> = pairs.iter().map(|pair| (pair.kind.name, pair.operation.name)).collect();
        assert_eq!(names.len(), pairs.len());
        for kind in kinds::ALL {
            assert!(names.iter().any(|(name, _)| *name == kind.name), "{}", kind.name);
        }
        for operation in operations::all() {
            assert!(names.iter().any(|(_, name)| *name == operation.name), "{}", operation.name);
        }
        assert!(pairs.len() > 500, "{}", pairs.len());
    }

    #[test]
    fn filter_matches_mapping_and_operation_names() {
        assert!(super::pairs(Some("dlclose")).iter().all(|pair| pair.kind.name == "library's data"));
        assert!(super::pairs(Some("System V, shm")).len() >= 3);
        assert!(super::pairs(Some("nothing like that")).is_empty());
    }
}
