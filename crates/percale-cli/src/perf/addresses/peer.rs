//! libfabric's tcp provider, from the installed libfabric. The library is opened at run time, not linked.
//!
//! Only the required functions and fields are declared. The declared beginnings of structures are the same in all
//! versions (rdma/fabric.h).

#![expect(unsafe_code, reason = "a C library's functions and structures; each block states its own reason")]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::hint::black_box;
use std::ptr::null_mut;

use crate::failure::{Failure, Result};
use crate::perf::generator::next;

type Pointer = *mut c_void;

const API: u32 = 1 << 16 | 14;
const FI_MSG: u64 = 1 << 1;
const FI_EP_RDM: u32 = 3;
const FI_AV_TABLE: u32 = 2;

/// The beginning of `struct fi_info`.
#[repr(C)]
struct Info {
    next: *mut Self,
    caps: u64,
    mode: u64,
    addr_format: u32,
    src_addrlen: usize,
    dest_addrlen: usize,
    src_addr: Pointer,
    dest_addr: Pointer,
    handle: Pointer,
    tx_attr: Pointer,
    rx_attr: Pointer,
    ep_attr: *mut u32,
    domain_attr: Pointer,
    fabric_attr: *mut FabricAttr,
}

#[repr(C)]
struct FabricAttr {
    fabric: Pointer,
    name: *mut c_char,
    prov_name: *mut c_char,
}

/// An object: a `struct fid`, and the function table of its class.
#[repr(C)]
struct Object<Ops> {
    class: usize,
    context: Pointer,
    common: *const Common,
    ops: *const Ops,
}

/// `struct fi_ops`.
#[repr(C)]
struct Common {
    size: usize,
    close: unsafe extern "C" fn(Pointer) -> c_int,
}

#[repr(C)]
struct FabricOps {
    size: usize,
    domain: unsafe extern "C" fn(Pointer, *mut Info, *mut *mut Object<DomainOps>, Pointer) -> c_int,
}

#[repr(C)]
struct DomainOps {
    size: usize,
    av_open: unsafe extern "C" fn(Pointer, *mut AvAttr, *mut *mut Object<AvOps>, Pointer) -> c_int,
}

#[repr(C)]
struct AvAttr {
    kind: u32,
    rx_ctx_bits: c_int,
    count: usize,
    ep_per_node: usize,
    name: Pointer,
    map_addr: Pointer,
    flags: u64,
}

#[repr(C)]
struct AvOps {
    size: usize,
    insert: unsafe extern "C" fn(Pointer, *const c_void, usize, *mut u64, u64, Pointer) -> c_int,
    insertsvc: Pointer,
    insertsym:
        unsafe extern "C" fn(Pointer, *const c_char, usize, *const c_char, usize, *mut u64, u64, Pointer) -> c_int,
    remove: Pointer,
    lookup: unsafe extern "C" fn(Pointer, u64, Pointer, *mut usize) -> c_int,
}

/// An open domain of the tcp provider. The domain and the library stay open.
pub(super) struct Peer {
    domain: *mut Object<DomainOps>,
    /// The version of the library, with the major number in the upper half.
    version: u32,
}

/// An address vector of the provider.
pub(super) struct Vector {
    av: *mut Object<AvOps>,
}

/// Makes the allocator return free memory to the system.
pub(super) fn give_back() {
    // SAFETY: the call does not affect memory in use.
    unsafe { libc::malloc_trim(0) };
}

/// Returns a function of the library.
fn symbol(library: Pointer, name: &CStr) -> Result<Pointer, String> {
    // SAFETY: the library is open, and the text ends with a zero byte.
    let found = unsafe { libc::dlsym(library, name.as_ptr()) };
    if found.is_null() { Err(format!("the library has no function {}", name.to_string_lossy())) } else { Ok(found) }
}

