//! Opened devices and their protection domains.

#![expect(unsafe_code, reason = "calls to libibverbs; each block states its own reason")]

use std::collections::HashMap;
use std::ffi::CStr;
use std::mem::{MaybeUninit, offset_of};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::{fmt, fs};

use rustix::event::EventfdFlags;

use super::abi::{self, Library};
use super::alarm::Alarm;
use super::error::{ObjectPointer, VerbsError};
use crate::system::forked::Process;
use crate::wire::queue_pair::Gid;

/// An opened device.
///
/// The context reads the asynchronous events of the device ([`look`](Self::look)). After the device was lost,
/// [`lost`](Self::lost) returns the reason.
pub struct Context {
    library: &'static Library,
    ptr: ObjectPointer<abi::Context>,
    name: String,
    lost: Mutex<Option<String>>,
    /// The alarms of the completion queues, indexed by the address of the queue.
    alarms: Mutex<HashMap<usize, Weak<Alarm>>>,
    /// A descriptor that is readable after the device was lost. The device's own event cannot be used for this, because
    /// the first reader removes it for all other readers.
    gone: OwnedFd,
    /// The process that opened the device. Objects created from the device belong only to that process.
    process: Process,
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context").field("name", &self.name).field("lost", &self.lost()).finish_non_exhaustive()
    }
}

/// The limits and capabilities of a device that percale uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceLimits {
    /// The number of ports. They are numbered from 1.
    pub ports: u8,
    /// The maximum number of requests in one queue of a queue pair.
    pub requests: u32,
    /// The maximum number of entries of a completion queue.
    pub completions: u32,
    /// The maximum number of segments of a request.
    pub pieces: u32,
    /// The maximum number of segments of a read, which is lower for some devices.
    pub read_pieces: u32,
    /// The maximum number of reads of one queue pair that may be in flight, on either side.
    pub reads: u32,
    /// Whether the device supports memory windows of type 1, of type 2A, and of type 2B.
    pub windows: (bool, bool, bool),
    /// The maximum number of windows at a time.
    pub window_count: u32,
    /// The IEEE number of the vendor.
    pub vendor: u32,
}

/// The current state of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Port {
    /// Whether the port is active.
    pub active: bool,
    /// Whether the link layer is Ethernet (RoCE).
    pub ethernet: bool,
    /// The local identifier, or 0 with Ethernet.
    pub lid: u16,
    /// The MTU in the encoding of libibverbs, from 1 (256 bytes) to 5 (4,096 bytes). Each number doubles the MTU.
    pub mtu: u8,
    /// The number of entries of its GID table.
    pub gids: i32,
    /// The maximum number of bytes of one message or access.
    pub longest: u32,
}

impl Context {
    /// Opens every device that can be opened.
    ///
    /// # Errors
    /// A text, if libibverbs is missing, there is no device, or no device can be opened.
    pub fn open_all() -> Result<Vec<Arc<Self>>, String> {
        let library = Library::get()?;
        let mut count = 0;
        // SAFETY: the call writes one integer.
        let list = unsafe { (library.ibv_get_device_list)(&raw mut count) };
        let list = ObjectPointer::given("ibv_get_device_list", list).map_err(|error| match error.errno {
            libc::ENOSYS => "this kernel has no RDMA support (ib_uverbs is not loaded)".to_owned(),
            _ => error.to_string(),
        })?;
        let (mut opened, mut why) = (Vec::new(), "no RDMA device found".to_owned());
        for at in 0..usize::try_from(count).unwrap_or(0) {
            // SAFETY: the list has `count` entries.
            let device = unsafe { list.as_ptr().wrapping_add(at).read() };
            match Self::open(library, device) {
                Ok(context) => opened.push(Arc::new(context)),
                Err(error) => why = error,
            }
        }
        // SAFETY: the list was returned by the call above and is freed only once. The opened devices stay valid.
        unsafe { (library.ibv_free_device_list)(list.as_ptr()) };
        if opened.is_empty() { Err(why) } else { Ok(opened) }
    }

    fn open(library: &'static Library, device: *mut abi::Device) -> Result<Self, String> {
        let name = device.wrapping_byte_add(offset_of!(abi::Device, name)).cast();
        // SAFETY: the device belongs to a list that is not freed yet. Its name is a field of it that ends with a zero
        // byte.
        let name = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
        // SAFETY: as above.
        let ptr = unsafe { (library.ibv_open_device)(device) };
        let ptr = ObjectPointer::given("ibv_open_device", ptr).map_err(|error| format!("{name}: {error}"))?;
        let gone =
            rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(std::io::Error::from);
        let (gone, process) = match gone.and_then(|gone| Ok((gone, Process::current()?))) {
            Ok(both) => both,
            Err(error) => {
                // SAFETY: the device was opened above, and there is no other reference to it.
                unsafe { (library.ibv_close_device)(ptr.as_ptr()) };
                return Err(format!("{name}: {error}"));
            }
        };
        let context = Self { library, ptr, name, lost: Mutex::default(), alarms: Mutex::default(), gone, process };
        rustix::io::ioctl_fionbio(context.as_fd(), true).map_err(|error| format!("{}: {error}", context.name))?;
        Ok(context)
    }

