//! Checks of the registration cache's monitor in the kernel: what its programs need, pindown-helper, and whether this
//! user gets reports at all.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use pindown::monitor::bpf::{BpfUnavailable, Monitor, socket_path, supported};

use super::finding::{Finding, ProbeLine, Remedy, Report};
use super::surroundings::{Surroundings, quoted};

/// Reports on the kernel, the helper and the monitor. The helper is asked first, as caches do.
pub(super) fn probe(surroundings: &Surroundings, report: Report<'_>) -> io::Result<()> {
    let socket = socket_path();
    let kernel = supported();
    report(ProbeLine::Trying("connect".into()))?;
    let [kernel, helper, monitor] = match (kernel, Monitor::from_helper(&socket).map(drop)) {
        (kernel, Ok(())) => served(&kernel, &socket),
        (kernel, Err(helper)) if !is_unreachable(&helper) => rejected(&kernel, &helper, surroundings),
        (Err(kernel), Err(_)) => unsupported(&kernel, surroundings),
        (Ok(()), Err(helper)) => {
            report(ProbeLine::Trying("bpf".into()))?;
            match Monitor::in_process().map(drop) {
                Ok(()) => loaded(&helper),
                Err(error) => unprivileged(&socket, &helper, &error, surroundings),
            }
        }
    };
    for found in [kernel, helper, monitor] {
        report(ProbeLine::Finding(found))?;
    }
    Ok(())
}

const SUITABLE: &str = "the kernel has the type information and the tracepoints that the programs need";

/// The findings for a user whom the helper serves.
fn served(kernel: &Result<(), BpfUnavailable>, socket: &Path) -> [Finding; 3] {
    let kernel = match kernel {
        Ok(()) => Finding::works("bpf", SUITABLE),
        Err(error) => Finding::absent("bpf", format!("{error}; the helper's programs are used")),
    };
    let helper = Finding::works("helper", format!("serves this user at {}", socket.display()));
    [kernel, helper, Finding::works("kernel-monitor", "through pindown-helper")]
}

/// The findings for a process that may load the programs. `helper` is the reason why the helper is not used.
fn loaded(helper: &BpfUnavailable) -> [Finding; 3] {
    let helper = Finding::absent("helper", format!("{helper}; this user does not need it"));
    let monitor = Finding::works("kernel-monitor", "this user may load the programs");
    [Finding::works("bpf", SUITABLE), helper, monitor]
}

/// The findings for a kernel, or a build, that cannot have the programs.
fn unsupported(error: &BpfUnavailable, surroundings: &Surroundings) -> [Finding; 3] {
    let has_sys = Path::new("/sys/kernel").exists();
    let kernel = Finding::missing("bpf", error.to_string(), suitable_kernel(error, has_sys, surroundings));
    let helper = Finding::absent("helper", "does not run; it could not load the programs either");
    [kernel, helper, without("bpf")]
}

/// The findings for a process that neither connects to a helper nor loads the programs.
fn unprivileged(
    socket: &Path,
    helper: &BpfUnavailable,
    own: &BpfUnavailable,
    surroundings: &Surroundings,
) -> [Finding; 3] {
    let detail = format!("{helper}; this user cannot load the programs ({own})");
    let helper = Finding::missing("helper", detail, reach_helper(socket, helper, surroundings));
    [Finding::works("bpf", SUITABLE), helper, without("helper")]
}

/// The findings for a user whom the helper does not serve, although it runs.
fn rejected(kernel: &Result<(), BpfUnavailable>, error: &BpfUnavailable, surroundings: &Surroundings) -> [Finding; 3] {
    let kernel = match kernel {
        Ok(()) => Finding::works("bpf", SUITABLE),
        Err(error) => Finding::absent("bpf", error.to_string()),
    };
    let commands = ["systemctl status pindown-helper", "systemctl restart pindown-helper"];
    let remedy =
        Remedy::new("Look at the helper's messages, and start it again:", commands.map(|it| surroundings.as_root(it)));
    [kernel, Finding::missing("helper", error.to_string(), remedy), without("helper")]
}

/// Returns whether no helper was reached: none listens, or its socket is only for other users.
fn is_unreachable(error: &BpfUnavailable) -> bool {
    matches!(error, BpfUnavailable::NoHelper { .. } | BpfUnavailable::NotAllowed { .. })
}

