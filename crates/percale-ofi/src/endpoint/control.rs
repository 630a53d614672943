//! Options, names and commands of an endpoint (fi_endpoint(3), fi_cm(3), fi_control(3)).

use std::ffi::{c_int, c_void};
use std::sync::{Arc, OnceLock};

use super::flags::Direction;
use super::{Endpoint, connection, flags, group};
use crate::abi::{
    FI_ALIAS, FI_ENABLE, FI_EOPBADSTATE, FI_EOPNOTSUPP, FI_ETOOSMALL, FI_GETOPSFLAG, FI_HMEM_CUDA, FI_LOG_EP_CTRL,
    FI_OPT_CM_DATA_SIZE, FI_OPT_CUDA_API_PERMITTED, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, FI_OPT_XPU_TRIGGER,
    FI_RECV, FI_SETOPSFLAG, FI_TRANSMIT, fi_alias, fi_ops_cm, fi_ops_ep, fid, fid_ep, fid_t,
};
use crate::address::{self, SocketAddress};
use crate::log;
use crate::object::{Object, code};
use crate::registration::devices;

pub(super) static OPS: fi_ops_ep = fi_ops_ep {
    cancel: Some(cancel),
    getopt: Some(getopt),
    setopt: Some(setopt),
    rx_size_left: Some(size_left),
    tx_size_left: Some(size_left),
    ..fi_ops_ep::REFUSING
};
pub(super) static CM: fi_ops_cm = fi_ops_cm {
    setname: Some(setname),
    getname: Some(getname),
    getpeer: Some(connection::getpeer),
    connect: Some(connection::connect),
    accept: Some(connection::accept),
    shutdown: Some(connection::shutdown),
    join: Some(group::join),
    ..fi_ops_cm::REFUSING
};

/// The number of operations that may be posted at once, as reported to applications. The queues grow (fi_endpoint(3),
/// `size`).
pub(crate) const DEPTH: usize = 1 << 16;

unsafe extern "C" fn cancel(ep: fid_t, context: *mut c_void) -> isize {
    // SAFETY: the pointer is an endpoint of this provider.
    match unsafe { Endpoint::of(ep) }.port() {
        Ok(port) if port.cancel(super::local::context(context)) => 0,
        Ok(_) => -(libc::ENOENT as isize),
        Err(refused) => refused,
    }
}

unsafe extern "C" fn size_left(ep: *mut fid_ep) -> isize {
    // SAFETY: the pointer is an endpoint of this provider.
    unsafe { Endpoint::of(ep) }.port().map_or_else(|refused| refused, |_| DEPTH as isize)
}

unsafe extern "C" fn getopt(ep: fid_t, level: c_int, option: c_int, value: *mut c_void, len: *mut usize) -> c_int {
    // SAFETY: the pointer is an endpoint of this provider.
    let endpoint = unsafe { Endpoint::of(ep) };
    let answer = match (level, option) {
        (FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV) => endpoint.setup.multi_minimum(),
        (FI_OPT_ENDPOINT, FI_OPT_CM_DATA_SIZE) => percale::endpoint::connection::DATA_LIMIT,
        // SAFETY: with this option the client passes such a structure.
        (FI_OPT_ENDPOINT, FI_OPT_XPU_TRIGGER) => return unsafe { endpoint.xpu_needs(value, len) },
        _ => return -libc::ENOPROTOOPT,
    };
    // SAFETY: the client passes the size of its buffer, and gets the size that is used or needed.
    if unsafe { len.replace(size_of::<usize>()) } < size_of::<usize>() {
        return -FI_ETOOSMALL;
    }
    // SAFETY: the client passed a writable location for a size_t.
    unsafe { value.cast::<usize>().write_unaligned(answer) };
    0
}

unsafe extern "C" fn setopt(ep: fid_t, level: c_int, option: c_int, value: *const c_void, len: usize) -> c_int {
    // SAFETY: the pointer is an endpoint of this provider.
    let endpoint = unsafe { Endpoint::of(ep) };
    match (level, option) {
        (FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV) if len >= size_of::<usize>() => {
            // SAFETY: the client passed a size_t.
            endpoint.setup.set_multi_minimum(unsafe { value.cast::<usize>().read_unaligned() });
            0
        }
        (FI_OPT_ENDPOINT, FI_OPT_CUDA_API_PERMITTED) if len >= 1 => {
            // SAFETY: the client passed a bool. It is read as a byte, because it may have any value.
            let permitted = unsafe { value.cast::<u8>().read() };
            cuda_calls(permitted != 0)
        }
        (FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV | FI_OPT_CUDA_API_PERMITTED) => -libc::EINVAL,
        _ => -libc::ENOPROTOOPT,
    }
}

/// Implements FI_OPT_CUDA_API_PERMITTED. CUDA calls for CUDA memory cannot be disabled and need not be enabled. Without
/// a CUDA device, fi_endpoint(3) requires an error.
fn cuda_calls(permitted: bool) -> c_int {
    match devices::device(FI_HMEM_CUDA, 0) {
        Err(_) => -libc::EINVAL,
        Ok(_) if permitted => 0,
        Ok(_) => -FI_EOPNOTSUPP,
    }
}

