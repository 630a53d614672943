//! Creation and destruction of objects, with the checks of a kernel.

use std::collections::VecDeque;
use std::ffi::c_int;

use crate::abi;
use crate::descriptors::{self, counter};
use crate::keys::KeyObject;
use crate::machine::{Channel, Domain, Machine, Opened, Queue};
use crate::memory;
use crate::pair::Pair;

/// Checks the number of a device's objects, in all its contexts, against the device's limit.
macro_rules! room {
    ($machine:ident, $context:expr, $limit:literal, $objects:ident) => {{
        let used = $machine.$objects.values().filter(|one| $machine.is_same(one.context, $context)).count();
        $machine.has_room($context, $limit, used)
    }};
}

impl Machine {
    pub(crate) fn open(&mut self, device: usize) -> Result<(u32, c_int), c_int> {
        let number = self.number();
        let fd = counter(libc::EFD_SEMAPHORE)?;
        let opened = Opened { device, fd, events: VecDeque::new(), users: 0 };
        if let Some(errno) = self.devices[device].fails("ibv_open_device") {
            descriptors::close(fd);
            return Err(errno);
        }
        self.contexts.insert(number, opened);
        Ok((number, fd))
    }

    pub(crate) fn close(&mut self, context: u32) -> Result<(), c_int> {
        let opened = self.contexts.get(&context).ok_or(libc::EINVAL)?;
        if opened.users > 0 {
            return Err(libc::EBUSY);
        }
        if let Some(opened) = self.contexts.remove(&context) {
            descriptors::close(opened.fd);
        }
        Ok(())
    }

    fn used(&mut self, context: u32, by: i32) {
        if let Some(opened) = self.contexts.get_mut(&context) {
            opened.users = opened.users.wrapping_add_signed(by);
        }
    }

    pub(crate) fn alloc_domain(&mut self, context: u32) -> Result<u32, c_int> {
        self.fails(context, "ibv_alloc_pd")?;
        room!(self, context, "max_pd", domains)?;
        let number = self.number();
        self.domains.insert(number, Domain { context, users: 0 });
        self.used(context, 1);
        Ok(number)
    }

    pub(crate) fn dealloc_domain(&mut self, domain: u32) -> Result<(), c_int> {
        let found = self.domains.get(&domain).ok_or(libc::EINVAL)?;
        if found.users > 0 {
            return Err(libc::EBUSY);
        }
        let context = found.context;
        self.domains.remove(&domain);
        self.used(context, -1);
        Ok(())
    }

    fn in_domain(&mut self, domain: u32, by: i32) {
        if let Some(found) = self.domains.get_mut(&domain) {
            found.users = found.users.wrapping_add_signed(by);
        }
    }

    pub(crate) fn register(&mut self, domain: u32, start: u64, len: u64, rights: c_int) -> Result<u32, c_int> {
        let context = self.domains.get(&domain).ok_or(libc::EINVAL)?.context;
        self.fails(context, "ibv_reg_mr")?;
        let (regions, _, bytes) = self.keys.count(|other| self.is_same(other, context));
        self.has_room(context, "max_mr", regions)?;
        let settings = &self.device(context).settings;
        let (locked, reuse) = (u64::from(settings.limit("max_locked")) << 20, settings.reuse);
        if locked > 0 && bytes + len > locked {
            return Err(libc::ENOMEM);
        }
        let writes = rights & (abi::ACCESS_LOCAL_WRITE | abi::ACCESS_REMOTE_WRITE);
        if writes == abi::ACCESS_REMOTE_WRITE {
            return Err(libc::EINVAL);
        }
        if !memory::is_there(start, len as usize, writes != 0) {
            return Err(libc::EFAULT);
        }
        self.in_domain(domain, 1);
        Ok(self.keys.insert(domain, context, KeyObject::Region { start, len, rights, windows: 0 }, reuse))
    }

    /// Destroys a region or a window.
    pub(crate) fn end_key(&mut self, key: u32, call: &str) -> Result<(), c_int> {
        let context = self.keys.get(key).ok_or(libc::EINVAL)?.context;
        // Every object of a failed device can be destroyed.
        if let Some(errno) = self.device(context).fails(call) {
            return Err(errno);
        }
        let named = self.keys.remove(key)?;
        self.in_domain(named.domain, -1);
        Ok(())
    }

    pub(crate) fn alloc_window(&mut self, domain: u32, kind: c_int) -> Result<u32, c_int> {
        let context = self.domains.get(&domain).ok_or(libc::EINVAL)?.context;
        self.fails(context, "ibv_alloc_mw")?;
        let two = kind == abi::MW_TYPE_2;
        let has = self.device(context).settings.windows & if two { 6 } else { 1 } != 0;
        if !has {
            return Err(libc::EOPNOTSUPP);
        }
        let (_, windows, _) = self.keys.count(|other| self.is_same(other, context));
        self.has_room(context, "max_mw", windows)?;
        self.in_domain(domain, 1);
        Ok(self.keys.insert(domain, context, KeyObject::Window { two, bound: None }, false))
    }

    pub(crate) fn create_channel(&mut self, context: u32) -> Result<(u32, c_int), c_int> {
        self.fails(context, "ibv_create_comp_channel")?;
        let fd = counter(libc::EFD_SEMAPHORE)?;
        let number = self.number();
        self.channels.insert(number, Channel { context, fd, events: VecDeque::new(), users: 0 });
        self.used(context, 1);
        Ok((number, fd))
    }

