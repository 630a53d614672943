//! What a run does: its settings and its steps, both data that follow from a seed.
//!
//! A step names places, slots and recent operations by small numbers. A step does nothing if its operand does not exist, so any part of a
//! list of steps is a list of steps: this makes it possible to shorten a list that found a fault.

/// Which network a run is made over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// The simulated network: one thread, virtual time.
    Sim,
    /// Endpoints that send to themselves.
    Loopback,
    /// Shared memory.
    Shm,
    /// TCP.
    Tcp,
    /// RDMA, on devices of the double of libibverbs.
    Verbs,
}

impl Transport {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Sim, Self::Loopback, Self::Shm, Self::Tcp, Self::Verbs];

    /// As on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sim => "sim",
            Self::Loopback => "loopback",
            Self::Shm => "shm",
            Self::Tcp => "tcp",
            Self::Verbs => "verbs",
        }
    }
}

/// How a place's endpoint is opened.
#[derive(Clone, Copy, Debug)]
pub struct Seating {
    /// For many threads.
    pub shared: bool,
    /// The queue that it reports to, of those of the run; its own without.
    pub queue: Option<u8>,
    /// Takes receives of the run's shared context.
    pub pool: bool,
    /// Counts what it ends.
    pub counted: bool,
}

/// The devices of a run over RDMA: there are [`DEVICES`].
#[derive(Clone, Copy, Debug)]
pub struct Devices {
    /// Each place has a fabric of its own, which opens the device again.
    pub own_fabrics: bool,
    /// Such fabrics are on two devices in turn.
    pub both: bool,
    /// Connections that no device can make are made over TCP.
    pub with_tcp: bool,
    /// Types of windows that the devices have: a sum of 1, 2 and 4.
    pub windows: u8,
    /// The key of what was ended is given to the next.
    pub reuse: bool,
    /// Reads under way at most.
    pub reads: u8,
    /// Bytes that a request carries with it at most.
    pub inline: u16,
    /// Milliseconds until a request without an answer ends.
    pub timeout: u16,
}

/// What the world of a run is like.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Its network.
    pub transport: Transport,
    /// Of the simulated network.
    pub network_seed: u64,
    /// The longest payload of one frame of the simulated network.
    pub frame_limit: usize,
    /// Bytes under way before the simulated network refuses more.
    pub window: usize,
    /// Nanoseconds that a frame of the simulated network takes at most.
    pub delay: u64,
    /// Connections may break.
    pub breaks: bool,
    /// Of RDMA: the devices.
    pub devices: Option<Devices>,
    /// All endpoints are of one domain.
    pub one_domain: bool,
    /// Bytes of unexpected messages that are kept.
    pub unexpected: usize,
    /// Results that each of the run's queues holds.
    pub queue_limit: usize,
    /// The places.
    pub seats: Vec<Seating>,
    /// Handles are used after their operations have ended.
    pub again: bool,
    /// How buffers are watched: parts of 16 that are made inaccessible, and that are used again at once.
    pub watch: (u8, u8),
}

/// How a message is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendBy {
    /// `post_send`, in up to three segments.
    Raw,
    /// `post_send_one`.
    One,
    /// `post_send` with INJECT, and the buffer overwritten at once.
    RawInject,
    /// `inject_with`, and the buffer overwritten at once.
    Inject,
    /// The safe API.
    Safe,
}

/// When a raw send is complete, and in which order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Level {
    /// Its success is reported.
    pub reported: bool,
    /// 0: as the transport chooses; 1: transmitted; 2: delivered; 3: matched.
    pub level: u8,
    /// After everything before it.
    pub fenced: bool,
    /// More follows.
    pub more: bool,
}

/// How a receive is posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReceiveBy {
    /// `post_recv`.
    Raw,
    /// `post_recv_one`.
    One,
    /// `post_recv` with MULTI_RECEIVE.
    Multi,
    /// The safe API.
    Safe,
    /// `post_recv` of the shared context.
    Pool,
    /// `post_recv` of the shared context with MULTI_RECEIVE.
    PoolMulti,
    /// The shared context's safe API.
    PoolSafe,
}

/// What is done with messages that wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// Whether there is one.
    Peek,
    /// Keeps it for later.
    Claim,
    /// Throws it away.
    Discard,
}

/// What the waker of a task does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waking {
    /// Notes that it was called.
    Quiet,
    /// Panics.
    Panics,
    /// Calls an endpoint.
    Calls,
    /// Calls an endpoint when it is dropped.
    CallsOnDrop,
}

