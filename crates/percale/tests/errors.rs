//! Tests what errors tell a program: whether to repeat the call, which peer they concern, and the object that was not
//! closed.

#![cfg(not(loom))]

use std::error::Error;

use percale::completion::counter::CounterError;
use percale::completion::queue::CompletionError;
use percale::endpoint::ShareError;
use percale::memory::buffer::IntoAllocationError;
use percale::memory::region::{CloseError, PendingError, RegisterError};
use percale::memory::window::WindowError;
use percale::{
    Access, BindError, Buffer, Cause, ConnectionError, Counter, Domain, Endpoint, Entry, ErrorCode, ErrorEntry,
    EventQueue, Info, OperationError, Owned, PeerAddress, PostError, RawRegion, Region, Shared, TypeTwo, Window,
    WindowAccess, WindowType,
};

type Outcome = Result<(), Box<dyn Error + Send + Sync>>;

fn domain() -> Domain {
    Info::discover().unwrap().best().unwrap().open().unwrap()
}

/// Returns an endpoint, and its own address in its vector.
fn own_peer(domain: &Domain) -> (Endpoint, PeerAddress) {
    let vector = domain.address_vector().build().unwrap();
    let endpoint = domain.endpoint().vector(&vector).bind("127.0.0.1:0").unwrap();
    let peer = vector.insert(endpoint.address()).unwrap();
    (endpoint, peer)
}

#[test]
fn errors_convert_to_boxes_that_other_threads_can_use() {
    fn check<E: Error + Send + Sync + 'static>() {}
    check::<OperationError>();
    check::<Cause>();
    check::<PostError>();
    check::<ErrorEntry>();
    check::<ConnectionError>();
    check::<BindError>();
    check::<ShareError>();
    check::<percale::endpoint::EndpointCloseError<Owned>>();
    check::<percale::endpoint::EndpointCloseError<Shared>>();
    check::<CloseError<Region>>();
    check::<CloseError<RawRegion>>();
    check::<CloseError<Window>>();
    check::<CloseError<()>>();
    check::<RegisterError>();
    check::<PendingError>();
    check::<IntoAllocationError>();
    check::<percale::memory::typed::FromBufferError>();
    check::<CompletionError>();
    check::<CounterError>();
}

#[test]
fn retriable_codes_are_those_of_the_documented_list() {
    use ErrorCode as E;
    let retriable = [E::TimedOut, E::Refused, E::Unreachable, E::NoMessage, E::NoMemory, E::NoDescriptors, E::Busy];
    let permanent = [
        E::Truncated,
        E::Canceled,
        E::PeerDied,
        E::Closed,
        E::NotConnected,
        E::Protocol,
        E::Fault,
        E::Denied,
        E::Misaligned,
        E::KeyRejected,
        E::UnknownAddress,
        E::Invalid,
        E::Io,
    ];
    for code in retriable {
        let cause = Cause::from(ErrorEntry::new(Entry::default(), code));
        assert!(code.is_retriable() && cause.is_retriable(), "{code}");
    }
    assert!(!permanent.into_iter().any(ErrorCode::is_retriable));
    assert!(PostError::Again.is_retriable() && PostError::Window(WindowError::Busy).is_retriable());
    assert!(!PostError::Closed.is_retriable() && !PostError::Window(WindowError::StillBound).is_retriable());
    assert!(Cause::TimedOut.is_retriable() && !Cause::Taken.is_retriable());
    assert!(CounterError::TimedOut.is_retriable());
}

#[test]
fn failed_connection_names_its_peer_and_is_retriable() {
    let domain = domain();
    let vector = domain.address_vector().build().unwrap();
    let endpoint = domain.endpoint().vector(&vector).bind("127.0.0.1:0").unwrap();
    // An address at which no endpoint listens any more. No other test uses the host, so the port stays free.
    let closed = std::net::TcpListener::bind("127.0.3.1:0").unwrap().local_addr().unwrap();
    vector.insert("127.0.0.1:1").unwrap();
    let peer = vector.insert(closed).unwrap();
    let error = endpoint.send(peer, "text").delivered().wait().unwrap_err();
    assert_eq!(error.peer(), Some(peer), "{error}");
    assert!(error.is_retriable(), "{error}");
}

