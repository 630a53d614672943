//! Tests in which threads operate on shared words with every family of operations. No update is lost, and fetched
//! values are consistent.

#![expect(unsafe_code, reason = "calls of `execute` on words of the tests")]

use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Mutex, PoisonError};
use std::thread;

use super::*;

const THREADS: u64 = 3;
const TIMES: u64 = 100_000;

/// Eight aligned bytes that threads share. They are used as one or more elements.
#[derive(Default)]
struct Word(AtomicU64);

impl Word {
    /// Executes one operation on element `at` of the word. Returns the previous value.
    fn apply<T: Number>(&self, op: AtomicOp, at: usize, operand: T, compare: T) -> T {
        assert!((at + 1) * size_of::<T>() <= 8);
        let mut result = T::default();
        let target = self.0.as_ptr().cast::<T>().wrapping_add(at).cast();
        let (operand, compare) = ((&raw const operand).cast(), (&raw const compare).cast());
        // SAFETY: the element is within the word, which threads access only through `execute` until they are joined;
        // the other values are on this stack.
        unsafe { execute(op, T::DATATYPE, target, operand, compare, (&raw mut result).cast(), 1) }.unwrap();
        result
    }

    /// Like [`apply`](Self::apply), for operations with one operand that do not fetch.
    fn plain<T: Number>(&self, op: AtomicOp, at: usize, operand: T) {
        assert!((at + 1) * size_of::<T>() <= 8);
        let target = self.0.as_ptr().cast::<T>().wrapping_add(at).cast();
        let (operand, null) = ((&raw const operand).cast(), std::ptr::null_mut());
        // SAFETY: as above.
        unsafe { execute(op, T::DATATYPE, target, operand, null, null, 1) }.unwrap();
    }

    fn read<T: Number>(&self, at: usize) -> T {
        self.apply(AtomicOp::Read, at, T::default(), T::default())
    }
}

/// An element type, and small numbers of that type.
trait Number: Copy + Debug + Default + PartialOrd + Sync {
    const DATATYPE: Datatype;
    fn of(number: u64) -> Self;
    fn to_u64(self) -> u64;
    /// Returns one half for floats, and 0 for integers.
    fn half() -> Self;
}

macro_rules! number {
    ($type:ty, $datatype:ident) => {
        impl Number for $type {
            const DATATYPE: Datatype = Datatype::$datatype;

            fn of(number: u64) -> Self {
                number as Self
            }

            fn to_u64(self) -> u64 {
                self as u64
            }

            fn half() -> Self {
                0.5 as Self
            }
        }
    };
}

number!(i8, I8);
number!(u8, U8);
number!(i16, I16);
number!(u16, U16);
number!(i32, I32);
number!(u32, U32);
number!(i64, I64);
number!(u64, U64);
number!(f32, F32);
number!(f64, F64);

