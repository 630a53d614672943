//! The command language of `PERCALE_VERBS_DOUBLE`, which creates devices and makes them fail.

use std::collections::HashMap;
use std::ffi::c_int;
use std::time::Duration;

use crate::abi;

/// The settings of a device, by the keys of the command `device`.
#[derive(Clone)]
pub(crate) struct Settings {
    /// `ports`: the number of ports.
    pub(crate) ports: u8,
    /// `rc`: whether it supports reliable connections.
    pub(crate) rc: bool,
    /// `up`: whether its ports are active.
    pub(crate) up: bool,
    /// `drop`: whether everything that it sends and receives is lost.
    pub(crate) drop: bool,
    /// `drop_port`: like `drop`, for only one of its ports, or 0 for none.
    pub(crate) drop_port: u8,
    /// `gid`: the third byte of its ports' IPv4 addresses; the last byte is the number of the port.
    pub(crate) gid: u8,
    /// `lax`: whether a peer may invalidate any bound window of type 2, as with soft-RoCE.
    pub(crate) lax: bool,
    /// `reuse`: whether the key of a destroyed object is used for the next one.
    pub(crate) reuse: bool,
    /// `windows`: a sum of 1 (type 1), 2 (type 2A) and 4 (type 2B).
    pub(crate) windows: u32,
    /// `vendor`: the vendor id.
    pub(crate) vendor: u32,
    /// `timeout`: the number of milliseconds after which a request without an answer fails.
    pub(crate) timeout: u64,
    /// `max_qp`, `max_mr` and so on: limits, by their names in C.
    pub(crate) limits: HashMap<String, u32>,
}

/// Limits, with their default values.
const LIMITS: &[(&str, u32)] = &[
    ("max_qp", 8000),
    ("max_qp_wr", 4096),
    ("max_sge", 16),
    ("max_cq", 8000),
    ("max_cqe", 65_536),
    ("max_mr", 100_000),
    ("max_pd", 8000),
    ("max_mw", 100_000),
    ("max_qp_rd_atom", 16),
    ("max_inline_data", 256),
    ("max_msg_sz", 1 << 30),
    // The maximum total of registered memory in MiB, or 0 for no limit.
    ("max_locked", 0),
];

impl Settings {
    fn new(number: u8) -> Self {
        Self {
            ports: 1,
            rc: true,
            up: true,
            drop: false,
            drop_port: 0,
            gid: number,
            lax: false,
            reuse: false,
            windows: 7,
            vendor: 0x2c9,
            timeout: 400,
            limits: LIMITS.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect(),
        }
    }

    pub(crate) fn limit(&self, name: &str) -> u32 {
        self.limits[name]
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        let number: u32 = value.parse().map_err(|_| format!("{key}={value}: not a number"))?;
        let byte = || u8::try_from(number).map_err(|_| format!("{key}={value}: more than 255"));
        match key {
            "ports" => self.ports = byte()?,
            "rc" => self.rc = number != 0,
            "up" => self.up = number != 0,
            "drop" => self.drop = number != 0,
            "drop_port" => self.drop_port = byte()?,
            "gid" => self.gid = byte()?,
            "lax" => self.lax = number != 0,
            "reuse" => self.reuse = number != 0,
            "windows" => self.windows = number,
            "vendor" => self.vendor = number,
            "timeout" => self.timeout = number.into(),
            other => match self.limits.get_mut(other) {
                Some(limit) => *limit = number,
                None => return Err(format!("unknown device setting: {other}")),
            },
        }
        Ok(())
    }

    /// Returns the address of a port.
    pub(crate) fn address(&self, port: u8) -> [u8; 16] {
        let mut gid = [0; 16];
        gid[10..].copy_from_slice(&[0xff, 0xff, 10, 77, self.gid, port]);
        gid
    }

    /// Returns whether an address may belong to a device. Port numbers are small.
    pub(crate) fn is_address(gid: &[u8; 16]) -> bool {
        gid[..14] == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 77] && (1..0x40).contains(&gid[15])
    }
}

/// A call or a request that must fail.
#[derive(Clone)]
struct Failure {
    what: String,
    /// Counts the calls until the failure: a call fails when this is 1. If this is 0, every call fails.
    left: u32,
    /// An errno, or the status of a completion.
    code: c_int,
}

