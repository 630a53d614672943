//! Memory windows: revocable rights to parts of regions, which are granted and revoked by posted requests.
//!
//! A window keeps alive every queue pair and all memory with which it was bound, until it is known to be unbound, or
//! until it is deallocated. It is deallocated before these objects, because some devices stall when a queue pair with a
//! bound window is destroyed, and no device deregisters a region to which a window is bound. An invalidation of a
//! window that is not bound is refused here, because some drivers do not handle it correctly.

#![expect(unsafe_code, reason = "calls to libibverbs; each block states its own reason")]

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::abi;
use super::context::ProtectionDomain;
use super::error::{ObjectPointer, VerbsError};
use super::pair::QueuePair;
use super::region::{MemoryRegion, Rights, outside};
use super::registration::Registration;
use crate::local_memory::volatile::Segment;

/// The type of a window, which determines the queue pairs that may use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowKind {
    /// Any queue pair of the window's domain may use it. The device chooses its key.
    One,
    /// Only the queue pair over which it was bound may use it. Software increments its key with each bind.
    Two,
}

/// A memory window.
#[derive(Debug)]
pub struct Window {
    ptr: ObjectPointer<abi::Mw>,
    kind: WindowKind,
    domain: Arc<ProtectionDomain>,
    bindings: Mutex<Bindings>,
    ended: bool,
}

#[derive(Debug, Default)]
struct Bindings {
    /// The queue pair over which a bind was posted and the memory of that bind. `None` if a request to unbind was
    /// posted after that.
    bound: Option<(Arc<QueuePair>, Backing)>,
    kept: Vec<(Arc<QueuePair>, Backing)>,
}

/// Memory to which a window may be bound. It must allow [`Rights::BIND`].
#[derive(Clone, Debug)]
pub enum Backing {
    /// A part of a region: its offset in the region, and its length in bytes.
    Region(Arc<MemoryRegion>, usize, usize),
    /// A part of a registration.
    Registration(Arc<Registration>, Segment),
}

impl Backing {
    fn domain(&self) -> &Arc<ProtectionDomain> {
        match self {
            Self::Region(region, ..) => region.domain(),
            Self::Registration(registration, _) => registration.domain(),
        }
    }

    const fn len(&self) -> usize {
        match self {
            Self::Region(_, _, len) => *len,
            Self::Registration(_, memory) => memory.len(),
        }
    }

    /// Returns the first `len` bytes of the memory.
    fn first(&self, len: usize) -> Self {
        match self {
            Self::Region(region, offset, all) => Self::Region(Arc::clone(region), *offset, len.min(*all)),
            Self::Registration(registration, memory) => {
                Self::Registration(Arc::clone(registration), memory.slice(0, len))
            }
        }
    }

    fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Region(one, ..), Self::Region(two, ..)) => Arc::ptr_eq(one, two),
            (Self::Registration(one, _), Self::Registration(two, _)) => Arc::ptr_eq(one, two),
            _ => false,
        }
    }
}

/// A right to be granted.
#[derive(Clone, Debug)]
pub struct Binding {
    /// The memory.
    pub memory: Backing,
    /// The allowed accesses.
    pub rights: Rights,
}

impl Binding {
    fn info(&self, call: &'static str) -> Result<abi::MwBindInfo, VerbsError> {
        let (mr, addr) = match &self.memory {
            Backing::Region(region, offset, len) => (region.as_mr(), region.part(*offset, *len).map(|part| part.addr)),
            Backing::Registration(registration, memory) => (registration.as_mr(), registration.part(*memory)),
        };
        let (addr, length) = (addr.ok_or(outside(call))?, self.memory.len() as u64);
        Ok(abi::MwBindInfo { mr, addr, length, mw_access_flags: self.rights.bits().cast_unsigned() })
    }
}

