//! The lists of mutations, `xtask/mutations/*.toml`.

use crate::failure::{Failure, Outcome};
use crate::place::Repository;
use serde::Deserialize;
use std::collections::BTreeSet;
use std::fs;

/// A change of the sources that a test should notice.
#[derive(Deserialize, Clone, Debug)]
#[serde(deny_unknown_fields)]
pub(super) struct Mutation {
    /// A letter of the list and a number.
    pub(super) name: String,
    /// The source, relative to the repository.
    pub(super) file: String,
    pub(super) kind: Kind,
    /// What a user would observe.
    pub(super) effect: String,
    /// The text that is replaced. It occurs once in the file.
    pub(super) old: String,
    pub(super) new: String,
    /// The reason why no test can notice the change, if that is so.
    pub(super) equivalent: Option<String>,
}

/// The kind of a mutation.
#[derive(Deserialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Kind {
    /// A comparison or a limit differs by one.
    Boundary,
    /// A check is removed.
    Check,
    /// A step that releases or resets something is removed.
    Cleanup,
    Sign,
    /// Two steps are exchanged.
    Order,
    /// A weaker order of a memory access.
    MemoryOrder,
    Value,
}

impl Kind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Boundary => "boundary",
            Self::Check => "check",
            Self::Cleanup => "clean-up",
            Self::Sign => "sign",
            Self::Order => "order",
            Self::MemoryOrder => "memory order",
            Self::Value => "value",
        }
    }
}

#[derive(Deserialize)]
struct File {
    mutation: Vec<Mutation>,
}

/// Reads all lists, in the order of the names.
///
/// # Errors
/// Fails if two mutations have the same name, or if the text of one does not occur exactly once in its file.
pub(super) fn load(place: &Repository) -> Outcome<Vec<Mutation>> {
    let directory = place.root.join("xtask/mutations");
    let mut all = Vec::new();
    for entry in fs::read_dir(&directory).map_err(Failure::during(format!("reading {}", directory.display())))? {
        let path = entry?.path();
        let text = fs::read_to_string(&path)?;
        let file: File = toml::from_str(&text).map_err(Failure::during(format!("reading {}", path.display())))?;
        all.extend(file.mutation);
    }
    all.sort_by(|one, other| one.name.cmp(&other.name));
    let mut names = BTreeSet::new();
    for mutation in &all {
        if !names.insert(&mutation.name) {
            return Err(Failure::new(format!("two mutations have the name {}", mutation.name)));
        }
    }
    Ok(all)
}
