//! Compiles the kernel programs (`bpf/pindown.bpf.c`) with clang, and sets the cfg `pindown_bpf` if this succeeds.
//!
//! Without clang or libbpf's headers the crate still builds, with a warning. It can then use a running
//! `pindown-helper`, but cannot load the programs itself. `PINDOWN_BPF=off` requests such a build. A build without the
//! feature `bpf` has the same effect, without a warning.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    println!("cargo::rustc-check-cfg=cfg(pindown_bpf)");
    println!("cargo::rerun-if-changed=bpf");
    println!("cargo::rerun-if-env-changed=PINDOWN_BPF");
    println!("cargo::rerun-if-env-changed=PINDOWN_CLANG");
    if env::var_os("CARGO_FEATURE_BPF").is_none() {
        println!("cargo::rustc-env=PINDOWN_BPF_ABSENT=this build has no `bpf` support: build with the feature `bpf`");
        return;
    }
    let absent = match compile() {
        Ok(()) => {
            println!("cargo::rustc-cfg=pindown_bpf");
            String::new()
        }
        Err(reason) => {
            println!("cargo::warning=built without the kernel programs: {reason}");
            // Installing the missing packages changes these directories, and cargo then runs this script again.
            for directory in ["/usr/bin", "/usr/include"] {
                println!("cargo::rerun-if-changed={directory}");
            }
            reason
        }
    };
    println!("cargo::rustc-env=PINDOWN_BPF_ABSENT={absent}");
}

fn compile() -> Result<(), String> {
    if env::var("PINDOWN_BPF").is_ok_and(|wish| wish == "off") {
        return Err("PINDOWN_BPF=off was set for the build".into());
    }
    let target = env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_default();
    if target != "x86_64" {
        return Err(format!("the programs support only x86-64, not {target}"));
    }
    let clang = env::var("PINDOWN_CLANG").unwrap_or_else(|_| "clang".into());
    let out = PathBuf::from(env::var("OUT_DIR").map_err(|e| e.to_string())?);
    run(&clang, "0", &out.join("pindown.bpf.o"))?;
    // A variant that the tests must reject.
    run(&clang, "1", &out.join("pindown-entry-only.bpf.o"))
}

fn run(clang: &str, entry_only: &str, object: &Path) -> Result<(), String> {
    let output = Command::new(clang)
        .args(["-target", "bpf", "-mcpu=v3", "-O2", "-g", "-Wall", "-Werror", "-c", "bpf/pindown.bpf.c"])
        .arg(format!("-DENTRY_ONLY={entry_only}"))
        .arg("-o")
        .arg(object)
        .output()
        .map_err(|e| format!("{clang}: {e}"))?;
    if output.status.success() {
        return Ok(());
    }
    let message = String::from_utf8_lossy(&output.stderr);
    let line = message.lines().find(|line| line.contains("error")).unwrap_or("failed").to_owned();
    Err(format!("{clang}: {line} (libbpf's headers are needed, package libbpf-dev)"))
}
