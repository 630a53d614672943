//! A registrar that registers any memory of the process with a device.

#![expect(unsafe_code, reason = "registers memory that it does not own; each block states its own reason")]

use std::io;
use std::sync::Arc;

use pindown::{Access, Pinned, Range, Registrar};

use super::context::ProtectionDomain;
use super::region::Rights;
use super::registration::Registration;

/// Registers memory in a protection domain. Clones are equivalent.
///
/// The keys of a registration are the device's: the local key for requests of this process, and the remote key for
/// peers. The device reuses keys after a while. A registration refers to the pages that were at the addresses when it
/// was made, even if other pages are mapped there later. So reusing a registration is safe only with a cache that
/// monitors such changes.
#[derive(Clone, Debug)]
pub struct VerbsRegistrar {
    domain: Arc<ProtectionDomain>,
    always: Rights,
}

impl VerbsRegistrar {
    /// Creates a registrar for a protection domain. Each registration has the rights in `always` in addition to the
    /// requested ones.
    ///
    /// # Safety
    /// Devices and peers may read and write the memory of each registration, as far as its rights allow, until the
    /// registration is released. The memory must not contain any value of the program for which this is not sound.
    #[must_use]
    pub const unsafe fn new(domain: Arc<ProtectionDomain>, always: Rights) -> Self {
        Self { domain, always }
    }

    fn rights(&self, access: Access) -> Rights {
        let mut rights = self.always;
        rights.set(Rights::REMOTE_READ, rights.contains(Rights::REMOTE_READ) || access.contains(Access::REMOTE_READ));
        // A device requires the local right in addition to the remote one.
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
        // SAFETY: the creator of this registrar guarantees that devices may access the memory.
        let pin = unsafe { Registration::new(&self.domain, start, range.len() as usize, self.rights(access)) };
        // The cache needs the error number, because it tries again after some errors.
        let pin = pin.map_err(|error| io::Error::from_raw_os_error(error.errno))?;
        let (local_key, remote_key) = pin.keys();
        Ok(Pinned { pin, local_key: local_key.into(), remote_key: remote_key.into() })
    }

    fn unpin(&self, pin: Registration) {
        drop(pin);
    }
}
