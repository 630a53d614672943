//! getinfo: finds the endpoints that match an application's hints.
//!
//! The result has one `fi_info` for each type of endpoint and each address of an interface that is up. Reliable
//! datagrams come first, and for each type the best interface comes first. Hints are matched strictly, because
//! libfabric's core does not check the results. Requests that cannot be granted are rejected with -FI_ENODATA, and the
//! log names the request and the supported values.
//!
//! * [`hints`]: the application's hints, read from C
//! * [`offer`], [`caps`], [`modes`]: the attributes of the results
//! * [`places`], [`resolve`]: interfaces and addresses
//! * [`native`]: results in C's memory; `copy`: copies of results

mod caps;
mod copy;
mod hints;
mod modes;
mod native;
mod offer;
mod places;
mod resolve;
#[cfg(test)]
pub(crate) mod tests;

use std::collections::HashSet;
use std::ffi::{c_char, c_int};
use std::sync::{Mutex, PoisonError};

use percale_memory::system::forked::PerProcess;

pub(crate) use self::copy::Copied;
use self::hints::{Hints, Rejection};
use self::native::InfoList;
use self::offer::Attributes;
use self::places::{AddressQuery, InterfaceAddresses};
use crate::abi::{FI_EINVAL, FI_ENODATA, FI_ENOMEM, FI_LOG_FABRIC, FI_SOURCE, fi_info};
use crate::log;
use crate::params::Params;

/// The flags with which libfabric's core looks for providers below ofi_rxm or ofi_rxd, or for offloaded collectives.
/// percale implements reliable datagrams itself, and no provider is layered on top of it.
const LAYERING: u64 = 1 << 59 | 1 << 61;

/// A rejection, with its code and its reason.
struct Refusal {
    code: c_int,
    why: Rejection,
}

impl From<Rejection> for Refusal {
    fn from(why: Rejection) -> Self {
        Self { code: FI_ENODATA, why }
    }
}

/// Implements `fi_getinfo` for this provider.
///
/// # Safety
/// The arguments meet the requirements of fi_getinfo(3), and `info` is writable.
pub(crate) unsafe extern "C" fn getinfo(
    version: u32,
    node: *const c_char,
    service: *const c_char,
    flags: u64,
    hints: *const fi_info,
    info: *mut *mut fi_info,
) -> c_int {
    if flags & LAYERING != 0 {
        log::note!(FI_LOG_FABRIC, "getinfo: layering over percale is not supported");
        return -FI_ENODATA;
    }
    // SAFETY: the caller guarantees this.
    let (node, service) = unsafe { (hints::text(node), hints::text(service)) };
    // SAFETY: the caller guarantees this: the calling libfabric allocated the hints, and it knows this version.
    let hints = unsafe { Hints::read(version, hints) };
    match answer(&hints, node.as_deref(), service.as_deref(), flags) {
        Ok(list) => {
            // SAFETY: the caller guarantees this.
            unsafe { info.write(list.into_raw()) };
            0
        }
        Err(refusal) => {
            log_refusal(&refusal.why);
            -refusal.code
        }
    }
}

fn answer(hints: &Hints, node: Option<&str>, service: Option<&str>, flags: u64) -> Result<InfoList, Refusal> {
    if flags & FI_SOURCE != 0 && node.is_none() && service.is_none() {
        return Err(Refusal { code: FI_EINVAL, why: "FI_SOURCE needs a node or a service".into() });
    }
    if hints.provider_name.is_some() && !hints.names_percale() {
        return Err(Rejection::from("hints request another provider").into());
    }
    const FABRICS: [&str; 2] = [offer::FABRIC, offer::LOOPBACK_FABRIC];
    if let Some(name) = hints.fabric_name.as_deref().filter(|name| !FABRICS.contains(name)) {
        let [all, loopback] = FABRICS;
        return Err(
            format!("hints request fabric_attr->name {name:?}; the fabrics are {all:?} and {loopback:?}").into()
        );
    }
    let params = Params::read().map_err(|error| error.to_string())?;
    let required = params.mr_mode.unwrap_or(0);
    let mut matching = Vec::new();
    let mut why = Rejection::new();
    for kind in offer::kinds(hints)? {
        match offer::attributes(hints, *kind, required) {
            Ok(attributes) => matching.push(attributes),
            // If there are several types, the first one is the type that most programs use.
            Err(reason) if why.is_empty() => why = reason,
            Err(_) => {}
        }
    }
    if matching.is_empty() {
        return Err(why.into());
    }
    let here = percale::Info::discover().map_err(|error| error.to_string())?;
    if let Err(error) = here.best() {
        return Err(error.to_string().into());
    }
    let requested = AddressQuery { node, service, flags, interface: params.interface.as_deref() };
    let places = places::places(&here.interfaces(), hints, requested).map_err(|why| match here.interfaces_error() {
        Some(unlisted) => format!("{unlisted}; {why}"),
        None => why,
    })?;
    list(&matching, &places, hints).ok_or_else(|| Refusal { code: FI_ENOMEM, why: "out of memory".into() })
}

/// Builds the list for all endpoint types and places.
fn list(matching: &[Attributes], places: &[InterfaceAddresses], hints: &Hints) -> Option<InfoList> {
    let mut list = InfoList::empty();
    for attributes in matching.iter().rev() {
        for place in places.iter().rev() {
            list.push(attributes, place, hints.api, hints.handle)?;
        }
    }
    Some(list)
}

/// Logs why there is no result. Only the first time is a warning, because programs call fi_getinfo repeatedly.
fn log_refusal(why: &str) {
    // A thread of the parent may have held the lock when the process was forked.
    static LOGGED: PerProcess<Mutex<HashSet<String>>> = PerProcess::new();
    let is_new = LOGGED
        .get_or_make()
        .map_or(true, |logged| logged.lock().unwrap_or_else(PoisonError::into_inner).insert(why.to_owned()));
    if is_new || cfg!(test) {
        log::warning!(FI_LOG_FABRIC, "getinfo: no match: {why}");
    } else {
        log::note!(FI_LOG_FABRIC, "getinfo: no match, as before: {why}");
    }
}
