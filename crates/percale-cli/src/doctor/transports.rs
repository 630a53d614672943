//! Checks of the transports, by percale's own discovery, and of the addresses of this machine.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener, TcpStream};
use std::time::Duration;

use percale::{Info, TransportKind};

use super::devices;
use super::finding::{Finding, ProbeLine, Remedy, Report};
use super::surroundings::{Container, Surroundings};

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
    for found in local(&info, surroundings) {
        report(ProbeLine::Finding(found))?;
    }
    report(ProbeLine::Finding(devices::rdma(&info, surroundings)))?;
    let interfaces = info.interfaces();
    report(ProbeLine::Finding(tcp(&info, interfaces.first().map(|one| one.ip), surroundings)))?;
    report(ProbeLine::Finding(loopback(
        reaches_itself(Ipv4Addr::LOCALHOST.into()),
        reaches_itself(Ipv6Addr::LOCALHOST.into()),
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

fn local(info: &Info, surroundings: &Surroundings) -> Vec<Finding> {
    let facility = |name: &str| info.devices().iter().find(|one| one.kind == "facility" && one.name == name);
    let mut found: Vec<Finding> = FACILITIES
        .iter()
        .filter_map(|(name, check)| {
            let one = facility(name)?;
            Some(if one.available {
                Finding::works(check, &one.detail)
            } else {
                Finding::missing(check, &one.detail, surroundings.allow_calls(&format!("the calls of {name}")))
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
        found.push(if shm.available {
            Finding::works("shared-memory", &shm.reason)
        } else {
            Finding::missing("shared-memory", &shm.reason, surroundings.allow_calls("the calls of shared memory"))
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
        return Finding::missing("tcp", &tcp.reason, up());
    }
    match advertised.map(|ip| (ip, reaches_itself(ip))) {
        Some((ip, Err(error))) => Finding::missing(
            "tcp",
            format!("this machine cannot connect to its own address {ip}: {error}"),
            Remedy::new(
                "Allow connections of this machine to itself in the firewall; this lists its rules:",
                [surroundings.as_root("nft list ruleset")],
            ),
        ),
        _ => Finding::works("tcp", &tcp.reason),
    }
}

/// Connects to a listener at this address.
fn reaches_itself(ip: IpAddr) -> io::Result<()> {
    let listener = TcpListener::bind((ip, 0))?;
    TcpStream::connect_timeout(&listener.local_addr()?, CONNECT_TIMEOUT).map(drop)
}

fn loopback(v4: io::Result<()>, v6: io::Result<()>, surroundings: &Surroundings) -> Finding {
    let give = |address: &str| surroundings.as_root(&format!("ip address replace {address} dev lo"));
    let up = surroundings.as_root("ip link set lo up");
    match (v4, v6) {
        (Ok(()), Ok(())) => Finding::works("loopback", "127.0.0.1 and ::1"),
        (Ok(()), Err(_)) => Finding::works("loopback", "127.0.0.1"),
        (Err(error), Ok(())) => Finding::limited(
            "loopback",
            format!("only ::1; 127.0.0.1 does not work ({error}), which many programs name (MPI launchers)"),
            Remedy::new("Give the loopback interface its address:", [up, give("127.0.0.1/8")]),
        ),
        (Err(error), Err(_)) => Finding::missing(
            "loopback",
            format!("127.0.0.1 does not work ({error}), nor does ::1"),
            Remedy::new("Set the loopback interface up:", [up, give("127.0.0.1/8")]),
        ),
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
        assert_eq!(local(&info, &Surroundings::example()).len(), names.len() + 1);
    }

    #[test]
    fn loopback_is_judged_by_both_families() {
        let user = Surroundings::example();
        let fails = || Err(io::Error::from_raw_os_error(libc::EADDRNOTAVAIL));
        assert_eq!(loopback(Ok(()), fails(), &user).state, State::Works);
        let limited = loopback(fails(), Ok(()), &user);
        assert_eq!(limited.state, State::Limited);
        assert!(limited.remedy.unwrap().commands[1].ends_with("ip address replace 127.0.0.1/8 dev lo"));
        let missing = loopback(fails(), fails(), &user);
        assert_eq!(missing.state, State::Missing);
        assert!(missing.detail.contains("Cannot assign requested address"), "{}", missing.detail);
        assert!(reaches_itself(Ipv4Addr::new(192, 0, 2, 77).into()).is_err(), "an address for documentation");
    }
}
