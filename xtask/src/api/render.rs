//! Formats the declarations in rustdoc's JSON output as Rust source text, without bodies.

use serde_json::Value;

/// Returns the string in a field, or an empty one.
pub(super) fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_default()
}

fn is_set(value: &Value, field: &str) -> bool {
    value[field].as_bool().unwrap_or_default()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn joined(values: &[Value], each: impl Fn(&Value) -> String, between: &str) -> String {
    values.iter().map(each).collect::<Vec<_>>().join(between)
}

/// Returns the only field of an object whose name is its kind, or the value itself if it is a string.
pub(super) fn kind(value: &Value) -> (&str, &Value) {
    match value {
        Value::String(name) => (name, &Value::Null),
        Value::Object(fields) => {
            fields.iter().next().map_or(("", &Value::Null), |(name, value)| (name.as_str(), value))
        }
        _ => ("", &Value::Null),
    }
}

/// Formats the path of a type or trait. Only the last name is kept, because the rest depends on the imports of the
/// source file.
pub(super) fn path(value: &Value) -> String {
    let name = if value["path"].is_string() { text(value, "path") } else { text(value, "name") };
    let last = name.rsplit("::").next().unwrap_or_default();
    format!("{last}{}", arguments(&value["args"]))
}

fn arguments(value: &Value) -> String {
    let (form, value) = kind(value);
    match form {
        "angle_bracketed" => {
            let argument = |one: &Value| match kind(one) {
                ("lifetime", name) => name.as_str().unwrap_or_default().to_owned(),
                ("type", of) => r#type(of),
                ("const", value) => text(value, "expr").to_owned(),
                _ => "_".to_owned(),
            };
            let mut all: Vec<String> = list(&value["args"]).iter().map(argument).collect();
            all.extend(list(&value["constraints"]).iter().map(|one| {
                let named = format!("{}{}", text(one, "name"), arguments(&one["args"]));
                match kind(&one["binding"]) {
                    ("equality", term) => format!("{named} = {}", self::term(term)),
                    (_, bounds) => format!("{named}: {}", self::bounds(bounds)),
                }
            }));
            if all.is_empty() { String::new() } else { format!("<{}>", all.join(", ")) }
        }
        "parenthesized" => format!("({}){}", joined(list(&value["inputs"]), r#type, ", "), output(&value["output"])),
        _ => String::new(),
    }
}

fn term(value: &Value) -> String {
    match kind(value) {
        ("type", of) => r#type(of),
        (_, constant) => text(constant, "expr").to_owned(),
    }
}

fn output(value: &Value) -> String {
    if value.is_null() { String::new() } else { format!(" -> {}", r#type(value)) }
}

/// Formats a type.
pub(super) fn r#type(value: &Value) -> String {
    let (form, of) = kind(value);
    match form {
        "resolved_path" => path(of),
        "generic" | "primitive" => of.as_str().unwrap_or_default().to_owned(),
        "tuple" if list(of).len() == 1 => format!("({},)", r#type(&of[0])),
        "tuple" => format!("({})", joined(list(of), r#type, ", ")),
        "slice" => format!("[{}]", r#type(of)),
        "array" => format!("[{}; {}]", r#type(&of["type"]), text(of, "len")),
        "impl_trait" => format!("impl {}", bounds(of)),
        "infer" => "_".to_owned(),
        "raw_pointer" => {
            format!("*{} {}", if is_set(of, "is_mutable") { "mut" } else { "const" }, r#type(&of["type"]))
        }
        "borrowed_ref" => {
            let lifetime = of["lifetime"].as_str().map_or_else(String::new, |name| format!("{name} "));
            format!("&{lifetime}{}{}", if is_set(of, "is_mutable") { "mut " } else { "" }, r#type(&of["type"]))
        }
        "function_pointer" => {
            let inputs = list(&of["sig"]["inputs"]).iter().map(|input| r#type(&input[1]));
            let inputs = inputs.collect::<Vec<_>>().join(", ");
            format!("{}fn({inputs}){}", header(&of["header"]), output(&of["sig"]["output"]))
        }
        "qualified_path" => {
            let (own, of_trait) = (r#type(&of["self_type"]), &of["trait"]);
            let name = text(of, "name");
            let is_simple = of_trait.is_null() || path(of_trait).is_empty() || own == "Self";
            let own = if is_simple { own } else { format!("<{own} as {}>", path(of_trait)) };
            format!("{own}::{name}{}", arguments(&of["args"]))
        }
        "dyn_trait" => {
            let mut all: Vec<String> = list(&of["traits"]).iter().map(|one| path(&one["trait"])).collect();
            all.extend(of["lifetime"].as_str().map(str::to_owned));
            format!("dyn {}", all.join(" + "))
        }
        _ => form.to_owned(),
    }
}

/// Formats bounds: `A + B`.
pub(super) fn bounds(value: &Value) -> String {
    let bound = |one: &Value| match kind(one) {
        ("trait_bound", of) => {
            let modifier = if text(of, "modifier") == "maybe" { "?" } else { "" };
            format!("{modifier}{}", path(&of["trait"]))
        }
        ("outlives", name) => name.as_str().unwrap_or_default().to_owned(),
        ("use", names) => {
            let name = |one: &Value| kind(one).1.as_str().unwrap_or_default().to_owned();
            format!("use<{}>", joined(list(names), name, ", "))
        }
        _ => "_".to_owned(),
    };
    joined(list(value), bound, " + ")
}

/// Formats the parameters of a generic item. The result is empty or begins with `<`.
pub(super) fn parameters(generics: &Value) -> String {
    let with =
        |name: &str, bounds: String| if bounds.is_empty() { name.to_owned() } else { format!("{name}: {bounds}") };
    let parameter = |one: &Value| {
        let name = text(one, "name");
        match kind(&one["kind"]) {
            ("lifetime", of) => Some(with(
                name,
                joined(list(&of["outlives"]), |one| one.as_str().unwrap_or_default().to_owned(), " + "),
            )),
            ("type", of) if is_set(of, "is_synthetic") || is_set(of, "synthetic") => None,
            ("type", of) => {
                let default = match &of["default"] {
                    Value::Null => String::new(),
                    default => format!(" = {}", r#type(default)),
                };
                Some(format!("{}{default}", with(name, bounds(&of["bounds"]))))
            }
            (_, of) => Some(format!("const {name}: {}", r#type(&of["type"]))),
        }
    };
    let all: Vec<String> = list(&generics["params"]).iter().filter_map(parameter).collect();
    if all.is_empty() { String::new() } else { format!("<{}>", all.join(", ")) }
}

/// Formats the conditions of a generic item. The result is empty or begins with ` where`.
pub(super) fn conditions(generics: &Value) -> String {
    let condition = |one: &Value| match kind(one) {
        ("bound_predicate", of) => format!("{}: {}", r#type(&of["type"]), bounds(&of["bounds"])),
        ("lifetime_predicate", of) => {
            let outlives = joined(list(&of["outlives"]), |one| one.as_str().unwrap_or_default().to_owned(), " + ");
            format!("{}: {outlives}", text(of, "lifetime"))
        }
        (_, of) => format!("{} == {}", r#type(&of["lhs"]), term(&of["rhs"])),
    };
    let all = joined(list(&generics["where_predicates"]), condition, ", ");
    if all.is_empty() { all } else { format!(" where {all}") }
}

fn header(value: &Value) -> String {
    let mut text = String::new();
    for (field, word) in [("is_const", "const "), ("is_async", "async "), ("is_unsafe", "unsafe ")] {
        if is_set(value, field) {
            text.push_str(word);
        }
    }
    match kind(&value["abi"]).0 {
        "" | "Rust" => {}
        abi => text.push_str(&format!("extern \"{abi}\" ")),
    }
    text
}

/// Formats a function. `name` is its full path.
pub(super) fn function(function: &Value, name: &str) -> String {
    let sig = if function["sig"].is_null() { &function["decl"] } else { &function["sig"] };
    let input = |one: &Value| match (one[0].as_str().unwrap_or_default(), r#type(&one[1]).as_str()) {
        ("self", "Self") => "self".to_owned(),
        ("self", "&Self") => "&self".to_owned(),
        ("self", "&mut Self") => "&mut self".to_owned(),
        (name, of) => format!("{name}: {of}"),
    };
    format!(
        "{}fn {name}{}({}){}{}",
        header(&function["header"]),
        parameters(&function["generics"]),
        joined(list(&sig["inputs"]), input, ", "),
        output(&sig["output"]),
        conditions(&function["generics"])
    )
}