/// A device, which may be open or not.
pub(crate) struct Device {
    pub(crate) name: String,
    pub(crate) settings: Settings,
    /// Whether it has failed or was removed.
    pub(crate) gone: bool,
    failures: Vec<Failure>,
    delays: HashMap<String, Duration>,
}

impl Device {
    pub(crate) fn new(name: &str, number: u8) -> Self {
        Self {
            name: name.to_owned(),
            settings: Settings::new(number),
            gone: false,
            failures: Vec::new(),
            delays: HashMap::new(),
        }
    }

    /// Returns the errno or status with which this call or request must fail, if it must fail.
    pub(crate) fn fails(&mut self, what: &str) -> Option<c_int> {
        let mut code = None;
        self.failures.retain_mut(|one| {
            if one.what != what {
                return true;
            }
            let now = one.left <= 1;
            if now {
                code = code.or(Some(one.code));
            }
            let stays = one.left != 1;
            one.left = one.left.saturating_sub(1);
            stays
        });
        code
    }

    pub(crate) fn delay(&self, what: &str) -> Option<Duration> {
        self.delays.get(what).copied()
    }
}

/// An event that a command requests.
#[derive(Clone, Copy)]
pub(crate) enum InjectedEvent {
    Fatal,
    Port(bool),
    Gid,
    Queue(usize),
    Pair,
}

/// Executes commands on the list of devices. Returns the remaining effects, with the index of the device.
pub(crate) fn execute_command(devices: &mut Vec<Device>, text: &str) -> Result<Vec<(usize, InjectedEvent)>, String> {
    let mut happenings = Vec::new();
    for command in text.split([';', '\n']) {
        let words: Vec<&str> = command.split_whitespace().collect();
        let number = |word: &str| word.parse::<u32>().map_err(|_| format!("{command}: {word} is not a number"));
        let find = |devices: &Vec<Device>, name: &str| {
            devices.iter().position(|one| one.name == name).ok_or_else(|| format!("there is no device {name}"))
        };
        match words[..] {
            [] => {}
            ["device", name, ref settings @ ..] => {
                let at = find(devices, name).unwrap_or_else(|_| {
                    devices.push(Device::new(name, u8::try_from(devices.len() + 1).unwrap_or(u8::MAX)));
                    devices.len() - 1
                });
                for setting in settings {
                    let (key, value) = setting.split_once('=').ok_or_else(|| format!("{setting}: no value"))?;
                    devices[at].settings.set(key, value)?;
                }
            }
            ["reset", name] => {
                let at = find(devices, name)?;
                devices[at] = Device::new(name, u8::try_from(at + 1).unwrap_or(u8::MAX));
            }
            ["calm", name] => {
                let at = find(devices, name)?;
                devices[at].failures.clear();
                devices[at].delays.clear();
            }
            ["fail", name, what, nth, code] | ["fail", name, what, nth, "status", code] => {
                let (at, left, code) = (find(devices, name)?, number(nth)?, number(code)?);
                devices[at].failures.push(Failure { what: what.to_owned(), left, code: code.cast_signed() });
            }
            ["delay", name, what, ms] => {
                let (at, ms) = (find(devices, name)?, number(ms)?);
                devices[at].delays.insert(what.to_owned(), Duration::from_millis(ms.into()));
            }
            ["event", name, what] => {
                let happening = match what {
                    "fatal" => InjectedEvent::Fatal,
                    "port_error" => InjectedEvent::Port(false),
                    "port_active" => InjectedEvent::Port(true),
                    "gid_change" => InjectedEvent::Gid,
                    "cq_error" => InjectedEvent::Queue(0),
                    "qp_fatal" => InjectedEvent::Pair,
                    other => return Err(format!("unknown event: {other}")),
                };
                happenings.push((find(devices, name)?, happening));
            }
            ["event", name, "cq_error", before] => {
                happenings.push((find(devices, name)?, InjectedEvent::Queue(number(before)? as usize)));
            }
            _ => return Err(format!("{command}: no such command")),
        }
    }
    Ok(happenings)
}

/// Returns the name of a request in commands.
pub(crate) const fn operation(opcode: c_int) -> &'static str {
    match opcode {
        abi::WR_RDMA_WRITE => "write",
        abi::WR_RDMA_READ => "read",
        abi::WR_BIND_MW => "bind",
        abi::WR_LOCAL_INV => "invalidate",
        _ => "send",
    }
}
