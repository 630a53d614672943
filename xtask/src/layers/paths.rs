//! The paths in one item that name modules of the same crate. They are in `use` declarations, expressions, types,
//! patterns, attributes and the tokens of macros.
//!
//! Only paths that begin with `crate`, `self` or `super` are collected. A path that begins with the name of a child
//! module refers to the module itself. A path that begins with an imported name is counted at the import. Tokens of a
//! `macro_rules!` count for the module that defines the macro.

use proc_macro2::{Delimiter, Ident, TokenStream, TokenTree};
use syn::ext::IdentExt;
use syn::visit::{self, Visit};
use syn::{Attribute, Field, ImplItem, Item, ItemUse, Local, MacroDelimiter, Meta, Token, UseTree};

/// A path and its line.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Named {
    pub(crate) segments: Vec<String>,
    pub(crate) line: usize,
}

/// Returns the identifier without `r#`.
pub(crate) fn name(ident: &Ident) -> String {
    ident.unraw().to_string()
}

/// Returns all paths in an item that begin with `crate`, `self` or `super`.
pub(crate) fn named_in(item: &Item) -> Vec<Named> {
    let mut collector = Collector { found: Vec::new() };
    collector.visit_item(item);
    collector.found
}

/// Returns the names that a `use` declaration imports into its module, each with its path. Globs are ignored.
pub(crate) fn bindings(used: &ItemUse) -> Vec<(String, Vec<String>)> {
    let mut found = Vec::new();
    if used.leading_colon.is_none() {
        leaves(&used.tree, &mut Vec::new(), &mut |path, name, _| {
            if let Some(name) = name {
                found.push((name, path));
            }
        });
    }
    found
}

/// Calls `leaf` for each path of a `use` tree, with the path, the imported name, and the line.
fn leaves(tree: &UseTree, prefix: &mut Vec<String>, leaf: &mut dyn FnMut(Vec<String>, Option<String>, usize)) {
    match tree {
        UseTree::Path(path) => {
            prefix.push(name(&path.ident));
            leaves(&path.tree, prefix, leaf);
            prefix.pop();
        }
        UseTree::Name(last) => {
            let path = joined(prefix, &last.ident);
            let name = path.last().cloned();
            leaf(path, name, last.ident.span().start().line);
        }
        UseTree::Rename(last) => {
            leaf(joined(prefix, &last.ident), Some(name(&last.rename)), last.ident.span().start().line);
        }
        UseTree::Glob(glob) => leaf(prefix.clone(), None, glob.star_token.spans[0].start().line),
        UseTree::Group(group) => group.items.iter().for_each(|tree| leaves(tree, prefix, leaf)),
    }
}

/// Returns `prefix::last`. If `last` is the `self` of a group, returns the prefix.
fn joined(prefix: &[String], last: &Ident) -> Vec<String> {
    let last = name(last);
    let is_group_itself = last == "self" && !prefix.is_empty();
    prefix.iter().cloned().chain((!is_group_itself).then_some(last)).collect()
}

fn begins_here(first: &str) -> bool {
    matches!(first, "crate" | "self" | "super")
}

struct Collector {
    found: Vec<Named>,
}

