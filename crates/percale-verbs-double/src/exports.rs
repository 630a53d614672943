//! The functions of libibverbs.

mod pointers;
mod queue_pairs;

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr::null_mut;
use std::time::{Duration, Instant};

use self::pointers::{errno, freed, given, of, set_errno, zeroed};
use self::queue_pairs::{bind_mw, post_recv, post_send};
use crate::abi;
use crate::descriptors::take;
use crate::machine::{CommandError, CompletionEntry, machine};
use crate::wire::queue_pair::Gid;

/// A device as passed to a program. It contains libibverbs' structure and the device's position in the list.
#[repr(C)]
struct Device {
    abi: abi::Device,
    place: usize,
}

#[repr(C)]
struct Context {
    abi: abi::Context,
    number: u32,
}

#[repr(C)]
struct Channel {
    abi: abi::CompChannel,
    number: u32,
}

/// Returns the number of a context.
///
/// # Safety
/// The context is alive.
unsafe fn context_of(context: *mut abi::Context) -> u32 {
    // SAFETY: contexts are passed to programs as the first field of such a structure.
    unsafe { of(context.cast::<Context>()) }.number
}

/// Executes commands. Returns 0 on success, and ENOENT if there is no queue or queue pair for an event. Otherwise
/// returns EINVAL and prints a line on standard error.
///
/// # Safety
/// `text` ends with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn percale_verbs_double(text: *const c_char) -> c_int {
    // SAFETY: guaranteed by the caller.
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
    let obeyed = machine().execute_command(&text);
    errno(obeyed.map_err(|why| match why {
        CommandError::Nothing => libc::ENOENT,
        CommandError::Meaningless(why) => {
            eprintln!("verbs double: {why}");
            libc::EINVAL
        }
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_list(count: *mut c_int) -> *mut *mut abi::Device {
    let mut list: Vec<*mut abi::Device> = Vec::new();
    for (place, one) in machine().devices.iter().enumerate().filter(|(_, one)| !one.gone) {
        let mut device: Box<Device> = zeroed();
        device.place = place;
        for (to, from) in device.abi.name[..abi::NAME_MAX - 1].iter_mut().zip(one.name.bytes()) {
            *to = c_char::from_ne_bytes([from]);
        }
        device.abi.dev_name = device.abi.name;
        (device.abi.node_type, device.abi.transport_type) = if one.settings.rc { (1, 0) } else { (-1, -1) };
        // The device is never freed, because a context refers to it.
        list.push(Box::into_raw(device).cast());
    }
    if !count.is_null() {
        // SAFETY: the caller passes a valid integer.
        unsafe { *count = list.len() as c_int };
    }
    list.push(null_mut());
    Box::into_raw(list.into_boxed_slice()).cast()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_free_device_list(list: *mut *mut abi::Device) {
    let mut len = 0;
    // SAFETY: the list ends with a null pointer.
    while !unsafe { list.wrapping_add(len).read() }.is_null() {
        len += 1;
    }
    // SAFETY: the list was created from a boxed slice of this length.
    drop(unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(list, len + 1)) });
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_open_device(device: *mut abi::Device) -> *mut abi::Context {
    // SAFETY: devices are passed to programs as the first field of such a structure, which is never freed.
    let place = unsafe { of(device.cast::<Device>()) }.place;
    let opened = machine().open(place).map(|(number, fd)| {
        let mut context: Box<Context> = zeroed();
        context.number = number;
        (context.abi.device, context.abi.async_fd, context.abi.cmd_fd) = (device, fd, -1);
        context.abi.num_comp_vectors = 1;
        let ops = &mut context.abi.ops;
        ops.alloc_mw = Some(alloc_mw);
        ops.bind_mw = Some(bind_mw);
        ops.dealloc_mw = Some(dealloc_mw);
        ops.poll_cq = Some(poll_cq);
        ops.req_notify_cq = Some(req_notify_cq);
        ops.post_send = Some(post_send);
        ops.post_recv = Some(post_recv);
        context
    });
    given(opened).cast()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_close_device(context: *mut abi::Context) -> c_int {
    // SAFETY: the caller passes a valid context.
    let number = unsafe { context_of(context) };
    let mut state = machine();
    let closed = state.close(number);
    let mut thread = state.end_network();
    drop(state);
    while let Some(ending) = thread.take() {
        if ending.is_finished() {
            _ = ending.join();
            break;
        }
        thread = match &mut machine().network {
            // The network is needed again.
            Some(network) if network.revived() => {
                network.thread = Some(ending);
                None
            }
            _ => Some(ending),
        };
        std::thread::sleep(Duration::from_micros(50));
    }
    // SAFETY: it was returned by `ibv_open_device`.
    unsafe { freed(context.cast::<Context>(), closed) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_device(context: *mut abi::Context, attr: *mut abi::DeviceAttr) -> c_int {
    // SAFETY: the caller passes a valid context.
    let context = unsafe { context_of(context) };
    let mut state = machine();
    if let Err(errno) = state.fails(context, "ibv_query_device") {
        return errno;
    }
    let settings = &state.device(context).settings;
    let mut all: Box<abi::DeviceAttr> = zeroed();
    let limit = |name| settings.limit(name).cast_signed();
    (all.max_qp, all.max_qp_wr, all.max_sge) = (limit("max_qp"), limit("max_qp_wr"), limit("max_sge"));
    (all.max_sge_rd, all.max_cq, all.max_cqe) = (all.max_sge, limit("max_cq"), limit("max_cqe"));
    (all.max_mr, all.max_pd, all.max_mw) = (limit("max_mr"), limit("max_pd"), limit("max_mw"));
    (all.max_qp_rd_atom, all.max_qp_init_rd_atom) = (limit("max_qp_rd_atom"), limit("max_qp_rd_atom"));
    (all.max_mr_size, all.page_size_cap) = (u64::MAX, 4096);
    (all.vendor_id, all.phys_port_cnt) = (settings.vendor, settings.ports);
    for (bit, flag) in
        [(1, abi::DEVICE_MEM_WINDOW), (2, abi::DEVICE_MEM_WINDOW_TYPE_2A), (4, abi::DEVICE_MEM_WINDOW_TYPE_2B)]
    {
        all.device_cap_flags |= if settings.windows & bit != 0 { flag } else { 0 };
    }
    // SAFETY: the caller passes a valid structure.
    unsafe { attr.write(*all) };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_port(context: *mut abi::Context, port: u8, attr: *mut abi::PortAttr) -> c_int {
    // SAFETY: the caller passes a valid context.
    let context = unsafe { context_of(context) };
    let mut state = machine();
    if let Err(errno) = state.fails(context, "ibv_query_port") {
        return errno;
    }
    let settings = &state.device(context).settings;
    if port == 0 || port > settings.ports {
        return libc::EINVAL;
    }
    let mut all: Box<abi::PortAttr> = zeroed();
    all.state = if settings.up { abi::PORT_ACTIVE } else { abi::PORT_DOWN };
    (all.max_mtu, all.active_mtu, all.gid_tbl_len) = (abi::MTU_4096, 3, 1);
    (all.max_msg_sz, all.link_layer) = (settings.limit("max_msg_sz"), abi::LINK_LAYER_ETHERNET);
    // SAFETY: the caller passes a valid structure.
    unsafe { attr.write(*all) };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_gid(context: *mut abi::Context, port: u8, index: c_int, gid: *mut Gid) -> c_int {
    // SAFETY: the caller passes a valid context.
    let context = unsafe { context_of(context) };
    let mut state = machine();
    let settings = &state.device(context).settings;
    if port == 0 || port > settings.ports || index != 0 {
        set_errno(libc::EINVAL);
        return -1;
    }
    // SAFETY: the caller passes a valid address.
    unsafe { gid.write(settings.address(port)) };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_alloc_pd(context: *mut abi::Context) -> *mut abi::Pd {
    // SAFETY: the caller passes a valid context.
    let number = unsafe { context_of(context) };
    given(machine().alloc_domain(number).map(|handle| Box::new(abi::Pd { context, handle })))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_dealloc_pd(domain: *mut abi::Pd) -> c_int {
    // SAFETY: the caller passes a valid domain.
    let handle = unsafe { of(domain) }.handle;
    let result = machine().dealloc_domain(handle);
    // SAFETY: it was returned by `ibv_alloc_pd`.
    unsafe { freed(domain, result) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_mr(domain: *mut abi::Pd, start: *mut c_void, len: usize, rights: c_int) -> *mut abi::Mr {
    // SAFETY: the caller passes a valid domain.
    let pd = unsafe { of(domain) };
    let registered = machine().register(pd.handle, start.expose_provenance() as u64, len as u64, rights);
    given(registered.map(|key| {
        let mut region: Box<abi::Mr> = zeroed();
        (region.context, region.pd, region.addr, region.length) = (pd.context, domain, start, len);
        (region.handle, region.lkey, region.rkey) = (key, key, key);
        region
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_dereg_mr(region: *mut abi::Mr) -> c_int {
    // SAFETY: the caller passes a valid region.
    let key = unsafe { of(region) }.handle;
    let result = machine().end_key(key, "ibv_dereg_mr");
    // SAFETY: it was returned by `ibv_reg_mr`.
    unsafe { freed(region, result) }
}

unsafe extern "C" fn alloc_mw(domain: *mut abi::Pd, kind: c_int) -> *mut abi::Mw {
    // SAFETY: the caller passes a valid domain.
    let pd = unsafe { of(domain) };
    given(machine().alloc_window(pd.handle, kind).map(|key| {
        let mut window: Box<abi::Mw> = zeroed();
        (window.context, window.pd, window.rkey) = (pd.context, domain, key);
        (window.handle, window.kind) = (key, kind);
        window
    }))
}

unsafe extern "C" fn dealloc_mw(window: *mut abi::Mw) -> c_int {
    // SAFETY: the caller passes a valid window.
    let key = unsafe { of(window) }.handle;
    let result = machine().end_key(key, "ibv_dealloc_mw");
    // SAFETY: it was returned by `alloc_mw`.
    unsafe { freed(window, result) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_comp_channel(context: *mut abi::Context) -> *mut abi::CompChannel {
    // SAFETY: the caller passes a valid context.
    let number = unsafe { context_of(context) };
    let made = machine().create_channel(number);
    given(made.map(|(number, fd)| Box::new(Channel { abi: abi::CompChannel { context, fd, refcnt: 0 }, number })))
        .cast()
}

/// Returns the number of a channel.
///
/// # Safety
/// The channel is alive.
unsafe fn channel_of(channel: *mut abi::CompChannel) -> u32 {
    // SAFETY: channels are passed to programs as the first field of such a structure.
    unsafe { of(channel.cast::<Channel>()) }.number
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut abi::CompChannel) -> c_int {
    // SAFETY: the caller passes a valid channel.
    let number = unsafe { channel_of(channel) };
    let result = machine().destroy_channel(number);
    // SAFETY: it was returned by `ibv_create_comp_channel`.
    unsafe { freed(channel.cast::<Channel>(), result) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_cq(
    context: *mut abi::Context,
    entries: c_int,
    user: *mut c_void,
    channel: *mut abi::CompChannel,
    _vector: c_int,
) -> *mut abi::Cq {
    // SAFETY: the caller passes a valid context.
    let number = unsafe { context_of(context) };
    // SAFETY: the caller passes a valid channel, or null.
    let through = (!channel.is_null()).then(|| unsafe { channel_of(channel) });
    let mut state = machine();
    given(state.create_queue(number, entries, through).map(|handle| {
        let mut queue: Box<abi::Cq> = zeroed();
        (queue.context, queue.channel, queue.cq_context) = (context, channel, user);
        (queue.handle, queue.cqe) = (handle, entries);
        if let Some(made) = state.queues.get_mut(&handle) {
            made.ptr = (&raw const *queue).expose_provenance() as u64;
        }
        queue
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_cq(queue: *mut abi::Cq) -> c_int {
    // SAFETY: the caller passes a valid queue.
    let handle = unsafe { of(queue) }.handle;
    let result = machine().destroy_queue(handle);
    // SAFETY: it was returned by `ibv_create_cq`.
    unsafe { freed(queue, result) }
}

unsafe extern "C" fn poll_cq(queue: *mut abi::Cq, most: c_int, entries: *mut abi::Wc) -> c_int {
    // SAFETY: the caller passes a valid queue.
    let handle = unsafe { of(queue) }.handle;
    let mut state = machine();
    let (mut count, most) = (0, usize::try_from(most).unwrap_or(0));
    while count < most {
        let Some(queue) = state.queues.get_mut(&handle) else { break };
        let seen = |entry: &CompletionEntry| entry.ready.is_none_or(|ready| ready <= Instant::now());
        let Some(entry) = queue.entries.pop_front_if(|entry| seen(entry)) else { break };
        if let Some(pair) = state.pairs.get_mut(&entry.wc.qp_num) {
            let used = if entry.is_send { &mut pair.used.0 } else { &mut pair.used.1 };
            *used = used.saturating_sub(1);
        }
        // SAFETY: the caller's array has room for this many.
        unsafe { entries.wrapping_add(count).write(entry.wc) };
        count += 1;
    }
    count as c_int
}

unsafe extern "C" fn req_notify_cq(queue: *mut abi::Cq, _solicited: c_int) -> c_int {
    // SAFETY: the caller passes a valid queue.
    let handle = unsafe { of(queue) }.handle;
    if let Some(queue) = machine().queues.get_mut(&handle) {
        queue.armed = true;
    }
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_cq_event(
    channel: *mut abi::CompChannel,
    queue: *mut *mut abi::Cq,
    user: *mut *mut c_void,
) -> c_int {
    // SAFETY: the caller passes a valid channel.
    let (number, fd) = (unsafe { channel_of(channel) }, unsafe { of(channel) }.fd);
    if let Err(errno) = take(fd) {
        set_errno(errno);
        return -1;
    }
    let mut state = machine();
    let event = state.channels.get_mut(&number).and_then(|channel| channel.events.pop_front());
    let Some(found) = event.and_then(|event| state.queues.get_mut(&event)) else {
        set_errno(libc::EAGAIN);
        return -1;
    };
    found.unacknowledged += 1;
    let ptr: *mut abi::Cq = std::ptr::with_exposed_provenance_mut(found.ptr as usize);
    // SAFETY: the caller passes a valid pointer.
    unsafe { queue.write(ptr) };
    // SAFETY: the queue is alive.
    let context = unsafe { of(ptr) }.cq_context;
    // SAFETY: the caller passes a valid pointer.
    unsafe { user.write(context) };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_ack_cq_events(queue: *mut abi::Cq, count: c_uint) {
    // SAFETY: the caller passes a valid queue.
    let handle = unsafe { of(queue) }.handle;
    if let Some(queue) = machine().queues.get_mut(&handle) {
        queue.unacknowledged = queue.unacknowledged.saturating_sub(count);
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_async_event(context: *mut abi::Context, event: *mut abi::AsyncEvent) -> c_int {
    // SAFETY: the caller passes a valid context.
    let (number, fd) = (unsafe { context_of(context) }, unsafe { of(context) }.async_fd);
    if let Err(errno) = take(fd) {
        set_errno(errno);
        return -1;
    }
    let mut state = machine();
    let Some((event_type, element)) = state.contexts.get_mut(&number).and_then(|one| one.events.pop_front()) else {
        set_errno(libc::EAGAIN);
        return -1;
    };
    // SAFETY: the caller passes a valid structure.
    unsafe { event.write(abi::AsyncEvent { element, event_type }) };
    0
}

#[unsafe(no_mangle)]
const unsafe extern "C" fn ibv_ack_async_event(_: *mut abi::AsyncEvent) {}

#[unsafe(no_mangle)]
const unsafe extern "C" fn ibv_wc_status_str(status: c_int) -> *const c_char {
    let text: &CStr = match status {
        0 => c"success",
        abi::WC_LOC_LEN_ERR => c"local length error",
        abi::WC_LOC_PROT_ERR => c"local protection error",
        abi::WC_WR_FLUSH_ERR => c"Work Request Flushed Error",
        abi::WC_MW_BIND_ERR => c"memory bind operation error",
        abi::WC_REM_INV_REQ_ERR => c"remote invalid request error",
        abi::WC_REM_ACCESS_ERR => c"remote access error",
        abi::WC_REM_OP_ERR => c"remote operation error",
        abi::WC_RETRY_EXC_ERR => c"transport retry counter exceeded",
        abi::WC_RNR_RETRY_EXC_ERR => c"RNR retry counter exceeded",
        _ => c"another error",
    };
    text.as_ptr()
}
