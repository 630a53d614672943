//! The files of packages, in the layout of a prefix: bin, sbin, lib, include, share.

use super::release::Release;
use super::sbom;
use super::source::Source;
use super::tools::Tools;
use crate::failure::{Failure, Outcome};
use crate::program::Program;
use crate::{pindown, provider};
use std::fs;
use std::path::{Path, PathBuf};

/// The folder with all files.
pub(super) struct Stage {
    pub(super) root: PathBuf,
}

/// The profile of the workspace's manifest that packages are built with.
const PROFILE: &str = "dist";

/// The files of the repository that packages contain, each with its place in the stage.
const COPIED: [(&str, &str); 10] = [
    ("crates/pindown/include/pindown.h", "include/pindown.h"),
    ("crates/percale-ofi/include/percale_fi_ext.h", "include/percale_fi_ext.h"),
    ("crates/pindown/examples/verbs.c", "share/doc/percale/examples/verbs.c"),
    ("packaging/mca-params.conf", "share/doc/percale/examples/mca-params.conf"),
    ("packaging/man/fi_percale.7", "share/man/man7/fi_percale.7"),
    ("packaging/man/pindown-helper.8", "share/man/man8/pindown-helper.8"),
    ("README.md", "share/doc/percale/README.md"),
    ("CHANGELOG.md", "share/doc/percale/CHANGELOG.md"),
    ("LICENSE-MIT", "share/doc/percale/LICENSE-MIT"),
    ("LICENSE-APACHE", "share/doc/percale/LICENSE-APACHE"),
];

/// Something to compile: the arguments of cargo, the file in the target directory, and its place in the stage.
struct Product {
    arguments: &'static [&'static str],
    file: &'static str,
    place: &'static str,
    mode: u32,
}

const STATIC_LIBRARY: &str = "lib/libpindown.a";
const HELPER_PROGRAM: &str = "sbin/pindown-helper";

const PROGRAM: u32 = 0o755;
const FILE: u32 = 0o644;

impl Product {
    fn all() -> Vec<Self> {
        const COMMAND: &[&str] = &["build", "-p", "percale-cli", "--bin", "percale"];
        const PROVIDER: &[&str] = &["build", "-p", "percale-ofi", "--lib"];
        const HELPER: &[&str] = &["build", "-p", "pindown", "--bin", "pindown-helper"];
        const STATIC: &[&str] = &["rustc", "-p", "pindown", "--lib", "--crate-type", "staticlib"];
        let product = |arguments, file, place, mode| Self { arguments, file, place, mode };
        vec![
            product(COMMAND, "percale", "bin/percale", PROGRAM),
            product(PROVIDER, "libpercale_fi.so", "lib/libfabric/libpercale-fi.so", FILE),
            product(HELPER, "pindown-helper", HELPER_PROGRAM, PROGRAM),
            product(STATIC, "libpindown.a", STATIC_LIBRARY, FILE),
        ]
    }

    fn build(&self, source: &Source, tools: Option<&Tools>, stage: &Stage) -> Outcome {
        println!("  building {}", self.place);
        let cargo = match tools {
            Some(tools) => tools.list_crates(source.cargo()),
            None => source.cargo(),
        };
        cargo.args(self.arguments).args(["--quiet", "--locked", "--profile", PROFILE]).passed()?;
        stage.put(&source.target.join(PROFILE).join(self.file), self.place, self.mode)
    }
}

impl Stage {
    /// Copies a file. Its permissions do not depend on the umask of the build.
    fn put(&self, from: &Path, place: &str, mode: u32) -> Outcome {
        use std::os::unix::fs::PermissionsExt;
        let to = self.root.join(place);
        if let Some(folder) = to.parent() {
            fs::create_dir_all(folder)?;
        }
        fs::copy(from, &to).map_err(Failure::during(format!("copying {} to {place}", from.display())))?;
        fs::set_permissions(&to, fs::Permissions::from_mode(mode))?;
        Ok(())
    }
}

/// The section with the list of crates, which `cargo audit bin` reads.
const CRATES: &str = ".dep-v0";

/// Links the shared library from the static one. The C compiler links it, so it gets the list of crates from the helper,
/// which is built from the same crate with the same features.
fn shared_library(source: &Source, has_list: bool, stage: &Stage) -> Outcome {
    println!("  building lib/{}", pindown::SONAME);
    let linked = source.target.join(pindown::SONAME);
    pindown::link_shared(&source.root, &stage.root.join(STATIC_LIBRARY), &linked)?;
    if has_list {
        let list = source.target.join("crates-of-pindown");
        let dump = Program::new("objcopy").arg("--dump-section").arg(format!("{CRATES}={}", list.display()));
        dump.arg(stage.root.join(HELPER_PROGRAM)).arg("/dev/null").output()?.success()?;
        let add = Program::new("objcopy").arg("--add-section").arg(format!("{CRATES}={}", list.display()));
        add.arg(&linked).output()?.success()?;
    }
    stage.put(&linked, &format!("lib/{}", pindown::SONAME), FILE)
}

/// Builds all files of packages.
pub(super) fn build(source: &Source, release: &Release, tools: Option<&Tools>) -> Outcome<Stage> {
    let stage = Stage { root: source.root.join("stage") };
    fs::create_dir_all(&stage.root)?;
    for product in Product::all() {
        product.build(source, tools, &stage)?;
    }
    shared_library(source, tools.is_some(), &stage)?;
    provider::exports_entry_only(&stage.root.join("lib/libfabric/libpercale-fi.so"))?;
    for (from, place) in COPIED {
        stage.put(&source.root.join(from), place, FILE)?;
    }
    let generate = Program::new(stage.root.join("bin/percale")).arg("generate").arg(stage.root.join("share"));
    generate.output()?.success()?;
    if let Some(tools) = tools {
        sbom::write(source, release, tools, &stage.root.join("share/doc/percale"))?;
    }
    Ok(stage)
}
