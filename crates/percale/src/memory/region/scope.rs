//! Regions of borrowed memory, for the duration of one call.
//!
//! A region of borrowed memory must be closed before the borrow ends, and this must not depend on its owner: if a
//! handle were forgotten, the borrow would end while a peer is still writing. So such regions exist only inside a
//! closure. The call that runs the closure closes them all before it returns, even if the closure panics.
//!
//! Why the borrow cannot end too early:
//! 1. The scope owns the handles. A [`ScopedRegion`] is a description, so forgetting it has no effect.
//! 2. The handles are closed by a local value of [`Domain::scope`], which no other code can forget.
//! 3. Closing has no timeout. It ends when every peer that had announced an access has withdrawn it or its process has
//!    ended, no thread of this process is in the memory, and no device has the memory registered. It cannot fail for
//!    another reason, because windows cannot be bound to scoped regions. If it does nevertheless, or panics, the
//!    process is aborted.
//! 4. A forked child has its own copy of the memory, which no peer accesses, so nothing is closed there.

use std::cell::RefCell;
use std::marker::PhantomData;

use super::{Access, RegisterError, RemoteMemory};
use crate::domain::Domain;
use crate::local_memory::access::AccessExt as _;
use crate::local_memory::buffer::{borrowed, borrowed_to_read};
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
    pub(super) writable: bool,
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
        self.add(borrowed(memory), access, true)
    }

    /// Registers memory that the caller borrowed and that is not changed until the scope ends: peers may read it, and
    /// so may this program.
    ///
    /// # Errors
    /// [`RegisterError::ReadOnly`] if `access` includes a right to change the memory. See [`RegisterError`].
    pub fn register_shared(
        &'scope self,
        memory: &'env [u8],
        access: Access,
    ) -> Result<ScopedRegion<'scope>, RegisterError> {
        if access.changes() {
            return Err(RegisterError::ReadOnly);
        }
        self.add(borrowed_to_read(memory), access, false)
    }

    fn add(
        &'scope self,
        segment: Segment,
        access: Access,
        writable: bool,
    ) -> Result<ScopedRegion<'scope>, RegisterError> {
        let registration = self.domain.registration(access).windows(false);
        let mut handles = self.handles.borrow_mut();
        handles.reserve(1); // So that no panic separates the registration from the list.
        handles.push(registration.register(Segments::one(segment), MemoryProperties { backed: true, writable })?);
        let remote = handles.last().map_or_else(|| unreachable!("it was just added"), RegionHandle::remote);
        Ok(ScopedRegion { remote, segment, writable, scope: PhantomData })
    }
}

/// Closes every region of the scope when it is dropped, without a timeout.
struct CloseOnDrop<'s, 'scope, 'env>(&'s Scope<'scope, 'env>);

impl Drop for CloseOnDrop<'_, '_, '_> {
    fn drop(&mut self) {
        let abort = AbortOnUnwind;
        for mut handle in self.0.handles.take() {
            // Borrowed memory cannot be parked. So this waits until the last peer has finished its access or its
            // process has ended.
            if handle.close(None).is_err() {
                std::process::abort();
            }
        }
        std::mem::forget(abort);
    }
}

/// Aborts the process if the closing of a region panics: the borrow would end while peers can access the memory.
struct AbortOnUnwind;

impl Drop for AbortOnUnwind {
    fn drop(&mut self) {
        std::process::abort();
    }
}

impl Domain {
    /// Runs `f`, in which borrowed memory may be registered. All regions of the scope are closed before this returns,
    /// and also before a panic of `f` leaves it, so that no peer or device can access the memory any more.
    ///
    /// A local peer of this user that was stopped in the middle of an access (for example by a debugger) delays the
    /// return until it continues or its process ends, **without a limit**: the borrow ends when this returns, so there
    /// is no memory that could be kept for the peer. The `revoke_timeout` of the domain does not apply. An access to
    /// memory in RAM takes microseconds, so this concerns only stopped peers. Domains that trust no peer
    /// ([`Trust::None`](crate::Trust::None)), and regions that are accessed over TCP or RDMA, are not delayed by peers.
    /// To be independent of local peers, register memory that the region owns, with [`Domain::register`].
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use percale::{Access, Info};
    /// # let domain = Info::discover()?.best()?.open()?;
    /// let mut results = [0; 1024]; // on the stack
    /// let table = vec![7; 4096];
    /// domain.scope(|scope| {
    ///     let results = scope.register(&mut results, Access::REMOTE_WRITE)?;
    ///     let table = scope.register_shared(&table, Access::REMOTE_READ)?;
    ///     // Send results.remote() and table.remote() to peers, and wait for the message that they have finished.
    /// #   drop((results, table));
    ///     Ok::<_, percale::memory::region::RegisterError>(())
    /// })?;
    /// println!("{results:?}"); // no peer writes any more
    /// # Ok(()) }
    /// ```
    pub fn scope<'env, R>(&self, f: impl for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> R) -> R {
        let scope = Scope { domain: self.clone(), handles: RefCell::default(), scope: PhantomData, env: PhantomData };
        let ending = CloseOnDrop(&scope);
        let result = f(&scope);
        drop(ending);
        result
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use super::*;
    use crate::domain::DomainBuilder;
    use crate::region::AccessOrigin;
    use crate::region::stuck::StuckPeer;
    use crate::transport::sim::{Network, SimOptions};

