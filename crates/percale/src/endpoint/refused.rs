//! The results of calls in a forked child, where the endpoint belongs to the parent.

use std::net::{Ipv4Addr, SocketAddr};

use super::connection::ConnectionError;
use super::safe::OperationError;
use super::work::PostError;

/// A result type that has a value for a refused call.
pub trait Refused {
    /// Returns the result of a call in a forked child.
    fn refused() -> Self;
}

impl Refused for () {
    fn refused() -> Self {}
}

impl Refused for bool {
    fn refused() -> Self {
        false
    }
}

impl Refused for usize {
    fn refused() -> Self {
        0
    }
}

impl Refused for u32 {
    fn refused() -> Self {
        0
    }
}

impl Refused for u64 {
    fn refused() -> Self {
        0
    }
}

impl Refused for SocketAddr {
    fn refused() -> Self {
        (Ipv4Addr::UNSPECIFIED, 0).into()
    }
}

impl<T> Refused for Option<T> {
    fn refused() -> Self {
        None
    }
}

impl<T> Refused for Vec<T> {
    fn refused() -> Self {
        Self::new()
    }
}

impl<T, E: Refused> Refused for Result<T, E> {
    fn refused() -> Self {
        Err(E::refused())
    }
}

impl Refused for PostError {
    fn refused() -> Self {
        Self::Forked
    }
}

impl Refused for ConnectionError {
    fn refused() -> Self {
        Self::Forked
    }
}

impl Refused for OperationError {
    fn refused() -> Self {
        Self::new(PostError::Forked, None)
    }
}
