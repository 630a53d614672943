//! Tests that call getinfo as libfabric's core does, with tables of hints. Results are freed as `fi_freeinfo` does.

use std::ffi::{CStr, CString};
use std::net::SocketAddr;

use super::*;
use crate::abi::*;
use crate::provider::{API, fi_prov_ini};

mod wishes;

/// A list of results, freed on drop.
pub(crate) struct Answer(pub(crate) *mut fi_info);

impl Drop for Answer {
    fn drop(&mut self) {
        // SAFETY: getinfo returned the list, and it is not used any more.
        unsafe { native::free(self.0) };
    }
}

impl Answer {
    fn all(&self) -> Vec<Entry> {
        let (mut all, mut at) = (Vec::new(), self.0);
        // SAFETY: this object owns the list.
        while let Some(info) = unsafe { at.as_ref() } {
            all.push(Entry(*info));
            at = info.next;
        }
        all
    }
}

/// One `fi_info` of a list that is still alive.
struct Entry(fi_info);

impl Entry {
    fn ep(&self) -> fi_ep_attr {
        // SAFETY: results have all attributes.
        unsafe { *self.0.ep_attr }
    }

    fn domain(&self) -> fi_domain_attr {
        // SAFETY: as above.
        unsafe { *self.0.domain_attr }
    }

    fn tx(&self) -> fi_tx_attr {
        // SAFETY: as above.
        unsafe { *self.0.tx_attr }
    }

    fn rx(&self) -> fi_rx_attr {
        // SAFETY: as above.
        unsafe { *self.0.rx_attr }
    }

    fn fabric(&self) -> fi_fabric_attr {
        // SAFETY: as above.
        unsafe { *self.0.fabric_attr }
    }

    fn interface(&self) -> &str {
        // SAFETY: results have a domain name.
        unsafe { CStr::from_ptr(self.domain().name) }.to_str().unwrap()
    }

    fn source(&self) -> SocketAddr {
        // SAFETY: an address has the stated length.
        unsafe { crate::address::read(self.0.src_addr, self.0.src_addrlen) }.expect("a source address")
    }

    fn destination(&self) -> Option<SocketAddr> {
        // SAFETY: as above.
        unsafe { crate::address::read(self.0.dest_addr, self.0.dest_addrlen) }
    }
}

/// Hints with all attributes, as `fi_allocinfo` creates them, on the stack.
pub(crate) struct TestHints {
    pub(crate) info: fi_info,
    tx: fi_tx_attr,
    rx: fi_rx_attr,
    pub(crate) ep: fi_ep_attr,
    pub(crate) domain: fi_domain_attr,
    fabric: fi_fabric_attr,
    /// The strings that pointers in the hints refer to.
    kept: Vec<CString>,
}

impl TestHints {
    pub(crate) fn new(change: impl FnOnce(&mut Self)) -> Self {
        let mut wishes = Self {
            info: fi_info::ZERO,
            tx: fi_tx_attr::ZERO,
            rx: fi_rx_attr::ZERO,
            ep: fi_ep_attr::ZERO,
            domain: fi_domain_attr::ZERO,
            fabric: fi_fabric_attr::ZERO,
            kept: Vec::new(),
        };
        change(&mut wishes);
        wishes
    }

    fn text(&mut self, text: &str) -> *mut c_char {
        self.kept.push(CString::new(text).unwrap());
        self.kept.last().unwrap().as_ptr().cast_mut()
    }

    /// Calls getinfo with these hints.
    pub(crate) fn ask(&mut self, version: u32) -> Result<Answer, (c_int, String)> {
        self.info.tx_attr = &raw mut self.tx;
        self.info.rx_attr = &raw mut self.rx;
        self.info.ep_attr = &raw mut self.ep;
        self.info.domain_attr = &raw mut self.domain;
        self.info.fabric_attr = &raw mut self.fabric;
        ask(version, None, None, 0, &raw const self.info)
    }
}