/// Sets the address that the endpoint will have.
unsafe extern "C" fn setname(ep: fid_t, address: *mut c_void, len: usize) -> c_int {
    // SAFETY: the pointer is an endpoint of this provider, and the client passed a valid address.
    let (endpoint, address) = unsafe { (Endpoint::of(ep), address::read(address, len)) };
    let Some(address) = address else { return -libc::EINVAL };
    if endpoint.setup.set_source(address) { 0 } else { -FI_EOPBADSTATE }
}

unsafe extern "C" fn getname(ep: fid_t, to: *mut c_void, len: *mut usize) -> c_int {
    // SAFETY: the pointer is an endpoint of this provider.
    let Some(address) = (unsafe { Endpoint::of(ep) }).setup.name() else {
        log::warning!(FI_LOG_EP_CTRL, "fi_getname: the endpoint has no address before it is enabled");
        return -FI_EOPBADSTATE;
    };
    // SAFETY: the client's buffer has the length that the client passed.
    if unsafe { SocketAddress::from(address).copy(to, len) } { 0 } else { -FI_ETOOSMALL }
}

pub(super) unsafe extern "C" fn control(ep: *mut fid, command: c_int, argument: *mut c_void) -> c_int {
    // SAFETY: the pointer is an endpoint of this provider.
    let endpoint = unsafe { Endpoint::of(ep) };
    match command {
        FI_ENABLE => code(endpoint.enable()),
        FI_ALIAS => {
            // SAFETY: the argument of FI_ALIAS is an `fi_alias`.
            let alias = unsafe { &*argument.cast::<fi_alias>() };
            match endpoint.alias(alias.flags) {
                Ok(endpoint) => endpoint.hand_out(alias.fid.cast()),
                Err(code) => -code,
            }
        }
        FI_GETOPSFLAG | FI_SETOPSFLAG => {
            let place = argument.cast::<u64>();
            // SAFETY: the argument of both commands is a 64-bit word of flags.
            let given = unsafe { place.read() };
            let direction = match given & (FI_TRANSMIT | FI_RECV) {
                FI_TRANSMIT => &endpoint.transmit,
                FI_RECV => &endpoint.receive,
                _ => return -libc::EINVAL,
            };
            if command == FI_SETOPSFLAG {
                let defaults = given & !(FI_TRANSMIT | FI_RECV);
                if let Err(code) = flags::check("fi_control: FI_SETOPSFLAG", defaults) {
                    return -code;
                }
                direction.set_defaults(defaults);
            } else {
                // SAFETY: as above.
                unsafe { place.write(direction.defaults()) };
            }
            0
        }
        _ => -libc::ENOSYS,
    }
}

impl Endpoint {
    /// Creates another object for the same endpoint, with other default flags for its sends or receives
    /// (fi_ep_alias(3)).
    fn alias(&self, flags: u64) -> Result<Self, i32> {
        let (mut transmit, mut receive) = (self.transmit.defaults(), self.receive.defaults());
        match flags & (FI_TRANSMIT | FI_RECV) {
            FI_TRANSMIT => transmit = flags & !FI_TRANSMIT,
            FI_RECV => receive = flags & !FI_RECV,
            _ => return Err(libc::EINVAL),
        }
        flags::check("fi_ep_alias", flags & !(FI_TRANSMIT | FI_RECV))?;
        let devices = self.setup.domain().devices;
        let alias = Self {
            fid: self.fid,
            port: OnceLock::new(),
            directed: self.directed,
            single: self.single,
            triggers: self.triggers,
            xpu: self.xpu,
            groups: self.groups,
            transmit: Direction::new(transmit, devices),
            receive: Direction::new(receive, devices),
            setup: Arc::clone(&self.setup),
        };
        Ok(alias)
    }
}

#[cfg(test)]
mod tests {
    use std::ptr::null_mut;

    use super::*;
    use crate::abi::{FI_COMPLETION, FI_DELIVERY_COMPLETE};
    use crate::testing::{self, Client};

    /// Returns the default flags of a direction.
    fn flags_of(object: *mut fid, direction: u64) -> u64 {
        let mut flags = direction;
        assert_eq!(testing::control(object, FI_GETOPSFLAG, (&raw mut flags).cast()), 0);
        flags
    }

    #[test]
    fn alias_has_other_flags_for_one_direction_only() {
        let client = Client::open(|_| ());
        let (vector, queue) = (client.vector(), client.queue());
        let ep = client.endpoint(vector, queue, queue);
        let wanted = [(FI_TRANSMIT, FI_DELIVERY_COMPLETE, FI_RECV), (FI_RECV, FI_COMPLETION, FI_TRANSMIT)];
        for (direction, flags, other) in wanted {
            let mut alias = null_mut();
            let mut wish = fi_alias { fid: &raw mut alias, flags: direction | flags };
            assert_eq!(testing::control(ep, FI_ALIAS, (&raw mut wish).cast()), 0);
            assert_eq!((flags_of(alias, direction), flags_of(alias, other)), (flags, 0));
            assert_eq!((flags_of(ep.cast(), direction), flags_of(ep.cast(), other)), (0, 0));
            assert_eq!(testing::close(alias), 0);
        }
        assert_eq!((testing::close(ep), testing::close(queue), testing::close(vector)), (0, 0, 0));
    }
}
