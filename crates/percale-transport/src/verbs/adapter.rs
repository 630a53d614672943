//! The choice of the device and port, and the reasons if none can be used.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::Path;
use super::makers::{Makers, makers};
use super::window_use::WindowUse;
use super::wire_pair;
use super::{Context, DeviceLimits, Port, ProtectionDomain};
use super::{MemoryRegion, Rights};
use crate::system::random::random;
use crate::wire::queue_pair::{Gid, QueuePairEnd};

/// The parts of a device that a domain needs: an active port, an address of it, and a protection domain.
#[derive(Debug)]
pub struct Adapter {
    domain: Arc<ProtectionDomain>,
    limits: DeviceLimits,
    number: u8,
    place: Mutex<PortState>,
    makers: Makers,
    windows: Option<WindowUse>,
    /// The devices that precede this one and cannot be used, with the reasons.
    skipped: Vec<String>,
    /// The addresses from which no acknowledgement arrived, with the time.
    unreached: Mutex<HashMap<Gid, Instant>>,
}

/// If no acknowledgement has arrived from an address, the address is not tried again for this time.
const UNREACHED: Duration = Duration::from_secs(60);
/// The maximum number of such addresses that are remembered.
const REMEMBERED: usize = 1024;

/// The last state of a port that was read. Its address may change.
#[derive(Clone, Copy, Debug)]
struct PortState {
    port: Port,
    gid_index: u8,
    gid: Gid,
}

impl PortState {
    /// Reads the current state of the port.
    fn now(context: &Context, number: u8) -> Result<Self, String> {
        let port = context.port(number).map_err(|error| error.to_string())?;
        if !port.active {
            return Err("no port is active".to_owned());
        }
        let (gid_index, gid) = context
            .address(number, &port)
            .ok_or_else(|| format!("port {number} is active but has no address; does its interface have one?"))?;
        Ok(Self { port, gid_index, gid })
    }
}

impl Adapter {
    /// Opens the first active port of the first device that can be used.
    ///
    /// # Errors
    /// A text that names the missing component.
    pub fn open() -> Result<Arc<Self>, String> {
        let contexts = Context::open_all()?;
        let mut why = Vec::new();
        for context in contexts {
            match Self::of(&context) {
                Ok(adapter) => return Ok(Arc::new(Self { skipped: why, ..adapter })),
                Err(error) => why.push(format!("{}: {error}", context.name())),
            }
        }
        Err(why.join("; "))
    }

    /// Opens the adapter of the device with this name.
    #[cfg(test)]
    pub(super) fn of_device(name: &str) -> Result<Arc<Self>, String> {
        let found = Context::open_all()?.into_iter().find(|context| context.name() == name);
        Self::of(&found.ok_or_else(|| format!("device {name} does not exist"))?).map(Arc::new)
    }

    fn of(context: &Arc<Context>) -> Result<Self, String> {
        let limits = context.limits().map_err(|error| error.to_string())?;
        wire_pair::suffices(&limits)?;
        let mut why = "no port is active".to_owned();
        for number in 1..=limits.ports {
            let place = match PortState::now(context, number) {
                Ok(place) => Mutex::new(place),
                Err(error) => {
                    why = error;
                    continue;
                }
            };
            let domain = ProtectionDomain::new(context).map_err(|error| error.to_string())?;
            MemoryRegion::new(&domain, 1, Rights::LOCAL_WRITE).map_err(|error| unregistered(&error))?;
            wire_pair::try_pair(&domain)
                .map_err(|error| format!("it does not support reliable connections ({error})"))?;
            let windows = WindowUse::of(&limits);
            return Ok(Self {
                domain,
                limits,
                number,
                place,
                makers: makers(),
                windows,
                skipped: Vec::new(),
                unreached: Mutex::default(),
            });
        }
        Err(why)
    }

    /// Returns whether this process opened the device, and is not a forked child of the process that opened it.
    #[doc(hidden)]
    pub fn is_here(&self) -> bool {
        self.domain.context().is_here()
    }

