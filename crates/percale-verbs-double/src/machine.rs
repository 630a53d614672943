//! The state of this process's devices, which is one value behind one lock.
//!
//! A forked child has its own state, because the page with the pointer to the state is wiped in the child. Other
//! inherited resources (the sockets of the thread) are closed in the child, so that peers detect the end of the parent.

use std::collections::{HashMap, VecDeque};
use std::ffi::c_int;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use crate::abi;
use crate::control::{self, Device, InjectedEvent};
use crate::descriptors::{add, in_child, take};
use crate::keys::Keys;
use crate::network::Network;
use crate::pair::Pair;

/// An opened device.
pub(crate) struct Opened {
    /// The index of the device in the list of devices.
    pub(crate) device: usize,
    /// The `async_fd`, which counts the events below.
    pub(crate) fd: c_int,
    pub(crate) events: VecDeque<(c_int, u64)>,
    /// The number of protection domains, queues and channels of the context.
    pub(crate) users: u32,
}

/// A protection domain.
pub(crate) struct Domain {
    pub(crate) context: u32,
    /// The number of regions, windows and queue pairs in the domain.
    pub(crate) users: u32,
}

/// A completion channel.
pub(crate) struct Channel {
    pub(crate) context: u32,
    pub(crate) fd: c_int,
    pub(crate) events: VecDeque<u32>,
    pub(crate) users: u32,
}

/// A completion, and the side of the queue pair to which it belongs.
pub(crate) struct CompletionEntry {
    pub(crate) wc: abi::Wc,
    pub(crate) is_send: bool,
    /// The time from which the completion is visible.
    pub(crate) ready: Option<Instant>,
}

/// A completion queue.
pub(crate) struct Queue {
    /// The address of the queue's structure, for events.
    pub(crate) ptr: u64,
    pub(crate) context: u32,
    pub(crate) channel: Option<u32>,
    pub(crate) capacity: usize,
    pub(crate) entries: VecDeque<CompletionEntry>,
    pub(crate) armed: bool,
    /// Whether the queue has failed, after which it does not accept further completions.
    pub(crate) dead: bool,
    /// The number of events that were read and not acknowledged.
    pub(crate) unacknowledged: u32,
    pub(crate) users: u32,
}

/// The reasons why a command was not executed.
pub(crate) enum CommandError {
    /// The command does not exist.
    Meaningless(String),
    /// There is no object for the event.
    Nothing,
}

/// The state of this process's devices.
#[derive(Default)]
pub(crate) struct Machine {
    pub(crate) devices: Vec<Device>,
    pub(crate) contexts: HashMap<u32, Opened>,
    pub(crate) domains: HashMap<u32, Domain>,
    pub(crate) channels: HashMap<u32, Channel>,
    pub(crate) queues: HashMap<u32, Queue>,
    pub(crate) pairs: HashMap<u32, Pair>,
    pub(crate) keys: Keys,
    pub(crate) network: Option<Network>,
    /// Queue pairs that wait until a given time.
    pub(crate) timers: Vec<(Instant, u32)>,
    next: u32,
    next_pair: u32,
}

/// Returns the page with the pointer to the state. In a child the page is zero.
fn page() -> &'static AtomicPtr<Mutex<Machine>> {
    static PAGE: OnceLock<usize> = OnceLock::new();
    let page = *PAGE.get_or_init(|| {
        // SAFETY: a new mapping at an address of the kernel's choice.
        let page = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                4096,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        assert_ne!(page, libc::MAP_FAILED, "no memory");
        // SAFETY: the page belongs to this function, and a child finds it zeroed.
        assert_eq!(unsafe { libc::madvise(page, 4096, libc::MADV_WIPEONFORK) }, 0, "MADV_WIPEONFORK");
        // SAFETY: the handler only accesses memory that a child may access.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        page.expose_provenance()
    });
    // SAFETY: the page is aligned, zeroed at first (a null pointer), written only through this type, and never
    // unmapped.
    unsafe { &*std::ptr::with_exposed_provenance(page) }
}

