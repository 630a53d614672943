//! Reads the running kernel's description of its tracepoints: the names and arguments of those that exist.
//!
//! The loader finds offsets by itself, but does not detect an inserted argument. So the arguments of each tracepoint
//! that the programs use are compared here with the known ones, and nothing is loaded if they differ.

use std::collections::HashMap;
use std::fs;

use super::refusal::BpfUnavailable;

const PATH: &str = "/sys/kernel/btf/vmlinux";
const PTR: u32 = 2;
const STRUCT: u32 = 4;
const UNION: u32 = 5;
const FWD: u32 = 7;
const TYPEDEF: u32 = 8;
const PROTOTYPE: u32 = 13;

/// The differences between this kernel's tracepoints and the newest known ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hooks {
    /// The second argument of `mmap_lock_released` is the path of a memory cgroup.
    pub(super) memcg_path: bool,
    /// The kernel frees page tables early, so some calls must be reported when they begin.
    pub(super) starts: bool,
    /// The tracepoint of a request to io_uring; `None` if the kernel has no io_uring.
    pub(super) submit: Option<&'static str>,
}

/// Reads the differences, and checks all tracepoints that will be used.
pub(super) fn hooks() -> Result<Hooks, BpfUnavailable> {
    let bytes = fs::read(PATH).map_err(BpfUnavailable::NoBtf)?;
    let types = Types::parse(&bytes).ok_or(BpfUnavailable::BadBtf("it cannot be read"))?;
    check(&types)
}

fn check(types: &Types<'_>) -> Result<Hooks, BpfUnavailable> {
    let released = types.arguments("mmap_lock_released")?;
    let memcg_path = match as_strs(&released)[..] {
        ["mm_struct*", "bool"] => false,
        ["mm_struct*", "char*", "bool"] => true,
        _ => return Err(unknown("mmap_lock_released", &released)),
    };
    types.expect("rss_stat", &["mm_struct*", "int"])?;
    types.expect("mm_filemap_delete_from_page_cache", &["folio*"])?;
    let submit = if !types.has_struct("io_kiocb") {
        None
    } else if types.expect("io_uring_submit_req", &["io_kiocb*"]).is_ok() {
        Some("io_uring_submit_req")
    } else {
        types.expect("io_uring_submit_sqe", &["io_kiocb*"])?;
        Some("io_uring_submit_sqe")
    };
    if submit.is_some() {
        types.expect("io_uring_queue_async_work", &["io_kiocb*"])?;
    }
    let starts = types.member("zap_details", "reclaim_pt");
    if starts {
        types.expect("sys_enter", &["pt_regs*", "long int"])?;
        types.expect("sys_exit", &["pt_regs*", "long int"])?;
    }
    Ok(Hooks { memcg_path, starts, submit })
}

fn as_strs(strings: &[String]) -> Vec<&str> {
    strings.iter().map(String::as_str).collect()
}

fn unknown(hook: &'static str, found: &[String]) -> BpfUnavailable {
    BpfUnavailable::HookArguments { hook, found: found.join(", ") }
}

/// One type: its name, its kind, its size or the type it refers to, and the position of its members.
#[derive(Clone, Copy)]
struct Type {
    name: u32,
    kind: u32,
    count: usize,
    refers: u32,
    members: usize,
}

/// The types of a kernel, in the BPF Type Format.
struct Types<'a> {
    bytes: &'a [u8],
    strings: &'a [u8],
    all: Vec<Type>,
    hooks: HashMap<&'a str, u32>,
}

