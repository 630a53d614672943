//! Regions of borrowed memory, for the duration of one call.
//!
//! A region of borrowed memory must be closed before the borrow ends, and this must not depend on its owner: if a
//! handle were forgotten, the borrow would end while a peer is still writing. So such regions exist only inside a
//! closure. The call that runs the closure closes them all before it returns, even if the closure panics.

use std::cell::RefCell;
use std::marker::PhantomData;

use super::{Access, RegisterError, RemoteMemory};
use crate::domain::Domain;
use crate::local_memory::buffer::borrowed;
use crate::local_memory::volatile::{Segment, Segments};
use crate::region::handle::RegionHandle;
use crate::region::properties::MemoryProperties;

/// A scope in which borrowed memory may be registered: see [`Domain::scope`].
pub struct Scope<'scope, 'env: 'scope> {
    domain: Domain,
    /// All regions of this scope.
    handles: RefCell<Vec<RegionHandle>>,
    scope: PhantomData<&'scope mut &'scope ()>,
    env: PhantomData<&'env mut &'env ()>,
}

crate::short_debug!(Scope<'_, '_>, "Scope");

/// A region of borrowed memory. It lives until its scope ends.
#[derive(Clone, Copy)]
pub struct ScopedRegion<'scope> {
    remote: RemoteMemory,
    pub(super) segment: Segment,
    scope: PhantomData<&'scope mut ()>,
}

crate::short_debug!(ScopedRegion<'_>, "ScopedRegion");

impl ScopedRegion<'_> {
    /// Returns the key.
    #[must_use]
    pub const fn key(&self) -> u64 {
        self.remote.key
    }

    /// Returns the description that peers use to access the whole region.
    #[must_use]
    pub const fn remote(&self) -> RemoteMemory {
        self.remote
    }
}

impl<'scope, 'env> Scope<'scope, 'env> {
    /// Registers memory that the caller borrowed: peers may access it with the rights `access` until the scope ends.
    ///
    /// # Errors
    /// See [`RegisterError`].
    pub fn register(
        &'scope self,
        memory: &'env mut [u8],
        access: Access,
    ) -> Result<ScopedRegion<'scope>, RegisterError> {
        let segment = borrowed(memory);
        let handle = self
            .domain
            .registration(access)
            .register(Segments::one(segment), MemoryProperties { backed: true, writable: true })?;
        let remote = handle.remote();
        self.handles.borrow_mut().push(handle);
        Ok(ScopedRegion { remote, segment, scope: PhantomData })
    }
}

/// Closes every region of the scope when it is dropped, without a timeout.
struct CloseOnDrop<'s, 'scope, 'env>(&'s Scope<'scope, 'env>);

impl Drop for CloseOnDrop<'_, '_, '_> {
    fn drop(&mut self) {
        for mut handle in self.0.handles.take() {
            // Borrowed memory cannot be parked. So this waits until the last peer has finished its access or its
            // process has ended. No window is bound to the region, because scoped regions cannot be bound.
            handle.close(None).ok();
        }
    }
}

impl Domain {
    /// Runs `f`, in which borrowed memory may be registered. All regions of the scope are closed before this returns. A
    /// peer that was stopped in the middle of an access delays the return.
    pub fn scope<'env, R>(&self, f: impl for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> R) -> R {
        let scope = Scope { domain: self.clone(), handles: RefCell::default(), scope: PhantomData, env: PhantomData };
        let ending = CloseOnDrop(&scope);
        let result = f(&scope);
        drop(ending);
        result
    }
}
