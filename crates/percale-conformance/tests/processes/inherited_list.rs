//! Checks that the lists of calls on inherited objects in a forked child are complete. Each public function of
//! `percale` must have a case, or an entry here with the reason why it needs none. A new public function with neither
//! fails this test.

#[path = "../../../percale/tests/public/mod.rs"]
mod public;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use self::public::{NOT_EXPORTED, sources};

/// Maps the first word of a case to a type: `"queue: read"` is a case of `CompletionQueue::read`.
const SUBJECTS: &[(&str, &str)] = &[
    ("access", "Operation"),
    ("cache", "Cache"),
    ("collective", "Operation"),
    ("connection", "Endpoint"),
    ("counter", "Counter"),
    ("domain", "Domain"),
    ("endpoint", "Endpoint"),
    ("events", "EventQueue"),
    ("fixed buffers", "FixedBuffers"),
    ("fixed lane", "FixedLane"),
    ("group", "Group"),
    ("inserter", "Inserter"),
    ("join", "Operation"),
    ("listener", "Listener"),
    ("many", "ReceivingMany"),
    ("operation set", "OperationSet"),
    ("pending region", "PendingRegion"),
    ("poll set", "PollSet"),
    ("queue", "CompletionQueue"),
    ("raw region", "RawRegion"),
    ("region", "Region"),
    ("request", "ConnectionRequest"),
    ("scalable endpoint", "ScalableEndpoint"),
    ("endpoint of many threads", "SharedEndpoint"),
    ("shared receive", "SharedReceive"),
    ("shared receiving", "SharedReceiving"),
    ("variable", "Variable"),
    ("view", "MemoryView"),
    ("vector", "AddressVector"),
    ("wait set", "WaitSet"),
    ("window", "Window"),
    ("window operation", "Operation"),
];

const VALUE: &str = "a plain value, which holds nothing of a process";
const ERROR: &str = "an error";
const BUILDER: &str = "settings; the call that opens or posts has a case";
const MEMORY: &str = "memory, which the kernel copies or omits in a child";
const RPC: &str = "built on the safe operations of an endpoint, which have cases; its only lock is a ProcessMutex";
const DEVICE: &str = "asks a device's driver; nothing of a domain is touched";
const TOGETHER: &str = "in one case with another function of its type";

