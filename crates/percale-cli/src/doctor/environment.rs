//! Checks of the kernel, the user and the container.

use super::checks::PROC;
use super::finding::{Finding, Remedy};
use super::surroundings::{Container, Surroundings};
use crate::units;

/// The oldest kernel that percale is tested with.
const OLDEST: (u32, u32) = (6, 1);

/// Returns the kernel, the user, the container and /proc.
pub(super) fn findings(surroundings: &Surroundings) -> Vec<Finding> {
    vec![kernel(surroundings), user(surroundings), container(surroundings), proc(surroundings)]
}

fn kernel(surroundings: &Surroundings) -> Finding {
    let name = rustix::system::uname();
    let (release, machine) = (name.release().to_string_lossy(), name.machine().to_string_lossy());
    let detail = format!("Linux {release}, {machine}, pages of {}", units::size(rustix::param::page_size()));
    if surroundings.kernel >= OLDEST {
        return Finding::works("kernel", detail);
    }
    let advice = "percale is tested with Linux 6.1 and newer. Install a newer kernel (of Debian):";
    Finding::limited("kernel", detail, Remedy::new(advice, [surroundings.install_kernel()]))
}

fn user(surroundings: &Surroundings) -> Finding {
    let detail = match (surroundings.user, surroundings.in_user_namespace) {
        (0, false) => "root".to_owned(),
        (0, true) => "root of a user namespace, without privileges outside it".to_owned(),
        (user, _) => format!("user {user}"),
    };
    Finding::works("user", detail)
}

fn container(surroundings: &Surroundings) -> Finding {
    let Some(container) = surroundings.container else { return Finding::works("container", "not in a container") };
    let how = match container {
        Container::Docker | Container::Podman => {
            " (--network container:NAME and --pid container:NAME, or host for both)"
        }
        Container::Kubernetes => " (the containers of one pod, with shareProcessNamespace)",
        Container::Apptainer | Container::Other => "",
    };
    let detail = format!(
        "{}: two containers use shared memory if they have the same network and process namespaces{how}, and otherwise \
         TCP",
        container.name()
    );
    Finding::works("container", detail)
}

/// Checks the file system with the properties of processes.
fn proc(surroundings: &Surroundings) -> Finding {
    if surroundings.has_proc {
        return Finding::works(PROC, "mounted");
    }
    let remedy = Remedy::new("Mount it:", [surroundings.as_root("mount -t proc proc /proc")]);
    Finding::missing(PROC, "not mounted: shared memory, caches and the other checks read /proc/self", remedy)
}

#[cfg(test)]
mod tests {
    use super::super::finding::State;
    use super::*;

    #[test]
    fn without_proc_the_remedy_mounts_it() {
        let found = proc(&Surroundings { has_proc: false, ..Surroundings::example() });
        assert_eq!((found.state, found.check.as_str()), (State::Missing, PROC));
        assert_eq!(found.remedy.unwrap().commands, ["sudo mount -t proc proc /proc"]);
    }

    #[test]
    fn an_old_kernel_is_a_restriction_with_a_remedy() {
        let old = Surroundings { kernel: (5, 15), ..Surroundings::example() };
        let found = kernel(&old);
        assert_eq!(found.state, State::Limited);
        assert!(found.remedy.unwrap().commands[0].contains("linux-image-"));
        assert_eq!(kernel(&Surroundings::example()).state, State::Works);
    }

    #[test]
    fn containers_state_when_shared_memory_is_used() {
        let docker = Surroundings { container: Some(Container::Docker), ..Surroundings::example() };
        assert!(container(&docker).detail.contains("--pid container:NAME"));
        assert!(findings(&docker).iter().all(|found| found.state == State::Works));
    }
}