/// Runs `each` in all threads at the same time, with the number of the thread. Returns the results.
fn in_threads<R: Send>(each: impl Fn(u64) -> R + Sync) -> Vec<R> {
    // Run one test at a time and start all its threads together. Otherwise each thread would finish before the next one
    // runs.
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let ready = AtomicU64::new(0);
    thread::scope(|scope| {
        let (each, ready) = (&each, &ready);
        let run = move |me| {
            ready.fetch_add(1, SeqCst);
            while ready.load(SeqCst) < THREADS {
                thread::yield_now();
            }
            each(me)
        };
        let threads: Vec<_> = (0..THREADS).map(|me| scope.spawn(move || run(me))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Runs a generic test for every type.
macro_rules! for_all_types {
    ($test:ident) => {
        $test::<i8>();
        $test::<u8>();
        $test::<i16>();
        $test::<u16>();
        $test::<i32>();
        $test::<u32>();
        $test::<i64>();
        $test::<u64>();
        $test::<f32>();
        $test::<f64>();
    };
}

/// Returns the number of steps of all threads together. It is chosen so that the sums are exact and do not wrap in the
/// type.
fn bounded<T: Number>() -> u64 {
    let most = match (T::DATATYPE.size(), T::DATATYPE.is_float()) {
        (1, _) => 100,
        (2, _) => 32_000,
        _ => u64::MAX,
    };
    (most / THREADS).min(TIMES)
}

/// Threads draw numbers by fetching sums: no number is drawn twice or left out. Sums that do not fetch also count.
fn sums<T: Number>() {
    let (word, times, last) = (Word::default(), bounded::<T>(), 8 / size_of::<T>() - 1);
    let taken = in_threads(|_| {
        let take = |_| word.apply(AtomicOp::Sum, last, T::of(1), T::default()).to_u64();
        (0..times).map(take).collect::<Vec<_>>()
    });
    let mut taken = taken.concat();
    taken.sort_unstable();
    assert_eq!(taken, (0..THREADS * times).collect::<Vec<_>>());
    let word = Word::default();
    in_threads(|_| (0..TIMES).for_each(|_| word.plain(AtomicOp::Sum, last, T::of(1))));
    assert_eq!(word.read::<T>(last), T::of(THREADS * TIMES), "the sum wraps around");
    if last > 0 {
        assert_eq!(word.read::<T>(last - 1), T::default(), "the adjacent element");
    }
}

#[test]
fn concurrent_sums_lose_no_update() {
    for_all_types!(sums);
}

/// Each value that is stored by a swap is fetched once, or is the final value.
fn swaps<T: Number>() {
    let (word, times) = (Word::default(), bounded::<T>());
    let came_out = in_threads(|me| {
        let put = |n| word.apply(AtomicOp::Write, 0, T::of(1 + me * times + n), T::default()).to_u64();
        (0..times).map(put).collect::<Vec<_>>()
    });
    let mut all = came_out.concat();
    all.push(word.read::<T>(0).to_u64());
    all.sort_unstable();
    assert_eq!(all, (0..=THREADS * times).collect::<Vec<_>>());
}

#[test]
fn swaps_conserve_values() {
    for_all_types!(swaps);
}

/// An increment by compare-and-swap succeeds once for each value. This also holds if the comparison is "not less",
/// because the word only increases and so is never less than the value that was read.
fn increments<T: Number>() {
    let times = bounded::<T>() / 2;
    for op in [AtomicOp::Cswap, AtomicOp::CswapGe] {
        let word = Word::default();
        let taken = in_threads(|_| {
            let (mut taken, mut seen) = (Vec::new(), T::default());
            while (taken.len() as u64) < times {
                let before = word.apply(op, 0, T::of(seen.to_u64() + 1), seen);
                if before == seen {
                    taken.push(before.to_u64());
                }
                seen = word.read(0);
            }
            taken
        });
        let mut taken = taken.concat();
        taken.sort_unstable();
        assert_eq!(taken, (0..THREADS * times).collect::<Vec<_>>(), "{op}");
    }
}

#[test]
fn increments_by_comparison_succeed_once_for_each_value() {
    for_all_types!(increments);
}

/// The word has room for one token. Each thread stores its tokens when the word is empty (0), and takes a token when it
/// is not. Each token is taken once.
fn tokens<T: Number>() {
    let (word, times, empty) = (Word::default(), bounded::<T>() / 4, T::default());
    let taken = in_threads(|me| {
        let (mut taken, mut put) = (Vec::new(), 0);
        while put < times {
            let token = 1 + me * times + put;
            put += u64::from(word.apply(AtomicOp::Cswap, 0, T::of(token), empty) == empty);
            let before = word.apply(AtomicOp::CswapNe, 0, empty, empty);
            if before != empty {
                taken.push(before.to_u64());
            }
        }
        taken
    });
    let mut taken = taken.concat();
    taken.sort_unstable();
    assert_eq!(taken, (1..=THREADS * times).collect::<Vec<_>>());
    assert_eq!(word.read::<T>(0), empty);
}

#[test]
fn tokens_are_put_and_taken_once() {
    for_all_types!(tokens);
}

/// Each thread offers values in a different order. The extreme of all values remains, and the fetched values are
/// monotonic.
fn extremes<T: Number>() {
    let times = bounded::<T>();
    let largest = THREADS * times;
    let offers = |me: u64| (0..times).map(move |n| 1 + me * times + n * 7919 % times);
    for op in [AtomicOp::Max, AtomicOp::CswapGt, AtomicOp::CswapGe] {
        let word = Word::default();
        in_threads(|me| {
            let fetched = offers(me).map(|n| word.apply(op, 0, T::of(n), T::of(n))).collect::<Vec<_>>();
            assert!(fetched.is_sorted(), "{op}");
        });
        assert_eq!(word.read::<T>(0).to_u64(), largest, "{op}");
    }
    for op in [AtomicOp::Min, AtomicOp::CswapLt, AtomicOp::CswapLe] {
        let word = Word::default();
        word.plain(AtomicOp::Write, 0, T::of(largest + 1));
        in_threads(|me| {
            let fetched = offers(me).map(|n| word.apply(op, 0, T::of(n), T::of(n))).collect::<Vec<_>>();
            assert!(fetched.iter().rev().is_sorted(), "{op}");
        });
        assert_eq!(word.read::<T>(0).to_u64(), 1, "{op}");
    }
}

#[test]
fn concurrent_min_and_max_keep_extremes() {
    for_all_types!(extremes);
}

/// Threads multiply. Integers are multiplied by an odd number, so that the result shows the number of multiplications.
/// Floats are multiplied by 2 and by its inverse in turn.
fn products<T: Number>() {
    let word = Word::default();
    word.plain(AtomicOp::Write, 0, T::of(1));
    in_threads(|_| {
        for _ in 0..TIMES / 2 {
            if T::DATATYPE.is_float() {
                word.plain(AtomicOp::Prod, 0, T::of(2));
                word.apply(AtomicOp::Prod, 0, T::half(), T::default());
            } else {
                word.plain(AtomicOp::Prod, 0, T::of(3));
                word.apply(AtomicOp::Prod, 0, T::of(3), T::default());
            }
        }
    });
    let power = if T::DATATYPE.is_float() { 1 } else { 3u64.wrapping_pow((THREADS * TIMES) as u32) };
    assert_eq!(word.read::<T>(0), T::of(power));
}

#[test]
fn products_lose_no_factor() {
    for_all_types!(products);
}

/// Threads set, clear and invert a flag. The number of successful changes matches the flag's final value.
fn flags<T: Number>() {
    let (word, no, yes) = (Word::default(), T::default(), T::of(1));
    let balances = in_threads(|_| {
        let mut balance = 0i64;
        for _ in 0..TIMES / 2 {
            balance += i64::from(word.apply(AtomicOp::Lor, 0, yes, no) == no);
            balance -= i64::from(word.apply(AtomicOp::Land, 0, no, no) != no);
            balance += if word.apply(AtomicOp::Lxor, 0, T::of(2), no) == no { 1 } else { -1 };
        }
        balance
    });
    assert_eq!(balances.iter().sum::<i64>(), word.read::<T>(0).to_u64() as i64);
}

#[test]
fn flags_are_won_once() {
    for_all_types!(flags);
}

/// Each thread has its own bit. Changes of other bits by other threads do not affect it.
fn bits<T: Number>() {
    let word = Word::default();
    in_threads(|me| {
        let bit = 1 << (2 * me);
        let no = T::default();
        let was = |before: T, expected: bool| assert_eq!(before.to_u64() & bit != 0, expected, "bit {bit:#x}");
        for _ in 0..TIMES / 4 {
            was(word.apply(AtomicOp::Bor, 0, T::of(bit), no), false);
            was(word.apply(AtomicOp::Band, 0, T::of(!bit), no), true);
            was(word.apply(AtomicOp::Bxor, 0, T::of(bit), no), false);
            was(word.apply(AtomicOp::Mswap, 0, no, T::of(bit)), true);
            was(word.apply(AtomicOp::Mswap, 0, T::of(u64::MAX), T::of(bit)), false);
            word.plain(AtomicOp::Bxor, 0, T::of(bit));
            word.plain(AtomicOp::Bor, 0, T::of(bit));
            word.plain(AtomicOp::Band, 0, T::of(!bit));
            was(word.read(0), false);
        }
    });
    assert_eq!(word.read::<u64>(0), 0);
}

#[test]
fn concurrent_bit_operations_keep_other_bits() {
    bits::<i8>();
    bits::<u8>();
    bits::<i16>();
    bits::<u16>();
    bits::<i32>();
    bits::<u32>();
    bits::<i64>();
    bits::<u64>();
}
