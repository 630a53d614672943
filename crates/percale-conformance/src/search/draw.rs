//! Generates a random run from a seed.
//!
//! Each run has its own random weights: most kinds of steps do not occur in some runs, and are frequent in others. This
//! produces combinations that uniform weights would not.

use super::step::{
    AccessBy, BLOCKS, COUNTERS, CallStep, CounterStep, DEVICES, DOMAINS, DeviceSettings, DeviceStep, GroupStep,
    HandleStep, LONG, Level, MANY, ManyStep, NextBy, OpenOptions, PollKind, QUEUES, ReceiveBy, Request, RunPlan,
    RunTransport, SETS, SLOTS, SendBy, SetStep, Settings, Step, VerbsCall, Waking, WindowStep,
};
use crate::random::Random;

/// The number of steps of a long run, and the inverse of the fraction of its lifecycle events that are kept.
const LONG_STEPS: usize = 5_000;
const LIFE_KEPT: usize = 40;

/// The number of kinds of steps, for the weights.
const KINDS: usize = 30;

fn one_of<T: Copy>(random: &mut Random, from: &[T]) -> T {
    from[random.below(from.len())]
}

impl RunPlan {
    /// Draws the run for this seed.
    #[must_use]
    pub fn new(seed: u64, transport: RunTransport) -> Self {
        let mut random = Random::new(seed ^ 0x7365_6172_6368);
        let settings = settings(&mut random, transport);
        let mut generator = Generator::new(&mut random, &settings);
        let steps = if seed & LONG == 0 { generator.steps() } else { generator.long_steps() };
        Self { seed, settings, steps }
    }
}

fn settings(random: &mut Random, transport: RunTransport) -> Settings {
    let places = match transport {
        RunTransport::Loopback => 1 + random.below(2),
        _ => 2 + random.below(3),
    };
    let queues = random.below(3);
    let pool = random.below(3) == 0;
    let shared = random.below(4);
    let seats = (0..places).map(|_| OpenOptions {
        shared: random.below(4) < shared,
        queue: (random.below(3) < queues).then(|| random.below(QUEUES) as u8),
        pool: pool && random.below(4) > 0,
        counted: random.below(3) == 0,
    });
    let seats = seats.collect();
    let devices = (transport == RunTransport::Verbs).then(|| DeviceSettings {
        own_fabrics: random.below(2) == 0,
        both: random.below(3) == 0,
        with_tcp: random.below(2) == 0,
        windows: one_of(random, &[0, 1, 2, 4, 7, 7]),
        reuse: random.below(3) == 0,
        reads: one_of(random, &[1, 4, 16]),
        inline: one_of(random, &[0, 64, 256]),
        timeout: one_of(random, &[20, 100, 400]),
    });
    Settings {
        transport,
        seats,
        devices,
        network_seed: random.next(),
        frame_limit: one_of(random, &[64, 256, 2048, 2048]),
        window: one_of(random, &[300, 2_000, 32_768]),
        delay: one_of(random, &[300, 3_000, 20_000, 200_000]),
        breaks: matches!(transport, RunTransport::Sim | RunTransport::Verbs) && random.below(3) == 0,
        one_domain: random.below(2) == 0,
        unexpected: one_of(random, &[0, 100, 1_000, 10_000, 64 << 20]),
        queue_limit: one_of(random, &[2, 4, 8, 64]),
        again: random.below(4) == 0,
        watch: (random.below(5) as u8, random.below(16) as u8),
    }
}

struct Generator<'r> {
    random: &'r mut Random,
    weights: [usize; KINDS],
    wakings: Vec<Waking>,
    sends: Vec<SendBy>,
    places: usize,
    alone: bool,
    breaks: bool,
    devices: Option<DeviceSettings>,
    short: usize,
    long: usize,
    tags: usize,
    long_share: usize,
    safe_share: usize,
    count: usize,
}

