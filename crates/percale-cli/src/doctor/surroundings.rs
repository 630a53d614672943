//! The surroundings of the process, on which remedies depend: user, capabilities, container, kernel version, and
//! whether a system call filter is active.

use std::env;
use std::fs;
use std::path::Path;

use super::finding::Remedy;

/// CAP_IPC_LOCK, from <linux/capability.h>.
pub(super) const CAP_IPC_LOCK: u32 = 14;
/// CAP_SYS_ADMIN.
pub(super) const CAP_SYS_ADMIN: u32 = 21;
/// CAP_BPF.
pub(super) const CAP_BPF: u32 = 39;

/// The program that made the container of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Container {
    Docker,
    Podman,
    Kubernetes,
    Apptainer,
    Other,
}

impl Container {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Docker => "Docker",
            Self::Podman => "Podman",
            Self::Kubernetes => "Kubernetes",
            Self::Apptainer => "Apptainer",
            Self::Other => "a container",
        }
    }

    /// Finds the marks that these programs leave in a container, below `root` and in the environment.
    fn find(root: &Path, has_variable: impl Fn(&str) -> bool) -> Option<Self> {
        let has = |path: &str| root.join(path).exists();
        if has_variable("APPTAINER_CONTAINER") || has_variable("SINGULARITY_CONTAINER") {
            Some(Self::Apptainer)
        } else if has_variable("KUBERNETES_SERVICE_HOST") {
            Some(Self::Kubernetes)
        } else if has("run/.containerenv") {
            Some(Self::Podman)
        } else if has(".dockerenv") {
            Some(Self::Docker)
        } else if has_variable("container") || has("run/systemd/container") {
            Some(Self::Other)
        } else {
            None
        }
    }

    /// Returns the command that starts a container with an additional option, for the programs that have such options.
    pub(super) fn started_with(self, option: &str) -> Option<String> {
        match self {
            Self::Docker => Some(format!("docker run {option} IMAGE")),
            Self::Podman => Some(format!("podman run {option} IMAGE")),
            Self::Kubernetes | Self::Apptainer | Self::Other => None,
        }
    }
}

/// The surroundings of this process.
#[derive(Clone, Debug)]
pub(super) struct Surroundings {
    pub(super) container: Option<Container>,
    /// The effective user ID.
    pub(super) user: u32,
    /// Whether the user is that of a user namespace below the machine's own.
    pub(super) in_user_namespace: bool,
    /// The major and minor version of the kernel.
    pub(super) kernel: (u32, u32),
    /// Whether /proc is mounted. Without it, the fields that are read from it have the values of an ordinary user.
    pub(super) has_proc: bool,
    /// Whether a system call filter (seccomp) is active.
    pub(super) is_filtered: bool,
    /// The effective capabilities, as bits.
    pub(super) capabilities: u64,
}

impl Surroundings {
    pub(super) fn here() -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let status = read("/proc/self/status");
        let capabilities = field(&status, "CapEff").and_then(|bits| u64::from_str_radix(bits, 16).ok());
        Self {
            container: Container::find(Path::new("/"), |name| env::var_os(name).is_some()),
            user: rustix::process::geteuid().as_raw(),
            in_user_namespace: is_below(&read("/proc/self/uid_map")),
            kernel: version(&rustix::system::uname().release().to_string_lossy()),
            has_proc: !status.is_empty(),
            is_filtered: field(&status, "Seccomp").is_some_and(|mode| mode != "0"),
            capabilities: capabilities.unwrap_or(0),
        }
    }

    /// Returns whether the process has this capability over the machine, and not only in a user namespace.
    pub(super) const fn has_capability(&self, number: u32) -> bool {
        !self.in_user_namespace && self.capabilities & 1 << number != 0
    }

    /// Returns the command as this user has to type it, if only root may run it.
    pub(super) fn as_root(&self, command: &str) -> String {
        if self.user == 0 { command.to_owned() } else { format!("sudo {command}") }
    }

    /// Returns the command that installs a kernel of the distribution (Debian's names).
    pub(super) fn install_kernel(&self) -> String {
        let machine = rustix::system::uname().machine().to_string_lossy().into_owned();
        self.as_root(&format!("apt install linux-image-{}", if machine == "aarch64" { "arm64" } else { "amd64" }))
    }

    /// Returns the remedy for system calls that a sandbox rejects.
    pub(super) fn allow_calls(&self, calls: &str) -> Remedy {
        match self.container {
            Some(container @ (Container::Docker | Container::Podman)) => Remedy::new(
                format!("Start the container with a system call filter that allows {calls}, or without a filter:"),
                container.started_with("--security-opt seccomp=unconfined"),
            ),
            Some(Container::Kubernetes) => Remedy::new(
                format!(
                    "Set securityContext.seccompProfile of the pod to a profile that allows {calls}, or to the type \
                     Unconfined:"
                ),
                ["kubectl edit deployment NAME".to_owned()],
            ),
            _ => Remedy::new(
                format!(
                    "Allow {calls} in the filter (seccomp) or security module that restricts this process. Of a \
                     service, this is {}:",
                    if calls.contains("AF_") || calls.contains("sockets") {
                        "RestrictAddressFamilies= or SystemCallFilter="
                    } else {
                        "SystemCallFilter="
                    }
                ),
                [self.as_root("systemctl edit SERVICE")],
            ),
        }
    }
}

