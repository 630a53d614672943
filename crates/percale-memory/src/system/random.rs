//! Random bytes.

use std::fs::File;
use std::io::{self, Read as _};

use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};

/// Fills `bytes` with random bytes from `getrandom`, or from `/dev/urandom` if that call is not permitted.
///
/// # Errors
/// The error of opening or reading `/dev/urandom`.
pub fn fill(bytes: &mut [u8]) -> io::Result<()> {
    let mut rest = &mut *bytes;
    while !rest.is_empty() {
        match getrandom(&mut *rest, GetRandomFlags::empty()) {
            Ok(0) | Err(Errno::INTR) => {}
            Ok(count) => rest = rest.get_mut(count..).unwrap_or_default(),
            Err(_) => return File::open("/dev/urandom")?.read_exact(rest),
        }
    }
    Ok(())
}

/// Returns random bytes from the operating system.
///
/// # Errors
/// If the system cannot provide random bytes.
pub fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    fill(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::{fill, random};

    #[test]
    fn random_fills_every_byte_of_any_length() {
        fill(&mut []).unwrap();
        // This is longer than one call of the kernel provides without interruption.
        let mut long = vec![0; 1 << 20];
        fill(&mut long).unwrap();
        assert!(long.chunks(64).all(|chunk| chunk.iter().any(|&byte| byte != 0)));
        assert_ne!(random::<16>().unwrap(), random::<16>().unwrap());
    }
}
