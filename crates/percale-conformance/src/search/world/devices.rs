//! The fabrics that open the domains of places, and device events of the fabrics that use RDMA.

use std::sync::OnceLock;

use percale::transport::sim::Network;
use percale::{Domain, Info, TransportKind};

use super::World;
use crate::search::double;
use crate::search::step::{DEVICES, DeviceStep, Request, RunTransport, Settings, VerbsCall};

/// The fabrics of a run.
pub(super) struct Fabrics {
    /// RDMA fabrics that have opened their own devices.
    own: Vec<Info>,
}

fn discover() -> Info {
    Info::discover().expect("discovery")
}

impl Fabrics {
    /// Makes the fabrics of a run. If the run uses RDMA, its devices are made first.
    pub(super) fn new(settings: &Settings) -> Self {
        let Some(devices) = settings.devices else { return Self { own: Vec::new() } };
        for number in 0..DEVICES {
            let (windows, reuse, timeout) = (devices.windows, u8::from(devices.reuse), devices.timeout);
            let (reads, inline) = (devices.reads, devices.inline);
            // Each device is created before it is reset, because it may not exist.
            double::execute_commands(&format!(
                "device double{number}; reset double{number}; device double{number} windows={windows} reuse={reuse} \
                 timeout={timeout} max_qp_rd_atom={reads} max_inline_data={inline}"
            ));
        }
        let fabrics = if devices.own_fabrics { settings.seats.len() } else { 1 };
        let own = (0..fabrics).map(|number| {
            // A fabric opens the first device whose port is up.
            let second = u8::from(devices.both && number % DEVICES == 1);
            double::execute_commands(&format!("device double0 up={}", 1 - second));
            discover()
        });
        let own = own.collect();
        double::execute_commands("device double0 up=1");
        Self { own }
    }

    /// Opens a domain for a place.
    pub(super) fn domain(&self, settings: &Settings, network: Option<&Network>, place: usize) -> Domain {
        // The devices and interfaces of the machine do not change between two runs.
        static INFO: OnceLock<Info> = OnceLock::new();
        let own = self.own.get(place % self.own.len().max(1));
        let info = own.unwrap_or_else(|| INFO.get_or_init(discover));
        let builder = info.domain().unexpected_cap(settings.unexpected);
        let builder = match (settings.transport, network) {
            (_, Some(network)) => builder.simulated(network),
            (RunTransport::Shm, _) => builder.transport(TransportKind::Shm),
            (RunTransport::Tcp, _) => builder.transport(TransportKind::Tcp),
            (RunTransport::Verbs, _) if settings.devices.is_some_and(|devices| devices.with_tcp) => {
                builder.transport(TransportKind::Verbs).transport(TransportKind::Tcp)
            }
            (RunTransport::Verbs, _) => builder.transport(TransportKind::Verbs),
            _ => builder.transport(TransportKind::Loopback),
        };
        builder.open().expect("a domain")
    }
}

const fn request(what: Request) -> &'static str {
    match what {
        Request::Send => "send",
        Request::Write => "write",
        Request::Read => "read",
        Request::Bind => "bind",
        Request::Invalidate => "invalidate",
        Request::Connect => "connect",
        Request::Receive => "receive",
    }
}

const fn call(what: VerbsCall) -> &'static str {
    match what {
        VerbsCall::RegisterMemory => "ibv_reg_mr",
        VerbsCall::AllocateWindow => "ibv_alloc_mw",
        VerbsCall::CreateQueue => "ibv_create_cq",
        VerbsCall::CreateChannel => "ibv_create_comp_channel",
        VerbsCall::CreatePair => "ibv_create_qp",
        VerbsCall::ModifyPair => "ibv_modify_qp",
        VerbsCall::AllocateDomain => "ibv_alloc_pd",
    }
}

impl World {
    /// Causes an event of a device.
    pub(super) fn device(&mut self, number: usize, what: DeviceStep) {
        if self.settings.devices.is_none() {
            return;
        }
        let name = format!("double{}", number % DEVICES);
        let command = match what {
            DeviceStep::Delay(late, milliseconds) => format!("delay {name} {} {milliseconds}", request(late)),
            // 12 is ENOMEM.
            DeviceStep::Refuse(what, after) => format!("fail {name} {} {} 12", call(what), after + 1),
            DeviceStep::Fail(what, after, status) => {
                format!("fail {name} {} {} status {status}", request(what), after + 1)
            }
            DeviceStep::QueueError(before) => format!("event {name} cq_error {before}"),
            DeviceStep::PairError => format!("event {name} qp_fatal"),
            DeviceStep::Port(true) => format!("event {name} port_active"),
            DeviceStep::Port(false) => format!("event {name} port_error"),
            DeviceStep::Address => format!("event {name} gid_change"),
            DeviceStep::Fatal => format!("event {name} fatal"),
        };
        // The named queue may not exist.
        double::execute_commands(&command);
    }

    /// Ends the effects of all device events, so that outstanding operations end.
    pub(super) fn calm_devices(&self) {
        if self.settings.devices.is_some() {
            (0..DEVICES).for_each(|number| _ = double::execute_commands(&format!("calm double{number}")));
        }
    }
}
