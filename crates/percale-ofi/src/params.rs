//! Parameters: `FI_PERCALE_*` in the environment (or in another source that libfabric reads), typed and checked.
//!
//! They are the settings of a percale domain ([`Params::apply`]). `FI_PERCALE_TRANSPORT` has precedence over
//! `PERCALE_TRANSPORT`, which percale itself reads.

use std::ffi::{CStr, CString, c_char, c_int};
use std::path::PathBuf;
use std::time::Duration;

use percale::{DomainBuilder, TransportKind, Trust, TypeTwo};

use crate::abi::{FI_LOG_CORE, FI_PARAM_BOOL, FI_PARAM_INT, FI_PARAM_SIZE_T, FI_PARAM_STRING};
use crate::libfabric::{libfabric, provider};
use crate::log;
use crate::registration::mode;

/// One parameter: its name after `FI_PERCALE_`, its type, and its purpose.
struct Parameter {
    name: &'static CStr,
    kind: u32,
    help: &'static CStr,
}

const TRANSPORT: Parameter = Parameter {
    name: c"transport",
    kind: FI_PARAM_STRING,
    help: c"Allowed transports, separated by commas: shm, verbs, tcp, loopback (default: shm, tcp; overrides PERCALE_TRANSPORT)",
};
const INTERFACE: Parameter = Parameter {
    name: c"interface",
    kind: FI_PARAM_STRING,
    help: c"The only network interface to use (default: all, physical interfaces that are up first)",
};
const AUTHORIZATION_KEY: Parameter = Parameter {
    name: c"authorization_key",
    kind: FI_PARAM_STRING,
    help: c"A file with an authorization key, readable only by its owner; peers without the same key are rejected (default: none)",
};
const PEER_TIMEOUT: Parameter = Parameter {
    name: c"peer_timeout",
    kind: FI_PARAM_INT,
    help: c"Milliseconds for which a peer on another machine may be unreachable before its connection fails (default: 20000)",
};
const CONNECT_TIMEOUT: Parameter = Parameter {
    name: c"connect_timeout",
    kind: FI_PARAM_INT,
    help: c"Timeout of connection set-up in milliseconds (default: 5000 until the peer's host accepts, then 180000 until its process answers)",
};
const REVOKE_TIMEOUT: Parameter = Parameter {
    name: c"revoke_timeout",
    kind: FI_PARAM_INT,
    help: c"Milliseconds that closing a region waits for a peer in the middle of an access (default: 1000)",
};
const CMA: Parameter = Parameter {
    name: c"cma",
    kind: FI_PARAM_BOOL,
    help: c"Whether to copy between processes by process_vm_readv (default: if it works)",
};
const TRUST: Parameter = Parameter {
    name: c"trust",
    kind: FI_PARAM_STRING,
    help: c"Processes that access regions directly: user (local processes of the same user) or none (default: user)",
};
const UNEXPECTED_CAP: Parameter = Parameter {
    name: c"unexpected_cap",
    kind: FI_PARAM_SIZE_T,
    help: c"Bytes of unexpected messages of one peer that are buffered before the peer has to wait (default: 67108864)",
};
const SOCKET_BUFFERS: Parameter = Parameter {
    name: c"socket_buffers",
    kind: FI_PARAM_SIZE_T,
    help: c"Size of TCP socket buffers in bytes (default: chosen by measurement)",
};

const MR_MODE: Parameter = Parameter {
    name: c"mr_mode",
    kind: FI_PARAM_STRING,
    help: c"Registration modes to require of applications, for tests: local, raw, virt_addr, allocated, prov_key, \
mmu_notify, rma_event, endpoint, hmem, collective, separated by commas (default: none)",
};

const WINDOWS: Parameter = Parameter {
    name: c"windows",
    kind: FI_PARAM_STRING,
    help: c"Type of type 2 memory windows (percale_fi_ext.h): 2A or 2B (default: 2B)",
};