impl<'r> Generator<'r> {
    fn new(random: &'r mut Random, settings: &Settings) -> Self {
        let mut weights = [0; KINDS];
        for weight in &mut weights {
            *weight = if random.below(5) < 2 { 0 } else { 1 << random.below(5) };
        }
        let real = settings.transport != RunTransport::Sim;
        // Windows have an effect only with regions and accesses.
        if weights[23] > 0 {
            for kind in [14, 24] {
                weights[kind] = weights[kind].max(4);
            }
        }
        // Without these kinds a run would have almost no effect.
        weights[0] = weights[0].max(8);
        weights[1] = weights[1].max(4);
        weights[6] = weights[6].max(8);
        weights[8] = weights[8].max(4);
        weights[9] = weights[9].max(2);
        if !settings.breaks && settings.devices.is_none() {
            weights[13] = 0;
        }
        // Lifecycle events are less frequent than operations, but not rare.
        for life in [11, 12, 13, 20] {
            weights[life] = weights[life].min(4);
        }
        // Each kind of misbehaving waker occurs in few runs, so that it does not hide other faults.
        let wakings = match random.below(12) {
            0 => vec![Waking::Quiet, Waking::Panics],
            1 => vec![Waking::Quiet, Waking::CallsOnDrop],
            2 | 3 => vec![Waking::Quiet, Waking::Calls],
            4 => vec![Waking::Quiet, Waking::Panics, Waking::Calls, Waking::CallsOnDrop],
            _ => vec![Waking::Quiet],
        };
        let sends = match random.below(4) {
            0 => vec![SendBy::Raw, SendBy::One, SendBy::RawInject, SendBy::Inject],
            1 => vec![SendBy::Inject],
            _ => vec![SendBy::Raw, SendBy::One],
        };
        Self {
            weights,
            wakings,
            sends,
            places: settings.seats.len(),
            alone: settings.transport == RunTransport::Loopback,
            breaks: settings.breaks,
            devices: settings.devices,
            short: one_of(random, &[16, 64, 200, 2_048]),
            long: if real { one_of(random, &[9_000, 70_000, 300_000]) } else { one_of(random, &[3_000, 20_000]) },
            tags: 1 + random.below(3),
            long_share: random.below(6),
            safe_share: random.below(8),
            count: one_of(random, &[60, 200, 600]),
            random,
        }
    }

    fn steps(&mut self) -> Vec<Step> {
        let mut steps = Vec::with_capacity(self.count);
        let total: usize = self.weights.iter().sum();
        while steps.len() < self.count {
            let mut at = self.random.below(total);
            let kind = self.weights.iter().position(|weight| match at.checked_sub(*weight) {
                Some(rest) => {
                    at = rest;
                    false
                }
                None => true,
            });
            let Some(step) = kind.map(|kind| self.step(kind)) else { continue };
            // Bursts of one kind fill small queues and buffers.
            let times = if self.random.below(8) == 0 { 1 + self.random.below(12) } else { 1 };
            steps.push(step);
            for _ in 1..times {
                steps.push(self.alike(step));
            }
        }
        steps
    }

    /// Draws the steps of a long run. It keeps few of the drawn lifecycle events. A closed endpoint is opened again
    /// soon.
    fn long_steps(&mut self) -> Vec<Step> {
        let mut long = Vec::with_capacity(LONG_STEPS);
        let mut closed: Vec<(usize, u8)> = Vec::new();
        while long.len() < LONG_STEPS {
            for step in self.steps() {
                if step.is_life() && self.random.below(LIFE_KEPT) != 0 {
                    continue;
                }
                if let Step::Close { at, .. } = step {
                    closed.push((long.len() + self.random.below(40), at));
                }
                long.push(step);
                while let Some(&(_, at)) = closed.first().filter(|(due, _)| *due <= long.len()) {
                    closed.remove(0);
                    long.push(Step::Open { at, moved: self.random.below(4) == 0 });
                }
            }
        }
        long
    }

    fn alike(&mut self, step: Step) -> Step {
        let slot = self.slot();
        match step {
            Step::Send { at, to, len, tag, data, by, level, .. } => {
                Step::Send { at, to, len, tag, data, by, level, slot }
            }
            Step::Receive { at, from, tag, len, by, .. } => Step::Receive { at, from, tag, len, by, slot },
            Step::Handle { what, .. } => Step::Handle { slot, what },
            Step::Access { at, to, by, fenced, .. } => {
                Step::Access { at, to, block: self.random.below(BLOCKS) as u8, by, slot, fenced }
            }
            other => other,
        }
    }

    fn place(&mut self) -> u8 {
        self.random.below(self.places) as u8
    }

