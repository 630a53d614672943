//! The declarations of pindown.h: functions, structures, types of callbacks, and constants.
//!
//! The parser understands the form in which the header is written: one declaration after another, comments between
//! `/*` and `*/`, and macros that are constants or `..._INIT`.

use crate::failure::{Failure, Outcome};
use crate::place::Repository;
use std::fs;

/// The declarations in the header.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) functions: Vec<Function>,
    pub(super) structures: Vec<Structure>,
    /// The declarations of types of callbacks.
    pub(super) types: Vec<String>,
    /// The names of constants.
    pub(super) constants: Vec<String>,
}

/// A function.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Function {
    pub(super) name: String,
    /// The declaration, with single spaces.
    pub(super) declaration: String,
}

/// A structure.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Structure {
    pub(super) name: String,
    /// The names of the fields, each with its declaration.
    pub(super) fields: Vec<(String, String)>,
}

/// Constants that are not part of the ABI: the include guard, and the version of the header.
const OTHER: [&str; 2] = ["PINDOWN_H", "PINDOWN_VERSION"];

/// Reads the header.
pub(super) fn read(place: &Repository) -> Outcome<Header> {
    let path = place.root.join("crates/pindown/include/pindown.h");
    let text = fs::read_to_string(&path).map_err(Failure::during(format!("reading {}", path.display())))?;
    parse(&text)
}

/// Parses the text of a header.
pub(super) fn parse(text: &str) -> Outcome<Header> {
    let mut header = Header::default();
    let mut declarations = String::new();
    let (text, mut is_continued) = (without_comments(text), false);
    for line in text.lines() {
        let continues = std::mem::replace(&mut is_continued, line.ends_with('\\'));
        if continues || line == "}" || line.starts_with("extern \"C\"") {
            continue;
        }
        let Some(directive) = line.strip_prefix('#') else {
            declarations.push_str(line);
            declarations.push('\n');
            continue;
        };
        let name = directive.strip_prefix("define ").and_then(|rest| rest.split_whitespace().next());
        let is_constant = |name: &&str| !OTHER.contains(name) && !name.ends_with("_INIT");
        header.constants.extend(name.filter(is_constant).map(str::to_owned));
    }
    for declaration in split(&declarations, ';') {
        header.add(&declaration)?;
    }
    Ok(header)
}

impl Header {
    fn add(&mut self, declaration: &str) -> Outcome {
        let unknown = || Failure::new(format!("pindown.h has a declaration of an unknown form: {declaration}"));
        if let Some((start, body)) = declaration.split_once('{') {
            let body = body.strip_suffix('}').ok_or_else(unknown)?;
            match start.trim().split_once(' ') {
                Some(("struct", name)) => {
                    let fields = split(body, ';').into_iter().map(|field| Some((field_name(&field)?, field)));
                    let fields = fields.collect::<Option<_>>().ok_or_else(unknown)?;
                    self.structures.push(Structure { name: name.to_owned(), fields });
                }
                Some(("enum", _)) => {
                    let values = split(body, ',');
                    let names = values.iter().filter_map(|value| value.split([' ', '=']).next());
                    self.constants.extend(names.map(str::to_owned));
                }
                _ => return Err(unknown()),
            }
        } else if declaration.starts_with("typedef ") {
            self.types.push(declaration.to_owned());
        } else if let Some((before, _)) = declaration.split_once('(') {
            let name = before.rsplit([' ', '*']).next().filter(|name| !name.is_empty()).ok_or_else(unknown)?;
            self.functions.push(Function { name: name.to_owned(), declaration: declaration.to_owned() });
        } else if !declaration.starts_with("struct ") {
            return Err(unknown());
        }
        Ok(())
    }
}

/// Returns the name of a field: of a pointer to a function, or the last word.
fn field_name(field: &str) -> Option<String> {
    let name = match field.split_once("(*") {
        Some((_, rest)) => rest.split_once(')')?.0,
        None => field.rsplit([' ', '*']).next()?,
    };
    (!name.is_empty()).then(|| name.to_owned())
}

/// Splits a text at a separator outside of braces and parentheses. The parts have single spaces, and are not empty.
fn split(text: &str, separator: char) -> Vec<String> {
    let (mut parts, mut depth) = (vec![String::new()], 0_u32);
    for character in text.chars() {
        match character {
            '{' | '(' => depth += 1,
            '}' | ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if character == separator && depth == 0 {
            parts.push(String::new());
        } else if let Some(part) = parts.last_mut() {
            part.push(character);
        }
    }
    let words = |part: &String| part.split_whitespace().collect::<Vec<_>>().join(" ");
    parts.iter().map(words).filter(|part| !part.is_empty()).collect()
}

fn without_comments(text: &str) -> String {
    let mut rest = text;
    let mut code = String::new();
    while let Some((before, after)) = rest.split_once("/*") {
        code.push_str(before);
        rest = after.split_once("*/").map_or("", |(_, after)| after);
    }
    code + rest
}

#[cfg(test)]
mod tests {
    use super::{Function, Header, Structure, parse};

    #[test]
    fn declarations_are_found() {
        let text = "\
/* About; it { */
#ifndef PINDOWN_H
#define PINDOWN_H
#include <stddef.h>
#ifdef __cplusplus
extern \"C\" {
#endif
#define PINDOWN_VERSION 0x000100u
#define PINDOWN_LIMIT UINT64_MAX
struct pindown_open;
enum pindown_access {
\t/* First. */
\tPINDOWN_READ = 1 << 0,
\tPINDOWN_WRITE = 1 << 1,
};
struct pindown_attr {
\tsize_t size;
\tvoid *context;
\tint (*call)(void *context,
\t            int n);
};
#define PINDOWN_ATTR_INIT \\
\t{ sizeof(struct pindown_attr), NULL, NULL }
typedef int (*pindown_fn)(void *context, int n);
int pindown_use(const struct pindown_attr *attr,
                size_t length);
const char *pindown_text(void);
#ifdef __cplusplus
}
#endif
#endif
";
        let function = |name: &str, declaration: &str| Function { name: name.into(), declaration: declaration.into() };
        let field = |name: &str, declaration: &str| (name.to_owned(), declaration.to_owned());
        let expected = Header {
            functions: vec![
                function("pindown_use", "int pindown_use(const struct pindown_attr *attr, size_t length)"),
                function("pindown_text", "const char *pindown_text(void)"),
            ],
            structures: vec![Structure {
                name: "pindown_attr".into(),
                fields: vec![
                    field("size", "size_t size"),
                    field("context", "void *context"),
                    field("call", "int (*call)(void *context, int n)"),
                ],
            }],
            types: vec!["typedef int (*pindown_fn)(void *context, int n)".into()],
            constants: ["PINDOWN_LIMIT", "PINDOWN_READ", "PINDOWN_WRITE"].map(String::from).to_vec(),
        };
        assert_eq!(parse(text).unwrap(), expected);
    }

    #[test]
    fn unknown_form_is_an_error() {
        for text in ["union x { int a; };\n", "int variable;\n", "struct x { int a;\n"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
