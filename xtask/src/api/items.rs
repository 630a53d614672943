//! Walks the public items of a crate, through re-exports and into the crates that define the items.

use super::render::{bounds, conditions, function, kind, parameters, path, text, r#type};
use crate::failure::{Failure, Outcome};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// rustdoc's JSON output of several crates.
#[derive(Default)]
pub(super) struct Documented {
    crates: BTreeMap<String, Documentation>,
}

/// rustdoc's JSON output of one crate.
struct Documentation {
    root: Value,
    /// The items that the crate defines, by path. A macro, a type and a value can have the same path.
    by_path: BTreeMap<(String, String), String>,
}

/// An item: its crate, and its number there.
type ItemKey = (String, String);

/// Returns an ID as a key of the index.
fn id_of(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

impl Documentation {
    fn item(&self, id: &str) -> Option<&Value> {
        self.root["index"].get(id)
    }
}

/// Traits that `derive` and bitflags implement, and that no program can name.
const DETAILS: [&str; 2] = ["PublicFlags", "StructuralPartialEq"];

/// The public items of one crate.
struct Walk<'d> {
    all: &'d Documented,
    /// The paths of each item, shortest first.
    names: BTreeMap<ItemKey, Vec<String>>,
    queue: VecDeque<(ItemKey, String)>,
    /// Re-exports of items that no documented crate defines.
    foreign: Vec<(String, String)>,
    lines: BTreeSet<(String, String)>,
}

impl Documented {
    pub(super) fn add(&mut self, name: &str, root: Value) {
        let mut by_path = BTreeMap::new();
        for (id, summary) in root["paths"].as_object().into_iter().flatten() {
            if summary["crate_id"].as_u64() == Some(0) {
                by_path.insert((path_of(summary), text(summary, "kind").to_owned()), id.clone());
            }
        }
        self.crates.insert(name.to_owned(), Documentation { root, by_path });
    }

    fn item(&self, (of, id): &ItemKey) -> Option<&Value> {
        self.crates.get(of)?.item(id)
    }

    /// Returns whether an item is the root module of its crate.
    fn is_root(&self, (of, id): &ItemKey) -> bool {
        self.crates.get(of).is_some_and(|documentation| id_of(&documentation.root["root"]) == *id)
    }

    /// Returns the item with this number in `of`, or the item of another documented crate to which the number refers.
    fn resolve(&self, of: &str, id: &str) -> Option<ItemKey> {
        let documentation = self.crates.get(of)?;
        if documentation.item(id).is_some() {
            return Some((of.to_owned(), id.to_owned()));
        }
        let summary = &documentation.root["paths"][id];
        let path = path_of(summary);
        let definer = path.split("::").next()?;
        let known = self.crates.get(definer)?.by_path.get(&(path.clone(), text(summary, "kind").to_owned()))?;
        Some((definer.to_owned(), known.clone()))
    }

    /// Returns the lines of a crate, sorted by the paths of the items.
    pub(super) fn lines(&self, name: &str) -> Outcome<Vec<String>> {
        let documentation = self
            .crates
            .get(name)
            .ok_or_else(|| Failure::new(format!("there is no documentation of {name} in JSON")))?;
        let mut walk = Walk {
            all: self,
            names: BTreeMap::new(),
            queue: VecDeque::new(),
            foreign: Vec::new(),
            lines: BTreeSet::new(),
        };
        walk.find_names((name.to_owned(), id_of(&documentation.root["root"])), name);
        walk.write_all();
        Ok(walk.lines.into_iter().map(|(_, line)| line).collect())
    }
}

fn path_of(summary: &Value) -> String {
    let names = summary["path"].as_array().into_iter().flatten();
    names.filter_map(Value::as_str).collect::<Vec<_>>().join("::")
}

impl Walk<'_> {
    /// Finds all paths of all items that can be named from outside.
    fn find_names(&mut self, root: ItemKey, name: &str) {
        self.queue.push_back((root, name.to_owned()));
        while let Some((key, name)) = self.queue.pop_front() {
            let names = self.names.entry(key.clone()).or_default();
            if names.contains(&name) {
                continue;
            }
            // A module inside one of its own re-exports has paths without an end.
            let is_new = names.is_empty();
            names.push(name.clone());
            let Some(item) = self.all.item(&key) else { continue };
            if let ("module", module) = kind(&item["inner"])
                && is_new
            {
                for id in module["items"].as_array().into_iter().flatten() {
                    self.find_in_module(&(key.0.clone(), id_of(id)), &name);
                }
            }
        }
        for names in self.names.values_mut() {
            names.sort_by_key(|name| (name.matches("::").count(), name.clone()));
        }
    }

    fn find_in_module(&mut self, key: &ItemKey, within: &str) {
        let Some(item) = self.all.item(key) else { return };
        match kind(&item["inner"]) {
            ("use", import) => {
                let target = id_of(&import["id"]);
                let name = format!("{within}::{}", text(import, "name"));
                let Some(target) = self.all.resolve(&key.0, &target) else {
                    self.foreign.push((name, text(import, "source").to_owned()));
                    return;
                };
                // The items of a whole crate are in the list of that crate.
                if self.all.is_root(&target) {
                    self.foreign.push((name, target.0));
                    return;
                }
                if import["is_glob"].as_bool() != Some(true) {
                    self.queue.push_back((target, name));
                    return;
                }
                let Some(item) = self.all.item(&target) else { return };
                let (_, inner) = kind(&item["inner"]);
                let listed = if inner["items"].is_array() { &inner["items"] } else { &inner["variants"] };
                for id in listed.as_array().into_iter().flatten() {
                    self.find_in_module(&(target.0.clone(), id_of(id)), within);
                }
            }
            ("", _) => {}
            _ => self.queue.push_back((key.clone(), format!("{within}::{}", text(item, "name")))),
        }
    }

    fn line(&mut self, name: &str, line: String) {
        self.lines.insert((name.to_owned(), line));
    }

    fn write_all(&mut self) {
        for (key, names) in std::mem::take(&mut self.names) {
            let Some((first, others)) = names.split_first() else { continue };
            for other in others {
                self.line(other, format!("pub use {other} = {first}"));
            }
            self.write(&key, first);
        }
        for (name, source) in std::mem::take(&mut self.foreign) {
            self.line(&name, format!("pub use {name} = {source}"));
        }
    }

    /// Writes the lines of an item and of its parts.
    fn write(&mut self, key: &ItemKey, name: &str) {
        let all = self.all;
        let Some(item) = all.item(key) else { return };
        let (form, of) = kind(&item["inner"]);
        let generics = &of["generics"];
        match form {
            "module" => self.line(name, format!("pub mod {name}")),
            "function" => self.line(name, format!("pub {}", function(of, name))),
            "constant" => {
                let of_type = if of["type"].is_null() { &of["const"]["type"] } else { &of["type"] };
                self.line(name, format!("pub const {name}: {}", r#type(of_type)));
            }
            "static" => self.line(name, format!("pub static {name}: {}", r#type(&of["type"]))),
            "type_alias" => {
                let line = format!("pub type {name}{} = {}", parameters(generics), r#type(&of["type"]));
                self.line(name, line);
            }
            "macro" | "proc_macro" => self.line(name, format!("pub macro {name}!")),
            "trait_alias" => self.line(name, format!("pub trait {name} = {}", bounds(&of["params"]))),
            "trait" => {
                let supers = bounds(&of["bounds"]);
                let supers = if supers.is_empty() { supers } else { format!(": {supers}") };
                let unsafety = if of["is_unsafe"].as_bool() == Some(true) { "unsafe " } else { "" };
                let head =
                    format!("pub {unsafety}trait {name}{}{supers}{}", parameters(generics), conditions(generics));
                self.line(name, head);
                self.write_members(&key.0, &of["items"], name, "");
            }
            "struct" | "union" => {
                let note = structure(of);
                self.line(name, format!("pub {form} {name}{}{}{note}", parameters(generics), conditions(generics)));
                let (_, shape) = kind(&of["kind"]);
                let fields = if form == "union" {
                    &of["fields"]
                } else if shape.is_array() {
                    shape
                } else {
                    &shape["fields"]
                };
                self.write_members(&key.0, fields, name, "pub ");
                self.write_impls(key, &of["impls"], name);
            }
            "enum" => {
                let head = format!("pub enum {name}{}{}", parameters(generics), conditions(generics));
                self.line(name, format!("{head}{}", exhaustiveness(item)));
                self.write_members(&key.0, &of["variants"], name, "");
                self.write_impls(key, &of["impls"], name);
            }
            _ => {}
        }
    }

    /// Writes the fields, variants, functions and constants of an item.
    fn write_members(&mut self, of: &str, ids: &Value, within: &str, visibility: &str) {
        for id in ids.as_array().into_iter().flatten().filter(|id| !id.is_null()) {
            self.write_member(&(of.to_owned(), id_of(id)), within, visibility);
        }
    }

    fn write_member(&mut self, key: &ItemKey, within: &str, visibility: &str) {
        let all = self.all;
        let Some(item) = all.item(key) else { return };
        let name = format!("{within}::{}", text(item, "name"));
        let (form, of) = kind(&item["inner"]);
        let line = match form {
            "struct_field" => format!("{visibility}field {name}: {}", r#type(of)),
            "function" => format!("{visibility}{}", function(of, &name)),
            "assoc_const" => format!("{visibility}const {name}: {}", r#type(&of["type"])),
            "assoc_type" => {
                let (limits, value) = (bounds(&of["bounds"]), &of["type"]);
                let limits = if limits.is_empty() { limits } else { format!(": {limits}") };
                let value = if value.is_null() { String::new() } else { format!(" = {}", r#type(value)) };
                format!("{visibility}type {name}{}{limits}{value}", parameters(&of["generics"]))
            }
            "variant" => {
                let (shape, fields) = kind(&of["kind"]);
                let fields = match shape {
                    "tuple" => {
                        let fields = fields.as_array().into_iter().flatten();
                        let of_field =
                            |id: &Value| all.item(&(key.0.clone(), id_of(id))).map(|one| r#type(kind(&one["inner"]).1));
                        let fields = fields.map(|id| of_field(id).unwrap_or_else(|| "_".into()));
                        format!("({})", fields.collect::<Vec<_>>().join(", "))
                    }
                    "struct" => {
                        self.write_members(&key.0, &fields["fields"], &name, "");
                        " { .. }".to_owned()
                    }
                    _ => String::new(),
                };
                let value = of["discriminant"]["expr"].as_str().map_or_else(String::new, |value| format!(" = {value}"));
                format!("variant {name}{fields}{value}")
            }
            _ => return,
        };
        self.line(&name, line);
    }

    fn write_impls(&mut self, key: &ItemKey, ids: &Value, name: &str) {
        let all = self.all;
        for id in ids.as_array().into_iter().flatten() {
            let Some(item) = all.item(&(key.0.clone(), id_of(id))) else { continue };
            let (_, of) = kind(&item["inner"]);
            let is_automatic = of["is_synthetic"].as_bool() == Some(true) || of["synthetic"].as_bool() == Some(true);
            let is_detail = DETAILS.contains(&path(&of["trait"]).as_str());
            if is_automatic || is_detail || !of["blanket_impl"].is_null() {
                continue;
            }
            if of["trait"].is_null() {
                self.write_members(&key.0, &of["items"], name, "pub ");
                continue;
            }
            let negative = if of["is_negative"].as_bool() == Some(true) { "!" } else { "" };
            let line = format!(
                "impl{} {negative}{} for {}{}",
                parameters(&of["generics"]),
                path(&of["trait"]),
                r#type(&of["for"]),
                conditions(&of["generics"])
            );
            // Lines of implementations follow the line of the type.
            self.line(&format!("{name} impl"), line);
        }
    }
}

/// Describes the fields of a structure.
fn structure(of: &Value) -> &'static str {
    match kind(&of["kind"]) {
        ("unit", _) => ";",
        ("tuple", _) => "(..)",
        (_, fields) if fields["fields"].as_array().is_none_or(Vec::is_empty) => " { private }",
        _ => " { .. }",
    }
}

fn exhaustiveness(item: &Value) -> &'static str {
    let attributes = item["attrs"].to_string();
    if attributes.contains("non_exhaustive") { " (non-exhaustive)" } else { "" }
}
