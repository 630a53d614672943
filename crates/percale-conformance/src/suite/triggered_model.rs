//! Random schedules of queueing, cancelling, flushing, counting and closing, compared with a simple model.

use std::collections::{BTreeMap, VecDeque};

use percale::trigger::WorkId;
use percale::{Counter, Domain, ErrorCode};

use crate::fabric::{Fabric, Transport};
use crate::memory::Memory;
use crate::mesh::{Mesh, Receive, Send, TestEndpoint};
use crate::random::Random;

/// The number of steps, unless `PERCALE_STEPS` sets it.
const STEPS: usize = 3000;
const COUNTERS: usize = 4;

/// Waiting work in the model.
#[derive(Clone, Debug)]
enum ModelOperation {
    /// A send of the message with this number.
    Send(u64),
    Add(usize, u64),
    Set(usize, u64),
}

#[derive(Clone, Debug)]
struct ModelWork {
    threshold: u64,
    /// Whether errors count as well.
    ends: bool,
    what: ModelOperation,
    number: u64,
}

/// Counters, and the work that waits for them in the order in which it was queued.
#[derive(Debug, Default)]
struct Model {
    values: [u64; COUNTERS],
    errors: [u64; COUNTERS],
    lines: [Vec<ModelWork>; COUNTERS],
    /// The sent messages for each counter. Sends that wait for different counters have no common order.
    sent: [VecDeque<u64>; COUNTERS],
}

impl Model {
    /// Starts the due work after a counter has changed.
    fn fire(&mut self, counter: usize) {
        let mut jobs = VecDeque::from([counter]);
        while let Some(counter) = jobs.pop_front() {
            while let Some(at) = self.first_due(counter) {
                match self.lines[counter].remove(at).what {
                    ModelOperation::Send(number) => self.sent[counter].push_back(number),
                    ModelOperation::Add(other, count) => {
                        self.values[other] += count;
                        jobs.extend(self.first_due(other).map(|_| other));
                    }
                    ModelOperation::Set(other, value) => {
                        self.values[other] = value;
                        jobs.extend(self.first_due(other).map(|_| other));
                    }
                }
            }
        }
    }

    fn first_due(&self, counter: usize) -> Option<usize> {
        let (value, errors) = (self.values[counter], self.errors[counter]);
        let due = |line: &ModelWork| line.threshold <= if line.ends { value + errors } else { value };
        let lines = self.lines[counter].iter().enumerate().filter(|(_, line)| due(line));
        // Among equal thresholds, work that waits for successes comes first.
        lines.min_by_key(|(_, line)| (line.threshold, line.ends, line.number)).map(|(at, _)| at)
    }
}

struct Run<F: Fabric> {
    mesh: Mesh<F>,
    random: Random,
    model: Model,
    counters: [Counter; COUNTERS],
    /// Queued counter operations by number: the counter that they wait for, and their ID.
    works: BTreeMap<u64, (usize, WorkId)>,
    /// Waiting sends: maps contexts to message numbers.
    sends: BTreeMap<u64, u64>,
    receives: VecDeque<(u64, Memory)>,
    next: u64,
}

impl<F: Fabric> Run<F> {
    fn domain(&self) -> &Domain {
        &self.mesh.test_endpoint(1).domain
    }

    fn queue(&mut self, counter: usize, threshold: u64, ends: bool, what: ModelOperation) {
        let line = ModelWork { threshold, ends, what, number: self.next };
        self.next += 1;
        self.model.lines[counter].push(line);
        self.model.fire(counter);
    }

    fn step(&mut self) {
        let (counter, other) = (self.random.below(COUNTERS), self.random.below(COUNTERS));
        let value = self.model.values[counter];
        let near = (value + self.random.below(12) as u64).saturating_sub(2);
        match self.random.below(40) {
            0..14 => {
                let number = self.next;
                let bytes = Memory::of(&number.to_ne_bytes());
                let operation = self.mesh.sending(1, Send::of(bytes));
                let context = self.mesh.when(0, operation, &self.counters[counter], near);
                self.sends.insert(context, number);
                self.queue(counter, near, false, ModelOperation::Send(number));
            }
            14..20 => {
                // A counter changes only counters with higher numbers, so that no two operations wait for each other
                // forever.
                let (from, to) = (counter.min(other), counter.max(other));
                if from != to {
                    let near = self.model.values[from] + self.random.below(8) as u64;
                    let (count, number) = (self.random.below(3) as u64, self.next);
                    let (work, what) = if self.random.below(6) == 0 {
                        let value = self.model.values[to] / 2;
                        let work = self.domain().defer_set(&self.counters[to], value, (&self.counters[from], near));
                        (work, ModelOperation::Set(to, value))
                    } else {
                        let work = self.domain().defer_add(&self.counters[to], count, (&self.counters[from], near));
                        (work, ModelOperation::Add(to, count))
                    };
                    self.works.insert(number, (from, work.expect("queued")));
                    self.queue(from, near, true, what);
                }
            }
            20..28 => {
                let count = [1, 1, 1, 2, 5, 9][self.random.below(6)];
                self.counters[counter].add(count);
                self.model.values[counter] += count;
                self.model.fire(counter);
            }
            28..30 => {
                self.counters[counter].add_error(1);
                self.model.errors[counter] += 1;
                self.model.fire(counter);
            }
            30 => {
                let value = self.random.below(2 * value as usize + 2) as u64;
                self.counters[counter].set(value);
                self.model.values[counter] = value;
                self.model.fire(counter);
            }
            31..35 => self.cancel_send(),
            35..38 => self.cancel_work(),
            38 => {
                let all = self.random.below(3) == 0;
                let flushed = self.domain().flush_work((!all).then_some(&self.counters[counter]));
                let mut wanted = 0;
                for (number, lines) in self.model.lines.iter_mut().enumerate() {
                    if all || number == counter {
                        let before = lines.len();
                        lines.retain(|line| !line.ends);
                        wanted += before - lines.len();
                    }
                }
                assert_eq!(flushed, wanted, "flushed");
            }
            _ if self.random.below(20) == 0 && !F::ALONE => self.reopen(),
            _ => {}
        }
    }

