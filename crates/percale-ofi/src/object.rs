//! The objects behind libfabric's `fid` structures. Each is one allocation.
//!
//! A client holds a pointer to a C structure, which is the first field of a Rust object. The object lives from the call
//! that opens it until `fi_close`, and the client must not use it before or after that (fi_close(3)). Objects that
//! depend on each other share an [`Arc`] of the part behind the C structure. An object can be closed only while no
//! other object holds a reference to its part.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use crate::abi::{fi_ops, fid};

/// An object that clients hold by a pointer to its first field.
///
/// # Safety
/// The type is `repr(C)`, its first field is a C structure that begins with a `fid`, and `CLASS` is the value of its
/// `fclass`.
pub(crate) unsafe trait Object: Sized {
    /// The class of the object (`FI_CLASS_*`).
    const CLASS: usize;

    /// Returns the object behind a client's pointer.
    ///
    /// # Safety
    /// The pointer refers to an object of this type that has been opened and is not closed while the result is used.
    unsafe fn of<'a, T>(pointer: *mut T) -> &'a Self {
        // SAFETY: the caller guarantees this, and the first field has the address of the object.
        unsafe { &*pointer.cast::<Self>() }
    }

    /// Like [`of`](Self::of). Returns `None` if the pointer is null or the object has another class.
    ///
    /// # Safety
    /// The pointer is null or refers to any open object.
    unsafe fn of_class<'a>(pointer: *mut fid) -> Option<&'a Self> {
        // SAFETY: the caller guarantees this, and every object begins with a `fid`.
        let class = unsafe { pointer.as_ref() }?.fclass;
        // SAFETY: every object of this class has this type.
        (class == Self::CLASS).then(|| unsafe { Self::of(pointer) })
    }

    /// Passes the ownership of the object to the client.
    ///
    /// # Safety
    /// `out` is writable.
    unsafe fn give<T>(self, out: *mut *mut T) {
        // SAFETY: the caller guarantees this.
        unsafe { out.write(Box::into_raw(Box::new(self)).cast()) };
    }

    /// Takes the object back from the client and drops it. Returns -FI_EBUSY if another object shares its `part`.
    ///
    /// # Safety
    /// The requirements of [`of`](Self::of) apply. The client must not use the pointer after a return value of 0.
    unsafe fn close<P>(pointer: *mut fid, part: impl FnOnce(&Self) -> &Arc<P>) -> c_int {
        // SAFETY: the caller upholds the same contract.
        let object = unsafe { Self::of(pointer) };
        if Arc::strong_count(part(object)) > 1 {
            return -libc::EBUSY;
        }
        // SAFETY: `give` created the pointer from a box, and the client no longer uses it.
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

        // SAFETY: the type is `repr(C)`, and `fid` is its first field.
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

/// Builds the `fid` at the start of an object.
pub(crate) const fn head(class: usize, context: *mut c_void, ops: &'static fi_ops) -> fid {
    fid { fclass: class, context, ops: std::ptr::from_ref(ops).cast_mut() }
}

/// Converts a result to libfabric's form: 0, or the negative error code.
pub(crate) fn code(result: Result<(), i32>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(code) => -code,
    }
}
