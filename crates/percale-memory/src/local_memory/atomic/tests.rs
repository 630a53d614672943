//! Tests of the validity of all operations, and of their results, which are compared with a simple model.

#![expect(unsafe_code, reason = "calls of `execute` on arrays of the tests")]

use proptest::prelude::*;

use super::*;

/// Returns every combination that [`is_valid`] allows.
fn valid() -> impl Iterator<Item = (AtomicKind, AtomicOp, Datatype)> {
    [AtomicKind::Plain, AtomicKind::Fetch, AtomicKind::Compare]
        .into_iter()
        .flat_map(|kind| AtomicOp::ALL.map(|op| (kind, op)))
        .flat_map(|(kind, op)| Datatype::ALL.map(|datatype| (kind, op, datatype)))
        .filter(|&(kind, op, datatype)| is_valid(kind, op, datatype))
}

/// Compares with the table of fi_atomic(3), which lists for each kind the operations on integers and on floats.
#[test]
fn validity_matches_fi_atomic() {
    use AtomicOp::*;
    let simple = [Min, Max, Sum, Prod, Lor, Land, Lxor, Write];
    let bits = [Bor, Band, Bxor];
    let compares = [Cswap, CswapNe, CswapLe, CswapLt, CswapGe, CswapGt];
    let table = [
        (AtomicKind::Plain, [&simple[..], &bits].concat(), simple.to_vec()),
        (AtomicKind::Fetch, [&simple[..], &bits, &[Read]].concat(), [&simple[..], &[Read]].concat()),
        (AtomicKind::Compare, [&compares[..], &[Mswap]].concat(), compares.to_vec()),
    ];
    for (kind, integers, floats) in table {
        for op in AtomicOp::ALL {
            for datatype in Datatype::ALL {
                let expected = if datatype.is_float() { &floats } else { &integers };
                assert_eq!(is_valid(kind, op, datatype), expected.contains(&op), "{kind:?} {op} {datatype}");
            }
        }
    }
    assert_eq!(valid().count(), 11 * 8 + 8 * 2 + 12 * 8 + 9 * 2 + 7 * 8 + 6 * 2);
}

#[test]
fn numbers_and_names_match_libfabric_and_round_trip() {
    for (number, op) in (0..).zip(AtomicOp::ALL) {
        assert_eq!((op.to_u8(), AtomicOp::from_u8(number)), (number, Some(op)));
    }
    for (number, datatype) in (0..).zip(Datatype::ALL) {
        assert_eq!((datatype.to_u8(), Datatype::from_u8(number)), (number, Some(datatype)));
    }
    assert_eq!((AtomicOp::from_u8(19), Datatype::from_u8(10)), (None, None));
    // From <rdma/fabric.h>: FI_ATOMIC_READ, FI_CSWAP, FI_MSWAP; FI_UINT64, FI_DOUBLE.
    assert_eq!([AtomicOp::Read, AtomicOp::Cswap, AtomicOp::Mswap].map(AtomicOp::to_u8), [10, 12, 18]);
    assert_eq!([Datatype::U64, Datatype::F64].map(Datatype::to_u8), [7, 9]);
    let names = AtomicOp::ALL.map(|op| op.to_string()).join(" ");
    let expected = "min max sum prod lor land bor band lxor bxor read write \
                    cswap cswap_ne cswap_le cswap_lt cswap_ge cswap_gt mswap";
    assert_eq!(names, expected);
    let names = Datatype::ALL.map(|datatype| datatype.to_string()).join(" ");
    assert_eq!(names, "int8 uint8 int16 uint16 int32 uint32 int64 uint64 float double");
    assert_eq!(format!("{:>6}|{:<8}|", AtomicOp::Sum, Datatype::I8), "   sum|int8    |");
}

/// Elements of one datatype in memory, at an address that is `skew` bytes after an 8-byte boundary.
struct Memory {
    words: Vec<u64>,
    skew: usize,
    size: usize,
}

impl Memory {
    fn new(datatype: Datatype, values: &[u64], skew: usize) -> Self {
        let size = datatype.size();
        let mut memory = Self { words: vec![0xA5A5_A5A5_A5A5_A5A5; (skew + size * values.len()) / 8 + 2], skew, size };
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_ne_bytes()[..size].to_vec()).collect();
        // SAFETY: there is room for the skew and all bytes.
        unsafe { memory.as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        memory
    }

