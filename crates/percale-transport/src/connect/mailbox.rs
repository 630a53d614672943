//! The mailbox through which the service thread reports events to an endpoint.
//!
//! A mailbox is a locked list, a flag that its owner can read at almost no cost, and a way to wake the owner. The flag is set after the push and
//! cleared under the lock, so a notice is never missed; at most, the owner takes the lock and finds nothing.

use std::fmt;
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::ConnectError;
use crate::peer_process::PeerProcess;
use crate::shm::Mappings;
use crate::system::process_socket::ProcessSocket;
use crate::verbs::Wire;
use crate::wire::hello::Incarnation;

/// The identity of a connection's peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerIdentity {
    /// The incarnation of the peer endpoint.
    pub incarnation: Incarnation,
    /// The address that it advertises; where that is another machine's loopback address, the one it called from.
    pub address: SocketAddr,
    /// The context at that address.
    pub context: u16,
    /// Whether a call to that address met this peer. If not, the peer merely claims the address.
    pub proven: bool,
    /// Its process, as this process sees it; 0 if it does not. Known over shared memory only.
    pub pid: i32,
    /// Its user: over shared memory the kernel's word, else its own.
    pub uid: u32,
    /// Whether the peer claims to run on this very kernel.
    pub host_local: bool,
}

/// The local endpoint's doorbell, as far as connection set-up needs it.
pub trait LocalBell: Send + Sync {
    /// The sealed memory of the doorbell page, and the eventfd by which peers wake the endpoint. `None` if peers cannot ring it: then the
    /// endpoint has no shared memory.
    fn descriptors(&self) -> Option<[BorrowedFd<'_>; 2]>;
    /// Reserves a bit for one peer; `None` if all are taken. The link gives it back when it is dropped.
    fn allocate(&self) -> Option<u32>;
    /// Gives back a bit that no link came to own.
    fn release(&self, bit: u32);
    /// Makes the sealed memory of a new pair.
    ///
    /// # Errors
    /// The error that the kernel reports.
    fn make_pair(&self) -> std::io::Result<OwnedFd>;
    /// Maps the memory of a pair and the page of a peer for a link; `None` if the link is to do that.
    ///
    /// # Errors
    /// The error that the kernel reports.
    fn map(&self, pair: BorrowedFd<'_>, peer_bell: BorrowedFd<'_>) -> std::io::Result<Option<Mappings>> {
        let _ = (pair, peer_bell);
        Ok(None)
    }
    /// How large pair memory is, in bytes.
    fn pair_bytes(&self) -> u64;
    /// How large a doorbell page is, in bytes.
    fn bell_bytes(&self) -> u64;
}

/// What a link over shared memory is made of.
#[derive(Debug)]
pub struct ShmParts {
    /// 0 on the side that connected, 1 on the other.
    pub side: usize,
    /// The sealed memory with both rings.
    pub pair: OwnedFd,
    /// The bit of our doorbell that the peer sets; now the link's to give back.
    pub my_bit: u32,
    /// The sealed memory of the peer's doorbell page.
    pub peer_bell: OwnedFd,
    /// Both of these mapped, if they are already.
    pub mappings: Option<Mappings>,
    /// The eventfd that wakes the peer.
    pub peer_event: OwnedFd,
    /// The bit of the peer's doorbell that we set. Not checked against the page's size.
    pub peer_bit: u32,
    /// The Unix socket (SOCK_SEQPACKET, non-blocking).
    pub control: ProcessSocket,
    /// The address of a word in the peer's memory, and its value, to find out whether that memory can be read.
    pub peer_nonce: (u64, u64),
    /// Whether the endpoint allows reading and writing the peer's memory directly.
    pub cma: bool,
    /// The peer's process.
    pub process: Arc<PeerProcess>,
}

/// An established connection, still without its link.
#[derive(Debug)]
pub enum Made {
    /// Over shared memory.
    Shm(ShmParts),
    /// Over TCP: non-blocking, without delay; the peer's first frame is the next to read.
    Tcp(ProcessSocket),
    /// Over connected queue pairs, and the TCP connection over which the two sides met. The end of that TCP connection means that the peer has ended.
    Verbs(Box<Wire>, ProcessSocket),
}

/// An event that the service thread reports to an endpoint.
#[derive(Debug)]
#[non_exhaustive]
pub enum Notice {
    /// A connection stands.
    Established {
        /// The attempt that it settles, if there was one.
        attempt: Option<u64>,
        /// Names the connection for [`Registration::closed`](super::Registration::closed) and in [`Notice::Dead`].
        serial: u64,
        /// The peer of the connection.
        identity: PeerIdentity,
        /// What to make the link of.
        link: Made,
        /// The reason for this transport.
        reason: String,
    },
    /// An attempt failed.
    Failed {
        /// The attempt.
        attempt: u64,
        /// The reason.
        error: ConnectError,
    },
    /// An attempt reached a peer to which a connection exists already, or this endpoint itself. The endpoint that answered has proved that it holds
    /// that connection.
    Aliased {
        /// The attempt.
        attempt: u64,
        /// The incarnation that it reached.
        incarnation: Incarnation,
    },
    /// An established connection is over: its peer died, closed it, or lost it. What arrived before is still in it.
    Dead {
        /// The connection.
        serial: u64,
        /// The incarnation of its peer.
        incarnation: Incarnation,
        /// The reason.
        reason: String,
    },
    /// Another incarnation was reached at the advertised address of a connection's peer, so that one is gone. Comes
    /// before the new one's [`Notice::Established`].
    Replaced {
        /// The old connection.
        serial: u64,
        /// The incarnation of the former peer.
        old: Incarnation,
        /// The incarnation that was reached at the address.
        new: Incarnation,
    },
    /// A stranger called and was turned away. Only the latest few are kept for an owner that does not look.
    TurnedAway {
        /// The address from which it called.
        from: SocketAddr,
        /// The reason.
        error: ConnectError,
    },
}

/// How many strangers an unread mailbox remembers.
const STRANGERS: usize = 64;

/// The notices for one endpoint.
pub struct Mailbox {
    flag: AtomicBool,
    queue: Mutex<Vec<Notice>>,
    wake: Box<dyn Fn() + Send + Sync>,
}

impl fmt::Debug for Mailbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mailbox").field("flag", &self.flag).finish_non_exhaustive()
    }
}

