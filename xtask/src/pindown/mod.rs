//! libpindown: builds and installs the C library and pindown-helper, and checks the library's interface.

mod abi;
mod header;
mod link;

pub(crate) use abi::{Arguments as AbiArguments, run as run_abi};
pub(crate) use link::{SONAME, link_shared};

use crate::failure::{Failure, Outcome};
use crate::packages::{self, Needed};
use crate::place::Repository;
use crate::program::Program;
use crate::steps::Findings;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The destination: DIR/lib, DIR/include and DIR/lib/pkgconfig
    #[arg(long, value_name = "DIR")]
    prefix: PathBuf,
    /// The directory of the libraries, below the prefix
    #[arg(long, value_name = "DIR", default_value = "lib")]
    libdir: PathBuf,
    /// Writes below this directory, for packages. The files refer to the prefix without it
    #[arg(long, value_name = "DIR")]
    destdir: Option<PathBuf>,
    /// Also installs pindown-helper with its systemd units
    #[arg(long)]
    helper: bool,
}

/// The systemd files of pindown-helper: the name of each in crates/pindown/packaging, and its destination below the prefix.
const UNITS: [(&str, &str); 4] = [
    ("pindown-helper.socket", "lib/systemd/system/pindown-helper.socket"),
    ("pindown-helper.service", "lib/systemd/system/pindown-helper.service"),
    ("pindown-helper.sysusers", "lib/sysusers.d/pindown-helper.conf"),
    ("pindown-helper.tmpfiles", "lib/tmpfiles.d/pindown-helper.conf"),
];

/// The directory of the program in the unit.
const SBIN: &str = "/usr/sbin/";

const PKG_CONFIG: Needed = Needed { program: "pkg-config", package: "pkgconf" };

pub(crate) fn run(place: &Repository, arguments: &Arguments) -> Outcome<bool> {
    let prefix = std::path::absolute(&arguments.prefix)?;
    suitable("--prefix", &prefix)?;
    suitable("--libdir", &arguments.libdir)?;
    if arguments.libdir.is_absolute() {
        return Err(Failure::new("--libdir: the directory must be relative to the prefix"));
    }
    install(place, arguments, &prefix)?;
    if arguments.destdir.is_none() {
        println!("export PKG_CONFIG_PATH={}", prefix.join(&arguments.libdir).join("pkgconfig").display());
        if arguments.helper {
            println!(
                "# as root: systemd-sysusers && systemd-tmpfiles --create && systemctl daemon-reload && systemctl \
                 enable --now pindown-helper.socket"
            );
        }
    }
    Ok(true)
}

/// Checks that pkg-config, systemd and linkers read a directory's path as it is, without quotes.
fn suitable(option: &str, directory: &Path) -> Outcome {
    let allowed = |byte: &u8| byte.is_ascii_alphanumeric() || b"/._+~@:,-".contains(byte);
    if directory.as_os_str().as_bytes().iter().all(allowed) {
        return Ok(());
    }
    let name = directory.display();
    Err(Failure::new(format!(
        "{option} {name}: the path may contain only letters, digits and the characters / . _ + ~ @ : , -"
    )))
}

/// Builds and installs the files, below `destdir` if it is set.
fn install(place: &Repository, arguments: &Arguments, prefix: &Path) -> Outcome {
    let package = place.root.join("crates/pindown");
    let library = link::build(place)?;
    let root = match &arguments.destdir {
        Some(destdir) => destdir.join(prefix.strip_prefix("/").unwrap_or(prefix)),
        None => prefix.to_owned(),
    };
    let libraries = root.join(&arguments.libdir);
    put(&libraries.join(SONAME), &fs::read(&library.shared)?, 0o644)?;
    put(&libraries.join("libpindown.a"), &fs::read(&library.archive)?, 0o644)?;
    let link = libraries.join("libpindown.so");
    match fs::remove_file(&link) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
        _ => std::os::unix::fs::symlink(SONAME, &link)?,
    }
    put(&root.join("include/pindown.h"), &fs::read(package.join("include/pindown.h"))?, 0o644)?;
    let described = fs::read_to_string(package.join("pindown.pc.in"))?
        .replace("@prefix@", &prefix.display().to_string())
        .replace("@version@", env!("CARGO_PKG_VERSION"))
        .replace("libdir=${prefix}/lib\n", &format!("libdir=${{prefix}}/{}\n", arguments.libdir.display()));
    put(&libraries.join("pkgconfig/pindown.pc"), described.as_bytes(), 0o644)?;
    if arguments.helper {
        place.cargo().args(["build", "--release", "--quiet", "-p", "pindown", "--bin", "pindown-helper"]).passed()?;
        let program = fs::read(place.target.join("release/pindown-helper"))?;
        put(&root.join("sbin/pindown-helper"), &program, 0o755)?;
        let sbin = format!("{}/", prefix.join("sbin").display());
        for (name, destination) in UNITS {
            let text = fs::read_to_string(package.join("packaging").join(name))?.replace(SBIN, &sbin);
            put(&root.join(destination), text.as_bytes(), 0o644)?;
        }
        let manual = fs::read(place.root.join("packaging/man/pindown-helper.8"))?;
        put(&root.join("share/man/man8/pindown-helper.8"), &manual, 0o644)?;
    }
    Ok(())
}

