//! The attributes that percale offers. Each request of an application is granted or rejected by name.
//!
//! As in fi_getinfo(3):
//! * 0 requests nothing.
//! * A limit is granted up to the provider's limit, and the result contains the provider's limit.
//! * Values that only describe the application (threading, progress, the type of address vectors) are returned as
//!   requested.
//! * Modes and registration modes are requirements of the provider. There are none unless a parameter enables them.

use std::ffi::c_int;

use percale::endpoint::scalable::CONTEXT_LIMIT;
use percale::endpoint::work::{INJECT_LIMIT, MESSAGE_LIMIT};
use percale::memory::region::RAW_KEY_BYTES;
use percale::memory::volatile::IOV_LIMIT;

use super::caps::{self, Side};
use super::hints::{Hints, Rejection};
use super::modes;
use crate::abi::*;
use crate::version::crate_version;

/// percale's protocol. `FI_PROTO_*` values with the highest bit set are specific to a provider.
pub(super) const PROTOCOL: u32 = 1 << 31 | 0x7063;
/// The fabric of all interfaces except loopback, and of loopback if there is no other interface.
pub(super) const FABRIC: &str = "percale";
/// The fabric of the loopback interface if there is another interface. Other hosts cannot reach the loopback interface.
/// MPI implementations distribute the ranks of a host over the domains of one fabric, and ranks on other hosts could
/// not reach those at loopback addresses.
pub(super) const LOOPBACK_FABRIC: &str = "percale-loopback";

/// The number of outstanding operations of an endpoint: the default and the limit.
const SIZE: usize = 1024;
const MOST: usize = 1 << 16;
/// The maximum number of objects of a domain. The system runs out of descriptors and memory before that.
const OBJECTS: usize = 1 << 16;
/// The maximum number of regions of a domain.
const REGIONS: usize = 1 << 24;
/// The size of a key and of remote completion data, in bytes.
const WORD: usize = 8;
/// The tag format. All bits are available, each as a field.
const TAGS: u64 = 0xAAAA_AAAA_AAAA_AAAA;
/// Messages keep their order, also after writes. Accesses to the same bytes keep their order unless both are reads.
const ORDER: u64 = FI_ORDER_SAS
    | FI_ORDER_SAW
    | FI_ORDER_RAW
    | FI_ORDER_WAR
    | FI_ORDER_WAW
    | FI_ORDER_RMA_RAW
    | FI_ORDER_RMA_WAR
    | FI_ORDER_RMA_WAW
    | FI_ORDER_ATOMIC_RAR
    | FI_ORDER_ATOMIC_RAW
    | FI_ORDER_ATOMIC_WAR
    | FI_ORDER_ATOMIC_WAW;
const TRANSMIT_FLAGS: u64 =
    FI_COMPLETION | FI_INJECT | FI_INJECT_COMPLETE | FI_TRANSMIT_COMPLETE | FI_DELIVERY_COMPLETE | FI_MATCH_COMPLETE;
const RECEIVE_FLAGS: u64 = FI_COMPLETION | FI_MULTI_RECV;

/// The last traffic class that is a DSCP value, which has six bits (RFC 2474).
const FI_TC_DSCP_LAST: u32 = FI_TC_DSCP | 0x3F;

/// The attributes of a result, without addresses and names.
#[derive(Clone, Debug)]
pub(super) struct Attributes {
    pub(super) caps: u64,
    pub(super) mode: u64,
    pub(super) tx: fi_tx_attr,
    pub(super) rx: fi_rx_attr,
    pub(super) ep: fi_ep_attr,
    pub(super) domain: fi_domain_attr,
    /// The authorization key of the domain, or empty if the hints have none.
    pub(super) domain_key: Vec<u8>,
    /// The authorization key of the endpoint, or empty if the hints have none.
    pub(super) ep_key: Vec<u8>,
}

/// Returns the types of endpoints that may match the hints.
pub(super) fn kinds(hints: &Hints) -> Result<&'static [u32], Rejection> {
    match hints.ep.r#type {
        FI_EP_UNSPEC => Ok(&[FI_EP_RDM, FI_EP_MSG]),
        FI_EP_RDM => Ok(&[FI_EP_RDM]),
        FI_EP_MSG => Ok(&[FI_EP_MSG]),
        FI_EP_DGRAM => Err("hints request ep_attr->type FI_EP_DGRAM; supported are FI_EP_RDM and FI_EP_MSG".into()),
        other => Err(format!("hints request ep_attr->type {other}; supported are FI_EP_RDM and FI_EP_MSG")),
    }
}

