//! The output of the task: a table of the crates, the layers of each crate, and the cycles.

use super::graph::{Graph, Level};
use super::workspace::WorkspaceSources;
use crate::table::table;

/// The width of the output.
const WIDTH: usize = 160;

pub(crate) fn print(found: &WorkspaceSources) {
    let heads =
        ["crate", "modules", "files", "lines", "arrows", "in a cycle", "cycles at the top", "cycles below the top"];
    let mut shown = table(heads, 1);
    for graph in &found.graphs {
        let top = graph.top();
        let in_cycles = top.arrows.keys().filter(|ends| top.cycle_of(**ends).is_some()).count();
        let counts = [graph.modules, graph.files, graph.lines, top.arrows.len(), in_cycles, top.cycles().count()];
        let counts = counts.into_iter().chain([graph.cycles_below()]).map(|count| count.to_string());
        shown.add_row(std::iter::once(graph.name.clone()).chain(counts));
    }
    println!("{shown}");
    for graph in &found.graphs {
        print_graph(graph);
    }
}

fn print_graph(graph: &Graph) {
    if graph.top().members.is_empty() {
        return;
    }
    println!("\n{}: layers of the top-level modules, the lowest first", graph.name);
    for (number, layer) in graph.top().layers.iter().enumerate() {
        let components = layer.iter().map(|component| component_text(graph.top(), component));
        wrapped(&format!("  {number:>2}  "), components);
    }
    for level in &graph.levels {
        for cycle in level.cycles() {
            println!();
            let names = level.names(cycle).into_iter().map(str::to_owned);
            wrapped(&format!("  cycle in {}:  ", level.parent), names);
            print_arrows(level, cycle);
        }
    }
}

fn component_text(level: &Level, component: &[usize]) -> String {
    let names = level.names(component);
    if names.len() > 1 { format!("{{{}}}", names.join(", ")) } else { names.concat() }
}

fn print_arrows(level: &Level, cycle: &[usize]) {
    for (from, to, arrow) in level.arrows_in(cycle) {
        let ends = format!("{from} -> {to}");
        println!("    {ends:<40} {:>4}  {}", arrow.uses, arrow.example);
    }
}

/// Prints words separated by two spaces. All lines begin at the same column.
fn wrapped(head: &str, words: impl Iterator<Item = String>) {
    let indent = head.chars().count().min(WIDTH / 4);
    let mut line = head.to_owned();
    let mut is_empty = true;
    for part in
        words.flat_map(|word| word.split_inclusive(", ").map(|part| part.trim_end().to_owned()).collect::<Vec<_>>())
    {
        if !is_empty && line.chars().count() + part.chars().count() > WIDTH {
            println!("{}", line.trim_end());
            line = " ".repeat(indent);
        }
        // A comma separates the members of a cycle.
        line += &part;
        line += if part.ends_with(',') { " " } else { "  " };
        is_empty = false;
    }
    println!("{}", line.trim_end());
}