/// Types, or functions of a type, that need no separate case.
const WITHOUT: &[(&str, &str)] = &[
    ("AddressSet", VALUE),
    ("AtomicOp", VALUE),
    ("Buffer", MEMORY),
    ("BufferPool", "memory, which a child does not have; the unit tests of the pool call it in a child"),
    ("Allocation", MEMORY),
    ("CacheSettings", VALUE),
    ("Call", RPC),
    ("Cause", ERROR),
    ("Client", RPC),
    ("Reply", RPC),
    ("Request", RPC),
    ("RpcError", ERROR),
    ("Server", RPC),
    ("Collective", VALUE),
    ("Datatype", VALUE),
    ("Device", DEVICE),
    ("DomainBuilder", BUILDER),
    ("EndpointBuilder", BUILDER),
    ("EventQueueFull", ERROR),
    ("PushCause", ERROR),
    ("QueueFull", ERROR),
    ("TimedOut", ERROR),
    ("ErrorEntry", VALUE),
    ("ErrorCode", VALUE),
    ("GroupId", VALUE),
    ("Info", "the result of discovery, a plain value; an inherited one opens domains of the child"),
    ("Family", VALUE),
    ("Inserted", VALUE),
    ("Insertion", VALUE),
    ("Interface", DEVICE),
    ("Kind", VALUE),
    ("ListenerBuilder", BUILDER),
    ("MappedKey", VALUE),
    ("Lease", MEMORY),
    ("Mapping", MEMORY),
    ("OperationSet::capacity", "a plain value of the handle"),
    ("OperationSet::is_empty", "as len"),
    ("OperationSet::is_full", "as len"),
    ("PeerAddress", VALUE),
    ("RawKey", VALUE),
    ("RawOperation", VALUE),
    ("Received", VALUE),
    ("Registration", BUILDER),
    ("RegionSlice", VALUE),
    ("RemoteMemory", VALUE),
    ("RemotePieces", VALUE),
    ("ScalableBuilder", BUILDER),
    ("ScopedRegion", VALUE),
    ("Scope", "exists only within a call of Domain::scope, whose case registers memory with it"),
    ("Segment", VALUE),
    ("Segments", VALUE),
    ("TransportKind", VALUE),
    ("TypedAllocation", MEMORY),
    ("TypedRegion", "a Region, whose functions have cases, with the type of its memory"),
    ("VectorBuilder", BUILDER),
    ("View", MEMORY),
    ("WorkId", VALUE),
    ("SendRequest", BUILDER),
    ("ReceiveRequest", BUILDER),
    ("AccessRequest", BUILDER),
    ("CollectiveRequest", BUILDER),
    ("WindowRequest", BUILDER),
    ("AddressVector::new", "makes an object of the calling process"),
    ("BufferTable::new", "makes an object of the calling process"),
    ("BufferTable::made", TOGETHER),
    ("BufferTable::registered", TOGETHER),
    ("BufferTable::transfer", "crates/percale-device/src/table_tests.rs calls it in a child"),
    ("CompletionQueue::new", "makes an object of the calling process"),
    ("Counter::new", "makes an object of the calling process"),
    ("Counter::is_same", "compares two handles"),
    ("Counter::read_error", TOGETHER),
    ("MemoryView::is_empty", "returns a number of the view"),
    ("MemoryView::is_writable", "returns a flag of the view"),
    ("MemoryView::len", "returns a number of the view"),
    ("Counter::value", TOGETHER),
    ("Counter::attach", "for objects that drive a counter, which are endpoints; these are refused"),
    ("Counter::detach", "for objects that drive a counter, which are endpoints; these are refused"),
    ("ConnectionRequest::from", "a plain value of the request"),
    ("ConnectionRequest::listener", "a plain value of the request"),
    ("Endpoint::id", "a plain value of the handle"),
    ("Endpoint::peer", "a plain value of the handle"),
    ("EventQueue::new", "makes an object of the calling process"),
    ("FixedBuffers::explanation", TOGETHER),
    ("FixedBuffers::ordinary_transfers", TOGETHER),
    ("Group::rank", TOGETHER),
    ("Group::size", TOGETHER),
    ("Inserter::new", "makes an object of the calling process"),
    ("Operation::is_taken", "a plain value of the handle"),
    ("PollSet::new", "makes an object of the calling process"),
    ("PollSet::is_empty", "the same code as len"),
    ("RawRegion::local_key", "the same code as local_key of a region"),
    ("ReceivingMany::iter", "the iterator calls wait"),
    ("ReceivingMany::poll_next", "the same code as next_message"),
    ("ReceivingMany::wait_for", "the same code as wait"),
    ("ReceivingMany::wait_until", "the same code as wait"),
    ("Region::access", "a plain value of the handle"),
    ("Region::is_enabled", "a plain value of the handle"),
    ("Region::key", "a plain value of the handle"),
    ("Region::len", "a plain value of the handle"),
    ("Region::is_empty", "a plain value of the handle"),
    ("Region::local_address", "a plain value of the handle"),
    ("Region::raw_key", "a plain value of the handle"),
    (
        "Region::restrict",
        "called by bindings of the provider before an endpoint is used, on a region of the same process",
    ),
    ("ScalableEndpoint::contexts", "a plain value of the handle"),
    ("Variable::device_address", TOGETHER),
    ("Variables", "is reached by Domain::variable and Domain::device_variable alone, which have cases"),
    ("WaitSet::is_empty", "the same code as len"),
    ("WaitSet::new", "makes an object of the calling process"),
    ("Window::is_of", "compares two handles"),
    ("Window::key_with", "a sum of the window's key and an argument"),
    ("Window::kind", "a plain value of the handle"),
];

/// Files that are not part of the public API, or are documented as internal.
const INTERNAL: &[&str] = &[
    "transport.rs",
    "local_memory/doorbell.rs",
    "sync.rs",
    "deferred_actions.rs",
    "later.rs",
    "table.rs",
    "refused.rs",
    "system/",
    "local_memory/kernel.rs",
    "local_memory/short_bytes.rs",
    "local_memory/rundown.rs",
    "local_memory/words.rs",
    "local_memory/atomic/request.rs",
    "local_memory/atomic/word.rs",
];

/// The file of percale-transport that contains a type of the public API.
const PUBLIC: &str = "percale-transport/src/kind.rs";

/// Returns the type of the inherent `impl` block that begins at this line.
fn implements(line: &str) -> Option<&str> {
    let mut rest = line.strip_prefix("impl")?;
    if rest.starts_with('<') {
        let mut depth = 0;
        let end = rest.find(|c| {
            depth += i32::from(c == '<') - i32::from(c == '>');
            depth == 0
        })?;
        rest = &rest[end + 1..];
    }
    let rest = rest.trim_start();
    let name = rest.split(|c: char| !c.is_alphanumeric()).next()?;
    (!rest.contains(" for ") && !name.is_empty()).then_some(name)
}

/// Returns the name of the public function that begins at this line, in an `impl` block or in a macro that generates
/// several.
fn function(line: &str) -> Option<&str> {
    let mut rest = line.trim_start().strip_prefix("pub ")?;
    for word in ["const ", "async ", "unsafe "] {
        rest = rest.strip_prefix(word).unwrap_or(rest);
    }
    rest.strip_prefix("fn ")?.split(|c: char| !c.is_alphanumeric() && c != '_').next()
}