const ALL: [&Parameter; 12] = [
    &TRANSPORT,
    &INTERFACE,
    &AUTHORIZATION_KEY,
    &PEER_TIMEOUT,
    &CONNECT_TIMEOUT,
    &REVOKE_TIMEOUT,
    &CMA,
    &TRUST,
    &UNEXPECTED_CAP,
    &SOCKET_BUFFERS,
    &MR_MODE,
    &WINDOWS,
];

/// The error for an invalid parameter.
#[derive(Debug, thiserror::Error)]
#[error("FI_PERCALE_{}: {why}", name.to_uppercase())]
pub(crate) struct ParamError {
    name: String,
    why: String,
}

/// The parameters that were set. `None` selects the default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Params {
    /// The allowed transports.
    pub(crate) transport: Option<Vec<TransportKind>>,
    /// The only interface to offer.
    pub(crate) interface: Option<String>,
    /// The path of the key file, and the key.
    pub(crate) authorization_key: Option<(PathBuf, Vec<u8>)>,
    /// The time for which a peer may be unreachable.
    pub(crate) peer_timeout: Option<Duration>,
    /// The timeout for connecting.
    pub(crate) connect_timeout: Option<Duration>,
    /// The maximum time for which closing a region waits.
    pub(crate) revoke_timeout: Option<Duration>,
    /// Whether the kernel may copy data between processes.
    pub(crate) cma: Option<bool>,
    /// The trust in processes on the same host.
    pub(crate) trust: Option<Trust>,
    /// The maximum size of unexpected messages, in bytes.
    pub(crate) unexpected_cap: Option<usize>,
    /// The size of socket buffers, in bytes.
    pub(crate) socket_buffers: Option<usize>,
    /// The bits of `mr_mode` that applications must offer.
    pub(crate) mr_mode: Option<c_int>,
    /// The type of type 2 windows.
    pub(crate) windows: Option<TypeTwo>,
}

/// Defines the parameters in libfabric (shown by `fi_info -e`).
pub(crate) fn define() {
    let (Some(define), Some(provider)) = (libfabric().param_define, provider()) else { return };
    for one in ALL {
        // SAFETY: the provider structure is a static. The texts end with a zero byte, and the help text has no format
        // conversions.
        let code = unsafe { define(provider, one.name.as_ptr(), one.kind, one.help.as_ptr()) };
        if code != 0 {
            log::warning!(FI_LOG_CORE, "parameter {:?} cannot be defined: {code}", one.name);
        }
    }
}

impl Params {
    /// Reads all parameters.
    ///
    /// # Errors
    /// Returns the first invalid parameter, with the reason.
    pub(crate) fn read() -> Result<Self, ParamError> {
        Self::from(&text)
    }

    fn from(text: &dyn Fn(&Parameter) -> Option<String>) -> Result<Self, ParamError> {
        Ok(Self {
            transport: parsed(text, &TRANSPORT, |names| {
                let names = names.split(',').map(str::trim).filter(|name| !name.is_empty());
                names.map(|name| name.parse().map_err(|error| format!("{error}"))).collect::<Result<Vec<_>, _>>()
            })?
            .filter(|kinds| !kinds.is_empty()),
            interface: parsed(text, &INTERFACE, |name| Ok(name.to_owned()))?.filter(|name| !name.is_empty()),
            authorization_key: parsed(text, &AUTHORIZATION_KEY, |path| key(path.into()))?,
            peer_timeout: parsed(text, &PEER_TIMEOUT, milliseconds)?,
            connect_timeout: parsed(text, &CONNECT_TIMEOUT, milliseconds)?,
            revoke_timeout: parsed(text, &REVOKE_TIMEOUT, milliseconds)?,
            cma: parsed(text, &CMA, boolean)?,
            trust: parsed(text, &TRUST, |name| match name {
                "user" => Ok(Trust::SameUser),
                "none" => Ok(Trust::None),
                other => Err(format!("{other:?} is neither user nor none")),
            })?,
            unexpected_cap: parsed(text, &UNEXPECTED_CAP, bytes)?,
            socket_buffers: parsed(text, &SOCKET_BUFFERS, bytes)?,
            mr_mode: parsed(text, &MR_MODE, mode::parse)?,
            windows: parsed(text, &WINDOWS, |name| match name {
                "2A" => Ok(TypeTwo::A),
                "2B" => Ok(TypeTwo::B),
                other => Err(format!("{other:?} is neither 2A nor 2B")),
            })?,
        })
    }

