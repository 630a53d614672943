//! Debian packages: their available versions and their files. The files are unpacked together and not installed.

use crate::failure::{Failure, Outcome};
use crate::program::{Program, on_path};
use std::fs;
use std::path::Path;
use std::time::Duration;

/// The package that names the newest kernel.
const KERNEL: &str = "linux-image-amd64";

/// The other packages of the guest: a shell, the tools that create RDMA devices, the verbs libraries, and their
/// dependencies.
const GUEST: &[&str] = &[
    "busybox-static",
    "iproute2",
    "ibverbs-providers",
    "libibverbs1",
    "librdmacm1",
    "libnl-3-200",
    "libnl-route-3-200",
    "libmnl0",
    "libbpf1",
    "libelf1",
    "libbsd0",
    "libmd0",
    "libcap2",
    "zlib1g",
    "libgcc-s1",
    "libc6",
];

/// The packages of the provider's clients: libfabric's programs, Open MPI, Python. They are listed by name and not by
/// dependency, because the dependencies include many packages that are not needed at run time (perl, ssh, X11).
const CLIENTS: &[&str] = &[
    "libfabric-bin",
    "libfabric1",
    "libpsm-infinipath1",
    "libpsm2-2",
    "libuuid1",
    "libnuma1",
    "libatomic1",
    "openmpi-bin",
    "openmpi-common",
    "libopenmpi3",
    "libpmix2",
    "libmunge2",
    "libevent-core-2.1-7",
    "libevent-pthreads-2.1-7",
    "libhwloc15",
    "libudev1",
    "libstdc++6",
    "python3.11-minimal",
    "libpython3.11-minimal",
    "libpython3.11-stdlib",
    "libexpat1",
    "libffi8",
    "liblzma5",
    "libbz2-1.0",
    "libcrypt1",
    "libssl3",
];

/// The packages for finding memory errors: valgrind, the symbols of the dynamic linker, without which valgrind does not
/// start, and the C library of exactly the same build.
const MEMCHECK: &[&str] = &["valgrind", "libc6", "libc6-dbg"];

/// The parts that are built from packages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum BuiltPart {
    /// The kernel and the first file system.
    Guest,
    /// The additional files for clients of the provider.
    Clients,
    /// The additional files for programs under valgrind.
    Memcheck,
}

impl BuiltPart {
    /// Returns the names of the part's packages.
    fn names(self) -> Outcome<Vec<String>> {
        let own = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
        match self {
            Self::Guest => {}
            Self::Clients => return Ok(own(CLIENTS)),
            Self::Memcheck => return Ok(own(MEMCHECK)),
        }
        let depends = apt("apt-cache", &["depends", KERNEL])?;
        let kernel = depends.lines().find_map(kernel_in);
        let kernel =
            kernel.ok_or_else(|| Failure::new(format!("apt has no package {KERNEL} that depends on a kernel")))?;
        Ok([vec![kernel.to_owned()], own(GUEST)].concat())
    }
}

/// Returns the packages of a part as file names, which contain the versions.
///
/// # Errors
/// Fails if apt does not find the packages, even after an update of its lists.
pub(super) fn versions(part: BuiltPart) -> Outcome<Vec<String>> {
    if on_path("apt-get").is_none() || on_path("dpkg-deb").is_none() {
        return Err(Failure::new("apt-get and dpkg-deb are missing; the guest is built from Debian packages"));
    }
    let mut files = known_files(part).or_else(|_| {
        apt("apt-get", &["update"])?;
        known_files(part)
    })?;
    files.sort();
    Ok(files)
}

fn known_files(part: BuiltPart) -> Outcome<Vec<String>> {
    let names = part.names()?;
    let mut command = vec!["download", "--print-uris"];
    command.extend(names.iter().map(String::as_str));
    let files: Vec<String> = apt("apt-get", &command)?.lines().filter_map(file_in).map(str::to_owned).collect();
    if files.len() == names.len() {
        Ok(files)
    } else {
        Err(Failure::new(format!("apt found only these of the guest's packages: {}", files.join(", "))))
    }
}

/// Downloads packages, which are given by their file names, into a directory.
pub(super) fn download(files: &[String], directory: &Path) -> Outcome {
    let names: Vec<String> = files.iter().filter_map(|file| wish(file)).collect();
    let program = Program::new("apt-get").args(["download", "-q"]).args(&names).within(directory);
    program.limit(Duration::from_secs(300)).output()?.success()?;
    let missing = files.iter().find(|file| !directory.join(file).exists());
    missing.map_or(Ok(()), |file| Err(Failure::new(format!("apt-get did not download {file}"))))
}

/// Unpacks packages from one directory into another, and removes the packages.
pub(super) fn unpack(files: &[String], directory: &Path, into: &Path) -> Outcome {
    for file in files {
        let package = directory.join(file);
        Program::new("dpkg-deb")
            .arg("-x")
            .arg(&package)
            .arg(into)
            .limit(Duration::from_secs(300))
            .output()?
            .success()?;
        fs::remove_file(&package)?;
    }
    Ok(())
}

fn apt(program: &str, arguments: &[&str]) -> Outcome<String> {
    let output = Program::new(program).args(arguments).env("LC_ALL", "C").limit(Duration::from_secs(300)).output()?;
    Ok(output.success()?.to_owned())
}

/// Returns the kernel in "  Depends: linux-image-6.1.0-1-amd64".
fn kernel_in(line: &str) -> Option<&str> {
    line.trim().strip_prefix("Depends: ").filter(|name| name.starts_with("linux-image-"))
}

/// Returns the file name in "'http://.../x_1.deb' x_1.deb 123 SHA256:...".
fn file_in(line: &str) -> Option<&str> {
    line.starts_with('\'').then(|| line.split(' ').nth(1))?
}

/// Returns the argument that makes apt fetch exactly this file: "name=version" for "name_version_architecture.deb",
/// where "%3a" means a colon.
fn wish(file: &str) -> Option<String> {
    let mut parts = file.split('_');
    let (name, version) = (parts.next()?, parts.next()?);
    Some(format!("{name}={}", version.replace("%3a", ":")))
}

#[cfg(test)]
mod tests {
    use super::{file_in, kernel_in, wish};

    #[test]
    fn apts_lines_are_read() {
        assert_eq!(kernel_in("  Depends: linux-image-6.1.0-1-amd64"), Some("linux-image-6.1.0-1-amd64"));
        assert_eq!(kernel_in("linux-image-amd64"), None);
        let line = "'http://deb.debian.org/x/busybox-static_1%3a1.35.0-4_amd64.deb' busybox-static_1%3a1.35.0-4_amd64.deb 9 SHA256:0";
        assert_eq!(file_in(line), Some("busybox-static_1%3a1.35.0-4_amd64.deb"));
        assert_eq!(file_in("Reading lists"), None);
    }

    #[test]
    fn package_and_version_are_parsed_from_the_file_name() {
        assert_eq!(wish("busybox-static_1%3a1.35.0-4_amd64.deb").as_deref(), Some("busybox-static=1:1.35.0-4"));
        assert_eq!(wish("libc6_2.36-9_amd64.deb").as_deref(), Some("libc6=2.36-9"));
        assert_eq!(wish("nothing"), None);
    }
}
