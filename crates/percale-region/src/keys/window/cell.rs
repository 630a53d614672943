//! The state of a window.
//!
//! Its lock is held only briefly. A thread that waits for a revocation polls, and does not hold the lock while it
//! waits. (If a verbs device revokes the window, the lock is held while a request is posted to the device, or while the
//! device's window is deallocated. It is held longer only if that device is broken and a bind for a peer is waiting at
//! the same time: five seconds in the worst case.) A thread that finds the window by its key also takes the lock. Lock
//! order: the domain's table, then a row of it, then a window's state, then a region's grants.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{WindowError, WindowType};
use crate::local_memory::access::AccessExt as _;
use crate::{Access, AccessOrigin, AccessScope, Hold, Keys, Registered, Revocation, Slice, wait_until};

/// The part of a region to which a window is to be bound, and the window's rights.
#[derive(Clone, Copy, Debug)]
pub struct WindowBinding {
    /// The offset of the first byte in the region.
    pub offset: u64,
    /// Its length in bytes.
    pub len: u64,
    /// The rights of peers.
    pub access: Access,
}

impl WindowBinding {
    /// Checks that a window can be bound in this way.
    fn check(&self, region: &Registered) -> Result<(), WindowError> {
        let Self { offset, len, access } = self;
        let windows = region.windows();
        if !windows.are_allowed() {
            return Err(WindowError::NotAllowed);
        }
        if access.changes() && !windows.may_change() {
            return Err(WindowError::ReadOnly);
        }
        // The subtraction does not wrap, because the first comparison is evaluated before.
        if *offset > region.len() || *len > region.len() - offset {
            return Err(WindowError::Range);
        }
        Ok(())
    }
}

/// The side that invalidates a window.
#[derive(Clone, Copy, Debug)]
pub enum Invalidator {
    /// The owner, through this endpoint, by an operation to a peer. The peer is the one that is connected to that
    /// endpoint at the time, or the one with this address.
    Owner(AccessOrigin, u64),
    /// The peer for which the window is bound.
    Peer(AccessOrigin),
}

#[derive(Debug)]
enum BindPhase {
    Unbound,
    Bound { window: Arc<Registered>, hold: Hold },
    Revoking { revocation: Revocation, hold: Hold },
    Gone,
}

#[derive(Debug)]
struct WindowState {
    phase: BindPhase,
    /// The lower half of the key of the last bind or, before the first bind, of the last key of the index.
    key: u32,
    /// The address, in the endpoint's table, of the peer for which the window was last bound (type 2).
    peer: u64,
    /// The objects of the last bind, which are reused for the same region. There are no other references to them.
    spare: Option<(Arc<Registered>, Hold)>,
}

impl WindowState {
    /// Unbinds the window if its revocation has completed. Returns whether no revocation is in progress.
    fn settle(&mut self) -> bool {
        if let BindPhase::Revoking { revocation, .. } = &mut self.phase {
            if !revocation.is_over() {
                return false;
            }
            self.phase = BindPhase::Unbound;
        }
        true
    }

    /// Starts to revoke the window if it is bound. Returns whether no revocation is in progress afterwards.
    fn revoke(&mut self, keys: &Keys) -> bool {
        match std::mem::replace(&mut self.phase, BindPhase::Unbound) {
            BindPhase::Bound { mut window, mut hold } => {
                keys.set_bound(self.key, None);
                // Other threads find the window only under this lock. If no other thread has a reference now, no thread
                // is inside and none can enter.
                if Arc::get_mut(&mut window).is_some_and(Registered::was_never_granted) {
                    hold.let_go();
                    self.spare = Some((window, hold));
                    return true;
                }
                self.phase = BindPhase::Revoking { revocation: Revocation::start(window), hold };
            }
            other => self.phase = other,
        }
        self.settle()
    }

    fn bind(
        &mut self,
        keys: &Keys,
        key: u32,
        (region, binding): (&Arc<Registered>, &WindowBinding),
        through: AccessScope,
    ) -> Result<(), WindowError> {
        let WindowBinding { offset, len, access } = *binding;
        let slice = Slice { key: keys.long_key(key), offset, len, access, through };
        let (window, hold) = match self.spare.take() {
            Some((mut window, mut hold)) if hold.is_on(region) => {
                if !hold.again() {
                    return Err(WindowError::Closed);
                }
                match Arc::get_mut(&mut window) {
                    Some(window) => window.slice_copy(region, &slice),
                    None => window = Arc::new(Registered::slice(region, &slice)),
                }
                (window, hold)
            }
            _ => {
                let hold = Hold::on(region).ok_or(WindowError::Closed)?;
                (Arc::new(Registered::slice(region, &slice)), hold)
            }
        };
        keys.set_bound(key, Some(&window));
        self.key = key;
        self.phase = BindPhase::Bound { window, hold };
        Ok(())
    }
}