    /// Applies the parameters to a domain's builder.
    pub(crate) fn apply(&self, mut domain: DomainBuilder) -> DomainBuilder {
        for kind in self.transport.iter().flatten() {
            domain = domain.transport(*kind);
        }
        if let Some(name) = &self.interface {
            domain = domain.interface(name);
        }
        if let Some((_, key)) = &self.authorization_key {
            domain = domain.authorization_key(key.clone());
        }
        if let Some(timeout) = self.peer_timeout {
            domain = domain.peer_timeout(timeout);
        }
        if let Some(timeout) = self.connect_timeout {
            domain = domain.connect_timeout(timeout);
        }
        if let Some(timeout) = self.revoke_timeout {
            domain = domain.revoke_timeout(timeout);
        }
        if let Some(allowed) = self.cma {
            domain = domain.cma(allowed);
        }
        if let Some(trust) = self.trust {
            domain = domain.trust(trust);
        }
        if let Some(bytes) = self.unexpected_cap {
            domain = domain.unexpected_cap(bytes);
        }
        if let Some(bytes) = self.socket_buffers {
            domain = domain.socket_buffers(bytes);
        }
        if let Some(two) = self.windows {
            domain = domain.windows(two);
        }
        domain
    }
}

/// Returns the value of a parameter as text, so that the same parsing applies to values from libfabric and from the
/// environment.
fn text(parameter: &Parameter) -> Option<String> {
    if let (Some(get), Some(provider)) = (libfabric().param_get, provider()) {
        return from_libfabric(get, provider, parameter.name, parameter.kind);
    }
    let name = parameter.name.to_string_lossy().to_uppercase();
    std::env::var(format!("FI_PERCALE_{name}")).ok()
}

/// Returns the value of one of libfabric's own parameters: the environment variable with `FI_` and this name. libfabric
/// itself defines these parameters, unless its version lacks the parameter.
pub(crate) fn core(name: &str, kind: u32) -> Option<String> {
    let found = libfabric().param_get.and_then(|get| {
        let name = CString::new(name.to_lowercase()).ok()?;
        from_libfabric(get, std::ptr::null_mut(), &name, kind)
    });
    found.or_else(|| std::env::var(format!("FI_{name}")).ok())
}

/// Reads a parameter from libfabric. If the value is invalid for the type, libfabric logs that and the result is
/// `None`.
fn from_libfabric(
    get: unsafe extern "C" fn(*mut crate::abi::fi_provider, *const c_char, *mut std::ffi::c_void) -> c_int,
    provider: *mut crate::abi::fi_provider,
    name: &CStr,
    kind: u32,
) -> Option<String> {
    match kind {
        FI_PARAM_STRING => {
            let mut value: *mut c_char = std::ptr::null_mut();
            // SAFETY: libfabric writes one pointer for a string parameter.
            let code = unsafe { get(provider, name.as_ptr(), (&raw mut value).cast()) };
            if code != 0 || value.is_null() {
                return None;
            }
            // SAFETY: libfabric returned a text that ends with a zero byte and lives as long as the environment.
            Some(unsafe { CStr::from_ptr(value) }.to_string_lossy().into_owned())
        }
        FI_PARAM_SIZE_T => {
            let mut value = 0usize;
            // SAFETY: libfabric writes one size_t for a size_t parameter.
            let code = unsafe { get(provider, name.as_ptr(), (&raw mut value).cast()) };
            (code == 0).then(|| value.to_string())
        }
        _ => {
            let mut value: c_int = 0;
            // SAFETY: libfabric writes one int for an int or bool parameter.
            let code = unsafe { get(provider, name.as_ptr(), (&raw mut value).cast()) };
            (code == 0).then(|| value.to_string())
        }
    }
}

