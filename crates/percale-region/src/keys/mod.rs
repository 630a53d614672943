//! The regions and windows of a domain, which are found by keys from one name space.
//!
//! Keys have 64 bits. The keys of windows have an upper half that each domain chooses at random. Within that half a
//! window owns all 256 keys of its index, from allocation to deallocation. A region may have any other key. An index is
//! assigned to a window only if no region has one of its keys. The random keys that the domain chooses for regions
//! without a raw key never have the upper half of windows.
//!
//! There is one lock, which registration, bind and close take. Accesses that the target executes find their keys
//! without it ([`lines`]). Memory that was dropped while peers still accessed it is [`parked`](super::parked).

mod hashed;
mod line;
mod lines;
mod rows;
pub mod window;

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use self::line::KeySnapshot;
pub use self::lines::KeyLines;
use self::lines::{RowAllocator, RowOwner};
use super::access_origin::{AccessOrigin, AccessScope};
use super::counters::RegionCounters;
use super::hold::Hold;
use super::local::LocalKeys;
use super::parked::Parked;
use super::properties::{MemoryProperties, RegistrationProperties};
use super::registered::{RegionGrants, Registered};
use super::remote::NO_KEY;
use super::revocation::{Revocation, wait_until};
use super::windows::WindowCounts as RegionWindows;
use super::{CloseError, RegisterError};
use crate::local_memory::access::{Access, AccessExt as _, Refusal};
use crate::local_memory::buffer::Buffer;
#[cfg(any(test, fuzzing, feature = "testing"))]
use crate::local_memory::buffer::BufferExt as _;
use crate::local_memory::rundown::Pin;
use crate::local_memory::sealed;
use crate::local_memory::volatile::{Segment, Segments};
use crate::system::forked::Process;
use crate::system::random::fill;
use crate::window::{WindowCell, WindowError, WindowTable as Windows, WindowType};

/// The number of random keys that are drawn at a time. The probability that none of them has a free home slot is at
/// most 2^-6.
const DRAWN: usize = 6;

/// The key table of a domain: its regions and windows.
#[derive(Debug)]
pub struct Keys {
    table: Mutex<Table>,
    /// The lines of the same keys, for readers that do not take the lock.
    lines: KeyLines,
    local: LocalKeys,
    parked: Parked,
    revoke_timeout: Duration,
    /// The process that opened the domain.
    process: Process,
}

#[derive(Debug)]
struct Table {
    /// The rows of regions that are in use.
    rows: RowAllocator,
    windows: Windows,
}

impl Table {
    fn insert(&mut self, lines: &KeyLines, region: &Arc<Registered>) -> Result<(), RegisterError> {
        if !lines.add(&mut self.rows, region) {
            return Err(RegisterError::System(std::io::ErrorKind::OutOfMemory.into()));
        }
        self.windows.region_came(region.key);
        Ok(())
    }

    fn remove(&mut self, lines: &KeyLines, key: u64) {
        if lines.remove(&mut self.rows, key) {
            self.windows.region_went(key);
        }
    }
}

impl Keys {
    /// Creates an empty table of a domain that this process opened.
    #[inline]
    pub fn new(revoke_timeout: Duration, process: Process) -> Self {
        let (lines, local) = (KeyLines::default(), LocalKeys::default());
        let table = Mutex::new(Table { rows: RowAllocator::default(), windows: Windows::new(lines.origin()) });
        Self { table, lines, local, parked: Parked::default(), revoke_timeout, process }
    }

    /// Returns the time for which closing a region waits for peers that are accessing it.
    #[inline]
    pub const fn revoke_timeout(&self) -> Duration {
        self.revoke_timeout
    }

    /// Returns whether this is the process of the domain, and not a forked child of it. The locks of the table are
    /// taken only in that process.
    #[inline]
    pub fn is_here(&self) -> bool {
        self.process.is_here()
    }

