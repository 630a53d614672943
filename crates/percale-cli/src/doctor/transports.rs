//! Checks of the transports, by percale's own discovery, and of the addresses of this machine.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener, TcpStream};
use std::time::Duration;

use percale::{Info, TransportKind};

use super::calls::{REJECTIONS, rejected_in};
use super::devices;
use super::exchange::exchange;
use super::finding::{Finding, ProbeLine, Remedy, Report};
use super::surroundings::{Container, Surroundings};
use crate::loopback::here;

/// The facilities that discovery lists, and the checks that report them. The last one is not needed.
const FACILITIES: [(&str, &str); 6] = [
    ("sealed memory", "memfd"),
    ("events", "eventfd"),
    ("waiting on shared words", "futex"),
    ("local sockets", "unix-sockets"),
    ("identity of peers", "pidfd"),
    ("passing descriptors", "descriptor-passing"),
];

/// The facility by which processes copy each other's memory. Shared memory works without it.
const COPIES: &str = "copies between processes";

/// How long a connection to an address of this machine may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// Reports what discovery finds, and whether processes of this machine reach each other.
pub(super) fn probe(surroundings: &Surroundings, report: Report<'_>) -> io::Result<()> {
    let info = Info::discover().map_err(io::Error::other)?;
    let interfaces = info.interfaces();
    let advertised = interfaces.first().map(|one| one.ip);
    let tcp = tcp(&info, advertised, surroundings);
    let has_facilities = info.transports().iter().any(|one| one.kind == TransportKind::Shm && one.available);
    let is_rejected = tcp.state.is_problem();
    report(ProbeLine::Finding(tcp))?;
    for found in local(&info, advertised.unwrap_or_else(|| here().ip()), surroundings) {
        // Endpoints have addresses of TCP, those that use only shared memory, too.
        let needs_tcp = found.check == "shared-memory" && found.state.is_problem() && has_facilities && is_rejected;
        report(ProbeLine::Finding(if needs_tcp { found.because_of("tcp") } else { found }))?;
    }
    report(ProbeLine::Finding(devices::rdma(&info, surroundings)))?;
    report(ProbeLine::Finding(loopback(
        reaches_itself(Ipv4Addr::LOCALHOST.into()),
        reaches_itself(Ipv6Addr::LOCALHOST.into()),
        is_rejected,
        surroundings,
    )))?;
    report(ProbeLine::Finding(named_interfaces(&info, surroundings)))?;
    let route = match interfaces.iter().find(|one| one.default_route) {
        Some(one) => Finding::works(
            "default-route",
            format!("through {}; peers get the address {}", one.name, info.advertised()),
        ),
        None => Finding::absent(
            "default-route",
            format!("only networks of this machine are reachable; peers get the address {}", info.advertised()),
        ),
    };
    report(ProbeLine::Finding(route))
}

fn local(info: &Info, advertised: IpAddr, surroundings: &Surroundings) -> Vec<Finding> {
    let facility = |name: &str| info.devices().iter().find(|one| one.kind == "facility" && one.name == name);
    let mut found: Vec<Finding> = FACILITIES
        .iter()
        .filter_map(|(name, check)| {
            let one = facility(name)?;
            Some(if one.available {
                Finding::works(check, &one.detail)
            } else {
                let usual = format!("the calls of {name}");
                Finding::missing(check, &one.detail, surroundings.allow_failed_call(&one.detail, &usual))
            })
        })
        .collect();
    if let Some(copies) = facility(COPIES) {
        found.push(if copies.available {
            Finding::works("cross-memory-attach", &copies.detail)
        } else {
            let detail =
                format!("{}; long messages from ordinary memory are copied through shared buffers", copies.detail);
            Finding::limited("cross-memory-attach", detail, permit_copies(surroundings))
        });
    }
    if let Some(shm) = info.transports().iter().find(|one| one.kind == TransportKind::Shm) {
        let sent = if shm.available { exchange(info, TransportKind::Shm, advertised) } else { Err(shm.reason.clone()) };
        found.push(match sent {
            Ok(()) => Finding::works("shared-memory", &shm.reason),
            Err(error) => {
                let remedy = surroundings.allow_failed_call(&error, "the calls of shared memory");
                Finding::missing("shared-memory", error, remedy)
            }
        });
    }
    found
}

