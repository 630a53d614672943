//! The cells in which requirements are proved: a transport and an API (`shm/rust`), or `any` test.
//!
//! The simulated network exists only in the Rust API. The C tests do not run over verbs.

use crate::failure::{Failure, Outcome};
use std::collections::BTreeSet;

/// A cell: one of [`CELLS`].
pub(crate) type Cell = &'static str;

/// The cell of requirements that are not about a transport or an API: one test of any kind proves them.
pub(crate) const ANY: Cell = "any";

/// All cells, in the order of the columns of the table.
pub(crate) const CELLS: [Cell; 9] =
    ["loopback/rust", "shm/rust", "tcp/rust", "sim/rust", "verbs/rust", "loopback/c", "shm/c", "tcp/c", ANY];

/// The transports, as spelled in test paths and in the sources of requirements.
pub(crate) const TRANSPORTS: [&str; 5] = ["loopback", "shm", "tcp", "sim", "verbs"];

const APIS: [&str; 2] = ["rust", "c"];

/// Returns the cell with this name.
pub(crate) fn named(name: &str) -> Option<Cell> {
    CELLS.into_iter().find(|cell| *cell == name)
}

/// Returns the transport of a cell, or `None` for [`ANY`].
pub(crate) fn transport_of(cell: Cell) -> Option<&'static str> {
    cell.split_once('/').map(|(transport, _)| transport)
}

/// Parses a list of cells, such as `rust, not loopback` or `shm/c, tcp/c`. A word is a cell, a transport with all of
/// its cells, or an API with all of its cells. Words after `not` are removed from the list. A list that begins with
/// `not` removes them from all cells with a transport.
pub(crate) fn list(text: &str) -> Outcome<BTreeSet<Cell>> {
    let mut cells = BTreeSet::new();
    for (number, item) in text.split(',').map(str::trim).enumerate() {
        let Some(removed) = item.strip_prefix("not ") else {
            cells.extend(word(item)?);
            continue;
        };
        if number == 0 {
            cells.extend(CELLS.into_iter().filter(|cell| *cell != ANY));
        }
        for cell in word(removed)? {
            cells.remove(cell);
        }
    }
    if cells.is_empty() { Err(Failure::new(format!("`{text}` names no cell"))) } else { Ok(cells) }
}

fn word(word: &str) -> Outcome<Vec<Cell>> {
    let is_meant = |cell: &Cell| {
        *cell == word || cell.split_once('/').is_some_and(|(transport, api)| transport == word || api == word)
    };
    let cells: Vec<Cell> = CELLS.into_iter().filter(is_meant).collect();
    if cells.is_empty() {
        return Err(Failure::new(format!("`{word}` is not a cell, a transport or an API")));
    }
    Ok(cells)
}

/// Returns the cell of a test of this program: the first transport and the first API in its path. Tests of this
/// workspace are written in Rust, so a path with a transport but no API is of the Rust API.
///
/// Unit tests and documentation tests have the cell `any`: they test a part of a transport and do not pass data from
/// one end to the other.
pub(crate) fn of_test(program: &str, path: &str) -> Cell {
    if ["(src/lib.rs)", "(src/main.rs)", "(documentation)"].iter().any(|end| program.ends_with(end)) {
        return ANY;
    }
    let modules = || path.split("::").take(path.matches("::").count());
    let Some(transport) = modules().find(|module| TRANSPORTS.contains(module)) else { return ANY };
    let api = modules().find(|module| APIS.contains(module)).unwrap_or(APIS[0]);
    named(&format!("{transport}/{api}")).unwrap_or(ANY)
}

#[cfg(test)]
mod tests {
    use super::{list, of_test};

    #[test]
    fn test_path_determines_its_cell() {
        let conformance = |path| of_test("conformance (tests/conformance.rs)", path);
        assert_eq!(conformance("shm::rust::x"), "shm/rust");
        assert_eq!(conformance("tcp::c::x"), "tcp/c");
        assert_eq!(conformance("onesided::shm::x"), "shm/rust");
        assert_eq!(conformance("verbs::c::x"), "any");
        assert_eq!(conformance("untrusting::rust::x"), "any");
        assert_eq!(conformance("shm"), "any");
    }

    #[test]
    fn unit_test_of_a_transport_does_not_count_for_its_cell() {
        assert_eq!(of_test("percale_transport (src/lib.rs)", "shm::ring::tests::x"), "any");
        assert_eq!(of_test("percale (src/main.rs)", "tcp::x"), "any");
        assert_eq!(of_test("percale (documentation)", "crates/percale/src/tcp.rs - tcp::x (line 5)"), "any");
    }

    #[test]
    fn list_names_cells_transports_and_apis() {
        let cells = |text| list(text).unwrap().into_iter().collect::<Vec<_>>();
        assert_eq!(cells("shm/c, tcp/c"), ["shm/c", "tcp/c"]);
        assert_eq!(cells("shm"), ["shm/c", "shm/rust"]);
        assert_eq!(cells("c"), ["loopback/c", "shm/c", "tcp/c"]);
        assert_eq!(cells("rust, not loopback, not sim"), ["shm/rust", "tcp/rust", "verbs/rust"]);
        assert_eq!(cells("not rust, not loopback/c"), ["shm/c", "tcp/c"]);
        assert_eq!(cells("any"), ["any"]);
        assert!(list("").is_err() && list("udp").is_err() && list("c, not c").is_err() && list("shm tcp").is_err());
    }
}
