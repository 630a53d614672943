//! A device as a registrar: any memory of the process, registered with it.

#![expect(unsafe_code, reason = "registers memory that it does not own; each block states its own reason")]

use std::io;
use std::sync::Arc;

use pindown::{Access, Pinned, Range, Registrar};

use super::context::ProtectionDomain;
use super::region::Rights;
use super::registration::Registration;

/// Registers memory in a protection domain. Clones are the same.
///
/// The keys that it fills in are the device's: the local one for requests of this process, the remote one for peers. The device reuses keys after a
/// while. A registration keeps naming the pages that lay at the addresses then, whatever is mapped there later: using a registration again is safe
/// only with a cache that has a monitor for such changes.
#[derive(Clone, Debug)]
pub struct VerbsRegistrar {
    domain: Arc<ProtectionDomain>,
    always: Rights,
}

impl VerbsRegistrar {
    /// Makes a registrar for a protection domain. Each registration has the rights in `always` besides those it is asked for.
    ///
    /// # Safety
    /// Devices and peers may read and write whatever is registered through this, as far as its rights go, until it is let
    /// go: no value of a program may lie there that does not stand that.
    #[must_use]
    pub const unsafe fn new(domain: Arc<ProtectionDomain>, always: Rights) -> Self {
        Self { domain, always }
    }

    fn rights(&self, access: Access) -> Rights {
        let mut rights = self.always;
        rights.set(Rights::REMOTE_READ, rights.contains(Rights::REMOTE_READ) || access.contains(Access::REMOTE_READ));
        // A device requires the local right for the remote one.
        rights.set(Rights::LOCAL_WRITE, rights.contains(Rights::LOCAL_WRITE) || access.writes());
        rights
            .set(Rights::REMOTE_WRITE, rights.contains(Rights::REMOTE_WRITE) || access.contains(Access::REMOTE_WRITE));
        rights
    }
}

impl Registrar for VerbsRegistrar {
    type Pin = Registration;

    fn pin(&self, range: Range, access: Access) -> io::Result<Pinned<Registration>> {
        let start = std::ptr::with_exposed_provenance_mut(range.start() as usize);
        // SAFETY: the creator of this registrar promised that devices may reach the memory.
        let pin = unsafe { Registration::new(&self.domain, start, range.len() as usize, self.rights(access)) };
        // As the kernel's number: the cache asks again after some.
        let pin = pin.map_err(|error| io::Error::from_raw_os_error(error.errno))?;
        let (local_key, remote_key) = pin.keys();
        Ok(Pinned { pin, local_key: local_key.into(), remote_key: remote_key.into() })
    }

    fn unpin(&self, pin: Registration) {
        drop(pin);
    }
}