impl Window {
    /// Allocates a window, which is not bound.
    ///
    /// # Errors
    /// EOPNOTSUPP if the driver does not support windows; otherwise the error that the device reports.
    pub fn new(domain: &Arc<ProtectionDomain>, kind: WindowKind) -> Result<Self, VerbsError> {
        let call = "ibv_alloc_mw";
        let Some(alloc) = domain.context().ops().alloc_mw else { return Err(VerbsError::unsupported(call)) };
        let number = if kind == WindowKind::One { abi::MW_TYPE_1 } else { abi::MW_TYPE_2 };
        // SAFETY: the domain is alive, and `self` keeps it.
        let ptr = ObjectPointer::given(call, unsafe { alloc(domain.as_ptr(), number) })?;
        Ok(Self { ptr, kind, domain: Arc::clone(domain), bindings: Mutex::default(), ended: false })
    }

    /// Returns the key that peers use. It changes with each bind.
    #[must_use]
    #[inline]
    pub fn remote_key(&self) -> u32 {
        let _bindings = self.lock();
        self.key()
    }

    /// Returns the key of the next bind of a type 2 window. For type 1 it is the key that most drivers choose.
    #[must_use]
    #[inline]
    pub fn next_key(&self) -> u32 {
        let _bindings = self.lock();
        counted_up(self.key())
    }

    /// Returns the key. The caller holds the lock.
    fn key(&self) -> u32 {
        // SAFETY: the window lives as long as `self`; its key is written only by `bind`, under the lock.
        unsafe { (*self.ptr.as_ptr()).rkey }
    }

    fn lock(&self) -> MutexGuard<'_, Bindings> {
        self.bindings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Posts a bind over `pair`. For type 1 it replaces the previous binding, and with a length of zero it unbinds the
    /// window. A window of type 2 must not be bound.
    ///
    /// # Errors
    /// EBUSY for a window of type 2 that is bound; EPERM if the queue pair, the memory and the window do not belong to
    /// the same domain; EFAULT if the range is outside the memory; otherwise the error that the device reports.
    pub fn bind(&self, pair: &Arc<QueuePair>, id: u64, binding: &Binding) -> Result<(), VerbsError> {
        let call = "ibv_bind_mw";
        let same = |domain: &Arc<ProtectionDomain>| Arc::ptr_eq(domain, &self.domain);
        if !same(pair.domain()) || !same(binding.memory.domain()) {
            return Err(VerbsError { call, errno: libc::EPERM });
        }
        let info = binding.info(call)?;
        let mut bindings = self.lock();
        if self.kind == WindowKind::Two && bindings.bound.is_some() {
            return Err(VerbsError { call, errno: libc::EBUSY });
        }
        bindings.keep(pair, &binding.memory);
        let window = self.ptr.as_ptr();
        match self.kind {
            WindowKind::One => {
                let Some(bind) = self.domain.context().ops().bind_mw else {
                    return Err(VerbsError::unsupported(call));
                };
                let send_flags = abi::SEND_SIGNALED.cast_unsigned();
                let mut request = abi::MwBind { wr_id: id, send_flags, bind_info: info };
                // SAFETY: the queue pair, the window and the registration are alive during the call, which reads their
                // keys and sets the window's key, under the lock. The request refers to them only by keys. `self` keeps
                // the objects of the binding from before the call until `let_go` or the end of the window. The code
                // that registered the memory guarantees that peers may access it for that long.
                VerbsError::check(call, unsafe { bind(pair.as_ptr(), window, &raw mut request) })?;
            }
            WindowKind::Two => {
                let key = counted_up(self.key());
                let mut request = abi::SendWr::new(id, abi::WR_BIND_MW);
                request.bind_mw = abi::BindMw { mw: window, rkey: key, bind_info: info };
                // SAFETY: the request names no list, and refers to the window and the registration by their keys, which
                // are read during the call. `self` keeps the objects of the binding, as for type 1.
                unsafe { pair.post(&mut request) }?;
                // SAFETY: the window is alive, and its key may be changed under the lock.
                unsafe { (*window).rkey = key };
            }
        }
        bindings.bound = (binding.memory.len() > 0).then(|| (Arc::clone(pair), binding.memory.clone()));
        Ok(())
    }

