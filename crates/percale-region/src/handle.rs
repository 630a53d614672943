//! The part that all kinds of regions have in common: the entry in the key table, and whether the region is enabled.
//!
//! A region is *enabled* or *disabled*. The key of a disabled region stays in use, but no peer can access the region.
//! Like closing, disabling waits for peers that are in the middle of an access. A region that was disabled and enabled
//! again is in the table as a new [`Registered`] with a new pin and without grants, so all earlier grants are void.
//!
//! Invariant: a revocation of grants, or of the whole region, is in `HandleDetails::ending` as long as an access that
//! began before it may be in progress. The memory is not released before that access has ended.

use std::sync::Arc;
use std::time::Duration;

use super::access_origin::AccessScope;
use super::counters::AccessCounter;
use super::keys::Keys;
use super::properties::{MemoryProperties, RegistrationProperties};
use super::raw_key::RawKey;
use super::raw_key::Secret;
use super::registered::Registered;
use super::revocation::Revocation;
use super::{Access, CloseError, RegisterError, RemoteMemory};
use crate::local_memory::buffer::Buffer;
use crate::local_memory::volatile::Segments;

/// A region's entry in the key table, and whether it is enabled.
#[derive(Debug)]
pub struct RegionHandle {
    registered: Arc<Registered>,
    keys: Arc<Keys>,
    rest: Box<HandleDetails>,
}

/// The rarely used part of a handle, boxed because handles are moved.
#[derive(Debug)]
struct HandleDetails {
    raw_key: RawKey,
    /// The endpoints through which accesses may arrive while the region is enabled.
    through: AccessScope,
    /// The revocations that have not completed: of grants that were made before the region had its counters, of the
    /// region before it was disabled, and of the region that is being closed. The newest revocation completes after the
    /// earlier ones.
    ending: Option<Revocation>,
    /// Whether the region is being closed, or is closed. Its key is no longer in the table.
    closing: bool,
}

impl HandleDetails {
    /// Adds a revocation that was started.
    fn begin(&mut self, mut revocation: Revocation) {
        if let Some(earlier) = self.ending.take() {
            revocation.follow(earlier);
        }
        self.ending = Some(revocation);
    }

    /// Waits for at most `timeout` until all revocations have completed. Returns whether they have.
    fn settle(&mut self, timeout: Option<Duration>) -> bool {
        if self.ending.as_mut().is_some_and(|ending| !ending.wait(timeout)) {
            return false;
        }
        self.ending = None;
        true
    }
}

impl RegionHandle {
    /// Registers memory in a domain with these keys.
    pub fn register(
        keys: &Arc<Keys>,
        secret: &Secret,
        terms: RegistrationProperties,
        memory: Segments,
        kept: MemoryProperties,
    ) -> Result<Self, RegisterError> {
        let unknown = terms.access.difference(Access::all());
        if !unknown.is_empty() {
            return Err(RegisterError::Access(unknown.bits()));
        }
        let (registered, raw_key) = if terms.raw_key {
            loop {
                let (raw_key, key) = secret.raw_key(terms.base, memory.len() as u64)?;
                match keys.register(&RegistrationProperties { key: Some(key), ..terms.clone() }, memory, kept) {
                    Err(RegisterError::KeyTaken(_)) => {} // This is very unlikely. Try another random key.
                    registered => break (registered?, raw_key),
                }
            }
        } else {
            let registered = keys.register(&terms, memory, kept)?;
            let raw_key = RawKey::short(registered.key);
            (registered, raw_key)
        };
        let rest = HandleDetails { raw_key, through: terms.through, ending: None, closing: false };
        Ok(Self { registered, keys: Arc::clone(keys), rest: Box::new(rest) })
    }

    /// Returns the region as it is in the table at the moment.
    #[inline]
    pub const fn registered(&self) -> &Arc<Registered> {
        &self.registered
    }

    /// Returns the keys of the domain.
    #[inline]
    pub const fn keys(&self) -> &Arc<Keys> {
        &self.keys
    }

    /// Returns the name of the region for peers.
    #[inline]
    pub fn remote(&self) -> RemoteMemory {
        let Registered { key, base, len, .. } = *self.registered;
        RemoteMemory { key, address: base, len }
    }

    /// Returns the raw key of the region.
    #[inline]
    pub fn raw_key(&self) -> RawKey {
        self.rest.raw_key
    }

    /// Returns whether peers are admitted.
    #[inline]
    pub fn is_enabled(&self) -> bool {
        self.registered.through != AccessScope::Nobody
    }

    /// Restricts accesses to this endpoint, from the next time that the region is enabled.
    #[inline]
    pub fn restrict(&mut self, endpoint: u64) {
        self.rest.through = AccessScope::Endpoint(endpoint);
    }