/// Selects the attributes of an endpoint of type `kind` for these hints. `required` contains the required registration
/// mode bits.
pub(super) fn attributes(hints: &Hints, kind: u32, required: c_int) -> Result<Attributes, Rejection> {
    let offered = caps::offered(kind, hints.api);
    if hints.caps & !offered != 0 {
        let lacking = caps::names(hints.caps & !offered);
        return Err(format!("hints request caps {lacking}, which {} does not have", kind_name(kind)));
    }
    if hints.provider_version > crate_version() {
        return Err(version("fabric_attr->prov_version", hints.provider_version, crate_version()));
    }
    if hints.caps & FI_XPU != 0 && hints.caps & FI_TRIGGER == 0 {
        return Err("hints request caps FI_XPU_TRIGGER without FI_TRIGGER, which it requires".into());
    }
    let caps = caps::granted(offered, hints.caps);
    let (domain_key, ep_key) = keys(hints, kind)?;
    let (mr_mode, mode) = modes::registration(hints, required)?;
    Ok(Attributes {
        caps,
        mode,
        tx: transmit(hints, caps)?,
        rx: receive(hints, caps)?,
        ep: endpoint(hints, kind, ep_key.len())?,
        domain: domain(hints, kind, mr_mode, domain_key.len())?,
        domain_key,
        ep_key,
    })
}

const fn kind_name(kind: u32) -> &'static str {
    if kind == FI_EP_RDM { "FI_EP_RDM" } else { "FI_EP_MSG" }
}

fn transmit(hints: &Hints, whole: u64) -> Result<fi_tx_attr, Rejection> {
    let requested = &hints.tx;
    subset("tx_attr->op_flags", requested.op_flags, TRANSMIT_FLAGS)?;
    subset("tx_attr->msg_order", requested.msg_order, ORDER)?;
    subset("tx_attr->comp_order", requested.comp_order, 0)?;
    at_most("tx_attr->inject_size", requested.inject_size, INJECT_LIMIT)?;
    at_most("tx_attr->size", requested.size, MOST)?;
    at_most("tx_attr->iov_limit", requested.iov_limit, IOV_LIMIT)?;
    at_most("tx_attr->rma_iov_limit", requested.rma_iov_limit, IOV_LIMIT)?;
    traffic("tx_attr->tclass", requested.tclass)?;
    Ok(fi_tx_attr {
        caps: side("tx_attr->caps", Side::Transmit.granted(whole, requested.caps))?,
        mode: 0,
        op_flags: requested.op_flags,
        msg_order: ORDER,
        comp_order: 0,
        inject_size: INJECT_LIMIT,
        size: or(requested.size, SIZE),
        iov_limit: IOV_LIMIT,
        rma_iov_limit: IOV_LIMIT,
        tclass: requested.tclass,
    })
}

fn receive(hints: &Hints, whole: u64) -> Result<fi_rx_attr, Rejection> {
    let requested = &hints.rx;
    subset("rx_attr->op_flags", requested.op_flags, RECEIVE_FLAGS)?;
    subset("rx_attr->msg_order", requested.msg_order, ORDER)?;
    subset("rx_attr->comp_order", requested.comp_order, 0)?;
    at_most("rx_attr->size", requested.size, MOST)?;
    at_most("rx_attr->iov_limit", requested.iov_limit, IOV_LIMIT)?;
    Ok(fi_rx_attr {
        caps: side("rx_attr->caps", Side::Receive.granted(whole, requested.caps))?,
        mode: 0,
        op_flags: requested.op_flags,
        msg_order: ORDER,
        comp_order: 0,
        // Unexpected messages are buffered without a request.
        total_buffered_recv: requested.total_buffered_recv,
        size: or(requested.size, SIZE),
        iov_limit: IOV_LIMIT,
    })
}