    fn domain() -> Domain {
        let network = Network::new(1, SimOptions::default());
        DomainBuilder::new(false, None, false, false, String::new()).simulated(&network).open().unwrap()
    }

    /// Checks that a scope with a peer in the middle of an access ends only after the peer has finished, whether its
    /// closure returns or panics. The closure leaks its regions.
    ///
    /// Requirements: REV-006, REV-010.
    #[test]
    fn scope_ends_after_every_peer_has_finished() {
        for panics in [false, true] {
            let (domain, ended, peers) = (domain(), AtomicBool::new(false), Mutex::new(Vec::<Arc<StuckPeer>>::new()));
            let mut memory = [[0; 16], [1; 16]];
            let [written, read] = &mut memory;
            std::thread::scope(|threads| {
                threads.spawn(|| {
                    let result = catch_unwind(AssertUnwindSafe(|| {
                        domain.scope(|scope| {
                            let regions = [
                                scope.register(written, Access::REMOTE_WRITE).unwrap(),
                                scope.register_shared(read, Access::REMOTE_READ).unwrap(),
                            ];
                            let at = |key| StuckPeer::at(&domain.inner.keys, key, AccessOrigin::default());
                            *peers.lock().unwrap() = regions.iter().map(|region| at(region.key())).collect();
                            Box::leak(Box::new(regions));
                            assert!(!panics, "as intended");
                        });
                    }));
                    ended.store(true, Ordering::Release);
                    assert_eq!(result.is_err(), panics);
                });
                let peers = loop {
                    let peers = std::mem::take(&mut *peers.lock().unwrap());
                    if !peers.is_empty() {
                        break peers;
                    }
                    std::thread::yield_now();
                };
                for peer in peers {
                    std::thread::sleep(Duration::from_millis(20));
                    assert!(!ended.load(Ordering::Acquire), "the scope ended while a peer accessed its memory");
                    peer.retired.store(true, Ordering::Release);
                }
            });
            assert!(ended.load(Ordering::Acquire));
        }
    }

    /// Requirements: REV-006.
    #[test]
    fn regions_are_closed_when_the_closure_panics() {
        let domain = domain();
        let mut memory = [0; 16];
        let remote = Mutex::new(None);
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            domain.scope(|scope| {
                let name = scope.register(&mut memory, Access::REMOTE_WRITE).unwrap().remote();
                assert!(domain.allows(name, Access::REMOTE_WRITE));
                *remote.lock().unwrap() = Some(name);
                panic!("as intended");
            });
        }));
        assert!(panicked.is_err());
        assert!(!domain.allows(remote.into_inner().unwrap().unwrap(), Access::REMOTE_WRITE));
    }

    #[test]
    fn shared_borrow_gives_no_right_to_change_the_memory() {
        let domain = domain();
        let memory = [7; 16];
        domain.scope(|scope| {
            for access in [Access::REMOTE_WRITE, Access::REMOTE_ATOMIC, Access::REMOTE_READ | Access::REMOTE_WRITE] {
                assert!(matches!(scope.register_shared(&memory, access), Err(RegisterError::ReadOnly)));
            }
            let region = scope.register_shared(&memory, Access::REMOTE_READ).unwrap();
            assert!(domain.allows(region.remote(), Access::REMOTE_READ));
            assert!(!domain.allows(region.remote(), Access::REMOTE_WRITE));
            assert_eq!((region.view().read_at::<u8>(3), region.view().is_writable()), (Ok(7), false));
            assert_eq!(memory, [7; 16]);
        });
    }

    /// A child ends its copy of a scope without waiting for the peers of its parent.
    ///
    /// Requirements: FLT-010, REV-010.
    #[test]
    fn child_leaves_a_scope_at_once() {
        let domain = domain();
        let mut memory = [0; 16];
        domain.scope(|scope| {
            let region = scope.register(&mut memory, Access::REMOTE_WRITE).unwrap();
            let peer = StuckPeer::at(&domain.inner.keys, region.key(), AccessOrigin::default());
            assert!(crate::system::forked::in_a_child(|| {
                drop(CloseOnDrop(scope));
                scope.register_shared(&[], Access::REMOTE_READ).is_err()
            }));
            assert!(domain.allows(region.remote(), Access::REMOTE_WRITE));
            peer.retired.store(true, Ordering::Release);
        });
    }
}