    /// Counts the writes of peers from now on. Peers with direct access lose their grants. The new grants that they
    /// request require them to report their writes. Waits for at most `timeout` for peers that are in the middle of an
    /// access. If they do not finish in that time, the result is still `Ok`, and closing or disabling the region waits
    /// for them. Fails if windows are bound, or in a forked child.
    pub fn count(&mut self, counter: Arc<dyn AccessCounter>, timeout: Option<Duration>) -> Result<(), CloseError<()>> {
        if !self.keys.is_here() {
            return Err(CloseError::Forked(()));
        }
        let registered = &self.registered;
        let add = || {
            // Locked until both are done, so that every later grant takes the counter into account.
            let mut grants = registered.grants();
            registered.counters.add(&counter);
            grants.take()
        };
        let grants = registered.windows.without(add).ok_or(CloseError::Windows(()))?;
        if grants.is_empty() {
            return Ok(());
        }
        let mut uncounted = Revocation::of_grants(registered, grants);
        if !uncounted.wait(timeout) {
            self.rest.begin(uncounted);
        }
        Ok(())
    }

    /// Enables the region. Fails if a peer that was accessing the region when it was disabled has not finished after
    /// `timeout`, if the region is being closed, or in a forked child.
    pub fn enable(&mut self, timeout: Option<Duration>) -> Result<(), CloseError<()>> {
        if !self.keys.is_here() {
            return Err(CloseError::Forked(()));
        }
        if self.is_enabled() {
            return Ok(());
        }
        if self.rest.closing || !self.rest.settle(timeout) {
            return Err(CloseError::Busy(()));
        }
        self.registered = self.keys.replace(&self.registered, self.rest.through);
        Ok(())
    }

    /// Disables the region, and waits for peers that are in the middle of an access. Fails if a peer does not finish
    /// within `timeout`, if windows are bound, or in a forked child.
    pub fn disable(&mut self, timeout: Option<Duration>) -> Result<(), CloseError<()>> {
        if !self.keys.is_here() {
            return Err(CloseError::Forked(()));
        }
        // Closing has revoked the region already, so that no peers are admitted.
        if self.is_enabled() && !self.rest.closing {
            self.keys.close_to_windows(&self.registered, timeout)?;
            let closed = self.keys.replace(&self.registered, AccessScope::Nobody);
            let former = std::mem::replace(&mut self.registered, closed);
            self.rest.begin(Revocation::start(former));
        }
        if self.rest.settle(timeout) { Ok(()) } else { Err(CloseError::Busy(())) }
    }

    /// Revokes the region. Fails if windows are bound to it, or if a peer does not finish within `timeout`. Does
    /// nothing in a forked child, because peers access the parent's memory.
    pub fn close(&mut self, timeout: Option<Duration>) -> Result<(), CloseError<()>> {
        if !self.keys.is_here() {
            return Ok(());
        }
        self.keys.close_to_windows(&self.registered, timeout)?;
        self.revoke();
        if self.rest.settle(timeout) { Ok(()) } else { Err(CloseError::Busy(())) }
    }

    /// Removes the region from the table and revokes its grants, unless this was done before.
    fn revoke(&mut self) {
        if !std::mem::replace(&mut self.rest.closing, true) {
            self.rest.begin(self.keys.revoke(&self.registered));
        }
    }