impl<'a> Types<'a> {
    fn parse(bytes: &'a [u8]) -> Option<Self> {
        let word = |at: usize| Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        if bytes.get(..2)? != 0xeb9f_u16.to_ne_bytes() {
            return None;
        }
        let header = word(4)? as usize;
        let part = |at: usize, len: usize| Some((header + word(at).unwrap_or(0) as usize, word(len)? as usize));
        let (types, types_len) = part(8, 12)?;
        let (strings, strings_len) = part(16, 20)?;
        let strings = bytes.get(strings..strings.checked_add(strings_len)?)?;
        // Type 0 is void.
        let mut all = vec![Type { name: 0, kind: 0, count: 0, refers: 0, members: 0 }];
        let mut at = types;
        while at < types.checked_add(types_len)? {
            let info = word(at + 4)?;
            let (kind, count) = (info >> 24 & 0x1f, (info & 0xffff) as usize);
            all.push(Type { name: word(at)?, kind, count, refers: word(at + 8)?, members: at + 12 });
            at += 12
                + match kind {
                    1 | 14 | 17 => 4,
                    3 => 12,
                    STRUCT | UNION | 15 | 19 => 12 * count,
                    6 | PROTOTYPE => 8 * count,
                    2 | FWD..=12 | 16 | 18 => 0,
                    _ => return None,
                };
        }
        let mut found = Self { bytes, strings, all, hooks: HashMap::new() };
        for index in 1..found.all.len() {
            let kind = found.all[index];
            let name = found.string(kind.name);
            if let (TYPEDEF, Some(hook)) = (kind.kind, name.strip_prefix("btf_trace_")) {
                found.hooks.insert(hook, index as u32);
            }
        }
        Some(found)
    }

