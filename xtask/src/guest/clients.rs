//! Unmodified clients of the provider over verbs: their files and the evaluation of their results.

use super::brought::Job;
use super::row::ProgramRow;
use super::{built, layer};
use crate::failure::Outcome;
use crate::interop;
use crate::place::Repository;

/// A client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Client {
    /// fi_pingpong over endpoints of this type, with all sizes and a check of every byte.
    Pingpong(&'static str),
    /// About two hundred of mpi4py's tests, with two ranks of Debian's Open MPI.
    Mpi4py,
}

/// The minimum number of packets that a client must send over its devices. All clients send more. A client that
/// connects only over TCP sends none.
const PACKETS: u64 = 10_000;
/// The minimum number of sizes of fi_pingpong. The program measures more, from one byte to several megabytes.
const SIZES: usize = 20;
/// The minimum number of tests. The selected part of mpi4py has more.
const TESTS: usize = 200;

impl Client {
    /// Creates the client's job. `common` is the part that all programs share.
    pub(super) fn job(self, place: &Repository, anew: bool, common: Job) -> Outcome<Job> {
        let provider = built::provider(place)?;
        let set = [
            "FI_PROVIDER=percale".to_owned(),
            format!("FI_PROVIDER_PATH={}", provider.parent().unwrap_or(&provider).display()),
            "FI_PERCALE_TRANSPORT=verbs".to_owned(),
            "FI_LOG_LEVEL=warn".to_owned(),
        ];
        let mut job = Job {
            program: place.root.join("xtask/src/guest/client.sh"),
            layer: Some(layer::clients(place, anew)?),
            files: vec![provider],
            // Variables set by the user follow, and take precedence.
            environment: set.into_iter().chain(common.environment).collect(),
            ..common
        };
        match self {
            Self::Pingpong(kind) => job.arguments = ["pingpong", kind].map(str::to_owned).to_vec(),
            Self::Mpi4py => {
                let mpi4py = interop::mpi4py(place)?;
                let launched = ["mpiexec.openmpi", "--oversubscribe", "-n", "2"].map(str::to_owned);
                let chosen = interop::THROUGH_THE_PROVIDER.iter().flat_map(|(name, value)| ["--mca", name, value]);
                // Open MPI must not search for components that the guest lacks, or for a launcher for other hosts.
                let here = ["--mca", "mca_base_component_show_load_errors", "0", "--mca", "plm", "isolated"];
                let chosen = chosen.chain(here);
                let tests = ["python3.11", "test/main.py"].into_iter().chain(interop::part_of_mpi4py());
                job.arguments = launched.into_iter().chain(chosen.chain(tests).map(str::to_owned)).collect();
                let root = "OMPI_ALLOW_RUN_AS_ROOT";
                job.environment.extend([format!("{root}=1"), format!("{root}_CONFIRM=1")]);
                let packages = mpi4py.package.parent().unwrap_or(&mpi4py.package).display();
                job.environment.push(format!("PYTHONPATH={packages}"));
                job.files.extend([mpi4py.package, mpi4py.sources.join("test")]);
                job.directory = Some(mpi4py.sources);
            }
        }
        Ok(job)
    }

    /// Evaluates the output. The client must have done all of its work over an RDMA device.
    pub(super) fn judge(self, printed: &[String]) -> ProgramRow {
        let packets = printed.iter().find_map(|line| packets_in(line)).unwrap_or(0);
        let (done, what) = match self {
            Self::Pingpong(_) => {
                let sizes = printed.iter().filter(|line| line.trim_start().starts_with(|c: char| c.is_ascii_digit()));
                let sizes = sizes.count();
                (Some(sizes).filter(|&sizes| sizes >= SIZES), format!("{sizes} sizes"))
            }
            Self::Mpi4py => match interop::verdict_of_mpi4py(&printed.join("\n")) {
                Ok((count, skipped)) => {
                    (Some(count - skipped).filter(|&ran| ran >= TESTS), format!("tests per rank; {skipped} skipped"))
                }
                Err(why) => (None, why),
            },
        };
        let failed = usize::from(done.is_none()) + usize::from(packets < PACKETS);
        ProgramRow::new(done.unwrap_or(0), failed, 0, format!("{what}; {packets} packets sent by RDMA devices"))
    }
}

/// Returns the number that the script prints last.
fn packets_in(line: &str) -> Option<u64> {
    line.strip_prefix("RDMA devices sent ")?.strip_suffix(" packets")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::{Client, SIZES};
    use crate::guest::row::Verdict;

    fn judged(client: Client, printed: &str) -> Verdict {
        client.judge(&printed.lines().map(str::to_owned).collect::<Vec<_>>()).result
    }

    #[test]
    fn a_client_must_have_used_a_device() {
        let sizes = "64      20      =20     2.5k        0.01s      0.17     377.99       0.00\n".repeat(SIZES);
        let over = |packets: u64| format!("bytes #sent\n{sizes}RDMA devices sent {packets} packets");
        assert_eq!(judged(Client::Pingpong("rdm"), &over(20_000)), Verdict::Passed);
        assert_eq!(judged(Client::Pingpong("rdm"), &over(0)), Verdict::Failed, "the data was sent over TCP");
        assert_eq!(
            judged(Client::Pingpong("rdm"), &sizes),
            Verdict::Failed,
            "the output does not contain the number of packets"
        );
    }

    #[test]
    fn a_client_must_have_done_its_work() {
        let packets = "RDMA devices sent 20000 packets";
        assert_eq!(judged(Client::Pingpong("msg"), packets), Verdict::Failed);
        let ran = |count: usize| format!("Ran {count} tests in 9.1s\n\nOK (skipped=84)\n{packets}");
        assert_eq!(judged(Client::Mpi4py, &ran(299)), Verdict::Passed);
        assert_eq!(judged(Client::Mpi4py, &ran(90)), Verdict::Failed, "most were skipped");
        let bad = "Ran 299 tests in 9.1s\n\nFAILED (errors=1)\n";
        assert_eq!(judged(Client::Mpi4py, &format!("{bad}{packets}")), Verdict::Failed);
    }
}