/// What is done with the handle of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandleStep {
    /// `Future::poll`, also after the end.
    Poll(Waking),
    /// `is_ready`, also after the end.
    Ready,
    /// `cancel`, also after the end.
    Cancel,
    /// `wait_for`, of a moment.
    Wait,
    /// `drop`.
    Drop,
    /// `mem::forget`.
    Forget,
}

/// What is done with peers' memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessBy {
    /// `post_write`, or `post_write_one`.
    Write,
    /// `post_write` with INJECT.
    WriteInject,
    /// `post_read`.
    Read,
    /// The safe API's `write`.
    SafeWrite,
    /// The safe API's `read`.
    SafeRead,
    /// An addition that fetches.
    Add,
    /// Like [`Add`](Self::Add), but through the safe API.
    SafeAdd,
    /// A compare-and-swap; with INJECT if set.
    Swap(bool),
    /// An addition that fetches nothing, with INJECT.
    AddInject,
}

impl AccessBy {
    /// Whether it accesses a word.
    #[must_use]
    pub const fn is_word(self) -> bool {
        matches!(self, Self::Add | Self::SafeAdd | Self::Swap(_) | Self::AddInject)
    }

    /// Whether it changes memory.
    #[must_use]
    pub const fn changes(self) -> bool {
        !matches!(self, Self::Read | Self::SafeRead)
    }

    /// Bytes that it accesses, of a block of so many.
    #[must_use]
    pub const fn len(self, block: usize) -> usize {
        if self.is_word() { 8 } else { block }
    }
}

/// What is done with windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowStep {
    /// One is allocated.
    Open,
    /// It is bound to blocks of a region, whatever it is bound to.
    Bind {
        /// The region, of those that are open at the place.
        region: u8,
        /// The first block.
        first: u8,
        /// How many more.
        blocks: u8,
        /// Peers may write.
        writes: bool,
    },
    /// It is bound to nothing.
    Unbind,
    /// It is deallocated.
    Close,
    /// Its handle is dropped.
    Drop,
}

/// What is done with counters and what waits for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CounterStep {
    /// Adds to it.
    Add(u8),
    /// Defers an addition to another counter, in one of the run's domains.
    Defer {
        /// The other counter.
        to: u8,
        /// What is added.
        count: u8,
        /// Above the counter's value.
        threshold: u8,
        /// The domain.
        domain: u8,
    },
    /// Takes deferred work back.
    Cancel {
        /// Which, of those that wait.
        nth: u8,
    },
    /// Takes back what waits for the counter.
    Flush {
        /// Of this domain.
        domain: u8,
    },
    /// Ends a domain that has deferred work, and opens another.
    EndDomain {
        /// The domain.
        domain: u8,
    },
}

/// What is done with groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupStep {
    /// An endpoint joins the group of all places that were open when the first joined.
    Join,
    /// It posts the group's next barrier or sum.
    Post,
    /// It leaves.
    Leave,
}

/// A request to a device, or what a device does later than it could.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// A message.
    Send,
    /// A write of a peer's memory.
    Write,
    /// A read of a peer's memory.
    Read,
    /// A window's binding.
    Bind,
    /// Its end.
    Invalidate,
    /// The way to a peer's port is found.
    Connect,
    /// The completion of a receive is seen.
    Receive,
}

/// A call of libibverbs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Call {
    RegisterMemory,
    AllocateWindow,
    CreateQueue,
    CreateChannel,
    CreatePair,
    ModifyPair,
    AllocateDomain,
}

impl Call {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::RegisterMemory,
        Self::AllocateWindow,
        Self::CreateQueue,
        Self::CreateChannel,
        Self::CreatePair,
        Self::ModifyPair,
        Self::AllocateDomain,
    ];
}

/// What happens to a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceStep {
    /// Requests of this kind begin so many milliseconds late; at once with 0.
    Delay(Request, u8),
    /// A call fails: the one after so many others.
    Refuse(Call, u8),
    /// A request completes with this status: the one after so many others.
    Fail(Request, u8, u8),
    /// A completion queue overflows: the one that was made so many before the last.
    QueueError(u8),
    /// The queue pair that was made last is in error.
    PairError,
    /// The port goes down, or comes up.
    Port(bool),
    /// The port has another address.
    Address,
    /// The device fails permanently.
    Fatal,
}