    /// Returns the name of the device, as shown by `rdma link`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns whether this process opened the device. In a forked child of that process nothing is destroyed.
    #[inline]
    pub fn is_here(&self) -> bool {
        self.process.is_here()
    }

    #[inline]
    pub(super) const fn library(&self) -> &'static Library {
        self.library
    }

    pub(super) const fn as_ptr(&self) -> *mut abi::Context {
        self.ptr.as_ptr()
    }

    /// Returns the functions of the driver.
    #[inline]
    pub(super) fn ops(&self) -> &abi::ContextOps {
        // SAFETY: the context lives as long as `self`. Its table was filled when the device was opened, and does not
        // change.
        unsafe { &(*self.ptr.as_ptr()).ops }
    }

    /// Returns the limits and capabilities of the device.
    ///
    /// # Errors
    /// The error that the device reports.
    pub fn limits(&self) -> Result<DeviceLimits, VerbsError> {
        let mut attr = MaybeUninit::<abi::DeviceAttr>::zeroed();
        // SAFETY: the call fills the structure, which has the same layout as in C.
        let errno = unsafe { (self.library.ibv_query_device)(self.as_ptr(), attr.as_mut_ptr()) };
        VerbsError::check("ibv_query_device", errno)?;
        // SAFETY: the structure was zeroed, and all its fields are plain integers.
        let attr = unsafe { attr.assume_init() };
        let has = |flag| attr.device_cap_flags & flag != 0;
        let some = |count: i32| u32::try_from(count).unwrap_or(0);
        Ok(DeviceLimits {
            ports: attr.phys_port_cnt,
            requests: some(attr.max_qp_wr),
            completions: some(attr.max_cqe),
            pieces: some(attr.max_sge),
            // Drivers that do not support this field leave it at 0.
            read_pieces: if attr.max_sge_rd > 0 { some(attr.max_sge_rd.min(attr.max_sge)) } else { some(attr.max_sge) },
            reads: some(attr.max_qp_rd_atom.min(attr.max_qp_init_rd_atom)),
            windows: (
                has(abi::DEVICE_MEM_WINDOW),
                has(abi::DEVICE_MEM_WINDOW_TYPE_2A),
                has(abi::DEVICE_MEM_WINDOW_TYPE_2B),
            ),
            window_count: some(attr.max_mw),
            vendor: attr.vendor_id,
        })
    }

    /// Returns the state of a port.
    ///
    /// # Errors
    /// The error that the device reports.
    pub fn port(&self, number: u8) -> Result<Port, VerbsError> {
        let mut attr = MaybeUninit::<abi::PortAttr>::zeroed();
        // SAFETY: the call fills the first fields of the structure, which has the same layout as in C, and leaves the
        // last ones unchanged.
        let errno = unsafe { (self.library.ibv_query_port)(self.as_ptr(), number, attr.as_mut_ptr()) };
        VerbsError::check("ibv_query_port", errno)?;
        // SAFETY: the structure was zeroed, and all its fields are plain integers.
        let attr = unsafe { attr.assume_init() };
        Ok(Port {
            active: attr.state == abi::PORT_ACTIVE,
            ethernet: attr.link_layer == abi::LINK_LAYER_ETHERNET,
            lid: attr.lid,
            mtu: u8::try_from(attr.active_mtu.clamp(1, abi::MTU_4096)).unwrap_or(1),
            gids: attr.gid_tbl_len,
            longest: attr.max_msg_sz,
        })
    }

    /// Returns an address of a port. It is all zero if that entry of the GID table is free.
    ///
    /// # Errors
    /// The error that the device reports.
    pub fn gid(&self, port: u8, index: i32) -> Result<Gid, VerbsError> {
        let mut gid = abi::AlignedGid::default();
        // SAFETY: the call writes one address to a variable with the required alignment.
        let failed = unsafe { (self.library.ibv_query_gid)(self.as_ptr(), port, index, &raw mut gid.raw) };
        if failed == 0 { Ok(gid.raw) } else { Err(VerbsError::last("ibv_query_gid")) }
    }

    /// Returns the address at which peers should reach a port, and its index in the port's GID table, or `None` if the
    /// port has no address. With Ethernet, an address of RoCE v2, which IP can route, is preferred, and IPv4 addresses
    /// come first. Otherwise the first address is returned.
    #[must_use]
    pub fn address(&self, number: u8, port: &Port) -> Option<(u8, Gid)> {
        let gids = (0..port.gids.min(255)).filter_map(|index| {
            let gid = self.gid(number, index).ok().filter(|gid| *gid != Gid::default())?;
            Some((u8::try_from(index).ok()?, gid))
        });
        if !port.ethernet {
            return gids.take(1).next();
        }
        gids.min_by_key(|(index, gid)| {
            let ip = std::net::Ipv6Addr::from(*gid);
            let local = gid[0] == 0xfe && gid[1] & 0xc0 == 0x80;
            (!is_v2(self.name(), number, *index), local, ip.to_ipv4_mapped().is_none(), *index)
        })
    }

    /// Reads the asynchronous events that the device has reported since the last call. Never blocks.
    pub fn look(&self) {
        loop {
            let mut event = abi::AsyncEvent { element: 0, event_type: 0 };
            // SAFETY: the call writes one event; its descriptor is non-blocking.
            if unsafe { (self.library.ibv_get_async_event)(self.as_ptr(), &raw mut event) } != 0 {
                return;
            }
            crate::later::later!(debug: device = self.name, event = event.event_type, "the device reports an event");
            if event.event_type == abi::EVENT_CQ_ERR {
                self.queue_failed(event.element as usize);
            }
            if event.event_type == abi::EVENT_DEVICE_FATAL {
                let why = format!("the RDMA device {} failed or was removed", self.name);
                self.lost.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(why);
                // The counter cannot overflow: a device is lost a few times at most.
                if let Err(error) = rustix::io::write(&self.gone, &1u64.to_ne_bytes()) {
                    crate::later::later!(error: %error, "some links were not notified of the device failure");
                }
            }
            // SAFETY: the event was just read. The object to which it refers is destroyed only after the event is
            // acknowledged (the destroying call waits).
            unsafe { (self.library.ibv_ack_async_event)(&raw mut event) };
        }
    }

    fn alarms(&self) -> MutexGuard<'_, HashMap<usize, Weak<Alarm>>> {
        self.alarms.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers this alarm, which is called if the queue fails.
    pub(super) fn watch(&self, queue: *mut abi::Cq, alarm: &Arc<Alarm>) {
        self.alarms().insert(queue.addr(), Arc::downgrade(alarm));
    }

    /// Removes the alarm of a queue that is about to be destroyed.
    pub(super) fn unwatch_events(&self, queue: *mut abi::Cq) {
        self.alarms().remove(&queue.addr());
    }

    /// Handles the failure of one queue. The device and its other queues still work.
    #[cold]
    fn queue_failed(&self, queue: usize) {
        let alarm = self.alarms().get(&queue).and_then(Weak::upgrade);
        crate::later::later!(error: device = self.name, "a completion queue failed: its connection is closed");
        if let Some(alarm) = alarm {
            alarm.ring();
        }
    }

    /// Returns a descriptor that becomes readable for all its watchers once the device is lost.
    #[must_use]
    pub fn gone(&self) -> BorrowedFd<'_> {
        self.gone.as_fd()
    }

    /// Returns the reason why the device was lost, if [`look`](Self::look) has read an event that reports the loss.
    #[must_use]
    pub fn lost(&self) -> Option<String> {
        self.lost.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl AsFd for Context {
    /// Returns a descriptor that is readable when the device has reported an asynchronous event.
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the context lives as long as `self`.
        let fd = unsafe { (*self.ptr.as_ptr()).async_fd };
        // SAFETY: the descriptor is open as long as the context exists.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if !self.is_here() {
            return; // The device belongs to the parent.
        }
        // SAFETY: everything created from the context keeps it alive, so nothing is left. It is closed only once.
        let errno = unsafe { (self.library.ibv_close_device)(self.as_ptr()) };
        note("ibv_close_device", errno);
    }
}