impl<'ast> Visit<'ast> for Collector {
    fn visit_item(&mut self, item: &'ast Item) {
        if !is_for_tests(attributes(item)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_impl_item(&mut self, item: &'ast ImplItem) {
        let attributes: &[Attribute] = match item {
            ImplItem::Const(item) => &item.attrs,
            ImplItem::Fn(item) => &item.attrs,
            ImplItem::Type(item) => &item.attrs,
            ImplItem::Macro(item) => &item.attrs,
            _ => &[],
        };
        if !is_for_tests(attributes) {
            visit::visit_impl_item(self, item);
        }
    }

    fn visit_field(&mut self, field: &'ast Field) {
        if !is_for_tests(&field.attrs) {
            visit::visit_field(self, field);
        }
    }

    fn visit_local(&mut self, local: &'ast Local) {
        if !is_for_tests(&local.attrs) {
            visit::visit_local(self, local);
        }
    }

    fn visit_item_use(&mut self, used: &'ast ItemUse) {
        if used.leading_colon.is_some() {
            return;
        }
        leaves(&used.tree, &mut Vec::new(), &mut |segments, _, line| {
            if segments.first().is_some_and(|first| begins_here(first)) {
                self.found.push(Named { segments, line });
            }
        });
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let segments: Vec<String> = path.segments.iter().map(|segment| name(&segment.ident)).collect();
        // A single `self` or `crate` is a value or a visibility.
        if path.leading_colon.is_none() && segments.len() > 1 && begins_here(&segments[0]) {
            let line = path.segments[0].ident.span().start().line;
            self.found.push(Named { segments, line });
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, called: &'ast syn::Macro) {
        scan(called.tokens.clone(), &mut self.found);
        visit::visit_macro(self, called);
    }

    fn visit_meta_list(&mut self, list: &'ast syn::MetaList) {
        if matches!(list.delimiter, MacroDelimiter::Paren(_)) {
            scan(list.tokens.clone(), &mut self.found);
        }
        visit::visit_meta_list(self, list);
    }
}

/// Collects the paths in tokens that are not parsed.
fn scan(tokens: TokenStream, found: &mut Vec<Named>) {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let mut at = 0;
    while at < tokens.len() {
        match &tokens[at] {
            TokenTree::Ident(ident) if begins_here(&name(ident)) && is_separator(&tokens, at + 1) => {
                at = follow(&tokens, at, Vec::new(), found);
            }
            TokenTree::Group(group) => {
                scan(group.stream(), found);
                at += 1;
            }
            _ => at += 1,
        }
    }
}

/// Reads the path that begins or continues at `at`, or the tree of a `use`. Returns the index after it.
fn follow(tokens: &[TokenTree], mut at: usize, mut prefix: Vec<String>, found: &mut Vec<Named>) -> usize {
    let line = tokens[at].span().start().line;
    while let Some(token) = tokens.get(at) {
        match token {
            TokenTree::Ident(ident) if name(ident) != "self" || prefix.is_empty() => prefix.push(name(ident)),
            TokenTree::Group(group) if group.delimiter() == Delimiter::Brace && !prefix.is_empty() => {
                let inner: Vec<TokenTree> = group.stream().into_iter().collect();
                let is_comma = |token: &TokenTree| matches!(token, TokenTree::Punct(mark) if mark.as_char() == ',');
                for part in inner.split(is_comma).filter(|part| !part.is_empty()) {
                    follow(part, 0, prefix.clone(), found);
                }
                return at + 1;
            }
            _ => break,
        }
        at += 1;
        if !is_separator(tokens, at) {
            break;
        }
        at += 2;
    }
    if prefix.first().is_some_and(|first| begins_here(first)) {
        found.push(Named { segments: prefix, line });
    }
    at
}

/// Returns whether `::` is at this index.
fn is_separator(tokens: &[TokenTree], at: usize) -> bool {
    let is_colon = |token: &TokenTree| matches!(token, TokenTree::Punct(mark) if mark.as_char() == ':');
    tokens.get(at..at + 2).is_some_and(|two| two.iter().all(is_colon))
}

/// Returns whether an item with these attributes is compiled only for tests.
pub(crate) fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        Meta::Path(path) => path.is_ident("test"),
        Meta::List(list) if list.path.is_ident("cfg") => list.parse_args::<Meta>().is_ok_and(|meta| needs_test(&meta)),
        _ => false,
    })
}

/// Returns whether a condition holds only if `test` or `doctest` holds.
fn needs_test(condition: &Meta) -> bool {
    let parts = |list: &syn::MetaList| {
        let parser = syn::punctuated::Punctuated::<Meta, Token![,]>::parse_terminated;
        list.parse_args_with(parser).unwrap_or_default().into_iter().collect::<Vec<_>>()
    };
    match condition {
        Meta::Path(path) => path.is_ident("test") || path.is_ident("doctest"),
        Meta::List(list) if list.path.is_ident("all") => parts(list).iter().any(needs_test),
        Meta::List(list) if list.path.is_ident("any") => {
            let parts = parts(list);
            !parts.is_empty() && parts.iter().all(needs_test)
        }
        _ => false,
    }
}

/// Returns the attributes of an item.
pub(crate) fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::ExternCrate(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::ForeignMod(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::TraitAlias(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Union(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}
