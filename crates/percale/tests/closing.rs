//! An endpoint is closed while its operations wait for a counter, and while the last handle of the counter is being
//! dropped.

#![forbid(unsafe_code)]

use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use percale::{Counter, Info, SharedEndpoint};

/// Closes an endpoint when it is woken.
struct Closes(Mutex<Option<SharedEndpoint>>);

impl Wake for Closes {
    fn wake(self: Arc<Self>) {
        let endpoint = self.0.lock().unwrap().take();
        assert!(endpoint.is_none_or(|endpoint| endpoint.close().is_ok()));
    }

    fn wake_by_ref(self: &Arc<Self>) {}
}

#[test]
fn endpoint_close_ends_operations_of_a_counter_being_dropped() {
    let domain = Info::discover().expect("discovery").domain().open().expect("a domain");
    let vector = domain.address_vector().build().expect("a vector");
    let open = || domain.endpoint().vector(&vector).bind_shared("127.0.0.1:0").expect("an endpoint");
    let (one, other, counter) = (open(), open(), Counter::new());
    // The work that was queued last is canceled first. Its waker closes the endpoint of the work before it.
    let receiving = |endpoint: &'static SharedEndpoint| {
        endpoint.recv(vec![7; 64]).when(&counter, 5).start().expect("the operation is posted")
    };
    let one: &'static SharedEndpoint = Box::leak(Box::new(one));
    let other: &'static SharedEndpoint = Box::leak(Box::new(other));
    let (first, second) = (receiving(one), receiving(other));
    let waker = Waker::from(Arc::new(Closes(Mutex::new(Some(one.clone())))));
    let mut second = pin!(second);
    assert!(second.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    drop(counter);
    assert!(one.is_closed() && !other.is_closed());
    let end = pin!(first).poll(&mut Context::from_waker(Waker::noop()));
    let Poll::Ready(Err(error)) = end else { panic!("the receive has not ended: {end:?}") };
    assert_eq!(error.into_buffer().expect("the error returns the buffer").len(), 64);
    let Poll::Ready(Err(_)) = second.poll(&mut Context::from_waker(&waker)) else {
        panic!("the operation was not canceled")
    };
}
