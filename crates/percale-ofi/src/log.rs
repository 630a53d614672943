//! Messages to libfabric's log (`FI_LOG_LEVEL`, `FI_LOG_PROV`). The reason for a rejection is logged at level
//! FI_LOG_WARN, unless the error code alone explains it.
//!
//! A message begins with the object and the call: `getinfo: no match: ...`. It is formatted only if the log accepts
//! it.

use std::ffi::{CStr, CString};
use std::fmt;

use crate::abi::{FI_LOG_INFO, FI_LOG_WARN};
use crate::libfabric::{libfabric, provider};

/// Logs at `FI_LOG_WARN`: `warning!(FI_LOG_CQ, "cq_open: size {size} is too large")`.
macro_rules! warning {
    ($subsystem:expr, $($message:tt)+) => {
        $crate::log::write($crate::log::Level::Warn, $subsystem, $crate::log::place!(), line!(), format_args!($($message)+))
    };
}

/// Logs at `FI_LOG_INFO`.
macro_rules! note {
    ($subsystem:expr, $($message:tt)+) => {
        $crate::log::write($crate::log::Level::Info, $subsystem, $crate::log::place!(), line!(), format_args!($($message)+))
    };
}

/// Expands to the module of a message, as a C string.
macro_rules! place {
    () => {
        match std::ffi::CStr::from_bytes_with_nul(concat!(module_path!(), "\0").as_bytes()) {
            Ok(place) => place,
            Err(_) => c"",
        }
    };
}

pub(crate) use {note, place, warning};

/// The level of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {
    /// An operation was rejected or failed.
    Warn,
    /// Normal operation.
    Info,
}

/// Writes a message. Called only by the macros.
pub(crate) fn write(level: Level, subsystem: u32, place: &CStr, line: u32, message: fmt::Arguments<'_>) {
    #[cfg(test)]
    testing::LOGGED.with_borrow_mut(|logged| logged.push((level, message.to_string())));
    let level = match level {
        Level::Warn => FI_LOG_WARN,
        Level::Info => FI_LOG_INFO,
    };
    let (Some(log), Some(provider)) = (libfabric().log, provider()) else { return };
    if let Some(enabled) = libfabric().log_enabled {
        // SAFETY: the provider structure is a static that was passed to libfabric.
        if unsafe { enabled(provider, level, subsystem) } == 0 {
            return;
        }
    }
    let Ok(text) = CString::new(message.to_string().replace('\0', "")) else { return };
    // libfabric's printing may change errno; the caller's errno must be preserved.
    let errno = std::io::Error::last_os_error().raw_os_error();
    // SAFETY: the format takes one string. The string and the source location live until the call returns.
    unsafe { log(provider, level, subsystem, place.as_ptr(), line.cast_signed(), c"%s\n".as_ptr(), text.as_ptr()) };
    if let Some(errno) = errno {
        // SAFETY: the location belongs to this thread.
        let at = unsafe { libc::__errno_location() };
        // SAFETY: as above.
        unsafe { *at = errno };
    }
}

/// The warnings that this thread logged, for tests.
#[cfg(test)]
pub(crate) mod testing {
    use std::cell::RefCell;

    use super::Level;

    thread_local! {
        pub(super) static LOGGED: RefCell<Vec<(Level, String)>> = const { RefCell::new(Vec::new()) };
    }

    /// Removes and returns the warnings that this thread logged since the last call.
    pub(crate) fn warnings() -> Vec<String> {
        let logged = LOGGED.take();
        logged.into_iter().filter(|(level, _)| *level == Level::Warn).map(|(_, text)| text).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::FI_LOG_CORE;

    #[test]
    fn log_messages_without_libfabric_are_discarded() {
        note!(FI_LOG_CORE, "started");
        warning!(FI_LOG_CORE, "test: {} is refused", 7);
        assert_eq!(testing::warnings(), ["test: 7 is refused"]);
    }
}