/// Writes a file. Running programs keep the old file mapped, because the new library is a new file.
fn put(path: &Path, bytes: &[u8], mode: u32) -> Outcome<()> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).map_err(Failure::during(format!("creating {}", parent.display())))?;
    }
    let fresh = path.with_extension("new");
    fs::write(&fresh, bytes).map_err(Failure::during(format!("writing {}", fresh.display())))?;
    fs::set_permissions(&fresh, fs::Permissions::from_mode(mode))?;
    fs::rename(&fresh, path)?;
    Ok(())
}

/// Checks the interface of the library, and that the C example can be built with pkg-config and runs: with the shared
/// library found through LD_LIBRARY_PATH and through an rpath, and with the static library.
pub(crate) fn check(place: &Repository) -> Outcome<Findings> {
    if let Err(why) = packages::ensure(&[PKG_CONFIG]) {
        return Ok(Findings::skipped(why.to_string()));
    }
    let prefix = place.target.join("pindown/prefix");
    let arguments = Arguments { prefix: prefix.clone(), libdir: "lib".into(), destdir: None, helper: false };
    install(place, &arguments, &prefix)?;
    let header = header::read(place)?;
    let library = link::Library { shared: prefix.join("lib").join(SONAME), archive: prefix.join("lib/libpindown.a") };
    let compared = abi::compare(place, &header, &library)?;
    let (mut passed, mut failed) = (compared.passed, compared.failed);
    for linking in [Linking::Path, Linking::Rpath, Linking::Static] {
        match linking.try_example(place, &prefix) {
            Ok(()) => passed += 1,
            Err(why) => {
                println!("  the C example, {}: {why}", linking.about());
                failed += 1;
            }
        }
    }
    Ok(Findings::new(passed, failed, compared.note))
}

/// A way to link a C program with libpindown.
#[derive(Clone, Copy)]
enum Linking {
    Path,
    Rpath,
    Static,
}

impl Linking {
    fn about(self) -> &'static str {
        match self {
            Self::Path => "found through LD_LIBRARY_PATH",
            Self::Rpath => "found through an rpath",
            Self::Static => "linked statically",
        }
    }

    /// Compiles the example as its first comment describes, and runs it.
    fn try_example(self, place: &Repository, prefix: &Path) -> Outcome {
        let libraries = prefix.join("lib");
        let config = |arguments: &[&str]| -> Outcome<Vec<String>> {
            let program = Program::new("pkg-config").args(arguments).arg("pindown");
            let output = program.env("PKG_CONFIG_PATH", libraries.join("pkgconfig")).output()?;
            Ok(output.success()?.split_whitespace().map(str::to_owned).collect())
        };
        let program = place.target.join("pindown/verbs");
        let mut compiler = Program::new("cc").args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&program);
        compiler = compiler.arg(place.root.join("crates/pindown/examples/verbs.c")).args(config(&["--cflags"])?);
        compiler = match self {
            Self::Path => compiler.args(config(&["--libs"])?),
            Self::Rpath => compiler.args(config(&["--libs"])?).arg(format!("-Wl,-rpath,{}", libraries.display())),
            Self::Static => {
                let libs = config(&["--static", "--libs"])?;
                // Only libpindown is linked statically, not the C library.
                let libs =
                    libs.into_iter().map(|lib| if lib == "-lpindown" { "-l:libpindown.a".to_owned() } else { lib });
                compiler.args(libs)
            }
        };
        compiler.output()?.success()?;
        // Cargo's value may contain an older build of the library.
        let run = Program::new(&program).without("LD_LIBRARY_PATH");
        let run = if matches!(self, Self::Path) { run.env("LD_LIBRARY_PATH", &libraries) } else { run };
        let output = run.output()?;
        let printed = output.success()?;
        if printed.contains("ibv_reg_mr was called 1 times") {
            return Ok(());
        }
        Err(Failure::new(format!("it printed: {printed}")))
    }
}

#[cfg(test)]
mod tests {
    use super::suitable;
    use std::path::Path;

    #[test]
    fn paths_that_units_and_pkg_config_misread_are_rejected() {
        for path in ["/usr/local", "/opt/percale-0.2.0", "lib/x86_64-linux-gnu", "/home/a@b/c++~1"] {
            suitable("--prefix", Path::new(path)).unwrap();
        }
        for path in ["/opt/a b", "/opt/R&D", "/opt/50%h", "/opt/x|y", "/opt/a\\n", "/opt/${prefix}", "/opt/\u{e9}"] {
            let error = suitable("--prefix", Path::new(path)).unwrap_err().to_string();
            assert!(error.contains("may contain only"), "{error}");
        }
    }
}
