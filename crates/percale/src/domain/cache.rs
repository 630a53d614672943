//! The registration caches of a domain: their settings, the application's own monitor, and the calls that open them.
//!
//! A domain has no cache itself: each registrar (a device) gets one, and all caches of a domain have the same settings.
//! Transports that pin no memory (shared memory and TCP) never use a cache.

use std::fmt;
use std::str::FromStr;
#[cfg(feature = "verbs")]
use std::sync::{Arc, OnceLock};

use pindown::monitor::Choice;
use pindown::monitor::imported::Imported;
use pindown::monitor::userfaultfd::{Settings, Unseen};
use pindown::{Cache, MOST_REGISTRATIONS, OpenError, Registrar};

use super::Domain;
use crate::device::{self, BufferTable, FixedBuffers, FixedError};
#[cfg(feature = "verbs")]
use crate::transport::verbs::{Registers, VerbsRegistrar};

/// The default of [`CacheSettings::max_count`].
const DEFAULT_COUNT: u32 = 1024;

/// The settings of a domain's registration caches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheSettings {
    /// The maximum number of registered bytes. `None`: no limit.
    max_bytes: Option<u64>,
    max_count: u32,
    monitor: CacheMonitor,
    unseen: Unseen,
    check_rights: bool,
    merging: bool,
}

/// The monitors that notify a registration cache of changes of memory, by their names in FI_MR_CACHE_MONITOR. An
/// imported monitor ([`Domain::import_monitor`]) replaces any of them except [`Self::Disabled`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum CacheMonitor {
    /// `best`: the best monitor that is available and misses no change.
    #[default]
    Best,
    /// `memhooks`: the same as [`Self::Best`]. Intercepting library calls would miss changes that bypass the library,
    /// so it is not used.
    Memhooks,
    /// `bpf`: programs in the kernel.
    Bpf,
    /// `userfaultfd`: keeps registrations of sealed memory and, with [`CacheSettings::no_unseen_changes`], of private
    /// anonymous memory.
    Userfaultfd,
    /// `sealed`: keeps registrations only of memory that cannot change.
    Sealed,
    /// `disabled` or `none`: keeps no registrations. Each transfer registers and deregisters its memory.
    Disabled,
}

/// The error for an unknown monitor name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown monitor {0:?}; valid names are userfaultfd, userfaultfd-promised, memhooks, disabled, best, bpf, sealed, none"
)]
#[non_exhaustive]
pub struct UnknownMonitor(String);

impl UnknownMonitor {
    /// Returns the libfabric code for this error (positive).
    #[must_use]
    pub const fn errno(&self) -> i32 {
        libc::EINVAL
    }
}

/// The error if the domain already has an imported monitor, or was inherited by a forked child.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a monitor was already imported into this domain, and cannot be replaced")]
#[non_exhaustive]
pub struct AlreadyImported;

impl AlreadyImported {
    /// Returns the libfabric code for this error (positive).
    #[must_use]
    pub const fn errno(self) -> i32 {
        libc::EBUSY
    }
}

/// A note for the user of a cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheNote {
    /// Whether the cache differs from the requested settings.
    pub warning: bool,
    /// The text of the note.
    pub text: String,
}

/// A cache that was opened, with notes about it.
pub struct OpenedCache<R: Registrar> {
    /// The cache.
    pub cache: Cache<R>,
    /// Notes about its monitor, the reason for the choice, and any differences from the requested settings.
    pub notes: Vec<CacheNote>,
}

crate::short_debug!(for [R: Registrar] OpenedCache<R>, "OpenedCache");

impl CacheNote {
    fn warning(text: String) -> Self {
        Self { warning: true, text }
    }

    fn log_note(&self) {
        if self.warning {
            tracing::warn!("{self}");
        } else {
            tracing::info!("{self}");
        }
    }

    /// Like [`log_note`](Self::log_note), for callers that hold the lock of an endpoint.
    #[cfg(feature = "verbs")]
    fn report_later(self) {
        crate::later::note(move || self.log_note());
    }
}

impl fmt::Display for CacheNote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "registration cache: {}", self.text)
    }
}

impl Default for CacheSettings {
    fn default() -> Self {
        Self {
            max_bytes: None,
            max_count: DEFAULT_COUNT,
            monitor: CacheMonitor::Best,
            unseen: Unseen::Possible,
            check_rights: false,
            merging: false,
        }
    }
}

