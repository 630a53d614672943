//! A registrar that calls the caller's callbacks.

use std::ffi::{c_int, c_void};
use std::io;
use std::ptr::with_exposed_provenance_mut;

use crate::access::Access;
use crate::range::Range;
use crate::registrar::{Pinned, Registrar};

/// `struct pindown_pinned`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct PinnedKeys {
    pub(super) size: usize,
    pub(super) local_key: u64,
    pub(super) remote_key: u64,
    pub(super) pin: *mut c_void,
}

/// `pindown_pin_fn`.
pub(super) type Pin = unsafe extern "C" fn(*mut c_void, *mut c_void, usize, u32, *mut PinnedKeys) -> c_int;

/// `pindown_unpin_fn`.
pub(super) type Unpin = unsafe extern "C" fn(*mut c_void, *mut c_void);

/// `pindown_answers_fn`.
pub type Answers = unsafe extern "C" fn(*mut c_void, *const c_void, usize, u32) -> c_int;

/// A pointer of the caller, which is not dereferenced here.
#[derive(Clone, Copy, Debug)]
pub struct Opaque(pub *mut c_void);

// SAFETY: the pointer is never dereferenced here, only passed back to the caller, which guarantees (pindown.h) that any
// thread may use it.
unsafe impl Send for Opaque {}

// SAFETY: as above.
unsafe impl Sync for Opaque {}

/// The callbacks that pin and unpin.
#[derive(Clone, Copy, Debug)]
pub struct Callbacks {
    pub(super) pin: Pin,
    pub(super) unpin: Unpin,
    pub(super) context: Opaque,
}

impl Registrar for Callbacks {
    type Pin = Opaque;

    fn pin(&self, range: Range, access: Access) -> io::Result<Pinned<Opaque>> {
        let size = size_of::<PinnedKeys>();
        let mut pinned = PinnedKeys { size, local_key: 0, remote_key: 0, pin: std::ptr::null_mut() };
        let (start, len) = (with_exposed_provenance_mut(range.start() as usize), range.len() as usize);
        // SAFETY: the callback and its context come from the caller of `pindown_open`, which guarantees that any thread
        // may make this call until `pindown_close`.
        let code = unsafe { (self.pin)(self.context.0, start, len, access.bits(), &raw mut pinned) };
        match code {
            0 => {
                let PinnedKeys { local_key, remote_key, pin, .. } = pinned;
                Ok(Pinned { pin: Opaque(pin), local_key, remote_key })
            }
            -4095..0 => Err(io::Error::from_raw_os_error(-code)),
            _ => Err(io::Error::other(format!(
                "the pin callback returned {code}, which is neither 0 nor a negative errno"
            ))),
        }
    }

    fn unpin(&self, pin: Opaque) {
        // SAFETY: as in `pin`; the pin was returned by the pin callback, and is passed back once.
        unsafe { (self.unpin)(self.context.0, pin.0) }
    }
}

/// A callback that returns whether the application reports changes of a range.
#[derive(Clone, Copy, Debug)]
pub struct Answering {
    answers: Option<Answers>,
    context: Opaque,
}

impl Answering {
    /// Uses this callback with this first argument. Without a callback the application reports changes of all memory.
    #[must_use]
    pub fn new(answers: Option<Answers>, context: Opaque) -> Self {
        Self { answers, context }
    }

    /// Returns whether the application reports changes of a range.
    #[must_use]
    pub fn ask(&self, range: Range, access: Access) -> bool {
        let Some(answers) = self.answers else { return true };
        let (start, len) = (with_exposed_provenance_mut::<c_void>(range.start() as usize), range.len() as usize);
        // SAFETY: the callback and its context come from the caller of `pindown_open`, which guarantees that any thread
        // may make this call until `pindown_close`.
        unsafe { answers(self.context.0, start, len, access.bits()) != 0 }
    }
}
