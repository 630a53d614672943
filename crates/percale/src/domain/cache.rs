//! The registration cache of a domain: settings, the application's own monitor, and opening.
//!
//! A domain has no cache of its own: each registrar (a device) gets one, and all of a domain's are set alike. Transports that
//! pin nothing, shared memory and TCP, never come here.

use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, OnceLock};

use pindown::monitor::Choice;
use pindown::monitor::imported::Imported;
use pindown::monitor::userfaultfd::{Settings, Unseen};
use pindown::{Cache, MOST_REGISTRATIONS, OpenError, Registrar};

use super::Domain;
use crate::device::{BufferTable, FixedBuffers, FixedError};
use crate::transport::verbs::{Registers, VerbsRegistrar};

/// Registrations that are kept unless told otherwise (RCACHE-008).
const DEFAULT_COUNT: u32 = 1024;

/// How the registration caches of a domain are to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheSettings {
    /// `None`: no limit.
    max_bytes: Option<u64>,
    max_count: u32,
    monitor: CacheMonitor,
    unseen: Unseen,
    check_rights: bool,
    merging: bool,
}

/// Who tells a registration cache that memory changed, as FI_MR_CACHE_MONITOR names them. An imported monitor
/// ([`Domain::import_monitor`]) takes the place of all but [`Self::Disabled`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum CacheMonitor {
    /// `best`: the best that can work here and is always right (AMB-14).
    #[default]
    Best,
    /// `memhooks`: as [`Self::Best`]. Interception of library calls misses changes that are made past the library, so it is
    /// not what is done (AMB-15).
    Memhooks,
    /// `bpf`: programs in the kernel.
    Bpf,
    /// `userfaultfd`: keeps sealed memory, and upon [`CacheSettings::no_unseen_changes`] private anonymous memory.
    Userfaultfd,
    /// `sealed`: keeps only memory that cannot change.
    Sealed,
    /// `disabled` or `none`: nothing is kept; each transfer registers and deregisters (RCACHE-013).
    Disabled,
}

/// There is no monitor of this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "there is no monitor {0:?}: known are userfaultfd, userfaultfd-promised, memhooks, disabled, best, bpf, sealed, none"
)]
#[non_exhaustive]
pub struct UnknownMonitor(String);

impl UnknownMonitor {
    /// The code that libfabric has for this error (positive).
    #[must_use]
    pub const fn errno(&self) -> i32 {
        libc::EINVAL
    }
}

/// The domain has an imported monitor, or is an inherited one in a forked child.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a monitor was imported into this domain before: it has one for its life")]
#[non_exhaustive]
pub struct AlreadyImported;

impl AlreadyImported {
    /// The code that libfabric has for this error (positive).
    #[must_use]
    pub const fn errno(self) -> i32 {
        libc::EBUSY
    }
}

/// Something to tell the user of a cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheNote {
    /// Something is not as it was asked for.
    pub warning: bool,
    /// What.
    pub text: String,
}

/// A cache that was opened, and what is to be told of it.
pub struct OpenedCache<R: Registrar> {
    /// The cache.
    pub cache: Cache<R>,
    /// Which monitor it has and why, and what is not as asked for.
    pub notes: Vec<CacheNote>,
}

crate::short_debug!(for [R: Registrar] OpenedCache<R>, "OpenedCache");

impl CacheNote {
    fn warning(text: String) -> Self {
        Self { warning: true, text }
    }

    fn tell(&self) {
        if self.warning {
            tracing::warn!("{self}");
        } else {
            tracing::info!("{self}");
        }
    }

