//! Copies of bytes. 8 bytes are copied without a function call, other short copies do not call the C library, and
//! longer copies use the processor's wide registers.

#![expect(unsafe_code, reason = "copies through raw pointers; each block states its own reason")]

/// The maximum number of bytes that [`copy_short`] copies.
pub(super) const SHORT: usize = 64;

/// Copies at most 64 bytes. 8 bytes, the most common number, are copied without a function call.
///
/// # Safety
/// `from` is valid for reads and `to` for writes of `len` bytes, and they do not overlap.
#[inline(always)]
pub unsafe fn copy_short(from: *const u8, to: *mut u8, len: usize) {
    if len == 8 {
        // SAFETY: guaranteed by the caller.
        unsafe { to.copy_from_nonoverlapping(from, 8) };
    } else {
        // SAFETY: the caller meets the same requirements.
        unsafe { copy_odd(from, to, len) };
    }
}

/// Copies at most 64 bytes.
///
/// # Safety
/// As for [`copy_short`].
#[inline(never)]
unsafe fn copy_odd(from: *const u8, to: *mut u8, len: usize) {
    debug_assert!(len <= SHORT, "{len} bytes are more than {SHORT}");
    if len >= 32 {
        // SAFETY: passed on; 32 to 64 bytes.
        unsafe { copy_ends::<32>(from, to, len) };
    } else if len >= 16 {
        // SAFETY: passed on; 16 to 31 bytes.
        unsafe { copy_ends::<16>(from, to, len) };
    } else if len >= 8 {
        // SAFETY: passed on; 8 to 15 bytes.
        unsafe { copy_ends::<8>(from, to, len) };
    } else if len >= 4 {
        // SAFETY: passed on; 4 to 7 bytes.
        unsafe { copy_ends::<4>(from, to, len) };
    } else {
        for at in 0..len {
            // SAFETY: `at` is less than `len`, so the caller's guarantee covers it, here and below.
            let byte = unsafe { from.wrapping_add(at).read() };
            // SAFETY: as above.
            unsafe { to.wrapping_add(at).write(byte) };
        }
    }
}

/// Copies the first and the last `N` bytes, which overlap if there are fewer than `2 * N` bytes.
///
/// # Safety
/// As for [`copy_short`], and `N <= len <= 2 * N`.
#[inline]
unsafe fn copy_ends<const N: usize>(from: *const u8, to: *mut u8, len: usize) {
    let last = len - N;
    // SAFETY: `N <= len`, here and below.
    let first_bytes = unsafe { from.cast::<[u8; N]>().read() };
    // SAFETY: `last + N` is `len`, here and below.
    let last_bytes = unsafe { from.wrapping_add(last).cast::<[u8; N]>().read() };
    // SAFETY: as above.
    unsafe { to.cast::<[u8; N]>().write(first_bytes) };
    // SAFETY: as above.
    unsafe { to.wrapping_add(last).cast::<[u8; N]>().write(last_bytes) };
}

/// The maximum number of bytes that [`copy_long`] passes to the C library at a time. Above it the library uses the
/// processor's string instruction, which has a startup cost. That cost is high if another processor was the last to
/// write the lines.
const PIECE: usize = 2048;

/// The minimum size for which that instruction makes up for its startup cost, so that the whole copy is passed to the
/// library.
const WHOLE: usize = 16 << 10;

/// Copies any number of bytes.
///
/// # Safety
/// As for [`copy_short`].
#[inline]
pub(super) unsafe fn copy_long(from: *const u8, to: *mut u8, len: usize) {
    if len <= PIECE || len > WHOLE {
        // SAFETY: guaranteed by the caller.
        unsafe { to.copy_from_nonoverlapping(from, len) };
    } else {
        // SAFETY: the caller meets the same requirements.
        unsafe { copy_pieces(from, to, len) };
    }
}

/// Copies any number of bytes, in pieces.
///
/// # Safety
/// As for [`copy_short`].
#[inline(never)]
unsafe fn copy_pieces(from: *const u8, to: *mut u8, len: usize) {
    let mut done = 0;
    while done < len {
        let piece = PIECE.min(len - done);
        // SAFETY: `done + piece` is at most `len`, so the caller's guarantee covers the piece.
        unsafe { to.wrapping_add(done).copy_from_nonoverlapping(from.wrapping_add(done), piece) };
        done += piece;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_copies_move_their_bytes_and_no_others() {
        let from: Vec<u8> = (1..=64).collect();
        for len in 0..=64 {
            let mut to = [0; 70];
            // SAFETY: both have this many bytes and do not overlap.
            unsafe { copy_short(from.as_ptr(), to.as_mut_ptr().wrapping_add(3), len) };
            assert_eq!(to[3..3 + len], from[..len]);
            assert_eq!((to[..3].to_vec(), to[3 + len..].to_vec()), (vec![0; 3], vec![0; 67 - len]));
        }
    }

    #[test]
    fn long_copies_move_their_bytes_and_no_others() {
        let from: Vec<u8> = (0..WHOLE + 100).map(|at| (at % 251) as u8 + 1).collect();
        for len in [0, 1, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE, 3 * PIECE + 7, WHOLE, WHOLE + 1] {
            let mut to = vec![0; WHOLE + 100];
            // SAFETY: both have this many bytes and do not overlap.
            unsafe { copy_long(from.as_ptr(), to.as_mut_ptr().wrapping_add(3), len) };
            assert_eq!(to[3..3 + len], from[..len]);
            assert!(to[..3].iter().chain(&to[3 + len..]).all(|byte| *byte == 0));
        }
    }
}
