//! `struct pindown_functions`: the functions of pindown.h as a table, for a library that contains pindown and exports
//! none of its symbols.

use std::ffi::{c_char, c_int, c_void};

use super::handles::{
    OwnRegistration, pindown_check, pindown_deregister, pindown_interrupt, pindown_reason_text, pindown_register,
    pindown_wait,
};
use super::lane::{OpenLane, UseOfLane, pindown_end, pindown_get, pindown_hold, pindown_lane_close, pindown_lane_open};
use super::open::{
    Attr, pindown_changed, pindown_changed_everything, pindown_close, pindown_flush, pindown_monitor,
    pindown_monitor_why, pindown_open, pindown_sweep,
};
use super::sealed::{pindown_alloc, pindown_free};
use super::stats::{Counts, pindown_read_stats};
use super::{OpenCache, error::pindown_last_error, pindown_version};

/// Declares the table and fills it in. Each member has the name of its function.
macro_rules! table {
    ($($(#[$doc:meta])* $member:ident = $function:ident: $type:ty,)*) => {
        /// The table as declared in C.
        #[repr(C)]
        #[derive(Clone, Copy, Debug)]
        pub struct Functions {
            pub(super) size: usize,
            $(pub(super) $member: $type,)*
        }

        /// The only table.
        pub static FUNCTIONS: Functions = Functions { size: size_of::<Functions>(), $($member: $function,)* };
    };
}

type OfCache = unsafe extern "C" fn(*const OpenCache) -> c_int;
type TextOfCache = unsafe extern "C" fn(*const OpenCache) -> *const c_char;

table! {
    version = pindown_version: extern "C" fn() -> u32,
    open = pindown_open: unsafe extern "C" fn(*const Attr, *mut *mut OpenCache) -> c_int,
    close = pindown_close: unsafe extern "C" fn(*mut OpenCache) -> c_int,
    monitor = pindown_monitor: TextOfCache,
    monitor_why = pindown_monitor_why: TextOfCache,
    last_error = pindown_last_error: extern "C" fn() -> *const c_char,
    lane_open = pindown_lane_open: unsafe extern "C" fn(*const OpenCache, *mut *mut OpenLane) -> c_int,
    lane_close = pindown_lane_close: unsafe extern "C" fn(*mut OpenLane) -> c_int,
    get = pindown_get: unsafe extern "C" fn(*const OpenLane, *const c_void, usize, u32, *mut UseOfLane) -> c_int,
    end = pindown_end: unsafe extern "C" fn(*const OpenLane, *mut UseOfLane) -> c_int,
    sweep = pindown_sweep: OfCache,
    flush = pindown_flush: OfCache,
    read_stats = pindown_read_stats: unsafe extern "C" fn(*const OpenCache, *mut Counts) -> c_int,
    reason_text = pindown_reason_text: extern "C" fn(u32) -> *const c_char,
    register_memory = pindown_register:
        unsafe extern "C" fn(*const OpenCache, *const c_void, usize, u32, *mut OwnRegistration) -> c_int,
    deregister = pindown_deregister: unsafe extern "C" fn(*const OpenCache, u64) -> c_int,
    check = pindown_check: unsafe extern "C" fn(*const OpenCache, *mut u64) -> c_int,
    wait = pindown_wait: unsafe extern "C" fn(*const OpenCache, c_int, *mut u64) -> c_int,
    interrupt = pindown_interrupt: OfCache,
    changed = pindown_changed: unsafe extern "C" fn(*const OpenCache, *const c_void, usize) -> c_int,
    changed_everything = pindown_changed_everything: OfCache,
    alloc = pindown_alloc: unsafe extern "C" fn(usize, *mut *mut c_void) -> c_int,
    free = pindown_free: extern "C" fn(*mut c_void) -> c_int,
    hold = pindown_hold: unsafe extern "C" fn(*const OpenLane, *mut UseOfLane) -> c_int,
}
