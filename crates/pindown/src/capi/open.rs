//! Opening a cache, and the choice of its monitor.

use std::any::Any;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::Arc;

use super::error::{Failure, answer};
use super::registrar::{Answering, Answers, Callbacks, Opaque, Pin, Unpin};
use super::{OpenCache, opened, own, place};
use crate::cache::Cache;
use crate::monitor::Choice;
use crate::monitor::imported::Notifier;
use crate::monitor::userfaultfd::{Settings, Unseen};

/// `struct pindown_attr`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Attr {
    pub(super) size: usize,
    pub(super) pin: Option<Pin>,
    pub(super) unpin: Option<Unpin>,
    pub(super) context: *mut c_void,
    pub(super) monitor: *const c_char,
    pub(super) max_bytes: u64,
    pub(super) max_count: u32,
    pub(super) flags: u32,
    pub(super) answers: Option<Answers>,
}

/// `PINDOWN_NO_LIMIT`.
pub(super) const NO_LIMIT: u64 = u64::MAX;
/// `PINDOWN_DEFAULT_COUNT`.
pub(super) const DEFAULT_COUNT: u32 = u32::MAX;
/// `PINDOWN_NO_UNSEEN_CHANGES`.
pub(super) const NO_UNSEEN_CHANGES: u32 = 1 << 0;
/// `PINDOWN_CHECK_RIGHTS`.
pub(super) const CHECK_RIGHTS: u32 = 1 << 1;

/// `PINDOWN_REFUSE_GUARDS`.
pub(super) const REFUSE_GUARDS: u32 = 1 << 2;
/// `PINDOWN_MERGE`.
pub(super) const MERGE: u32 = 1 << 3;

/// All known flags.
const FLAGS: u32 = NO_UNSEEN_CHANGES | CHECK_RIGHTS | REFUSE_GUARDS | MERGE;

/// A size greater than that of any version of the structure. Larger sizes are rejected.
const LONGEST: usize = 4096;

impl Attr {
    /// The values of fields that an older caller does not have.
    const UNSET: Self = Self {
        size: 0,
        pin: None,
        unpin: None,
        context: std::ptr::null_mut(),
        monitor: std::ptr::null(),
        max_bytes: NO_LIMIT,
        max_count: DEFAULT_COUNT,
        flags: 0,
        answers: None,
    };

    /// Copies the structure of a caller, which may be compiled for an older or newer version of this library.
    ///
    /// # Safety
    /// The pointer is null, or refers to as many readable bytes as its first field contains.
    unsafe fn read(attr: *const Self) -> Result<Self, Failure> {
        if attr.is_null() {
            return Err(Failure::null("attr"));
        }
        // SAFETY: the caller guarantees that at least the first field is there.
        let size = unsafe { attr.cast::<usize>().read() };
        if size < std::mem::offset_of!(Self, monitor) || !size.is_multiple_of(8) {
            return Err(Failure::invalid(format!("attr->size is {size}: set it to sizeof(struct pindown_attr)")));
        }
        if size > LONGEST {
            return Err(Failure::new(
                libc::E2BIG,
                format!("attr->size is {size}, larger than in any version of the structure"),
            ));
        }
        let known = size.min(size_of::<Self>());
        let mut read = Self::UNSET;
        // SAFETY: the caller's structure and `read` have at least this number of bytes. Any bytes are valid values of
        // the fields, which are copied completely: each version ends at a multiple of 8, and so does each pair of
        // fields.
        unsafe { std::ptr::copy_nonoverlapping(attr.cast::<u8>(), (&raw mut read).cast::<u8>(), known) };
        for at in known..size {
            // SAFETY: within the caller's bytes.
            let byte = unsafe { attr.cast::<u8>().wrapping_add(at).read() };
            if byte != 0 {
                let why = format!("attr has an unknown field set at byte {at}");
                return Err(Failure::new(libc::E2BIG, why));
            }
        }
        Ok(read)
    }

    /// Returns the name of the requested monitor.
    ///
    /// # Safety
    /// The name is null, or ends with a zero.
    unsafe fn wanted(&self) -> Result<Option<&str>, Failure> {
        if self.monitor.is_null() {
            return Ok(None);
        }
        // SAFETY: guaranteed by the caller.
        let name = unsafe { CStr::from_ptr(self.monitor) };
        name.to_str().map(Some).map_err(|_| unknown(&name.to_string_lossy()))
    }