    fn pair(&mut self) -> (u8, u8) {
        let at = self.place();
        let to = if self.alone || self.random.below(12) == 0 { at } else { self.place() };
        (at, to)
    }

    fn slot(&mut self) -> u8 {
        self.random.below(SLOTS) as u8
    }

    fn len(&mut self) -> u32 {
        let limit = if self.random.below(6) < self.long_share { self.long } else { self.short };
        match self.random.below(4) {
            0 => limit as u32,
            _ => self.random.below(limit + 1) as u32,
        }
    }

    fn tag(&mut self) -> Option<u8> {
        (self.random.below(2) == 0).then(|| self.random.below(self.tags) as u8)
    }

    fn matched(&mut self) -> Option<(u8, u8)> {
        let tag = self.tag()?;
        Some((tag, one_of(self.random, &[0, 0, 1, 255])))
    }

    fn source(&mut self) -> Option<u8> {
        (self.random.below(3) == 0).then(|| self.place())
    }

    fn level(&mut self) -> Level {
        Level {
            reported: self.random.below(6) > 0,
            level: self.random.below(4) as u8,
            fenced: self.random.below(10) == 0,
            more: self.random.below(10) == 0,
        }
    }

    fn send(&mut self) -> Step {
        let (at, to) = self.pair();
        let by = if self.random.below(8) < self.safe_share { SendBy::Safe } else { one_of(self.random, &self.sends) };
        let mut len = self.len();
        if matches!(by, SendBy::RawInject | SendBy::Inject) {
            len = len.min(2_048);
        }
        let data = len < 8 || self.random.below(2) == 0;
        let (tag, level, slot) = (self.tag(), self.level(), self.slot());
        Step::Send { at, to, len, tag, data, by, level, slot }
    }

    fn receive(&mut self) -> Step {
        let (at, from, tag) = (self.place(), self.source(), self.matched());
        let by = match self.random.below(10) {
            0 => ReceiveBy::Multi,
            1 => ReceiveBy::Pool,
            2 => ReceiveBy::PoolMulti,
            3 => ReceiveBy::PoolSafe,
            _ if self.random.below(16) < self.safe_share.min(4) => ReceiveBy::SafeMany,
            _ if self.random.below(8) < self.safe_share => ReceiveBy::Safe,
            4..=6 => ReceiveBy::Raw,
            _ => ReceiveBy::One,
        };
        let mut len = match self.random.below(5) {
            0 => self.len(),
            1 | 2 => self.short as u32,
            _ => self.long as u32,
        };
        if matches!(by, ReceiveBy::Multi | ReceiveBy::SafeMany | ReceiveBy::PoolMulti) {
            len = len * 2 + 128;
        }
        Step::Receive { at, from, tag, len, by, slot: self.slot() }
    }

    /// Draws the kind of an access to memory.
    fn way(&mut self) -> AccessBy {
        let ways = [
            AccessBy::Write,
            AccessBy::WriteInject,
            AccessBy::Read,
            AccessBy::SafeWrite,
            AccessBy::SafeRead,
            AccessBy::Add,
            AccessBy::SafeAdd,
            AccessBy::Swap(false),
            AccessBy::Swap(true),
            AccessBy::AddInject,
        ];
        one_of(self.random, &ways)
    }

    /// Draws an event of a device. If connections must not break, draws only events that do not break connections.
    fn device(&mut self) -> DeviceStep {
        use Request::{Bind, Connect, Invalidate, Read, Receive, Send, Write};
        let with_tcp = self.devices.is_some_and(|devices| devices.with_tcp);
        let kinds = if self.breaks { 10 } else { 3 };
        match self.random.below(kinds) {
            0 | 1 => {
                let late = one_of(self.random, &[Send, Write, Read, Bind, Invalidate, Connect, Receive]);
                DeviceStep::Delay(late, one_of(self.random, &[0, 1, 3, 10]))
            }
            2 => {
                let calls = if self.breaks || with_tcp { &VerbsCall::ALL[..] } else { &[VerbsCall::AllocateWindow] };
                DeviceStep::Refuse(one_of(self.random, calls), self.random.below(6) as u8)
            }
            3 | 4 => {
                let kind = one_of(self.random, &[Send, Write, Write, Read, Read, Bind, Invalidate]);
                // Local protection, remote access, remote operation, flushed, retries exceeded, general.
                let status = one_of(self.random, &[4, 10, 11, 5, 12, 21]);
                DeviceStep::Fail(kind, self.random.below(8) as u8, status)
            }
            5 => DeviceStep::QueueError(self.random.below(6) as u8),
            6 | 7 => DeviceStep::PairError,
            8 => DeviceStep::Port(self.random.below(2) == 0),
            _ if self.random.below(3) == 0 => DeviceStep::Fatal,
            _ => DeviceStep::Address,
        }
    }

