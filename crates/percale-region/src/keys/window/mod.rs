//! The domain's representation of memory windows. `memory::window` describes them.
//!
//! * `cell`: the state of a window, which its owner shares with the domain's table
//! * `table`: the windows by index, as a part of the domain's keys

mod cell;
mod error;
mod table;

use bitflags::bitflags;

pub use self::cell::{Invalidator, WindowBinding, WindowCell};
pub use self::error::WindowError;
pub use self::table::{WindowOrigin, WindowTable};
use crate::local_memory::access::Access;

/// A kind of window (see `memory::window`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WindowType {
    /// For every endpoint of the domain. It is bound by a call.
    One,
    /// For one peer of one endpoint. The endpoint cannot be closed while the window is bound.
    TwoA,
    /// For one peer of one endpoint. Closing the endpoint unbinds the window.
    TwoB,
}

/// The kind of type 2 windows that a domain supports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum TypeTwo {
    /// [`WindowType::TwoA`].
    A,
    /// [`WindowType::TwoB`].
    #[default]
    B,
}

impl From<TypeTwo> for WindowType {
    fn from(two: TypeTwo) -> Self {
        match two {
            TypeTwo::A => Self::TwoA,
            TypeTwo::B => Self::TwoB,
        }
    }
}

bitflags! {
    /// The accesses that a window allows to peers, in any combination.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct WindowAccess: u8 {
        /// Peers may read, and fetch with atomic operations.
        const READ = 1;
        /// Peers may write, and change with atomic operations.
        const WRITE = 2;
        /// Peers may change and fetch, only with atomic operations.
        const ATOMIC = 4;
    }
}

impl WindowAccess {
    /// Returns the rights in the form that regions use.
    #[doc(hidden)]
    #[inline]
    pub fn remote(self) -> Access {
        let mut access = Access::empty();
        access.set(Access::REMOTE_READ, self.contains(Self::READ));
        access.set(Access::REMOTE_WRITE, self.contains(Self::WRITE));
        access.set(Access::REMOTE_ATOMIC, self.contains(Self::ATOMIC));
        access
    }
}
