//! Random bytes.

/// Returns random bytes from the operating system.
///
/// # Errors
/// If the system provides none.
pub fn random<const N: usize>() -> std::io::Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|error| std::io::Error::other(error.to_string()))?;
    Ok(bytes)
}
