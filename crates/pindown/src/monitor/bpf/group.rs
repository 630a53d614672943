//! The number of a group of users, by its name.
#![expect(unsafe_code, reason = "getgrnam_r(3) has no safe wrapper here; each block states its own reason")]

use std::ffi::CString;
use std::io;
use std::mem::MaybeUninit;
use std::ptr;

/// The largest entry of the group database that is read: about 30,000 members.
const MOST_BYTES: usize = 1 << 20;
/// The number -1, by which chown(2) does not change the group.
const NO_GROUP: u32 = u32::MAX;

/// Returns the number of the group with this name, or the number itself if `group` is one.
///
/// # Errors
/// `NotFound` if there is no such group; `InvalidInput` if no group can have this number; otherwise errors of getgrnam_r(3).
pub(super) fn number(group: &str) -> io::Result<u32> {
    if let Some(number) = by_name(group)? {
        return Ok(number);
    }
    match group.parse() {
        Ok(NO_GROUP) => {
            let what = format!("{group} is not the number of a group: chown(2) uses it for \"no change\"");
            Err(io::Error::new(io::ErrorKind::InvalidInput, what))
        }
        Ok(number) => Ok(number),
        Err(_) => {
            let what = format!("there is no group {group}; create it (groupadd --system {group}), or use another one");
            Err(io::Error::new(io::ErrorKind::NotFound, what))
        }
    }
}

fn by_name(name: &str) -> io::Result<Option<u32>> {
    let name = CString::new(name)?;
    let mut space = vec![0; 1 << 10];
    loop {
        let mut group = MaybeUninit::<libc::group>::uninit();
        let mut found = ptr::null_mut();
        // SAFETY: the name ends with a zero, `group` and `found` may be written, and `space` has the given number of
        // bytes. All of them live through the call.
        let error = unsafe {
            libc::getgrnam_r(name.as_ptr(), group.as_mut_ptr(), space.as_mut_ptr(), space.len(), &raw mut found)
        };
        match error {
            0 if found.is_null() => return Ok(None),
            // SAFETY: the call has filled in `group`, and `found` points to it.
            0 => return Ok(Some(unsafe { group.assume_init() }.gr_gid)),
            // Some databases report a missing group by an error.
            libc::ENOENT | libc::ESRCH => return Ok(None),
            libc::ERANGE if space.len() < MOST_BYTES => space.resize(2 * space.len(), 0),
            error => return Err(io::Error::from_raw_os_error(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_found_by_name_and_by_number() {
        assert_eq!(number("root").expect("every system has it"), 0);
        assert_eq!(number("4242").expect("a number"), 4242);
        let error = number("no-such-group").expect_err("not in the database");
        assert!(error.to_string().contains("groupadd --system no-such-group"), "{error}");
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        assert!(number("a\0b").is_err());
        let error = number("4294967295").expect_err("-1");
        assert!(error.to_string().contains("4294967295 is not the number of a group"), "{error}");
    }
}
