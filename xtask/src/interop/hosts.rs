//! Two connected network namespaces that take the place of two hosts. MPICH's launcher reaches the second one through a
//! script of this project instead of ssh. Only root can create the namespaces.

use super::case::{ClientCase, Passed, Trouble};
use super::mpi::Library;
use super::site::{Site, needs, run};
use crate::failure::{Failure, Outcome};
use crate::packages::IP;
use crate::program::Program;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

/// The name of both ends of the veth pair.
const INTERFACE: &str = "eth0";
const ADDRESSES: [&str; 2] = ["10.213.7.1", "10.213.7.2"];

/// The namespaces. Dropping them removes them and the veth pair.
struct Hosts([String; 2]);

impl Drop for Hosts {
    fn drop(&mut self) {
        for name in &self.0 {
            // The call fails if the namespace was not created. This is not an error.
            ip(&["netns", "del", name]).ok();
        }
    }
}

fn ip(arguments: &[&str]) -> Outcome<String> {
    Ok(Program::new("ip").args(arguments).limit(Duration::from_secs(20)).output()?.success()?.to_owned())
}

impl Hosts {
    fn make(deadline: Instant) -> Outcome<Self> {
        let hosts = Self(["a", "b"].map(|which| format!("percale-{}-{which}", std::process::id())));
        let [one, other] = &hosts.0;
        for name in [one, other] {
            ip(&["netns", "add", name])?;
        }
        ip(&["link", "add", INTERFACE, "netns", one, "type", "veth", "peer", "name", INTERFACE, "netns", other])?;
        for (name, address) in hosts.0.iter().zip(ADDRESSES) {
            ip(&["-n", name, "link", "set", "lo", "up"])?;
            ip(&["-n", name, "addr", "add", &format!("{address}/30"), "dev", INTERFACE])?;
            ip(&["-n", name, "link", "set", INTERFACE, "up"])?;
        }
        // A new veth pair cannot be used immediately.
        for name in &hosts.0 {
            while !ip(&["-n", name, "link", "show", INTERFACE])?.contains("state UP") {
                if Instant::now() >= deadline {
                    return Err(Failure::new("the interfaces of the namespaces are not up"));
                }
                thread::sleep(Duration::from_millis(20));
            }
        }
        Ok(hosts)
    }

    /// Writes the script that MPICH's launcher calls instead of ssh. Its arguments are options, the host, and the
    /// command as one line for a shell.
    fn remote_shell(&self, site: &Site<'_>) -> Outcome<PathBuf> {
        let path = site.directory.join("instead-of-ssh");
        let script = format!(
            "#!/bin/sh\nwhile [ \"${{1#-}}\" != \"$1\" ]; do shift; done\nshift\nexec ip netns exec {} sh -c \"$*\"\n",
            self.0[1]
        );
        fs::write(&path, script)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
        Ok(path)
    }
}

/// Passes a token between two ranks, one on each host.
pub(super) fn two(site: &Site<'_>, case: &ClientCase, deadline: Instant) -> Passed {
    needs(IP)?;
    if !rustix::process::geteuid().is_root() {
        return Err(Trouble::Missing("only root may make network namespaces".into()));
    }
    let library = Library::Mpich;
    let compiler = library.program(site, "mpicc")?;
    let program = site.compile(&compiler, "ring", "two-hosts")?;
    let launcher = library.program(site, "mpiexec")?;
    let hosts = match Hosts::make(deadline) {
        Ok(hosts) => hosts,
        Err(why) => return Err(Trouble::Missing(format!("no network namespaces: {why}"))),
    };
    let shell = hosts.remote_shell(site)?;
    let launch = Program::new("ip").args(["netns", "exec", &hosts.0[0]]).arg(launcher);
    let launch = launch.args(["-launcher", "ssh", "-launcher-exec"]).arg(shell);
    let launch = launch.args(["-localhost", ADDRESSES[0], "-hosts", &ADDRESSES.join(","), "-n", "2", "-ppn", "1"]);
    // percale must select the transport itself. The two hosts are connected only by TCP.
    let launch = site.client(launch.arg(program), case).without("FI_PERCALE_TRANSPORT");
    let launch = launch.env("MPIR_CVAR_NOLOCAL", "1").env("MPIR_CVAR_CH4_NETMOD", "ofi");
    let printed = run(launch, &site.printed(case, ""), deadline)?;
    match printed.lines().find(|line| line.ends_with(" 0 wrong")) {
        Some(line) => Ok(line.to_owned()),
        None => Err(Failure::new("the program did not print the expected result").into()),
    }
}
