//! `Debug` of public types is short and contains no secrets. Each public type is checked in the sources, and the
//! objects of a domain with a thousand regions and an authorization key are printed.

mod public;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::path::Path;

use percale::{
    Access, CompletionQueue, Counter, Domain, Endpoint, EventQueue, Info, LocalPiece, PeerAddress, PollSet, PostError,
    Region, RemoteMemory, WaitSet, WindowAccess, WindowType,
};

use self::public::{NOT_EXPORTED, sources};

/// The maximum number of characters of a value.
const LIMIT: usize = 200;

/// Folders and files without public types of the API.
const INTERNAL: &[&str] = &[
    "transport.rs",
    "sync.rs",
    "deferred_actions.rs",
    "later.rs",
    "table.rs",
    "refused.rs",
    "debug.rs",
    "system/",
    "local_memory/kernel.rs",
    "local_memory/rundown.rs",
    "local_memory/words.rs",
];

/// Words in a field's type for which a derived `Debug` has unbounded output, or prints the object to which the field
/// refers.
const UNBOUNDED: &[&str] =
    &["Arc", "Rc", "Weak", "Vec", "VecDeque", "HashMap", "BTreeMap", "Mutex", "RwLock", "RefCell", "OnceLock", "dyn"];

/// Words in a field's name that mark it as a secret.
const SECRET: &[&str] =
    &["key", "secret", "authority", "authorization", "incarnation", "nonce", "cookie", "token", "mac"];

/// Types with a derived `Debug` that is correct, and the reason.
const ALLOWED: &[(&str, &str)] = &[
    ("Bind", "8 bits, which give a peer no access"),
    ("BindError", "an error without an internal value"),
    ("Cause", "the largest variant is an ErrorEntry, which is short"),
    ("CollectiveWork", "a few numbers and locations"),
    ("DeferredWork", "short contents"),
    ("Work", "short contents"),
    ("Operation", "short contents"),
    ("RmaWork", "a few pieces, whose names are short"),
    ("Source", "short contents"),
    ("Place", "the location of device memory"),
    ("Engine", "not reachable"),
    ("CacheNote", "a text of the library"),
    ("VectorOptions", "settings that the application chose"),
    ("UnknownMonitor", "a name that the application gave; the derive precedes an attribute of several lines"),
    ("CacheSettings", "settings that the application chose"),
    ("AddressError", "an error with the text that the application gave"),
    ("OpenError", "an error with a text of the library"),
    ("Wait", "not reachable"),
    ("CloseError", "the Debug output is the text of the error"),
];

/// The crate of the transports, whose types are not checked here.
const TRANSPORT: &str = "../percale-transport";

/// Returns the source folders of percale and of the workspace crates with types that it can make public, which its
/// manifest names.
fn roots() -> Vec<std::path::PathBuf> {
    let percale = Path::new(env!("CARGO_MANIFEST_DIR"));
    let manifest = std::fs::read_to_string(percale.join("Cargo.toml")).expect("the manifest");
    let names = manifest.lines().filter_map(|line| line.split(['.', ' ', '=']).next());
    let paths = names.filter(|name| name.starts_with("percale-")).map(|name| format!("../{name}"));
    let below: BTreeSet<String> = paths.filter(|path| path != TRANSPORT).collect();
    assert!(below.contains("../percale-wire") && below.contains("../percale-memory"), "{below:?}");
    std::iter::once(".".to_owned()).chain(below).map(|path| percale.join(path).join("src")).collect()
}

/// Splits a text into words.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|letter: char| !letter.is_alphanumeric() && letter != '_').filter(|word| !word.is_empty())
}

