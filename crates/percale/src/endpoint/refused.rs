//! The results of calls in a forked child, where the endpoint belongs to the parent.

use std::net::{Ipv4Addr, SocketAddr};

use super::connection::ConnectionError;
use super::safe::OperationError;
use super::work::PostError;

/// A result type that has a value for a refused call.
pub trait RefusedResult {
    /// Returns the result of a call in a forked child.
    fn refused() -> Self;
}

impl RefusedResult for () {
    fn refused() -> Self {}
}

impl RefusedResult for bool {
    fn refused() -> Self {
        false
    }
}

impl RefusedResult for usize {
    fn refused() -> Self {
        0
    }
}

impl RefusedResult for u32 {
    fn refused() -> Self {
        0
    }
}

impl RefusedResult for u64 {
    fn refused() -> Self {
        0
    }
}

impl RefusedResult for SocketAddr {
    fn refused() -> Self {
        (Ipv4Addr::UNSPECIFIED, 0).into()
    }
}

impl<T> RefusedResult for Option<T> {
    fn refused() -> Self {
        None
    }
}

impl<T> RefusedResult for Vec<T> {
    fn refused() -> Self {
        Self::new()
    }
}

impl<T, E: RefusedResult> RefusedResult for Result<T, E> {
    fn refused() -> Self {
        Err(E::refused())
    }
}

impl RefusedResult for PostError {
    fn refused() -> Self {
        Self::Forked
    }
}

impl RefusedResult for ConnectionError {
    fn refused() -> Self {
        Self::Forked
    }
}

impl RefusedResult for OperationError {
    fn refused() -> Self {
        Self::new(PostError::Forked, None)
    }
}
