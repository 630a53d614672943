//! Memory windows: revocable rights to parts of regions, made and taken by posted requests.
//!
//! A window keeps every queue pair and all memory that it was bound with until it is known not to be bound any more, or is gone itself, and
//! is deallocated before them: some devices stall when a queue pair goes that a window is bound over, and none gives up a region under a
//! window. Taking a right that is not there is refused here: some drivers cannot bear it.

#![expect(unsafe_code, reason = "calls of libibverbs; each block states its own reason")]

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::abi;
use super::context::ProtectionDomain;
use super::error::{Handle, VerbsError};
use super::pair::QueuePair;
use super::region::{MemoryRegion, Rights, outside};
use super::registration::Registration;
use crate::local_memory::volatile::Segment;

/// The type of a window, which determines the queue pairs that may use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowKind {
    /// Any queue pair in the window's domain may use it. The device chooses its key.
    One,
    /// Only the queue pair over which it was bound may use it. Its key is counted up in software with each bind.
    Two,
}

/// A window.
#[derive(Debug)]
pub struct Window {
    ptr: Handle<abi::Mw>,
    kind: WindowKind,
    domain: Arc<ProtectionDomain>,
    bindings: Mutex<Bindings>,
    ended: bool,
}

#[derive(Debug, Default)]
struct Bindings {
    /// Over which a request to bind it was posted, to what, and none to take that back.
    bound: Option<(Arc<QueuePair>, Backing)>,
    kept: Vec<(Arc<QueuePair>, Backing)>,
}

/// Memory that a window may be bound to, which must allow [`Rights::BIND`].
#[derive(Clone, Debug)]
pub enum Backing {
    /// A part of a region: where that begins in it, and how many bytes it has.
    Region(Arc<MemoryRegion>, usize, usize),
    /// A part of what is registered.
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

    /// Returns its first `len` bytes.
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

/// A right that is to be given.
#[derive(Clone, Debug)]
pub struct Binding {
    /// To this memory.
    pub memory: Backing,
    /// For these accesses.
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
    /// Makes a window, unbound.
    ///
    /// # Errors
    /// EOPNOTSUPP if the driver has none; the error that the device reports.
    pub fn new(domain: &Arc<ProtectionDomain>, kind: WindowKind) -> Result<Self, VerbsError> {
        let call = "ibv_alloc_mw";
        let Some(alloc) = domain.context().ops().alloc_mw else { return Err(VerbsError::unsupported(call)) };
        let number = if kind == WindowKind::One { abi::MW_TYPE_1 } else { abi::MW_TYPE_2 };
        // SAFETY: the domain is alive, and this keeps it.
        let ptr = Handle::given(call, unsafe { alloc(domain.as_ptr(), number) })?;
        Ok(Self { ptr, kind, domain: Arc::clone(domain), bindings: Mutex::default(), ended: false })
    }

    /// The key by which peers name it; another one after each bind.
    #[must_use]
    #[inline]
    pub fn remote_key(&self) -> u32 {
        let _bindings = self.lock();
        self.key()
    }

    /// The key of the next bind, for type 2; for type 1 as drivers mostly choose it.
    #[must_use]
    #[inline]
    pub fn next_key(&self) -> u32 {
        let _bindings = self.lock();
        counted_up(self.key())
    }

    /// Returns the key. The caller holds the lock.
    fn key(&self) -> u32 {
        // SAFETY: the window lives as long as this; its key is written by `bind` only, under the lock.
        unsafe { (*self.ptr.as_ptr()).rkey }
    }

    fn lock(&self) -> MutexGuard<'_, Bindings> {
        self.bindings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Posts a bind over `pair`. Of type 1 it replaces what was bound before, and of no length it unbinds; of type 2 the
    /// window must not be bound.
    ///
    /// # Errors
    /// EBUSY for a window of type 2 that is bound; EPERM where pair, memory and window are not of one domain; EFAULT outside
    /// the memory; the error that the device reports.
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
                // SAFETY: pair, window and registration are alive in the call, which reads their keys and sets the window's, under the lock; the
                // request names them by keys alone. What the window is bound with it keeps, from before the call until `let_go` or its end; the code
                // that registered the memory promised that peers may be at it for that long.
                VerbsError::check(call, unsafe { bind(pair.as_ptr(), window, &raw mut request) })?;
            }
            WindowKind::Two => {
                let key = counted_up(self.key());
                let mut request = abi::SendWr::new(id, abi::WR_BIND_MW);
                request.bind_mw = abi::BindMw { mw: window, rkey: key, bind_info: info };
                // SAFETY: it names no list; window and registration by their keys, which are read in the call. What the window is bound
                // with it keeps, as of type 1.
                unsafe { pair.post(&mut request) }?;
                // SAFETY: the window is alive, its key ours to count, under the lock.
                unsafe { (*window).rkey = key };
            }
        }
        bindings.bound = (binding.memory.len() > 0).then(|| (Arc::clone(pair), binding.memory.clone()));
        Ok(())
    }

    /// Posts a local invalidation of a bound window of type 2: once it completes no access comes through any more.
    ///
    /// # Errors
    /// EINVAL of a window that is of type 1 or not bound; EPERM over another queue pair than it was bound over, which some devices
    /// would not refuse; the error that the device reports.
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
        // SAFETY: it names a window's key, and no memory. If that window is deallocated before it is done, the device finds no such key.
        unsafe { pair.post(&mut request) }?;
        bindings.bound = None;
        Ok(())
    }

    /// Posts what takes a bound window's right back: of type 1 a bind of no bytes, of type 2 an invalidation.
    ///
    /// # Errors
    /// As of [`bind`](Self::bind) and [`invalidate`](Self::invalidate).
    pub fn unbind(&self, pair: &Arc<QueuePair>, id: u64) -> Result<(), VerbsError> {
        let memory = self.lock().bound.as_ref().map(|(_, memory)| memory.first(0));
        match (self.kind, memory) {
            (WindowKind::One, Some(memory)) => self.bind(pair, id, &Binding { memory, rights: Rights::empty() }),
            _ => self.invalidate(pair, id),
        }
    }

    /// Notes that the peer has invalidated it, as a completion reported ([`Completion`](super::Completion)).
    pub fn invalidated(&self) {
        self.lock().bound = None;
    }

    /// Drops everything that the window was bound with, if it is not bound now. The caller has seen the completion of every request that was posted.
    pub fn let_go(&self) {
        let mut bindings = self.lock();
        if bindings.bound.is_none() {
            bindings.kept.clear();
        }
    }

    /// Deallocates it, bound or not: when this returns Ok no access comes through it.
    ///
    /// # Errors
    /// The error that the device reports, with the window, which stands then.
    pub fn end(mut self) -> Result<(), (Self, VerbsError)> {
        match self.deallocate() {
            Ok(()) => {
                self.ended = true;
                Ok(())
            }
            Err(error) => Err((self, error)),
        }
    }

    /// In a forked child nothing is ended: what it names is the parent's.
    fn deallocate(&self) -> Result<(), VerbsError> {
        let call = "ibv_dealloc_mw";
        if self.ended || !self.domain.context().is_here() {
            return Ok(());
        }
        let Some(dealloc) = self.domain.context().ops().dealloc_mw else { return Err(VerbsError::unsupported(call)) };
        // SAFETY: it is ended once: `end` and `drop` have exclusive access, and `ended` is set from then on. Queue pairs and memory that it keeps
        // exist, because `end` and `drop` deallocate the window before its fields are dropped.
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

/// Of a key, the lower 8 bits are counted.
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
