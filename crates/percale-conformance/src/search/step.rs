//! A run as data: its settings and steps. Both are generated from a seed.
//!
//! A step identifies places, slots and recent operations by small numbers. A step has no effect if its operand does not
//! exist, so any subset of a list of steps is a valid list of steps. This makes it possible to shorten a list that
//! found a fault.

/// The network of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunTransport {
    /// The simulated network: one thread, virtual time.
    Sim,
    /// Endpoints that send to themselves.
    Loopback,
    /// Shared memory.
    Shm,
    /// TCP.
    Tcp,
    /// RDMA, on devices of the test double of libibverbs.
    Verbs,
}

impl RunTransport {
    /// All transports.
    pub const ALL: [Self; 5] = [Self::Sim, Self::Loopback, Self::Shm, Self::Tcp, Self::Verbs];

    /// Returns the name on the command line.
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

/// How the endpoint of a place is opened.
#[derive(Clone, Copy, Debug)]
pub struct OpenOptions {
    /// Whether many threads may use the endpoint.
    pub shared: bool,
    /// The queue to which the endpoint reports, one of the run's queues. `None` for its own queue.
    pub queue: Option<u8>,
    /// Whether it uses the run's shared receive context.
    pub pool: bool,
    /// Whether a counter counts its completed operations.
    pub counted: bool,
}

/// The settings of the devices of a run over RDMA. There are [`DEVICES`] devices.
#[derive(Clone, Copy, Debug)]
pub struct DeviceSettings {
    /// Whether each place has a separate fabric, which opens the device again.
    pub own_fabrics: bool,
    /// Whether these fabrics alternate between the two devices.
    pub both: bool,
    /// Whether connections that no device can make use TCP.
    pub with_tcp: bool,
    /// The types of windows that the devices support: a sum of 1, 2 and 4.
    pub windows: u8,
    /// Whether a new object gets the key of a destroyed one.
    pub reuse: bool,
    /// The maximum number of outstanding reads.
    pub reads: u8,
    /// The maximum number of inline bytes of a request.
    pub inline: u16,
    /// The timeout of a request in milliseconds.
    pub timeout: u16,
}

/// The settings of a run.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The network.
    pub transport: RunTransport,
    /// The seed of the simulated network.
    pub network_seed: u64,
    /// The maximum payload of one frame of the simulated network.
    pub frame_limit: usize,
    /// The number of outstanding bytes above which the simulated network rejects frames.
    pub window: usize,
    /// The maximum delay in nanoseconds of a frame of the simulated network.
    pub delay: u64,
    /// Whether connections may break.
    pub breaks: bool,
    /// The devices, for RDMA.
    pub devices: Option<DeviceSettings>,
    /// Whether all endpoints belong to one domain.
    pub one_domain: bool,
    /// The limit of unexpected messages in bytes.
    pub unexpected: usize,
    /// The capacity of each of the run's queues.
    pub queue_limit: usize,
    /// The places.
    pub seats: Vec<OpenOptions>,
    /// Whether handles are used again after their operations have ended.
    pub again: bool,
    /// The fractions, in sixteenths, of the buffers that become inaccessible and of those that are reused immediately.
    pub watch: (u8, u8),
}

/// How a message is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendBy {
    /// `post_send`, in up to three segments.
    Raw,
    /// `post_send_one`.
    One,
    /// `post_send` with INJECT. The buffer is overwritten immediately.
    RawInject,
    /// `inject_with`. The buffer is overwritten immediately.
    Inject,
    /// The safe API.
    Safe,
}

/// The completion level and the ordering of a raw send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Level {
    /// Whether the success of the send is reported.
    pub reported: bool,
    /// 0: chosen by the transport; 1: transmitted; 2: delivered; 3: matched.
    pub level: u8,
    /// Whether it is executed after all earlier operations.
    pub fenced: bool,
    /// Whether the flag MORE is set.
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
    /// The safe API, for many messages.
    SafeMany,
    /// `post_recv` of the shared context.
    Pool,
    /// `post_recv` of the shared context with MULTI_RECEIVE.
    PoolMulti,
    /// The safe API of the shared context.
    PoolSafe,
}