/// Returns each public function, with its type.
fn functions() -> BTreeSet<(String, String)> {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let (mut files, mut found, mut hidden_types) = (Vec::new(), BTreeSet::new(), BTreeSet::new());
    let roots =
        ["percale/src", "percale-device/src", "percale-memory/src", "percale-region/src"].map(|root| crates.join(root));
    roots.iter().for_each(|root| sources(root, &mut files));
    files.push(crates.join(PUBLIC));
    for path in files {
        let below = roots.iter().find_map(|root| path.strip_prefix(root).ok()).or(path.file_name().map(Path::new));
        let name = below.expect("a file name").to_string_lossy().into_owned();
        let is_test = name.contains("test") || name.contains("model");
        if NOT_EXPORTED.iter().any(|internal| path.ends_with(internal)) {
            continue;
        }
        if is_test || INTERNAL.iter().any(|internal| name.starts_with(internal)) {
            continue;
        }
        let text = std::fs::read_to_string(&path).expect("a source file");
        let (mut of, mut is_hidden) = (None, false);
        for line in text.lines() {
            // Functions and types that are hidden in percale's documentation are internal.
            if line.trim_start().starts_with(['#', '/']) {
                is_hidden |= line.trim_start().starts_with("#[doc(hidden)]");
                continue;
            }
            let is_hidden = std::mem::take(&mut is_hidden);
            if line.starts_with("mod ") && line.ends_with("tests {") {
                break; // The tests end the file.
            }
            if let Some(name) = line.strip_prefix("pub struct ").filter(|_| is_hidden) {
                let name = name.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
                hidden_types.insert(name.to_owned());
            }
            if line.starts_with("impl") {
                of = implements(line).filter(|_| !is_hidden);
            } else if line.starts_with("macro_rules! handle") || line.starts_with("macro_rules! lifecycle") {
                of = Some("Region");
            } else if line == "}" {
                of = None;
            }
            let Some(function) = function(line) else { continue };
            if let Some(of) = of.filter(|_| !is_hidden) {
                found.insert((of.to_owned(), function.to_owned()));
            }
        }
    }
    found.retain(|(of, _)| !hidden_types.contains(of));
    found
}

/// Returns each case: the type, and the name of the function, which is the first word after the colon.
fn cases() -> BTreeSet<(String, String)> {
    let subjects: BTreeMap<_, _> = SUBJECTS.iter().copied().collect();
    let mut found = BTreeSet::new();
    for text in
        [include_str!("inherited_calls.rs"), include_str!("inherited_objects.rs"), include_str!("inherited_posts.rs")]
    {
        let mut of_vector = false;
        for line in text.lines() {
            of_vector = (of_vector || line.starts_with("fn vector_calls(")) && line != "}";
            let Some((_, rest)) = line.split_once("case(") else { continue };
            let (subject, label) = match rest.strip_prefix("concat!($who, \": ") {
                Some(label) => ("endpoint", label),
                None => match rest.strip_prefix('"').and_then(|label| label.split_once(": ")) {
                    Some(named) => named,
                    None if of_vector => ("vector", rest.trim_start_matches('"')),
                    None => continue,
                },
            };
            let name = label.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default();
            if let Some(of) = subjects.get(subject) {
                found.insert(((*of).to_owned(), name.to_owned()));
            }
        }
    }
    found
}

/// Requirements: FLT-010.
#[test]
fn each_public_function_has_a_case_in_a_forked_child() {
    let (functions, cases) = (functions(), cases());
    assert!(functions.len() > 300 && cases.len() > 150, "{} functions, {} cases", functions.len(), cases.len());
    let without: BTreeMap<_, _> = WITHOUT.iter().copied().collect();
    assert_eq!(without.len(), WITHOUT.len(), "named twice");
    let (mut used, mut missing) = (BTreeSet::new(), Vec::new());
    for (of, function) in &functions {
        let full = format!("{of}::{function}");
        let reason = [of.as_str(), full.as_str()].into_iter().find(|name| without.contains_key(name));
        match reason {
            Some(name) => drop(used.insert(name.to_owned())),
            None if of.ends_with("Error") || function == "errno" => {}
            None if cases.contains(&(of.clone(), function.clone())) => {}
            None => missing.push(full),
        }
    }
    assert!(missing.is_empty(), "no forked child calls these; add cases to inherited_*.rs: {missing:#?}");
    let stale: Vec<_> = without.keys().filter(|name| !used.contains(**name)).collect();
    assert!(stale.is_empty(), "there is no such type or function: {stale:?}");
}
