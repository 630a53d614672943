//! The errors of direct accesses.

/// The reason why a direct access was not made, or not completely.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DirectError {
    /// The region does not grant this right.
    #[error("the region does not grant this right")]
    Right,
    /// Part of the access lies outside the region.
    #[error("the access is outside the region")]
    Range,
    /// The grant is no longer valid: it has to be removed and requested again. Part of a long access may have been
    /// executed.
    #[error("the region is no longer granted")]
    Stale,
    /// The kernel reported a memory fault, on either side.
    #[error("the memory of the access is not accessible")]
    Fault,
    /// The target of an atomic operation is not aligned to its size.
    #[error("the target of an atomic operation is not aligned to its size")]
    Misaligned,
}
