//! A helper process that changes files and memory of this process from outside.

use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use pindown::Range;
use rustix::fs::FallocateFlags;
use serde::{Deserialize, Serialize};

use super::tracer;
use crate::limits::kernel::Foreign;

/// The requests to the other process.
#[derive(Debug, Serialize, Deserialize)]
enum HelperRequest {
    Truncate {
        path: String,
        len: u64,
    },
    Allocate {
        path: String,
        mode: u32,
        offset: u64,
        len: u64,
    },
    Write {
        process: i32,
        address: u64,
        len: u64,
    },
    /// Causes the first thread of a process to execute a system call, as a debugger can.
    Call {
        process: i32,
        instruction: u64,
        call: [u64; 7],
    },
}

/// The other process. It ends when its standard input is closed.
pub(super) struct HelperProcess {
    process: Child,
    stdin: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl HelperProcess {
    pub(super) fn start() -> io::Result<Self> {
        let mut command = Command::new("/proc/self/exe");
        command.args([super::PART, "helper"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process = command.spawn()?;
        let stdin = process.stdin.take();
        let answers = process.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
        Ok(Self { process, stdin, answers: BufReader::new(answers) })
    }

    /// Calls truncate(2) for the file at `path`.
    pub(super) fn truncate(&mut self, path: &str, len: u64) -> io::Result<()> {
        self.ask(&HelperRequest::Truncate { path: path.into(), len })
    }

    /// Calls fallocate(2).
    pub(super) fn allocate(&mut self, path: &str, mode: u32, offset: u64, len: u64) -> io::Result<()> {
        self.ask(&HelperRequest::Allocate { path: path.into(), mode, offset, len })
    }

    /// Writes to this process with process_vm_writev(2).
    pub(super) fn write(&mut self, range: Range) -> io::Result<()> {
        let process = rustix::process::getpid().as_raw_pid();
        self.ask(&HelperRequest::Write { process, address: range.start(), len: range.len() })
    }

    /// Causes the first thread of this process to execute a system call, given by number and arguments.
    pub(super) fn call(&mut self, number: libc::c_long, arguments: [u64; 6]) -> io::Result<()> {
        let process = rustix::process::getpid().as_raw_pid();
        let instruction = tracer::instruction().ok_or(io::ErrorKind::Unsupported)?;
        let [a, b, c, d, e, f] = arguments;
        self.ask(&HelperRequest::Call { process, instruction, call: [number as u64, a, b, c, d, e, f] })
    }

    fn ask(&mut self, request: &HelperRequest) -> io::Result<()> {
        let stdin = self.stdin.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
        writeln!(stdin, "{}", serde_json::to_string(request)?)?;
        let mut answer = String::new();
        self.answers.read_line(&mut answer)?;
        match answer.trim().parse() {
            Ok(0) => Ok(()),
            Ok(code) => Err(io::Error::from_raw_os_error(code)),
            Err(_) => Err(io::Error::other("the other process has ended")),
        }
    }
}

impl Drop for HelperProcess {
    fn drop(&mut self) {
        // The process ends when its standard input is closed.
        self.stdin = None;
        self.process.wait().ok();
    }
}

/// Runs the other process: executes requests line by line.
pub(super) fn run() -> io::Result<()> {
    for line in io::stdin().lock().lines() {
        let done = serde_json::from_str(&line?).map_err(io::Error::from).and_then(do_it);
        let code = done.map_or_else(|error| error.raw_os_error().unwrap_or(libc::EIO), |()| 0);
        let mut answers = io::stdout().lock();
        writeln!(answers, "{code}")?;
        answers.flush()?;
    }
    Ok(())
}

fn do_it(request: HelperRequest) -> io::Result<()> {
    let open = |path| std::fs::File::options().read(true).write(true).open(path);
    match request {
        HelperRequest::Truncate { path, len } => open(path)?.set_len(len),
        HelperRequest::Allocate { path, mode, offset, len } => {
            Ok(rustix::fs::fallocate(open(path)?, FallocateFlags::from_bits_retain(mode), offset, len)?)
        }
        HelperRequest::Call { process, instruction, call } => tracer::inject(process, instruction, call).map(drop),
        HelperRequest::Write { process, address, len } => Foreign { process, address }.write(0, &vec![5; len as usize]),
    }
}
