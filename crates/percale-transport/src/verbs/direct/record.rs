//! The grants of a target to one peer, by number, and their revocation. The owner of the record holds a lock during
//! each call.
//!
//! An *entry* is the state of a grant. The grant of a window is *leaving* while the device unbinds its window, which is
//! polled. Once no access through the grant is possible any more, the peer is notified. The entry stays until the peer
//! has answered, and until then no other grant is made with the same remote key. The *number* of a grant contains a
//! generation ([`Table`]) and is the only way to find its entry. So a late number, from the peer or from a region that
//! is closed, never finds a different grant.

use std::sync::{Arc, Weak};

use super::super::window_use::WindowUse;
use super::super::{Binding, ProtectionDomain, QueuePair, Registration, Window};
use super::windows::{BindFailure, PeerWindows, UnbindRequest, UnbindState};
use crate::region::Registered;
use crate::table::Table;

/// The maximum number of grants to one peer, including those that the peer has not confirmed to be unused.
pub(super) const GRANTS: usize = 4096;

/// A number that is never used for an offered grant. A region has a grant with this number if its memory was never
/// offered to the peer, but an object that the device failed to end may belong to it.
pub(super) const NOBODYS: u32 = u32::MAX;

// The slot of this number is never used.
const _: () = assert!(GRANTS < crate::table::WIRE_SLOTS);

/// The state of a grant.
#[derive(Debug)]
pub(super) enum GrantRecord {
    /// The grant is being made.
    Taken,
    Granted {
        key: u64,
        region: Weak<Registered>,
        way: GrantMethod,
    },
    /// A region's registration, to which windows are bound. It is never reported to a peer.
    Beneath {
        region: Weak<Registered>,
        registration: Arc<Registration>,
        /// The number of windows bound to it.
        windows: u32,
        /// Whether the registration ends with its last window, because the region was closed.
        ends: bool,
    },
    /// A window that is being unbound. Accesses through it are still possible.
    Leaving {
        key: u64,
        remote_key: u32,
        window: Window,
        under: WindowBacking,
        request: UnbindRequest,
    },
    /// No access through the grant is possible any more. `reported` is true if the peer was notified.
    Gone {
        key: u64,
        remote_key: u32,
        reported: bool,
    },
}

/// The registration or the window through which the peer reaches a region or a window.
#[derive(Debug)]
pub(super) enum GrantMethod {
    Registration(Arc<Registration>),
    Window { window: Window, under: WindowBacking },
}

/// The registration to which a window is bound.
#[derive(Debug)]
pub(super) enum WindowBacking {
    /// A registration that ends with the window.
    Own(Arc<Registration>),
    /// The number of the entry that contains the registration of the window's region.
    Shared(u32),
}

/// The grants of one peer, by number.
#[derive(Debug)]
pub(super) struct Record {
    /// The target's end of the peer's queue pair, while the link exists.
    pair: Option<Arc<QueuePair>>,
    entries: Table<GrantRecord>,
    pub(super) windows: Option<PeerWindows>,
    /// The numbers of the entries that are leaving.
    leaving: Vec<u32>,
    /// Objects that the device failed to end.
    stuck: StuckResources,
    /// Whether the peer has to be notified of ended grants.
    pub(super) any_gone: bool,
    /// Whether the queue pair was set to the error state because a window or registration could not be ended.
    failed: bool,
    /// Whether the peer was notified that the queue pair is in the error state.
    reported: bool,
}

#[derive(Debug, Default)]
struct StuckResources {
    windows: Vec<Window>,
    registrations: Vec<Arc<Registration>>,
}

impl GrantMethod {
    pub(super) fn remote_key(&self) -> u32 {
        match self {
            Self::Registration(registration) => registration.keys().1,
            Self::Window { window, .. } => window.remote_key(),
        }
    }
}

impl Record {
    pub(super) fn new(using: Option<WindowUse>) -> Self {
        let windows = using.map(PeerWindows::new);
        Self {
            pair: None,
            entries: Table::new(),
            windows,
            leaving: Vec::new(),
            stuck: StuckResources::default(),
            any_gone: false,
            failed: false,
            reported: false,
        }
    }

    /// Returns the target's end of the peer's queue pair.
    #[cfg(all(any(test, feature = "testing"), not(loom)))]
    pub(super) const fn pair(&self) -> Option<&Arc<QueuePair>> {
        self.pair.as_ref()
    }

    /// Reserves a number for a grant.
    pub(super) fn take(&mut self) -> Option<u32> {
        (self.entries.len() < GRANTS).then(|| self.entries.insert(GrantRecord::Taken).to_wire())
    }

    /// Returns the entry with this number.
    pub(super) fn get(&self, number: u32) -> Option<&GrantRecord> {
        self.entries.get(self.entries.find_wire(number)?)
    }

    pub(super) fn get_mut(&mut self, number: u32) -> Option<&mut GrantRecord> {
        self.entries.get_mut(self.entries.find_wire(number)?)
    }

    /// Stores the entry of a number that was [reserved](Self::take).
    pub(super) fn put(&mut self, number: u32, made: GrantRecord) {
        if let Some(entry) = self.get_mut(number) {
            *entry = made;
        }
    }

