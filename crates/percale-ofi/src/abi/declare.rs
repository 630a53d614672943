//! The macros that declare structures, tables and constants, and describe each of them for the layout test.

/// The return value of a table function that the provider does not implement.
pub trait Refused {
    /// The return value.
    const REFUSED: Self;
}

impl Refused for i32 {
    const REFUSED: Self = -libc::ENOSYS;
}

impl Refused for isize {
    const REFUSED: Self = -(libc::ENOSYS as isize);
}

impl Refused for u64 {
    const REFUSED: Self = 0;
}

impl Refused for *const libc::c_char {
    const REFUSED: Self = std::ptr::null();
}

impl Refused for () {
    const REFUSED: Self = ();
}

/// The layout of a structure.
#[cfg(test)]
pub(crate) struct Structure {
    /// The name in the headers, without `struct`.
    pub(crate) name: &'static str,
    /// The size in bytes.
    pub(crate) size: usize,
    /// The names and offsets of the fields.
    pub(crate) fields: &'static [(&'static str, usize)],
}

/// Declares C structures, and `$all`, their layouts.
macro_rules! structures {
    ($all:ident; $($(#[$meta:meta])* $name:ident { $($(#[$doc:meta])* $field:ident: $type:ty,)* })*) => {
        $(
            $(#[$meta])*
            #[repr(C)]
            #[derive(Clone, Copy, Debug)]
            pub struct $name {
                $($(#[$doc])* pub $field: $type,)*
            }

            impl $name {
                /// A structure with all fields null or 0.
                // SAFETY: all zero is valid for integers, pointers, optional functions, and arrays, structures and
                // unions of them.
                pub const ZERO: Self = unsafe { std::mem::zeroed() };
            }
        )*

        #[cfg(test)]
        pub(super) const $all: &[$crate::abi::declare::Structure] = &[$($crate::abi::declare::Structure {
            name: stringify!($name),
            size: size_of::<$name>(),
            fields: &[$((stringify!($field), std::mem::offset_of!($name, $field)),)*],
        },)*];
    };
}

/// Declares tables of operations, and `$all`, their layouts.
macro_rules! tables {
    ($all:ident; $($(#[$meta:meta])* $name:ident {
        $($(#[$doc:meta])* $op:ident($($arg:ident: $type:ty),* $(,)?) $(-> $answer:ty)?;)*
    })*) => {
        $(
            $(#[$meta])*
            #[repr(C)]
            #[derive(Clone, Copy, Debug)]
            pub struct $name {
                /// The size of this table in bytes, which determines its members.
                pub size: usize,
                $($(#[$doc])* pub $op: Option<unsafe extern "C" fn($($arg: $type),*) $(-> $answer)?>,)*
            }

            impl $name {
                /// A table in which every function returns an error.
                pub const REFUSING: Self = Self {
                    size: size_of::<Self>(),
                    $($op: {
                        extern "C" fn refuse($(_: $type),*) $(-> $answer)? {
                            $crate::abi::Refused::REFUSED
                        }
                        Some(refuse)
                    },)*
                };
            }
        )*

        #[cfg(test)]
        pub(super) const $all: &[$crate::abi::declare::Structure] = &[$($crate::abi::declare::Structure {
            name: stringify!($name),
            size: size_of::<$name>(),
            fields: &[("size", 0), $((stringify!($op), std::mem::offset_of!($name, $op)),)*],
        },)*];
    };
}

/// Declares constants of one type, and `$all`, their names and values.
macro_rules! constants {
    ($all:ident: $type:ty; $($name:ident = $value:expr, $doc:literal;)*) => {
        $(
            #[doc = $doc]
            pub const $name: $type = $value;
        )*

        #[cfg(test)]
        pub(super) const $all: &[(&str, u64)] = &[$((stringify!($name), $name as u64),)*];
    };
}

/// Declares opaque types, which are used only by pointer.
macro_rules! opaque {
    ($($(#[$meta:meta])* $name:ident;)*) => {
        $(
            $(#[$meta])*
            #[repr(C)]
            #[derive(Debug)]
            pub struct $name {
                _opaque: [u8; 0],
            }
        )*
    };
}