    /// As [`tell`](Self::tell), under the lock of an endpoint.
    fn tell_later(self) {
        crate::later::note(move || self.tell());
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
    /// Bytes that a cache keeps registered at most (RCACHE-005). 0 is no limit, as is no call (RCACHE-006, AMB-13).
    #[must_use]
    pub const fn max_bytes(mut self, bytes: u64) -> Self {
        self.max_bytes = if bytes == 0 { None } else { Some(bytes) };
        self
    }

    /// Registrations that a cache keeps at most (RCACHE-007); 1,024 unless told otherwise, and 0 to keep none (RCACHE-009).
    #[must_use]
    pub const fn max_count(mut self, count: u32) -> Self {
        self.max_count = if count > MOST_REGISTRATIONS { MOST_REGISTRATIONS } else { count };
        self
    }

    /// Who tells what changed. One that is not available here turns caching off, with a warning (RCACHE-011, AMB-16).
    #[must_use]
    pub const fn monitor(mut self, monitor: CacheMonitor) -> Self {
        self.monitor = monitor;
        self
    }

    /// Promises that no code in the process, its libraries included, installs guard pages (MADV_GUARD_INSTALL) in registered
    /// memory, nor attaches a System V segment over it. userfaultfd does not tell of those.
    #[must_use]
    pub const fn no_unseen_changes(mut self) -> Self {
        self.unseen = Unseen::NeverMade;
        self
    }

    /// With userfaultfd, what is kept is locked, so that the kernel refuses guard pages there: instead of
    /// [`Self::no_unseen_changes`], which prevails. What that means for the program is said at
    /// [`Unseen::GuardsRefused`](pindown::monitor::userfaultfd::Unseen::GuardsRefused).
    #[must_use]
    pub const fn refuse_guards(mut self) -> Self {
        if matches!(self.unseen, Unseen::Possible) {
            self.unseen = Unseen::GuardsRefused;
        }
        self
    }

    /// With userfaultfd, each hit asks the kernel as well whether the process still has the registration's rights (MON-014).
    #[must_use]
    pub const fn check_rights(mut self) -> Self {
        self.check_rights = true;
        self
    }

    /// Whether a miss registers kept memory that overlaps or adjoins its own together with it
    /// ([`Builder::merging`](pindown::Builder::merging)); no, unless told otherwise.
    #[must_use]
    pub const fn merging(mut self, merging: bool) -> Self {
        self.merging = merging;
        self
    }

    /// As libfabric's environment variables say: FI_MR_CACHE_MAX_SIZE (bytes), FI_MR_CACHE_MAX_COUNT, FI_MR_CACHE_MONITOR (a
    /// name of [`CacheMonitor`]'s, or `userfaultfd-promised`, which is [`CacheMonitor::Userfaultfd`] with
    /// [`Self::no_unseen_changes`]). What is not set, or no value, is as by default; the latter is warned of (RCACHE-014).
    #[must_use]
    pub fn from_environment() -> Self {
        let (settings, notes) = Self::read(|name| std::env::var(name).ok());
        notes.iter().for_each(CacheNote::tell);
        settings
    }

    /// As [`Self::from_environment`], of variables that `text` gives; with what is to be told.
    #[must_use]
    pub fn read(text: impl Fn(&str) -> Option<String>) -> (Self, Vec<CacheNote>) {
        let mut settings = Self::default();
        let mut notes = Vec::new();
        let mut set = |name: &str, apply: &mut dyn FnMut(&str) -> Result<(), String>| {
            if let Some(value) = text(name)
                && let Err(why) = apply(value.trim())
            {
                notes.push(CacheNote::warning(format!("{name} is as by default: {why}")));
            }
        };
        let number = |value: &str| value.parse::<u64>().map_err(|_| format!("{value:?} is no number"));
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
        // A device's driver is asked about its memory at each operation (RCACHE-015 to RCACHE-017), so nothing of it is kept that could be
        // stale, whatever is asked for.
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
            _ if replaced => format!("nothing is kept, for want of the monitor that was asked for: {found}"),
            CacheMonitor::Memhooks => format!(
                "memhooks would miss changes that are made past the C library's functions, so the best monitor that \
                 misses none takes its place: {found}"
            ),
            _ => found,
        };
        Ok(OpenedCache { cache, notes: vec![CacheNote { warning: replaced, text }] })
    }
}

/// The cache that links over verbs register memory of operations with, opened when the first of them needs it.
#[derive(Debug)]
pub(crate) struct DeviceMemory {
    settings: CacheSettings,
    imported: Arc<OnceLock<Imported>>,
    cache: OnceLock<Option<Cache<VerbsRegistrar>>>,
}