impl Peer {
    /// Opens the provider, or returns the reason why it cannot be measured.
    pub(super) fn open() -> Result<Self, String> {
        // SAFETY: the text ends with a zero byte. The initialization of libfabric affects only its own state.
        let library = unsafe { libc::dlopen(c"libfabric.so.1".as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if library.is_null() {
            return Err("libfabric is not installed".into());
        }
        type Dup = unsafe extern "C" fn(*const Info) -> *mut Info;
        type Get = unsafe extern "C" fn(u32, Pointer, Pointer, u64, *const Info, *mut *mut Info) -> c_int;
        type Open = unsafe extern "C" fn(*mut FabricAttr, *mut *mut Object<FabricOps>, Pointer) -> c_int;
        // SAFETY: this is the function's type (fi_getinfo(3)).
        let dup: Dup = unsafe { std::mem::transmute(symbol(library, c"fi_dupinfo")?) };
        // SAFETY: as above.
        let get: Get = unsafe { std::mem::transmute(symbol(library, c"fi_getinfo")?) };
        // SAFETY: as above (fi_fabric(3)).
        let open: Open = unsafe { std::mem::transmute(symbol(library, c"fi_fabric")?) };
        // SAFETY: with a null pointer, the function makes an empty info with all of its parts.
        let hints = unsafe { dup(std::ptr::null()) };
        // SAFETY: if the info exists, this function has exclusive access.
        let hints = unsafe { hints.as_mut() }.ok_or("out of memory")?;
        hints.caps = FI_MSG;
        // SAFETY: the endpoint's attributes begin with their type.
        unsafe { hints.ep_attr.write(FI_EP_RDM) };
        // SAFETY: the text ends with a zero byte. The library frees the copy.
        let name = unsafe { libc::strdup(c"tcp".as_ptr()) };
        // SAFETY: the info has all of its parts.
        let fabric_attr = unsafe { &mut *hints.fabric_attr };
        fabric_attr.prov_name = name;
        let (mut info, mut fabric, mut domain) = (null_mut(), null_mut(), null_mut());
        // SAFETY: the hints are complete, and `info` has room for the result.
        let code = unsafe { get(API, null_mut(), null_mut(), 0, hints, &raw mut info) };
        if code != 0 {
            return Err(format!("fi_getinfo(tcp) failed: {code}"));
        }
        // SAFETY: the call above returned the info.
        let attributes = unsafe { (*info).fabric_attr };
        // SAFETY: the attributes come from the provider, and `fabric` has room for the result.
        let code = unsafe { open(attributes, &raw mut fabric, null_mut()) };
        if code != 0 {
            return Err(format!("fi_fabric failed: {code}"));
        }
        // SAFETY: the fabric is open.
        let ops = unsafe { (*fabric).ops };
        // SAFETY: an open fabric has a function table.
        let call = unsafe { (*ops).domain };
        // SAFETY: the fabric is open, the info belongs to it, and `domain` has room for the result.
        let code = unsafe { call(fabric.cast(), info, &raw mut domain, null_mut()) };
        if code != 0 {
            return Err(format!("fi_domain failed: {code}"));
        }
        // SAFETY: this is the function's type (fi_version(3)).
        let version: unsafe extern "C" fn() -> u32 = unsafe { std::mem::transmute(symbol(library, c"fi_version")?) };
        // SAFETY: the function only returns a number.
        Ok(Self { domain, version: unsafe { version() } })
    }

    /// Returns the API version of the library, such as 1.20.
    pub(super) fn version(&self) -> String {
        format!("{}.{}", self.version >> 16, self.version & 0xffff)
    }

    /// Makes an address vector for `count` addresses.
    pub(super) fn vector(&self, count: usize) -> Result<Vector> {
        let (name, map_addr) = (null_mut(), null_mut());
        let mut attr = AvAttr { kind: FI_AV_TABLE, rx_ctx_bits: 0, count, ep_per_node: 0, name, map_addr, flags: 0 };
        let mut av = null_mut();
        // SAFETY: the domain is open.
        let ops = unsafe { (*self.domain).ops };
        // SAFETY: an open domain has a function table.
        let open = unsafe { (*ops).av_open };
        // SAFETY: the domain is open, the attributes are complete, and `av` has room for the result.
        let code = unsafe { open(self.domain.cast(), &raw mut attr, &raw mut av, null_mut()) };
        if code == 0 { Ok(Vector { av }) } else { Err(failed("fi_av_open", code)) }
    }
}

fn failed(what: &str, code: c_int) -> Failure {
    Failure::Data(format!("libfabric: {what} failed: {code}"))
}

impl Vector {
    fn ops(&self) -> &AvOps {
        // SAFETY: the vector is open.
        let ops = unsafe { (*self.av).ops };
        // SAFETY: the vector has a function table as long as it is open.
        unsafe { &*ops }
    }

    /// Inserts `count` addresses, starting with `first`.
    pub(super) fn insert(&self, first: u32, port: u16, count: usize) -> Result<()> {
        const AT_ONCE: usize = 1000;
        let mut done = 0;
        let mut some: Vec<[u8; 16]> = Vec::with_capacity(AT_ONCE);
        while done < count {
            some.clear();
            some.extend((first + done as u32..).take(AT_ONCE.min(count - done)).map(|bits| {
                let mut address = [0; 16];
                address[..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
                address[2..4].copy_from_slice(&port.to_be_bytes());
                address[4..8].copy_from_slice(&bits.to_be_bytes());
                address
            }));
            // SAFETY: the array has the given number of addresses. A table (FI_AV_TABLE) need not return the numbers of
            // addresses.
            let inserted = unsafe {
                (self.ops().insert)(self.av.cast(), some.as_ptr().cast(), some.len(), null_mut(), 0, null_mut())
            };
            if inserted != some.len() as c_int {
                return Err(failed("fi_av_insert", inserted));
            }
            done += some.len();
        }
        Ok(())
    }

    /// Inserts a range.
    pub(super) fn insert_symmetric(&self, node: &CStr, nodes: usize, service: &CStr, services: usize) -> Result<()> {
        let (insert, av) = (self.ops().insertsym, self.av.cast());
        let (node, service) = (node.as_ptr(), service.as_ptr());
        // SAFETY: the texts end with a zero byte. A table need not return the numbers of addresses.
        let inserted = unsafe { insert(av, node, nodes, service, services, null_mut(), 0, null_mut()) };
        if inserted == (nodes * services) as c_int { Ok(()) } else { Err(failed("fi_av_insertsym", inserted)) }
    }

    /// Looks up `times` random addresses out of `count`.
    pub(super) fn look_up(&self, count: u64, times: u64) -> Result<()> {
        let mut state = 1;
        let mut address = [0u8; 32];
        for _ in 0..times {
            let mut len = address.len();
            let number = next(&mut state, count);
            // SAFETY: there is room for an address of the given length.
            let code =
                unsafe { (self.ops().lookup)(self.av.cast(), number, address.as_mut_ptr().cast(), &raw mut len) };
            if code != 0 {
                return Err(failed("fi_av_lookup", code));
            }
        }
        black_box(address);
        Ok(())
    }
}

impl Drop for Vector {
    fn drop(&mut self) {
        // SAFETY: the vector is open.
        let common = unsafe { (*self.av).common };
        // SAFETY: an open vector has a function table.
        let close = unsafe { (*common).close };
        // SAFETY: the vector is not used afterwards.
        let code = unsafe { close(self.av.cast()) };
        debug_assert_eq!(code, 0, "closing an address vector");
    }
}