    /// Returns all entries with their numbers.
    pub(super) fn all(&self) -> impl Iterator<Item = (u32, &GrantRecord)> {
        self.entries.iter().map(|(id, entry)| (id.to_wire(), entry))
    }

    pub(super) fn all_mut(&mut self) -> impl Iterator<Item = (u32, &mut GrantRecord)> {
        self.entries.iter_mut().map(|(id, entry)| (id.to_wire(), entry))
    }

    /// Releases a number that was never sent to the peer, or that the peer has confirmed to be unused.
    pub(super) fn give_back(&mut self, number: u32) {
        if let Some(id) = self.entries.find_wire(number) {
            self.entries.remove(id);
        }
    }

    /// Finds the registration for this region's windows, and counts one more window on it.
    pub(super) fn beneath(&mut self, of: &Arc<Registered>) -> Option<(u32, Arc<Registration>)> {
        self.all_mut().find_map(|(number, entry)| match entry {
            GrantRecord::Beneath { region, registration, windows, .. }
                if std::ptr::eq(region.as_ptr(), Arc::as_ptr(of)) =>
            {
                *windows += 1;
                Some((number, Arc::clone(registration)))
            }
            _ => None,
        })
    }

    /// Returns whether this key was used for a grant that the peer has not confirmed to be unused.
    pub(super) fn was_used(&self, key: u32) -> bool {
        was_used(&self.entries, key)
    }

    /// Binds a window for the peer.
    pub(super) fn bind(&mut self, domain: &Arc<ProtectionDomain>, binding: &Binding) -> Result<Window, BindFailure> {
        let Self { pair: Some(pair), windows: Some(windows), entries, stuck, .. } = self else {
            return Err(BindFailure::Later);
        };
        let bound = windows.bind((domain, pair), binding, |key| was_used(entries, key));
        bound.map_err(|(why, window)| {
            stuck.windows.extend(window);
            why
        })
    }

    /// Returns whether no windows are bound for the peer at the moment.
    pub(super) fn refuses(&self) -> bool {
        self.windows.as_ref().is_some_and(PeerWindows::refuses)
    }

    /// Returns whether the device has failed to end a window or registration.
    pub(super) const fn is_stuck(&self) -> bool {
        !self.stuck.windows.is_empty() || !self.stuck.registrations.is_empty()
    }

    /// Revokes a grant, or starts to revoke it: a window [leaves](Self::advance). A registration with windows ends once
    /// no window is bound to it.
    pub(super) fn revoke(&mut self, number: u32) {
        let Some(slot) = self.get_mut(number) else { return };
        match std::mem::replace(slot, GrantRecord::Taken) {
            GrantRecord::Granted { key, way: GrantMethod::Registration(registration), .. } => {
                *slot = GrantRecord::Gone { key, remote_key: registration.keys().1, reported: false };
                self.any_gone = true;
                self.end_registration(registration);
            }
            GrantRecord::Granted { key, way: GrantMethod::Window { window, under }, .. } => {
                // A window of type 1 has a different key as soon as the unbind is posted.
                let remote_key = window.remote_key();
                *slot = GrantRecord::Leaving { key, remote_key, window, under, request: UnbindRequest::new() };
                self.leaving.push(number);
                self.advance(number);
            }
            GrantRecord::Beneath { registration, windows: 0, .. } => {
                self.give_back(number);
                self.end_registration(registration);
            }
            GrantRecord::Beneath { region, registration, windows, .. } => {
                *slot = GrantRecord::Beneath { region, registration, windows, ends: true };
            }
            other => *slot = other,
        }
    }

    /// Checks once whether the window of a leaving entry is unbound.
    pub(super) fn advance(&mut self, number: u32) {
        let Self { pair, entries, windows, .. } = self;
        let entry = entries.find_wire(number).and_then(|id| entries.get_mut(id));
        let Some(GrantRecord::Leaving { window, request, .. }) = entry else { return };
        let taking = match windows {
            Some(windows) => windows.take_back(window, request, pair.as_ref()),
            None => UnbindState::Failed,
        };
        if taking != UnbindState::Waits {
            self.left(number, taking == UnbindState::Over);
        }
    }

    /// Completes the revocation of a leaving entry. If `unbound` is false, the device has not unbound the window, and
    /// the window is deallocated. If that fails too, the queue pair is set to the error state, so that no access over
    /// it is possible.
    fn left(&mut self, number: u32, unbound: bool) {
        let Some(slot) = self.get_mut(number) else { return };
        let (window, under) = match std::mem::replace(slot, GrantRecord::Taken) {
            GrantRecord::Leaving { key, remote_key, window, under, .. } => {
                *slot = GrantRecord::Gone { key, remote_key, reported: false };
                (window, under)
            }
            other => {
                *slot = other;
                return;
            }
        };
        self.any_gone = true;
        self.leaving.retain(|other| *other != number);
        match &mut self.windows {
            Some(windows) if unbound => windows.give_back(window),
            _ => {
                if let Err(window) = PeerWindows::deallocate(window) {
                    self.stuck.windows.push(window);
                    self.fail();
                }
            }
        }
        self.leave(under);
    }