/// The state of a window, behind its lock.
#[derive(Debug)]
pub struct WindowCell {
    index: u32,
    kind: WindowType,
    state: Mutex<WindowState>,
}

impl WindowCell {
    /// Creates an unbound window. `key` is the last key of its index.
    #[inline]
    pub(super) fn new(key: u32, kind: WindowType) -> Self {
        let state = WindowState { phase: BindPhase::Unbound, key, peer: 0, spare: None };
        Self { index: key >> 8, kind, state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, WindowState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the index of the window.
    #[inline]
    pub const fn index(&self) -> u32 {
        self.index
    }

    /// Returns the kind of the window.
    #[inline]
    pub const fn kind(&self) -> WindowType {
        self.kind
    }

    /// Returns the last key, whether the window is bound with that key, and whether the window is being revoked.
    #[inline]
    pub fn query(&self) -> (u32, bool, bool) {
        let mut state = self.state();
        let revoking = !state.settle();
        (state.key, matches!(state.phase, BindPhase::Bound { .. }), revoking)
    }

    /// Returns the window's part of its region if it is bound, for accesses by the window's key.
    #[inline]
    pub fn bound(&self) -> Option<Arc<Registered>> {
        match &self.state().phase {
            BindPhase::Bound { window, .. } => Some(Arc::clone(window)),
            _ => None,
        }
    }

    /// Returns whether the window is bound through this endpoint.
    #[inline]
    pub fn is_bound_through(&self, endpoint: u64) -> bool {
        match &self.state().phase {
            BindPhase::Bound { window, .. } => {
                matches!(window.through(), AccessScope::Pair(pair) if pair.endpoint == endpoint)
            }
            _ => false,
        }
    }

    /// Revokes the window, waits until the revocation has completed, and then calls `then` without releasing the lock
    /// in between.
    fn taken_back<R>(&self, keys: &Keys, then: impl FnOnce(&mut WindowState) -> R) -> Result<R, WindowError> {
        let over = || {
            let mut state = self.state();
            state.revoke(keys).then_some(state)
        };
        wait_until(Some(keys.revoke_timeout()), over).map(|mut state| then(&mut state)).ok_or(WindowError::Busy)
    }

    /// Binds a window of type 1 again, with a new key, or unbinds it if the length is zero. After
    /// `Ok` the old key is invalid.
    pub fn rebind(&self, keys: &Keys, region: &Arc<Registered>, binding: &WindowBinding) -> Result<u32, WindowError> {
        if self.kind != WindowType::One {
            return Err(WindowError::WrongType);
        }
        binding.check(region)?;
        self.taken_back(keys, |state| {
            if binding.len == 0 {
                return Ok(state.key);
            }
            let key = self.index << 8 | (state.key.wrapping_add(1) & 0xFF);
            state.bind(keys, key, (region, binding), AccessScope::Domain)?;
            Ok(key)
        })?
    }

    /// Binds a window of type 2. Returns [`Busy`](WindowError::Busy) while a revocation is in
    /// progress.
    pub fn bind(
        &self,
        keys: &Keys,
        (region, binding): (&Arc<Registered>, &WindowBinding),
        byte: u8,
        (via, peer): (AccessOrigin, u64),
    ) -> Result<u32, WindowError> {
        if self.kind == WindowType::One {
            return Err(WindowError::WrongType);
        }
        binding.check(region)?;
        if binding.len == 0 {
            return Err(WindowError::Empty);
        }
        let mut state = self.state();
        if !state.settle() {
            return Err(WindowError::Busy);
        }
        match state.phase {
            BindPhase::Bound { .. } => return Err(WindowError::StillBound),
            BindPhase::Gone => return Err(WindowError::Deallocated),
            BindPhase::Unbound | BindPhase::Revoking { .. } => {}
        }
        let key = self.index << 8 | u32::from(byte);
        state.bind(keys, key, (region, binding), AccessScope::Pair(via))?;
        state.peer = peer;
        Ok(key)
    }

    /// Starts to revoke the key of a window of type 2. Returns whether the revocation has completed.
    pub fn invalidate(&self, keys: &Keys, key: u32, by: Invalidator) -> Result<bool, WindowError> {
        if self.kind == WindowType::One {
            return Err(WindowError::WrongType);
        }
        let mut state = self.state();
        let through = match &state.phase {
            BindPhase::Bound { window, .. } => window.through(),
            // The owner may wait for the revocation again.
            BindPhase::Revoking { revocation, .. } if matches!(by, Invalidator::Owner(..)) => {
                revocation.region().through()
            }
            _ => return Err(WindowError::NotBound),
        };
        if state.key != key {
            return Err(WindowError::NotBound);
        }
        let ours = match (by, through) {
            // The peer may have exited, or may have been restarted with another incarnation. In both cases the address
            // is still the same.
            (Invalidator::Owner(via, peer), AccessScope::Pair(pair)) => {
                pair.endpoint == via.endpoint && (pair.peer == via.peer || state.peer == peer)
            }
            (Invalidator::Peer(via), through) => through == AccessScope::Pair(via),
            (Invalidator::Owner(..), _) => false,
        };
        if !ours {
            return Err(WindowError::OtherPair);
        }
        Ok(state.revoke(keys))
    }

    /// Returns whether no revocation is in progress.
    #[inline]
    pub fn is_settled(&self) -> bool {
        self.state().settle()
    }

    /// Revokes the window permanently, and waits until the revocation has completed.
    #[inline]
    pub fn close(&self, keys: &Keys) -> Result<(), WindowError> {
        self.taken_back(keys, |state| (state.phase, state.spare) = (BindPhase::Gone, None))
    }

    /// Revokes the window permanently, without waiting.
    pub fn abandon(&self, keys: &Keys) {
        let mut state = self.state();
        state.revoke(keys);
        state.spare = None;
        if let BindPhase::Revoking { revocation, hold } = std::mem::replace(&mut state.phase, BindPhase::Gone) {
            keys.park_window(revocation, hold);
        }
    }

    /// Unbinds the window if it is bound through an endpoint that is being closed.
    pub fn endpoint_gone(&self, keys: &Keys, endpoint: u64) {
        let mut state = self.state();
        let BindPhase::Bound { window, .. } = &state.phase else { return };
        if matches!(window.through(), AccessScope::Pair(pair) if pair.endpoint == endpoint) {
            let over = state.revoke(keys);
            if !over
                && let BindPhase::Revoking { revocation, hold } =
                    std::mem::replace(&mut state.phase, BindPhase::Unbound)
            {
                keys.park_window(revocation, hold);
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::Ordering;
    use std::time::Duration;

    use super::*;
    use crate::local_memory::buffer::{Buffer, BufferExt as _};
    use crate::local_memory::volatile::Segments;
    use crate::stuck::StuckPeer;
    use crate::system::forked::Process;

    const WHOLE: WindowBinding = WindowBinding { offset: 0, len: 16, access: Access::REMOTE_READ };

    /// Calls `test` with a table of keys and a region of 16 bytes.
    fn with_region(test: impl FnOnce(&Keys, &Arc<Registered>)) {
        let mut memory = Buffer::from(vec![0; 16]);
        let region = Registered::for_test(Segments::one(memory.segment_for_receive().unwrap()));
        test(&Keys::new(Duration::ZERO, Process::current().unwrap()), &region);
    }

    #[test]
    fn window_lies_within_its_region() {
        with_region(|_, region| {
            let check = |offset, len| WindowBinding { offset, len, ..WHOLE }.check(region);
            for (offset, len) in [(0, 16), (0, 0), (8, 8), (15, 1), (16, 0)] {
                assert_eq!(check(offset, len), Ok(()), "{len} bytes at {offset}");
            }
            let (beyond, far) = ([(0, 17), (8, 9), (15, 2), (16, 1), (17, 0)], u64::MAX);
            for (offset, len) in beyond.into_iter().chain([(1, far), (far, 0), (far, 1), (far, far)]) {
                assert_eq!(check(offset, len), Err(WindowError::Range), "{len} bytes at {offset}");
            }
        });
    }

    #[test]
    fn invalidation_of_an_old_key_keeps_the_new_one() {
        with_region(|keys, region| {
            let (cell, via, peer) = (keys.allocate_window(WindowType::TwoB).unwrap(), AccessOrigin::default(), 5);
            let bind = |byte| cell.bind(keys, (region, &WHOLE), byte, (via, peer)).unwrap();
            let old = bind(1);
            assert_eq!(cell.invalidate(keys, old, Invalidator::Peer(via)), Ok(true));
            let new = bind(2);
            for by in [Invalidator::Peer(via), Invalidator::Owner(via, peer)] {
                assert_eq!(cell.invalidate(keys, old, by), Err(WindowError::NotBound));
                assert_eq!(cell.query(), (new, true, false));
            }
            assert_eq!(cell.invalidate(keys, new, Invalidator::Owner(via, peer)), Ok(true));
        });
    }

    /// The memory under a dropped window stays in use while a peer accesses it.
    #[test]
    fn dropped_window_refers_to_its_region_until_its_peers_have_finished() {
        with_region(|keys, region| {
            let cell = keys.allocate_window(WindowType::One).unwrap();
            cell.rebind(keys, region, &WHOLE).unwrap();
            let peer = Arc::<StuckPeer>::default();
            assert!(cell.bound().unwrap().grants().add(Arc::clone(&peer) as _, 0));
            cell.abandon(keys);
            keys.free_parked();
            assert_eq!(region.windows().count(), 1, "the peer is accessing the memory");
            peer.retired.store(true, Ordering::Release);
            keys.free_parked();
            assert_eq!(region.windows().count(), 0);
        });
    }
}
