//! Operations on device memory (fi_mr(3), FI_HMEM).

use percale::device::{Device, DeviceError, Interface, Kind};
use percale::memory::region::RegisterError;
use percale::{
    Access, AtomicOp, AtomicWork, Counter, Datatype, ErrorCode, OpFlags, PostError, RawRegion, RemoteMemory, Segments,
    WindowAccess, WindowType,
};

use crate::device::{DeviceMemory, device, driver};
use crate::fabric::{Devices, Fabric};
use crate::memory::{Memory, content, same};
use crate::mesh::{Mesh, Receive, Send};

const ALL: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);

/// Returns lengths that together use every path.
fn lengths<F: Fabric>() -> impl Iterator<Item = usize> {
    [0, 1, 48, 104, 105, 2048, 2049, 9000, 100_000, F::BULK, 3 * F::BULK + 5].into_iter()
}

fn sending(memory: DeviceMemory) -> Send {
    Send::vector(memory.segments()).with(OpFlags::DEVICE)
}

fn receiving(memory: DeviceMemory) -> Receive {
    Receive::vector(memory.segments()).with(OpFlags::DEVICE)
}

/// Registers device memory at the second endpoint.
fn region<F: Fabric>(mesh: &Mesh<F>, memory: DeviceMemory) -> RawRegion {
    crate::device::register(mesh, 1, memory, device(0), ALL).expect("a region")
}

/// Messages arrive from device to host, from host to device and from device to device; untagged and tagged; expected
/// and unexpected.
///
/// Requirements: HMEM-003, HMEM-009.
pub fn messages_between_host_and_device_memory_arrive<F: Devices>() {
    let mesh = Mesh::<F>::connected(2);
    for (number, len) in (1..).zip(lengths::<F>()) {
        let bytes = content(number, len);
        let (source, target) = (DeviceMemory::on_device(&bytes), DeviceMemory::blank(len + 3));
        for (expected, tag) in [(true, None), (false, None), (true, Some(number)), (false, Some(number))] {
            let host = Memory::blank(len + 3);
            let tagged = |send: Send| tag.map_or(send, |tag| send.tag(tag));
            let taking = |receive: Receive| tag.map_or(receive, |tag| receive.tag(tag, 0));
            let sends = [tagged(sending(source)), tagged(Send::of(Memory::of(&bytes))), tagged(sending(source))];
            let receives = [taking(Receive::into(host)), taking(receiving(target)), taking(receiving(target))];
            for (way, (send, receive)) in sends.into_iter().zip(receives).enumerate() {
                target.write(&vec![0xEE; len + 3]);
                let (sent, received);
                if expected {
                    received = mesh.receive(1, receive);
                    sent = mesh.send(0, 1, send);
                } else {
                    sent = mesh.send(0, 1, send);
                    mesh.turns(20);
                    received = mesh.receive(1, receive);
                }
                mesh.done(sent);
                assert_eq!(mesh.done(received).len, len as u64);
                let got = if way == 0 { host.read() } else { target.read() };
                same(&got[..len], &bytes, "the received data");
                assert!(got[len..].iter().all(|byte| *byte == 0xEE), "nothing is written after the message");
            }
        }
        source.free();
        target.free();
    }
}

/// One operation can use pieces of host memory and of device memory.
///
/// Requirements: HMEM-011.
pub fn operation_mixes_host_and_device_segments<F: Devices>() {
    let mesh = Mesh::<F>::connected(2);
    let bytes = content(7, 30_000);
    let parts = [&bytes[..9_000], &bytes[9_000..9_100], &bytes[9_100..]];
    let (a, b, c) = (DeviceMemory::on_device(parts[0]), Memory::of(parts[1]), DeviceMemory::on_device(parts[2]));
    let pieces = Segments::new(&[a.segment(), b.segment(), c.segment()]).expect("three pieces");
    let (x, y, z) = (Memory::blank(100), DeviceMemory::blank(20_000), Memory::blank(9_900));
    let places = Segments::new(&[x.segment(), y.segment(), z.segment()]).expect("three pieces");
    let received = mesh.receive(1, Receive::vector(places).with(OpFlags::DEVICE));
    let sent = mesh.send(0, 1, Send::vector(pieces).with(OpFlags::DEVICE));
    mesh.done(sent);
    assert_eq!(mesh.done(received).len, bytes.len() as u64);
    same(&[x.read(), y.read(), z.read()].concat(), &bytes, "the message");
}