    /// Returns whether an entry is leaving.
    pub(super) fn is_leaving(&self, number: u32) -> bool {
        matches!(self.get(number), Some(GrantRecord::Leaving { .. }))
    }

    /// Called when a window is no longer bound to a registration.
    pub(super) fn leave(&mut self, under: WindowBacking) {
        let number = match under {
            WindowBacking::Own(registration) => return self.end_registration(registration),
            WindowBacking::Shared(number) => number,
        };
        let Some(GrantRecord::Beneath { windows, ends, .. }) = self.get_mut(number) else { return };
        *windows -= 1;
        if *windows == 0 && *ends {
            self.revoke(number);
        }
    }

    /// Ends a registration, so that no access through it is possible any more. Only windows that could not be ended can
    /// still use it. If the device refuses, the queue pair is set to the error state.
    pub(super) fn end_registration(&mut self, registration: Arc<Registration>) {
        let error = match Arc::try_unwrap(registration).map(Registration::end) {
            Ok(Ok(())) => return,
            Ok(Err((registration, error))) => {
                self.stuck.registrations.push(Arc::new(registration));
                error.to_string()
            }
            Err(registration) => {
                self.stuck.registrations.push(registration);
                "a window is bound to the registration".to_owned()
            }
        };
        crate::later::later!(error: error, "cannot deregister memory");
        self.fail();
    }

    fn fail(&mut self) {
        self.failed = true;
        if let Some(pair) = &self.pair
            && let Err(error) = pair.fail()
        {
            crate::later::later!(error: %error, "cannot revoke a grant, nor move its queue pair to the error state");
        }
    }

    /// Replaces the queue pair and returns the former one.
    pub(super) fn change_pair(&mut self, pair: Option<Arc<QueuePair>>) -> Option<Arc<QueuePair>> {
        (self.failed, self.reported) = (false, false);
        if let Some(windows) = &mut self.windows {
            windows.change_pair(pair.is_none());
        }
        std::mem::replace(&mut self.pair, pair)
    }

    /// Returns whether the queue pair is in the error state and the peer was not notified.
    pub(super) fn needs_error_notice(&self) -> bool {
        let is_over = self.failed || self.windows.as_ref().is_some_and(PeerWindows::is_broken);
        is_over && !self.reported && self.pair.is_some()
    }

    /// Returns whether the peer has to be notified that the queue pair is in the error state. Returns true only once
    /// for each queue pair.
    pub(super) fn take_error_notice(&mut self) -> bool {
        let tell = self.needs_error_notice();
        self.reported |= tell;
        tell
    }

    /// Tries again to end the objects that the device failed to end.
    pub(super) fn end_stuck(&mut self) {
        let StuckResources { windows, registrations } = std::mem::take(&mut self.stuck);
        let still = windows.into_iter().filter_map(|one| one.end().err()).map(|(one, _)| one);
        self.stuck.windows.extend(still);
        for registration in registrations {
            match Arc::try_unwrap(registration).map(Registration::end) {
                Ok(Ok(())) => {}
                Ok(Err((one, _))) => self.stuck.registrations.push(Arc::new(one)),
                Err(one) => self.stuck.registrations.push(one),
            }
        }
    }

    /// Deallocates all windows that were bound over the queue pair. Called when the queue pair is about to be
    /// destroyed, because no window may be bound over it at that time. Returns the grants that this call has revoked,
    /// with their regions. The peer has to be notified of these grants.
    pub(super) fn end_windows(&mut self) -> Vec<(u32, Weak<Registered>)> {
        let Some(windows) = &mut self.windows else { return Vec::new() };
        windows.change_pair(true);
        // Leaving windows are deallocated, because no request is posted any more.
        self.leaving.clone().into_iter().for_each(|number| self.advance(number));
        let is_one =
            |entry: &GrantRecord| matches!(entry, GrantRecord::Granted { way: GrantMethod::Window { .. }, .. });
        let numbers: Vec<u32> = self.all().filter(|(_, entry)| is_one(entry)).map(|(number, _)| number).collect();
        let mut all = Vec::new();
        for number in numbers {
            if let Some(GrantRecord::Granted { region, .. }) = self.get(number) {
                all.push((number, region.clone()));
                self.revoke(number);
            }
        }
        all
    }

    /// Returns the number of granted regions and of granted windows.
    pub(super) fn granted(&self) -> (usize, usize) {
        self.all().fold((0, 0), |(regions, windows), (_, entry)| match entry {
            GrantRecord::Granted { way: GrantMethod::Registration(_), .. } => (regions + 1, windows),
            GrantRecord::Granted { way: GrantMethod::Window { .. }, .. } => (regions, windows + 1),
            _ => (regions, windows),
        })
    }
}

fn was_used(entries: &Table<GrantRecord>, key: u32) -> bool {
    let is_it = |entry: &GrantRecord| matches!(entry, GrantRecord::Gone { remote_key, .. } | GrantRecord::Leaving { remote_key, .. } if *remote_key == key);
    entries.iter().any(|(_, entry)| is_it(entry))
}