    /// Draws a send that starts when a counter reaches a threshold.
    fn send_when(&mut self) -> Step {
        let (at, to) = self.pair();
        let (len, counter) = (self.len(), self.random.below(COUNTERS) as u8);
        let (slot, safe) = (self.slot(), self.random.below(2) == 0);
        Step::SendWhen { at, to, len, counter, threshold: self.random.below(4) as u8, slot, safe }
    }

    /// Draws a step that waits for a handle.
    fn handle_wait(&mut self) -> Step {
        let waking = one_of(self.random, &self.wakings);
        let steps = [HandleStep::Poll(waking), HandleStep::Ready, HandleStep::Wait, HandleStep::WaitAndDrop];
        Step::Handle { slot: self.slot(), what: one_of(self.random, &steps) }
    }

    /// Draws a step that ends the use of a handle.
    fn handle_end(&mut self) -> Step {
        let steps = [HandleStep::Cancel, HandleStep::Drop, HandleStep::Forget, HandleStep::Drop];
        Step::Handle { slot: self.slot(), what: one_of(self.random, &steps) }
    }

    /// Draws a wait for several operations.
    fn wait_several(&mut self) -> Step {
        let (slot, count) = (self.slot(), 1 + self.random.below(6) as u8);
        Step::WaitSeveral { slot, count, all: self.random.below(2) == 0 }
    }

    /// Draws an operation on a set. Most of them add operations and take results.
    fn set(&mut self) -> Step {
        let waking = one_of(self.random, &self.wakings);
        let what = match self.random.below(32) {
            0..16 => SetStep::Push { slot: self.slot(), capacity: one_of(self.random, &[0, 1, 2, 8, 8, 8]) },
            16..28 => {
                let ways = [NextBy::Try, NextBy::Wait, NextBy::Poll(waking), NextBy::Future(waking)];
                SetStep::Next(one_of(self.random, &ways))
            }
            28 | 29 => SetStep::Cancel,
            30 => SetStep::Drop,
            _ => SetStep::Forget,
        };
        Step::Set { set: self.random.below(SETS) as u8, what }
    }

    /// Draws an operation on a receive for many messages.
    fn many(&mut self) -> Step {
        let waking = one_of(self.random, &self.wakings);
        let what = match self.random.below(12) {
            0..6 => ManyStep::Poll(waking),
            6..10 => ManyStep::Wait,
            10 => ManyStep::Drop,
            _ => ManyStep::Forget,
        };
        Step::Many { slot: self.random.below(MANY) as u8, what }
    }

    /// Draws an operation on remote procedure calls.
    fn call(&mut self) -> Step {
        let waking = one_of(self.random, &self.wakings);
        let nth = self.random.below(6) as u8;
        let ends = [
            HandleStep::Poll(waking),
            HandleStep::Poll(waking),
            HandleStep::Wait,
            HandleStep::Poll(waking),
            HandleStep::Poll(waking),
            HandleStep::Drop,
            HandleStep::Forget,
        ];
        let what = one_of(self.random, &ends);
        Step::Call(match self.random.below(24) {
            0..6 => CallStep::Call {
                request: one_of(self.random, &[0, 8, 60, 64, 300]),
                answer: one_of(self.random, &[0, 1, 100, 2_032, 2_033, 9_000]),
                has_room: self.random.below(2) == 0,
            },
            6..12 => CallStep::Serve,
            12..15 => CallStep::Reply { nth },
            15 => CallStep::Ignore { nth },
            16..18 => CallStep::Answer { nth, what },
            18..23 => CallStep::Handle { nth, what },
            _ if self.random.below(4) == 0 => CallStep::Restart,
            _ => CallStep::Serve,
        })
    }