/// A message that is too long fills the device memory and nothing beyond it. A cancelled receive leaves the memory
/// unchanged. A claimed message is received into it.
///
/// Requirements: HMEM-003.
pub fn device_receive_is_truncated_canceled_and_claimed<F: Devices>() {
    let mesh = Mesh::<F>::connected(2);
    let bytes = content(3, 5_000);
    let target = DeviceMemory::blank(4_000);
    let received = mesh.receive(1, receiving(target));
    mesh.done(mesh.send(0, 1, Send::of(Memory::of(&bytes))));
    let error = mesh.failed(received);
    assert_eq!((error.error, error.overflow), (ErrorCode::Truncated, 1_000));
    same(&target.read(), &bytes[..4_000], "the bytes that fit");
    // Cancel the receive.
    target.write(&[0xEE; 4_000]);
    let received = mesh.receive(1, receiving(target).tag(9, 0));
    assert!(mesh.endpoint(1).cancel(received));
    assert_eq!(mesh.failed(received).error, ErrorCode::Canceled);
    assert_eq!(target.read(), [0xEE; 4_000]);
    // Peek at the message and claim it.
    mesh.done(mesh.send(0, 1, sending(DeviceMemory::on_device(&bytes[..3_000])).tag(5)));
    mesh.settle(0, 1);
    let peeked = mesh.receive(1, Receive::peek(OpFlags::CLAIM | OpFlags::DEVICE).tag(5, 0));
    assert_eq!(mesh.done(peeked).len, 3_000);
    let claimed = receiving(target).tag(5, 0).with(OpFlags::CLAIM).context(peeked);
    mesh.done(mesh.receive(1, claimed));
    same(&target.read()[..3_000], &bytes[..3_000], "the claimed message");
    // Inject a message.
    let (short, host) = (DeviceMemory::on_device(&bytes[..2_048]), Memory::blank(2_048));
    let received = mesh.receive(1, Receive::into(host));
    mesh.done(mesh.send(0, 1, sending(short).with(OpFlags::INJECT)));
    short.write(&[0; 2_048]);
    mesh.done(received);
    same(&host.read(), &bytes[..2_048], "the injected message");
    let long = mesh.try_send(0, mesh.peer(1), sending(DeviceMemory::blank(2_049)).with(OpFlags::INJECT));
    assert_eq!(long, Err(PostError::InjectTooLong(2_049)));
    // A multi-receive into device memory is rejected.
    let many = mesh.try_receive(1, receiving(target).with(OpFlags::MULTI_RECEIVE));
    assert!(matches!(many, Err(PostError::Device(_, errno)) if errno == 95), "{many:?}");
}

/// Many messages are outstanding at the same time, each with its own contents.
///
/// Requirements: HMEM-003.
pub fn many_device_messages_are_outstanding_at_once<F: Devices>() {
    let mesh = Mesh::<F>::connected(2);
    let len = |number: u64| (number as usize * 7_919) % 60_000 + 1;
    let posted: Vec<_> = (0..40)
        .map(|number| {
            let target = DeviceMemory::blank(60_000);
            (number, target, mesh.receive(1, receiving(target).tag(number, 0)))
        })
        .collect();
    let sent: Vec<_> = (0..40)
        .rev()
        .map(|number| {
            let source = DeviceMemory::on_device(&content(number, len(number)));
            mesh.send(0, 1, sending(source).tag(number))
        })
        .collect();
    mesh.all_done(sent);
    for (number, target, received) in posted {
        assert_eq!(mesh.done(received).len, len(number) as u64);
        same(&target.read()[..len(number)], &content(number, len(number)), "a message");
    }
}

