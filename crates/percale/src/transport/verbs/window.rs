//! Memory windows: revocable rights to parts of regions, made and taken by posted requests.
//!
//! A window keeps every queue pair and region that it was ever bound with until it is gone itself, and is deallocated before
//! them: some devices stall when a queue pair goes that a window is bound over, and none gives up a region under a window.
//! Taking a right that is not there is refused here: some drivers cannot bear it.

#![expect(unsafe_code, reason = "calls of libibverbs; each block states its own reason")]

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::abi;
use super::context::{ProtectionDomain, note};
use super::error::{Handle, VerbsError};
use super::pair::QueuePair;
use super::region::{MemoryRegion, Rights, outside};
use crate::memory::forked::forked;

/// Whose a window is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowKind {
    /// Anybody's whose queue pair is in the window's domain. The device chooses its key.
    One,
    /// The queue pair's over which it was bound. Its key is counted up by whoever binds it.
    Two,
}

/// A window.
#[derive(Debug)]
pub struct Window {
    ptr: Handle<abi::Mw>,
    kind: WindowKind,
    domain: Arc<ProtectionDomain>,
    bindings: Mutex<Bindings>,
}

#[derive(Debug, Default)]
struct Bindings {
    /// Over which a request to bind it was posted, and none to take that back.
    bound: Option<Arc<QueuePair>>,
    pairs: Vec<Arc<QueuePair>>,
    regions: Vec<Arc<MemoryRegion>>,
}

impl Bindings {
    fn keep(&mut self, pair: &Arc<QueuePair>, region: &Arc<MemoryRegion>) {
        if !self.pairs.iter().any(|one| Arc::ptr_eq(one, pair)) {
            self.pairs.push(Arc::clone(pair));
        }
        if !self.regions.iter().any(|one| Arc::ptr_eq(one, region)) {
            self.regions.push(Arc::clone(region));
        }
    }
}

/// A right that is to be given.
#[derive(Clone, Copy, Debug)]
pub struct Binding<'a> {
    /// To this region, which must allow [`Rights::BIND`].
    pub region: &'a Arc<MemoryRegion>,
    /// To its bytes from here on.
    pub offset: usize,
    /// To so many of them.
    pub len: usize,
    /// For these accesses.
    pub rights: Rights,
}

impl Binding<'_> {
    fn info(&self, call: &'static str) -> Result<abi::MwBindInfo, VerbsError> {
        let part = self.region.part(self.offset, self.len).ok_or(outside(call))?;
        Ok(abi::MwBindInfo {
            mr: self.region.as_mr(),
            addr: part.addr,
            length: self.len as u64,
            mw_access_flags: self.rights.bits().cast_unsigned(),
        })
    }
}

impl Window {
    /// Makes one, unbound.
    ///
    /// # Errors
    /// EOPNOTSUPP if the driver has none; what the device says.
    pub fn new(domain: &Arc<ProtectionDomain>, kind: WindowKind) -> Result<Self, VerbsError> {
        let call = "ibv_alloc_mw";
        let Some(alloc) = domain.context().ops().alloc_mw else { return Err(VerbsError::unsupported(call)) };
        let number = if kind == WindowKind::One { abi::MW_TYPE_1 } else { abi::MW_TYPE_2 };
        // SAFETY: the domain is alive, and this keeps it.
        let ptr = Handle::given(call, unsafe { alloc(domain.as_ptr(), number) })?;
        Ok(Self { ptr, kind, domain: Arc::clone(domain), bindings: Mutex::default() })
    }

    /// The key by which peers name it; another one after each bind.
    #[must_use]
    pub fn remote_key(&self) -> u32 {
        let _bindings = self.lock();
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
    /// EBUSY for a window of type 2 that is bound; EPERM where pair, region and window are not of one domain; EFAULT outside
    /// the region; what the device says.
    pub fn bind(&self, pair: &Arc<QueuePair>, id: u64, binding: Binding<'_>) -> Result<(), VerbsError> {
        let call = "ibv_bind_mw";
        let same = |domain: &Arc<ProtectionDomain>| Arc::ptr_eq(domain, &self.domain);
        if !same(pair.domain()) || !same(binding.region.domain()) {
            return Err(VerbsError { call, errno: libc::EPERM });
        }
        let info = binding.info(call)?;
        let mut bindings = self.lock();
        if self.kind == WindowKind::Two && bindings.bound.is_some() {
            return Err(VerbsError { call, errno: libc::EBUSY });
        }
        bindings.keep(pair, binding.region);
        let window = self.ptr.as_ptr();
        match self.kind {
            WindowKind::One => {
                let Some(bind) = self.domain.context().ops().bind_mw else {
                    return Err(VerbsError::unsupported(call));
                };
                let send_flags = abi::SEND_SIGNALED.cast_unsigned();
                let mut request = abi::MwBind { wr_id: id, send_flags, bind_info: info };
                // SAFETY: pair, window and region are alive, and the window keeps the others; the call sets the window's key.
                VerbsError::check(call, unsafe { bind(pair.as_ptr(), window, &raw mut request) })?;
            }
            WindowKind::Two => {
                // SAFETY: the window is alive, its key ours to count.
                let key = unsafe { (*window).rkey };
                let key = key & !0xff | key.wrapping_add(1) & 0xff;
                let mut request = abi::SendWr::new(id, abi::WR_BIND_MW);
                request.bind_mw = abi::BindMw { mw: window, rkey: key, bind_info: info };
                // SAFETY: it names no list; the window is bound over this pair, and keeps its region.
                unsafe { pair.post(&mut request) }?;
                // SAFETY: as above.
                unsafe { (*window).rkey = key };
            }
        }
        bindings.bound = (binding.len > 0).then(|| Arc::clone(pair));
        Ok(())
    }

    /// Posts a local invalidation of a bound window of type 2: once it completes no access comes through any more.
    ///
    /// # Errors
    /// EINVAL of a window that is of type 1 or not bound; EPERM over another queue pair than it was bound over, which some devices
    /// would not refuse; what the device says.
    pub fn invalidate(&self, pair: &Arc<QueuePair>, id: u64) -> Result<(), VerbsError> {
        let mut bindings = self.lock();
        let refused = |errno| Err(VerbsError { call: "an invalidation", errno });
        match &bindings.bound {
            Some(over) if self.kind == WindowKind::Two && Arc::ptr_eq(over, pair) => {}
            Some(_) if self.kind == WindowKind::Two => return refused(libc::EPERM),
            _ => return refused(libc::EINVAL),
        }
        let mut request = abi::SendWr::new(id, abi::WR_LOCAL_INV);
        // SAFETY: as in `remote_key`.
        request.imm_data = unsafe { (*self.ptr.as_ptr()).rkey };
        // SAFETY: it names a window's key alone.
        unsafe { pair.post(&mut request) }?;
        bindings.bound = None;
        Ok(())
    }

    /// Notes that the peer has invalidated it, as a completion said ([`Completion`](super::Completion)).
    pub fn invalidated(&self) {
        self.lock().bound = None;
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        if forked() {
            return;
        }
        let Some(dealloc) = self.domain.context().ops().dealloc_mw else { return };
        // SAFETY: nobody uses the window any more; it is ended once, before the queue pairs and regions that it keeps.
        note("ibv_dealloc_mw", unsafe { dealloc(self.ptr.as_ptr()) });
    }
}
