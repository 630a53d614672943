//! Puts many mutations into one source.
//!
//! The body of a function with mutations becomes a choice between its mutated forms and the original:
//!
//! ```text
//! fn f() { if percale_mutation::is_on(7) { mutated } else { original } }
//! ```
//!
//! In the original, the block with the mutated text records that it was reached. So one build contains all mutations, and each test program runs with any of them. A constant function becomes an
//! ordinary one.

use super::list::Mutation;
use crate::failure::{Failure, Outcome};
use std::collections::BTreeMap;
use std::ops::Range;
use syn::visit::Visit;

/// A source with its mutations.
pub(super) struct Spliced {
    pub(super) text: String,
    /// The mutated bodies in `text`, with the number of each mutation.
    pub(super) bodies: Vec<(Range<usize>, usize)>,
    /// The function of each mutation.
    pub(super) functions: BTreeMap<usize, String>,
    /// The mutations that cannot be selected when the program runs, with the reason.
    pub(super) apart: Vec<(usize, &'static str)>,
}

/// A function of a source.
struct Function {
    name: String,
    /// The body with its braces.
    body: Range<usize>,
    /// The keyword of a constant function, which cannot contain a choice.
    keyword: Option<Range<usize>>,
    /// Whether the type of its result has no name (`impl Trait`). Two forms of the body could have two types.
    is_unnamed: bool,
}

/// Whether a type contains `impl Trait`.
struct Unnamed(bool);

impl<'a> Visit<'a> for Unnamed {
    fn visit_type_impl_trait(&mut self, _: &'a syn::TypeImplTrait) {
        self.0 = true;
    }
}

/// A function with mutations.
struct Changed<'a> {
    function: &'a Function,
    /// The mutated bodies, with the numbers of the mutations.
    forms: Vec<(usize, String)>,
    /// The start of the block that contains each mutation, in the original.
    blocks: Vec<(usize, usize)>,
}

/// Collects the blocks of a source.
#[derive(Default)]
struct Blocks(Vec<Range<usize>>);

impl<'a> Visit<'a> for Blocks {
    fn visit_block(&mut self, block: &'a syn::Block) {
        let braces = block.brace_token.span;
        self.0.push(braces.open().byte_range().end..braces.close().byte_range().end);
        syn::visit::visit_block(self, block);
    }

