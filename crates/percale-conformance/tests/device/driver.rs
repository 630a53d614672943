//! Tests of the device driver: rejected calls, and calls outside of operations.

#![expect(unsafe_code, reason = "calls the driver to copy and close; each block states why the memory is valid")]

use std::collections::HashSet;
use std::fs::File;
use std::os::unix::fs::FileExt;

use percale::device::{CopyWay, Device, DeviceError, Exported, Interface, Kind, Place};
use percale::{Access, OpFlags, Segment};

use percale_conformance::application::{capture, capture_mode, count};
use percale_conformance::device::{DeviceMemory, LIBRARY, POOLS, driver, register};
use percale_conformance::fabric::Shm;
use percale_conformance::memory::{Memory, content, same};
use percale_conformance::mesh::{Mesh, Receive, Send};
use percale_conformance::process::{Helper, ask, print_line};

fn missing() -> String {
    match Interface::Cuda.driver() {
        Err(error @ DeviceError::Missing { interface: Interface::Cuda, .. }) => {
            assert_eq!(error.errno(), 38);
            error.to_string()
        }
        other => panic!("there should be no driver: {other:?}"),
    }
}

/// If the library is missing, the error names the missing file.
///
/// Requirements: HMEM-006.
fn missing_library_error_contains_its_name() {
    let printed = missing();
    assert!(printed.contains("CUDA is not available") && printed.contains("/nonexistent/libcuda.so.1"), "{printed}");
}

/// A library without the driver's functions is rejected with a different error.
///
/// Requirements: HMEM-006.
fn library_without_driver_functions_is_rejected() {
    let printed = missing();
    assert!(printed.contains("libc.so.6 has no cuInit"), "{printed}");
}

/// Without unified addressing, the addresses of a device could also be host addresses. Device memory is then not
/// recognized. Host memory is still recognized (fi_mr(3), FI_MR_CUDA_CACHE_MONITOR_ENABLED).
///
/// Requirements: RCACHE-018.
fn device_without_unified_addressing_is_not_used() {
    let printed = missing();
    assert!(printed.contains("no unified addressing"), "{printed}");
    assert!(Device::new(Interface::Cuda, 0).is_err());
    let mesh = Mesh::<Shm>::connected(2);
    let (from, to) = (Memory::content(1, 70_000), Memory::blank(70_000));
    let of = Device::of(Interface::Cuda, from.segment());
    assert!(matches!(of, Err(DeviceError::Missing { .. })), "{of:?}");
    let received = mesh.receive(1, Receive::into(to));
    mesh.done(mesh.send(0, 1, Send::of(from)));
    mesh.done(received);
    same(&to.read(), &content(1, 70_000), "the received data");
}

/// Another process opens, reads and writes memory of this process.
///
/// Requirements: HMEM-003.
fn exported_memory_is_opened_by_another_process() {
    let memory = DeviceMemory::on_device(&content(1, 100_000));
    if std::env::var_os(POOLS).is_some() {
        let named = driver().export(0, memory.address() as usize);
        return assert!(named.is_err(), "memory of pools has no name: {named:?}");
    }
    // Export by the address of a byte in the middle.
    let exported = driver().export(0, memory.address() as usize + 40_000).expect("a name");
    assert_eq!((exported.offset, exported.buffer), (40_000, place(&memory).buffer));
    assert!(exported.len >= 100_000);
    let handle: String = exported.handle.iter().map(|byte| format!("{byte:02x}")).collect();
    let mut helper = Helper::start("opener", &[]);
    helper.send_line(&format!("{handle} {} {} {}", exported.offset, exported.len, exported.buffer));
    assert_eq!(helper.receive_line(), "opened");
    let mut expected = content(1, 100_000);
    expected[40_000..41_000].copy_from_slice(&content(2, 1_000));
    same(&memory.read(), &expected, "the bytes that the other process wrote");
    // Host memory cannot be exported.
    assert!(driver().export(0, Memory::blank(8).address() as usize).is_err());
    // Freeing the memory takes effect even while another process has it open.
    helper.send_line("close");
    assert_eq!(helper.receive_line(), "closed");
}

