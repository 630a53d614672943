//! What the kinds of regions share: a place in the table, and who may use it now.
//!
//! A region is *enabled*, or *disabled*: then its key is taken, and nobody reaches it. Disabling is what closing is: it waits for who is at
//! it. So a region that was disabled and enabled again is in the table as another [`Registered`], whose grants and pin are new: whatever
//! was known of the former is void. Invariant: while `retiring` is there, the region is disabled.

use std::sync::Arc;
use std::time::Duration;

use super::keys::Keys;
use super::raw_key::RawKey;
use super::registered::Registered;
use super::revocation::Revocation;
use super::via::Through;
use super::{Access, CloseError, Kept, RegisterError, Registration, RemoteMemory, Terms};
use crate::completion::counter::Counter;
use crate::memory::buffer::Buffer;
use crate::memory::volatile::Segments;

/// A region's place in the key table, and whether it is enabled.
#[derive(Debug)]
pub(super) struct Handle {
    pub(super) registered: Arc<Registered>,
    pub(super) keys: Arc<Keys>,
    rest: Box<Rest>,
}

/// What of a region is seldom looked at: handles are moved.
#[derive(Debug)]
struct Rest {
    raw_key: RawKey,
    /// Through whom accesses come while it is enabled.
    through: Through,
    /// What it was before it was disabled, and is not quiet yet.
    retiring: Option<Revocation>,
    /// Grants that were made before it had its counters, and that peers may still be at.
    uncounted: Option<Revocation>,
    /// It is being taken back.
    revocation: Option<Revocation>,
}

impl Registration<'_> {
    pub(super) fn register(self, memory: Segments, kept: Kept) -> Result<Handle, RegisterError> {
        let inner = &self.domain.inner;
        let terms = self.terms;
        let unknown = terms.access.difference(Access::all());
        if !unknown.is_empty() {
            return Err(RegisterError::Access(unknown.bits()));
        }
        let (registered, raw_key) = if terms.raw_key {
            loop {
                let (raw_key, key) = inner.secret.raw_key(terms.base, memory.len() as u64)?;
                match inner.keys.register(&Terms { key: Some(key), ..terms.clone() }, memory, kept) {
                    Err(RegisterError::KeyTaken(_)) => {} // One in 2^64: another.
                    registered => break (registered?, raw_key),
                }
            }
        } else {
            let registered = inner.keys.register(&terms, memory, kept)?;
            let raw_key = RawKey::short(registered.key);
            (registered, raw_key)
        };
        let keys = Arc::clone(&inner.keys);
        let rest = Rest { raw_key, through: terms.through, retiring: None, uncounted: None, revocation: None };
        Ok(Handle { registered, keys, rest: Box::new(rest) })
    }
}

impl Handle {
    pub(super) fn remote(&self) -> RemoteMemory {
        let Registered { key, base, len, .. } = *self.registered;
        RemoteMemory { key, address: base, len }
    }

    pub(super) fn raw_key(&self) -> RawKey {
        self.rest.raw_key
    }

    pub(super) fn is_enabled(&self) -> bool {
        self.registered.through != Through::Nobody
    }

    /// Accesses come only through this endpoint; from when it is enabled the next time.
    pub(super) fn restrict(&mut self, endpoint: u64) {
        self.rest.through = Through::Endpoint(endpoint);
    }

    /// Counts what peers write, from now on: those that reach it by themselves are to ask anew, and then learn that they must tell. Who is in
    /// the middle of an access is waited for, at most for `timeout`.
    pub(super) fn count(&mut self, counter: &Arc<Counter>, timeout: Option<Duration>) -> Result<(), CloseError<()>> {
        if !self.keys.is_here() {
            return Err(CloseError::Forked(()));
        }
        let registered = &self.registered;
        let add = || {
            // Held until both are done: who is granted the region later learns of the counter.
            let mut grants = registered.grants();
            registered.counters.add(counter);
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

    /// Lets peers in; an error if those from before have not left, or in a forked child.
    pub(super) fn enable(&mut self, timeout: Option<Duration>) -> Result<(), CloseError<()>> {
        if !self.keys.is_here() {
            return Err(CloseError::Forked(()));
        }
        if self.is_enabled() {
            return Ok(());
        }
        if self.rest.revocation.is_some() {
            return Err(CloseError::Busy(())); // It is being closed.
        }
        if self.rest.retiring.as_mut().is_some_and(|retiring| !retiring.wait(timeout)) {
            return Err(CloseError::Busy(()));
        }
        self.rest.retiring = None;
        self.registered = self.keys.replace(&self.registered, self.rest.through);
        Ok(())
    }

    /// Lets no peer in any more, and waits for those that are; an error if one does not move within `timeout`. Not while windows are bound.
    pub(super) fn disable(&mut self, timeout: Option<Duration>) -> Result<(), CloseError<()>> {
        if !self.keys.is_here() {
            return Err(CloseError::Forked(()));
        }
        if let Some(revocation) = &mut self.rest.revocation {
            // It is being closed: who was let in before then is waited for, and nobody is let in again.
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

    /// Takes the region back, unless windows are bound to it; an error if a peer does not move within `timeout`. In a forked child peers are
    /// at the parent's memory, and nothing is to be done.
    pub(super) fn close(&mut self, timeout: Option<Duration>) -> Result<(), CloseError<()>> {
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

    /// Takes the region back without waiting: memory that may still be used is kept until it is not.
    pub(super) fn park(&mut self, memory: Option<Buffer>) {
        if !self.keys.is_here() {
            return drop(memory); // The child's copy; peers are at the parent's.
        }
        let Self { registered, keys, rest } = self;
        let Rest { retiring, uncounted, revocation, .. } = &mut **rest;
        registered.windows.abandon();
        let mut revocation = revocation.take().unwrap_or_else(|| keys.revoke(registered));
        if let Some(uncounted) = uncounted.take() {
            revocation.join(uncounted);
        }
        // Of a disabled region nobody uses but who did so before.
        keys.park(retiring.take().unwrap_or(revocation), memory);
    }
}
