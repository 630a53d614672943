//! Libraries that are loaded and unloaded, and programs without libraries.
#![expect(unsafe_code, reason = "dlopen; each block states its own reason")]

use std::ffi::{CStr, CString};
use std::path::PathBuf;
use std::process::Command;

use crate::oracle::{Memory, Outcome, PAGE, World, map_anew, unmap};

/// A directory that is removed when the value is dropped.
struct ScratchDirectory(PathBuf);

impl ScratchDirectory {
    fn new(name: &str) -> Self {
        let place = std::env::temp_dir().join(format!("pindown-{name}-{}", std::process::id()));
        std::fs::create_dir(&place).expect("a new directory");
        Self(place)
    }
}

impl Drop for ScratchDirectory {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

/// A library that has its own memory and unmaps it by system calls.
const LIBRARY: &str = "
long drop(void *at, long len) {
    long answer;
    __asm__ volatile(\"syscall\" : \"=a\"(answer) : \"a\"(11), \"D\"(at), \"S\"(len) : \"rcx\", \"r11\", \"memory\");
    return answer;
}
char memory[65536] __attribute__((aligned(4096))) = {1};
";

/// Requirements: MON-028.
#[test]
fn loaded_and_unloaded_libraries_are_tracked() {
    let Some(world) = World::open() else { return };
    let place = ScratchDirectory::new("library");
    let (source, library) = (place.0.join("library.c"), place.0.join("library.so"));
    std::fs::write(&source, LIBRARY).expect("written");
    let compiled = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).status();
    if !compiled.as_ref().is_ok_and(std::process::ExitStatus::success) {
        return eprintln!("skipped (C compiler): cc: {compiled:?}");
    }
    let path = CString::new(library.to_str().expect("a path")).expect("no zero byte");
    let open = || {
        // SAFETY: the library has no initialiser.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
        assert!(!handle.is_null());
        handle
    };
    let symbol = |handle: *mut libc::c_void, name: &CStr| {
        // SAFETY: the handle is open.
        let found = unsafe { libc::dlsym(handle, name.as_ptr()) };
        assert!(!found.is_null());
        found
    };
    let handle = open();
    let at = symbol(handle, c"memory").expose_provenance() as u64;
    let memory = Memory::new(4);
    let function = symbol(handle, c"drop");
    // SAFETY: the library defines the function with this type.
    let drop_pages: extern "C" fn(u64, u64) -> i64 = unsafe { std::mem::transmute(function) };
    let outcome = world.across(memory.start, memory.len, || {
        assert_eq!(drop_pages(memory.start, memory.len), 0);
        map_anew(memory.start, memory.len);
    });
    assert_eq!(outcome, Outcome::Renewed);
    let outcome = world.across(at, 16 * PAGE, || {
        // SAFETY: the library is no longer used.
        assert_eq!(unsafe { libc::dlclose(handle) }, 0);
        map_anew(at, 16 * PAGE);
    });
    assert_eq!(outcome, Outcome::Renewed);
    unmap(at, 16 * PAGE);
}

/// A minimal program that uses a cache. It has no dynamic symbols that could be interposed.
const STATIC: &str = include_str!("../oracle/static_program.rs");

/// Requirements: MON-032.
#[test]
fn statically_linked_program_is_supported() {
    if let Err(why) = pindown::monitor::bpf::loadable() {
        return eprintln!("skipped (bpf): {why}");
    }
    let place = ScratchDirectory::new("static");
    let (source, program) = (place.0.join("program.rs"), place.0.join("program"));
    std::fs::write(&source, STATIC).expect("written");
    // The libraries are in the directory of this program.
    let here = std::env::current_exe().expect("this program");
    let here = here.parent().expect("a directory");
    let mut libraries =
        Vec::from_iter(std::fs::read_dir(here).expect("the directory can be read").filter_map(|entry| {
            let path = entry.ok()?.path();
            let name = path.file_name()?.to_str()?;
            let is_it = name == "libpindown.rlib" || name.starts_with("libpindown-") && name.ends_with(".rlib");
            is_it.then(|| path.clone())
        }));
    libraries.sort_by_key(|path| std::fs::metadata(path).and_then(|data| data.modified()).ok());
    let mut message = String::from("no library was found");
    let built = libraries.iter().rev().any(|library| {
        let mut rustc = Command::new(std::env::var_os("RUSTC").unwrap_or("rustc".into()));
        rustc.args(["--edition=2024", "-Ctarget-feature=+crt-static", "-L"]).arg(here).arg("--extern");
        rustc.arg(format!("pindown={}", library.display())).arg(&source).arg("-o").arg(&program);
        rustc.current_dir(env!("CARGO_MANIFEST_DIR")).output().is_ok_and(|output| {
            message = String::from_utf8_lossy(&output.stderr).into_owned();
            output.status.success()
        })
    });
    if !built {
        return eprintln!("skipped (static libraries): a static program cannot be linked here: {message}");
    }
    let output = Command::new(&program).output().expect("the process starts");
    let message = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{message} {}", String::from_utf8_lossy(&output.stderr));
    assert!(message.contains("static: kept, changed, renewed"), "{message}");
}