/// The role of the other process.
pub(crate) fn opener() {
    let line = ask();
    let words: Vec<&str> = line.split(' ').collect();
    let mut handle = [0; 64];
    for (at, byte) in handle.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&words[0][2 * at..2 * at + 2], 16).expect("a handle");
    }
    let [offset, len, buffer] = [1, 2, 3].map(|at| words[at].parse().expect("a number"));
    let exported = Exported { handle, offset, len, buffer };
    let opened = driver().open(0, &exported).expect("the memory of the other process");
    let here = Memory::blank(1_000);
    copy(CopyWay::ToHost, here.segment(), opened.slice(offset as usize, 1_000));
    same(&here.read(), &content(1, 100_000)[40_000..41_000], "the contents of the other process's memory");
    here.write(&content(2, 1_000));
    copy(CopyWay::ToDevice, opened.slice(offset as usize, 1_000), here.segment());
    print_line("opened");
    assert_eq!(ask(), "close");
    // SAFETY: the memory was opened above, and is not used any more.
    unsafe { driver().close(0, opened) };
    print_line("closed");
}

/// Sends 64 KiB of a new allocation of device memory to a receive into another one.
fn send_between_devices(mesh: &Mesh<Shm>, seed: u64) {
    let (from, to) = (DeviceMemory::on_device(&content(seed, 65_536)), DeviceMemory::blank(65_536));
    let received = mesh.receive(1, Receive::vector(to.segments()).with(OpFlags::DEVICE));
    mesh.done(mesh.send(0, 1, Send::vector(from.segments()).with(OpFlags::DEVICE)));
    mesh.done(received);
    same(&to.read(), &content(seed, 65_536), "the received data");
}

/// An application may reset a device, which frees the pinned memory of earlier transfers. The addresses may then belong
/// to memory of the application, which percale must not free or change.
///
/// Requirements: HMEM-003.
fn device_reset_does_not_affect_host_memory() {
    const PAGES: usize = 1 << 16;
    let mesh = Mesh::<Shm>::connected(2);
    send_between_devices(&mesh, 1);
    let library = std::env::var(LIBRARY).expect("the double's file");
    // SAFETY: the library is already loaded. This returns another handle to it.
    let library = unsafe { libloading::Library::new(&library) }.expect("the double");
    // SAFETY: this is the type of the driver's function.
    let reset = unsafe { library.get::<unsafe extern "C" fn(i32) -> i32>(b"cuDevicePrimaryCtxReset_v2") };
    // SAFETY: no copy is in progress, and no memory of the device is used any more.
    assert_eq!(unsafe { reset.expect("a reset")(100) }, 0);
    // The kernel maps them where the reset has unmapped memory, because they are not larger than that memory.
    let pages: Vec<Memory> = (0..64).map(|_| Memory::mapped(&content(7, PAGES))).collect();
    for seed in 2..6 {
        send_between_devices(&mesh, seed);
    }
    for page in pages {
        same(&page.read(), &content(7, PAGES), "memory of the application's own");
    }
}

fn copy(way: CopyWay, to: Segment, from: Segment) {
    copy_on(0, way, to, from);
}

fn copy_on(ordinal: u32, way: CopyWay, to: Segment, from: Segment) {
    // SAFETY: the memory exists until the copy is over, below, and nothing else uses it.
    let copies = unsafe { driver().begin(ordinal, &[(way, to, from)]) }.expect("a copy");
    driver().finish(copies).expect("the copy");
}

fn place(memory: &DeviceMemory) -> Place {
    driver().locate(memory.address() as usize).expect("a place")
}

/// The ID of each allocation differs from those of all others, including earlier ones at the same address. Host memory
/// has no ID.
///
/// Requirements: RCACHE-019.
fn each_allocation_has_a_unique_id() {
    let mut numbers = HashSet::new();
    let mut places = HashSet::new();
    for _ in 0..50 {
        let memory = DeviceMemory::blank(5_000);
        assert_eq!((place(&memory).kind, place(&memory).ordinal), (Kind::Device, 0));
        let last = driver().locate(memory.address() as usize + 4_999).expect("a place");
        assert_eq!(last, place(&memory));
        assert!(numbers.insert(place(&memory).buffer), "the number of another allocation");
        places.insert(memory.address());
        memory.free();
    }
    assert!(places.len() < 50, "addresses are reused");
    assert_eq!(driver().locate(Memory::blank(8).address() as usize).expect("a place"), Place::HOST);
    let pinned = DeviceMemory::of(Kind::Pinned, 0, &[1; 100]);
    assert_eq!(place(&pinned), Place { kind: Kind::Pinned, ..Place::HOST });
}

