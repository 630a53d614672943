//! The dependencies between sibling modules of a crate, in layers, and the cycles among them.
//!
//! The terms are defined at the beginning of `layers/mod.rs`.

use super::source::{Import, Module, ModuleId, Source};
use std::collections::BTreeMap;

/// The maximum number of re-exports that are followed, because re-exports can form a cycle.
const RE_EXPORTS: usize = 16;

/// A dependency of a module on a sibling.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Arrow {
    /// The number of paths that cause the dependency.
    pub(crate) uses: usize,
    /// One of these paths: `file:line`.
    pub(crate) example: String,
}

/// The modules of one parent and their dependencies on each other.
pub(crate) struct Level {
    /// The path of the parent: `crate::endpoint`.
    pub(crate) parent: String,
    pub(crate) members: Vec<String>,
    /// The dependencies. The keys are the indexes of the two members.
    pub(crate) arrows: BTreeMap<(usize, usize), Arrow>,
    /// The strongly connected components by layer, the lowest layer first. A component of several members is a cycle.
    pub(crate) layers: Vec<Vec<Vec<usize>>>,
}

/// The levels of a crate. The level of its top-level modules is first. A crate without modules has one level without
/// members.
pub(crate) struct Graph {
    pub(crate) name: String,
    pub(crate) modules: usize,
    pub(crate) files: usize,
    pub(crate) lines: usize,
    pub(crate) levels: Vec<Level>,
}

impl Graph {
    pub(crate) fn of(source: &Source) -> Self {
        let mut arrows = BTreeMap::<ModuleId, BTreeMap<(ModuleId, ModuleId), Arrow>>::new();
        for import in &source.imports {
            let target = resolve(source, import.module, import.module, &import.segments, RE_EXPORTS);
            let between = target.and_then(|target| siblings(source, import.module, target));
            if let Some((parent, from, to)) = between {
                let example = || example(source, import);
                let arrow = arrows.entry(parent).or_default().entry((from, to));
                arrow.or_insert_with(|| Arrow { uses: 0, example: example() }).uses += 1;
            }
        }
        let has_level = |(id, module): &(ModuleId, &Module)| *id == 0 || !module.children.is_empty();
        let parents = source.modules.iter().enumerate().filter(has_level);
        let levels = parents.map(|(id, _)| Level::new(source, id, arrows.remove(&id).unwrap_or_default())).collect();
        Self {
            name: source.name.clone(),
            modules: source.modules.len(),
            files: source.files.len(),
            lines: source.files.iter().map(|file| file.lines).sum(),
            levels,
        }
    }

    /// Returns the level of the crate's top-level modules.
    pub(crate) fn top(&self) -> &Level {
        &self.levels[0]
    }

    /// Returns the number of arrows inside cycles below the top level. It increases when a cycle grows and when cycles
    /// merge.
    pub(crate) fn cyclic_arrows_below(&self) -> usize {
        let cyclic = |level: &Level| level.arrows.keys().filter(|ends| level.cycle_of(**ends).is_some()).count();
        self.levels[1..].iter().map(cyclic).sum()
    }

    /// Returns the number of cycles below the top level.
    pub(crate) fn cycles_below(&self) -> usize {
        self.levels[1..].iter().map(|level| level.cycles().count()).sum()
    }
}

impl Level {
    fn new(source: &Source, parent: ModuleId, arrows: BTreeMap<(ModuleId, ModuleId), Arrow>) -> Self {
        let children: Vec<(&String, &ModuleId)> = source.modules[parent].children.iter().collect();
        let members = children.iter().map(|(name, _)| (*name).clone()).collect::<Vec<_>>();
        let index: BTreeMap<ModuleId, usize> = children.iter().enumerate().map(|(at, (_, id))| (**id, at)).collect();
        let arrows = arrows.into_iter().map(|((from, to), arrow)| ((index[&from], index[&to]), arrow)).collect();
        let layers = layers(members.len(), &arrows);
        Self { parent: source.path(parent), members, arrows, layers }
    }

    /// Returns the level with only the selected arrows.
    pub(crate) fn only(&self, keep: impl Fn((usize, usize)) -> bool) -> Self {
        let kept = self.arrows.iter().filter(|(ends, _)| keep(**ends));
        let arrows = kept.map(|(ends, arrow)| (*ends, arrow.clone())).collect();
        let layers = layers(self.members.len(), &arrows);
        Self { parent: self.parent.clone(), members: self.members.clone(), arrows, layers }
    }

    /// Returns the components with more than one member.
    pub(crate) fn cycles(&self) -> impl Iterator<Item = &Vec<usize>> {
        self.layers.iter().flatten().filter(|component| component.len() > 1)
    }

    /// Returns the cycle that contains an arrow, if there is one.
    pub(crate) fn cycle_of(&self, (from, to): (usize, usize)) -> Option<&Vec<usize>> {
        self.cycles().find(|cycle| cycle.contains(&from) && cycle.contains(&to))
    }

    /// Returns the arrows between members of one cycle.
    pub(crate) fn arrows_in<'a>(&'a self, cycle: &'a [usize]) -> impl Iterator<Item = (&'a str, &'a str, &'a Arrow)> {
        let is_inside = |(from, to): &(usize, usize)| cycle.contains(from) && cycle.contains(to);
        self.named_arrows().filter(move |(ends, _)| is_inside(ends)).map(|((from, to), arrow)| {
            let (from, to) = (self.members[from].as_str(), self.members[to].as_str());
            (from, to, arrow)
        })
    }

    fn named_arrows(&self) -> impl Iterator<Item = ((usize, usize), &Arrow)> {
        self.arrows.iter().map(|(ends, arrow)| (*ends, arrow))
    }

    /// Returns the names of a component's members.
    pub(crate) fn names(&self, component: &[usize]) -> Vec<&str> {
        component.iter().map(|member| self.members[*member].as_str()).collect()
    }
}