    pub(crate) fn destroy_channel(&mut self, channel: u32) -> Result<(), c_int> {
        let found = self.channels.get(&channel).ok_or(libc::EINVAL)?;
        if found.users > 0 {
            return Err(libc::EBUSY);
        }
        let (context, fd) = (found.context, found.fd);
        descriptors::close(fd);
        self.channels.remove(&channel);
        self.used(context, -1);
        Ok(())
    }

    pub(crate) fn create_queue(&mut self, context: u32, entries: c_int, channel: Option<u32>) -> Result<u32, c_int> {
        self.fails(context, "ibv_create_cq")?;
        room!(self, context, "max_cq", queues)?;
        let capacity = usize::try_from(entries).ok().filter(|entries| *entries > 0).ok_or(libc::EINVAL)?;
        if capacity > self.device(context).settings.limit("max_cqe") as usize {
            return Err(libc::EINVAL);
        }
        let number = self.number();
        if let Some(channel) = channel.and_then(|channel| self.channels.get_mut(&channel)) {
            channel.users += 1;
        }
        let queue = Queue {
            ptr: 0,
            context,
            channel,
            capacity,
            entries: VecDeque::new(),
            armed: false,
            dead: false,
            unacknowledged: 0,
            users: 0,
        };
        self.queues.insert(number, queue);
        self.used(context, 1);
        Ok(number)
    }

    pub(crate) fn destroy_queue(&mut self, queue: u32) -> Result<(), c_int> {
        let found = self.queues.get(&queue).ok_or(libc::EINVAL)?;
        if found.unacknowledged > 0 {
            eprintln!("verbs double: a completion queue is destroyed while it has unacknowledged events");
        }
        if found.users > 0 || found.unacknowledged > 0 {
            return Err(libc::EBUSY);
        }
        let (context, channel, ptr) = (found.context, found.channel, found.ptr);
        self.queues.remove(&queue);
        self.forget_events(context, ptr);
        if let Some(channel) = channel.and_then(|channel| self.channels.get_mut(&channel)) {
            channel.users -= 1;
            channel.events.retain(|other| *other != queue);
        }
        self.used(context, -1);
        Ok(())
    }

    pub(crate) fn create_pair(
        &mut self,
        domain: u32,
        (send_queue, receive_queue): (u32, u32),
        kind: c_int,
        cap: abi::QpCap,
    ) -> Result<u32, c_int> {
        let context = self.domains.get(&domain).ok_or(libc::EINVAL)?.context;
        self.fails(context, "ibv_create_qp")?;
        let settings = self.device(context).settings.clone();
        if kind != abi::QPT_RC || !settings.rc {
            return Err(libc::EOPNOTSUPP);
        }
        room!(self, context, "max_qp", pairs)?;
        let (requests, pieces) = (settings.limit("max_qp_wr"), settings.limit("max_sge"));
        let fits = cap.max_send_wr <= requests
            && cap.max_recv_wr <= requests
            && cap.max_send_sge <= pieces
            && cap.max_recv_sge <= pieces
            && cap.max_inline_data <= settings.limit("max_inline_data");
        if !fits || !self.queues.contains_key(&send_queue) || !self.queues.contains_key(&receive_queue) {
            return Err(libc::EINVAL);
        }
        self.need_network()?;
        let number = self.pair_number().ok_or(libc::ENOMEM)?;
        let made = self.number();
        let pair = Pair {
            ptr: 0,
            made,
            context,
            domain,
            send_queue,
            receive_queue,
            cap,
            state: abi::QPS_RESET,
            rights: 0,
            port: 0,
            peer: None,
            sequence: 0,
            sends: VecDeque::new(),
            receives: VecDeque::new(),
            used: (0, 0),
            first: 0,
            expected: 0,
            hold: None,
            silent: None,
            unready: 0,
            retries: 0,
        };
        self.pairs.insert(number, pair);
        self.in_domain(domain, 1);
        for queue in [send_queue, receive_queue] {
            if let Some(queue) = self.queues.get_mut(&queue) {
                queue.users += 1;
            }
        }
        Ok(number)
    }

    pub(crate) fn destroy_pair(&mut self, number: u32) -> Result<(), c_int> {
        let found = self.pairs.get(&number).ok_or(libc::EINVAL)?;
        let bound = self.keys.bound_over(number);
        if bound > 0 {
            eprintln!("verbs double: a queue pair is destroyed while {bound} windows are bound over it");
            return Err(libc::EBUSY);
        }
        let (domain, queues) = (found.domain, [found.send_queue, found.receive_queue]);
        let (context, ptr) = (found.context, found.ptr);
        self.pairs.remove(&number);
        self.forget_events(context, ptr);
        self.timers.retain(|(_, pair)| *pair != number);
        self.in_domain(domain, -1);
        for queue in queues {
            if let Some(queue) = self.queues.get_mut(&queue) {
                queue.users -= 1;
                // The program does not poll the completions of this queue pair any more.
                queue.entries.retain(|entry| entry.wc.qp_num != number);
            }
        }
        Ok(())
    }
}