/// Returns a path as an argument for the shell.
pub(super) fn quoted(path: impl AsRef<Path>) -> String {
    let text = path.as_ref().display().to_string();
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "/._-+:@%=,".contains(letter);
    if !text.is_empty() && text.chars().all(is_plain) { text } else { format!("'{}'", text.replace('\'', r"'\''")) }
}

/// Returns the value of a field of /proc/PID/status.
fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

/// Returns whether a map of user IDs (/proc/PID/uid_map) is that of a user namespace below the first one.
fn is_below(map: &str) -> bool {
    let words: Vec<&str> = map.split_whitespace().collect();
    !words.is_empty() && words != ["0", "0", "4294967295"]
}

/// Returns the major and minor number of a kernel's release.
fn version(release: &str) -> (u32, u32) {
    let mut numbers = release.split(|letter: char| !letter.is_ascii_digit()).map(|part| part.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

#[cfg(test)]
impl Surroundings {
    /// Surroundings for tests: an ordinary user of a machine with a current kernel.
    pub(super) fn example() -> Self {
        Self {
            container: None,
            user: 1000,
            in_user_namespace: false,
            kernel: (6, 12),
            has_proc: true,
            is_filtered: false,
            capabilities: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_versions_are_read() {
        assert_eq!(version("6.1.0-18-amd64"), (6, 1));
        assert_eq!(version("6.18.44-fc-v657"), (6, 18));
        assert_eq!(version("7.0-rc1"), (7, 0));
        assert!(version("5.15.0") < (6, 1) && version("") == (0, 0));
    }

    #[test]
    fn user_namespaces_are_told_from_the_machines_own() {
        assert!(!is_below("         0          0 4294967295\n"));
        assert!(is_below("         0       1000          1\n") && is_below("0 100000 65536\n0 1000 1\n"));
        assert!(!is_below(""), "a map that cannot be read is taken for the first one");
    }

    #[test]
    fn fields_of_the_status_are_found_by_their_whole_name() {
        let status = "Name:\tpercale\nSeccomp_filters:\t1\nSeccomp:\t2\nCapEff:\t0000008000000000\n";
        assert_eq!(field(status, "Seccomp"), Some("2"));
        assert_eq!(field(status, "CapEff"), Some("0000008000000000"));
        assert_eq!(field(status, "CapBnd"), None);
    }

    #[test]
    fn containers_are_found_by_their_marks() {
        let root = env::temp_dir().join(format!("percale-doctor-marks-{}", std::process::id()));
        let none = |_: &str| false;
        fs::create_dir_all(root.join("run/systemd")).unwrap();
        assert_eq!(Container::find(&root, none), None);
        for (mark, container) in [
            ("run/systemd/container", Container::Other),
            (".dockerenv", Container::Docker),
            ("run/.containerenv", Container::Podman),
        ] {
            fs::write(root.join(mark), "").unwrap();
            assert_eq!(Container::find(&root, none), Some(container), "{mark}");
        }
        assert_eq!(Container::find(&root, |name| name == "KUBERNETES_SERVICE_HOST"), Some(Container::Kubernetes));
        assert_eq!(Container::find(&root, |name| name == "APPTAINER_CONTAINER"), Some(Container::Apptainer));
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn paths_are_arguments_of_the_shell() {
        assert_eq!(quoted("/usr/lib/x86_64-linux-gnu/a+b.so.1"), "/usr/lib/x86_64-linux-gnu/a+b.so.1");
        assert_eq!(
            (quoted("/a b").as_str(), quoted("/it's").as_str(), quoted("").as_str()),
            ("'/a b'", r"'/it'\''s'", "''")
        );
    }

    #[test]
    fn remedies_fit_the_user_and_the_container() {
        let user = Surroundings::example();
        assert_eq!(user.as_root("ip link"), "sudo ip link");
        assert_eq!(Surroundings { user: 0, ..user.clone() }.as_root("ip link"), "ip link");
        assert!(user.allow_calls("bpf").commands[0].contains("systemctl edit"));
        let docker = Surroundings { container: Some(Container::Docker), ..user.clone() };
        assert!(docker.allow_calls("bpf").commands[0].starts_with("docker run --security-opt seccomp="));
        let pod = Surroundings { container: Some(Container::Kubernetes), ..user.clone() };
        assert!(pod.allow_calls("bpf").advice.contains("seccompProfile"));
        let able = Surroundings { capabilities: 1 << CAP_BPF, ..user };
        assert!(able.has_capability(CAP_BPF) && !able.has_capability(CAP_SYS_ADMIN));
        assert!(!Surroundings { in_user_namespace: true, ..able }.has_capability(CAP_BPF));
    }
}
