//! `Debug` implementations of public types, which print one line without secrets.
//!
//! A derived `Debug` of a handle would print everything that it refers to, such as tables of regions with their keys,
//! or the authorization key, in thousands of lines. Public types that contain more than a few plain values therefore
//! implement `Debug` with this macro, which prints a name and selected values. `tests/debug.rs` checks each public
//! type.

/// Implements `Debug` for a public type: prints its name, then the named values.
#[macro_export]
macro_rules! short_debug {
    (for [$($params:tt)*] $type:ty, $($rest:tt)*) => {
        impl<$($params)*> std::fmt::Debug for $type {
            $crate::short_debug!(@fmt $($rest)*);
        }
    };
    (@fmt $name:literal $(, $field:ident: |$this:ident| $value:expr)*) => {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.debug_struct($name)
                $(.field(stringify!($field), &(|$this: &Self| $value)(self)))*
                .finish_non_exhaustive()
        }
    };
    ($type:ty, $($rest:tt)*) => {
        $crate::short_debug!(for [] $type, $($rest)*);
    };
}
pub use short_debug;

/// Returns the beginning of a text that may be long, for messages of limited length.
pub fn cut(text: &str) -> &str {
    const LEN: usize = 80;
    text.char_indices().nth(LEN).map_or(text, |(end, _)| &text[..end])
}
