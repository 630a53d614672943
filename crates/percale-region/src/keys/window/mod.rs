//! Memory windows as the domain knows them. What they are: `memory::window`.
//!
//! * `cell`: a window's state, which its owner and the domain's table share; `table`: windows by index, a part of the domain's keys

mod cell;
mod error;
mod table;

use bitflags::bitflags;

pub use self::cell::{Binding, By, Cell};
pub use self::error::WindowError;
pub use self::table::{Origin, Table};
use crate::local_memory::access::Access;

/// A kind of window: see `memory::window`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WindowType {
    /// For every endpoint of the domain; bound by a call.
    One,
    /// For one peer of one endpoint, which is not closed while the window is bound.
    TwoA,
    /// For one peer of one endpoint. The window is unbound when the endpoint is closed.
    TwoB,
}

/// Which windows of type 2 a domain has (MW-034, AMB-44).
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
    /// What peers may do with a window, in any combination (MW-015).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct WindowAccess: u8 {
        /// Read, and fetch by atomics.
        const READ = 1;
        /// Write, and change by atomics.
        const WRITE = 2;
        /// Change and fetch by atomics, and by nothing else.
        const ATOMIC = 4;
    }
}

impl WindowAccess {
    /// The rights in the form that regions use.
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