    /// Posts a local invalidation of a bound window of type 2. After its completion the window does not allow any
    /// access.
    ///
    /// # Errors
    /// EINVAL if the window is of type 1 or not bound; EPERM if it was bound over another queue pair, which some
    /// devices do not check; otherwise the error that the device reports.
    pub fn invalidate(&self, pair: &Arc<QueuePair>, id: u64) -> Result<(), VerbsError> {
        let mut bindings = self.lock();
        let refused = |errno| Err(VerbsError { call: "an invalidation", errno });
        match &bindings.bound {
            Some((over, _)) if self.kind == WindowKind::Two && Arc::ptr_eq(over, pair) => {}
            Some(_) if self.kind == WindowKind::Two => return refused(libc::EPERM),
            _ => return refused(libc::EINVAL),
        }
        let mut request = abi::SendWr::new(id, abi::WR_LOCAL_INV);
        request.imm_data = self.key();
        // SAFETY: the request names only the key of a window, and no memory. If the window is deallocated before the
        // request is executed, the device finds no such key.
        unsafe { pair.post(&mut request) }?;
        bindings.bound = None;
        Ok(())
    }

    /// Posts a request that unbinds a window, which is a bind with a length of zero for type 1 and an invalidation for
    /// type 2.
    ///
    /// # Errors
    /// Like [`bind`](Self::bind) and [`invalidate`](Self::invalidate).
    pub fn unbind(&self, pair: &Arc<QueuePair>, id: u64) -> Result<(), VerbsError> {
        let memory = self.lock().bound.as_ref().map(|(_, memory)| memory.first(0));
        match (self.kind, memory) {
            (WindowKind::One, Some(memory)) => self.bind(pair, id, &Binding { memory, rights: Rights::empty() }),
            _ => self.invalidate(pair, id),
        }
    }

    /// Records that the peer has invalidated the window, as reported by a completion
    /// ([`Completion`](super::Completion)).
    pub fn invalidated(&self) {
        self.lock().bound = None;
    }

    /// Drops all objects of earlier bindings if the window is not bound. The caller must have seen the completion of
    /// every posted request.
    pub fn let_go(&self) {
        let mut bindings = self.lock();
        if bindings.bound.is_none() {
            bindings.kept.clear();
        }
    }

    /// Deallocates the window, whether it is bound or not. After `Ok` it does not allow any access.
    ///
    /// # Errors
    /// The error that the device reports, and the window, which then still exists.
    pub fn end(mut self) -> Result<(), (Self, VerbsError)> {
        match self.deallocate() {
            Ok(()) => {
                self.ended = true;
                Ok(())
            }
            Err(error) => Err((self, error)),
        }
    }

    /// Deallocates the window. Does nothing in a forked child, because the window belongs to the parent.
    fn deallocate(&self) -> Result<(), VerbsError> {
        let call = "ibv_dealloc_mw";
        if self.ended || !self.domain.context().is_here() {
            return Ok(());
        }
        let Some(dealloc) = self.domain.context().ops().dealloc_mw else { return Err(VerbsError::unsupported(call)) };
        // SAFETY: it is deallocated only once, because `end` and `drop` have exclusive access, and `ended` is set
        // afterwards. The queue pairs and the memory that it keeps exist, because `end` and `drop` deallocate the
        // window before its fields are dropped.
        VerbsError::check(call, unsafe { dealloc(self.ptr.as_ptr()) })
    }
}

impl Bindings {
    fn keep(&mut self, pair: &Arc<QueuePair>, memory: &Backing) {
        if !self.kept.iter().any(|(one, other)| Arc::ptr_eq(one, pair) && other.is_same(memory)) {
            self.kept.push((Arc::clone(pair), memory.clone()));
        }
    }
}

/// Increments the lower 8 bits of a key.
const fn counted_up(key: u32) -> u32 {
    key & !0xff | key.wrapping_add(1) & 0xff
}

impl Drop for Window {
    fn drop(&mut self) {
        if let Err(error) = self.deallocate() {
            super::context::note(error.call, error.errno);
        }
    }
}