/// Operations on waiting messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PollKind {
    /// Checks whether a message is waiting.
    Peek,
    /// Reserves a message for a later receive.
    Claim,
    /// Discards a message.
    Discard,
}

/// The behavior of the waker of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waking {
    /// Records that the waker was called.
    Quiet,
    /// Panics.
    Panics,
    /// Calls an endpoint.
    Calls,
    /// Calls an endpoint when it is dropped.
    CallsOnDrop,
}

/// Operations on the handle of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandleStep {
    /// `Future::poll`, also after the operation has ended.
    Poll(Waking),
    /// `is_ready`, also after the operation has ended.
    Ready,
    /// `cancel`, also after the operation has ended.
    Cancel,
    /// `wait_for`, with a short timeout, or `wait` if the operation has ended. The handle is kept.
    Wait,
    /// Like [`Wait`](Self::Wait). The handle is dropped.
    WaitAndDrop,
    /// `drop`.
    Drop,
    /// `mem::forget`.
    Forget,
}

/// How the next result of a set is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextBy {
    /// `try_next`.
    Try,
    /// `next_for`, with a short timeout.
    Wait,
    /// `poll_next`.
    Poll(Waking),
    /// `next_ended`, polled once and dropped.
    Future(Waking),
}

/// Operations on a set of operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetStep {
    /// `push` of the operation in this slot. A new set has this capacity.
    Push {
        /// The slot.
        slot: u8,
        /// The capacity.
        capacity: u8,
    },
    /// Takes the next result.
    Next(NextBy),
    /// `cancel_all`.
    Cancel,
    /// `drop`.
    Drop,
    /// `mem::forget`.
    Forget,
}

/// Operations on a receive for many messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ManyStep {
    /// `poll_next`, also after the receive has ended.
    Poll(Waking),
    /// `wait_for`, with a short timeout, also after the receive has ended.
    Wait,
    /// `drop`.
    Drop,
    /// `mem::forget`.
    Forget,
}

/// Operations on remote procedure calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallStep {
    /// Makes a call with a request of this length.
    Call {
        /// The length of the request in bytes.
        request: u16,
        /// The length of the answer in bytes.
        answer: u16,
        /// Whether the client provides a buffer for the answer.
        has_room: bool,
    },
    /// Takes the next request at the server.
    Serve,
    /// Answers a request.
    Reply {
        /// The index among the requests that the server has taken.
        nth: u8,
    },
    /// Drops a request without a reply.
    Ignore {
        /// The index among the requests that the server has taken.
        nth: u8,
    },
    /// Executes an operation on an answer that is being sent.
    Answer {
        /// The index among the answers.
        nth: u8,
        /// The operation. Answers are polled, dropped or forgotten.
        what: HandleStep,
    },
    /// Executes an operation on a call.
    Handle {
        /// The index among the calls.
        nth: u8,
        /// The operation. Calls are polled, waited for, dropped or forgotten.
        what: HandleStep,
    },
    /// Closes the server and its endpoint, and opens others.
    Restart,
}

/// Operations on the memory of peers.
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
    /// A fetching addition.
    Add,
    /// Like [`Add`](Self::Add), but through the safe API.
    SafeAdd,
    /// A compare-and-swap. The flag selects INJECT.
    Swap(bool),
    /// An addition without fetching, with INJECT.
    AddInject,
}

impl AccessBy {
    /// Returns whether the operation accesses a word.
    #[must_use]
    pub const fn is_word(self) -> bool {
        matches!(self, Self::Add | Self::SafeAdd | Self::Swap(_) | Self::AddInject)
    }

    /// Returns whether the operation changes memory.
    #[must_use]
    pub const fn changes(self) -> bool {
        !matches!(self, Self::Read | Self::SafeRead)
    }

    /// Returns the number of bytes that the operation accesses in a block of `block` bytes.
    #[must_use]
    pub const fn len(self, block: usize) -> usize {
        if self.is_word() { 8 } else { block }
    }
}