    fn userfaultfd(&self) -> Settings {
        let has = |flag| self.flags & flag != 0;
        let settings = Settings::new(match (has(NO_UNSEEN_CHANGES), has(REFUSE_GUARDS)) {
            (true, _) => Unseen::NeverMade,
            (false, true) => Unseen::GuardsRefused,
            (false, false) => Unseen::Possible,
        });
        if has(CHECK_RIGHTS) { settings.check_rights() } else { settings }
    }
}

/// The valid names in `pindown_attr.monitor`.
const NAMES: &str = "best, bpf, userfaultfd, sealed, imported, none";

fn unknown(name: &str) -> Failure {
    Failure::invalid(format!("unknown monitor \"{name}\"; valid names are {NAMES}"))
}

/// The settings of a cache, without the callbacks.
#[derive(Clone, Copy, Debug)]
pub struct CacheOptions<'a> {
    /// The name of a monitor.
    pub monitor: Option<&'a str>,
    /// The maximum number of bytes.
    pub max_bytes: Option<u64>,
    /// The maximum number of registrations.
    pub max_count: Option<u32>,
    /// The settings of userfaultfd, with the caller's promise.
    pub userfaultfd: Settings,
    /// Whether registrations are merged.
    pub merging: bool,
    /// Whether the caller reports changes of a range.
    pub answering: Answering,
}

/// A cache that was opened for a C caller.
#[derive(Debug)]
pub struct Opened {
    /// The cache.
    pub cache: Cache<Callbacks>,
    /// The notifier that `pindown_changed` uses; only for an imported monitor.
    pub notifier: Option<Notifier>,
    /// A value that is kept as long as the cache.
    pub kept: Option<Arc<dyn Any + Send + Sync>>,
}

fn choose(callbacks: Callbacks, wishes: CacheOptions<'_>) -> Result<Opened, Failure> {
    let (choice, notifier) = match wishes.monitor.unwrap_or("best") {
        "best" => (Choice::Best(wishes.userfaultfd), None),
        "bpf" => (Choice::Bpf, None),
        "userfaultfd" => (Choice::Userfaultfd(wishes.userfaultfd), None),
        "sealed" => (Choice::Sealed, None),
        "none" => (Choice::None, None),
        "imported" => {
            let (notifier, imported) = Notifier::new(move |range, access| wishes.answering.ask(range, access))?;
            (Choice::Imported(imported), Some(notifier))
        }
        name => return Err(unknown(name)),
    };
    let mut builder = Cache::builder(callbacks).monitor(choice).merging(wishes.merging);
    if let Some(bytes) = wishes.max_bytes {
        builder = builder.max_bytes(bytes);
    }
    if let Some(count) = wishes.max_count {
        builder = builder.max_count(count);
    }
    Ok(Opened { cache: builder.open()?, notifier, kept: None })
}

/// Like `pindown_open`, but opens the cache with `open`.
///
/// # Safety
/// The requirements of `pindown_open` in pindown.h.
pub unsafe fn open_by(
    attr: *const Attr,
    cache: *mut *mut OpenCache,
    open: impl FnOnce(Callbacks, CacheOptions<'_>) -> Result<Opened, Failure>,
) -> c_int {
    answer((|| {
        let place = place(cache, "cache")?;
        // SAFETY: the caller meets the same requirements.
        let attr = unsafe { Attr::read(attr) }?;
        let (Some(pin), Some(unpin)) = (attr.pin, attr.unpin) else {
            return Err(Failure::invalid("attr->pin and attr->unpin must both be set"));
        };
        if attr.flags & !FLAGS != 0 {
            return Err(Failure::invalid(format!("attr->flags has unknown bits: {:#x}", attr.flags)));
        }
        let context = Opaque(attr.context);
        let wishes = CacheOptions {
            // SAFETY: the caller meets the same requirements.
            monitor: unsafe { attr.wanted() }?,
            max_bytes: (attr.max_bytes != NO_LIMIT).then_some(attr.max_bytes),
            max_count: (attr.max_count != DEFAULT_COUNT).then_some(attr.max_count),
            userfaultfd: attr.userfaultfd(),
            merging: attr.flags & MERGE != 0,
            answering: Answering::new(attr.answers, context),
        };
        let Opened { cache, notifier, kept } = open(Callbacks { pin, unpin, context }, wishes)?;
        let name = CString::new(cache.monitor()).unwrap_or_default();
        let why = CString::new(cache.explanation()).unwrap_or_default();
        let opened = Box::new(OpenCache { cache, lanes: Arc::new(()), notifier, _kept: kept, name, why });
        // SAFETY: not null, and the caller guarantees that a pointer may be written there.
        unsafe { place.write(Box::into_raw(opened)) };
        Ok(0)
    })())
}

/// Opens a cache.
#[cfg_attr(feature = "c-symbols", unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn pindown_open(attr: *const Attr, cache: *mut *mut OpenCache) -> c_int {
    // SAFETY: the caller meets the same requirements.
    unsafe { open_by(attr, cache, choose) }
}