    fn as_ptr(&mut self) -> *mut u8 {
        self.words.as_mut_ptr().cast::<u8>().wrapping_add(self.skew)
    }

    /// Returns the elements, each in the low bits of a word, and the bytes around them.
    fn values(&self, count: usize) -> (Vec<u64>, Vec<u8>) {
        let bytes: Vec<u8> = self.words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let end = self.skew + count * self.size;
        let value = |element: &[u8]| {
            let mut word = [0; 8];
            word[..element.len()].copy_from_slice(element);
            u64::from_le_bytes(word)
        };
        let values = bytes[self.skew..end].chunks(self.size).map(value).collect();
        (values, [&bytes[..self.skew], &bytes[end..]].concat())
    }
}

/// The minimum or maximum of two floats; a number if the other is a NaN. `f64::min` returns a NaN on AArch64 if one of the
/// two is a signaling NaN.
macro_rules! extreme {
    ($one:expr, $which:ident, $other:expr) => {
        if $one.is_nan() {
            $other
        } else if $other.is_nan() {
            $one
        } else {
            $one.$which($other)
        }
    };
}

/// Computes the new bits of one element from the old bits, as a model. Integers are computed in wide types and
/// truncated.
fn model(op: AtomicOp, datatype: Datatype, t: u64, o: u64, c: u64) -> u64 {
    use Datatype::*;
    match datatype {
        I8 => integer(op, (t as i8).into(), (o as i8).into(), (c as i8).into()) & 0xFF,
        U8 => integer(op, (t as u8).into(), (o as u8).into(), (c as u8).into()) & 0xFF,
        I16 => integer(op, (t as i16).into(), (o as i16).into(), (c as i16).into()) & 0xFFFF,
        U16 => integer(op, (t as u16).into(), (o as u16).into(), (c as u16).into()) & 0xFFFF,
        I32 => integer(op, (t as i32).into(), (o as i32).into(), (c as i32).into()) & 0xFFFF_FFFF,
        U32 => integer(op, (t as u32).into(), (o as u32).into(), (c as u32).into()) & 0xFFFF_FFFF,
        I64 => integer(op, (t as i64).into(), (o as i64).into(), (c as i64).into()),
        U64 => integer(op, t.into(), o.into(), c.into()),
        F32 => {
            let [t, o, c] = [t, o, c].map(|bits| f32::from_bits(bits as u32));
            pick(op, [t, o, c], [extreme!(t, min, o), extreme!(t, max, o), t + o, t * o], [0.0, 1.0]).to_bits().into()
        }
        F64 => {
            let [t, o, c] = [t, o, c].map(f64::from_bits);
            pick(op, [t, o, c], [extreme!(t, min, o), extreme!(t, max, o), t + o, t * o], [0.0, 1.0]).to_bits()
        }
    }
}

fn integer(op: AtomicOp, t: i128, o: i128, c: i128) -> u64 {
    let new = match op {
        AtomicOp::Bor => t | o,
        AtomicOp::Band => t & o,
        AtomicOp::Bxor => t ^ o,
        AtomicOp::Mswap => (o & c) | (t & !c),
        _ => pick(op, [t, o, c], [t.min(o), t.max(o), t + o, t.wrapping_mul(o)], [0, 1]),
    };
    new as u64
}

/// Selects the new value from the results of the arithmetic operations, and computes the other operations, which are
/// the same for all types.
fn pick<T: PartialOrd>(op: AtomicOp, [t, o, c]: [T; 3], [min, max, sum, product]: [T; 4], [zero, one]: [T; 2]) -> T {
    let if_so = |is_so: bool, yes, no| if is_so { yes } else { no };
    match op {
        AtomicOp::Min => min,
        AtomicOp::Max => max,
        AtomicOp::Sum => sum,
        AtomicOp::Prod => product,
        AtomicOp::Lor => if_so(t != zero || o != zero, one, zero),
        AtomicOp::Land => if_so(t != zero && o != zero, one, zero),
        AtomicOp::Lxor => if_so((t != zero) != (o != zero), one, zero),
        AtomicOp::Read => t,
        AtomicOp::Write => o,
        AtomicOp::Cswap => if_so(c == t, o, t),
        AtomicOp::CswapNe => if_so(c != t, o, t),
        AtomicOp::CswapLe => if_so(c <= t, o, t),
        AtomicOp::CswapLt => if_so(c < t, o, t),
        AtomicOp::CswapGe => if_so(c >= t, o, t),
        AtomicOp::CswapGt => if_so(c > t, o, t),
        AtomicOp::Bor | AtomicOp::Band | AtomicOp::Bxor | AtomicOp::Mswap => unreachable!("not for all types"),
    }
}

