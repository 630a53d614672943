//! C objects and ours: one allocation each.
//!
//! A client holds a pointer to the C structure that is the first field of one of our objects. The object lives from the call that opens it until
//! `fi_close`, and the client promises (fi_close(3)) to use it only in between. Objects that need each other share an [`Arc`] of the part behind the
//! C structure: an object can be closed while no other object holds its part.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use crate::abi::{fi_ops, fid};

/// An object that clients hold by a pointer to its first field.
///
/// # Safety
/// The type is `repr(C)`, its first field is a C structure that begins with a `fid`, and `CLASS` is the value of its `fclass`.
pub(crate) unsafe trait Object: Sized {
    /// The `FI_CLASS_` of the object.
    const CLASS: usize;

    /// The object behind a client's pointer.
    ///
    /// # Safety
    /// The pointer is of an object of this type that was opened and not yet closed, and stays so while the result is used.
    unsafe fn of<'a, T>(pointer: *mut T) -> &'a Self {
        // SAFETY: promised by the caller; an object begins where its first field does.
        unsafe { &*pointer.cast::<Self>() }
    }

    /// Like [`of`](Self::of), if the pointer is of an object of this class.
    ///
    /// # Safety
    /// The pointer is null or of some object that is open.
    unsafe fn of_class<'a>(pointer: *mut fid) -> Option<&'a Self> {
        // SAFETY: promised by the caller; every object begins with a `fid`.
        let class = unsafe { pointer.as_ref() }?.fclass;
        // SAFETY: an object of this class has this type.
        (class == Self::CLASS).then(|| unsafe { Self::of(pointer) })
    }

    /// Gives the object to the client.
    ///
    /// # Safety
    /// `out` is valid for a write of a pointer.
    unsafe fn give<T>(self, out: *mut *mut T) {
        // SAFETY: promised by the caller.
        unsafe { out.write(Box::into_raw(Box::new(self)).cast()) };
    }

    /// Takes the object back from the client, if no other object shares `part` of it.
    ///
    /// # Safety
    /// As of [`of`](Self::of); the client uses the pointer no more if this returns 0.
    unsafe fn close<P>(pointer: *mut fid, part: impl FnOnce(&Self) -> &Arc<P>) -> c_int {
        // SAFETY: passed on.
        let object = unsafe { Self::of(pointer) };
        if Arc::strong_count(part(object)) > 1 {
            return -libc::EBUSY;
        }
        // SAFETY: `give` made it of a box, and the client gives it up.
        drop(unsafe { Box::from_raw(pointer.cast::<Self>()) });
        0
    }
}

/// Declares an object: a C structure, and the part that it shares with other objects.
macro_rules! object {
    ($(#[$doc:meta])* $vis:vis $name:ident: $class:expr, $fid:ty, $(#[$part_doc:meta])* $shared:ty) => {
        $(#[$doc])*
        #[repr(C)]
        pub(crate) struct $name {
            fid: $fid,
            $(#[$part_doc])*
            shared: std::sync::Arc<$shared>,
        }

        // SAFETY: `repr(C)`, and `fid` is first.
        unsafe impl $crate::object::Object for $name {
            const CLASS: usize = $class;
        }

        impl $name {
            $vis const fn shared(&self) -> &std::sync::Arc<$shared> {
                &self.shared
            }
        }
    };
}

pub(crate) use object;

/// The head of an object.
pub(crate) const fn head(class: usize, context: *mut c_void, ops: &'static fi_ops) -> fid {
    fid { fclass: class, context, ops: std::ptr::from_ref(ops).cast_mut() }
}

/// Converts a result to libfabric's: 0, or the negative of the error code.
pub(crate) fn code(result: Result<(), i32>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(code) => -code,
    }
}
