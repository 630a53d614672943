//! The arguments of a registration, read once from C (fi_mr(3), `fi_mr_attr`).

use percale::memory::volatile::IOV_LIMIT;
use percale::{Access, Segment};

use crate::abi::{
    FI_COLLECTIVE, FI_EBADFLAGS, FI_HMEM_DEVICE_ONLY, FI_HMEM_HOST_ALLOC, FI_LOG_MR, FI_READ, FI_RECV, FI_REMOTE_READ,
    FI_REMOTE_WRITE, FI_RMA_EVENT, FI_SEND, FI_WRITE, fi_mr_attr, fi_version,
};
use crate::authorization;
use crate::domain;
use crate::log;
use crate::registration::pieces::Pieces;
use crate::registration::{Wanted, devices};

/// The supported flags of a registration. FI_RMA_PMEM is not supported, because no memory is persistent (MR-076).
const KNOWN: u64 = FI_RMA_EVENT;
/// Additional flags for applications that requested FI_HMEM.
const KNOWN_OF_DEVICES: u64 = FI_HMEM_HOST_ALLOC | FI_HMEM_DEVICE_ONLY;

/// The supported access rights (fi_mr(3), `access`).
const RIGHTS: u64 = FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE | FI_COLLECTIVE;

/// Reads a registration's arguments. Returns the positive error code if they are invalid.
///
/// # Safety
/// `attr` is null or meets the requirements of fi_mr(3) for the fabric's version. The memory that it describes remains
/// valid until the region is closed.
pub(super) unsafe fn read(domain: &domain::DomainShared, attr: *const fi_mr_attr, flags: u64) -> Result<Wanted, i32> {
    if attr.is_null() {
        return Err(libc::EINVAL);
    }
    let known = if domain.hmem { KNOWN | KNOWN_OF_DEVICES } else { KNOWN };
    if flags & !known != 0 {
        log::warning!(FI_LOG_MR, "fi_mr_regattr: flags {:#x} are not supported", flags & !known);
        return Err(FI_EBADFLAGS);
    }
    // Structures of older versions are shorter: only the fields of the caller's version are read.
    macro_rules! field {
        ($field:ident) => {
            // SAFETY: the client's attributes have at least the fields of its version.
            unsafe { (&raw const (*attr).$field).read() }
        };
    }
    let version = domain.fabric.api_version;
    let (first, count) = (field!(mr_iov), field!(iov_count));
    if first.is_null() || count == 0 {
        return Err(libc::EINVAL);
    }
    if field!(offset) != 0 {
        log::warning!(FI_LOG_MR, "fi_mr_regattr: the offset is reserved and must be 0");
        return Err(libc::EINVAL);
    }
    // Only applications that requested FI_HMEM set the kind of memory (HMEM-001).
    let named = (domain.hmem && version >= fi_version(1, 9)).then(|| (field!(iface), field!(device)));
    if version >= fi_version(2, 0) && !field!(base_mr).is_null() {
        log::warning!(FI_LOG_MR, "fi_mr_regattr: parts of regions (base_mr) are not supported");
        return Err(libc::ENOSYS);
    }
    let authorization = if version >= fi_version(1, 5) {
        let (from, size) = (field!(auth_key), field!(auth_key_size));
        // SAFETY: the client passed this number of readable bytes.
        unsafe { authorization::read("fi_mr_regattr", from, size) }?
    } else {
        None
    };
    // SAFETY: the client passed `count` pieces.
    let pieces = unsafe { std::slice::from_raw_parts(first, count) };
    check_pieces(pieces)?;
    let access = field!(access);
    if access & !RIGHTS != 0 {
        log::warning!(FI_LOG_MR, "fi_mr_regattr: invalid access {:#x}", access & !RIGHTS);
        return Err(FI_EBADFLAGS);
    }
    let memory = if is_everything(pieces) {
        Pieces::Everything
    } else {
        // SAFETY: the client keeps the memory valid as fi_mr(3) requires until the region is closed.
        let segment = |piece: &libc::iovec| unsafe { Segment::new(piece.iov_base.cast(), piece.iov_len) };
        Pieces::Some(pieces.iter().map(segment).collect())
    };
    let device = match named {
        Some((iface, device)) => devices::of(iface, device, flags, &memory)?,
        None => None,
    };
    Ok(Wanted {
        pieces: memory,
        device,
        access: Access::from_bits_truncate(access),
        base: if domain.regions.virtual_addresses { pieces[0].iov_base.addr() as u64 } else { 0 },
        key: (!domain.regions.our_keys && !domain.regions.raw).then(|| field!(requested_key)),
        context: field!(context),
        authorization,
        collective: access & FI_COLLECTIVE != 0,
        events: flags & FI_RMA_EVENT != 0,
    })
}

/// Returns whether the pieces name the complete address space.
fn is_everything(pieces: &[libc::iovec]) -> bool {
    matches!(pieces, [only] if only.iov_base.is_null() && only.iov_len == usize::MAX)
}

/// Rejects pieces that a region cannot have: too many pieces, empty pieces among several, and pieces that end beyond
/// the last address.
fn check_pieces(pieces: &[libc::iovec]) -> Result<(), i32> {
    let count = pieces.len();
    if count > IOV_LIMIT {
        log::warning!(FI_LOG_MR, "fi_mr_regattr: too many pieces {count} (at most {IOV_LIMIT}, mr_iov_limit)");
        return Err(libc::EINVAL);
    }
    if count > 1
        && let Some(empty) = pieces.iter().position(|piece| piece.iov_len == 0)
    {
        log::warning!(FI_LOG_MR, "fi_mr_regattr: piece {empty} of {count} has no bytes; leave it out");
        return Err(libc::EINVAL);
    }
    let wraps = |piece: &&libc::iovec| piece.iov_base.addr().checked_add(piece.iov_len).is_none();
    if !is_everything(pieces)
        && let Some(piece) = pieces.iter().find(wraps)
    {
        let (address, len) = (piece.iov_base.addr(), piece.iov_len);
        log::warning!(FI_LOG_MR, "fi_mr_regattr: {len} bytes at {address:#x} exceed the address space");
        return Err(libc::EINVAL);
    }
    Ok(())
}
