//! libpercale-fi.so: percale as an external provider of libfabric.
//!
//! libfabric finds it by `FI_PROVIDER_PATH`, calls [`fi_prov_ini`](provider::fi_prov_ini), and from then on unmodified programs
//! run on percale. This crate translates: each libfabric object is a small one around percale's own, and operations go to
//! percale's raw posting calls. It has no semantics of its own.
//!
//! Functions that libfabric or an application calls are `extern "C"`: a panic in one ends the process, it never unwinds into C.
//! Every refusal returns the code that the manual names, and logs its reason in libfabric's log at the first level.
//!
//! # Modules
//! * [`abi`]: libfabric's structures, tables and constants
//! * `libfabric`, `log`, `params`: the running libfabric's functions, found at run time: messages and parameters
//! * `version`: the versions that the provider reports
//! * [`provider`]: the entry point that libfabric calls
//! * `info`: the available endpoints that fit an application's hints
//! * `fabric` and `fabric_ops`, `domain` and `domain_ops`: what the objects of a fabric or a domain share, and the calls that open them

#![allow(
    unsafe_code,
    reason = "libfabric is a C interface: callers give pointers, and objects are handed out as pointers"
)]
#![allow(
    clippy::multiple_unsafe_ops_per_block,
    reason = "the manual page of a call is one contract, which answers for all that the call's arguments are"
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
mod try_wait;
mod vector;
mod version;
mod wait_set;
mod waiting;
mod windows;
mod work;