/// Operations on windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowStep {
    /// Allocates a window.
    Open,
    /// Binds the window to blocks of a region, even if it is already bound.
    Bind {
        /// The index of the region among those that are open at the place.
        region: u8,
        /// The first block.
        first: u8,
        /// The number of further blocks.
        blocks: u8,
        /// Whether peers may write.
        writes: bool,
    },
    /// Removes the binding of the window.
    Unbind,
    /// Deallocates the window.
    Close,
    /// Drops the handle of the window.
    Drop,
}

/// Operations on counters, and on work that waits for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CounterStep {
    /// Adds to the counter.
    Add(u8),
    /// Defers an addition to another counter, in one of the run's domains.
    Defer {
        /// The other counter.
        to: u8,
        /// The added number.
        count: u8,
        /// The threshold, relative to the counter's value.
        threshold: u8,
        /// The domain.
        domain: u8,
    },
    /// Cancels deferred work.
    Cancel {
        /// The index among the waiting work.
        nth: u8,
    },
    /// Cancels all work that waits for the counter.
    Flush {
        /// The domain of the work.
        domain: u8,
    },
    /// Closes a domain that has deferred work, and opens another.
    EndDomain {
        /// The domain.
        domain: u8,
    },
}

/// Operations on groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupStep {
    /// An endpoint joins the group of all places that were open when the first member joined.
    Join,
    /// An endpoint posts the group's next barrier or sum.
    Post,
    /// An endpoint leaves the group.
    Leave,
}

/// Requests to a device, and events of a device, that can be delayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// A message.
    Send,
    /// A write to the memory of a peer.
    Write,
    /// A read of the memory of a peer.
    Read,
    /// The binding of a window.
    Bind,
    /// The invalidation of a window.
    Invalidate,
    /// The address resolution of a peer's port.
    Connect,
    /// The completion of a receive.
    Receive,
}

/// A call to libibverbs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are descriptive")]
pub enum VerbsCall {
    RegisterMemory,
    AllocateWindow,
    CreateQueue,
    CreateChannel,
    CreatePair,
    ModifyPair,
    AllocateDomain,
}

impl VerbsCall {
    /// All calls.
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

/// Events of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceStep {
    /// Delays requests of this kind by this number of milliseconds. 0 ends the delay.
    Delay(Request, u8),
    /// Makes a call fail after this number of successful calls.
    Refuse(VerbsCall, u8),
    /// Completes a request with this status, after this number of other requests.
    Fail(Request, u8, u8),
    /// Makes a completion queue overflow. The number 0 selects the queue that was created last, 1 the one before it.
    QueueError(u8),
    /// Moves the queue pair that was created last to the error state.
    PairError,
    /// Takes the port down or brings it up.
    Port(bool),
    /// Changes the address of the port.
    Address,
    /// Makes the device fail permanently.
    Fatal,
}

