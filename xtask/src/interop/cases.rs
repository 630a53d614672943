//! The list of clients, and how each client is run.

use super::case::{ClientCase, Transport, Trouble};
use super::mpi::{Library, Suite};
use super::site::Site;
use super::{hosts, libfabric, mpi};
use serde::Serialize;
use std::fmt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// The result of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum ClientEnding {
    Passed,
    Failed,
    Skipped,
}

impl ClientEnding {
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Failed => "FAILED",
            Self::Skipped => "skipped",
        }
    }
}

impl fmt::Display for ClientEnding {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.word())
    }
}

/// A client that ran.
#[derive(Debug, Serialize)]
pub(super) struct ClientRow {
    pub(super) client: String,
    /// The library that the client uses.
    pub(super) library: String,
    pub(super) transport: Transport,
    pub(super) ending: ClientEnding,
    pub(super) seconds: f64,
    /// A description of the work of the client, or the reason why it failed or was skipped.
    pub(super) note: String,
}

/// A client of the list, with the function that runs it.
pub(super) struct ListedCase {
    pub(super) case: ClientCase,
    /// Set if the client is in the short run for CI.
    pub(super) is_quick: bool,
    job: Job,
}

enum Job {
    /// fi_info, which must list percale and no provider layered on it.
    Information,
    /// fi_pingpong with this type of endpoints.
    Pingpong(&'static str),
    /// The C program that calls every table entry, with the libfabric in this directory or the system's.
    Every(Option<PathBuf>),
    /// An MPI program of this project with this number of ranks.
    Program { name: &'static str, library: Library, ranks: usize },
    /// mpi4py's own tests.
    Mpi4py { suite: Suite, library: Library, ranks: usize },
    /// Two processes, one of which is killed.
    Bereft,
    /// Three ranks, one of which is killed. `what` selects how the others wait for it.
    Killed { library: Library, what: &'static str },
    /// Two network namespaces that take the place of two hosts.
    TwoHosts,
    /// Half of the round-trip times, compared with those without percale.
    Latency(Library),
}

/// The time limit of libfabric's programs, all of which take less.
const SHORT: Duration = Duration::from_secs(120);
/// The time limit of this project's C program, including cargo.
const EVERY: Duration = Duration::from_secs(20 * 60);
/// The time limit of mpi4py's tests. They take less, even with three ranks that never sleep on two processors.
const LONG: Duration = Duration::from_secs(40 * 60);

impl ListedCase {
    fn limit(&self) -> Duration {
        match self.job {
            Job::Information | Job::Pingpong(_) | Job::Program { .. } => SHORT,
            Job::Bereft | Job::Killed { .. } | Job::TwoHosts => SHORT,
            Job::Every(_) => EVERY,
            Job::Mpi4py { .. } | Job::Latency(_) => LONG,
        }
    }

    pub(super) fn run(&self, site: &Site<'_>) -> ClientRow {
        let (start, case) = (Instant::now(), &self.case);
        let deadline = start + self.limit();
        let passed = match &self.job {
            Job::Information => libfabric::information(site, case, deadline),
            Job::Pingpong(kind) => libfabric::pingpong(site, case, kind, deadline),
            Job::Every(directory) => libfabric::every(site, case, directory.as_deref(), deadline),
            Job::Program { name, library, ranks } => mpi::program(site, case, name, *library, *ranks, deadline),
            Job::Mpi4py { suite, library, ranks } => mpi::mpi4py(site, case, *suite, *library, *ranks, deadline),
            Job::Bereft => libfabric::bereft(site, case, deadline),
            Job::Killed { library, what } => mpi::killed(site, case, *library, what, deadline),
            Job::TwoHosts => hosts::two(site, case, deadline),
            Job::Latency(library) => mpi::latency(site, case, *library, deadline),
        };
        let (ending, note) = match passed {
            Ok(note) => (ClientEnding::Passed, note),
            Err(Trouble::Missing(what)) => (ClientEnding::Skipped, what),
            Err(Trouble::Failed(failure)) => (ClientEnding::Failed, failure.to_string()),
        };
        ClientRow {
            client: case.client.clone(),
            library: case.library.clone(),
            transport: case.transport,
            ending,
            seconds: start.elapsed().as_secs_f64(),
            note,
        }
    }
}

/// Returns all clients, grouped by transport.
pub(super) fn all(site: &Site<'_>) -> Vec<ListedCase> {
    let mut all = Vec::new();
    for transport in Transport::BOTH {
        let mut add = |client: String, library: &str, is_quick, job| {
            let case = ClientCase { client, library: library.to_owned(), transport };
            all.push(ListedCase { case, is_quick, job });
        };
        if transport == Transport::Shm {
            add("fi_info".into(), libfabric::SYSTEM, true, Job::Information);
        }
        for kind in ["rdm", "msg"] {
            add(format!("fi_pingpong -e {kind}"), libfabric::SYSTEM, true, Job::Pingpong(kind));
        }
        add("every entry".into(), libfabric::SYSTEM, false, Job::Every(None));
        add("every entry".into(), libfabric::NEWER, false, Job::Every(Some(site.newer_libfabric())));
        add("one is killed".into(), libfabric::SYSTEM, true, Job::Bereft);
        if transport == Transport::Tcp {
            add("two hosts".into(), &Library::Mpich.name(), false, Job::TwoHosts);
        }
        for library in Library::ALL {
            let is_debian = library == Library::Debian;
            for ranks in [2, 3] {
                for name in ["ring", "pingpong", "windows"] {
                    let is_quick = is_debian && name == "ring" && ranks == 2;
                    add(
                        format!("{name}, {ranks} ranks"),
                        &library.name(),
                        is_quick,
                        Job::Program { name, library, ranks },
                    );
                }
            }
            let (suite, ranks) = (Suite::Part, 2);
            add("mpi4py, part".into(), &library.name(), is_debian, Job::Mpi4py { suite, library, ranks });
            for ranks in [2, 3] {
                let suite = Suite::Whole;
                add(format!("mpi4py, {ranks} ranks"), &library.name(), false, Job::Mpi4py { suite, library, ranks });
            }
            let (suite, ranks) = (Suite::Messages, 2);
            add("mpi4py, messages".into(), &library.name(), false, Job::Mpi4py { suite, library, ranks });
            let suite = Suite::Windows;
            add("mpi4py, windows".into(), &library.name(), false, Job::Mpi4py { suite, library, ranks });
            for what in ["receive", "send"] {
                add(format!("killed in a {what}"), &library.name(), false, Job::Killed { library, what });
            }
            add("latency".into(), &library.name(), false, Job::Latency(library));
        }
    }
    all
}