/// The finding that this user has no monitor in the kernel, because of another check.
fn without(cause: &str) -> Finding {
    let detail = "caches use userfaultfd or sealed memory, and register all other memory for each use";
    Finding::dependent("kernel-monitor", detail, cause)
}

fn suitable_kernel(error: &BpfUnavailable, has_sys: bool, surroundings: &Surroundings) -> Remedy {
    match error {
        BpfUnavailable::NotBuilt(_) => Remedy::new(
            "Install percale with the kernel programs (cargo feature bpf):",
            ["cargo install percale-cli".to_owned()],
        ),
        BpfUnavailable::NoBtf(_) if !has_sys => {
            Remedy::new("Mount /sys:", [surroundings.as_root("mount -t sysfs sysfs /sys")])
        }
        BpfUnavailable::NoBtf(_) => Remedy::new(
            "Install a kernel that was built with CONFIG_DEBUG_INFO_BTF=y, as those of the large distributions are \
             (in a container, mount /sys):",
            [surroundings.install_kernel()],
        ),
        _ => Remedy::new("Install a kernel of the distribution (of Debian):", [surroundings.install_kernel()]),
    }
}

/// Returns what lets this user connect to a helper.
fn reach_helper(socket: &Path, error: &BpfUnavailable, surroundings: &Surroundings) -> Remedy {
    if matches!(error, BpfUnavailable::NotAllowed { .. }) {
        return open_directory(socket, surroundings).unwrap_or_else(|| join_group(socket, surroundings));
    }
    if socket.is_relative() {
        let advice = "PINDOWN_SOCKET is a relative path, which depends on the working directory. Remove the variable, or \
                      set it to the absolute path of the helper's socket:";
        return Remedy::new(advice, ["unset PINDOWN_SOCKET".to_owned()]);
    }
    // The root directory cannot be mounted into a container: the socket itself is.
    let directory = socket.parent().filter(|parent| parent.parent().is_some()).unwrap_or(socket).display();
    let volume = format!("--volume {}", quoted(format!("{directory}:{directory}")));
    if let Some(command) = surroundings.container.and_then(|container| container.started_with(&volume)) {
        let advice = "Start pindown-helper on the host, and mount the directory of its socket into the container:";
        return Remedy::new(advice, [command]);
    }
    let commands = ["apt install ./pindown-helper_*.deb", "systemctl enable --now pindown-helper.socket"];
    Remedy::new(
        "Install percale's package pindown-helper (its file; Debian does not have it) and start the service, which loads \
         the programs for all users:",
        commands.map(|command| surroundings.as_root(command)),
    )
}

/// Returns what opens a directory of the socket's path that only root may search, whatever the socket permits.
fn open_directory(socket: &Path, surroundings: &Surroundings) -> Option<Remedy> {
    let is_closed = fs::metadata(socket).is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied);
    let (directory, found) =
        socket.ancestors().skip(1).find_map(|directory| Some((directory, fs::metadata(directory).ok()?)))?;
    // Otherwise a member of the group may search it.
    let is_of_root = found.gid() == 0 || found.mode() & 0o010 == 0;
    (is_closed && is_of_root).then(|| {
        let command = format!("chmod 755 {}", quoted(directory));
        Remedy::new("Let all users search the directory of the socket:", [surroundings.as_root(&command)])
    })
}

/// Returns what permits this user to open the socket: the group of its file, or of its directory.
fn join_group(socket: &Path, surroundings: &Surroundings) -> Remedy {
    let owner = [Some(socket), socket.parent()].into_iter().flatten().find_map(|path| fs::metadata(path).ok());
    let user = name_of("/etc/passwd", surroundings.user);
    match owner.map(|owner| owner.gid()) {
        Some(group) if group != 0 => Remedy::new(
            "Add the user to the group that may use pindown-helper, and log in again:",
            [surroundings.as_root(&format!("usermod -a -G {} {user}", name_of("/etc/group", group)))],
        ),
        _ => Remedy::new(
            "pindown-helper serves root only. Permit a group (SocketGroup=GROUP and SocketMode=0660 in the section \
             [Socket]), and add the user to it:",
            [
                surroundings.as_root("systemctl edit pindown-helper.socket"),
                surroundings.as_root(&format!("usermod -a -G GROUP {user}")),
            ],
        ),
    }
}