/// Finds the defects in the `Debug` of the public types that a file declares, and the names of these types.
fn examine(text: &str, wrong: &mut BTreeMap<String, String>, seen: &mut BTreeSet<String>) {
    let lines: Vec<&str> = text.lines().collect();
    for (at, line) in lines.iter().enumerate() {
        let Some(name) = ["pub struct ", "pub enum "].iter().find_map(|start| line.strip_prefix(start)) else {
            continue;
        };
        let name = words(name).next().expect("a name").to_owned();
        seen.insert(name.clone());
        let attributes: String = lines[..at]
            .iter()
            .rev()
            .take_while(|line| line.starts_with('#') || line.starts_with("///"))
            .copied()
            .collect();
        let by_hand = text.contains(&format!("Debug for {name}")) || text.contains(&format!("short_debug!({name}"));
        let short = text.lines().any(|line| line.contains("short_debug!(") && words(line).any(|word| word == name))
            || text.contains(&format!("\"{name}\","));
        if by_hand || short || ALLOWED.iter().any(|(allowed, _)| *allowed == name) {
            continue;
        }
        if !attributes
            .split("derive(")
            .skip(1)
            .any(|list| words(list.split(')').next().unwrap_or("")).any(|word| word == "Debug"))
        {
            wrong.insert(name, "has no Debug implementation that this check finds".into());
            continue;
        }
        let body =
            lines[at..].iter().take_while(|line| **line != "}").filter(|line| !line.trim_start().starts_with("//"));
        for field in body {
            let (named, kind) = field.split_once(':').unwrap_or(("", field));
            if let Some(word) = words(kind).find(|word| UNBOUNDED.contains(word)) {
                wrong.insert(name.clone(), format!("derives Debug, and holds a {word}: {}", field.trim()));
            }
            if named.split('_').flat_map(words).any(|word| SECRET.contains(&word)) {
                wrong.insert(name.clone(), format!("derives Debug, and shows {}", field.trim()));
            }
        }
    }
}

#[test]
fn debug_of_public_types_is_short_and_without_secrets() {
    let (mut wrong, mut seen) = (BTreeMap::new(), BTreeSet::new());
    for root in roots() {
        let mut files = Vec::new();
        sources(&root, &mut files);
        for file in files {
            let name = file.strip_prefix(&root).expect("below").to_string_lossy().into_owned();
            let internal = INTERNAL.iter().any(|internal| name.starts_with(internal));
            if internal || NOT_EXPORTED.iter().any(|internal| file.ends_with(internal)) || name.contains("test") {
                continue;
            }
            examine(&std::fs::read_to_string(&file).expect("a source"), &mut wrong, &mut seen);
        }
    }
    assert!(seen.len() > 100, "{} public types: the sources no longer have the expected form", seen.len());
    assert!(wrong.is_empty(), "write Debug by `short_debug!`:\n{wrong:#?}");
    let unknown: Vec<_> = ALLOWED.iter().filter(|(name, _)| !seen.contains(*name)).collect();
    assert!(unknown.is_empty(), "no such types: {unknown:?}");
}

#[test]
fn debug_check_finds_violations() {
    let bad = "#[derive(Debug)]\npub struct One {\n    keys: Arc<Keys>,\n}\n#[derive(Clone, Debug)]\npub struct Two {\n    authorization_key: u64,\n}\npub struct Three;\n";
    let (mut wrong, mut seen) = (BTreeMap::new(), BTreeSet::new());
    examine(bad, &mut wrong, &mut seen);
    assert_eq!(wrong.len(), 3, "{wrong:?}");
    let good = "#[derive(Debug)]\npub struct One {\n    len: u64,\n}\npub struct Two {\n    keys: Arc<Keys>,\n}\n\nshort_debug!(Two, \"Two\");\n";
    let (mut wrong, mut seen) = (BTreeMap::new(), BTreeSet::new());
    examine(good, &mut wrong, &mut seen);
    assert!(wrong.is_empty() && seen.len() == 2, "{wrong:?}");
}

/// Prints a value and searches the output for secrets.
fn look(value: &dyn Debug, secrets: &[String]) {
    for (printed, limit) in [(format!("{value:?}"), LIMIT), (format!("{value:#?}"), 2 * LIMIT)] {
        assert!(printed.len() <= limit, "{} characters: {printed:.400}", printed.len());
        for secret in secrets {
            assert!(!printed.contains(secret.as_str()), "a secret is shown: {printed}");
        }
    }
}

