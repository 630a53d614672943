//! The picture in docs/ARCHITECTURE.md, which shows the crates of the workspace and the layers of the top-level modules
//! of the crate percale.

use super::graph::Graph;
use super::workspace::WorkspaceSources;
use crate::failure::{Failure, Outcome};
use std::fmt::Write;

/// The document that contains the picture.
pub(crate) const DOCUMENT: &str = "docs/ARCHITECTURE.md";

const BEGIN: &str = "<!-- layers: written by cargo xtask layers --write -->\n";
const END: &str = "<!-- end of layers -->";

/// The crate that the picture shows.
const SHOWN: &str = "percale";

/// Returns the document with the current picture between its markers.
///
/// # Errors
/// Fails if the document has no markers.
pub(crate) fn inserted(document: &str, found: &WorkspaceSources) -> Outcome<String> {
    let parts = document.split_once(BEGIN).and_then(|(before, rest)| Some((before, rest.split_once(END)?.1)));
    let (before, after) = parts.ok_or_else(|| {
        Failure::new(format!(
            "{DOCUMENT} has no markers for the picture; add the lines `{}` and `{END}`",
            BEGIN.trim_end()
        ))
    })?;
    Ok(format!("{before}{BEGIN}{}{END}{after}", picture(found)))
}

/// Returns a problem if the picture in the document does not match the sources.
pub(crate) fn problem(document: &str, found: &WorkspaceSources) -> Outcome<Option<String>> {
    if inserted(document, found)? == document {
        return Ok(None);
    }
    let line = document.lines().position(|line| line == BEGIN.trim_end()).map_or(1, |at| at + 1);
    Ok(Some(format!(
        "{DOCUMENT}:{line}: the picture does not match the sources: run `cargo xtask layers --write` and review the \
         difference"
    )))
}

fn picture(found: &WorkspaceSources) -> String {
    let mut text = crates(found);
    if let Some(graph) = found.graphs.iter().find(|graph| graph.name == SHOWN) {
        text += &modules(graph);
    }
    text
}

fn crates(found: &WorkspaceSources) -> String {
    let mut text = "\n```mermaid\nflowchart TD\n".to_owned();
    // A package's programs have separate names, such as `pindown/pindown-helper`.
    for graph in found.graphs.iter().filter(|graph| !graph.name.contains('/')) {
        writeln!(text, "  {}[{}]", id(&graph.name), graph.name).ok();
    }
    for dependency in &found.dependencies {
        let line = if dependency.is_dev { "-->|tests|" } else { "-->" };
        writeln!(text, "  {} {line} {}", id(&dependency.from), id(&dependency.to)).ok();
    }
    text + "```\n"
}

fn modules(graph: &Graph) -> String {
    let top = graph.top();
    let mut text = "\n```mermaid\nflowchart TD\n".to_owned();
    for (number, layer) in top.layers.iter().enumerate().rev() {
        writeln!(text, "  subgraph layer_{number}[layer {number}]").ok();
        for member in layer.iter().flatten() {
            let name = &top.members[*member];
            writeln!(text, "    {}[{name}]", id(name)).ok();
        }
        text += "  end\n";
    }
    for ends in top.arrows.keys() {
        let (from, to) = (id(&top.members[ends.0]), id(&top.members[ends.1]));
        let line = if top.cycle_of(*ends).is_some() { "-.->" } else { "-->" };
        writeln!(text, "  {from} {line} {to}").ok();
    }
    text + "```\n\n"
}

/// Returns a node name for Mermaid. It differs from Mermaid's keywords, such as `end`.
fn id(name: &str) -> String {
    format!("{}_", name.replace('-', "_"))
}

#[cfg(test)]
mod tests {
    use super::{BEGIN, END, inserted, problem};
    use crate::layers::workspace::WorkspaceSources;

    #[test]
    fn text_between_the_markers_is_replaced() {
        let found = WorkspaceSources { graphs: Vec::new(), dependencies: Vec::new() };
        let document = format!("before\n{BEGIN}old\n{END}\nafter\n");
        assert!(problem(&document, &found).unwrap().unwrap().starts_with("docs/ARCHITECTURE.md:2: "));
        let written = inserted(&document, &found).unwrap();
        assert!(written.starts_with("before\n") && written.ends_with("\nafter\n") && !written.contains("old"));
        assert_eq!(problem(&written, &found).unwrap(), None);
        assert!(inserted("no markers", &found).is_err());
    }
}