    /// Returns the protection domain.
    #[must_use]
    pub const fn domain(&self) -> &Arc<ProtectionDomain> {
        &self.domain
    }

    /// Returns the thread pool that creates queue pairs for accesses.
    pub(super) const fn makers(&self) -> &Makers {
        &self.makers
    }

    /// Returns how the windows of the device are used, or `None` if they are not used.
    pub(super) const fn windows(&self) -> Option<&WindowUse> {
        self.windows.as_ref()
    }

    /// Returns the limits of the device.
    pub(super) const fn limits(&self) -> &DeviceLimits {
        &self.limits
    }

    fn place(&self) -> MutexGuard<'_, PortState> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the state of the port again, because its address may have changed since it was last used. Called for each
    /// queue pair that is created.
    ///
    /// # Errors
    /// If the port is not active, or has no address.
    pub(super) fn look_again(&self) -> io::Result<Path> {
        let now = PortState::now(self.domain.context(), self.number)
            .map_err(|why| io::Error::new(io::ErrorKind::NetworkDown, why))?;
        *self.place() = now;
        Ok(self.path())
    }

    /// Returns the port and its address in the form that queue pairs need.
    #[must_use]
    pub fn path(&self) -> Path {
        let place = self.place();
        Path { port: self.number, gid_index: place.gid_index, ethernet: place.port.ethernet }
    }

    /// Returns the maximum number of bytes of one message or access.
    #[must_use]
    pub fn longest(&self) -> u32 {
        self.place().port.longest
    }

    /// Records that no acknowledgement arrived from this address.
    pub(crate) fn note_unreached(&self, gid: Gid) {
        let mut unreached = self.unreached.lock().unwrap_or_else(PoisonError::into_inner);
        unreached.retain(|_, since| since.elapsed() < UNREACHED);
        if unreached.len() < REMEMBERED {
            unreached.insert(gid, Instant::now());
        }
    }

    /// Returns whether [`note_unreached`](Self::note_unreached) was called for the address a short time ago.
    pub(crate) fn was_unreached(&self, gid: Gid) -> bool {
        let unreached = self.unreached.lock().unwrap_or_else(PoisonError::into_inner);
        unreached.get(&gid).is_some_and(|since| since.elapsed() < UNREACHED)
    }

    /// Returns the data that a peer needs to connect to a queue pair of this adapter.
    ///
    /// # Errors
    /// If the kernel provides no random bytes.
    pub fn end(&self, pair: u32) -> io::Result<QueuePairEnd> {
        let sequence = u32::from_le_bytes(random()?) & 0xff_ffff;
        let PortState { port, gid, .. } = *self.place();
        Ok(QueuePairEnd { pair, sequence, lid: port.lid, gid, mtu: port.mtu })
    }

    /// Describes the device, the port and the address as text.
    #[must_use]
    pub fn describe(&self) -> String {
        let PortState { port, gid, .. } = *self.place();
        let kind = if port.ethernet { "RoCE" } else { "InfiniBand" };
        let gid = std::net::Ipv6Addr::from(gid);
        let gid = gid.to_ipv4_mapped().map_or_else(|| gid.to_string(), |v4| v4.to_string());
        let bytes = 128u32 << port.mtu;
        format!("{} port {} ({kind}), address {gid}, MTU {bytes}", self.domain.context().name(), self.number)
    }

    /// Describes the adapter like [`describe`](Self::describe), and adds the devices that cannot be used, with the
    /// reasons.
    #[must_use]
    pub fn describe_all(&self) -> String {
        let skipped = self.skipped.iter().map(|why| format!("; skipped: {why}"));
        std::iter::once(self.describe()).chain(skipped).collect()
    }
}

/// Returns the reason why memory cannot be registered, which usually is the limit of locked memory.
fn unregistered(error: &std::io::Error) -> String {
    match crate::local_memory::kernel::limit(libc::RLIMIT_MEMLOCK) {
        Some(bytes) => format!("memory cannot be registered ({error}); {bytes} bytes may be locked (ulimit -l)"),
        None => format!("memory cannot be registered ({error})"),
    }
}
