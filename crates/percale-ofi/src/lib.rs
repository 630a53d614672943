//! libpercale-fi.so: percale as an external provider of libfabric.
//!
//! libfabric finds the library through `FI_PROVIDER_PATH` and calls [`fi_prov_ini`](provider::fi_prov_ini). Unmodified
//! programs then run on percale. This crate only translates: each libfabric object wraps a percale object, and
//! operations call percale's raw posting functions. The crate has no semantics of its own.
//!
//! Functions that libfabric or an application calls are `extern "C"`: a panic in one of them terminates the process and
//! never unwinds into C. A rejected call returns the error code of the manual page. If the code alone does not explain
//! the rejection, its reason is written to libfabric's log at level FI_LOG_WARN.
//!
//! # Modules
//! * [`abi`]: libfabric's structures, tables and constants
//! * `libfabric`, `log`, `params`: the functions of the running libfabric, looked up at run time; messages; parameters
//! * `version`: the versions that the provider reports
//! * [`provider`]: the entry point that libfabric calls
//! * `info`: the available endpoints that match an application's hints
//! * `fabric` and `fabric_ops`, `domain` and `domain_ops`: the parts of a fabric or domain that its objects share, and
//!   the calls that open them

// Labels on docs.rs the items that need a feature.
#![cfg_attr(docsrs, feature(doc_cfg))]
#![allow(
    unsafe_code,
    reason = "libfabric is a C interface: callers pass pointers, and objects are returned as pointers"
)]
#![allow(
    clippy::multiple_unsafe_ops_per_block,
    reason = "the manual page states the requirements for all arguments of a call"
)]

pub mod abi;
mod address;
mod authorization;
mod cache;
mod counter;
mod domain;
mod domain_ops;
mod endpoint;
mod errors;
mod events;
mod fabric;
mod fabric_ops;
mod info;
mod libfabric;
mod log;
mod object;
mod params;
mod passive;
mod poll_set;
mod port;
pub mod provider;
mod queue;
mod region;
mod registration;
mod requests;
mod serial;
mod settings;
#[cfg(test)]
mod testing;
mod try_wait;
mod vector;
mod version;
mod wait_set;
mod waiting;
mod windows;
mod work;