fn parsed<T>(
    text: &dyn Fn(&Parameter) -> Option<String>,
    parameter: &Parameter,
    parse: impl Fn(&str) -> Result<T, String>,
) -> Result<Option<T>, ParamError> {
    let Some(value) = text(parameter) else { return Ok(None) };
    let refused = |why| ParamError { name: parameter.name.to_string_lossy().into_owned(), why };
    parse(value.trim()).map(Some).map_err(refused)
}

fn milliseconds(value: &str) -> Result<Duration, String> {
    match value.parse() {
        Ok(0) | Err(_) => Err(format!("{value:?} is not a number of milliseconds above 0")),
        Ok(count) => Ok(Duration::from_millis(count)),
    }
}

fn bytes(value: &str) -> Result<usize, String> {
    value.parse().map_err(|_| format!("{value:?} is not a number of bytes"))
}

/// Parses a boolean as libfabric does.
fn boolean(value: &str) -> Result<bool, String> {
    match value.to_lowercase().as_str() {
        "1" | "true" | "yes" | "on" => Ok(true),
        "0" | "false" | "no" | "off" => Ok(false),
        _ => Err(format!("{value:?} is neither yes nor no")),
    }
}

fn key(path: PathBuf) -> Result<(PathBuf, Vec<u8>), String> {
    match percale::domain::read_authorization_key(&path) {
        Ok(key) => Ok((path, key)),
        Err(error) => Err(format!("{}: {error}", path.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::{FI_MR_LOCAL, FI_MR_RAW};

    fn with(name: &'static CStr, value: &'static str) -> Result<Params, ParamError> {
        Params::from(&move |one| (one.name == name).then(|| value.to_owned()))
    }

    #[test]
    fn unset_parameters_are_defaults() {
        assert_eq!(Params::from(&|_| None).unwrap(), Params::default());
        assert_eq!(Params::read().unwrap(), Params::default(), "no FI_PERCALE_* is set in unit tests");
    }

    #[test]
    fn parameter_values_are_parsed_by_type() {
        let set = |name, value| with(name, value).unwrap();
        assert_eq!(set(c"transport", "shm, tcp").transport, Some(vec![TransportKind::Shm, TransportKind::Tcp]));
        assert_eq!(set(c"transport", " ").transport, None);
        assert_eq!(set(c"interface", "eth1").interface.as_deref(), Some("eth1"));
        assert_eq!(set(c"peer_timeout", "1500").peer_timeout, Some(Duration::from_millis(1500)));
        assert_eq!(set(c"cma", "No").cma, Some(false));
        assert_eq!(set(c"trust", "none").trust, Some(Trust::None));
        assert_eq!(set(c"unexpected_cap", "0").unexpected_cap, Some(0));
        assert_eq!(set(c"socket_buffers", "65536").socket_buffers, Some(65536));
        assert_eq!(set(c"mr_mode", "raw, LOCAL").mr_mode, Some(FI_MR_RAW | FI_MR_LOCAL));
    }

    #[test]
    fn invalid_parameter_error_contains_name_and_value() {
        let wrong = [
            (c"transport", "carrier-pigeon"),
            (c"authorization_key", "/nonexistent/key"),
            (c"connect_timeout", "0"),
            (c"connect_timeout", "soon"),
            (c"cma", "perhaps"),
            (c"trust", "everybody"),
            (c"unexpected_cap", "-1"),
            (c"mr_mode", "scalable"),
            (c"windows", "1"),
        ];
        for (name, value) in wrong {
            let error = with(name, value).unwrap_err().to_string();
            let expected = format!("FI_PERCALE_{}: ", name.to_string_lossy().to_uppercase());
            assert!(error.starts_with(&expected), "{error}");
            assert!(error.contains(value), "{error}");
        }
    }

    #[test]
    fn parameters_are_applied_to_the_domain() {
        let params = with(c"transport", "loopback").unwrap();
        let domain = params.apply(percale::Info::discover().unwrap().domain()).open().unwrap();
        assert_eq!(domain.transports(), [TransportKind::Loopback]);
    }
}