    fn cancel_send(&mut self) {
        let Some((&context, &number)) = self.sends.iter().min_by_key(|(context, _)| **context % 7) else { return };
        let line = self.model.lines.iter_mut().find_map(|lines| {
            let at = lines.iter().position(|line| matches!(line.what, ModelOperation::Send(of) if of == number))?;
            Some(lines.remove(at))
        });
        assert_eq!(self.mesh.endpoint(0).cancel(context), line.is_some(), "message {number}");
        if line.is_some() {
            assert_eq!(self.mesh.failed(context).error, ErrorCode::Canceled);
        }
        self.sends.remove(&context);
    }

    fn cancel_work(&mut self) {
        let Some(&number) = self.works.keys().min_by_key(|number| **number % 5) else { return };
        let Some((counter, work)) = self.works.remove(&number) else { return };
        let at = self.model.lines[counter].iter().position(|line| line.number == number);
        assert_eq!(self.domain().cancel_work(&work), at.is_some(), "work {number}");
        at.map(|at| self.model.lines[counter].remove(at));
    }

    /// Closes the sender's endpoint with all of its waiting work, and opens another endpoint in its place.
    fn reopen(&mut self) {
        self.mesh.close(0);
        for lines in &mut self.model.lines {
            lines.retain(|line| !matches!(line.what, ModelOperation::Send(_)));
        }
        self.sends.clear();
        let domain = self.mesh.fabric.domain(|domain| domain);
        let vector = domain.address_vector().build().expect("a vector");
        let endpoint = domain.endpoint().vector(&vector).bind(self.mesh.fabric.address()).expect("an endpoint");
        vector.insert(endpoint.address()).expect("an address");
        vector.insert(self.mesh.endpoint(1).address()).expect("an address");
        self.mesh.open(0, TestEndpoint { endpoint, vector, domain });
    }

    /// Checks that all started messages arrive, those of each counter in order, and no other messages.
    fn compare(&mut self) {
        for _ in 0..self.model.sent.iter().map(VecDeque::len).sum() {
            let (context, memory) = self.receives.pop_front().expect("a posted receive");
            self.mesh.done(context);
            let came = u64::from_ne_bytes(memory.read().try_into().expect("8 bytes"));
            let expected = self.model.sent.iter_mut().find(|sent| sent.front() == Some(&came));
            let Some(sent) = expected else { panic!("message {came} arrived instead of one of {:?}", self.model.sent) };
            sent.pop_front();
            self.receive();
        }
        self.mesh.turns(2);
        let first = self.receives.front().expect("a posted receive").0;
        assert!(self.mesh.take(first).is_none(), "a message that should wait was sent");
        for (counter, value) in self.counters.iter().zip(self.model.values) {
            assert_eq!(counter.value(), value);
        }
    }

    fn receive(&mut self) {
        let memory = Memory::blank(8);
        let context = self.mesh.receive(1, Receive::into(memory));
        self.receives.push_back((context, memory));
    }
}

/// Random schedules of triggered sends, deferred counter operations, cancelling, flushing, counting, setting, and
/// closing endpoints.
///
/// Requirements: DWQ-021.
pub fn random_schedules_match_the_model<F: Transport>() {
    let steps = std::env::var("PERCALE_STEPS").ok().and_then(|text| text.parse().ok()).unwrap_or(STEPS);
    let seed = crate::random::seed();
    println!("PERCALE_SEED={seed}");
    let mesh = Mesh::<F>::connected(2);
    let mut run = Run {
        mesh,
        random: Random::new(seed),
        model: Model::default(),
        counters: Default::default(),
        works: BTreeMap::new(),
        sends: BTreeMap::new(),
        receives: VecDeque::new(),
        next: 0,
    };
    run.receive();
    for _ in 0..steps {
        run.step();
        run.compare();
    }
}