/// Locks the state of this process.
pub(crate) fn machine() -> MutexGuard<'static, Machine> {
    let page = page();
    let mut machine = page.load(Ordering::Acquire);
    if machine.is_null() {
        let fresh = Box::into_raw(Box::new(Mutex::new(Machine::new())));
        match page.compare_exchange(machine, fresh, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => machine = fresh,
            Err(other) => {
                // SAFETY: the pointer was not published, so it has no other user.
                drop(unsafe { Box::from_raw(fresh) });
                machine = other;
            }
        }
    }
    // SAFETY: the state is never freed.
    unsafe { &*machine }.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Machine {
    fn new() -> Self {
        let mut machine = Self::default();
        let text = std::env::var("PERCALE_VERBS_DOUBLE").unwrap_or_default();
        let obeyed = control::execute_command(&mut machine.devices, &text);
        if let Err(why) = obeyed {
            eprintln!("PERCALE_VERBS_DOUBLE: {why}");
        }
        if machine.devices.is_empty() {
            machine.devices.push(Device::new("double0", 1));
        }
        machine
    }

    /// Assigns a number that no object has at the moment.
    pub(crate) fn number(&mut self) -> u32 {
        self.next += 1;
        self.next
    }

    /// Assigns a number to a queue pair, from the numbers of this process.
    pub(crate) fn pair_number(&mut self) -> Option<u32> {
        let first = self.network.as_ref()?.first_pair();
        for _ in 0..=crate::network::PAIRS {
            self.next_pair = (self.next_pair + 1) % crate::network::PAIRS;
            let number = first | self.next_pair;
            if !self.pairs.contains_key(&number) {
                return Some(number);
            }
        }
        None
    }

    /// Returns the device of a context.
    pub(crate) fn device(&mut self, context: u32) -> &mut Device {
        let at = self.contexts[&context].device;
        &mut self.devices[at]
    }

    /// Returns an error if a call must fail on this context's device.
    pub(crate) fn fails(&mut self, context: u32, call: &str) -> Result<(), c_int> {
        let device = self.device(context);
        match device.fails(call) {
            Some(errno) => Err(errno),
            None if device.gone => Err(libc::EIO),
            None => Ok(()),
        }
    }

    /// Checks whether a device may have one more object of a kind than `used`, according to its limit.
    pub(crate) fn has_room(&mut self, context: u32, limit: &str, used: usize) -> Result<(), c_int> {
        if used < self.device(context).settings.limit(limit) as usize { Ok(()) } else { Err(libc::ENOMEM) }
    }

    /// Returns whether two contexts belong to the same device.
    pub(crate) fn is_same(&self, one: u32, other: u32) -> bool {
        self.contexts[&one].device == self.contexts[&other].device
    }

    /// Reports an event to a context.
    pub(crate) fn event(&mut self, context: u32, kind: c_int, element: u64) {
        if let Some(opened) = self.contexts.get_mut(&context) {
            opened.events.push_back((kind, element));
            add(opened.fd);
        }
    }

    /// Removes the events of an object that is destroyed.
    pub(crate) fn forget_events(&mut self, context: u32, element: u64) {
        let Some(opened) = self.contexts.get_mut(&context) else { return };
        let before = opened.events.len();
        opened.events.retain(|(_, other)| *other != element || element == 0);
        let mut nobody = [libc::pollfd { fd: opened.fd, events: libc::POLLIN, revents: 0 }];
        for _ in opened.events.len()..before {
            // SAFETY: the list is valid for the call.
            if unsafe { libc::poll(nobody.as_mut_ptr(), 1, 0) } == 1 {
                _ = take(opened.fd);
            }
        }
    }

    /// Adds a completion to a queue.
    pub(crate) fn complete(&mut self, queue: u32, entry: CompletionEntry) {
        let Some(found) = self.queues.get_mut(&queue) else { return };
        if found.dead {
            return;
        }
        if found.entries.len() >= found.capacity {
            return self.overflow(queue);
        }
        let ready = entry.ready;
        found.entries.push_back(entry);
        match ready {
            Some(ready) => self.at(ready, 0),
            None => self.report(queue),
        }
    }

    /// Notifies the queue's channel of a completion, if a notification was requested.
    fn report(&mut self, queue: u32) {
        let Some(found) = self.queues.get_mut(&queue) else { return };
        if std::mem::take(&mut found.armed)
            && let Some(channel) = found.channel.and_then(|channel| self.channels.get_mut(&channel))
        {
            channel.events.push_back(queue);
            add(channel.fd);
        }
    }

    /// Notifies channels of completions that have become visible.
    pub(crate) fn report_late(&mut self) {
        let now = Instant::now();
        let is_late =
            |queue: &Queue| queue.entries.front().is_some_and(|entry| entry.ready.is_some_and(|ready| ready <= now));
        let late: Vec<u32> =
            self.queues.iter().filter(|(_, queue)| is_late(queue)).map(|(number, _)| *number).collect();
        late.into_iter().for_each(|queue| self.report(queue));
    }

    /// Marks a completion queue as failed. It does not accept further completions, and its queue pairs enter the error
    /// state.
    pub(crate) fn overflow(&mut self, queue: u32) {
        let Some(found) = self.queues.get_mut(&queue) else { return };
        found.dead = true;
        let (context, ptr) = (found.context, found.ptr);
        self.event(context, abi::EVENT_CQ_ERR, ptr);
        let users = |pair: &Pair| pair.send_queue == queue || pair.receive_queue == queue;
        let pairs: Vec<u32> = self.pairs.iter().filter(|(_, pair)| users(pair)).map(|(number, _)| *number).collect();
        for number in pairs {
            let ptr = self.pairs[&number].ptr;
            self.event(context, abi::EVENT_QP_FATAL, ptr);
            self.pair_error(number);
        }
    }

    /// Executes commands.
    pub(crate) fn execute_command(&mut self, text: &str) -> Result<(), CommandError> {
        for (device, happening) in
            control::execute_command(&mut self.devices, text).map_err(CommandError::Meaningless)?
        {
            let of = |opened: &Opened| opened.device == device;
            let contexts: Vec<u32> =
                self.contexts.iter().filter(|(_, opened)| of(opened)).map(|(number, _)| *number).collect();
            match happening {
                InjectedEvent::Fatal => {
                    self.devices[device].gone = true;
                    // The requests of these contexts never complete.
                    self.pairs.values_mut().filter(|pair| contexts.contains(&pair.context)).for_each(Pair::vanish);
                    contexts.iter().for_each(|context| self.event(*context, abi::EVENT_DEVICE_FATAL, 0));
                }
                InjectedEvent::Port(up) => {
                    self.devices[device].settings.up = up;
                    let event = if up { abi::EVENT_PORT_ACTIVE } else { abi::EVENT_PORT_ERR };
                    contexts.iter().for_each(|context| self.event(*context, event, 1));
                }
                InjectedEvent::Gid => {
                    let settings = &mut self.devices[device].settings;
                    settings.gid = settings.gid.wrapping_add(100);
                    contexts.iter().for_each(|context| self.event(*context, abi::EVENT_GID_CHANGE, 1));
                }
                InjectedEvent::Queue(before) => {
                    let mut queues: Vec<u32> = self.queues.keys().copied().collect();
                    queues.retain(|queue| contexts.contains(&self.queues[queue].context));
                    queues.sort_unstable();
                    let queue = queues.iter().rev().nth(before).ok_or(CommandError::Nothing)?;
                    self.overflow(*queue);
                }
                InjectedEvent::Pair => {
                    let of = self.pairs.iter().filter(|(_, pair)| contexts.contains(&pair.context));
                    let last =
                        of.max_by_key(|(_, pair)| pair.made).map(|(number, pair)| (*number, pair.context, pair.ptr));
                    let (number, context, ptr) = last.ok_or(CommandError::Nothing)?;
                    self.event(context, abi::EVENT_QP_FATAL, ptr);
                    self.pair_error(number);
                }
            }
        }
        Ok(())
    }

    /// Makes the thread check a queue pair at this time.
    pub(crate) fn at(&mut self, when: Instant, pair: u32) {
        self.timers.push((when, pair));
        self.wake();
    }

    /// Wakes up the thread.
    pub(crate) fn wake(&self) {
        if let Some(network) = &self.network {
            add(network.wake);
        }
    }
}