/// A region of device memory is read and written, with host memory and with device memory as local memory.
///
/// Requirements: HMEM-003, HMEM-010.
pub fn device_region_is_read_and_written<F: Devices>() {
    let mesh = Mesh::<F>::connected(2);
    let room = 3 * F::BULK + 100;
    let memory = DeviceMemory::on_device(&content(1, room));
    let region = region(&mesh, memory);
    let mut expected = content(1, room);
    for (number, len) in (2..).zip(lengths::<F>().filter(|len| *len > 0)) {
        let (start, bytes) = (number as usize, content(number, len));
        let part = region.remote().at(number..number + len as u64);
        // The source is host memory.
        mesh.done(mesh.write(0, 1, Memory::of(&bytes).segments(), &[part]));
        expected[start..start + len].copy_from_slice(&bytes);
        same(&memory.read(), &expected, "the region");
        let got = Memory::blank(len);
        mesh.done(mesh.read(0, 1, got.segments(), &[part]));
        same(&got.read(), &bytes, "the data read");
        // The source is device memory.
        let bytes = content(number + 100, len);
        let source = DeviceMemory::on_device(&bytes);
        mesh.done(mesh.access_device(0, true, mesh.rma(1, source.segments(), &[part])));
        expected[start..start + len].copy_from_slice(&bytes);
        same(&memory.read(), &expected, "the region");
        let got = DeviceMemory::blank(len);
        mesh.done(mesh.access_device(0, false, mesh.rma(1, got.segments(), &[part])));
        same(&got.read(), &bytes, "the data read");
        source.free();
        got.free();
    }
    // Accesses outside of the region and accesses without the required right fail, as they do for host memory.
    let beyond = RemoteMemory { len: 2, address: room as u64 - 1, ..region.remote() };
    let error = mesh.failed(mesh.write(0, 1, Memory::of(&[1, 2]).segments(), &[beyond]));
    assert_eq!(error.error, ErrorCode::Denied);
    region.close().expect("no access is in progress");
    same(&memory.read(), &expected, "the memory");
}

/// A region of host memory is read and written with device memory as local memory.
///
/// Requirements: HMEM-010.
pub fn host_region_is_accessed_with_device_memory<F: Devices>() {
    let mesh = Mesh::<F>::connected(2);
    let region = mesh.test_endpoint(1).domain.register(vec![0; F::BULK], ALL).expect("a region");
    for (number, len) in (1..).zip([1, 2_000, 20_000, F::BULK]) {
        let bytes = content(number, len);
        let part = region.remote().at(0..len as u64);
        let (source, got) = (DeviceMemory::on_device(&bytes), DeviceMemory::blank(len));
        mesh.done(mesh.access_device(0, true, mesh.rma(1, source.segments(), &[part])));
        let mut there = vec![0; len];
        region.read(0, &mut there);
        same(&there, &bytes, "the region");
        mesh.done(mesh.access_device(0, false, mesh.rma(1, got.segments(), &[part])));
        same(&got.read(), &bytes, "the data read");
    }
}

