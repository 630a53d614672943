//! Environments with several versions of libfabric: small libraries with the two functions that the command calls.

use std::path::{Path, PathBuf};

use crate::diagnosis::{Diagnosis, NOWHERE, PROGRAM, works};

/// A libfabric of version 1.VERSION, which has the provider or not.
const SOURCE: &str = "
#include <errno.h>
#include <stddef.h>
#ifndef VERSION
#define VERSION 17
#define PROVIDER 1
#endif
unsigned fi_version(void) { return 1 << 16 | VERSION; }
int fi_getinfo(unsigned version, const char *node, const char *service, unsigned long flags, const void *hints,
	       void **info)
{
	static int one;
	*info = PROVIDER ? &one : NULL;
	return PROVIDER ? 0 : -ENODATA;
}
";

/// A directory with one subdirectory for each library. It is removed at the end.
struct Libraries(PathBuf);

impl Libraries {
    /// Compiles a library with the provider in `with`, and one without it in `without`. Returns `None` if there is no
    /// compiler.
    fn new(name: &str) -> Option<Self> {
        if !works("C compiler", "several versions of libfabric", &["cc", "--version"]) {
            return None;
        }
        let all = Self(std::env::temp_dir().join(format!("percale-doctor-{name}-{}", std::process::id())));
        std::fs::create_dir(&all.0).unwrap();
        let source = all.0.join("fabric.c");
        std::fs::write(&source, SOURCE).unwrap();
        for (directory, version, provider) in [("with", "17", "1"), ("without", "20", "0")] {
            let directory = all.0.join(directory);
            std::fs::create_dir(&directory).unwrap();
            let status = std::process::Command::new("cc")
                .args(["-shared", "-fPIC", &format!("-DVERSION={version}"), &format!("-DPROVIDER={provider}"), "-o"])
                .arg(directory.join("libfabric.so.1"))
                .arg(&source)
                .status()
                .unwrap();
            assert!(status.success());
        }
        Some(all)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Runs the command with the libraries in these directories only.
    fn diagnose(&self, directories: &[&str]) -> Diagnosis {
        let paths: Vec<_> = directories.iter().map(|name| self.path(name).display().to_string()).collect();
        diagnose_with(&["--libfabric", &paths.join(",")], None)
    }
}

impl Drop for Libraries {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

fn diagnose_with(arguments: &[&str], loader: Option<&Path>) -> Diagnosis {
    let mut command = std::process::Command::new(PROGRAM);
    command.args(["doctor", "--json"]).args(arguments).env("PINDOWN_SOCKET", format!("{NOWHERE}/helper"));
    command.env_remove("FI_PROVIDER").env_remove("FI_PROVIDER_PATH");
    if let Some(directory) = loader {
        command.env("LD_LIBRARY_PATH", directory);
    }
    Diagnosis::of(&mut command)
}

#[test]
fn two_libfabrics_of_which_one_lacks_the_provider() {
    let Some(all) = Libraries::new("two") else { return };
    let before = all.diagnose(&["with"]);
    assert_eq!(before.check("provider")["state"], "works");
    let after = all.diagnose(&["with", "without"]);
    after.names_only(&before, "libfabric", "1.20 at ", "export FI_PROVIDER_PATH=");
    let detail = after.check("libfabric")["detail"].as_str().unwrap();
    assert!(detail.contains("1.17 at ") && detail.contains("without/libfabric.so.1 do not see percale"), "{detail}");
    assert_eq!(after.of_kind("libfabric").len(), 2);
}

/// A mistyped directory does not look like a machine that needs no libfabric.
#[test]
fn directory_without_libfabric_is_named() {
    let found = diagnose_with(&["--libfabric", NOWHERE], None);
    let line = found.check("libfabric");
    assert_eq!(line["detail"], format!("no libfabric.so.1 in {NOWHERE}"), "{line:#}");
}

#[test]
fn libfabric_without_the_provider() {
    let Some(all) = Libraries::new("none") else { return };
    let before = all.diagnose(&["with"]);
    let after = all.diagnose(&["without"]);
    after.names_only(&before, "provider", "no libfabric offers percale", "apt install ./libpercale-fi1_*.deb");
    assert_eq!(after.code, before.code, "only programs of libfabric need it");
}

#[test]
fn the_libfabric_of_the_loader_is_found() {
    let Some(all) = Libraries::new("loader") else { return };
    let found = diagnose_with(&[], Some(&all.path("with")));
    let path = std::fs::canonicalize(all.path("with")).unwrap().join("libfabric.so.1").display().to_string();
    let library =
        found.of_kind("libfabric").into_iter().find(|line| line["path"] == path.as_str()).expect("the library");
    assert!(library["default"] == true && library["provider"] == true && library["version"] == "1.17", "{library:#}");
    assert_eq!(found.check("provider")["state"], "works");
}

#[test]
fn a_file_that_is_no_library_is_reported() {
    let Some(all) = Libraries::new("broken") else { return };
    std::fs::create_dir(all.path("broken")).unwrap();
    std::fs::write(all.path("broken").join("libfabric.so.1"), "no library").unwrap();
    let found = all.diagnose(&["broken"]);
    let [library] = found.of_kind("libfabric")[..] else { panic!("not one library: {found:#?}") };
    assert!(library["error"].is_string() && library["version"].is_null(), "{library:#}");
    let libfabric = found.check("libfabric");
    assert!(libfabric["state"] == "missing" && libfabric["remedy"]["commands"][0].is_string(), "{libfabric:#}");
    assert_eq!(found.check("provider")["cause"], "libfabric");
    // Few programs load it, if there is another one.
    let before = all.diagnose(&["with"]);
    let after = all.diagnose(&["with", "broken"]);
    after.names_only(&before, "libfabric", "broken/libfabric.so.1 cannot be loaded", "libfabric.so.1.broken");
    assert_eq!(after.check("libfabric")["state"], "limited");
}

/// Programs get the file that the loader finds first, although another libfabric works.
#[test]
fn the_libfabric_of_the_loader_is_the_one_that_counts() {
    let Some(all) = Libraries::new("default") else { return };
    let before = diagnose_with(&[], Some(&all.path("with")));
    let directory = std::fs::canonicalize(&all.0).unwrap().join("default");
    std::fs::create_dir(&directory).unwrap();
    let file = directory.join("libfabric.so.1");
    let good = std::fs::read(all.path("with").join("libfabric.so.1")).unwrap();
    let compile = |source: &str| {
        let path = all.path("default.c");
        std::fs::write(&path, source).unwrap();
        let status =
            std::process::Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&file).arg(&path).status().unwrap();
        assert!(status.success());
    };
    let at_start =
        |call: &str| format!("#include <stdlib.h>\n__attribute__((constructor)) static void start(void) {{ {call}; }}");
    // Output of a library is no fault.
    compile(&format!("#include <unistd.h>\n{}{SOURCE}", at_start("write(1, \"loaded\\n\", 7)").replace("}", "}\n")));
    assert_eq!(diagnose_with(&[], Some(&directory)).to_mend(), before.to_mend());
    for (kind, error) in
        [("abort", "SIGABRT"), ("exit", "exit status: 0"), ("empty", "fi_version"), ("text", "too short"), ("half", "")]
    {
        match kind {
            "abort" => compile(&at_start("abort()")),
            "exit" => compile(&at_start("exit(0)")),
            "empty" => compile("int nothing;"),
            "text" => std::fs::write(&file, "no library").unwrap(),
            _ => std::fs::write(&file, &good[..good.len() / 4]).unwrap(),
        }
        let after = diagnose_with(&[], Some(&directory));
        let path = file.display().to_string();
        // The machine may have a fault of its own.
        assert!(after.to_mend().contains("libfabric"), "{kind}: {after:#?}");
        let libfabric = after.check("libfabric");
        let detail = libfabric["detail"].as_str().unwrap();
        assert!(libfabric["state"] == "missing" && detail.contains(error), "{kind}: {libfabric:#}");
        assert!(detail.starts_with(&format!("{path} (that of the loader) cannot be loaded: ")), "{libfabric:#}");
        assert!(libfabric["remedy"]["advice"].as_str().unwrap().contains(&path), "{libfabric:#}");
        assert_eq!(libfabric["remedy"]["commands"][0], "unset LD_LIBRARY_PATH", "{kind}");
        let library = after.of_kind("libfabric").into_iter().find(|line| line["path"] == path.as_str()).unwrap();
        assert!(library["default"] == true && library["error"].is_string(), "{kind}: {library:#}");
        assert_eq!(after.code, before.code, "only programs of libfabric need it");
    }
}