    /// A constant block calls no functions.
    fn visit_expr_const(&mut self, _: &'a syn::ExprConst) {}
}

/// Collects the functions of a source.
#[derive(Default)]
struct Functions(Vec<Function>);

impl Functions {
    fn add(&mut self, signature: &syn::Signature, body: &syn::Block) {
        let name = signature.ident.to_string();
        let keyword = signature.constness.as_ref().map(|keyword| keyword.span.byte_range());
        let braces = body.brace_token.span;
        let body = braces.open().byte_range().start..braces.close().byte_range().end;
        let mut unnamed = Unnamed(false);
        unnamed.visit_return_type(&signature.output);
        self.0.push(Function { name, body, keyword, is_unnamed: unnamed.0 });
    }
}

impl<'a> Visit<'a> for Functions {
    fn visit_item_fn(&mut self, item: &'a syn::ItemFn) {
        self.add(&item.sig, &item.block);
        syn::visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'a syn::ImplItemFn) {
        self.add(&item.sig, &item.block);
        syn::visit::visit_impl_item_fn(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &'a syn::TraitItemFn) {
        if let Some(body) = &item.default {
            self.add(&item.sig, body);
        }
        syn::visit::visit_trait_item_fn(self, item);
    }
}

/// Puts these mutations, with their numbers, into the text of a source.
///
/// # Errors
/// Fails if the source is not Rust, or if a mutation's text does not occur exactly once.
pub(super) fn splice(file: &str, text: &str, mutations: &[(usize, &Mutation)]) -> Outcome<Spliced> {
    let parsed = syn::parse_file(text).map_err(Failure::during(format!("parsing {file}")))?;
    let mut functions = Functions::default();
    functions.visit_file(&parsed);
    let mut blocks = Blocks::default();
    blocks.visit_file(&parsed);
    let mut apart = Vec::new();
    // The functions with mutations, by the positions of their bodies.
    let mut changed: BTreeMap<usize, Changed<'_>> = BTreeMap::new();
    let mut named = BTreeMap::new();
    for &(number, mutation) in mutations {
        let Some(start) = only(text, &mutation.old) else {
            let why =
                format!("{}: its text does not occur exactly once in {file}; correct or remove it", mutation.name);
            return Err(Failure::new(why));
        };
        let place = start..start + mutation.old.len();
        let around = functions.0.iter().filter(|one| one.body.start < place.start && place.end <= one.body.end);
        // The outermost function, so that no two of the chosen bodies overlap.
        let Some(function) = around.max_by_key(|one| one.body.len()) else {
            apart.push((number, "it is not in a function"));
            continue;
        };
        if function.is_unnamed {
            apart.push((number, "the type of the function's result has no name"));
            continue;
        }
        let body =
            [&text[function.body.start..place.start], &mutation.new, &text[place.end..function.body.end]].concat();
        if syn::parse_str::<syn::Block>(&body).is_err() {
            apart.push((number, "the function's body alone does not change"));
            continue;
        }
        named.insert(number, format!("{file}: {}", function.name));
        let around = blocks.0.iter().filter(|block| block.start <= place.start && place.end <= block.end);
        let block = around.map(|block| block.start).max().unwrap_or(function.body.start + 1);
        let new = || Changed { function, forms: Vec::new(), blocks: Vec::new() };
        let entry = changed.entry(function.body.start).or_insert_with(new);
        entry.forms.push((number, body));
        entry.blocks.push((block, number));
    }
    let (mut written, mut bodies, mut end) = (String::new(), Vec::new(), 0);
    for (start, Changed { function, forms, mut blocks }) in changed {
        if let Some(keyword) = &function.keyword {
            written += &text[end..keyword.start];
            end = keyword.end;
        }
        written += &text[end..start];
        written += "{ ";
        for (number, body) in forms {
            written += &format!("if ::percale_mutation::is_on({number}) ");
            bodies.push((written.len()..written.len() + body.len(), number));
            written += &body;
            written += " else ";
        }
        blocks.sort_unstable();
        end = function.body.start;
        for (block, number) in blocks {
            written += &text[end..block];
            written += &format!(" ::percale_mutation::reach({number});");
            end = block;
        }
        written += &text[end..function.body.end];
        written += " }";
        end = function.body.end;
    }
    written += &text[end..];
    Ok(Spliced { text: written, bodies, functions: named, apart })
}

/// Returns the position of a text that occurs once.
fn only(text: &str, part: &str) -> Option<usize> {
    let first = text.find(part)?;
    (text.rfind(part) == Some(first)).then_some(first)
}

#[cfg(test)]
mod tests {
    use super::super::list::{Kind, Mutation};
    use super::splice;

    fn mutation(name: &str, old: &str, new: &str) -> Mutation {
        let (old, new) = (old.to_owned(), new.to_owned());
        let file = "a.rs".to_owned();
        Mutation { name: name.into(), file, kind: Kind::Check, effect: String::new(), old, new, equivalent: None }
    }

    #[test]
    fn each_mutation_is_a_form_of_its_function() {
        let text = "fn a(x: u8) -> bool { x < 3 && x != 1 }\nfn b() {}\nconst fn c() -> u8 { 12 }\nconst D: u8 = 9;\n";
        let (one, two) = (mutation("1", "x < 3", "x <= 3"), mutation("2", " && x != 1", ""));
        let (three, four) = (mutation("3", "12", "13"), mutation("4", "9", "8"));
        let spliced = splice("a.rs", text, &[(0, &one), (1, &two), (2, &three), (3, &four)]).unwrap();
        let expected = "fn a(x: u8) -> bool { if ::percale_mutation::is_on(0) { x <= 3 && x != 1 } \
                        else if ::percale_mutation::is_on(1) { x < 3 } else { ::percale_mutation::reach(0); ::percale_mutation::reach(1); x < 3 && x != 1 } }\n\
                        fn b() {}\n fn c() -> u8 { if ::percale_mutation::is_on(2) { 13 } else { ::percale_mutation::reach(2); 12 } }\nconst D: u8 = 9;\n";
        assert_eq!(spliced.text, expected);
        let bodies: Vec<&str> = spliced.bodies.iter().map(|(range, _)| &spliced.text[range.clone()]).collect();
        assert_eq!(bodies, ["{ x <= 3 && x != 1 }", "{ x < 3 }", "{ 13 }"]);
        assert_eq!(spliced.functions[&1], "a.rs: a");
        assert_eq!(spliced.apart.iter().map(|(number, _)| *number).collect::<Vec<_>>(), [3]);
    }

    #[test]
    fn text_that_is_not_unique_is_reported() {
        let failure = splice("a.rs", "fn a() { b(); b(); }", &[(0, &mutation("x", "b();", ""))]).err().unwrap();
        assert_eq!(failure.to_string(), "x: its text does not occur exactly once in a.rs; correct or remove it");
    }
}
