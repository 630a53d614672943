//! Environments with one fault: namespaces, limits, users, and a hidden file.

use std::path::{Path, PathBuf};

use percale_conformance::process::copy_program;

use crate::common::text;
use crate::diagnosis::{Diagnosis, NOWHERE, PROGRAM, diagnose, diagnose_after, doctor, is_root, works};

/// The ID of the user and of the group nobody.
const NOBODY: &str = "65534";

/// A limit of locked memory, in bytes, that is no restriction.
const ENOUGH: &str = "8388608";

/// A copy of the command that every user can execute, with a directory for other files. Both are removed at the end.
struct ProgramCopy(PathBuf);

impl ProgramCopy {
    fn new(name: &str) -> Self {
        let directory = std::env::temp_dir().join(format!("percale-doctor-{name}-{}", std::process::id()));
        std::fs::create_dir(&directory).unwrap();
        copy_program(PROGRAM.as_ref(), &directory.join("percale")).unwrap();
        Self(directory)
    }

    fn directory(&self) -> &Path {
        &self.0
    }

    /// Runs the copy as nobody, with this limit of locked memory. `helper` is the path of the helper's socket.
    fn diagnose_as_nobody(&self, locked: &str, helper: &Path) -> Diagnosis {
        let (limit, user, group) =
            (format!("--memlock={locked}:{locked}"), format!("--reuid={NOBODY}"), format!("--regid={NOBODY}"));
        let through = ["prlimit", &limit, "setpriv", &user, &group, "--clear-groups"];
        let mut command = doctor(&through, &self.0.join("percale"));
        Diagnosis::of(command.env("PINDOWN_SOCKET", helper))
    }
}

/// A user, and its group, that has no processes. The kernel counts the threads of a user in all processes.
const ALONE: &str = "4000002";

impl ProgramCopy {
    /// Runs the copy as a user without other processes, after a command that sets limits.
    fn diagnose_alone(&self, limits: &[&str]) -> Diagnosis {
        let (user, group) = (format!("--reuid={ALONE}"), format!("--regid={ALONE}"));
        let through = [limits, &["setpriv", &user, &group, "--clear-groups"]].concat();
        Diagnosis::of(&mut doctor(&through, &self.0.join("percale")))
    }
}

impl Drop for ProgramCopy {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

#[test]
fn no_user_namespaces() {
    let program = ["unshare", "--user", "--map-root-user"];
    let here = diagnose(&[]);
    if here.check("user-namespaces")["detail"].to_string().contains("because this is a chroot") {
        // The kernel permits none in a chroot, in which CI may run.
        assert!(here.to_mend().contains("user-namespaces"), "{here:#?}");
        assert!(here.check("user-namespaces")["remedy"].to_string().contains("systemd-nspawn"), "{here:#?}");
        return;
    }
    if !works("user namespaces", "no user namespaces", &["unshare", "--user", "--map-root-user", "true"]) {
        return;
    }
    let before = diagnose_after(&program, "");
    let after = diagnose_after(&program, "echo 0 > /proc/sys/user/max_user_namespaces;");
    after.names_only(&before, "user-namespaces", "No space left", "sysctl user.max_user_namespaces=");
    assert_eq!(after.code, before.code, "{}", after.errors);
}

#[test]
fn chroot_prevents_user_namespaces() {
    if !is_root("user namespaces in a chroot") {
        return;
    }
    let copy = ProgramCopy::new("chroot");
    let mounted = copy.directory().join("mounted");
    std::fs::create_dir(&mounted).unwrap();
    let mounted = mounted.to_str().unwrap();
    // The new root directory is not a mount, but contains mounts of all directories.
    let fill = format!(
        "mount -t tmpfs tmpfs {mounted}; mkdir {mounted}/root; for each in /*; do if [ -L $each ]; then \
         cp -P $each {mounted}/root; elif [ -d $each ]; then mkdir {mounted}/root$each; \
         mount --rbind $each {mounted}/root$each; fi; done;"
    );
    let found = diagnose_after(mounts(), &format!("{fill} exec chroot {mounted}/root \"$0\" \"$@\";"));
    assert!(found.to_mend().contains("user-namespaces"), "{found:#?}");
    let line = found.check("user-namespaces");
    assert!(line["detail"].as_str().unwrap().contains("because this is a chroot"), "{line:#}");
    assert!(line["remedy"].to_string().contains("systemd-nspawn"), "{line:#}");
}

#[test]
fn little_locked_memory() {
    if !is_root("little locked memory") {
        return;
    }
    let copy = ProgramCopy::new("memlock");
    let before = copy.diagnose_as_nobody(ENOUGH, Path::new(NOWHERE));
    let after = copy.diagnose_as_nobody("65536", Path::new(NOWHERE));
    after.names_only(&before, "locked-memory", "64 KiB (ulimit -l)", "memlock");
}

#[test]
fn little_space_in_dev_shm() {
    if !is_root("little space in /dev/shm") {
        return;
    }
    let mount = |size: &str| format!("mount -t tmpfs -o size={size} tmpfs /dev/shm;");
    let before = diagnose_after(mounts(), &mount("1g"));
    let after = diagnose_after(mounts(), &mount("64k"));
    after.names_only(&before, "dev-shm", "only 64 KiB", "shm");
    assert_eq!(after.code, before.code, "percale does not need it");
}

/// Returns the command that runs another one with mounts of its own. In a machine whose root is not a mount (chroot),
/// unshare(1) cannot make the mounts private. They need not be, if none of them is shared.
fn mounts() -> &'static [&'static str] {
    let all = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let is_shared = all.contains(" shared:");
    if is_shared { &["unshare", "--mount"] } else { &["unshare", "--mount", "--propagation", "unchanged"] }
}

