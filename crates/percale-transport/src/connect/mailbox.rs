//! The mailbox through which the service thread reports events to an endpoint.
//!
//! A mailbox is a locked list, a flag that its owner can read at almost no cost, and a function that wakes up the
//! owner. The flag is set after the push and cleared under the lock, so no notice is missed. At worst the owner takes
//! the lock and finds the list empty.

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
    /// The address of the peer: the address at which a probe reached it, or else the address that it advertises. If the
    /// peer advertises a loopback address and is in another network namespace, the address of the connection replaces
    /// it.
    pub address: SocketAddr,
    /// The context at that address.
    pub context: u16,
    /// Whether a call to that address reached this peer. If not, the peer only claims to have the address.
    pub proven: bool,
    /// The process id of the peer in the namespace of this process, or 0 if it is not visible. It is available only
    /// over shared memory.
    pub pid: i32,
    /// The user of the peer. It is reported by the kernel over shared memory, and otherwise by the peer itself.
    pub uid: u32,
    /// Whether the peer claims to run on the same kernel.
    pub host_local: bool,
}

/// The parts of the local endpoint's doorbell that connection set-up needs.
pub trait LocalDoorbell: Send + Sync {
    /// Returns the sealed memory of the doorbell page, and the eventfd through which peers wake up the endpoint.
    /// Returns `None` if peers cannot ring the doorbell. In this case the endpoint does not use shared memory.
    fn descriptors(&self) -> Option<[BorrowedFd<'_>; 2]>;
    /// Reserves a bit for one peer. Returns `None` if all are in use. The link releases the bit when it is dropped.
    fn allocate(&self) -> Option<u32>;
    /// Releases a bit for which no link was created.
    fn release(&self, bit: u32);
    /// Creates the sealed memory of a new pair.
    ///
    /// # Errors
    /// The error of the system call.
    fn make_pair(&self) -> std::io::Result<OwnedFd>;
    /// Maps the memory of a pair and the page of a peer for a link. Returns `None` if the link has to map them itself.
    ///
    /// # Errors
    /// The error of the system call.
    fn map(&self, pair: BorrowedFd<'_>, peer_doorbell: BorrowedFd<'_>) -> std::io::Result<Option<Mappings>> {
        let _ = (pair, peer_doorbell);
        Ok(None)
    }
    /// Returns the size of pair memory in bytes.
    fn pair_bytes(&self) -> u64;
    /// Returns the size of a doorbell page in bytes.
    fn doorbell_bytes(&self) -> u64;
}

/// The parts of a link over shared memory.
#[derive(Debug)]
pub struct ShmParts {
    /// 0 for the side that connected, 1 for the other.
    pub side: usize,
    /// The sealed memory with both rings.
    pub pair: OwnedFd,
    /// The bit of the local doorbell that the peer sets. The link has to release it.
    pub my_bit: u32,
    /// The sealed memory of the peer's doorbell page.
    pub peer_doorbell: OwnedFd,
    /// The mappings of the pair and the page, if they are already mapped, otherwise `None`.
    pub mappings: Option<Mappings>,
    /// The eventfd that wakes up the peer.
    pub peer_event: OwnedFd,
    /// The bit of the peer's doorbell that this side sets. It was not checked against the size of the page.
    pub peer_bit: u32,
    /// The Unix socket (SOCK_SEQPACKET, non-blocking).
    pub control: ProcessSocket,
    /// The address of a word in the peer's memory, and its value, used to test whether that memory can be read.
    pub peer_nonce: (u64, u64),
    /// Whether the endpoint allows direct reads and writes of the peer's memory.
    pub cma: bool,
    /// The peer's process.
    pub process: Arc<PeerProcess>,
}

/// An established connection for which no link was created yet.
#[derive(Debug)]
pub enum EstablishedTransport {
    /// A connection over shared memory.
    Shm(ShmParts),
    /// A connection over TCP. The socket is non-blocking with TCP_NODELAY, and the next bytes to read are the peer's
    /// first frame.
    Tcp(ProcessSocket),
    /// A connection over connected queue pairs, and the TCP connection over which the two sides did the handshake. If
    /// the TCP connection ends, the peer has ended.
    Verbs(Box<Wire>, ProcessSocket),
}

/// An event that the service thread reports to an endpoint.
#[derive(Debug)]
#[non_exhaustive]
pub enum ServiceNotice {
    /// A connection was established.
    Established {
        /// The attempt that it completes, if there was one.
        attempt: Option<u64>,
        /// The number of the connection in [`EndpointRegistration::closed`](super::EndpointRegistration::closed) and in
        /// [`ServiceNotice::Dead`].
        serial: u64,
        /// The peer of the connection.
        identity: PeerIdentity,
        /// The parts of the link.
        link: EstablishedTransport,
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
    /// An attempt reached a peer to which a connection exists already, or this endpoint itself. The endpoint that
    /// answered has proved that it is the peer of that connection.
    Aliased {
        /// The attempt.
        attempt: u64,
        /// The incarnation that was reached.
        incarnation: Incarnation,
    },
    /// An established connection has ended: its peer has ended, closed it, or lost it. Data that arrived before that
    /// can still be received from the link.
    Dead {
        /// The connection.
        serial: u64,
        /// The incarnation of its peer.
        incarnation: Incarnation,
        /// The reason.
        reason: String,
    },
    /// Another incarnation was reached at the advertised address of a connection's peer, so that peer no longer exists.
    /// Posted before the [`ServiceNotice::Established`] of the new one.
    Replaced {
        /// The old connection.
        serial: u64,
        /// The incarnation of the former peer.
        old: Incarnation,
        /// The incarnation that was reached at the address.
        new: Incarnation,
    },
    /// A call from an unknown client was rejected. If the owner does not read the notices, only the latest few are
    /// kept.
    CallRejected {
        /// The address from which the client called.
        from: SocketAddr,
        /// The reason.
        error: ConnectError,
    },
}

/// The maximum number of [`ServiceNotice::CallRejected`] notices in an unread mailbox.
const STRANGERS: usize = 64;

/// The notices for one endpoint.
pub struct Mailbox {
    flag: AtomicBool,
    queue: Mutex<Vec<ServiceNotice>>,
    wake: Box<dyn Fn() + Send + Sync>,
}

impl fmt::Debug for Mailbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mailbox").field("flag", &self.flag).finish_non_exhaustive()
    }
}