/// Atomic operations on a region of device memory, with operands, comparands and results in device memory.
///
/// Requirements: HMEM-003, ATM-002.
pub fn atomic_operations_work_on_device_memory<F: Devices>() {
    let mesh = Mesh::<F>::connected(2);
    let words = |values: &[u64]| values.iter().flat_map(|value| value.to_ne_bytes()).collect::<Vec<u8>>();
    let memory = DeviceMemory::on_device(&words(&[5, 6, 7, 8]));
    let region = region(&mesh, memory);
    let part = |first: u64, count: u64| region.remote().at(8 * first..8 * (first + count));
    let base = AtomicWork {
        peer: mesh.peer(1),
        op: AtomicOp::Sum,
        datatype: Datatype::U64,
        operand: Segments::EMPTY,
        compare: None,
        result: None,
        remote: part(0, 1),
        data: None,
        context: 0,
        flags: OpFlags::COMPLETION,
    };
    // The operand is in host memory.
    mesh.done(mesh.add(0, 1, Memory::of(&words(&[10])), part(0, 1)));
    assert_eq!(memory.read(), words(&[15, 6, 7, 8]));
    // The operands are in device memory. Several elements are fetched.
    let (operand, result) = (DeviceMemory::on_device(&words(&[1, 2])), DeviceMemory::blank(16));
    let work = AtomicWork { operand: operand.segments(), result: Some(result.segments()), remote: part(1, 2), ..base };
    mesh.done(mesh.atomic_device(0, work));
    assert_eq!((memory.read(), result.read()), (words(&[15, 7, 9, 8]), words(&[6, 7])));
    // Compare and swap, once with an equal and once with a different value.
    for (compare, before, after) in [(8, 8, 100), (8, 100, 100)] {
        let (operand, compare) = (DeviceMemory::on_device(&words(&[100])), DeviceMemory::on_device(&words(&[compare])));
        let result = DeviceMemory::blank(8);
        let work = AtomicWork {
            op: AtomicOp::Cswap,
            operand: operand.segments(),
            compare: Some(compare.segments()),
            result: Some(result.segments()),
            remote: part(3, 1),
            ..base
        };
        mesh.done(mesh.atomic_device(0, work));
        assert_eq!((memory.read(), result.read()), (words(&[15, 7, 9, after]), words(&[before])));
    }
    // Fetch without a change.
    let result = DeviceMemory::blank(32);
    let work = AtomicWork { op: AtomicOp::Read, result: Some(result.segments()), remote: part(0, 4), ..base };
    mesh.done(mesh.atomic_device(0, work));
    assert_eq!(result.read(), words(&[15, 7, 9, 100]));
    // The address is not aligned.
    let remote = RemoteMemory { len: 8, address: 4, ..region.remote() };
    let context = mesh.add(0, 1, Memory::of(&words(&[10])), remote);
    assert_eq!(mesh.failed(context).error, ErrorCode::Misaligned);
    assert_eq!(memory.read(), words(&[15, 7, 9, 100]));
}

/// Managed memory and pinned memory are sent, received and registered as device memory. The test also accesses the
/// memory from the CPU, which may migrate the pages of managed memory.
///
/// Requirements: HMEM-004, HMEM-015, HMEM-018.
pub fn managed_and_pinned_memory_are_transferred<F: Devices>() {
    let mesh = Mesh::<F>::connected(2);
    for kind in [Kind::Managed, Kind::Pinned] {
        for (number, len) in (1..).zip([10, 3_000, 200_000]) {
            let (first, second) = (content(number, len), content(number + 50, len));
            let (source, target) = (DeviceMemory::of(kind, 0, &first), DeviceMemory::of(kind, 0, &vec![0xEE; len]));
            for bytes in [&first, &second] {
                // The CPU writes the memory, which may migrate its pages.
                source.store(bytes);
                let received = mesh.receive(1, receiving(target));
                let sent = mesh.send(0, 1, sending(source));
                mesh.done(sent);
                mesh.done(received);
                same(&target.load(), bytes, "the received data");
            }
            let named = (kind == Kind::Managed).then(|| device(0));
            let region = crate::device::register(&mesh, 1, target, named, ALL).expect("a region");
            mesh.done(mesh.write(0, 1, Memory::of(&first).segments(), &[region.remote()]));
            same(&target.load(), &first, "the written data");
            region.close().expect("no access is in progress");
        }
    }
}

