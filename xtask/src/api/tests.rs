//! Tests on JSON objects as rustdoc writes them.

use super::differences;
use super::items::Documented;
use serde_json::json;

fn documented() -> Documented {
    let mut all = Documented::default();
    let outer = json!({
        "root": 0,
        "index": {
            "0": { "name": "outer", "inner": { "module": { "items": [1, 2, 3] } } },
            "1": { "inner": { "use": { "source": "inner::Thing", "name": "Thing", "id": 10, "is_glob": false } } },
            "2": { "name": "deep", "inner": { "module": { "items": [4] } } },
            "3": { "name": "call", "inner": { "function": {
                "sig": {
                    "inputs": [["peer", { "borrowed_ref": { "lifetime": null, "is_mutable": true,
                        "type": { "resolved_path": { "path": "deep::Thing", "args": null } } } }]],
                    "output": { "primitive": "u8" },
                },
                "generics": { "params": [], "where_predicates": [] },
                "header": { "is_const": false, "is_unsafe": true, "is_async": false, "abi": "Rust" },
            } } },
            "4": { "inner": { "use": { "source": "inner::Thing", "name": "Thing", "id": 10, "is_glob": false } } },
        },
        "paths": { "10": { "crate_id": 7, "path": ["inner", "Thing"], "kind": "struct" } },
    });
    let inner = json!({
        "root": 0,
        "index": { "5": { "name": "Thing", "attrs": [], "inner": { "struct": {
            "kind": { "plain": { "fields": [6], "has_stripped_fields": false } },
            "generics": { "params": [], "where_predicates": [] }, "impls": [8],
        } } },
            "6": { "name": "size", "inner": { "struct_field": { "primitive": "usize" } } },
            "8": { "name": null, "inner": { "impl": {
                "trait": { "path": "Clone", "args": null }, "for": { "resolved_path": { "path": "Thing", "args": null } },
                "generics": { "params": [], "where_predicates": [] }, "items": [],
                "is_synthetic": false, "blanket_impl": null,
            } } },
        },
        "paths": { "5": { "crate_id": 0, "path": ["inner", "Thing"], "kind": "struct" } },
    });
    all.add("outer", outer);
    all.add("inner", inner);
    all
}

#[test]
fn items_of_other_crates_are_listed_at_the_shortest_path() {
    let lines = documented().lines("outer").expect("a list");
    let wanted = [
        "pub mod outer",
        "pub struct outer::Thing { .. }",
        "impl Clone for Thing",
        "pub field outer::Thing::size: usize",
        "pub unsafe fn outer::call(peer: &mut Thing) -> u8",
        "pub mod outer::deep",
        "pub use outer::deep::Thing = outer::Thing",
    ];
    assert_eq!(lines, wanted);
}

#[test]
fn differences_name_the_side_that_has_the_line() {
    let lines = ["pub fn a()".to_owned(), "pub fn b()".to_owned()];
    assert!(differences("pub fn a()\npub fn b()\n", &lines).is_empty());
    assert_eq!(differences("pub fn a()\npub fn c()\n", &lines), ["+ pub fn b()", "- pub fn c()"]);
}
