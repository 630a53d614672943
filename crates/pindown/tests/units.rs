//! The files in `packaging/`: systemd accepts them, and the service has no privilege that it does not need.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The exposure that `systemd-analyze security` computes, times ten. A service without any restriction has 96.
const MOST_EXPOSED: &str = "--threshold=10";

/// A copy of the files, in which the service starts a program that exists.
struct Units(PathBuf);

impl Units {
    fn new(test: &str) -> Self {
        let place = std::env::temp_dir().join(format!("pindown-units-{test}-{}", std::process::id()));
        fs::create_dir(&place).expect("a new directory");
        for entry in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging")).expect("the files") {
            let path = entry.expect("a file").path();
            let text = fs::read_to_string(&path).expect("text");
            let text = text.replace("/usr/sbin/pindown-helper", "/bin/true");
            fs::write(place.join(path.file_name().expect("a name")), text).expect("written");
        }
        Self(place)
    }

    /// Runs a program of systemd on some of the files. Returns `None` if it is not installed.
    fn run(&self, program: &str, arguments: &[&str], files: &[&str]) -> Option<Output> {
        let files = files.iter().map(|file| self.0.join(file));
        match Command::new(program).args(arguments).args(files).output() {
            Ok(output) => Some(output),
            Err(error) => {
                eprintln!("skipped (systemd): {program}: {error}");
                None
            }
        }
    }
}

impl Drop for Units {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).ok();
    }
}

#[test]
fn systemd_accepts_the_units() {
    let units = Units::new("verify");
    let files = ["pindown-helper.service", "pindown-helper.socket"];
    let Some(output) = units.run("systemd-analyze", &["verify", "--man=no"], &files) else { return };
    // Unknown settings are only reported.
    let reported = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && reported.is_empty(), "{reported}");
}

#[test]
fn the_service_is_confined() {
    let units = Units::new("security");
    let arguments = ["security", "--offline=true", "--no-pager", MOST_EXPOSED];
    let Some(output) = units.run("systemd-analyze", &arguments, &["pindown-helper.service"]) else { return };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn the_user_and_the_directory_are_created() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped (root): files of root are created");
    }
    let units = Units::new("create");
    let root = units.0.join("root");
    for directory in ["etc", "run"] {
        fs::create_dir_all(root.join(directory)).expect("created");
    }
    let rooted = format!("--root={}", root.display());
    let Some(users) = units.run("systemd-sysusers", &[&rooted], &["pindown-helper.sysusers"]) else { return };
    assert!(users.status.success(), "{}", String::from_utf8_lossy(&users.stderr));
    let user = fs::read_to_string(root.join("etc/passwd")).expect("written");
    assert!(user.starts_with("pindown:") && user.trim_end().ends_with("nologin"), "{user}");
    let Some(made) = units.run("systemd-tmpfiles", &["--create", &rooted], &["pindown-helper.tmpfiles"]) else {
        return;
    };
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let socket = Path::new(pindown::monitor::bpf::SOCKET);
    let directory = socket.parent().and_then(|directory| directory.strip_prefix("/").ok()).expect("an absolute path");
    assert!(root.join(directory).is_dir());
    let unit = fs::read_to_string(units.0.join("pindown-helper.socket")).expect("the unit");
    assert!(unit.contains(&format!("ListenSequentialPacket={}\n", socket.display())), "{unit}");
}