/// Prints the errors of a read with a wrong key, of a registration with a key in use, and of a key that is not mapped.
fn look_at_errors(
    domain: &Domain,
    (endpoint, owner): (&Endpoint, PeerAddress),
    region: &Region,
    name: RemoteMemory,
    secrets: &[String],
) {
    let failed = endpoint.read(owner, RemoteMemory { key: region.key() ^ 1, ..name }, vec![0; 8]).wait().err();
    let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
    let taken = domain.registration(access).key(region.key()).own(vec![0; 8]).err();
    let errors: [&dyn Debug; 3] = [&failed, &taken, &PostError::NotMapped(region.key())];
    errors.iter().for_each(|error| look(*error, secrets));
    for text in [failed.map(|error| error.to_string()), taken.map(|error| error.to_string())].into_iter().flatten() {
        assert!(secrets.iter().all(|secret| !text.contains(secret.as_str())), "a secret is shown: {text}");
    }
}

#[test]
fn debug_of_domain_objects_is_short_and_without_keys() -> Result<(), Box<dyn std::error::Error>> {
    let authorization = b"correct horse battery staple";
    let builder = Info::discover()?.domain().authorization_key(authorization);
    let mut secrets = vec!["correct horse".to_owned(), format!("{:?}", &authorization[..4]), "99, 111, 114".to_owned()];
    look(&builder, &secrets);
    let domain = builder.open()?;
    let vector = domain.address_vector().build()?;
    let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
    let regions: Vec<_> = (0..1000).map(|_| domain.register(vec![0; 64], access)).collect::<Result<_, _>>()?;
    let raw = domain.registration(access).raw_key().own(vec![0; 64])?;
    let mut window = domain.window(WindowType::One)?;
    let name = window.bind(&regions[0], 0..8, WindowAccess::READ)?;
    let mapped = domain.map_raw(raw.raw_key().as_bytes())?;
    for key in regions.iter().take(20).map(|region| region.key()).chain([raw.key(), name.key, mapped.key()]) {
        secrets.extend([key.to_string(), format!("{key:x}"), format!("{key:X}")]);
    }
    let events = EventQueue::new(64);
    let (queue, counter) = (CompletionQueue::default(), Counter::new());
    let address = "127.0.0.1:0";
    let endpoint_builder = domain.endpoint().vector(&vector).authorization_key(authorization);
    look(&endpoint_builder, &secrets);
    let endpoint = endpoint_builder.send_counter(&counter).bind(address)?;
    let shared = domain.endpoint().vector(&vector).transmit_queue(&queue).bind_shared(address)?;
    let me = vector.insert(endpoint.address())?;
    let request = endpoint.recv(vec![0; 4096]);
    look(&request, &secrets);
    let receiving = request.start()?;
    let sending = endpoint.send(me, vec![7; 100_000]);
    look(&sending, &secrets);
    let sending = sending.start()?;
    let reading = endpoint.read(me, name, vec![0; 8]);
    look(&reading, &secrets);
    let pending = domain.registration(access).begin(vec![0; 64], &events, 1)?;
    look_at_errors(&domain, (&endpoint, me), &regions[0], name, &secrets);
    let local = regions[0].local_key()?;
    let piece = LocalPiece { key: local, address: 0, len: 8 };
    let (waits, polls) = (WaitSet::new(), PollSet::<u32>::new());
    let scalable = domain.scalable_endpoint().contexts(2).authorization_key(authorization);
    look(&scalable, &secrets);
    let shared_receive = domain.shared_receive();
    let objects: [&dyn Debug; 31] = [
        &domain,
        &domain.type_two(),
        &vector,
        &domain.address_vector(),
        &regions[0],
        &regions[999],
        &raw,
        &raw.raw_key(),
        &window,
        &window.state(),
        &name,
        &mapped,
        &events,
        &queue,
        &counter,
        &endpoint,
        &shared,
        &receiving,
        &sending,
        &pending,
        &piece,
        &waits,
        &polls,
        &domain.registration(access).key(regions[0].key()),
        &shared_receive,
        &Info::discover()?,
        &domain.endpoint(),
        &regions[0].remote(),
        &endpoint.address(),
        &me,
        &access,
    ];
    objects.iter().for_each(|object| look(*object, &secrets));
    domain.scope(|scope| {
        look(scope, &secrets);
    });
    Ok(())
}