    fn word(&self, at: usize) -> u32 {
        self.bytes.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_ne_bytes)
    }

    fn string(&self, at: u32) -> &'a str {
        let rest = self.strings.get(at as usize..).unwrap_or_default();
        let len = rest.iter().position(|&b| b == 0).unwrap_or(0);
        std::str::from_utf8(&rest[..len]).unwrap_or_default()
    }

    fn get(&self, index: u32) -> Type {
        self.all.get(index as usize).copied().unwrap_or(self.all[0])
    }

    /// Returns the types of a tracepoint's arguments, without the first, which belongs to the tracing mechanism.
    fn arguments(&self, hook: &'static str) -> Result<Vec<String>, BpfUnavailable> {
        let &index = self.hooks.get(hook).ok_or(BpfUnavailable::HookMissing(hook))?;
        let prototype = self.get(self.get(self.get(index).refers).refers);
        if prototype.kind != PROTOTYPE {
            return Err(BpfUnavailable::BadBtf("the type of a tracepoint is not a function"));
        }
        Ok((1..prototype.count).map(|i| self.spelled(self.word(prototype.members + 8 * i + 4), 0)).collect())
    }

    fn expect(&self, hook: &'static str, first: &[&str]) -> Result<(), BpfUnavailable> {
        let found = self.arguments(hook)?;
        if as_strs(&found).starts_with(first) { Ok(()) } else { Err(unknown(hook, &found)) }
    }

    /// Returns a type's name, with a star for each pointer and without qualifiers such as const.
    fn spelled(&self, index: u32, depth: u32) -> String {
        let kind = self.get(index);
        match kind.kind {
            _ if depth > 8 => "?".into(),
            0 => "void".into(),
            PTR => self.spelled(kind.refers, depth + 1) + "*",
            9..=11 | 18 => self.spelled(kind.refers, depth + 1),
            _ => self.string(kind.name).into(),
        }
    }

    fn has_struct(&self, name: &str) -> bool {
        self.structs(name).next().is_some()
    }

    fn structs<'b>(&'b self, name: &'b str) -> impl Iterator<Item = Type> + 'b {
        self.all.iter().copied().filter(move |t| t.kind == STRUCT && self.string(t.name) == name)
    }

    fn member(&self, of: &str, name: &str) -> bool {
        self.structs(of).any(|t| (0..t.count).any(|i| self.string(self.word(t.members + 12 * i)) == name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Types as a kernel describes them: `int`, `bool`, structures by name, and tracepoints with arguments.
    #[derive(Default)]
    struct Made {
        types: Vec<u8>,
        strings: Vec<u8>,
        count: u32,
    }

    impl Made {
        fn new() -> Self {
            Self { strings: vec![0], ..Self::default() }
        }

        fn name(&mut self, name: &str) -> u32 {
            let at = self.strings.len() as u32;
            self.strings.extend(name.bytes().chain([0]));
            at
        }

        fn push(&mut self, name: u32, kind: u32, count: u32, refers: u32, rest: &[u32]) -> u32 {
            for word in [name, kind << 24 | count, refers].iter().chain(rest) {
                self.types.extend(word.to_ne_bytes());
            }
            self.count += 1;
            self.count
        }

        fn argument(&mut self, spelled: &str) -> u32 {
            let base = spelled.trim_end_matches('*');
            let name = self.name(base);
            let mut index = if base.contains("int") || base == "bool" {
                self.push(name, 1, 0, 4, &[0])
            } else {
                self.push(name, STRUCT, 0, 0, &[])
            };
            for _ in base.len()..spelled.len() {
                index = self.push(0, PTR, 0, index, &[]);
            }
            index
        }

        fn hook(&mut self, hook: &str, arguments: &[&str]) {
            let mut all = vec![0, 0];
            for argument in arguments {
                all.extend([0, self.argument(argument)]);
            }
            let prototype = self.push(0, PROTOTYPE, all.len() as u32 / 2, 0, &all);
            let pointer = self.push(0, PTR, 0, prototype, &[]);
            let name = self.name(&format!("btf_trace_{hook}"));
            self.push(name, TYPEDEF, 0, pointer, &[]);
        }

        fn check(&self) -> Result<Hooks, BpfUnavailable> {
            let (types, strings) = (self.types.len() as u32, self.strings.len() as u32);
            let mut bytes = 0xeb9f_u16.to_ne_bytes().to_vec();
            bytes.extend([1, 0]);
            for word in [24, 0, types, types, strings] {
                bytes.extend(word.to_ne_bytes());
            }
            bytes.extend(self.types.iter().chain(&self.strings));
            check(&Types::parse(&bytes).expect("well-formed"))
        }
    }

    fn old_kernel() -> Made {
        let mut made = Made::new();
        made.hook("mmap_lock_released", &["mm_struct*", "char*", "bool"]);
        made.hook("rss_stat", &["mm_struct*", "int", "long int"]);
        made.hook("mm_filemap_delete_from_page_cache", &["folio*"]);
        made.hook("io_uring_submit_sqe", &["io_kiocb*", "bool"]);
        made.hook("io_uring_queue_async_work", &["io_kiocb*", "int"]);
        made
    }

    /// Requirements: MON-033.
    #[test]
    fn older_tracepoint_arguments_are_accepted() {
        let hooks = old_kernel().check().expect("all hooks are there");
        assert_eq!(hooks, Hooks { memcg_path: true, starts: false, submit: Some("io_uring_submit_sqe") });
    }

    /// Requirements: MON-033.
    #[test]
    fn a_missing_tracepoint_is_named() {
        let mut made = Made::new();
        made.hook("mmap_lock_released", &["mm_struct*", "bool"]);
        assert!(matches!(made.check(), Err(BpfUnavailable::HookMissing("rss_stat"))));
    }

    /// Requirements: MON-033.
    #[test]
    fn unknown_arguments_are_refused() {
        let mut made = Made::new();
        made.hook("mmap_lock_released", &["mm_struct*", "int", "bool"]);
        let error = made.check().expect_err("the second argument is unknown");
        let named = "tracepoint mmap_lock_released has unknown arguments: (mm_struct*, int, bool); ";
        assert!(error.to_string().starts_with(named), "{error}");
    }

    /// Requirements: MON-033.
    #[test]
    fn kernel_freeing_page_tables_early_needs_syscall_entry_hooks() {
        let mut made = old_kernel();
        let (name, member) = (made.name("zap_details"), made.name("reclaim_pt"));
        made.push(name, STRUCT, 1, 0, &[member, 0, 0]);
        assert!(matches!(made.check(), Err(BpfUnavailable::HookMissing("sys_enter"))));
        made.hook("sys_enter", &["pt_regs*", "long int"]);
        made.hook("sys_exit", &["pt_regs*", "long int"]);
        assert!(made.check().expect("all hooks are there").starts);
    }
}
