//! Why a chore could not be done, in words for its user.

use std::fmt;

/// An error, and what to do about it where that is known.
#[derive(Debug)]
pub(crate) struct Failure(String);

/// What a chore's parts return.
pub(crate) type Outcome<T = ()> = Result<T, Failure>;

impl Failure {
    pub(crate) fn new(what: impl Into<String>) -> Self {
        Self(what.into())
    }

    /// For `map_err`: keeps the cause and adds the action during which it occurred.
    pub(crate) fn during<E: fmt::Display>(doing: impl fmt::Display) -> impl FnOnce(E) -> Self {
        move |cause| Self(format!("{doing}: {cause}"))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

impl From<std::io::Error> for Failure {
    fn from(cause: std::io::Error) -> Self {
        Self(cause.to_string())
    }
}

impl From<serde_json::Error> for Failure {
    fn from(cause: serde_json::Error) -> Self {
        Self(format!("JSON: {cause}"))
    }
}