impl Mailbox {
    /// Creates an empty mailbox. `wake` is called whenever a notice has arrived; it must not block. If `wake` executes a sequentially consistent
    /// fence, a thread that looks after a later sequentially consistent fence of its own sees everything that was stored before the fence in `wake`.
    pub fn new(wake: impl Fn() + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self { flag: AtomicBool::new(false), queue: Mutex::new(Vec::new()), wake: Box::new(wake) })
    }

    /// Returns whether there may be something. Costs one relaxed load.
    #[must_use]
    #[inline]
    pub fn has_notices(&self) -> bool {
        self.flag.load(Ordering::Relaxed)
    }

    /// Everything that arrived, oldest first.
    #[must_use]
    pub fn take(&self) -> Vec<Notice> {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        self.flag.store(false, Ordering::Relaxed);
        std::mem::take(&mut *queue)
    }

    /// Removes the notice of the connection `serial` if the owner has not seen it yet. Returns whether it was removed.
    pub(super) fn retract(&self, serial: u64) -> bool {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let is_it = |notice: &Notice| matches!(notice, Notice::Established { serial: its, attempt: None, .. } if *its == serial);
        let found = queue.iter().position(is_it);
        let notice = found.map(|at| queue.remove(at));
        drop(queue); // A link's descriptors are closed without the lock.
        notice.is_some()
    }

    /// Removes the notice of the oldest connection to a peer that was not met at its address, if the owner has yet to see more than `limit` such
    /// notices. Returns the serial of the connection.
    pub(super) fn retract_oldest(&self, limit: usize) -> Option<u64> {
        let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let unproven = |notice: &Notice| match notice {
            Notice::Established { serial, attempt: None, identity, .. } if !identity.proven => Some(*serial),
            _ => None,
        };
        let mut all = queue.iter().filter_map(unproven);
        let oldest = all.next()?;
        let more = all.count() >= limit;
        drop(queue);
        (more && self.retract(oldest)).then_some(oldest)
    }

    /// Puts one in and wakes the owner.
    #[doc(hidden)]
    pub fn post(&self, notice: Notice) {
        {
            let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
            if matches!(notice, Notice::TurnedAway { .. }) {
                let strangers = |old: &Notice| matches!(old, Notice::TurnedAway { .. });
                if queue.iter().filter(|old| strangers(old)).count() >= STRANGERS
                    && let Some(oldest) = queue.iter().position(strangers)
                {
                    queue.remove(oldest);
                }
            }
            queue.push(notice);
            self.flag.store(true, Ordering::Relaxed);
        }
        (self.wake)();
    }
}
