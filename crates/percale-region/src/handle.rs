//! The part that all kinds of regions have in common: the entry in the key table, and whether the region is enabled.
//!
//! A region is *enabled* or *disabled*. The key of a disabled region stays in use, but no peer can access the region.
//! Like closing, disabling waits for peers that are in the middle of an access. A region that was disabled and enabled
//! again is in the table as a new [`Registered`] with a new pin and without grants, so all earlier grants are void.
//!
//! Invariant: while `retiring` is `Some`, the region is disabled.

use std::sync::Arc;
use std::time::Duration;

use super::counters::AccessCounter;
use super::keys::Keys;
use super::raw_key::RawKey;
use super::raw_key::Secret;
use super::registered::Registered;
use super::revocation::Revocation;
use super::terms::{Kept, Terms};
use super::via::Through;
use super::{Access, CloseError, RegisterError, RemoteMemory};
use crate::local_memory::buffer::Buffer;
use crate::local_memory::volatile::Segments;

/// A region's entry in the key table, and whether it is enabled.
#[derive(Debug)]
pub struct Handle {
    registered: Arc<Registered>,
    keys: Arc<Keys>,
    rest: Box<Rest>,
}

/// The rarely used part of a handle, boxed because handles are moved.
#[derive(Debug)]
struct Rest {
    raw_key: RawKey,
    /// The endpoints through which accesses may arrive while the region is enabled.
    through: Through,
    /// The revocation of the region that was disabled, while peers may still be accessing it.
    retiring: Option<Revocation>,
    /// The revocation of grants that were made before the region had its counters, while peers may still be using them.
    uncounted: Option<Revocation>,
    /// The revocation of the region that is being closed.
    revocation: Option<Revocation>,
}

impl Handle {
    /// Registers memory in a domain with these keys.
    pub fn register(
        keys: &Arc<Keys>,
        secret: &Secret,
        terms: Terms,
        memory: Segments,
        kept: Kept,
    ) -> Result<Self, RegisterError> {
        let unknown = terms.access.difference(Access::all());
        if !unknown.is_empty() {
            return Err(RegisterError::Access(unknown.bits()));
        }
        let (registered, raw_key) = if terms.raw_key {
            loop {
                let (raw_key, key) = secret.raw_key(terms.base, memory.len() as u64)?;
                match keys.register(&Terms { key: Some(key), ..terms.clone() }, memory, kept) {
                    Err(RegisterError::KeyTaken(_)) => {} // This is very unlikely. Try another random key.
                    registered => break (registered?, raw_key),
                }
            }
        } else {
            let registered = keys.register(&terms, memory, kept)?;
            let raw_key = RawKey::short(registered.key);
            (registered, raw_key)
        };
        let rest = Rest { raw_key, through: terms.through, retiring: None, uncounted: None, revocation: None };
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
        self.registered.through != Through::Nobody
    }

    /// Restricts accesses to this endpoint, from the next time that the region is enabled.
    #[inline]
    pub fn restrict(&mut self, endpoint: u64) {
        self.rest.through = Through::Endpoint(endpoint);
    }

    /// Counts the writes of peers from now on. Peers with direct access lose their grants. The new grants that they
    /// request require them to report their writes. Waits for at most `timeout` for peers that are in the middle of an
    /// access. If they do not finish in that time, the result is still `Ok`, and closing or disabling the region waits
    /// for them. Fails if windows are bound, or in a forked child.
    pub fn count(
        &mut self,
        counter: &Arc<impl AccessCounter + 'static>,
        timeout: Option<Duration>,
    ) -> Result<(), CloseError<()>> {
        if !self.keys.is_here() {
            return Err(CloseError::Forked(()));
        }
        let registered = &self.registered;
        let counter: Arc<dyn AccessCounter> = counter.clone();
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
            match &mut self.rest.uncounted {
                Some(others) => others.join(uncounted),
                none => *none = Some(uncounted),
            }
        }
        Ok(())
    }

    /// Enables the region. Fails if a peer that was accessing the region when it was disabled has not finished, if the
    /// region is being closed, or in a forked child.
    pub fn enable(&mut self, timeout: Option<Duration>) -> Result<(), CloseError<()>> {
        if !self.keys.is_here() {
            return Err(CloseError::Forked(()));
        }
        if self.is_enabled() {
            return Ok(());
        }
        if self.rest.revocation.is_some() {
            return Err(CloseError::Busy(())); // The region is being closed.
        }
        if self.rest.retiring.as_mut().is_some_and(|retiring| !retiring.wait(timeout)) {
            return Err(CloseError::Busy(()));
        }
        self.rest.retiring = None;
        self.registered = self.keys.replace(&self.registered, self.rest.through);
        Ok(())
    }

    /// Disables the region, and waits for peers that are in the middle of an access. Fails if a peer does not finish
    /// within `timeout`, if windows are bound, or in a forked child.
    pub fn disable(&mut self, timeout: Option<Duration>) -> Result<(), CloseError<()>> {
        if !self.keys.is_here() {
            return Err(CloseError::Forked(()));
        }
        if let Some(revocation) = &mut self.rest.revocation {
            // The region is being closed, which waits for peers that were admitted before. No peers are admitted from
            // now on.
            return if revocation.wait(timeout) { Ok(()) } else { Err(CloseError::Busy(())) };
        }
        if self.is_enabled() {
            self.keys.close_to_windows(&self.registered, timeout)?;
            let closed = self.keys.replace(&self.registered, Through::Nobody);
            let former = std::mem::replace(&mut self.registered, closed);
            self.rest.retiring = Some(Revocation::start(former));
        }
        let Rest { retiring, uncounted, .. } = &mut *self.rest;
        let quiet = [retiring, uncounted].into_iter().flatten().all(|retiring| retiring.wait(timeout));
        if !quiet {
            return Err(CloseError::Busy(()));
        }
        (self.rest.retiring, self.rest.uncounted) = (None, None);
        Ok(())
    }

    /// Revokes the region. Fails if windows are bound to it, or if a peer does not finish within `timeout`. Does
    /// nothing in a forked child, because peers access the parent's memory.
    pub fn close(&mut self, timeout: Option<Duration>) -> Result<(), CloseError<()>> {
        if !self.keys.is_here() {
            return Ok(());
        }
        let Self { registered, keys, rest } = self;
        let Rest { retiring, uncounted, revocation, .. } = &mut **rest;
        keys.close_to_windows(registered, timeout)?;
        let over = revocation.get_or_insert_with(|| keys.revoke(registered)).wait(timeout)
            && [retiring, uncounted].into_iter().flatten().all(|retiring| retiring.wait(timeout));
        if over { Ok(()) } else { Err(CloseError::Busy(())) }
    }

    /// Revokes the region without waiting. The memory is kept until no peer can access it any more.
    pub fn park(&mut self, memory: Option<Buffer>) {
        if !self.keys.is_here() {
            return drop(memory); // This is the child's copy of the memory. Peers access the parent's memory.
        }
        let Self { registered, keys, rest } = self;
        let Rest { retiring, uncounted, revocation, .. } = &mut **rest;
        registered.windows.abandon();
        let mut revocation = revocation.take().unwrap_or_else(|| keys.revoke(registered));
        if let Some(uncounted) = uncounted.take() {
            revocation.join(uncounted);
        }
        // A disabled region can be accessed only by peers that were admitted before it was disabled.
        keys.park(retiring.take().unwrap_or(revocation), memory);
    }
}