#[test]
fn operations_to_a_lost_peer_name_it_and_are_not_retriable() {
    let domain = domain();
    let vector = domain.address_vector().build().unwrap();
    let bind = || domain.endpoint().vector(&vector).bind("127.0.0.1:0").unwrap();
    let (endpoint, other) = (bind(), bind());
    let peer = vector.insert(other.address()).unwrap();
    let mut first = endpoint.send(peer, "connects").delivered().start().unwrap();
    let mut received = other.recv(vec![0; 8]).start().unwrap();
    while !first.is_ready() || !received.is_ready() {
        endpoint.progress();
        other.progress();
    }
    first.wait().unwrap();
    received.wait().unwrap();
    drop(received);
    // No receive matches it, so the peer does not fetch it.
    let mut send = endpoint.send(peer, vec![0; 10_000_000]).start().unwrap();
    let mut receive = endpoint.recv(vec![0; 8]).from(peer).start().unwrap();
    drop(other);
    for error in [send.wait().unwrap_err(), receive.wait().unwrap_err()] {
        assert_eq!(error.peer(), Some(peer), "{error}");
        assert!(!error.is_retriable(), "{error}");
    }
}

#[test]
fn access_with_unknown_key_names_its_peer() {
    let domain = domain();
    let (endpoint, me) = own_peer(&domain);
    let region = domain.register(vec![0; 8], Access::REMOTE_READ).unwrap();
    let remote = region.remote();
    region.close().unwrap();
    let error = endpoint.read(me, remote, vec![0; 8]).wait().unwrap_err();
    assert_eq!(error.peer(), Some(me), "{error}");
    assert!(!error.is_retriable(), "{error}");
}

#[test]
fn failed_operation_has_the_code_of_its_failure() {
    let (endpoint, me) = own_peer(&domain());
    endpoint.send(me, "a long message").wait().unwrap();
    let error = endpoint.recv(vec![0; 4]).from(me).wait().unwrap_err();
    assert_eq!((error.code(), error.cause().code()), (Some(ErrorCode::Truncated), Some(ErrorCode::Truncated)));
    // An operation that was not posted, or that continues, has not failed.
    assert_eq!(endpoint.recv("read-only").wait().unwrap_err().code(), None);
    let mut receive = endpoint.recv(vec![0; 8]).start().unwrap();
    assert_eq!(receive.wait_for(std::time::Duration::ZERO).unwrap_err().code(), None);
    let error = percale::rpc::RpcError::from(endpoint.send(PeerAddress(1_000), "text").wait().unwrap_err());
    assert_eq!((error.code(), error.peer(), error.is_retriable()), (None, Some(PeerAddress(1_000)), false));
    assert_eq!(error.to_string(), "peer 1000 is not in the endpoint's address vector; insert it first");
}

#[test]
fn address_in_use_is_retriable_and_wrong_text_is_not() {
    let domain = domain();
    let (endpoint, _) = own_peer(&domain);
    let error = domain.endpoint().bind(endpoint.address().to_string()).unwrap_err();
    assert!(error.is_retriable(), "{error}");
    let error = domain.endpoint().bind("nowhere").unwrap_err();
    assert!(!error.is_retriable(), "{error}");
    check_chain(&error);
}

#[test]
fn types_of_signatures_are_in_the_root() {
    fn either<A: percale::Ownership>(
        endpoint: &Endpoint<A>,
        peer: PeerAddress,
    ) -> Result<percale::Operation<A::Handle<'_>, Buffer>, percale::OperationError> {
        endpoint.send(peer, "text").start()
    }
    fn receive(endpoint: &Endpoint) -> percale::Operation<&percale::Owned, percale::Received> {
        endpoint.recv(vec![0; 4]).start().unwrap()
    }
    let (endpoint, me) = own_peer(&domain());
    let mut received = receive(&endpoint);
    either(&endpoint, me).unwrap().wait().unwrap();
    assert_eq!(received.wait().unwrap().to_vec(), b"text");
}

#[test]
fn operation_on_unknown_peer_names_it() {
    let (endpoint, _) = own_peer(&domain());
    let error = endpoint.send(PeerAddress(1_000), "text").wait().unwrap_err();
    assert_eq!(error.peer(), Some(PeerAddress(1_000)));
}

#[test]
fn canceled_receive_from_any_peer_names_none() {
    let (endpoint, _) = own_peer(&domain());
    let mut receive = endpoint.recv(vec![0; 8]).start().unwrap();
    assert!(receive.cancel());
    assert_eq!(receive.wait().unwrap_err().peer(), None);
}