/// Calls getinfo through the provider, as the core does. A rejection is returned with the logged warning.
fn ask(
    version: u32,
    node: Option<&CStr>,
    service: Option<&CStr>,
    flags: u64,
    hints: *const fi_info,
) -> Result<Answer, (c_int, String)> {
    // SAFETY: the provider structure is a static.
    let getinfo = unsafe { (*fi_prov_ini()).getinfo }.expect("getinfo");
    let pointer = |text: Option<&CStr>| text.map_or(std::ptr::null(), CStr::as_ptr);
    let mut list = std::ptr::null_mut();
    log::testing::warnings();
    // SAFETY: the arguments meet the requirements of fi_getinfo(3).
    let code = unsafe { getinfo(version, pointer(node), pointer(service), flags, hints, &raw mut list) };
    let warnings = log::testing::warnings();
    if code == 0 {
        assert!(!list.is_null() && warnings.is_empty(), "{warnings:?}");
        return Ok(Answer(list));
    }
    assert!(list.is_null(), "a failed call returns no list");
    Err((code, warnings.join("\n")))
}

fn anything() -> Answer {
    ask(API, None, None, 0, std::ptr::null()).expect("an answer without hints")
}

#[test]
fn without_hints_there_are_both_types_on_every_interface() {
    let answer = anything();
    let all = answer.all();
    let types: Vec<u32> = all.iter().map(|one| one.ep().r#type).collect();
    let half = all.len() / 2;
    assert!(half > 0 && types[..half].iter().all(|kind| *kind == FI_EP_RDM), "{types:?}");
    assert!(types.len() == 2 * half && types[half..].iter().all(|kind| *kind == FI_EP_MSG), "{types:?}");
    let here = percale::Info::discover().unwrap();
    let expected: Vec<_> = here.interfaces().into_iter().filter(|one| one.running).collect();
    for part in [&all[..half], &all[half..]] {
        let found: Vec<_> = part.iter().map(|one| (one.interface(), one.source().ip())).collect();
        assert_eq!(found, expected.iter().map(|one| (one.name.as_str(), one.ip)).collect::<Vec<_>>());
    }
    for one in &all {
        assert_eq!(one.source().port(), 0);
        assert_eq!(one.destination(), None);
        let format = if one.source().is_ipv4() { FI_SOCKADDR_IN } else { FI_SOCKADDR_IN6 };
        assert_eq!(one.0.addr_format, format);
        assert_eq!((one.0.mode, one.domain().mode, one.domain().mr_mode), (0, 0, 0), "no mode bits are required");
        assert_eq!(one.0.caps & (FI_LOCAL_COMM | FI_REMOTE_COMM), FI_LOCAL_COMM | FI_REMOTE_COMM);
        assert_eq!(one.domain().threading, FI_THREAD_SAFE);
        assert_eq!(one.domain().resource_mgmt, FI_RM_ENABLED);
        assert_eq!((one.domain().cq_data_size, one.domain().mr_key_size), (8, 8));
        assert_eq!(one.tx().inject_size, percale::endpoint::work::INJECT_LIMIT);
        assert_eq!((one.tx().iov_limit, one.tx().rma_iov_limit, one.rx().iov_limit), (4, 4, 4));
        assert_eq!(one.fabric().api_version, API);
        assert!(one.fabric().prov_name.is_null(), "libfabric's core sets the name");
        assert_ne!(one.ep().mem_tag_format >> 63, 0, "all 64 bits of a tag are compared");
    }
    let rdm = all[0].0.caps;
    let wanted = FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC | FI_DIRECTED_RECV | FI_SOURCE | FI_MULTI_RECV | FI_RMA_EVENT;
    assert_eq!(rdm & wanted, wanted);
    assert_eq!(all[half].0.caps & (FI_DIRECTED_RECV | FI_SOURCE), 0, "a connected endpoint has one peer");
}

#[test]
fn getinfo_result_as_hints_returns_the_same_result() {
    for version in [API, fi_version(1, 18), fi_version(1, 4)] {
        let answer = ask(version, None, None, 0, std::ptr::null()).unwrap();
        for one in answer.all() {
            let again = ask(version, None, None, 0, &raw const one.0).map_err(|(_, why)| why).unwrap();
            let again = again.all();
            assert_eq!(again.len(), 1, "the address and the type select one entry");
            let (first, second) = (&one, &again[0]);
            assert_eq!((first.0.caps, first.0.addr_format), (second.0.caps, second.0.addr_format));
            assert_eq!((first.source(), first.interface()), (second.source(), second.interface()));
            assert_eq!(format!("{:?}", first.tx()), format!("{:?}", second.tx()));
            assert_eq!(format!("{:?}", first.rx()), format!("{:?}", second.rx()));
            assert_eq!(format!("{:?}", first.ep()), format!("{:?}", second.ep()));
            let without_name =
                |one: &Entry| format!("{:?}", fi_domain_attr { name: std::ptr::null_mut(), ..one.domain() });
            assert_eq!(without_name(first), without_name(second));
        }
    }
}

#[test]
fn result_with_all_mr_modes_is_stable_as_hints() {
    // A program that offers raw keys gets a result without them, and passes that result as its next hints.
    let offered = FI_MR_RAW | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
    let answer = TestHints::new(|wishes| wishes.domain.mr_mode = offered).ask(API).unwrap();
    for one in answer.all() {
        assert_eq!((one.domain().mr_mode, one.domain().mr_key_size), (0, 8));
        let again = ask(API, None, None, 0, &raw const one.0).map_err(|(_, why)| why).unwrap();
        assert_eq!((again.all()[0].domain().mr_mode, again.all()[0].domain().mr_key_size), (0, 8));
    }
}

#[test]
fn requested_capabilities_are_returned_unchanged() {
    // MPICH calls fi_getinfo again with the capabilities of a result.
    let offered = anything().all()[0].0.caps;
    let again = TestHints::new(|wishes| wishes.info.caps = offered).ask(API).unwrap();
    assert!(again.all().iter().all(|one| one.0.caps == offered && one.ep().r#type == FI_EP_RDM));

    let caps = |requested| {
        let answer =
            TestHints::new(|wishes| (wishes.info.caps, wishes.ep.r#type) = (requested, FI_EP_RDM)).ask(API).unwrap();
        let first = &answer.all()[0];
        (first.0.caps, first.tx().caps, first.rx().caps)
    };
    let free = FI_LOCAL_COMM | FI_REMOTE_COMM | FI_SHARED_AV | FI_FENCE | FI_MULTI_RECV;
    let (whole, tx, rx) = caps(FI_TAGGED);
    assert_eq!(whole, FI_TAGGED | FI_SEND | FI_RECV | free, "directions are implied; others are not enabled");
    assert_eq!((tx, rx), (FI_TAGGED | FI_SEND | FI_FENCE, FI_TAGGED | FI_RECV | FI_MULTI_RECV));
    let (whole, tx, rx) = caps(FI_RMA | FI_WRITE);
    assert_eq!(whole, FI_RMA | FI_WRITE | free, "a direction that is named is the only one");
    assert_eq!((tx, rx), (FI_RMA | FI_WRITE | FI_FENCE, FI_RMA | FI_MULTI_RECV));
}

#[test]
fn layering_a_provider_on_percale_is_rejected() {
    for flags in [1 << 59, 1 << 61] {
        let (code, warnings) = ask(API, None, None, flags, std::ptr::null()).err().expect("no answer");
        assert_eq!(code, -FI_ENODATA);
        assert_eq!(warnings, "", "the application did not request this");
    }
    let mut wishes = TestHints::new(|wishes| wishes.fabric.prov_name = wishes.text("Percale;^ofi_rxm"));
    assert!(wishes.ask(API).is_ok());
}

#[test]
fn nodes_and_services_become_addresses() {
    let hints = TestHints::new(|_| ());
    let ask = |node, service, flags| ask(API, node, service, flags, &raw const hints.info);
    let to = ask(Some(c"127.0.0.1"), Some(c"7471"), 0).unwrap();
    for one in to.all() {
        assert_eq!(one.destination(), Some("127.0.0.1:7471".parse().unwrap()));
        assert_eq!((one.interface(), one.source().to_string().as_str()), ("lo", "127.0.0.1:0"));
    }
    let from = ask(Some(c"127.0.0.1"), Some(c"7471"), FI_SOURCE).unwrap();
    assert!(from.all().iter().all(|one| one.source().to_string() == "127.0.0.1:7471" && one.destination().is_none()));
    let any = ask(None, Some(c"7471"), FI_SOURCE).unwrap();
    assert!(any.all().iter().all(|one| one.source().ip().is_unspecified() && one.source().port() == 7471));
    assert_eq!(any.all().len(), anything().all().len());
    assert_eq!(ask(None, None, FI_SOURCE).err().expect("no node").0, -FI_EINVAL);
    let nowhere = ask(Some(c"192.0.2.77"), None, FI_SOURCE).err().expect("not a local address");
    assert!(nowhere.0 == -FI_ENODATA && nowhere.1.contains("192.0.2.77"), "{}", nowhere.1);
}

/// Returns a value that a call writes.
pub(crate) fn made<T>(call: impl FnOnce(*mut *mut T) -> c_int) -> *mut T {
    let mut place = std::ptr::null_mut();
    assert_eq!(call(&raw mut place), 0);
    place
}

/// Requirements: CON-010.
#[test]
fn wildcard_endpoint_advertises_its_domain_interface() {
    let hints = TestHints::new(|wishes| wishes.info.caps = FI_MSG | FI_SEND);
    let answer = ask(API, None, Some(c"0"), FI_SOURCE, &raw const hints.info).unwrap();
    // SAFETY: the provider structure is a static.
    let open = unsafe { (*fi_prov_ini()).fabric }.expect("fabric");
    let here = percale::Info::discover().unwrap();
    for one in answer.all().iter().filter(|one| one.source().is_ipv4() && one.ep().r#type == FI_EP_RDM) {
        let (info, none) = ((&raw const one.0).cast_mut(), std::ptr::null_mut());
        // SAFETY: all objects are used as the manual pages require, and are closed at the end.
        unsafe {
            let fabric = made(|place| open(one.0.fabric_attr, place, none));
            let domain = made(|place| (*(*fabric).ops).domain.unwrap()(fabric, info, place, none));
            let mut wanted = fi_cq_attr { format: FI_CQ_FORMAT_MSG, ..fi_cq_attr::ZERO };
            let queue = made(|place| (*(*domain).ops).cq_open.unwrap()(domain, &raw mut wanted, place, none));
            let mut wanted = fi_av_attr { r#type: FI_AV_TABLE, ..fi_av_attr::ZERO };
            let vector = made(|place| (*(*domain).ops).av_open.unwrap()(domain, &raw mut wanted, place, none));
            let ep = made(|place| (*(*domain).ops).endpoint.unwrap()(domain, info, place, none));
            let ops = &*(*ep).fid.ops;
            assert_eq!(ops.bind.unwrap()(ep.cast(), vector.cast(), 0), 0);
            assert_eq!(ops.bind.unwrap()(ep.cast(), queue.cast(), FI_TRANSMIT | FI_RECV), 0);
            assert_eq!(ops.control.unwrap()(ep.cast(), FI_ENABLE, none), 0);
            let (mut name, mut len) = ([0_u8; 28], 28);
            assert_eq!((*(*ep).cm).getname.unwrap()(ep.cast(), name.as_mut_ptr().cast(), &raw mut len), 0);
            let name = crate::address::read(name.as_ptr().cast(), len).unwrap();
            let of_interface = here.interfaces().into_iter().find(|known| known.name == one.interface());
            assert_eq!(name.ip(), of_interface.unwrap().ip, "{}", one.interface());
            let objects: [*mut fid; 5] = [ep.cast(), queue.cast(), vector.cast(), domain.cast(), fabric.cast()];
            for object in objects {
                assert_eq!((*(*object).ops).close.unwrap()(object), 0);
            }
        }
    }
}