/// Closes a cache and unpins its registrations.
#[cfg_attr(feature = "c-symbols", unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn pindown_close(cache: *mut OpenCache) -> c_int {
    // SAFETY: the caller meets the same requirements.
    answer(unsafe { opened(cache) }.and_then(|opened| {
        let lanes = Arc::strong_count(&opened.lanes) - 1;
        if lanes != 0 {
            return Err(Failure::new(libc::EBUSY, format!("{lanes} lanes of the cache are open: close them first")));
        }
        // SAFETY: made by `Box::into_raw` in `pindown_open`, and the caller guarantees that it is no longer in use.
        drop(unsafe { Box::from_raw(cache) });
        Ok(0)
    }))
}

/// Returns the name of the cache's monitor; null if there is no cache.
#[cfg_attr(feature = "c-symbols", unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn pindown_monitor(cache: *const OpenCache) -> *const c_char {
    // SAFETY: the caller meets the same requirements.
    match unsafe { opened(cache) } {
        Ok(opened) => opened.name.as_ptr(),
        Err(failure) => {
            failure.answer();
            std::ptr::null()
        }
    }
}

/// Returns the reason why that monitor was selected; null if there is no cache.
#[cfg_attr(feature = "c-symbols", unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn pindown_monitor_why(cache: *const OpenCache) -> *const c_char {
    // SAFETY: the caller meets the same requirements.
    match unsafe { opened(cache) } {
        Ok(opened) => opened.why.as_ptr(),
        Err(failure) => {
            failure.answer();
            std::ptr::null()
        }
    }
}

/// Processes the changes that the monitor has reported, and unpins registrations that are no longer used.
#[cfg_attr(feature = "c-symbols", unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn pindown_sweep(cache: *const OpenCache) -> c_int {
    // SAFETY: the caller meets the same requirements.
    answer(unsafe { own(cache) }.map(|own| {
        own.cache.sweep();
        0
    }))
}

/// Drops all registrations.
#[cfg_attr(feature = "c-symbols", unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn pindown_flush(cache: *const OpenCache) -> c_int {
    // SAFETY: the caller meets the same requirements.
    answer(unsafe { own(cache) }.map(|own| {
        own.cache.flush();
        0
    }))
}

/// Returns the notifier of an imported monitor.
///
/// # Safety
/// As for [`opened`].
unsafe fn notifier<'a>(cache: *const OpenCache) -> Result<&'a Notifier, Failure> {
    // SAFETY: the caller meets the same requirements.
    let own = unsafe { own(cache) }?;
    own.notifier
        .as_ref()
        .ok_or_else(|| Failure::invalid("only a cache with the monitor \"imported\" accepts reported changes"))
}

/// Reports that the memory at these addresses has changed.
#[cfg_attr(feature = "c-symbols", unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn pindown_changed(
    cache: *const OpenCache,
    address: *const c_void,
    length: usize,
) -> c_int {
    // SAFETY: the caller meets the same requirements.
    answer(unsafe { notifier(cache) }.and_then(|notifier| {
        let reported = notifier.changed_at(address.addr() as u64, length as u64);
        reported.map_err(|error| Failure::invalid(format!("{error}; all memory is treated as changed")))?;
        Ok(0)
    }))
}

/// Reports that all memory may have changed.
#[cfg_attr(feature = "c-symbols", unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn pindown_changed_everything(cache: *const OpenCache) -> c_int {
    // SAFETY: the caller meets the same requirements.
    answer(unsafe { notifier(cache) }.map(|notifier| {
        notifier.changed_everything();
        0
    }))
}