impl Mailbox {
    /// Creates an empty mailbox. `wake` is called whenever a notice has arrived, and must not block. If `wake` executes
    /// a sequentially consistent fence, a thread that executes such a fence later and then reads sees everything that
    /// was stored before the fence in `wake`.
    pub fn new(wake: impl Fn() + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self { flag: AtomicBool::new(false), queue: Mutex::new(Vec::new()), wake: Box::new(wake) })
    }

    /// Returns whether there may be notices. Costs one relaxed load.
    #[must_use]
    #[inline]
    pub fn has_notices(&self) -> bool {
        self.flag.load(Ordering::Relaxed)
    }

    /// Removes and returns all notices, oldest first.
    #[must_use]
    pub fn take(&self) -> Vec<ServiceNotice> {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        self.flag.store(false, Ordering::Relaxed);
        std::mem::take(&mut *queue)
    }

    /// Removes the notice of the connection `serial` if the owner has not read it yet. Returns whether it was removed.
    pub(super) fn retract(&self, serial: u64) -> bool {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let is_it = |notice: &ServiceNotice| matches!(notice, ServiceNotice::Established { serial: its, attempt: None, .. } if *its == serial);
        let found = queue.iter().position(is_it);
        let notice = found.map(|at| queue.remove(at));
        drop(queue); // Close the descriptors of a link after the lock is released.
        notice.is_some()
    }

    /// Removes the notice of the oldest connection to a peer that was not reached at its address, if there are more
    /// than `limit` such unread notices. Returns the serial of the connection.
    pub(super) fn retract_oldest(&self, limit: usize) -> Option<u64> {
        let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let unproven = |notice: &ServiceNotice| match notice {
            ServiceNotice::Established { serial, attempt: None, identity, .. } if !identity.proven => Some(*serial),
            _ => None,
        };
        let mut all = queue.iter().filter_map(unproven);
        let oldest = all.next()?;
        let more = all.count() >= limit;
        drop(queue);
        (more && self.retract(oldest)).then_some(oldest)
    }

    /// Adds a notice and wakes up the owner.
    #[doc(hidden)]
    pub fn post(&self, notice: ServiceNotice) {
        {
            let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
            if matches!(notice, ServiceNotice::CallRejected { .. }) {
                let strangers = |old: &ServiceNotice| matches!(old, ServiceNotice::CallRejected { .. });
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
