//! The records of accesses that have ended. Each thread keeps a few, so that its next accesses need no allocation.

use std::cell::RefCell;

use super::AccessOperation;
use crate::endpoint::posted::Posted;

/// The maximum number of records that a thread keeps.
const LIMIT: usize = 64;

thread_local! {
    #[expect(clippy::vec_box, reason = "the boxes are what is kept")]
    static SPARE: RefCell<Vec<Box<Posted<AccessOperation>>>> = const { RefCell::new(Vec::new()) };
}

/// Returns the record of an operation that waits for its turn.
pub(in super::super) fn record(posted: Posted<AccessOperation>) -> Box<Posted<AccessOperation>> {
    // A thread that ends may have dropped its list already.
    match SPARE.try_with(|spare| spare.borrow_mut().pop()) {
        Ok(Some(mut record)) => {
            *record = posted;
            record
        }
        _ => Box::new(posted),
    }
}

/// Frees the memory of an operation that has ended, and keeps its record.
pub(super) fn keep(mut record: Box<Posted<AccessOperation>>) {
    record.free();
    let _kept: Result<(), _> = SPARE.try_with(|spare| {
        let mut spare = spare.borrow_mut();
        if spare.len() < LIMIT {
            spare.push(record);
        }
    });
}