/// Returns whether the bits are equal. For floats that are computed, all NaNs are equal, and the model allows either of
/// two equal zeros.
fn is_same(op: AtomicOp, datatype: Datatype, is: u64, expected: u64) -> bool {
    let of = |bits: u64| match datatype {
        Datatype::F32 => f64::from(f32::from_bits(bits as u32)),
        _ => f64::from_bits(bits),
    };
    let is_extreme = matches!(op, AtomicOp::Min | AtomicOp::Max);
    let computes = is_extreme || matches!(op, AtomicOp::Sum | AtomicOp::Prod);
    let any_nan = computes && of(is).is_nan() && of(expected).is_nan();
    is == expected || datatype.is_float() && (any_nan || is_extreme && of(is) == of(expected))
}

/// Generates element values of all sizes and signs, which are often equal, and special floats.
fn value(datatype: Datatype) -> BoxedStrategy<u64> {
    let whole = -3..4i8;
    let special = prop::sample::select(vec![0.0, -0.0, 1.5, -1.5, f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1e300]);
    let mask = u64::MAX >> (64 - 8 * datatype.size());
    match datatype {
        Datatype::F32 => prop_oneof![
            any::<u32>().prop_map(u64::from),
            whole.prop_map(|n| f32::from(n).to_bits().into()),
            special.prop_map(|x| (x as f32).to_bits().into()),
        ]
        .boxed(),
        Datatype::F64 => {
            prop_oneof![any::<u64>(), whole.prop_map(|n| f64::from(n).to_bits()), special.prop_map(f64::to_bits)]
                .boxed()
        }
        _ => prop_oneof![any::<u64>(), whole.prop_map(|n| i64::from(n) as u64), (0..64u32).prop_map(|bit| 1 << bit)]
            .prop_map(move |bits| bits & mask)
            .boxed(),
    }
}

fn check(kind: AtomicKind, op: AtomicOp, datatype: Datatype, values: &[[u64; 3]], skews: [usize; 3], at: usize) {
    let column = |which: usize| values.iter().map(|value| value[which]).collect::<Vec<_>>();
    let count = values.len();
    let mut target = Memory::new(datatype, &column(0), at * datatype.size());
    let mut operand = Memory::new(datatype, &column(1), skews[0]);
    let mut compare = Memory::new(datatype, &column(2), skews[1]);
    let mut result = Memory::new(datatype, &vec![0; count], skews[2]);
    let around = [target.values(count).1, result.values(count).1];
    let null = std::ptr::null_mut();
    let (compared, fetched) = match kind {
        AtomicKind::Plain => (null, null),
        AtomicKind::Fetch => (null, result.as_ptr()),
        AtomicKind::Compare => (compare.as_ptr(), result.as_ptr()),
    };
    let read = if op == AtomicOp::Read { null } else { operand.as_ptr() };
    // SAFETY: each array has `count` elements and belongs to this test; unused pointers are null.
    let done = unsafe { execute(op, datatype, target.as_ptr(), read, compared, fetched, count) };
    assert_eq!(done, Ok(()));

    let (after, before) = (target.values(count), result.values(count));
    assert_eq!(around, [after.1, before.1], "{kind:?} {op} {datatype}: bytes next to the array");
    for (at, &[t, o, c]) in values.iter().enumerate() {
        let expected = model(op, datatype, t, o, c);
        let is = after.0[at];
        assert!(
            is_same(op, datatype, is, expected),
            "{kind:?} {op} {datatype} {t:#x} {o:#x} {c:#x}: {is:#x} and not {expected:#x}"
        );
        let fetches = kind != AtomicKind::Plain;
        assert_eq!(before.0[at], if fetches { t } else { 0 }, "{kind:?} {op} {datatype}: the value before");
    }
    assert_eq!([operand.values(count).0, compare.values(count).0], [column(1), column(2)], "operands are not written");
}