/// If only a part of a range is pinned, the whole range is treated as host memory, regardless of which part is pinned.
///
/// Requirements: HMEM-018.
fn partly_pinned_memory_is_host_memory() {
    const HALF: usize = 1 << 16;
    let memory = Memory::blank(2 * HALF);
    for at in [0, HALF] {
        let half = memory.segment().slice(at, HALF);
        // SAFETY: the mapping exists until it is unmapped below.
        unsafe { driver().register_host(half) }.expect("pinned memory");
        let ends = [0, 2 * HALF - 1].map(|at| driver().locate(memory.address() as usize + at).expect("a place").kind);
        assert_ne!(ends[0], ends[1], "one half is pinned");
        assert_eq!(Device::of(Interface::Cuda, memory.segment()), Ok(None));
        driver().unregister_host(half).expect("the memory was pinned");
    }
}

/// If the driver accepts copies and then fails to record an event after them, no copy is in progress when the error is
/// returned, so the memory may be freed.
///
/// Requirements: HMEM-003.
fn copies_have_ended_when_event_recording_fails() {
    let memory = DeviceMemory::on_device(&content(6, 2_000));
    let to = Memory::blank(2_000);
    let half = |of: Segment, at| of.slice(at, 1_000);
    let copies = [0, 1_000].map(|at| (CopyWay::ToHost, half(to.segment(), at), half(memory.segment(), at)));
    // SAFETY: the memory exists until the copies are over, and nothing else uses it.
    let begun = unsafe { driver().begin(0, &copies) };
    let Err(DeviceError::Driver { function: "cuEventRecord", memory: true, .. }) = begun else {
        panic!("there should be no event: {begun:?}")
    };
    same(&to.read(), &content(6, 2_000), "the data copied before the error");
    // The lane can be used again.
    same(&memory.read(), &content(6, 2_000), "the device memory");
}

/// Copies that are queued one after another have all ended when a wait for them returns. If they are polled instead,
/// they end eventually.
///
/// Requirements: HMEM-003.
fn copies_are_started_and_awaited() {
    let memory = DeviceMemory::blank(3_000);
    let (from, to) = (Memory::content(5, 1_000), Memory::blank(1_000));
    let [first, second] = [0, 2_000].map(|at| memory.segment().slice(at, 1_000));
    let copies = [
        (CopyWay::ToDevice, first, from.segment()),
        (CopyWay::OnDevice, second, first),
        (CopyWay::ToHost, to.segment(), second),
    ];
    // SAFETY: the memory exists until the copies are over, below, and nothing else uses it.
    let begun = unsafe { driver().begin(0, &copies) }.expect("copies");
    let mut turns = 0;
    while !driver().is_over(&begun).expect("the state of the copies") {
        turns += 1;
        assert!(turns < 100_000_000, "the copies do not end");
    }
    driver().finish(begun).expect("the copies");
    same(&to.read(), &content(5, 1_000), "the data copied to the device and back");
    // A copy to a device is rejected if the target is not device memory, except on machines with devices that can
    // access all memory.
    let nowhere = [(CopyWay::ToDevice, to.segment(), from.segment())];
    // SAFETY: as above.
    match unsafe { driver().begin(0, &nowhere) } {
        Err(DeviceError::Driver { .. }) => {}
        Err(error) => panic!("another error: {error}"),
        Ok(copies) => {
            let name = driver().describe(0).expect("a name");
            assert!(!name.starts_with("double"), "the double has no such device");
            driver().finish(copies).expect("the copies");
        }
    }
}

/// Returns the contents of device memory, copied to host memory by percale.
fn copied(memory: &DeviceMemory) -> Vec<u8> {
    let here = Memory::blank(memory.segment().len());
    copy(CopyWay::ToHost, here.segment(), memory.segment());
    here.read()
}

/// Runs the test many times on each device, with memory of several lengths. The test runs twice with each allocation.
/// The second run uses memory that the device has already copied.
fn each_copy(test: fn(u32, DeviceMemory, Vec<u8>)) {
    for ordinal in 0..driver().devices().min(2) {
        for len in [1, 64 << 10, 1 << 20] {
            for round in 0..50 {
                let memory = DeviceMemory::of(Kind::Device, ordinal, &vec![0xEE; len]);
                test(ordinal, memory, content(round, len));
                test(ordinal, memory, content(round + 1, len));
                memory.free();
            }
        }
    }
}

/// A copy reads the data written by a synchronous copy of the application that has returned.
///
/// Requirements: HMEM-003.
fn data_of_a_synchronous_copy_is_read() {
    each_copy(|ordinal, memory, bytes| {
        let here = Memory::blank(bytes.len());
        memory.write(&bytes);
        copy_on(ordinal, CopyWay::ToHost, here.segment(), memory.segment());
        same(&here.read(), &bytes, "the copied data");
    });
}