impl DeviceMemory {
    pub(super) fn new(settings: &CacheSettings, imported: &Arc<OnceLock<Imported>>) -> Self {
        Self { settings: settings.clone(), imported: Arc::clone(imported), cache: OnceLock::new() }
    }
}

impl Registers for DeviceMemory {
    fn cache(&self, registrar: VerbsRegistrar) -> Option<&Cache<VerbsRegistrar>> {
        let open = || match self.settings.open(registrar, self.imported.get()) {
            Ok(OpenedCache { cache, notes }) => {
                notes.into_iter().for_each(CacheNote::tell_later);
                Some(cache)
            }
            Err(error) => {
                crate::later::later!(warn: %error, "no registration cache: long accesses over verbs are executed by their targets");
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
    /// A cache of registrations that this registrar makes, set as the domain says.
    ///
    /// ```
    /// use std::io;
    /// use percale::pindown::{Access, Pinned, Range, Registrar};
    ///
    /// /// A device that wants to know memory before it reads it.
    /// struct Device;
    ///
    /// impl Registrar for Device {
    ///     type Pin = u64;
    ///
    ///     fn pin(&self, range: Range, _access: Access) -> io::Result<Pinned<u64>> {
    ///         // A real device pins the pages here, and says by which key it knows them.
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
    /// What a cache needs of the kernel: memory, membarrier(2). A monitor that cannot work is no error: nothing is kept then,
    /// which is warned of.
    pub fn registration_cache<R: Registrar>(&self, registrar: R) -> Result<Cache<R>, OpenError> {
        let OpenedCache { cache, notes } = self.open_cache(self.cache_settings(), registrar)?;
        notes.iter().for_each(CacheNote::tell);
        Ok(cache)
    }

    /// As [`Self::registration_cache`], with other settings, and with what is to be told instead of telling it.
    ///
    /// # Errors
    /// As there.
    pub fn open_cache<R: Registrar>(
        &self,
        settings: &CacheSettings,
        registrar: R,
    ) -> Result<OpenedCache<R>, OpenError> {
        if !self.inner.is_here() {
            let source = std::io::Error::from_raw_os_error(libc::ECHILD);
            return Err(OpenError::Kernel {
                what: "the process that opened its domain, of which this one is a fork",
                source,
            });
        }
        settings.open(registrar, self.inner.imported.get())
    }

    /// How this domain's caches are set.
    #[must_use]
    pub fn cache_settings(&self) -> &CacheSettings {
        &self.inner.settings.cache
    }

    /// Gives the registration caches that are opened from now on the application's own monitor, made by
    /// [`Notifier::new`](pindown::monitor::imported::Notifier::new). Before anything else is mapped at addresses that change,
    /// the application must tell the notifier; all these caches are told. (RCACHE-020)
    ///
    /// # Errors
    /// The domain has one already, or it belongs to the process that this one is a fork of.
    ///
    /// # Safety
    /// The application tells every change of the memory that it answers for, in time, as [`pindown::monitor::imported`] says.
    /// If it does not, devices reach other memory than they were told to: [`FixedBuffers`] then writes
    /// where it must not.
    #[expect(unsafe_code, reason = "devices write to the addresses that a monitor vouches for")]
    pub unsafe fn import_monitor(&self, imported: Imported) -> Result<(), AlreadyImported> {
        if !self.inner.is_here() {
            return Err(AlreadyImported);
        }
        self.inner.imported.set(imported).map_err(|_| AlreadyImported)
    }

    /// io_uring with so many fixed buffers (16,384 at most): transfers between any memory and files or sockets, through a
    /// registration cache.
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
    /// No io_uring, or no cache.
    pub fn fixed_buffers(&self, slots: u32) -> Result<FixedBuffers, FixedError> {
        let table = BufferTable::new(slots).map_err(FixedError::NoRing)?;
        let cache = self.registration_cache(table.clone())?;
        Ok(FixedBuffers::new(table, cache))
    }
}