/// One step.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Step {
    /// Sends a message.
    Send { at: u8, to: u8, len: u32, tag: Option<u8>, data: bool, by: SendBy, level: Level, slot: u8 },
    /// Posts a receive.
    Receive { at: u8, from: Option<u8>, tag: Option<(u8, u8)>, len: u32, by: ReceiveBy, slot: u8 },
    /// Looks for a message that waits.
    Look { at: u8, from: Option<u8>, tag: Option<(u8, u8)>, what: Look },
    /// Receives a claimed message, or throws it away.
    Claimed { at: u8, nth: u8, discard: bool },
    /// Cancels an operation that was posted by the raw API.
    Cancel { at: u8, nth: u8 },
    /// Cancels a receive of the shared context.
    CancelPool { nth: u8 },
    /// Reads the endpoint's own queue.
    Poll { at: u8, count: u8 },
    /// Makes progress.
    Progress { at: u8, times: u8 },
    /// Reads a queue of the run.
    Read { queue: u8, count: u8 },
    /// Lets time pass.
    Tick { nanoseconds: u32 },
    /// Does something with the handle of a safe operation.
    Handle { slot: u8, what: HandleStep },
    /// Closes an endpoint; its handles are dropped before or forgotten.
    Close { at: u8, forget: bool },
    /// Opens an endpoint where one was closed, at its address or another.
    Open { at: u8, moved: bool },
    /// Turns an owned endpoint into a shared one, or clones and drops a handle of a shared one.
    Share { at: u8 },
    /// Breaks a connection.
    Break { nth: u8 },
    /// Something happens to a device.
    Device { device: u8, what: DeviceStep },
    /// Registers memory at a place.
    Register { at: u8, raw: bool },
    /// Closes a region.
    Deregister { at: u8, nth: u8, forget: bool },
    /// Accesses a peer's memory.
    Access { at: u8, to: u8, block: u8, by: AccessBy, slot: u8, fenced: bool },
    /// Does something with a window.
    Window { at: u8, nth: u8, what: WindowStep },
    /// Accesses a peer's memory through a window.
    Reach { at: u8, to: u8, nth: u8, block: u8, by: AccessBy, slot: u8, fenced: bool },
    /// Does something with a counter.
    Counter { counter: u8, what: CounterStep },
    /// Posts a message that is sent when a counter has counted enough.
    SendWhen { at: u8, to: u8, len: u32, counter: u8, threshold: u8, slot: u8, safe: bool },
    /// Does something with a group.
    Group { at: u8, what: GroupStep },
}

impl Step {
    /// Whether it is an event of a life rather than an operation.
    #[must_use]
    pub const fn is_life(&self) -> bool {
        match self {
            Self::Close { .. }
            | Self::Open { .. }
            | Self::Share { .. }
            | Self::Break { .. }
            | Self::Device { .. }
            | Self::Cancel { .. }
            | Self::CancelPool { .. }
            | Self::Deregister { .. } => true,
            Self::Handle { what, .. } => !matches!(what, HandleStep::Poll(_) | HandleStep::Ready),
            Self::Group { what, .. } => matches!(what, GroupStep::Leave),
            Self::Window { what, .. } => !matches!(what, WindowStep::Open | WindowStep::Bind { .. }),
            Self::Counter { what, .. } => matches!(what, CounterStep::EndDomain { .. } | CounterStep::Cancel { .. }),
            _ => false,
        }
    }
}

/// A run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Its seed.
    pub seed: u64,
    /// Its world.
    pub settings: Settings,
    /// Its steps.
    pub steps: Vec<Step>,
}

/// Handles that a run has at a time.
pub const SLOTS: usize = 16;
/// Devices of a run over RDMA.
pub const DEVICES: usize = 2;
/// Queues of a run.
pub const QUEUES: usize = 2;
/// Counters of a run.
pub const COUNTERS: usize = 3;
/// Domains of a run that have deferred work.
pub const DOMAINS: usize = 2;
/// Parts of a region that are accessed each by itself.
pub const BLOCKS: usize = 8;

/// A seed with this bit stands for a long run: many operations, and a life event for about every hundred of them.
pub const LONG: u64 = 1 << 63;

impl Plan {
    /// The same run with these of its steps.
    #[must_use]
    pub fn with(&self, kept: &[usize]) -> Self {
        let steps = kept.iter().filter_map(|index| self.steps.get(*index)).copied().collect();
        Self { seed: self.seed, settings: self.settings.clone(), steps }
    }
}