/// Checks that no error of the chain repeats the text of an earlier one.
#[track_caller]
fn check_chain(error: &dyn Error) {
    let text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        assert!(!text.contains(&error.to_string()), "{text}, then {error}");
        source = error.source();
    }
}

#[test]
fn error_chain_contains_each_text_once() {
    let domain = domain();
    let (endpoint, me) = own_peer(&domain);
    check_chain(&endpoint.send(PeerAddress(1_000), "text").wait().unwrap_err());
    check_chain(&endpoint.recv("read-only").wait().unwrap_err());
    let region = domain.register(vec![0; 8], Access::REMOTE_READ).unwrap();
    let remote = region.remote();
    region.close().unwrap();
    check_chain(&endpoint.read(me, remote, vec![0; 8]).wait().unwrap_err());
    check_chain(&domain.endpoint().bind("nowhere").unwrap_err());
    check_chain(&percale::fabric::DiscoverError::from(std::io::Error::from_raw_os_error(libc::EMFILE)));
    check_chain(&ConnectionError::Bind(BindError::NotShared));
}

#[test]
fn endpoint_with_bound_windows_is_returned_by_the_error_of_close() -> Outcome {
    fn close(endpoint: Endpoint) -> Outcome {
        endpoint.close()?;
        Ok(())
    }
    let domain = Info::discover()?.best()?.windows(TypeTwo::A).open()?;
    let (endpoint, me) = own_peer(&domain);
    let region = domain.register(vec![7; 8], Access::REMOTE_READ)?;
    let window = domain.window(WindowType::TwoA)?;
    let how = percale::Bind { range: 0..8, access: WindowAccess::READ, key: 1 };
    let name = endpoint.bind_window(me, &window, &region, how).wait()?;
    let error = close(endpoint).unwrap_err();
    assert!(error.to_string().contains("windows of type 2A"), "{error}");
    assert!(format!("{error:?}").len() < 300, "{error:?}");
    let error = error.downcast::<percale::endpoint::EndpointCloseError>()?;
    let endpoint = error.into_inner();
    assert_eq!(endpoint.read(me, name, vec![0; 8]).wait()?.into_vec(), [7; 8]);
    endpoint.invalidate(me, name.key).wait()?;
    close(endpoint)
}

#[test]
fn region_with_bound_windows_is_returned_by_the_error_of_close() -> Outcome {
    let domain = domain();
    let region = domain.register(vec![7; 8], Access::REMOTE_READ)?;
    let mut window = domain.window(WindowType::One)?;
    window.bind(&region, 0..8, WindowAccess::READ)?;
    let error: Box<dyn Error + Send + Sync> = region.close().unwrap_err().into();
    let error = error.downcast::<CloseError<Region>>()?;
    assert_eq!(format!("{error:?}"), format!("CloseError({error})"));
    let region = error.into_inner();
    window.close()?;
    assert_eq!(region.close()?.into_vec(), [7; 8]);
    Ok(())
}

#[test]
fn pending_region_is_returned_until_its_event_was_read() -> Outcome {
    let (domain, events) = (domain(), EventQueue::new(1));
    let pending = domain.registration(Access::REMOTE_READ).begin(vec![0; 8], &events, 1)?;
    let error = pending.finish().unwrap_err();
    assert!(error.is_retriable() && error.errno() == libc::EAGAIN, "{error}");
    let pending = error.into_inner().expect("it has not ended");
    assert!(events.read().is_some());
    assert_eq!(pending.finish()?.len(), 8);
    Ok(())
}

#[test]
fn buffer_without_allocation_is_returned_by_the_error() {
    let error = Buffer::from("text").into_allocation().unwrap_err();
    assert_eq!(error.into_inner().into_vec(), b"text");
}

#[test]
fn counters_are_bound_by_reference() -> Outcome {
    let domain = domain();
    let (sends, writes) = (Counter::new(), Counter::new());
    let vector = domain.address_vector().build()?;
    let endpoint = domain.endpoint().vector(&vector).send_counter(&sends).bind("127.0.0.1:0")?;
    let me = vector.insert(endpoint.address())?;
    let region = domain.registration(Access::REMOTE_WRITE).counter(&writes).own(vec![0; 8])?;
    endpoint.send(me, "text").wait()?;
    endpoint.write(me, vec![1; 8], region.remote()).wait()?;
    assert_eq!((sends.value(), writes.value()), (1, 1));
    Ok(())
}