impl CacheSettings {
    /// Sets the maximum number of bytes that a cache keeps registered. 0 means no limit, which is the
    /// default.
    #[must_use]
    pub const fn max_bytes(mut self, bytes: u64) -> Self {
        self.max_bytes = if bytes == 0 { None } else { Some(bytes) };
        self
    }

    /// Sets the maximum number of registrations that a cache keeps. The default is 1,024. With 0 it keeps
    /// none.
    #[must_use]
    pub const fn max_count(mut self, count: u32) -> Self {
        self.max_count = if count > MOST_REGISTRATIONS { MOST_REGISTRATIONS } else { count };
        self
    }

    /// Sets the monitor. If the monitor is not available, caching is turned off with a warning.
    #[must_use]
    pub const fn monitor(mut self, monitor: CacheMonitor) -> Self {
        self.monitor = monitor;
        self
    }

    /// Promises that no code in the process, including its libraries, installs guard pages (MADV_GUARD_INSTALL) in
    /// registered memory or attaches a System V segment over it. userfaultfd does not report these changes.
    #[must_use]
    pub const fn no_unseen_changes(mut self) -> Self {
        self.unseen = Unseen::NeverMade;
        self
    }

    /// With userfaultfd, locks the memory of the registrations that are kept, so that the kernel rejects guard pages
    /// there. This is an alternative to [`Self::no_unseen_changes`], which takes precedence. The effects on the program
    /// are described at [`Unseen::GuardsRefused`](pindown::monitor::userfaultfd::Unseen::GuardsRefused).
    #[must_use]
    pub const fn refuse_guards(mut self) -> Self {
        if matches!(self.unseen, Unseen::Possible) {
            self.unseen = Unseen::GuardsRefused;
        }
        self
    }

    /// With userfaultfd, makes each hit query the kernel whether the process still has the rights of the registration.
    #[must_use]
    pub const fn check_rights(mut self) -> Self {
        self.check_rights = true;
        self
    }

    /// Sets whether a miss registers its memory together with kept memory that overlaps or adjoins it
    /// ([`Builder::merging`](pindown::Builder::merging)). Default: off.
    #[must_use]
    pub const fn merging(mut self, merging: bool) -> Self {
        self.merging = merging;
        self
    }

    /// Reads the settings from libfabric's environment variables: FI_MR_CACHE_MAX_SIZE (bytes), FI_MR_CACHE_MAX_COUNT,
    /// and FI_MR_CACHE_MONITOR (a name of a [`CacheMonitor`], or `userfaultfd-promised`, which is
    /// [`CacheMonitor::Userfaultfd`] with [`Self::no_unseen_changes`]). A variable that is not set keeps the default.
    /// An invalid variable also keeps the default, and causes a warning.
    #[must_use]
    pub fn from_environment() -> Self {
        let (settings, notes) = Self::read(|name| std::env::var(name).ok());
        notes.iter().for_each(CacheNote::log_note);
        settings
    }

    /// Like [`Self::from_environment`], but takes the values of variables from `text`. Returns the warnings as notes.
    #[must_use]
    pub fn read(text: impl Fn(&str) -> Option<String>) -> (Self, Vec<CacheNote>) {
        let mut settings = Self::default();
        let mut notes = Vec::new();
        let mut set = |name: &str, apply: &mut dyn FnMut(&str) -> Result<(), String>| {
            if let Some(value) = text(name)
                && let Err(why) = apply(value.trim())
            {
                notes.push(CacheNote::warning(format!("{name} is ignored: {why}")));
            }
        };
        let number = |value: &str| value.parse::<u64>().map_err(|_| format!("{value:?} is not a number"));
        set("FI_MR_CACHE_MAX_SIZE", &mut |value| {
            settings = settings.clone().max_bytes(number(value)?);
            Ok(())
        });
        set("FI_MR_CACHE_MAX_COUNT", &mut |value| {
            settings = settings.clone().max_count(number(value)?.try_into().unwrap_or(u32::MAX));
            Ok(())
        });
        set("FI_MR_CACHE_MONITOR", &mut |value| {
            let promised = value.strip_suffix("-promised").filter(|name| *name == "userfaultfd");
            let monitor = promised.unwrap_or(value).parse().map_err(|error: UnknownMonitor| error.to_string())?;
            settings = settings.clone().monitor(monitor);
            if promised.is_some() {
                settings = settings.clone().no_unseen_changes();
            }
            Ok(())
        });
        // The driver of a device is queried about its memory at each operation. So no information about that memory can
        // become stale, regardless of these variables.
        for name in ["CUDA", "ROCR", "ZE"] {
            set(&format!("FI_MR_{name}_CACHE_MONITOR_ENABLED"), &mut |value| match value {
                "0" | "1" => Ok(()),
                other => Err(format!("{other:?} is neither 0 nor 1")),
            });
        }
        (settings, notes)
    }