#[test]
fn dev_shm_that_cannot_be_written() {
    if !is_root("a /dev/shm that cannot be written") {
        return;
    }
    let mount = |options: &str| format!("mount -t tmpfs -o size=1g,{options} tmpfs /dev/shm;");
    let before = diagnose_after(mounts(), &mount("rw"));
    let after = diagnose_after(mounts(), &mount("ro"));
    after.names_only(&before, "dev-shm", "Read-only file system", "shm");

    let copy = ProgramCopy::new("dev-shm");
    let as_user = |mode: &str| {
        let script =
            format!("{} exec setpriv --reuid={NOBODY} --regid={NOBODY} --clear-groups \"$0\" \"$@\"", mount(mode));
        let through = [mounts(), &["sh", "-e", "-c", &script]].concat();
        Diagnosis::of(&mut doctor(&through, &copy.directory().join("percale")))
    };
    let (before, after) = (as_user("mode=1777"), as_user("mode=0700"));
    after.names_only(&before, "dev-shm", "Permission denied", "chmod 1777 /dev/shm");
}

#[test]
fn no_proc() {
    if !is_root("no /proc") {
        return;
    }
    let program = [mounts(), &["--pid", "--fork", "--mount-proc"]].concat();
    let before = diagnose_after(&program, "");
    let after = diagnose_after(&program, "mount -t tmpfs tmpfs /proc;");
    after.names_only(&before, "proc", "not mounted", "mount -t proc proc /proc");
    // TCP works without it.
    assert_eq!(after.check("tcp")["state"], before.check("tcp")["state"], "{after:#?}");
    assert_eq!(after.check("seccomp")["state"], "unknown");
}

#[test]
fn few_descriptors() {
    let before = diagnose(&[]);
    let after = diagnose(&["prlimit", "--nofile=100:100"]);
    after.names_only(&before, "open-files", "100 (ulimit -n)", "nofile");
    assert_eq!(after.code, before.code, "{after:#?}");
    // Two endpoints need more descriptors.
    let after = diagnose(&["prlimit", "--nofile=10:10"]);
    after.names_only(&before, "open-files", "10 (ulimit -n)", "nofile");
    assert_eq!(after.of_kind("summary")[0]["essential_missing"], serde_json::json!(["shared-memory", "tcp"]));
    // One process after the other makes the checks.
    for check in after.of_kind("check") {
        assert!(!check["detail"].as_str().unwrap().contains("not checked"), "{check:#}");
    }
    // The kernel lets this process open one more file, which is not enough to start another one.
    let after = diagnose(&["prlimit", "--nofile=4:4"]);
    after.names_only(&before, "open-files", "4 (ulimit -n)", "nofile");
    assert_eq!(after.code, Some(3), "{after:#?}");
    assert!(after.errors.contains("not checked: shared-memory, tcp"), "{}", after.errors);
    assert_eq!(after.of_kind("summary")[0]["essential_unknown"], serde_json::json!(["shared-memory", "tcp"]));
    let tcp = after.check("tcp");
    assert!(tcp["state"] == "unknown" && tcp["cause"] == "open-files", "{tcp:#}");
}

#[test]
fn few_threads() {
    if !is_root("few threads") {
        return;
    }
    let copy = ProgramCopy::new("threads");
    let before = copy.diagnose_alone(&[]);
    let after = copy.diagnose_alone(&["prlimit", "--nproc=3:3"]);
    after.names_only(&before, "threads", "3 (ulimit -u)", "nproc");
    // A domain has a thread of its own.
    assert_eq!(after.of_kind("summary")[0]["essential_missing"], serde_json::json!(["shared-memory", "tcp"]));
    let after = copy.diagnose_alone(&["prlimit", "--nproc=30:30"]);
    after.names_only(&before, "threads", "30 (ulimit -u)", "nproc");
    assert_eq!(after.code, before.code, "{after:#?}");
}

#[test]
fn small_stack() {
    let before = diagnose(&[]);
    let after = diagnose(&["prlimit", "--stack=65536:65536"]);
    after.names_only(&before, "stack-size", "64 KiB (ulimit -s)", "stack");
    assert_eq!(after.code, before.code, "{}", after.errors);
    assert!(!after.errors.contains("overflow"), "{}", after.errors);
}

const NETWORK: [&str; 2] = ["unshare", "--net"];

/// Returns whether a network namespace can be made.
fn has_networks(what: &str) -> bool {
    is_root(what) && works("network namespaces", what, &["unshare", "--net", "ip", "link", "show", "lo"])
}