/// The data written by a copy is not overwritten by a synchronous copy of the application that returned earlier.
///
/// Requirements: HMEM-003.
fn copy_is_not_overwritten_by_an_earlier_synchronous_copy() {
    each_copy(|ordinal, memory, bytes| {
        let here = Memory::of(&bytes);
        memory.write(&vec![0xAA; bytes.len()]);
        copy_on(ordinal, CopyWay::ToDevice, memory.segment(), here.segment());
        same(&memory.read(), &bytes, "the copied data");
    });
}

/// A dma-buf is exported only when the data of the application's synchronous copy has been written. The dma-buf of the
/// test double can be read like a file.
///
/// Requirements: HMEM-003.
fn data_of_a_synchronous_copy_is_in_the_dma_buf() {
    let memory = DeviceMemory::on_device(&content(1, 5000));
    let file = File::from(driver().dma_buf(0, memory.segment()).expect("a dma-buf"));
    let mut bytes = vec![0; 5000];
    file.read_exact_at(&mut bytes, 0).expect("a file");
    same(&bytes, &content(1, 5000), "the contents of the dma-buf");
}

/// percale calls the driver to synchronize an allocation only once. For memory of pools and mapped memory, it calls the
/// driver for each copy.
///
/// Requirements: HMEM-003.
fn driver_synchronizes_once_per_allocation() {
    let calls = || (count("doubleSet"), count("doubleDrained"));
    let memory = DeviceMemory::blank(1000);
    let before = calls();
    (0..10).for_each(|_| drop(copied(&memory)));
    let now = calls();
    let pools = std::env::var(POOLS).ok();
    let expected = match pools.as_deref() {
        None => (1, 1),
        Some("1") => (0, 10),
        Some(_) => (10, 10),
    };
    assert_eq!((now.0 - before.0, now.1 - before.1), expected, "calls for ten copies of memory {pools:?}");
    // A new allocation at the same address is not considered synchronized.
    memory.free();
    let next = DeviceMemory::blank(1000);
    next.write(&content(3, 1000));
    same(&copied(&next), &content(3, 1000), "the copied data");
    // Host memory is not marked as synchronized.
    let pinned = DeviceMemory::of(Kind::Pinned, 0, &[1; 100]);
    let before = calls();
    driver().settle(pinned.address() as usize).expect("nothing to do");
    driver().settle(Memory::blank(8).address() as usize).expect("nothing to do");
    assert_eq!(calls(), before);
}

/// Registering memory synchronizes it. Accesses to the region make no further calls to synchronize it.
///
/// Requirements: HMEM-003.
fn registration_synchronizes_device_memory() {
    let mesh = Mesh::<Shm>::connected(2);
    let memory = DeviceMemory::on_device(&content(1, 5000));
    let before = count("doubleDrained");
    let of = Device::new(Interface::Cuda, 0).expect("a device");
    let region = register(&mesh, 1, memory, of, Access::REMOTE_READ).expect("a region");
    let registered = count("doubleDrained");
    assert_eq!(registered, before + 1, "the registration waits for the device");
    let got = Memory::blank(5000);
    mesh.done(mesh.read(0, 1, got.segments(), &[region.remote()]));
    same(&got.read(), &content(1, 5000), "the data read");
    let waits = u64::from(std::env::var_os(POOLS).is_some());
    assert_eq!(count("doubleDrained"), registered + waits, "the access waits for the device");
    region.close().expect("no access is in progress");
}

/// While a thread captures a graph, copies do not invalidate it, and do not read data that is still in flight.
///
/// Requirements: HMEM-003.
fn copies_do_not_invalidate_a_stream_capture() {
    let is_pool = std::env::var_os(POOLS).is_some();
    let (known, new) = (DeviceMemory::on_device(&content(1, 1000)), DeviceMemory::on_device(&content(2, 1000)));
    same(&copied(&known), &content(1, 1000), "the copied data");
    let to = Memory::blank(1000);
    // The capture is on another thread's stream, for which no thread waits.
    capture(2);
    same(&copied(&new), &content(2, 1000), "the copied data");
    assert_eq!((capture(0), capture_mode()), (0, 0), "calls that invalidate a graph, and the thread's mode");
    let new = DeviceMemory::of(Kind::Device, 0, &[7; 1000]);
    capture(1);
    for memory in [known, new] {
        // SAFETY: the memory exists until the copy is over, and nothing else uses it.
        match unsafe { driver().begin(0, &[(CopyWay::ToHost, to.segment(), memory.segment())]) } {
            Ok(copies) => {
                driver().finish(copies).expect("the copy");
                assert!(!is_pool, "memory of a pool was copied without waiting");
            }
            Err(DeviceError::Driver { function: "cuStreamSynchronize", code: 906, text, .. }) => {
                assert!(is_pool && text.contains("CU_STREAM_NON_BLOCKING"), "{text}");
            }
            Err(error) => panic!("another error: {error}"),
        }
    }
    assert_eq!(capture(0), 0, "calls that invalidate a graph");
    // The memory was not marked as synchronized.
    let drained = count("doubleDrained");
    same(&copied(&new), &[7; 1000], "the copied data");
    assert_eq!(count("doubleDrained"), drained + 1);
}