/// Returns the name that /etc/passwd or /etc/group gives to an ID, or the ID.
fn name_of(file: &str, id: u32) -> String {
    let text = fs::read_to_string(file).unwrap_or_default();
    let of_line = |line: &str| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(id)).then(|| name.to_owned())
    };
    text.lines().find_map(of_line).unwrap_or_else(|| id.to_string())
}

#[cfg(test)]
mod tests {
    use super::super::finding::State;
    use super::super::surroundings::Container;
    use super::*;

    fn states(findings: &[Finding; 3]) -> [State; 3] {
        [findings[0].state, findings[1].state, findings[2].state]
    }

    fn unreached(errno: i32) -> BpfUnavailable {
        BpfUnavailable::NoHelper { path: "/run/pindown/helper.sock".into(), why: io::Error::from_raw_os_error(errno) }
    }

    #[test]
    fn one_check_has_the_cause_in_each_case() {
        use State::{Absent, Missing, Works};
        let user = Surroundings::example();
        let no_btf = || BpfUnavailable::NoBtf(io::ErrorKind::NotFound.into());
        let (socket, own) = (Path::new("/run/pindown/helper.sock"), BpfUnavailable::NoCapability("CAP_BPF"));
        for (findings, expected, root) in [
            (served(&Ok(()), socket), [Works, Works, Works], None),
            (served(&Err(no_btf()), socket), [Absent, Works, Works], None),
            (loaded(&unreached(libc::ENOENT)), [Works, Absent, Works], None),
            (unsupported(&no_btf(), &user), [Missing, Absent, Missing], Some("bpf")),
            (unprivileged(socket, &unreached(libc::ENOENT), &own, &user), [Works, Missing, Missing], Some("helper")),
            (rejected(&Ok(()), &BpfUnavailable::ForeignHelper(7), &user), [Works, Missing, Missing], Some("helper")),
        ] {
            assert_eq!(states(&findings), expected, "{findings:?}");
            let roots: Vec<&str> = findings.iter().filter(|it| it.is_root()).map(|it| it.check.as_str()).collect();
            assert_eq!(roots, Vec::from_iter(root), "{findings:?}");
            assert!(findings.iter().all(|it| !it.is_root() || !it.remedy.as_ref().unwrap().commands.is_empty()));
        }
    }

    #[test]
    fn the_remedy_depends_on_why_the_helper_is_not_reached() {
        let user = Surroundings::example();
        let socket = Path::new("/run/pindown/helper.sock");
        let absent = reach_helper(socket, &unreached(libc::ENOENT), &user);
        assert!(absent.commands[0].ends_with("apt install ./pindown-helper_*.deb"), "{absent:?}");
        let docker = Surroundings { container: Some(Container::Docker), ..user.clone() };
        let absent = reach_helper(socket, &unreached(libc::ECONNREFUSED), &docker);
        assert_eq!(absent.commands, ["docker run --volume /run/pindown:/run/pindown IMAGE"]);
        let blank = reach_helper(Path::new("/tmp/a b/socket"), &unreached(libc::ECONNREFUSED), &docker);
        assert_eq!(blank.commands, ["docker run --volume '/tmp/a b:/tmp/a b' IMAGE"]);
        let relative = reach_helper(Path::new("socket"), &unreached(libc::ENOENT), &docker);
        assert_eq!(relative.commands, ["unset PINDOWN_SOCKET"]);
        let no_btf = BpfUnavailable::NoBtf(io::ErrorKind::NotFound.into());
        assert_eq!(suitable_kernel(&no_btf, false, &user).commands, ["sudo mount -t sysfs sysfs /sys"]);
        let not_allowed = BpfUnavailable::NotAllowed { path: socket.display().to_string() };
        let denied = reach_helper(Path::new("/etc/hostname"), &not_allowed, &user);
        assert!(denied.commands[1].starts_with("sudo usermod -a -G GROUP"), "{denied:?}");
        assert!(is_unreachable(&not_allowed) && !is_unreachable(&BpfUnavailable::ForeignHelper(7)));
    }

    #[test]
    fn names_of_users_and_groups_are_found() {
        assert_eq!((name_of("/etc/passwd", 0), name_of("/etc/group", 0)), ("root".into(), "root".into()));
        assert_eq!(name_of("/etc/group", 4_000_000_001), "4000000001");
    }
}