/// Returns whether an address is a RoCE v2 address. Only sysfs reports this with every version of libibverbs.
fn is_v2(device: &str, port: u8, index: u8) -> bool {
    let path = format!("/sys/class/infiniband/{device}/ports/{port}/gid_attrs/types/{index}");
    fs::read_to_string(path).is_ok_and(|kind| kind.trim() == "RoCE v2")
}

/// Logs that an object could not be destroyed and is leaked.
pub(super) fn note(call: &'static str, errno: i32) {
    if let Err(error) = VerbsError::check(call, errno) {
        crate::later::later!(error: %error, "cannot destroy a verbs object");
    }
}

/// A protection domain. Objects can be used together only if they belong to the same protection domain.
#[derive(Debug)]
pub struct ProtectionDomain {
    ptr: ObjectPointer<abi::Pd>,
    context: Arc<Context>,
}

impl ProtectionDomain {
    /// Creates a protection domain.
    ///
    /// # Errors
    /// The error that the device reports.
    pub fn new(context: &Arc<Context>) -> Result<Arc<Self>, VerbsError> {
        // SAFETY: the context is open.
        let ptr = unsafe { (context.library.ibv_alloc_pd)(context.as_ptr()) };
        let ptr = ObjectPointer::given("ibv_alloc_pd", ptr)?;
        Ok(Arc::new(Self { ptr, context: Arc::clone(context) }))
    }

    /// Returns the device.
    #[must_use]
    #[inline]
    pub const fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub(super) const fn as_ptr(&self) -> *mut abi::Pd {
        self.ptr.as_ptr()
    }
}

impl Drop for ProtectionDomain {
    fn drop(&mut self) {
        if !self.context.is_here() {
            return;
        }
        // SAFETY: everything created in the domain keeps it alive, so nothing is left. It is deallocated only once.
        let errno = unsafe { (self.context.library.ibv_dealloc_pd)(self.as_ptr()) };
        note("ibv_dealloc_pd", errno);
    }
}
