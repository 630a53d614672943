//! Reads the authorization key from the file named by an argument.

use std::path::Path;

use percale::domain::read_authorization_key;

use crate::failure::{Failure, Result};

/// Reads a key.
///
/// # Errors
/// Returns the errors of [`read_authorization_key`], with the name of the file.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>> {
    read_authorization_key(path).map_err(Failure::system(format!("reading the authorization key {}", path.display())))
}