fn endpoint(hints: &Hints, kind: u32, key: usize) -> Result<fi_ep_attr, Rejection> {
    let requested = &hints.ep;
    if requested.protocol != FI_PROTO_UNSPEC && requested.protocol != PROTOCOL {
        return Err(format!(
            "hints request ep_attr->protocol {}; only percale's own is supported, {PROTOCOL:#x}",
            requested.protocol
        ));
    }
    let spoken = u32::from(percale_wire::hello::VERSION);
    if requested.protocol_version > spoken {
        return Err(format!("hints request ep_attr->protocol_version {}; it is {spoken}", requested.protocol_version));
    }
    at_most("ep_attr->max_msg_size", requested.max_msg_size, MESSAGE_LIMIT)?;
    let tx_ctx_cnt = contexts("ep_attr->tx_ctx_cnt", requested.tx_ctx_cnt, kind)?;
    let rx_ctx_cnt = contexts("ep_attr->rx_ctx_cnt", requested.rx_ctx_cnt, kind)?;
    if !requested.xpu_ctx.is_null() {
        return Err("hints set ep_attr->xpu_ctx, which is not supported".into());
    }
    let format = requested.mem_tag_format;
    let by_name = hints.api >= fi_version(2, 0) && format < FI_TAG_MAX_FORMAT.into();
    Ok(fi_ep_attr {
        r#type: kind,
        protocol: PROTOCOL,
        protocol_version: spoken,
        max_msg_size: MESSAGE_LIMIT,
        msg_prefix_size: 0,
        max_order_raw_size: usize::MAX,
        max_order_war_size: usize::MAX,
        max_order_waw_size: usize::MAX,
        mem_tag_format: if by_name && format != FI_TAG_BITS.into() { format } else { TAGS },
        tx_ctx_cnt,
        rx_ctx_cnt,
        auth_key_size: key,
        ..fi_ep_attr::ZERO
    })
}

fn domain(hints: &Hints, kind: u32, mr_mode: c_int, key: usize) -> Result<fi_domain_attr, Rejection> {
    let requested = &hints.domain;
    at_most("domain_attr->mr_key_size", requested.mr_key_size, key_size(requested.mr_mode))?;
    at_most("domain_attr->cq_data_size", requested.cq_data_size, WORD)?;
    at_most("domain_attr->cq_cnt", requested.cq_cnt, OBJECTS)?;
    at_most("domain_attr->ep_cnt", requested.ep_cnt, OBJECTS)?;
    at_most("domain_attr->tx_ctx_cnt", requested.tx_ctx_cnt, OBJECTS)?;
    at_most("domain_attr->rx_ctx_cnt", requested.rx_ctx_cnt, OBJECTS)?;
    at_most("domain_attr->max_ep_tx_ctx", requested.max_ep_tx_ctx, most_contexts(kind))?;
    at_most("domain_attr->max_ep_rx_ctx", requested.max_ep_rx_ctx, most_contexts(kind))?;
    at_most("domain_attr->max_ep_stx_ctx", requested.max_ep_stx_ctx, OBJECTS)?;
    at_most("domain_attr->max_ep_srx_ctx", requested.max_ep_srx_ctx, OBJECTS)?;
    at_most("domain_attr->cntr_cnt", requested.cntr_cnt, OBJECTS)?;
    at_most("domain_attr->mr_iov_limit", requested.mr_iov_limit, IOV_LIMIT)?;
    at_most("domain_attr->max_err_data", requested.max_err_data, 0)?;
    at_most("domain_attr->mr_cnt", requested.mr_cnt, REGIONS)?;
    at_most("domain_attr->max_ep_auth_key", requested.max_ep_auth_key, 0)?;
    at_most("domain_attr->max_group_id", requested.max_group_id as usize, 0)?;
    at_most("domain_attr->max_xpu_ctx_cnt", requested.max_xpu_ctx_cnt, 0)?;
    traffic("domain_attr->tclass", requested.tclass)?;
    if requested.caps & !caps::DOMAIN != 0 {
        let lacking = caps::names(requested.caps & !caps::DOMAIN);
        return Err(format!("hints request domain_attr->caps {lacking}; supported are {}", caps::names(caps::DOMAIN)));
    }
    let (control_progress, data_progress) = modes::progress(hints)?;
    Ok(fi_domain_attr {
        threading: modes::threading(requested.threading)?,
        control_progress,
        data_progress,
        resource_mgmt: modes::resource_management(requested.resource_mgmt)?,
        av_type: modes::vector_type(requested.av_type)?,
        mr_mode,
        mr_key_size: key_size(mr_mode),
        cq_data_size: WORD,
        cq_cnt: OBJECTS,
        ep_cnt: OBJECTS,
        tx_ctx_cnt: OBJECTS,
        rx_ctx_cnt: OBJECTS,
        max_ep_tx_ctx: most_contexts(kind),
        max_ep_rx_ctx: most_contexts(kind),
        max_ep_stx_ctx: OBJECTS,
        max_ep_srx_ctx: OBJECTS,
        cntr_cnt: OBJECTS,
        mr_iov_limit: IOV_LIMIT,
        caps: caps::DOMAIN,
        auth_key_size: key,
        mr_cnt: REGIONS,
        tclass: requested.tclass,
        max_cntr_value: u64::MAX,
        max_err_cntr_value: u64::MAX,
        ..fi_domain_attr::ZERO
    })
}

