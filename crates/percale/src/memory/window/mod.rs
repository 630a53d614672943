//! Memory windows: revocable, narrower rights to a part of a region (verbs: memory windows of type 1, 2A and 2B).
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # use percale::{Access, Info, WindowAccess, WindowType};
//! # let domain = Info::discover()?.best()?.open()?;
//! let region = domain.register(vec![0; 4096], Access::empty())?;      // peers may do nothing with it
//! let mut window = domain.window(WindowType::One)?;
//! let name = window.bind(&region, 512..1024, WindowAccess::READ)?;    // but read this part
//! window.bind(&region, 0..0, WindowAccess::empty())?;                 // and now they may not: no access is under way
//! # drop(name); Ok(()) }
//! ```
//!
//! A [`Window`] is allocated once and bound to parts of regions as often as wanted; each bind has a key, and taking it back costs no
//! system call. The lower 32 bits of a key are the window's index, which stays, in 24 bits, and below it 8 bits that change from bind to
//! bind (MW-007); the upper 32 are a number that the domain draws at random, so that windows have a name space apart from that of
//! regions' keys (MW-051). The window's rights are its own, whatever the region's are (MW-017, MW-018), and peers name its bytes by the
//! region's addresses.
//!
//! * **Type 1**: bound by a call ([`Window::bind`]), which chooses the key. Its key works through every endpoint of the domain.
//! * **Type 2**: bound by a posted operation, in order with the messages to a peer
//!   ([`Endpoint::bind_window`](crate::Endpoint::bind_window)); the caller chooses the 8 bits. The key works for that peer through that
//!   endpoint alone, until it is invalidated: by an operation ([`Endpoint::invalidate`](crate::Endpoint::invalidate)) or by that peer
//!   with a message. An endpoint with bound windows of type **2A** is not closed; with type **2B** it is, and its windows are unbound.
//!   A domain has one of the two ([`DomainBuilder::windows`](crate::DomainBuilder::windows)).
//!
//! As with regions, **revocation is synchronous**: when a rebind or an unbind has returned, or an invalidation has completed, no access
//! by the old key is under way and none will begin. A region is not closed while windows are bound to it (MW-004). A window that is
//! dropped is unbound at once; memory that a peer is still accessing is kept until the peer is done.
//!
//! The state of windows is in the crate's module `region`.

mod handle;

#[cfg(all(test, not(loom)))]
mod tests;

pub use self::handle::{Window, WindowState};
#[doc(inline)]
pub use crate::region::window::{TypeTwo, WindowAccess, WindowError, WindowType};
