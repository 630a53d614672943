//! The settings of percale domains: parameters, and attributes from clients.

use std::ffi::CStr;

use percale::CacheSettings;
use percale::domain::CacheNote;

use crate::abi::{FI_LOG_DOMAIN, FI_LOG_MR, FI_PARAM_SIZE_T, FI_PARAM_STRING, fi_domain_attr};
use crate::params::{self, Params};
use crate::{authorization, log};

/// Configures a percale domain from parameters and attributes, without opening it.
///
/// # Safety
/// The name and the key in the attributes are readable.
pub(crate) unsafe fn configure(attr: &fi_domain_attr) -> Result<percale::DomainBuilder, i32> {
    let params = Params::read().map_err(|error| {
        log::warning!(FI_LOG_DOMAIN, "{error}");
        libc::EINVAL
    })?;
    let here = percale::Info::discover().map_err(|error| {
        log::warning!(FI_LOG_DOMAIN, "{error}");
        libc::EIO
    })?;
    let mut builder = params.apply(here.domain()).registration_cache(cache());
    if params.interface.is_none() && !attr.name.is_null() {
        // Endpoints bound to a wildcard address advertise the address of the interface that the domain is named after.
        // SAFETY: a domain name ends with a zero byte.
        let name = unsafe { CStr::from_ptr(attr.name) };
        builder = builder.interface(name.to_string_lossy());
    }
    // SAFETY: the client passed this number of readable bytes.
    if let Some(key) = unsafe { authorization::read("fi_domain", attr.auth_key, attr.auth_key_size) }? {
        builder = builder.authorization_key(key);
    }
    Ok(builder)
}

/// Returns the settings of the registration cache from the environment, or from the other sources that libfabric reads.
/// These parameters belong to libfabric.
fn cache() -> CacheSettings {
    let (settings, notes) = CacheSettings::read(|name| {
        let kind = if name == "FI_MR_CACHE_MONITOR" { FI_PARAM_STRING } else { FI_PARAM_SIZE_T };
        params::core(name.strip_prefix("FI_").unwrap_or(name), kind)
    });
    log_notes(&notes);
    settings
}

/// Writes the notes to libfabric's log.
pub(crate) fn log_notes(notes: &[CacheNote]) {
    for note in notes {
        if note.warning {
            log::warning!(FI_LOG_MR, "{note}");
        } else {
            log::note!(FI_LOG_MR, "{note}");
        }
    }
}
