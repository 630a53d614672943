//! Memory windows: revocable, limited rights to a part of a region (verbs: memory windows of type 1, 2A and 2B).
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # use percale::{Access, Info, WindowAccess, WindowType};
//! # let domain = Info::discover()?.best()?.open()?;
//! let region = domain.register(vec![0; 4096], Access::empty())?;      // gives peers no rights
//! let mut window = domain.window(WindowType::One)?;
//! let name = window.bind(&region, 512..1024, WindowAccess::READ)?;    // peers may read this part
//! window.bind(&region, 0..0, WindowAccess::empty())?;                 // unbound: no access is in progress
//! # drop(name); Ok(()) }
//! ```
//!
//! A [`Window`] is allocated once and can be bound to parts of regions any number of times. Each bind has a key, and
//! revoking it needs no system call. The lower 32 bits of a key consist of the window's index (24 bits), which does not
//! change, and 8 bits below it, which change with each bind. The upper 32 bits are a number that the domain draws at
//! random, so that the keys of windows and of regions have separate name spaces. The rights of a window do not depend
//! on those of the region. Peers use the addresses of the region.
//!
//! * **Type 1**: bound by a call ([`Window::bind`]), which chooses the key. The key is valid through every endpoint of
//!   the domain.
//! * **Type 2**: bound by a posted operation, in order with the messages to a peer
//!   ([`Endpoint::bind_window`](crate::Endpoint::bind_window)). The caller chooses the 8 bits. The key is valid only
//!   for that peer through that endpoint, until it is invalidated: by an operation
//!   ([`Endpoint::invalidate`](crate::Endpoint::invalidate)), or by that peer with a message. An endpoint with bound
//!   windows of type **2A** cannot be closed. With type **2B** it can be closed, which unbinds its windows. A domain
//!   supports one of the two ([`DomainBuilder::windows`](crate::DomainBuilder::windows)).
//!
//! As with regions, **revocation is synchronous**: when a rebind or an unbind has returned, or an invalidation has
//! completed, no access with the old key is in progress and none will begin. A region cannot be closed while windows
//! are bound to it. A window that is dropped is unbound at once; memory that a peer is still accessing is kept until
//! the peer has finished.
//!
//! The state of windows is in the crate's module `region`.

mod handle;

#[cfg(all(test, not(loom)))]
mod tests;

pub use self::handle::{Window, WindowState};
#[doc(inline)]
pub use crate::region::window::{TypeTwo, WindowAccess, WindowError, WindowType};
