//! The address that a host with many interfaces advertises to its peers.

use percale::Info;
use percale_conformance::peers::open;
use percale_conformance::process::{Helper, print_line};
use percale_conformance::watchdog::Watchdog;

use super::environment::possible;

/// The interfaces of a container host in addition to its network: a bridge with a carrier, and a veth pair with a
/// link-local address.
const CONTAINERS: &str = "ip link add docker0 type bridge && ip addr add 172.17.0.1/16 dev docker0 && \
    ip link add plug0 type veth peer name plug1 && ip link set plug1 master docker0 && ip link set docker0 up && \
    ip link set plug0 up && ip link set plug1 up && \
    ip link add pod0 type veth peer name pod1 && ip addr add 169.254.1.1/16 dev pod0 && ip link set pod0 up && \
    ip link set pod1 up && ip link set lo up";

/// A network: one end of a veth pair, with a neutral name and with the default route.
const NETWORK: &str = "ip link add net0 type veth peer name net1 && ip addr add 10.77.0.9/24 dev net0 && \
    ip link set net0 up && ip link set net1 up";

const ROUTE: &str = "ip route add default via 10.77.0.1 dev net0";

/// The role of a helper that reports the address that it advertises.
pub(crate) fn bound() {
    let open = open("any", "0.0.0.0:0", |domain| domain);
    print_line(&format!("{}", open.endpoint.address().ip()));
    print_line(&Info::discover().expect("discovery").advertised());
}

/// Requirements: CON-010.
#[test]
fn container_host_advertises_an_externally_reachable_address() {
    if !possible("interfaces of many kinds", &["unshare", "ip"]) {
        return;
    }
    let _watchdog = Watchdog::new("a host of containers");
    let with_route = format!("{CONTAINERS} && {NETWORK} && {ROUTE}");
    let route_first = format!("{NETWORK} && {ROUTE} && {CONTAINERS}");
    for (script, wanted, why) in [
        (with_route.as_str(), "10.77.0.9", "the default route"),
        (route_first.as_str(), "10.77.0.9", "the default route"),
        // Without a better interface, a bridge is preferred to a link-local address.
        (CONTAINERS, "172.17.0.1", "bridges"),
    ] {
        let run = format!("{script} && exec \"$0\" \"$@\"");
        // A link needs some time until it has a carrier.
        let settled = run.replace("&& exec", "&& sleep 1 && exec");
        let mut helper = Helper::through(&["unshare", "-n", "sh", "-c", &settled], "bound", &[], |_| {});
        let (address, reason) = (helper.receive_line(), helper.receive_line());
        println!("{address}: {reason}");
        assert_eq!(address, wanted, "{reason}");
        assert!(reason.starts_with(wanted) && reason.contains(why), "{reason}");
        helper.end();
    }
}