    fn open<R: Registrar>(&self, registrar: R, imported: Option<&Imported>) -> Result<OpenedCache<R>, OpenError> {
        let userfaultfd = Settings::new(self.unseen);
        let userfaultfd = if self.check_rights { userfaultfd.check_rights() } else { userfaultfd };
        let choice = match (self.monitor, imported) {
            (CacheMonitor::Disabled, _) => Choice::None,
            (_, Some(imported)) => Choice::Imported(imported.clone()),
            (CacheMonitor::Best | CacheMonitor::Memhooks, None) => Choice::Best(userfaultfd),
            (CacheMonitor::Bpf, None) => Choice::Bpf,
            (CacheMonitor::Userfaultfd, None) => Choice::Userfaultfd(userfaultfd),
            (CacheMonitor::Sealed, None) => Choice::Sealed,
        };
        let builder = Cache::builder(registrar).monitor_or_none(choice).max_count(self.max_count).merging(self.merging);
        let cache = builder.max_bytes(self.max_bytes.unwrap_or(u64::MAX)).open()?;
        let found = cache.explanation().replace('\n', "; ");
        let named = !matches!(self.monitor, CacheMonitor::Best | CacheMonitor::Memhooks | CacheMonitor::Disabled);
        let replaced = named && imported.is_none() && cache.monitor() == "none";
        let text = match self.monitor {
            _ if replaced => {
                format!("registrations are not cached, because the requested monitor is not available: {found}")
            }
            CacheMonitor::Memhooks => format!(
                "memhooks is replaced by the best monitor, because it misses changes that do not use the C library's \
                     functions: {found}"
            ),
            _ => found,
        };
        Ok(OpenedCache { cache, notes: vec![CacheNote { warning: replaced, text }] })
    }
}

/// The cache that verbs links use to register the memory of operations. It is opened when the first operation needs it.
#[cfg(feature = "verbs")]
#[derive(Debug)]
pub(crate) struct DeviceMemory {
    settings: CacheSettings,
    imported: Arc<OnceLock<Imported>>,
    cache: OnceLock<Option<Cache<VerbsRegistrar>>>,
}

#[cfg(feature = "verbs")]
impl DeviceMemory {
    pub(super) fn new(settings: &CacheSettings, imported: &Arc<OnceLock<Imported>>) -> Self {
        Self { settings: settings.clone(), imported: Arc::clone(imported), cache: OnceLock::new() }
    }
}

#[cfg(feature = "verbs")]
impl Registers for DeviceMemory {
    fn cache(&self, registrar: VerbsRegistrar) -> Option<&Cache<VerbsRegistrar>> {
        let open = || match self.settings.open(registrar, self.imported.get()) {
            Ok(OpenedCache { cache, notes }) => {
                notes.into_iter().for_each(CacheNote::report_later);
                Some(cache)
            }
            Err(error) => {
                crate::later::later!(warn: %error, "no registration cache: targets execute long accesses over verbs");
                None
            }
        };
        self.cache.get_or_init(open).as_ref()
    }
}

impl FromStr for CacheMonitor {
    type Err = UnknownMonitor;

    fn from_str(name: &str) -> Result<Self, UnknownMonitor> {
        Ok(match name {
            "best" => Self::Best,
            "memhooks" => Self::Memhooks,
            "bpf" => Self::Bpf,
            "userfaultfd" => Self::Userfaultfd,
            "sealed" => Self::Sealed,
            "disabled" | "none" => Self::Disabled,
            other => return Err(UnknownMonitor(other.to_owned())),
        })
    }
}