/// Tests every valid combination of kind, operation and datatype. Arrays have 0 to 5 elements, operands and results are
/// at arbitrary addresses, and targets are at each multiple of the element size.
///
/// Requirements: ATM-001.
#[test]
fn every_operation_agrees_with_the_model() {
    for (kind, op, datatype) in valid() {
        let values = prop::collection::vec(prop::array::uniform3(value(datatype)), 0..6);
        let config = ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() };
        proptest!(config, |(values in values, skews in prop::array::uniform3(0..8usize), at in 0..8usize)| {
            check(kind, op, datatype, &values, skews, at);
        });
    }
}

/// The special cases that the documentation defines.
#[test]
fn floats_compare_as_values() {
    let once = |op, t: f64, o: f64, c: f64| {
        let (mut target, mut result) = (t, 0.0);
        let (to, from, with) = ((&raw mut target).cast(), (&raw const o).cast(), (&raw const c).cast());
        // SAFETY: all pointers refer to one element on this stack.
        unsafe { execute(op, Datatype::F64, to, from, with, (&raw mut result).cast(), 1) }.unwrap();
        assert_eq!(f64::to_bits(result), t.to_bits());
        target
    };
    assert_eq!(once(AtomicOp::Cswap, -0.0, 5.0, 0.0), 5.0);
    assert!(once(AtomicOp::Cswap, f64::NAN, 5.0, f64::NAN).is_nan(), "a NaN equals nothing");
    assert_eq!(once(AtomicOp::CswapNe, f64::NAN, 5.0, f64::NAN), 5.0);
    assert_eq!(once(AtomicOp::CswapGe, 1.0, 5.0, f64::NAN), 1.0);
    assert_eq!(once(AtomicOp::Min, f64::NAN, 5.0, 0.0), 5.0);
    assert_eq!(once(AtomicOp::Max, 5.0, f64::NAN, 0.0), 5.0);
    assert!(
        once(AtomicOp::Min, -0.0, 0.0, 0.0).is_sign_negative()
            && once(AtomicOp::Min, 0.0, -0.0, 0.0).is_sign_positive()
    );
    assert_eq!(once(AtomicOp::Lor, f64::NAN, 0.0, 0.0), 1.0);
    assert_eq!(once(AtomicOp::Lor, -0.0, 0.0, 0.0).to_bits(), 0);
}

#[test]
fn a_misaligned_target_is_refused_and_nothing_is_done() {
    for (kind, op, datatype) in valid() {
        for skew in 1..datatype.size() {
            let mut target = Memory::new(datatype, &[1, 2, 3], skew);
            let mut operand = Memory::new(datatype, &[3, 1, 7], 0);
            let mut result = Memory::new(datatype, &[9, 9, 9], 0);
            let fetched = if kind == AtomicKind::Plain { std::ptr::null_mut() } else { result.as_ptr() };
            let (to, from) = (target.as_ptr(), operand.as_ptr());
            // SAFETY: all arrays belong to this test and have three elements.
            let done = unsafe { execute(op, datatype, to, from, from, fetched, 3) };
            assert_eq!(done, Err(Misaligned), "{op} {datatype} {skew}");
            assert_eq!((target.values(3).0, result.values(3).0), (vec![1, 2, 3], vec![9, 9, 9]));
        }
    }
    assert_eq!(Misaligned.errno(), libc::EINVAL);
}

/// The result may be one of the operands: each operand is read before it is overwritten.
#[test]
fn the_result_may_replace_an_operand() {
    let (mut target, mut operand, mut compare) = ([1u32, 2, 3], [10u32, 20, 30], [1u32, 0, 3]);
    let (to, from, with) = (target.as_mut_ptr().cast(), operand.as_mut_ptr().cast(), compare.as_mut_ptr().cast());
    // SAFETY: the arrays have three elements, and the result is the operand.
    unsafe { execute(AtomicOp::Sum, Datatype::U32, to, from, std::ptr::null(), from, 3) }.unwrap();
    assert_eq!((target, operand), ([11, 22, 33], [1, 2, 3]));
    compare[1] = 22;
    let (from, with): (*const u8, *mut u8) = (operand.as_ptr().cast(), with);
    // SAFETY: as above, but the result is the compare operand.
    unsafe { execute(AtomicOp::Cswap, Datatype::U32, to, from, with, with, 3) }.unwrap();
    assert_eq!((target, compare), ([11, 2, 33], [11, 22, 33]));
}
