//! How the service thread tells an endpoint what happened.
//!
//! A mailbox is a locked list, a flag that its owner may look at for nothing, and a way to wake it. The flag is
//! set after the push and cleared under the lock, so a notice is never overlooked, at most looked for in vain.

use std::fmt;
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::ConnectError;
use crate::transport::peer_process::PeerProcess;
use crate::transport::process_socket::ProcessSocket;
use crate::transport::shm::Mappings;
use crate::transport::verbs::Wire;
use crate::wire::hello::Incarnation;

/// Who the peer of a connection is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerIdentity {
    /// Which life of which endpoint.
    pub incarnation: Incarnation,
    /// The address that it advertises; where that is another machine's loopback address, the one it called from.
    pub address: SocketAddr,
    /// Which context of that address.
    pub context: u16,
    /// Whether a call to that address met this peer: else it only says so.
    pub proven: bool,
    /// Its process, as this process sees it; 0 if it does not. Known over shared memory only.
    pub pid: i32,
    /// Its user: over shared memory the kernel's word, else its own.
    pub uid: u32,
    /// Whether it says that it runs on this very kernel.
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
    /// What the kernel says.
    fn make_pair(&self) -> std::io::Result<OwnedFd>;
    /// Maps the memory of a pair and the page of a peer for a link; `None` if the link is to do that.
    ///
    /// # Errors
    /// What the kernel says.
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
    /// Where in the peer's memory a word lies, and its value, to find out whether its memory can be read.
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
    /// Over queue pairs, which are connected; and the TCP connection over which the two met, whose end is the peer's.
    Verbs(Box<Wire>, ProcessSocket),
}

/// What happened.
#[derive(Debug)]
#[non_exhaustive]
pub enum Notice {
    /// A connection stands.
    Established {
        /// The attempt that it settles, if there was one.
        attempt: Option<u64>,
        /// Names the connection for [`Registration::closed`](super::Registration::closed) and in [`Notice::Dead`].
        serial: u64,
        /// Whose it is.
        identity: PeerIdentity,
        /// What to make the link of.
        link: Made,
        /// Why this transport.
        reason: String,
    },
    /// An attempt failed.
    Failed {
        /// Which.
        attempt: u64,
        /// Why.
        error: ConnectError,
    },
    /// An attempt led to a peer that there is a connection to already, or to this endpoint itself. Whoever answered has proved that it
    /// holds that connection.
    Aliased {
        /// Which attempt.
        attempt: u64,
        /// Whom it reached.
        incarnation: Incarnation,
    },
    /// An established connection is over: its peer died, closed it, or lost it. What arrived before is still in it.
    Dead {
        /// Which connection.
        serial: u64,
        /// Whose.
        incarnation: Incarnation,
        /// Why.
        reason: String,
    },
    /// Another incarnation was reached at the advertised address of a connection's peer, so that one is gone. Comes
    /// before the new one's [`Notice::Established`].
    Replaced {
        /// The old connection.
        serial: u64,
        /// Whose it was.
        old: Incarnation,
        /// Who is there now.
        new: Incarnation,
    },
    /// A stranger called and was turned away. Only the latest few are kept for an owner that does not look.
    TurnedAway {
        /// From where it called.
        from: SocketAddr,
        /// Why.
        error: ConnectError,
    },
}

/// How many strangers an unread mailbox remembers.
const STRANGERS: usize = 64;

/// Where an endpoint finds what happened.
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
    /// An empty one; `wake` is called whenever something has arrived. It must not block. What was stored before a sequentially
    /// consistent fence in it is seen by whoever looks after one of its own.
    pub fn new(wake: impl Fn() + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self { flag: AtomicBool::new(false), queue: Mutex::new(Vec::new()), wake: Box::new(wake) })
    }

    /// Whether there may be something. Costs one relaxed load.
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

    /// Takes the connection `serial` back, if the owner has not seen it yet: says whether that was so.
    pub(super) fn retract(&self, serial: u64) -> bool {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let is_it = |notice: &Notice| matches!(notice, Notice::Established { serial: its, attempt: None, .. } if *its == serial);
        let found = queue.iter().position(is_it);
        let notice = found.map(|at| queue.remove(at));
        drop(queue); // A link's descriptors are closed without the lock.
        notice.is_some()
    }

    /// Takes back the oldest connection whose peer nobody has met, if the owner has not seen so many of them yet: its serial.
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
    pub(crate) fn post(&self, notice: Notice) {
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