/// Memory that is not device memory cannot be registered as device memory, and devices that do not exist are rejected.
///
/// Requirements: HMEM-005, HMEM-006, HMEM-014.
pub fn host_memory_is_not_registered_as_device_memory<F: Devices>() {
    let mesh = Mesh::<F>::new(1);
    let (host, memory) = (Memory::blank(4096), DeviceMemory::blank(4096));
    let refused = |memory, of| match crate::device::register_segment(&mesh, 0, memory, Some(of), ALL) {
        Err(RegisterError::Device(error)) => error,
        other => panic!("the registration should have failed: {other:?}"),
    };
    assert_eq!(refused(host.segment(), device(0)), DeviceError::Mixed);
    if driver().devices() > 1 {
        assert_eq!(refused(memory.segment(), device(1)), DeviceError::Mixed);
    }
    let all = driver().devices();
    let none = DeviceError::NoDevice { interface: Interface::Cuda, ordinal: all, devices: all };
    assert_eq!(Device::new(Interface::Cuda, all), Err(none.clone()));
    assert_eq!(none.errno(), 19);
    for interface in [Interface::Rocr, Interface::LevelZero, Interface::Neuron, Interface::SynapseAi] {
        let error = Device::new(interface, 0).expect_err("the interface is not supported");
        assert_eq!((error.clone(), error.errno()), (DeviceError::Unsupported(interface), 38));
    }
    let owned = mesh.test_endpoint(0).domain.registration(ALL).device(device(0)).own(vec![1, 2, 3]);
    assert!(matches!(owned, Err(RegisterError::Device(DeviceError::Mixed))), "{owned:?}");
}

/// Memory that is freed and allocated again, usually at the same address, has its new contents.
///
/// Requirements: RCACHE-019.
pub fn reallocated_device_memory_has_its_new_contents<F: Devices>() {
    let mesh = Mesh::<F>::connected(2);
    let (mut places, mut buffers) = (std::collections::HashSet::new(), std::collections::HashSet::new());
    for number in 0..20 {
        let bytes = content(number, 70_000);
        let (source, target) = (DeviceMemory::on_device(&bytes), DeviceMemory::blank(70_000));
        let received = mesh.receive(1, receiving(target));
        mesh.done(mesh.send(0, 1, sending(source)));
        mesh.done(received);
        same(&target.read(), &bytes, "the received data");
        let region = region(&mesh, target);
        mesh.done(mesh.write(0, 1, Memory::of(&content(number + 1, 70_000)).segments(), &[region.remote()]));
        same(&target.read(), &content(number + 1, 70_000), "the written data");
        region.close().expect("no access is in progress");
        places.insert(source.address());
        let place = driver().locate(source.address() as usize).expect("a place");
        assert_eq!((place.kind, place.ordinal), (Kind::Device, 0));
        assert!(buffers.insert(place.buffer), "each allocation has a unique number");
        source.free();
        target.free();
    }
    assert!(places.len() < 20, "addresses are reused");
}

/// An operation that waits for a counter reads device memory only when it starts. The same holds for deferred work.
///
/// Requirements: HMEM-003, TRIG-002, DWQ-004.
pub fn triggered_send_reads_device_memory_when_it_starts<F: Devices>() {
    let mesh = Mesh::<F>::connected(2);
    for len in [40, 5_000, F::BULK] {
        let counter = Counter::new();
        let (source, target) = (DeviceMemory::blank(len), DeviceMemory::blank(len));
        let received = mesh.when(1, mesh.receiving(receiving(target)), &counter, 1);
        let sent = mesh.when(0, mesh.sending(1, sending(source)), &counter, 2);
        mesh.nothing(sent);
        source.write(&content(4, len));
        counter.add(2);
        mesh.all_done([sent, received]);
        same(&target.read(), &content(4, len), "the received data");
        // A cancelled operation copies nothing.
        let sent = mesh.when(0, mesh.sending(1, sending(source)), &counter, 9);
        assert!(mesh.endpoint(0).cancel(sent));
        assert_eq!(mesh.failed(sent).error, ErrorCode::Canceled);
    }
    let short = DeviceMemory::blank(8);
    let operation = mesh.sending(1, sending(short).with(OpFlags::INJECT));
    let injected = crate::mesh::try_when(&mesh, 0, &operation, &Counter::new());
    assert!(matches!(injected, Err(PostError::Device(_, errno)) if errno == 95), "{injected:?}");
}

