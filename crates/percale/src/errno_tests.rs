//! Tests that every error that a program can receive has a libfabric code, which does not depend on how the error is
//! reported.

use std::io;

use crate::completion::entry::{Entry, ErrorCode, ErrorEntry};
use crate::completion::wait::WaitError;
use crate::domain::{AlreadyImported, CacheMonitor, UnknownMonitor};
use crate::endpoint::safe::{Cause, OperationError};
use crate::endpoint::work::PostError;
use crate::fabric::{DiscoverError, TransportKind, UnknownTransport};
use crate::region::Refusal;
use crate::transport::Broken;
use crate::transport::connect::ConnectError;
use crate::transport::shm::SetUpError;
use crate::wire::hello::Malformed;

#[test]
fn every_error_has_a_code() {
    let missing = || io::Error::from_raw_os_error(libc::EMFILE);
    let transport: UnknownTransport = "smoke".parse::<TransportKind>().unwrap_err();
    let monitor: UnknownMonitor = "telescope".parse::<CacheMonitor>().unwrap_err();
    let pairs = [
        (DiscoverError::from(missing()).errno(), libc::EMFILE),
        (DiscoverError::from(io::Error::other("words")).errno(), libc::EIO),
        (transport.errno(), libc::EINVAL),
        (WaitError::TimedOut.errno(), libc::ETIMEDOUT),
        (WaitError::System(missing()).errno(), libc::EMFILE),
        (SetUpError::Side(2).errno(), libc::EINVAL),
        (SetUpError::Bit(u32::MAX).errno(), libc::EINVAL),
        (SetUpError::Pair(missing()).errno(), libc::EMFILE),
        (SetUpError::Doorbell(io::ErrorKind::InvalidData.into()).errno(), libc::EIO),
        (monitor.errno(), libc::EINVAL),
        (AlreadyImported.errno(), libc::EBUSY),
    ];
    assert!(pairs.iter().all(|(said, meant)| said == meant), "{pairs:?}");
}

#[test]
fn link_error_and_operation_error_have_the_same_errno() {
    let ends = [
        (Broken::Closed, ErrorCode::Closed),
        (Broken::Died(String::new()), ErrorCode::PeerDied),
        (Broken::Timeout(String::new()), ErrorCode::TimedOut),
        (Broken::Protocol(String::new()), ErrorCode::Protocol),
    ];
    assert!(ends.iter().all(|(broken, code)| broken.errno() == code.errno()), "{ends:?}");
    let refusals = [
        (Refusal::Key, ErrorCode::KeyRejected),
        (Refusal::Right, ErrorCode::Denied),
        (Refusal::Range, ErrorCode::Denied),
        (Refusal::Fault, ErrorCode::Fault),
        (Refusal::Misaligned, ErrorCode::Misaligned),
        (Refusal::Memory, ErrorCode::NoMemory),
    ];
    assert!(refusals.iter().all(|(refusal, code)| refusal.errno() == code.errno()), "{refusals:?}");
    let malformed = [Malformed::Magic, Malformed::Version(1), Malformed::Field("wrong")];
    assert!(malformed.iter().all(|why| why.errno() == ConnectError::from(why.clone()).errno()), "{malformed:?}");
}

#[test]
fn operation_error_has_the_errno_of_its_cause() {
    let entry = ErrorEntry::new(Entry::default(), ErrorCode::PeerDied);
    let causes = [
        (Cause::Post(PostError::ReadOnly), libc::EACCES),
        (Cause::from(entry), libc::ECONNRESET),
        (Cause::TimedOut, libc::ETIMEDOUT),
        (Cause::Taken, 258),
    ];
    for (cause, code) in causes {
        assert_eq!(cause.errno(), code);
        assert_eq!(OperationError::new(cause, None).errno(), code);
    }
}