/// Each test runs in a separate process with the driver that it needs.
mod rust {
    use percale_conformance::device::{ALL_POOLS, LIBRARY, run, run_on_double, run_with};

    /// Requirements: HMEM-006.
    #[test]
    fn missing_library_error_contains_its_name() {
        run_with(&[(LIBRARY, "/nonexistent/libcuda.so.1")], super::missing_library_error_contains_its_name);
    }

    /// Requirements: HMEM-006.
    #[test]
    fn library_without_driver_functions_is_rejected() {
        run_with(&[(LIBRARY, "libc.so.6")], super::library_without_driver_functions_is_rejected);
    }

    /// Requirements: HMEM-003.
    #[test]
    fn data_of_a_synchronous_copy_is_read() {
        run(env!("CARGO_TARGET_TMPDIR"), super::data_of_a_synchronous_copy_is_read);
    }

    /// Requirements: HMEM-003.
    #[test]
    fn copy_is_not_overwritten_by_an_earlier_synchronous_copy() {
        run(env!("CARGO_TARGET_TMPDIR"), super::copy_is_not_overwritten_by_an_earlier_synchronous_copy);
    }

    /// Requirements: HMEM-003.
    #[test]
    fn data_of_a_synchronous_copy_is_in_the_dma_buf() {
        run_on_double(env!("CARGO_TARGET_TMPDIR"), &ALL_POOLS, super::data_of_a_synchronous_copy_is_in_the_dma_buf);
    }

    /// Requirements: HMEM-003.
    #[test]
    fn driver_synchronizes_once_per_allocation() {
        run_on_double(env!("CARGO_TARGET_TMPDIR"), &ALL_POOLS, super::driver_synchronizes_once_per_allocation);
    }

    /// Requirements: HMEM-003.
    #[test]
    fn registration_synchronizes_device_memory() {
        run_on_double(env!("CARGO_TARGET_TMPDIR"), &ALL_POOLS, super::registration_synchronizes_device_memory);
    }

    /// Requirements: HMEM-003.
    #[test]
    fn copies_do_not_invalidate_a_stream_capture() {
        run_on_double(env!("CARGO_TARGET_TMPDIR"), &ALL_POOLS, super::copies_do_not_invalidate_a_stream_capture);
    }

    /// Requirements: HMEM-003.
    #[test]
    fn exported_memory_is_opened_by_another_process() {
        run(env!("CARGO_TARGET_TMPDIR"), super::exported_memory_is_opened_by_another_process);
    }

    /// Requirements: RCACHE-019.
    #[test]
    fn each_allocation_has_a_unique_id() {
        run(env!("CARGO_TARGET_TMPDIR"), super::each_allocation_has_a_unique_id);
    }

    /// Requirements: RCACHE-018.
    #[test]
    fn device_without_unified_addressing_is_not_used() {
        run_on_double(
            env!("CARGO_TARGET_TMPDIR"),
            &[&[("DOUBLE_WITHOUT_UNIFIED_ADDRESSING", "1")]],
            super::device_without_unified_addressing_is_not_used,
        );
    }

    /// Requirements: HMEM-003.
    #[test]
    fn copies_have_ended_when_event_recording_fails() {
        run_on_double(
            env!("CARGO_TARGET_TMPDIR"),
            &[&[("DOUBLE_RECORDS_ONE_COPY_ONLY", "1")]],
            super::copies_have_ended_when_event_recording_fails,
        );
    }

    /// Requirements: HMEM-003.
    #[test]
    fn device_reset_does_not_affect_host_memory() {
        run_on_double(env!("CARGO_TARGET_TMPDIR"), &[&[]], super::device_reset_does_not_affect_host_memory);
    }

    /// Requirements: HMEM-018.
    #[test]
    fn partly_pinned_memory_is_host_memory() {
        run(env!("CARGO_TARGET_TMPDIR"), super::partly_pinned_memory_is_host_memory);
    }

    /// Requirements: HMEM-003.
    #[test]
    fn copies_are_started_and_awaited() {
        run(env!("CARGO_TARGET_TMPDIR"), super::copies_are_started_and_awaited);
    }
}
