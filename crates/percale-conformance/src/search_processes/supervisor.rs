//! Starts workers, causes events, and collects the faults that the workers report.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

use super::counts::Counts;
use super::plan::{OPERATION_TIMEOUT, PART, RoundPlan};
use super::proxy::Proxies;
use super::{stranger, successor};
use crate::process::this_program;
use crate::random::Random;

/// The results of a round.
#[derive(Debug, Default)]
pub struct RoundReport {
    /// The faults found.
    pub faults: Vec<String>,
    /// The counts of operations and events.
    pub counts: Counts,
    /// The number of workers that were started.
    pub workers: usize,
    /// The times of the phases: starting operations, waiting for all of them to end, and waiting for all workers to
    /// close.
    pub phases: [Duration; 3],
    /// The directory of the logs.
    pub logs: PathBuf,
}

struct Worker {
    number: usize,
    child: Child,
    input: Option<ChildStdin>,
    /// The port and the life of each endpoint of the worker.
    there: Vec<(u16, u16)>,
    /// Whether the worker was killed, or has announced that it exits.
    excused: bool,
    idle: bool,
    done: bool,
    stopped: Option<Instant>,
    /// The counts in the last report of the worker.
    counts: Counts,
    /// When the process exited. A forked child may still hold its output open.
    exited: Option<Instant>,
    /// Whether the worker has received the addresses of the workers that were started with it.
    met: bool,
}

enum WorkerOutput {
    Line(usize, String),
    End(usize),
}

struct Round<'p> {
    plan: &'p RoundPlan,
    random: Random,
    workers: Vec<Worker>,
    /// Processes of workers that have executed another program. Their forked children hold the open descriptors, so
    /// their output does not end.
    others: Vec<Child>,
    proxies: Proxies,
    next: usize,
    lines: Receiver<WorkerOutput>,
    sender: Sender<WorkerOutput>,
    /// The regions to announce to new workers.
    regions: Vec<String>,
    report: RoundReport,
}

/// Runs a round in this process.
///
/// # Panics
/// Panics if no worker can be started, or if no log can be written.
#[must_use]
pub fn run(plan: &RoundPlan) -> RoundReport {
    let (sender, lines) = channel();
    let logs = plan.logs.join(format!("{}-{}", plan.transport, plan.seed));
    fs::create_dir_all(&logs).unwrap_or_else(|error| panic!("{}: {error}", logs.display()));
    let report = RoundReport { logs: logs.clone(), ..RoundReport::default() };
    let random = Random::new(plan.seed.rotate_left(17));
    let mut round = Round {
        plan,
        random,
        workers: Vec::new(),
        others: Vec::new(),
        proxies: Proxies::default(),
        next: 0,
        lines,
        sender,
        regions: Vec::new(),
        report,
    };
    for _ in 0..plan.workers {
        round.start(&[]);
    }
    round.happen();
    round.finish();
    let Round { mut report, workers, others, .. } = round;
    workers.iter().for_each(|worker| report.counts += worker.counts);
    for mut child in workers.into_iter().map(|worker| worker.child).chain(others) {
        drop(child.kill());
        drop(child.wait());
    }
    if report.faults.is_empty() {
        drop(fs::remove_dir_all(&logs));
    }
    report
}