/// Returns the authorization keys of the domain and the endpoint. A connected endpoint uses its domain's key, as
/// listeners do.
fn keys(hints: &Hints, kind: u32) -> Result<(Vec<u8>, Vec<u8>), Rejection> {
    if hints.domain.auth_key_size == FI_AV_AUTH_KEY {
        return Err("hints request domain_attr->auth_key_size FI_AV_AUTH_KEY, which is not supported".into());
    }
    let limit = percale::domain::KEY_LIMIT;
    let unusable = |which| format!("hints set {which}, but not to a key of 1 to {limit} bytes");
    let domain = hints.domain_key.clone().ok_or_else(|| unusable("domain_attr->auth_key"))?;
    let endpoint = hints.ep_key.clone().ok_or_else(|| unusable("ep_attr->auth_key"))?;
    if kind == FI_EP_MSG && !endpoint.is_empty() && endpoint != domain {
        return Err(
            "hints set an ep_attr->auth_key that differs from the domain's; FI_EP_MSG endpoints must use the domain's"
                .into(),
        );
    }
    Ok((domain, endpoint))
}

/// Returns the size of the longest key in bytes (KEY-010). With FI_MR_RAW, that is a raw key.
const fn key_size(mr_mode: c_int) -> usize {
    if mr_mode & FI_MR_RAW != 0 { RAW_KEY_BYTES } else { WORD }
}

fn side(field: &str, granted: Result<u64, u64>) -> Result<u64, Rejection> {
    granted
        .map_err(|lacking| format!("hints request {field} {}, which the endpoint does not have", caps::names(lacking)))
}

pub(super) fn at_most(field: &str, requested: usize, offered: usize) -> Result<(), Rejection> {
    if requested > offered {
        Err(format!("hints request {field} {requested}; at most {offered} is supported"))
    } else {
        Ok(())
    }
}

fn subset(field: &str, requested: u64, offered: u64) -> Result<(), Rejection> {
    let lacking = requested & !offered;
    if lacking != 0 { Err(format!("hints request {field} {lacking:#x}; supported is {offered:#x}")) } else { Ok(()) }
}

/// Returns the maximum number of contexts of one endpoint. A connected endpoint has only one.
const fn most_contexts(kind: u32) -> usize {
    if kind == FI_EP_RDM { CONTEXT_LIMIT as usize } else { 1 }
}

fn contexts(field: &str, requested: usize, kind: u32) -> Result<usize, Rejection> {
    match requested {
        0 => Ok(1),
        FI_SHARED_CONTEXT => Ok(FI_SHARED_CONTEXT),
        more => at_most(field, more, most_contexts(kind)).map(|()| more),
    }
}

/// Checks a traffic class (fi_endpoint(3)). Every class of libfabric is accepted, and all classes are treated alike.
fn traffic(field: &str, requested: u32) -> Result<(), Rejection> {
    match requested {
        FI_TC_UNSPEC | FI_TC_DSCP..=FI_TC_DSCP_LAST | FI_TC_LABEL..=FI_TC_NETWORK_CTRL => Ok(()),
        other => Err(format!("hints request {field} {other:#x}, which is not a traffic class")),
    }
}

fn version(field: &str, requested: u32, offered: u32) -> Rejection {
    let shown = |version: u32| format!("{}.{}", version >> 16, version & 0xFFFF);
    format!("hints request {field} {}; it is {}", shown(requested), shown(offered))
}

const fn or(requested: usize, default: usize) -> usize {
    if requested == 0 { default } else { requested }
}