/// A stream of the device writes a variable, and the send starts. If the variable is never written, the send is
/// cancelled.
///
/// Requirements: XPU-012, XPU-013, XPU-017, XPU-020.
pub fn device_stream_triggers_a_send<F: Devices>() {
    let mesh = Mesh::<F>::connected(2);
    let domain = &mesh.test_endpoint(0).domain;
    for (number, len) in (0..).zip([8, 3_000, F::BULK]) {
        let variable = domain.device_variable(device(0)).expect("a variable");
        let (source, target) = (DeviceMemory::blank(len), DeviceMemory::blank(len));
        let received = mesh.receive(1, receiving(target));
        let sent = mesh.when_written(0, mesh.sending(1, sending(source)), &variable);
        mesh.nothing(received);
        source.write(&content(number, len));
        device(0).write_variable(&variable).expect("a stream's write");
        mesh.all_done([sent, received]);
        same(&target.read(), &content(number, len), "the received data");
    }
    let variable = domain.device_variable(device(0)).expect("a variable");
    let sent = mesh.when_written(0, mesh.sending(1, sending(DeviceMemory::blank(8))), &variable);
    assert!(mesh.endpoint(0).cancel(sent));
    assert_eq!(mesh.failed(sent).error, ErrorCode::Canceled);
    // Devices cannot write a variable that was created for threads.
    assert_eq!(device(0).write_variable(&domain.variable()), Err(DeviceError::Mixed));
}

/// A window can be bound to a part of a region of device memory.
///
/// Requirements: HMEM-003, MW-015.
pub fn window_binds_to_a_device_region<F: Devices>() {
    let mesh = Mesh::<F>::connected(2);
    let memory = DeviceMemory::on_device(&[7; 10_000]);
    let region = region(&mesh, memory);
    let mut window = mesh.test_endpoint(1).domain.window(WindowType::One).expect("a window");
    let name = window.bind(&region, 100..9_000, WindowAccess::READ | WindowAccess::WRITE).expect("a bind");
    let part = RemoteMemory { len: 8_000, ..name };
    mesh.done(mesh.write(0, 1, Memory::of(&content(1, 8_000)).segments(), &[part]));
    let got = Memory::blank(8_000);
    mesh.done(mesh.read(0, 1, got.segments(), &[part]));
    same(&got.read(), &content(1, 8_000), "the data read");
    let there = memory.read();
    same(&there[100..8_100], &content(1, 8_000), "the region");
    assert!(there[..100].iter().chain(&there[8_100..]).all(|byte| *byte == 7), "adjacent bytes are unchanged");
}

/// A program on the device starts sends in the order of the queue.
///
/// Requirements: XPU-013, XPU-018, XPU-020.
pub fn device_kernel_triggers_sends_in_queue_order<F: Devices>() {
    let mesh = Mesh::<F>::connected(2);
    let program = crate::kernel::Store::new();
    let domain = &mesh.test_endpoint(0).domain;
    let variables = [(); 3].map(|()| domain.device_variable(device(0)).expect("a variable"));
    let write =
        |at: usize| program.write(variables[at].device_address().expect("a device address"), variables[at].value());
    let targets = [(); 3].map(|()| DeviceMemory::blank(500));
    let received = targets.map(|target| mesh.receive(1, receiving(target)));
    let sent: Vec<_> = (0..3)
        .map(|number| {
            let source = DeviceMemory::on_device(&content(number as u64, 500));
            mesh.when_written(0, mesh.sending(1, sending(source)), &variables[number])
        })
        .collect();
    write(2);
    write(1);
    mesh.nothing(received[0]);
    write(0);
    mesh.all_done(sent.into_iter().chain(received));
    for (number, target) in (0..).zip(targets) {
        same(&target.read(), &content(number, 500), "the messages arrive in queue order");
    }
}
