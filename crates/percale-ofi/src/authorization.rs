//! Authorization keys in the attributes of fi_domain(3), fi_endpoint(3) and fi_mr(3).

use percale::domain::KEY_LIMIT;

use crate::abi::{FI_AV_AUTH_KEY, FI_LOG_DOMAIN};
use crate::log;

/// Reads the key in the attributes of `call`. Returns `None` if the attributes have no key.
///
/// # Errors
/// Returns the positive error code if the key is invalid. An object is never opened without the key that was requested
/// for it.
///
/// # Safety
/// `from` is null or readable for `size` bytes, unless `size` exceeds the maximum key length.
pub(crate) unsafe fn read(call: &str, from: *const u8, size: usize) -> Result<Option<Vec<u8>>, i32> {
    if size == 0 {
        return Ok(None);
    }
    if size == FI_AV_AUTH_KEY {
        log::warning!(FI_LOG_DOMAIN, "{call}: keys of address vectors (FI_AV_AUTH_KEY) are not supported");
        return Err(libc::EINVAL);
    }
    if from.is_null() || size > KEY_LIMIT {
        log::warning!(
            FI_LOG_DOMAIN,
            "{call}: an authorization key must not be null and has at most {KEY_LIMIT} bytes, not {size}"
        );
        return Err(libc::EINVAL);
    }
    // SAFETY: the caller guarantees this.
    Ok(Some(unsafe { std::slice::from_raw_parts(from, size) }.to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn authorization_key_is_read_or_rejected() {
        let bytes = [7; KEY_LIMIT];
        // SAFETY: the buffer has `size` bytes, or `size` exceeds the maximum key length.
        let read = |from, size| unsafe { read("fi_endpoint", from, size) };
        assert_eq!(read(std::ptr::null(), 0), Ok(None));
        assert_eq!(read(bytes.as_ptr(), 0), Ok(None));
        assert_eq!(read(bytes.as_ptr(), 3), Ok(Some(vec![7; 3])));
        assert_eq!(read(bytes.as_ptr(), KEY_LIMIT), Ok(Some(vec![7; KEY_LIMIT])));
        assert_eq!(read(bytes.as_ptr(), KEY_LIMIT + 1), Err(libc::EINVAL));
        assert_eq!(read(std::ptr::null(), 3), Err(libc::EINVAL));
        assert_eq!(read(bytes.as_ptr(), FI_AV_AUTH_KEY), Err(libc::EINVAL));
    }
}
