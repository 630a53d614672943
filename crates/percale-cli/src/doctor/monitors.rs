//! Checks of the registration cache's monitors that need no privileges.

use std::io;

use pindown::monitor::Choice;
use pindown::monitor::userfaultfd::Unseen;
use pindown::{Access, Cache, Pinned, Range, Registrar};

use super::finding::{Finding, ProbeLine, Remedy, Report};
use super::surroundings::Surroundings;

/// The first kernel with mseal(2).
const SEALS_SINCE: (u32, u32) = (6, 10);

/// A device that pins nothing: only the monitors are opened.
struct NoDevice;

impl Registrar for NoDevice {
    type Pin = ();

    fn pin(&self, _range: Range, _access: Access) -> io::Result<Pinned<()>> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn unpin(&self, (): ()) {}
}

/// Opens a cache with each monitor.
pub(super) fn probe(surroundings: &Surroundings, report: Report<'_>) -> io::Result<()> {
    report(ProbeLine::Trying("userfaultfd".into()))?;
    let found = open(Choice::Userfaultfd(Unseen::NeverMade.into()));
    report(ProbeLine::Finding(userfaultfd(found, surroundings)))?;
    report(ProbeLine::Trying("mseal".into()))?;
    let found = open(Choice::Sealed);
    report(ProbeLine::Finding(sealed(found, surroundings)))
}

fn open(choice: Choice) -> Result<(), String> {
    Cache::builder(NoDevice).monitor(choice).open().map(drop).map_err(|error| error.to_string())
}

fn userfaultfd(found: Result<(), String>, surroundings: &Surroundings) -> Finding {
    match found {
        Ok(()) => Finding::works("userfaultfd", "reports changes of private memory, without privileges"),
        Err(error) if error.contains("Linux") => {
            let remedy = Remedy::new("Install a newer kernel (of Debian):", [surroundings.install_kernel()]);
            Finding::missing("userfaultfd", error, remedy)
        }
        Err(error) => {
            let remedy = surroundings.allow_failed_call(&error, "userfaultfd");
            Finding::missing("userfaultfd", error, remedy)
        }
    }
}

fn sealed(found: Result<(), String>, surroundings: &Surroundings) -> Finding {
    match found {
        Ok(()) => Finding::works("sealed-memory", "memory of the cache that cannot change, without privileges"),
        Err(error) if surroundings.kernel < SEALS_SINCE => {
            Finding::absent("sealed-memory", format!("{error} (since Linux 6.10)"))
        }
        Err(error) => {
            let remedy = surroundings.allow_failed_call(&error, "mseal");
            Finding::missing("sealed-memory", error, remedy)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::State;
    use super::*;

    #[test]
    fn an_old_kernel_does_not_lack_what_it_cannot_have() {
        let new = Surroundings::example();
        let old = Surroundings { kernel: (6, 1), ..new.clone() };
        let error = || Err("mseal failed: Function not implemented".to_owned());
        assert_eq!(sealed(error(), &old).state, State::Absent);
        assert_eq!(sealed(error(), &new).state, State::Missing);
        let old = userfaultfd(Err("the kernel's userfaultfd is older than Linux 5.18".into()), &new);
        assert!(old.remedy.unwrap().commands[0].contains("linux-image"));
        let denied = userfaultfd(Err("userfaultfd: Operation not permitted".into()), &new);
        assert!(denied.remedy.unwrap().advice.contains("userfaultfd"));
    }
}