/// One step.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the names are descriptive")]
pub enum Step {
    /// Sends a message.
    Send { at: u8, to: u8, len: u32, tag: Option<u8>, data: bool, by: SendBy, level: Level, slot: u8 },
    /// Posts a receive.
    Receive { at: u8, from: Option<u8>, tag: Option<(u8, u8)>, len: u32, by: ReceiveBy, slot: u8 },
    /// Looks for a waiting message.
    Look { at: u8, from: Option<u8>, tag: Option<(u8, u8)>, what: PollKind },
    /// Receives or discards a claimed message.
    Claimed { at: u8, nth: u8, discard: bool },
    /// Cancels an operation that was posted through the raw API.
    Cancel { at: u8, nth: u8 },
    /// Cancels a receive of the shared context.
    CancelPool { nth: u8 },
    /// Reads the endpoint's own queue.
    Poll { at: u8, count: u8 },
    /// Makes progress.
    Progress { at: u8, times: u8 },
    /// Reads a queue of the run.
    Read { queue: u8, count: u8 },
    /// Advances the time.
    Tick { nanoseconds: u32 },
    /// Executes an operation on the handle of a safe operation.
    Handle { slot: u8, what: HandleStep },
    /// Waits for any or all of a few operations of one kind.
    WaitSeveral { slot: u8, count: u8, all: bool },
    /// Executes an operation on a set of operations.
    Set { set: u8, what: SetStep },
    /// Executes an operation on a receive for many messages.
    Many { slot: u8, what: ManyStep },
    /// Executes an operation on remote procedure calls.
    Call(CallStep),
    /// Drops or forgets the handles of an endpoint, and then closes the endpoint.
    Close { at: u8, forget: bool },
    /// Opens an endpoint at a place whose endpoint was closed, at the same address or at a new one.
    Open { at: u8, moved: bool },
    /// Converts an owned endpoint into a shared one, or clones and drops a handle of a shared one.
    Share { at: u8 },
    /// Breaks a connection.
    Break { nth: u8 },
    /// Causes an event of a device.
    Device { device: u8, what: DeviceStep },
    /// Registers memory at a place.
    Register { at: u8, raw: bool },
    /// Closes a region.
    Deregister { at: u8, nth: u8, forget: bool },
    /// Accesses a peer's memory.
    Access { at: u8, to: u8, block: u8, by: AccessBy, slot: u8, fenced: bool },
    /// Executes an operation on a window.
    Window { at: u8, nth: u8, what: WindowStep },
    /// Accesses a peer's memory through a window.
    Reach { at: u8, to: u8, nth: u8, block: u8, by: AccessBy, slot: u8, fenced: bool },
    /// Executes an operation on a counter.
    Counter { counter: u8, what: CounterStep },
    /// Posts a message that is sent when a counter reaches a threshold.
    SendWhen { at: u8, to: u8, len: u32, counter: u8, threshold: u8, slot: u8, safe: bool },
    /// Executes an operation on a group.
    Group { at: u8, what: GroupStep },
}

impl Step {
    /// Returns whether the step is a lifecycle event and not an operation.
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
            Self::Set { what, .. } => matches!(what, SetStep::Cancel | SetStep::Drop | SetStep::Forget),
            Self::Many { what, .. } => matches!(what, ManyStep::Drop | ManyStep::Forget),
            Self::Call(what) => !matches!(what, CallStep::Call { .. } | CallStep::Serve | CallStep::Reply { .. }),
            Self::Group { what, .. } => matches!(what, GroupStep::Leave),
            Self::Window { what, .. } => !matches!(what, WindowStep::Open | WindowStep::Bind { .. }),
            Self::Counter { what, .. } => matches!(what, CounterStep::EndDomain { .. } | CounterStep::Cancel { .. }),
            _ => false,
        }
    }
}

/// A run.
#[derive(Clone, Debug)]
pub struct RunPlan {
    /// The seed.
    pub seed: u64,
    /// The settings of the run.
    pub settings: Settings,
    /// The steps.
    pub steps: Vec<Step>,
}

/// The number of handles that a run can hold.
pub const SLOTS: usize = 16;
/// The number of sets of operations that a run can hold.
pub const SETS: usize = 3;
/// The number of receives for many messages that a run can hold.
pub const MANY: usize = 3;
/// The number of devices of a run over RDMA.
pub const DEVICES: usize = 2;
/// The number of queues of a run.
pub const QUEUES: usize = 2;
/// The number of counters of a run.
pub const COUNTERS: usize = 3;
/// The number of domains of a run that have deferred work.
pub const DOMAINS: usize = 2;
/// The number of parts of a region that are accessed separately.
pub const BLOCKS: usize = 8;

/// The bit of a seed that selects a long run: many operations, and about one lifecycle event for every hundred of them.
pub const LONG: u64 = 1 << 63;

impl RunPlan {
    /// Returns the same run with only these steps.
    #[must_use]
    pub fn with(&self, kept: &[usize]) -> Self {
        let steps = kept.iter().filter_map(|index| self.steps.get(*index)).copied().collect();
        Self { seed: self.seed, settings: self.settings.clone(), steps }
    }
}
