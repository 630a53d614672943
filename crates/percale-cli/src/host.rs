//! Parses an argument that names a host and a port.

/// Checks that the text has the form `HOST:PORT`.
pub(crate) fn host_and_port(text: &str) -> Result<String, String> {
    match text.rsplit_once(':') {
        Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => Ok(text.into()),
        _ => Err("a host and a port, such as node7:7471 or [::1]:7471".into()),
    }
}