/// Returns what permits a process to copy from the memory of another one of the same user.
fn permit_copies(surroundings: &Surroundings) -> Remedy {
    let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    if !matches!(scope.trim(), "" | "0") {
        let advice = "Permit processes of one user to copy each other's memory. (It also permits debuggers to attach.)";
        return Remedy::new(advice, [surroundings.as_root("sysctl kernel.yama.ptrace_scope=0")]);
    }
    match surroundings.container {
        Some(container @ (Container::Docker | Container::Podman)) => Remedy::new(
            "Start the container with the capability, or with a filter that allows process_vm_readv:",
            container.started_with("--cap-add SYS_PTRACE"),
        ),
        _ => surroundings.allow_calls("process_vm_readv and process_vm_writev"),
    }
}

/// Checks TCP. Processes of one machine, too, connect at the address that endpoints advertise.
fn tcp(info: &Info, advertised: Option<IpAddr>, surroundings: &Surroundings) -> Finding {
    let up = || Remedy::new("Set an interface up:", [surroundings.as_root("ip link set lo up")]);
    let Some(tcp) = info.transports().iter().find(|one| one.kind == TransportKind::Tcp) else {
        return Finding::missing("tcp", "percale was built without it", up());
    };
    if !tcp.available {
        let is_rejected = rejected_in(&tcp.reason).is_some();
        let remedy = if is_rejected { surroundings.allow_calls(TCP_SOCKETS) } else { up() };
        return Finding::missing("tcp", &tcp.reason, remedy);
    }
    match advertised.map(|ip| (ip, reaches_itself(ip))) {
        Some((ip, Err(error))) => {
            let remedy =
                if is_rejection(&error) { surroundings.allow_calls(TCP_SOCKETS) } else { open_firewall(surroundings) };
            Finding::missing("tcp", format!("this machine cannot connect to its own address {ip}: {error}"), remedy)
        }
        Some((ip, Ok(()))) => match exchange(info, TransportKind::Tcp, ip) {
            Ok(()) => Finding::works("tcp", &tcp.reason),
            Err(error) => {
                let remedy = surroundings.allow_failed_call(&error, "the calls of TCP");
                Finding::missing("tcp", error, remedy)
            }
        },
        None => Finding::works("tcp", &tcp.reason),
    }
}

/// The name of what a sandbox has to allow.
const TCP_SOCKETS: &str = "TCP sockets (socket, bind, listen, connect; Landlock has rules for the last three)";

/// Returns whether a sandbox has rejected a call of a socket: a filter, systemd's RestrictAddressFamilies=, or
/// Landlock.
fn is_rejection(error: &io::Error) -> bool {
    error.raw_os_error().is_some_and(|error| REJECTIONS.contains(&error))
}

/// Returns whether the state of the loopback interface, or its addresses, explain an error.
fn is_interface_down(error: &io::Error) -> bool {
    const ERRORS: [i32; 4] = [libc::EADDRNOTAVAIL, libc::ENETUNREACH, libc::ENETDOWN, libc::EHOSTUNREACH];
    error.raw_os_error().is_some_and(|error| ERRORS.contains(&error))
}

fn open_firewall(surroundings: &Surroundings) -> Remedy {
    Remedy::new(
        "Allow connections of this machine to itself in the firewall; this lists its rules:",
        [surroundings.as_root("nft list ruleset")],
    )
}

/// Connects to a listener at this address.
fn reaches_itself(ip: IpAddr) -> io::Result<()> {
    let listener = TcpListener::bind((ip, 0))?;
    TcpStream::connect_timeout(&listener.local_addr()?, CONNECT_TIMEOUT).map(drop)
}

