//! Macros and type names for the functions that libfabric calls on an endpoint, and for the tables of these functions.

use std::ffi::c_void;

use crate::abi::fi_ioc;

/// A buffer to write to, a context, or a descriptor.
pub(super) type Void = *mut c_void;
/// A buffer to read from.
pub(super) type Const = *const c_void;
/// An array with a descriptor for each piece, or null.
pub(super) type Descs = *mut *mut c_void;
pub(super) type Iov = *const libc::iovec;
pub(super) type Ioc = *const fi_ioc;

/// Defines functions of a table. The first parameter is the object behind the pointer that libfabric passes first.
macro_rules! calls {
    (impl $object:ident {$(
        fn $name:ident($this:ident, $($arg:ident: $type:ty),*) $body:block
    )*}) => {$(
        pub(super) unsafe extern "C" fn $name(ep: *mut $crate::abi::fid_ep, $($arg: $type),*) -> isize {
            // SAFETY: the table is only set in objects of this type.
            let $this = unsafe { <$object as $crate::object::Object>::of(ep) };
            $body
        }
    )*};
}

/// Builds a table of functions. An entry uses the function of the same name unless another one is given. The other
/// entries are those of a second table.
macro_rules! table {
    ($table:ident { $($call:ident $(: $function:ident)?),* }) => {
        $table { size: size_of::<$table>(), $($call: table!(@entry $call $($function)?)),* }
    };
    ($table:ident { $($call:ident $(: $function:ident)?),*; ..$rest:expr }) => {
        $table { $($call: table!(@entry $call $($function)?),)* ..$rest }
    };
    (@entry $call:ident) => { Some($call) };
    (@entry $call:ident $function:ident) => { Some($function) };
}

pub(super) use {calls, table};