    /// Draws an access to a region.
    fn access(&mut self) -> Step {
        let (at, to) = self.pair();
        let by = self.way();
        let (block, slot) = (self.random.below(BLOCKS) as u8, self.slot());
        Step::Access { at, to, block, by, slot, fenced: self.random.below(6) == 0 }
    }

    /// Draws an access through a window.
    fn reach(&mut self) -> Step {
        let (at, to) = self.pair();
        let (by, nth) = (self.way(), self.random.below(3) as u8);
        let (block, slot) = (self.random.below(BLOCKS) as u8, self.slot());
        Step::Reach { at, to, nth, block, by, slot, fenced: self.random.below(6) == 0 }
    }

    fn counter(&mut self) -> Step {
        let counter = self.random.below(COUNTERS) as u8;
        let what = match self.random.below(6) {
            0 | 1 => CounterStep::Add(1 + self.random.below(3) as u8),
            2 | 3 => CounterStep::Defer {
                to: self.random.below(COUNTERS) as u8,
                count: 1 + self.random.below(2) as u8,
                threshold: 1 + self.random.below(4) as u8,
                domain: self.random.below(DOMAINS) as u8,
            },
            4 => CounterStep::Cancel { nth: self.random.below(4) as u8 },
            _ if self.random.below(2) == 0 => CounterStep::Flush { domain: self.random.below(DOMAINS) as u8 },
            _ => CounterStep::EndDomain { domain: self.random.below(DOMAINS) as u8 },
        };
        Step::Counter { counter, what }
    }

    fn window(&mut self, at: u8) -> Step {
        let what = match self.random.below(12) {
            0..4 => WindowStep::Open,
            4..9 => WindowStep::Bind {
                region: self.random.below(3) as u8,
                first: self.random.below(BLOCKS) as u8,
                blocks: self.random.below(BLOCKS) as u8,
                writes: self.random.below(4) > 0,
            },
            9 => WindowStep::Unbind,
            10 => WindowStep::Close,
            _ => WindowStep::Drop,
        };
        Step::Window { at, nth: self.random.below(3) as u8, what }
    }

    fn group(&mut self, at: u8) -> Step {
        let what = one_of(
            self.random,
            &[GroupStep::Join, GroupStep::Join, GroupStep::Post, GroupStep::Post, GroupStep::Leave],
        );
        Step::Group { at, what }
    }

    fn step(&mut self, kind: usize) -> Step {
        let at = self.place();
        match kind {
            0 => self.send(),
            1 => self.receive(),
            2 => Step::Look {
                at,
                from: self.source(),
                tag: self.matched(),
                what: one_of(self.random, &[PollKind::Peek, PollKind::Claim, PollKind::Claim, PollKind::Discard]),
            },
            3 => Step::Claimed { at, nth: self.random.below(4) as u8, discard: self.random.below(3) == 0 },
            4 => Step::Cancel { at, nth: self.random.below(6) as u8 },
            5 => Step::CancelPool { nth: self.random.below(4) as u8 },
            6 => Step::Poll { at, count: 1 + self.random.below(8) as u8 },
            7 => Step::Progress { at, times: 1 + self.random.below(6) as u8 },
            8 => Step::Read { queue: self.random.below(QUEUES) as u8, count: 1 + self.random.below(4) as u8 },
            9 => Step::Tick { nanoseconds: one_of(self.random, &[100, 1_000, 10_000, 200_000]) },
            10 | 21 => self.handle_wait(),
            11 => Step::Close { at, forget: self.random.below(3) == 0 },
            12 => Step::Open { at, moved: self.random.below(4) == 0 },
            13 if self.devices.is_some() => {
                Step::Device { device: self.random.below(DEVICES) as u8, what: self.device() }
            }
            13 => Step::Break { nth: self.random.below(8) as u8 },
            14 => Step::Register { at, raw: self.random.below(2) == 0 },
            15 => Step::Deregister { at, nth: self.random.below(3) as u8, forget: self.random.below(6) == 0 },
            16 | 17 => self.access(),
            18 => self.counter(),
            19 => self.send_when(),
            20 => Step::Share { at },
            22 => self.group(at),
            23 => self.window(at),
            24 => self.reach(),
            25 => self.wait_several(),
            26 => self.set(),
            27 => self.many(),
            28 => self.call(),
            _ => self.handle_end(),
        }
    }
}