impl Domain {
    /// Opens a cache of the registrations that this registrar makes, with the domain's settings.
    ///
    /// ```
    /// use std::io;
    /// use percale::pindown::{Access, Pinned, Range, Registrar};
    ///
    /// /// A device that requires memory to be registered before it reads it.
    /// struct Device;
    ///
    /// impl Registrar for Device {
    ///     type Pin = u64;
    ///
    ///     fn pin(&self, range: Range, _access: Access) -> io::Result<Pinned<u64>> {
    ///         // A real device pins the pages here, and returns its key for them.
    ///         Ok(Pinned { pin: range.start(), local_key: range.start() >> 12, remote_key: 0 })
    ///     }
    ///
    ///     fn unpin(&self, _start: u64) {}
    /// }
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let settings = percale::CacheSettings::default().max_bytes(1 << 30).max_count(256);
    /// let domain = percale::Info::discover()?.domain().registration_cache(settings).open()?;
    /// let cache = domain.registration_cache(Device)?;
    /// let lane = cache.lane();
    /// let buffer = vec![0_u8; 1 << 16];
    /// for _ in 0..10 {
    ///     let used = lane.get(Range::of(&buffer)?, Access::empty())?;
    ///     println!("send by key {}", used.local_key());
    ///     lane.end(used);
    /// }
    /// println!("{:?}", cache.stats());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// If memory or membarrier(2), which a cache needs, is not available, or in a forked child. If a monitor does not
    /// work, no error is returned: no registrations are kept, and a warning is logged.
    pub fn registration_cache<R: Registrar>(&self, registrar: R) -> Result<Cache<R>, OpenError> {
        let OpenedCache { cache, notes } = self.open_cache(self.cache_settings(), registrar)?;
        notes.iter().for_each(CacheNote::log_note);
        Ok(cache)
    }

    /// Like [`Self::registration_cache`], but with other settings, and returns the notes instead of logging them.
    ///
    /// # Errors
    /// Those of [`Self::registration_cache`].
    pub fn open_cache<R: Registrar>(
        &self,
        settings: &CacheSettings,
        registrar: R,
    ) -> Result<OpenedCache<R>, OpenError> {
        if !self.inner.is_here() {
            let source = std::io::Error::from_raw_os_error(libc::ECHILD);
            return Err(OpenError::Kernel {
                what: "the process that opened the domain (this process is a fork of it)",
                source,
            });
        }
        settings.open(registrar, self.inner.imported.get())
    }

    /// Returns the settings of this domain's caches.
    #[must_use]
    pub fn cache_settings(&self) -> &CacheSettings {
        &self.inner.settings.cache
    }

    /// Sets the application's own monitor, created by [`Notifier::new`](pindown::monitor::imported::Notifier::new), for
    /// registration caches that are opened from now on. When addresses change, the application must call the notifier
    /// before anything else is mapped there. The notifier notifies all these caches.
    ///
    /// # Errors
    /// If the domain has a monitor already, or if this process is a fork of the one that opened the domain.
    ///
    /// # Safety
    /// The application must report every change of the memory for which it is responsible, in time, as
    /// [`pindown::monitor::imported`] describes. Otherwise devices access the wrong memory, and [`FixedBuffers`] may
    /// write to it.
    #[expect(unsafe_code, reason = "devices write to the addresses for which a monitor is responsible")]
    pub unsafe fn import_monitor(&self, imported: Imported) -> Result<(), AlreadyImported> {
        if !self.inner.is_here() {
            return Err(AlreadyImported);
        }
        self.inner.imported.set(imported).map_err(|_| AlreadyImported)
    }

    /// Opens an io_uring with this many fixed buffers (at most 16,384). They transfer data between any memory and files
    /// or sockets, through a registration cache.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::fs::File;
    ///
    /// let domain = percale::Info::discover()?.best()?.open()?;
    /// let Ok(buffers) = domain.fixed_buffers(64) else { return Ok(()) }; // io_uring may be forbidden
    /// let lane = buffers.lane();
    /// let page = vec![7_u8; 1 << 16];
    /// let path = std::env::temp_dir().join(format!("percale-fixed-{}", std::process::id()));
    /// let file = File::create(&path)?;
    /// for offset in (0..10).map(|n| n << 16) {
    ///     assert_eq!(lane.write(&page, &file, offset)?, page.len()); // pinned once, where that is safe
    /// }
    /// println!("{} registrations", buffers.table().made());
    /// std::fs::remove_file(path)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// If io_uring is not available, or no cache can be opened.
    pub fn fixed_buffers(&self, slots: u32) -> Result<FixedBuffers, FixedError> {
        let table = BufferTable::new(slots).map_err(FixedError::NoRing)?;
        let cache = self.registration_cache(table.clone())?;
        Ok(device::behind(table, cache))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn promise_about_unseen_changes_takes_precedence_over_locked_memory() {
        let settings = CacheSettings::default();
        assert_eq!(settings.clone().refuse_guards().unseen, Unseen::GuardsRefused);
        let both = [settings.clone().no_unseen_changes().refuse_guards(), settings.refuse_guards().no_unseen_changes()];
        assert!(both.iter().all(|settings| settings.unseen == Unseen::NeverMade), "{both:?}");
    }
}