/// Checks the loopback interface. `is_rejected`: TCP does not work either.
fn loopback(v4: io::Result<()>, v6: io::Result<()>, is_rejected: bool, surroundings: &Surroundings) -> Finding {
    let mend = |error: &io::Error, advice: &str, commands: [String; 2]| {
        if is_rejection(error) {
            surroundings.allow_calls(TCP_SOCKETS)
        } else if is_interface_down(error) {
            Remedy::new(advice, commands)
        } else {
            open_firewall(surroundings)
        }
    };
    let give = |address: &str| surroundings.as_root(&format!("ip address replace {address} dev lo"));
    let up = surroundings.as_root("ip link set lo up");
    match (v4, v6) {
        (Ok(()), Ok(())) => Finding::works("loopback", "127.0.0.1 and ::1"),
        (Ok(()), Err(_)) => Finding::works("loopback", "127.0.0.1"),
        (Err(error), Ok(())) => Finding::limited(
            "loopback",
            format!("only ::1; 127.0.0.1 does not work ({error}), which many programs name (MPI launchers)"),
            mend(&error, "Give the loopback interface its address:", [up, give("127.0.0.1/8")]),
        ),
        (Err(error), Err(_)) => {
            let detail = format!("127.0.0.1 does not work ({error}), nor does ::1");
            if is_rejected && is_rejection(&error) {
                return Finding::dependent("loopback", detail, "tcp");
            }
            let remedy = mend(&error, "Set the loopback interface up:", [up, give("127.0.0.1/8")]);
            Finding::missing("loopback", detail, remedy)
        }
    }
}

fn named_interfaces(info: &Info, surroundings: &Surroundings) -> Finding {
    if let Some(error) = info.interfaces_error() {
        let remedy = surroundings.allow_calls("sockets of the family AF_NETLINK");
        return Finding::limited(
            "interfaces",
            format!("{error}; endpoints can be bound to explicit addresses"),
            remedy,
        );
    }
    let interfaces = info.devices().iter().filter(|one| one.kind == "interface");
    let described: Vec<String> = interfaces.map(|one| format!("{}: {}", one.name, one.detail)).collect();
    if described.is_empty() {
        return Finding::dependent("interfaces", "no interface has an address", "loopback");
    }
    Finding::works("interfaces", described.join("; "))
}

#[cfg(test)]
mod tests {
    use super::super::finding::State;
    use super::*;

    /// The names in [`FACILITIES`] are those of discovery, so no facility is left out.
    #[test]
    fn each_facility_of_discovery_has_a_check() {
        let info = Info::discover().unwrap();
        let names: Vec<&str> = FACILITIES.iter().map(|(name, _)| *name).chain([COPIES]).collect();
        let facilities = info.devices().iter().filter(|one| one.kind == "facility");
        let listed: Vec<&str> = facilities.map(|one| one.name.as_str()).collect();
        assert_eq!(listed, names);
        assert_eq!(local(&info, Ipv4Addr::LOCALHOST.into(), &Surroundings::example()).len(), names.len() + 1);
    }

    #[test]
    fn loopback_is_judged_by_both_families() {
        let user = Surroundings::example();
        let fails = || Err(io::Error::from_raw_os_error(libc::EADDRNOTAVAIL));
        assert_eq!(loopback(Ok(()), fails(), false, &user).state, State::Works);
        let limited = loopback(fails(), Ok(()), false, &user);
        assert_eq!(limited.state, State::Limited);
        assert!(limited.remedy.unwrap().commands[1].ends_with("ip address replace 127.0.0.1/8 dev lo"));
        let missing = loopback(fails(), fails(), true, &user);
        assert_eq!(missing.state, State::Missing);
        assert!(missing.detail.contains("Cannot assign requested address"), "{}", missing.detail);
        for (error, word) in
            [(libc::EACCES, "sockets"), (libc::EAFNOSUPPORT, "Landlock"), (libc::ETIMEDOUT, "firewall")]
        {
            let fails = || Err(io::Error::from_raw_os_error(error));
            let remedy = loopback(fails(), fails(), false, &user).remedy.unwrap();
            assert!(remedy.advice.contains(word) && !remedy.commands[0].contains("ip link"), "{remedy:?}");
        }
        let rejected = || Err(io::Error::from_raw_os_error(libc::EACCES));
        assert_eq!(loopback(rejected(), rejected(), true, &user).cause.as_deref(), Some("tcp"));
        assert!(reaches_itself(Ipv4Addr::new(192, 0, 2, 77).into()).is_err(), "an address for documentation");
    }
}