impl Round<'_> {
    fn start(&mut self, ports: &[u16]) {
        let number = self.next;
        self.next += 1;
        self.report.workers += 1;
        let mut head = format!("{number} {}", 1 + number * 64);
        ports.iter().for_each(|port| head += &format!(" {port}"));
        let log = File::create(self.report.logs.join(format!("worker-{number}.log"))).expect("a log");
        let mut command = this_program();
        command.env(PART, format!("{head}|{}", self.plan.write()));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log);
        let mut child = command.spawn().expect("a worker");
        let (out, sender) = (child.stdout.take().expect("the output is piped"), self.sender.clone());
        std::thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                if let Some(line) = line.strip_prefix('@')
                    && sender.send(WorkerOutput::Line(number, line.to_owned())).is_err()
                {
                    return;
                }
            }
            drop(sender.send(WorkerOutput::End(number)));
        });
        let input = child.stdin.take();
        let (there, excused, idle, done, stopped) = (Vec::new(), false, false, false, None);
        let counts = Counts::default();
        self.workers.push(Worker {
            number,
            child,
            input,
            there,
            excused,
            idle,
            done,
            stopped,
            counts,
            exited: None,
            met: false,
        });
        let known = self.workers.iter().flat_map(|worker| &worker.there);
        let known = known.map(|(port, id)| format!("there {port} {id}")).chain(self.regions.iter().cloned());
        let known = known.collect::<Vec<_>>();
        if let Some(worker) = self.workers.last_mut() {
            if number >= self.plan.workers {
                worker.send_line("go");
            }
            known.iter().for_each(|line| worker.send_line(line));
        }
    }

    fn tell_all(&mut self, line: &str) {
        self.workers.iter_mut().for_each(|worker| worker.send_line(line));
    }

    fn fault(&mut self, text: String) {
        if self.report.faults.is_empty() {
            self.tell_all("dump");
        }
        self.report.faults.push(text);
    }

    /// Reads the reports of workers for this time.
    fn read_reports(&mut self, time: Duration) {
        let until = Instant::now() + time;
        loop {
            match self.lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(WorkerOutput::Line(number, line)) => self.line(number, &line),
                Ok(WorkerOutput::End(number)) => self.ended(number),
                Err(RecvTimeoutError::Timeout) => break,
                Err(RecvTimeoutError::Disconnected) => unreachable!("the round holds a sender"),
            }
        }
        let now = Instant::now();
        for worker in &mut self.workers {
            if worker.stopped.is_some_and(|until| until <= now) {
                worker.stopped = None;
                worker.signal(Signal::CONT);
            }
            if worker.exited.is_none() && matches!(worker.child.try_wait(), Ok(Some(_))) {
                worker.exited = Some(now);
            }
        }
        // By then, the last report of the worker has been read.
        let is_over = |worker: &&Worker| worker.exited.is_some_and(|at| at + Duration::from_millis(500) < now);
        let ended = self.workers.iter().filter(is_over).map(|worker| worker.number).collect::<Vec<_>>();
        ended.into_iter().for_each(|number| self.ended(number));
    }

    fn line(&mut self, number: usize, line: &str) {
        let words = line.split(' ').collect::<Vec<_>>();
        // Reports of a process after its worker has exited are ignored.
        let Some(at) = self.workers.iter().position(|worker| worker.number == number) else { return };
        let value = |at: usize| words.get(at).and_then(|word| word.parse::<u64>().ok()).unwrap_or_default();
        match words[0] {
            "fault" => self.fault(format!("worker {number}: {}", &line[6..])),
            "there" => {
                if self.plan.has("proxy") && self.random.below(2) == 0 {
                    self.put_proxy(value(1) as u16);
                }
                self.workers[at].there.push((value(1) as u16, value(2) as u16));
                self.tell_all(line);
            }
            "gone" => {
                self.workers[at].there.retain(|&(_, id)| u64::from(id) != value(2));
                self.tell_all(line);
            }
            "region" | "listener" => {
                self.regions.push(line.to_owned());
                if self.regions.len() > 30 {
                    self.regions.remove(0);
                }
                self.tell_all(line);
            }
            "exits" => self.workers[at].excused = true,
            "execs" => {
                let worker = self.leave(at);
                // A process that was stopped before it executed the other program would remain stopped.
                worker.signal(Signal::CONT);
                self.others.push(worker.child);
            }
            "counts" => self.workers[at].counts = Counts::read(&words[1..]).unwrap_or_default(),
            "met" => self.workers[at].met = true,
            "idle" => self.workers[at].idle = true,
            "done" => {
                self.workers[at].done = true;
                self.workers[at].counts = Counts::read(&words[1..]).unwrap_or_default();
            }
            _ => {}
        }
    }

    /// Starts a proxy for this endpoint. Some of the other workers will use it.
    fn put_proxy(&mut self, port: u16) {
        let seed = self.random.next();
        if let Some(proxy) = self.proxies.before(port, seed) {
            self.report.counts.lives += 1;
            let line = format!("proxy {port} {proxy}");
            self.tell_all(&line);
            self.regions.push(line);
        }
    }

    /// Records that a worker and its endpoints no longer exist.
    fn leave(&mut self, at: usize) -> Worker {
        let mut worker = self.workers.swap_remove(at);
        self.report.counts += worker.counts;
        for (port, id) in std::mem::take(&mut worker.there) {
            self.tell_all(&format!("gone {port} {id}"));
        }
        worker
    }

    fn ended(&mut self, number: usize) {
        let Some(at) = self.workers.iter().position(|worker| worker.number == number) else { return };
        let mut worker = self.leave(at);
        let status = worker.child.wait();
        let reported = worker.done && status.as_ref().is_ok_and(|status| status.code().is_some_and(|code| code != 101));
        if !worker.excused && !reported {
            let how = status.map_or_else(|error| error.to_string(), |status: ExitStatus| status.to_string());
            let log = fs::read_to_string(self.report.logs.join(format!("worker-{number}.log"))).unwrap_or_default();
            let panic = log.lines().skip_while(|line| !line.contains("panicked at")).take(2).collect::<Vec<_>>();
            let last = log.lines().last().unwrap_or_default();
            let why = if panic.is_empty() { last.to_owned() } else { panic.join(" ") };
            self.fault(format!("worker {number} ended with {how}: {why}"));
        }
    }

    fn some_port(&mut self) -> Option<u16> {
        let ports = self.workers.iter().flat_map(|worker| &worker.there).map(|&(port, _)| port).collect::<Vec<_>>();
        (!ports.is_empty()).then(|| ports[self.random.below(ports.len())])
    }

    /// Causes events for the active time of the round.
    fn happen(&mut self) {
        let begun = Instant::now();
        let until = Instant::now() + Duration::from_secs(20);
        let known = |round: &Self| round.workers.iter().map(|worker| worker.there.len()).sum::<usize>();
        while known(self) < self.plan.workers * self.plan.endpoints && Instant::now() < until {
            self.read_reports(Duration::from_millis(10));
        }
        // Each worker gets the addresses of the other workers before any of them sends, so that a receiver can identify
        // the sender of every message.
        self.tell_all("meet");
        while self.workers.iter().any(|worker| !worker.met) && Instant::now() < until {
            self.read_reports(Duration::from_millis(10));
        }
        self.tell_all("go");
        let until = Instant::now() + self.plan.active;
        while Instant::now() < until && self.report.faults.is_empty() {
            let pause = Duration::from_millis(5 + self.random.below(200) as u64);
            self.read_reports(pause);
            let at = self.random.below(self.workers.len().max(1));
            match self.random.below(24) {
                0..=2 if self.may_kill() && self.workers.len() > 1 => self.kill(at),
                3 | 4 if self.plan.has("stop") && self.workers.len() > 1 => self.stop(at),
                5..=7 if self.plan.has("stranger") => self.stranger(stranger::StrangerBehaviour::Junk),
                8 if self.plan.has("flood") => self.stranger(stranger::StrangerBehaviour::Flood),
                9..=11 if self.plan.has("own-address") => self.stranger(stranger::StrangerBehaviour::OwnAddress),
                12..=16 if self.plan.has("pose") => self.stranger(stranger::StrangerBehaviour::Pose),
                _ => {}
            }
            while self.workers.len() < self.plan.workers.min(3) && self.next < 100 {
                self.start(&[]);
            }
        }
        self.report.phases[0] = begun.elapsed();
    }

    fn kill(&mut self, at: usize) {
        // The process of a worker that has executed another program still exists.
        if let Some(mut other) = self.others.pop_if(|_| self.random.below(2) == 0) {
            self.report.counts.lives += 1;
            drop(other.kill());
            drop(other.wait());
            return;
        }
        let Some(worker) = self.workers.get_mut(at) else { return };
        self.report.counts.lives += 1;
        worker.excused = true;
        let ports = worker.there.iter().map(|&(port, _)| port).collect::<Vec<_>>();
        drop(worker.child.kill());
        if self.plan.has("same-pid") && self.next < 100 {
            // The next process gets the ID of this process, if the system permits choosing it.
            drop(worker.child.wait());
            drop(fs::write("/proc/sys/kernel/ns_last_pid", (worker.child.id() - 1).to_string()));
            return self.start(&[]);
        }
        if self.plan.has("successor") && self.random.below(2) == 0 {
            return self.succeed(&ports);
        }
        if self.next < 100 && self.random.below(2) == 0 {
            // The replacement starts immediately or slightly later.
            let pause = self.random.below(2) as u64 * 100;
            self.read_reports(Duration::from_millis(pause));
            let same = self.plan.has("same-address");
            self.start(if same { &ports } else { &[] });
        }
    }

    fn may_kill(&self) -> bool {
        ["kill", "same-pid", "successor"].iter().any(|kind| self.plan.has(kind))
    }

    /// Starts strangers that listen at the former ports of an endpoint.
    fn succeed(&mut self, ports: &[u16]) {
        for &port in ports {
            self.report.counts.lives += 1;
            let seed = self.random.next();
            std::thread::spawn(move || successor::stay(port, seed));
        }
    }

    fn stop(&mut self, at: usize) {
        let Some(worker) = self.workers.get_mut(at) else { return };
        if worker.stopped.is_none() {
            self.report.counts.lives += 1;
            let long = if self.random.below(4) == 0 { 8000 } else { 600 };
            worker.stopped = Some(Instant::now() + Duration::from_millis(10 + self.random.below(long) as u64));
            worker.signal(Signal::STOP);
        }
    }

    fn stranger(&mut self, manner: stranger::StrangerBehaviour) {
        let (Some(target), Some(other)) = (self.some_port(), self.some_port()) else { return };
        self.report.counts.lives += 1;
        let seed = self.random.next();
        std::thread::spawn(move || stranger::visit(target, other, manner, seed));
    }

    /// Makes workers log the position at which they hang.
    fn ask_where(&mut self) {
        for worker in &mut self.workers {
            worker.excused = true;
            worker.signal(Signal::USR1);
        }
        self.read_reports(Duration::from_secs(3));
    }

    /// Makes workers end their outstanding operations, and then close their endpoints.
    fn finish(&mut self) {
        for worker in &mut self.workers {
            worker.stopped = None;
            worker.signal(Signal::CONT);
        }
        self.tell_all("finish");
        let begun = Instant::now();
        let until = Instant::now() + OPERATION_TIMEOUT * 2 + Duration::from_secs(15);
        while self.report.faults.is_empty() && Instant::now() < until {
            if self.workers.iter().all(|worker| worker.idle) {
                break;
            }
            self.read_reports(Duration::from_millis(50));
        }
        self.report.phases[1] = begun.elapsed();
        if self.report.faults.is_empty() {
            let busy = self.workers.iter().filter(|worker| !worker.idle).map(|worker| worker.number);
            let busy = busy.collect::<Vec<_>>();
            if !busy.is_empty() {
                self.fault(format!("workers {busy:?} have operations that do not end"));
                self.read_reports(Duration::from_secs(1));
                self.ask_where();
            }
        }
        if !self.report.faults.is_empty() {
            // Faults that the other workers find in the meantime may explain this one.
            return self.read_reports(Duration::from_secs(1));
        }
        self.tell_all("close");
        let begun = Instant::now();
        let until = Instant::now() + OPERATION_TIMEOUT * 2 + Duration::from_secs(20);
        while !self.workers.is_empty() && Instant::now() < until {
            self.read_reports(Duration::from_millis(20));
            if !self.report.faults.is_empty() {
                return self.read_reports(Duration::from_secs(1));
            }
        }
        self.report.phases[2] = begun.elapsed();
        if !self.workers.is_empty() {
            let left = self.workers.iter().map(|worker| worker.number).collect::<Vec<_>>();
            self.fault(format!("workers {left:?} do not close"));
            self.ask_where();
        }
    }
}

impl Worker {
    fn send_line(&mut self, line: &str) {
        if let Some(input) = &mut self.input
            && writeln!(input, "{line}").and_then(|()| input.flush()).is_err()
        {
            self.input = None;
        }
    }

    fn signal(&self, signal: Signal) {
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            super::ignored(rustix::process::kill_process(pid, signal));
        }
    }
}
