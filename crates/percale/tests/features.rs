//! Tests that the API of a cargo feature is available or, in a build without the feature, fails with an error that
//! names the feature. `cargo xtask test` runs these tests with the default features and with none.

use std::io;

use percale::device::{Device, DeviceError, FixedError, Interface};
use percale::domain::OpenError;
use percale::pindown::{Access, Pinned, Range, Registrar};
use percale::{CacheMonitor, CacheSettings, Domain, Info, TransportKind};

fn names(feature: &str) -> String {
    format!("this build has no `{feature}` support: build with the feature `{feature}`")
}

/// Checks that a text names the feature if, and only if, the build lacks it.
#[track_caller]
fn check(feature: &str, is_built: bool, text: &str) {
    assert_eq!(text.contains(&names(feature)), !is_built, "{feature}: {text}");
}

fn domain() -> Domain {
    Info::discover().unwrap().domain().transport(TransportKind::Loopback).open().unwrap()
}

#[test]
fn without_verbs_the_transport_is_unavailable() {
    let info = Info::discover().unwrap();
    let verbs = info.transports().iter().find(|one| one.kind == TransportKind::Verbs).unwrap();
    check("verbs", cfg!(feature = "verbs"), &verbs.reason);
    if cfg!(not(feature = "verbs")) {
        assert!(!verbs.available);
        match info.domain().transport(TransportKind::Verbs).open() {
            Err(error @ OpenError::NoTransport(_)) => check("verbs", false, &error.to_string()),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn build_without_cuda_has_no_driver() {
    let listed = |info: &Info| info.devices().iter().find(|one| one.name == "cuda").cloned();
    let listed = listed(&Info::discover().unwrap());
    match Device::new(Interface::Cuda, 0) {
        Err(error @ DeviceError::Missing { .. }) => check("cuda", cfg!(feature = "cuda"), &error.to_string()),
        _ if cfg!(feature = "cuda") => {}
        other => panic!("{other:?}"),
    }
    assert_eq!(listed.is_some(), cfg!(not(feature = "cuda")));
    if let Some(listed) = listed {
        assert!(!listed.available);
        check("cuda", false, &listed.detail);
    }
}

#[test]
fn build_without_io_uring_has_no_fixed_buffers() {
    match domain().fixed_buffers(1) {
        Err(error @ FixedError::NoRing(_)) => {
            check("io-uring", cfg!(feature = "io-uring"), &error.to_string());
            assert!(cfg!(feature = "io-uring") || error.errno() == libc::ENOSYS, "{error:?}");
        }
        _ if cfg!(feature = "io-uring") => {}
        other => panic!("{other:?}"),
    }
}

/// A device that registers nothing.
struct Nothing;

impl Registrar for Nothing {
    type Pin = ();

    fn pin(&self, _range: Range, _access: Access) -> io::Result<Pinned<()>> {
        Ok(Pinned { pin: (), local_key: 0, remote_key: 0 })
    }

    fn unpin(&self, (): ()) {}
}

#[test]
fn without_bpf_a_cache_needs_the_helper() {
    let settings = CacheSettings::default().monitor(CacheMonitor::Bpf);
    let opened = domain().open_cache(&settings, Nothing).unwrap();
    if opened.cache.monitor() == "bpf" {
        return; // The program was loaded by a helper or by this process.
    }
    let notes: String = opened.notes.iter().map(ToString::to_string).collect();
    check("bpf", cfg!(feature = "bpf"), &notes);
}

#[test]
fn without_sim_the_simulated_network_cannot_be_chosen() {
    let chosen = Info::discover().unwrap().domain().transport(TransportKind::Sim).open();
    match chosen {
        Err(error @ OpenError::Transport(_)) => check("sim", cfg!(feature = "sim"), &error.to_string()),
        other => panic!("{other:?}"),
    }
}