    /// Returns the region with this key, if accesses of this origin are admitted.
    #[inline]
    pub fn find(&self, key: u64, via: AccessOrigin) -> Result<Arc<Registered>, Refusal> {
        let admitted =
            |snapshot: &KeySnapshot, owner: RowOwner<'_>| snapshot.admits(via).then(|| owner.region()).flatten();
        let found = match self.lines.find_in_home_slot(key) {
            Some(snapshot) => admitted(&snapshot, self.lines.owner(&snapshot)),
            None => self.lines.find(key, admitted).flatten(),
        };
        found.filter(|region| is_found(region, key, via)).ok_or(Refusal::Key)
    }

    /// Checks an access without a lock. In most cases one cache line is read.
    #[inline]
    pub fn check(&self, key: u64, via: AccessOrigin, address: u64, len: u64, wanted: Access) -> Result<u64, Refusal> {
        match self.lines.check_open(key, via, (address, len), wanted) {
            Some(checked) => checked,
            None => self.check_again(key, via, address, len, wanted),
        }
    }

    /// Like [`check`](Self::check), for any key, including those that are restricted to certain endpoints or peers.
    #[inline(never)]
    fn check_again(&self, key: u64, via: AccessOrigin, address: u64, len: u64, wanted: Access) -> Result<u64, Refusal> {
        if !self.is_here() {
            // At the time of the fork a line may have been partly written, and in the child it would stay partly
            // written.
            return Err(Refusal::Key);
        }
        let check = |snapshot: &KeySnapshot, _: RowOwner<'_>| match snapshot.admits(via) {
            true => snapshot.check(address, len, wanted),
            false => Err(Refusal::Key),
        };
        self.lines.find(key, check).unwrap_or(Err(Refusal::Key))
    }

    /// Registers memory.
    pub(super) fn register(
        &self,
        terms: &RegistrationProperties,
        memory: Segments,
        MemoryProperties { backed, writable }: MemoryProperties,
    ) -> Result<Arc<Registered>, RegisterError> {
        if !self.is_here() {
            return Err(RegisterError::Forked);
        }
        self.free_parked();
        let len = memory.len() as u64;
        // The address of every byte must fit into 64 bits. The address after the last byte may be 2^64.
        if terms.base.checked_add(len.saturating_sub(1)).is_none() {
            return Err(RegisterError::Range);
        }
        let located = match memory.as_slice() {
            _ if terms.device.is_some() => None,
            [only] => sealed::locate(only.as_ptr(), only.len()),
            _ => None,
        };
        let mut region = Registered {
            key: 0,
            access: terms.access,
            rights: terms.access.remote_rights(),
            windows: RegionWindows::new(terms.windows, writable),
            beneath: None,
            local: OnceLock::new(),
            through: if terms.disabled { AccessScope::Nobody } else { terms.through },
            authority: terms.authority,
            base: terms.base,
            len,
            memory,
            backed: backed || located.is_some(),
            device: terms.device,
            located,
            pin: Pin::default(),
            grants: Mutex::new(RegionGrants::default()),
            generation: OnceLock::new(),
            counters: RegionCounters::of(&terms.counters),
            process: self.process,
        };
        if terms.disabled {
            region.windows.abandon();
        }
        let mut table = self.table();
        loop {
            let key = match terms.key {
                Some(key) => key,
                None => self.random_key()?,
            };
            if table.windows.owns(key) {
                // The application chose this key, or it is the digest of a raw key. A random key never belongs to a
                // window.
                return Err(RegisterError::KeyTaken(key));
            }
            if !self.lines.has_region(key) {
                region.key = key;
                let region = Arc::new(region);
                table.insert(&self.lines, &region)?;
                return Ok(region);
            }
            if terms.key.is_some() {
                return Err(RegisterError::KeyTaken(key));
            }
        }
    }

    /// Replaces a region in the table by a copy for accesses through other endpoints. The copy has no grants, and a pin
    /// that no thread has entered.
    pub(super) fn replace(&self, region: &Registered, through: AccessScope) -> Arc<Registered> {
        let new = Arc::new(region.copy_with_scope(through));
        self.local.follow(&new);
        let table = self.table();
        self.lines.replace(&new);
        drop(table);
        new
    }

    /// Removes a region from the table. No access begins after this returns.
    pub(super) fn revoke(&self, region: &Arc<Registered>) -> Revocation {
        self.free_parked();
        let mut table = self.table();
        table.remove(&self.lines, region.key);
        drop(table);
        self.local.forget(region);
        Revocation::start(Arc::clone(region))
    }

    /// Returns the local key of a region.
    #[inline]
    pub fn local_key(&self, region: &Arc<Registered>) -> Result<u32, RegisterError> {
        if !self.is_here() {
            return Err(RegisterError::Forked);
        }
        self.local.key(region)
    }

    /// Returns the memory at an address of this process, if the region of this local key contains it.
    #[inline]
    pub fn find_local(&self, key: u32, address: u64, len: u64, written: bool) -> Option<Segment> {
        self.local.find(key, address, len, written)
    }

    /// Chooses a key that cannot be guessed. The key is never a window's key or a value with a special meaning.
    ///
    /// Draws [`DRAWN`] random keys and takes the first one with a free home slot, so that a lookup finds it there
    /// without searching. This gives less than one bit of information to an attacker that guesses keys, because at
    /// least half of the slots are free.
    fn random_key(&self) -> Result<u64, RegisterError> {
        let mut bytes = [0; 8 * DRAWN];
        loop {
            fill(&mut bytes).map_err(RegisterError::System)?;
            let drawn = bytes.as_chunks().0.iter().map(|one| u64::from_ne_bytes(*one));
            let origin = self.lines.origin();
            let mut fit =
                drawn.filter(|key| *key > u64::from(u32::MAX) && *key != NO_KEY && !origin.covers(*key)).peekable();
            let first = fit.peek().copied();
            if let Some(key) = fit.find(|key| self.lines.is_vacant(*key)).or(first) {
                return Ok(key);
            }
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Allocates a window.
    #[inline]
    pub fn allocate_window(&self, kind: WindowType) -> Result<Arc<WindowCell>, WindowError> {
        if !self.is_here() {
            return Err(WindowError::Forked);
        }
        self.free_parked();
        self.table().windows.allocate(&self.lines, kind)
    }

    /// Returns the key that peers use for a window. The argument is the lower half, by which the domain identifies the
    /// key.
    #[inline]
    pub const fn long_key(&self, key: u32) -> u64 {
        self.lines.origin().long(key)
    }

    /// Returns the lower half of a window's key, or `None` if the key is not a window's key.
    #[inline]
    pub fn short_key(&self, key: u64) -> Option<u32> {
        self.lines.origin().short(key)
    }

    /// Records that an allocated window is bound with this key, or is no longer bound. The caller has locked the
    /// window.
    #[inline]
    pub fn set_bound(&self, key: u32, bound: Option<&Registered>) {
        self.lines.set_bound(key, bound);
    }

    /// Deallocates a window's index.
    #[inline]
    pub fn free_window(&self, index: u32, key: u32) {
        self.table().windows.free(&self.lines, index, key);
    }

    /// Calls `then` with the window that owns this key.
    #[inline]
    pub fn with_window<R>(&self, key: u32, then: impl FnOnce(&Arc<WindowCell>) -> R) -> Option<R> {
        self.lines.with_window(key, then)
    }

    /// Returns whether windows are bound through this endpoint.
    #[inline]
    pub fn any_bound_through(&self, endpoint: u64) -> bool {
        self.type_two_windows().iter().any(|cell| cell.is_bound_through(endpoint))
    }

    fn type_two_windows(&self) -> Vec<Arc<WindowCell>> {
        if !self.is_here() {
            return Vec::new();
        }
        self.table().windows.type_two()
    }

    /// Unbinds the windows that are bound through an endpoint that was closed.
    #[inline]
    pub fn endpoint_gone(&self, endpoint: u64) {
        for cell in self.type_two_windows() {
            cell.endpoint_gone(self, endpoint);
        }
    }

    /// Keeps memory until its peers have retired.
    #[inline]
    pub(super) fn park(&self, revocation: Revocation, memory: Option<Buffer>) {
        self.parked.keep(revocation, memory, None);
    }

    /// Keeps the region of a window in use until the window's peers have retired.
    #[inline]
    pub fn park_window(&self, revocation: Revocation, hold: Hold) {
        self.parked.keep(revocation, None, Some(hold));
    }

    /// Frees the parked memory that is no longer in use. Costs one load if nothing is parked.
    #[inline]
    pub fn free_parked(&self) {
        self.parked.free();
    }

    /// Closes a region to further windows. Waits for peers that are still accessing windows that were dropped.
    ///
    /// # Errors
    /// [`CloseError::Windows`] if a window is bound, or such a peer does not finish within `timeout`.
    pub(super) fn close_to_windows(
        &self,
        region: &Arc<Registered>,
        timeout: Option<Duration>,
    ) -> Result<(), CloseError<()>> {
        let look = || {
            self.free_parked();
            // This must precede the check whether a window is bound: a window that is parked at this time stays parked
            // until it is freed.
            let parked = self.parked.windows_on(region);
            match region.windows.close() {
                true => Some(Ok(())),
                false if region.windows.count() > parked => Some(Err(CloseError::Windows(()))),
                false => None,
            }
        };
        wait_until(timeout, look).unwrap_or(Err(CloseError::Windows(())))
    }
}

/// Returns whether a look-up of `key` that read a line of the table and then the region of its row has found the key. The
/// row may have been assigned to another key in between. In this case `key` has been removed.
fn is_found(region: &Registered, key: u64, via: AccessOrigin) -> bool {
    region.key == key && region.admits(via)
}

/// Returns a table without a domain. It contains one region, with this key, which peers may read. The memory of the
/// region has to live as long as the table.
#[cfg(any(test, fuzzing, feature = "testing"))]
pub fn table_of_one(key: u64, memory: impl Into<Buffer>) -> std::io::Result<(Arc<Keys>, Buffer)> {
    let mut memory = memory.into();
    let segment = memory.segment_for_receive().ok_or(std::io::ErrorKind::InvalidInput)?;
    let keys = Keys::new(Duration::ZERO, Process::current()?);
    let terms = RegistrationProperties { key: Some(key), ..RegistrationProperties::new(Access::REMOTE_READ) };
    let registered = keys.register(&terms, Segments::one(segment), MemoryProperties { backed: true, writable: true });
    registered.map_err(std::io::Error::other)?;
    Ok((Arc::new(keys), memory))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn region_of_another_key_is_not_found() {
        let region = Registered::for_test(Segments::EMPTY);
        let via = AccessOrigin::default();
        assert!(is_found(&region, region.key(), via) && !is_found(&region, region.key() + 1, via));
    }

    /// A row is given to the region of another key while a thread looks up the first key.
    #[test]
    fn lookup_never_finds_the_region_of_another_key() {
        let keys = Keys::new(Duration::ZERO, Process::current().unwrap());
        let stop = std::sync::atomic::AtomicBool::new(false);
        let kept = MemoryProperties { backed: true, writable: true };
        let open = RegistrationProperties::new(Access::REMOTE_READ);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    for key in [1, 2] {
                        let found = keys.find(key, AccessOrigin::default());
                        assert!(found.is_err() || found.is_ok_and(|region| region.key() == key));
                    }
                }
            });
            for key in [1, 2].into_iter().cycle().take(100_000) {
                let terms = RegistrationProperties { key: Some(key), ..open.clone() };
                let region = keys.register(&terms, Segments::EMPTY, kept).unwrap();
                drop(keys.revoke(&region));
            }
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
            reader.join().unwrap();
        });
    }

    /// Requirements: KEY-004.
    #[test]
    fn domain_chosen_keys_are_found_in_one_probe() {
        let keys = Keys::new(Duration::ZERO, Process::current().unwrap());
        let terms = RegistrationProperties::new(Access::REMOTE_READ);
        let kept = MemoryProperties { backed: true, writable: true };
        let register = |_| keys.register(&terms, Segments::EMPTY, kept).unwrap();
        let regions = (0..3000).map(register).collect::<Vec<_>>();
        let glanced = |region: &&Arc<Registered>| keys.lines.find_in_home_slot(region.key()).is_some();
        let found = regions.iter().filter(glanced).count();
        assert!(found > 2950, "{found} of 3,000"); // Without this choice about 2,600 would be found.
    }
}