    /// Revokes the region without waiting. The memory is kept until no peer can access it any more.
    pub fn park(&mut self, memory: Option<Buffer>) {
        if !self.keys.is_here() {
            return drop(memory); // This is the child's copy of the memory. Peers access the parent's memory.
        }
        self.registered.windows.abandon();
        self.revoke();
        match self.rest.ending.take() {
            Some(ending) => self.keys.park(ending, memory),
            None => drop(memory), // No peer accesses it.
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;
    use crate::local_memory::buffer::BufferExt as _;
    use crate::local_memory::volatile::Segment;
    use crate::stuck::StuckPeer;
    use crate::system::forked::Process;
    use crate::{AccessOrigin, Refusal};

    #[derive(Debug)]
    struct Unused;

    impl AccessCounter for Unused {
        fn add(&self, _: u64) {}

        fn identity(&self) -> usize {
            std::ptr::from_ref(self).addr()
        }
    }

    /// An action on a region.
    #[derive(Clone, Copy, Debug)]
    enum Step {
        /// Another peer gets a grant, and does not finish its access.
        Grant,
        Count,
        Disable,
        Enable,
        Close,
        /// The peer that has been accessing the memory for the longest time finishes.
        Finish,
    }

    const STEPS: [Step; 6] = [Step::Grant, Step::Count, Step::Disable, Step::Enable, Step::Close, Step::Finish];

    /// Runs some steps, and then drops the region.
    fn run(steps: &[Step]) {
        const NO_TIME: Option<Duration> = Some(Duration::ZERO);
        let keys = Arc::new(Keys::new(Duration::ZERO, Process::current().unwrap()));
        let memory = Arc::<[u8]>::from([7; 16]);
        let alive = Arc::downgrade(&memory);
        let buffer = Buffer::from(memory);
        let (segments, kept) =
            (Segments::one(buffer.segment_for_send()), MemoryProperties { backed: true, writable: false });
        let secret = Secret::new().unwrap();
        let mut handle =
            RegionHandle::register(&keys, &secret, RegistrationProperties::new(Access::REMOTE_READ), segments, kept)
                .unwrap();
        let mut peers = Vec::<Arc<StuckPeer>>::new();
        let is_used = |peers: &[Arc<StuckPeer>]| peers.iter().any(|peer| !peer.retired.load(Ordering::Acquire));
        for step in steps {
            let ended = match step {
                Step::Grant => {
                    let peer = Arc::<StuckPeer>::default();
                    let admitted = handle.registered().admits(AccessOrigin::default());
                    if admitted && handle.registered().grants().add(Arc::clone(&peer) as _, 0) {
                        peers.push(peer);
                    }
                    false
                }
                Step::Count => {
                    _ = handle.count(Arc::new(Unused), NO_TIME);
                    false // Peers that have not finished are waited for later.
                }
                Step::Disable => handle.disable(NO_TIME).is_ok(),
                Step::Enable => {
                    let was_enabled = handle.is_enabled();
                    handle.enable(NO_TIME).is_ok() && !was_enabled
                }
                Step::Close => handle.close(NO_TIME).is_ok(),
                Step::Finish => {
                    let first = peers.iter().find(|peer| !peer.retired.load(Ordering::Acquire));
                    if let Some(first) = first {
                        first.retired.store(true, Ordering::Release);
                    }
                    false
                }
            };
            assert!(!(ended && is_used(&peers)), "{step:?} of {steps:?} returned while a peer accessed the memory");
        }
        handle.park(Some(buffer));
        assert_eq!(alive.upgrade().is_some(), is_used(&peers), "after the end of {steps:?}");
        for peer in &peers {
            keys.free_parked();
            assert_eq!(alive.upgrade().is_some(), is_used(&peers), "later, after {steps:?}");
            peer.retired.store(true, Ordering::Release);
        }
        keys.free_parked();
        assert!(alive.upgrade().is_none(), "memory that no peer uses is kept after {steps:?}");
    }

    /// Registers memory that peers may read.
    fn readable(keys: &Arc<Keys>, memory: Segment, backed: bool) -> RegionHandle {
        let terms = RegistrationProperties::new(Access::REMOTE_READ);
        let kept = MemoryProperties { backed, writable: false };
        RegionHandle::register(keys, &Secret::new().unwrap(), terms, Segments::one(memory), kept).unwrap()
    }

    /// A transfer would access the memory with instructions of this process.
    #[test]
    fn memory_that_may_be_unmapped_is_not_lent_to_transfers() {
        let keys = Arc::new(Keys::new(Duration::ZERO, Process::current().unwrap()));
        let mut memory = Buffer::from(vec![7; 16]);
        let segment = memory.segment_for_receive().unwrap();
        for (backed, expected) in [(true, Ok(16)), (false, Err(Refusal::Fault))] {
            let handle = readable(&keys, segment, backed);
            let lent = handle.registered().lease(0, 16, Access::REMOTE_READ);
            assert_eq!(lent.map(|lease| lease.len()), expected);
        }
    }

    #[test]
    fn local_key_is_valid_until_the_region_is_closed() {
        let keys = Arc::new(Keys::new(Duration::ZERO, Process::current().unwrap()));
        let mut memory = Buffer::from(vec![7; 16]);
        let segment = memory.segment_for_receive().unwrap();
        let register = || readable(&keys, segment, true);
        let mut handle = register();
        let key = keys.local_key(handle.registered()).unwrap();
        let is_valid = || keys.find_local(key, segment.as_ptr().addr() as u64, 16, false).is_some();
        assert!(is_valid());
        handle.disable(None).unwrap();
        assert!(is_valid(), "the owner may use a disabled region");
        handle.enable(None).unwrap();
        assert!(is_valid());
        assert_eq!(keys.local_key(handle.registered()).unwrap(), key);
        handle.close(None).unwrap();
        assert!(!is_valid());
        // The next region gets the index of the key, but another key.
        let next = register();
        assert_eq!(keys.local_key(next.registered()).unwrap() >> 8, key >> 8);
        assert!(!is_valid());
    }

    /// Requirements: REV-002.
    #[test]
    fn memory_is_kept_until_every_peer_has_finished_in_any_order_of_calls() {
        for number in 0..STEPS.len().pow(6) {
            let steps = [1, 6, 36, 216, 1296, 7776].map(|place| STEPS[number / place % STEPS.len()]);
            run(&steps);
        }
    }
}