/// Returns the deepest module that a path names.
///
/// `from` is the module that the path is relative to, and `user` is the importing module. They differ if a re-export is
/// followed.
fn resolve(
    source: &Source,
    user: ModuleId,
    from: ModuleId,
    segments: &[String],
    re_exports: usize,
) -> Option<ModuleId> {
    let child = |module: ModuleId, name: &String| source.modules[module].children.get(name).copied();
    let (first, mut rest) = segments.split_first()?;
    let mut at = match first.as_str() {
        "crate" => 0,
        "self" => from,
        "super" => source.modules[from].parent?,
        _ => child(from, first)?,
    };
    while let Some((next, after)) = rest.split_first() {
        at = match (next.as_str(), child(at, next)) {
            ("super", _) => source.modules[at].parent?,
            (_, Some(child)) => child,
            (_, None) => break,
        };
        rest = after;
    }
    let Some((name, after)) = rest.split_first() else {
        return Some(at);
    };
    let binding = source.modules[at].bindings.get(name);
    match binding {
        Some(path) if re_exports > 0 && at != user && ancestors(source, user).contains(&at) => {
            let path: Vec<String> = path.iter().chain(after).cloned().collect();
            resolve(source, user, at, &path, re_exports - 1).or(Some(at))
        }
        _ => Some(at),
    }
}

/// Returns the module and its ancestors, up to the root.
fn ancestors(source: &Source, module: ModuleId) -> Vec<ModuleId> {
    std::iter::successors(Some(module), |module| source.modules[*module].parent).collect()
}

/// Returns the deepest common parent of two modules, and its children that contain them. Returns `None` if one module
/// contains the other.
fn siblings(source: &Source, from: ModuleId, to: ModuleId) -> Option<(ModuleId, ModuleId, ModuleId)> {
    let (mut from, mut to) = (ancestors(source, from), ancestors(source, to));
    let mut parent = None;
    loop {
        match (from.pop(), to.pop()) {
            (Some(a), Some(b)) if a == b => parent = Some(a),
            (Some(a), Some(b)) => return parent.map(|parent| (parent, a, b)),
            _ => return None,
        }
    }
}

fn example(source: &Source, import: &Import) -> String {
    format!("{}:{}", source.files[import.file].path, import.line)
}

/// Returns the strongly connected components of a graph by layer. A component is in the lowest layer above all
/// components that it depends on.
fn layers(count: usize, arrows: &BTreeMap<(usize, usize), Arrow>) -> Vec<Vec<Vec<usize>>> {
    let mut search = Search { next: 0, order: vec![None; count], low: vec![0; count], stack: vec![], found: vec![] };
    let edges: Vec<Vec<usize>> = (0..count).map(|from| targets(arrows, from)).collect();
    for node in 0..count {
        if search.order[node].is_none() {
            search.visit(node, &edges);
        }
    }
    let mut rank = vec![0; count];
    let mut layers = Vec::<Vec<Vec<usize>>>::new();
    // The search finds a component after all components that it depends on.
    for component in search.found {
        let below = component.iter().flat_map(|node| &edges[*node]).filter(|target| !component.contains(target));
        let its = below.map(|target| rank[*target] + 1).max().unwrap_or(0);
        component.iter().for_each(|node| rank[*node] = its);
        layers.resize_with(layers.len().max(its + 1), Vec::new);
        layers[its].push(component);
    }
    layers.iter_mut().for_each(|layer| layer.sort());
    layers
}

fn targets(arrows: &BTreeMap<(usize, usize), Arrow>, from: usize) -> Vec<usize> {
    arrows.range((from, 0)..(from + 1, 0)).map(|((_, to), _)| *to).collect()
}

/// Tarjan's search for strongly connected components.
struct Search {
    next: usize,
    order: Vec<Option<usize>>,
    low: Vec<usize>,
    stack: Vec<usize>,
    found: Vec<Vec<usize>>,
}

impl Search {
    fn visit(&mut self, node: usize, edges: &[Vec<usize>]) -> usize {
        let order = self.next;
        self.next += 1;
        self.order[node] = Some(order);
        self.low[node] = order;
        self.stack.push(node);
        for &target in &edges[node] {
            match self.order[target] {
                None => self.low[node] = self.visit(target, edges).min(self.low[node]),
                Some(earlier) if self.stack.contains(&target) => self.low[node] = earlier.min(self.low[node]),
                Some(_) => {}
            }
        }
        if self.low[node] == order {
            let start = self.stack.iter().position(|on_stack| *on_stack == node).unwrap_or(0);
            let mut component = self.stack.split_off(start);
            component.sort_unstable();
            self.found.push(component);
        }
        self.low[node]
    }
}

#[cfg(test)]
mod tests {
    use super::{Arrow, layers};
    use std::collections::BTreeMap;

    fn arrows(ends: &[(usize, usize)]) -> BTreeMap<(usize, usize), Arrow> {
        ends.iter().map(|ends| (*ends, Arrow { uses: 1, example: String::new() })).collect()
    }

    #[test]
    fn a_component_is_above_all_that_it_depends_on() {
        let found = layers(4, &arrows(&[(0, 1), (1, 2), (0, 2)]));
        assert_eq!(found, [vec![vec![2], vec![3]], vec![vec![1]], vec![vec![0]]]);
    }

    #[test]
    fn a_cycle_is_one_component() {
        let found = layers(5, &arrows(&[(0, 1), (1, 2), (2, 0), (2, 3), (4, 0)]));
        assert_eq!(found, [vec![vec![3]], vec![vec![0, 1, 2]], vec![vec![4]]]);
    }
}
