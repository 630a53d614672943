//! The error type of the tasks, with messages for users.

use std::fmt;

/// An error, with the next step if it is known.
#[derive(Debug)]
pub(crate) struct Failure(String);

/// The result type of the tasks.
pub(crate) type Outcome<T = ()> = Result<T, Failure>;

impl Failure {
    pub(crate) fn new(what: impl Into<String>) -> Self {
        Self(what.into())
    }

    /// Returns a function for `map_err` that adds the failed action to the cause.
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