#[test]
fn no_ipv4_loopback() {
    if !has_networks("no IPv4 loopback") {
        return;
    }
    let before = diagnose_after(&NETWORK, "ip link set lo up;");
    let after = diagnose_after(&NETWORK, "ip link set lo up; ip address delete 127.0.0.1/8 dev lo;");
    after.names_only(&before, "loopback", "127.0.0.1 does not work", "ip address replace 127.0.0.1/8 dev lo");
}

#[test]
fn no_loopback_is_an_essential_fault() {
    if !has_networks("no loopback") {
        return;
    }
    let before = diagnose_after(&NETWORK, "ip link set lo up;");
    assert_eq!(before.code, Some(0), "{before:#?}");
    let after = diagnose_after(&NETWORK, "");
    after.names_only(&before, "loopback", "127.0.0.1 does not work", "ip link set lo up");
    assert_eq!(after.check("tcp")["cause"], "loopback");
    assert_eq!(after.code, Some(1));
    assert!(after.errors.contains("something essential is missing: shared-memory, tcp"), "{}", after.errors);
}

#[test]
fn no_clang() {
    let before = diagnose(&[]);
    let after = diagnose(&["/usr/bin/env", &format!("PATH={NOWHERE}")]);
    assert_eq!(after.to_mend(), before.to_mend(), "clang is not needed after the build");
    let bpf = after.check("bpf")["detail"].as_str().unwrap();
    assert!(!bpf.contains("built without"), "every build has the kernel programs: {bpf}");
}

#[test]
fn kernel_without_type_information() {
    const TYPES: &str = "/sys/kernel/btf";
    if !is_root("a kernel without type information") {
        return;
    }
    if !works("bpf", "a kernel without type information", &["test", "-e", &format!("{TYPES}/vmlinux")]) {
        return;
    }
    let before = diagnose_after(mounts(), "");
    let after = diagnose_after(mounts(), &format!("mount -t tmpfs tmpfs {TYPES};"));
    after.names_only(&before, "bpf", "CONFIG_DEBUG_INFO_BTF", "linux-image-");
    assert_eq!(after.check("kernel-monitor")["cause"], "bpf");
    assert_eq!(after.check("helper")["state"], "absent", "a helper could not load the programs either");
}

#[test]
fn no_helper() {
    if !is_root("no helper") {
        return;
    }
    let copy = ProgramCopy::new("helper");
    let before = diagnose(&[]);
    let after = copy.diagnose_as_nobody(ENOUGH, &copy.directory().join("none"));
    after.names_only(&before, "helper", "No such file", "pindown-helper");
    assert_eq!(after.check("kernel-monitor")["cause"], "helper");
    assert_eq!(after.code, before.code, "caches work without it");
}

#[test]
fn helper_that_does_not_serve_this_user() {
    use std::os::unix::fs::{PermissionsExt, chown};
    use std::os::unix::net::UnixListener;
    if !is_root("a helper for other users") {
        return;
    }
    let copy = ProgramCopy::new("others");
    let closed = copy.directory().join("closed");
    std::fs::create_dir(&closed).unwrap();
    let socket = closed.join("socket");
    let _listener = UnixListener::bind(&socket).unwrap();
    // A group of which nobody is not a member.
    chown(&closed, None, Some(4_000_001)).unwrap();
    std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o750)).unwrap();
    let before = diagnose(&[]);
    let after = copy.diagnose_as_nobody(ENOUGH, &socket);
    after.names_only(&before, "helper", &socket.display().to_string(), "usermod -a -G 4000001 ");
}

/// The mode of the socket does not matter if only root may search its directory.
#[test]
fn helper_in_a_closed_directory() {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixListener;
    if !is_root("a helper in a closed directory") {
        return;
    }
    let copy = ProgramCopy::new("closed");
    let closed = copy.directory().join("closed one");
    std::fs::create_dir(&closed).unwrap();
    let socket = closed.join("socket");
    let _listener = UnixListener::bind(&socket).unwrap();
    std::fs::set_permissions(&socket, std::fs::Permissions::from_mode(0o666)).unwrap();
    std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o700)).unwrap();
    let before = diagnose(&[]);
    let after = copy.diagnose_as_nobody(ENOUGH, &socket);
    after.names_only(&before, "helper", &socket.display().to_string(), &format!("chmod 755 '{}'", closed.display()));
}

#[test]
fn the_table_names_the_fault_and_its_command() {
    if !is_root("the table of a machine with a fault") {
        return;
    }
    let script = "mount -t tmpfs -o size=64k tmpfs /dev/shm; exec \"$0\" \"$@\"";
    let output = std::process::Command::new("unshare")
        .args(&mounts()[1..])
        .args(["sh", "-e", "-c", script, PROGRAM, "doctor", "--libfabric", NOWHERE])
        .output()
        .unwrap();
    let table = text(&output.stdout);
    assert!(table.contains("only 64 KiB in /dev/shm") && table.contains("To mend:"), "{table}");
    assert!(table.contains(". dev-shm: "), "{table}");
}
