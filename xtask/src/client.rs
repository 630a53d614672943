//! Starts a program that may hang, leave processes behind, or be one of a pair. The program runs in a separate process
//! group, its output is written to a file, and it is killed by its process IDs.

use crate::failure::{Failure, Outcome};
use crate::processes;
use crate::program::Program;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// The interval at which a client is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// A running client. Dropping it kills the client.
pub(crate) struct RunningClient {
    child: Child,
    printed: PathBuf,
    status: Option<ExitStatus>,
}

impl RunningClient {
    /// Starts a program with its standard output and error redirected to the file `printed`.
    pub(crate) fn start(program: Program, printed: &Path) -> Outcome<Self> {
        let directory = printed.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(directory)?;
        let file = File::create(printed).map_err(Failure::during(printed.display()))?;
        let shown = program.shown();
        let mut command = program.into_command();
        // A crashing program may leave files in its working directory.
        if command.get_current_dir().is_none() {
            command.current_dir(directory);
        }
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file).process_group(0);
        let child = command.spawn().map_err(Failure::during(format!("starting `{shown}`")))?;
        Ok(Self { child, printed: printed.to_owned(), status: None })
    }

    /// Returns whether the client is still running.
    pub(crate) fn is_running(&mut self) -> bool {
        if self.status.is_none() && has_ended(&self.child) {
            self.finish();
        }
        self.status.is_none()
    }

    /// Returns the exit status, if the end of the client has been detected.
    pub(crate) fn ended(&self) -> Option<ExitStatus> {
        self.status
    }

    /// Waits until the client ends. At the deadline, kills the client and returns `None`.
    pub(crate) fn wait_until(&mut self, deadline: Instant) -> Option<ExitStatus> {
        while self.is_running() && Instant::now() < deadline {
            thread::sleep(POLL_INTERVAL);
        }
        if self.status.is_none() {
            self.finish();
            return None;
        }
        self.status
    }

    /// Returns the output of the client so far.
    pub(crate) fn printed(&self) -> String {
        fs::read(&self.printed).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
    }

    /// Kills the client, its children and its group, and reaps it. Its process ID is not reused before that.
    fn finish(&mut self) {
        processes::end_with_children(self.child.id());
        // The call fails if the group has no members. This is not an error.
        kill_process_group(Pid::from_child(&self.child), Signal::KILL).ok();
        self.status = self.child.wait().ok();
    }
}

impl Drop for RunningClient {
    fn drop(&mut self) {
        if self.status.is_none() {
            self.finish();
        }
    }
}

/// Returns whether a child has ended, without reaping it.
fn has_ended(child: &Child) -> bool {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    matches!(waitid(WaitId::Pid(Pid::from_child(child)), options), Ok(Some(_)))
}

#[cfg(test)]
mod tests {
    use super::RunningClient;
    use crate::program::Program;
    use std::time::{Duration, Instant};

    fn start(script: &str, name: &str) -> RunningClient {
        let printed = std::env::temp_dir().join(format!("percale-client-{}-{name}", std::process::id()));
        RunningClient::start(Program::new("sh").args(["-c", script]), &printed).unwrap()
    }

    #[test]
    fn client_is_awaited_and_its_output_returned() {
        let mut client = start("echo one; echo two >&2; exit 3", "heard");
        let status = client.wait_until(Instant::now() + Duration::from_secs(60)).unwrap();
        assert_eq!(status.code(), Some(3));
        assert_eq!(client.printed(), "one\ntwo\n");
        assert!(!client.is_running());
    }

    #[test]
    fn hanging_client_is_killed_with_its_children() {
        // A child in its own session is not in the client's group. It is found by its parent.
        let mut client = start("setsid sleep 1000 & echo $!; wait", "ended");
        let deadline = Instant::now() + Duration::from_secs(60);
        while client.printed().is_empty() && Instant::now() < deadline {
            std::thread::yield_now();
        }
        assert!(client.is_running());
        assert_eq!(client.wait_until(Instant::now()), None);
        let id = client.printed().trim().to_owned();
        let gone = || std::fs::read_to_string(format!("/proc/{id}/stat")).is_ok_and(|stat| !stat.contains(") Z"));
        while gone() {
            assert!(Instant::now() < deadline, "process {id} is still running");
            std::thread::yield_now();
        }
    }
}
