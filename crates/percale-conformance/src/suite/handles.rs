//! Handles of safe operations that have ended. A call on such a handle affects no other operation.

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use percale::endpoint::safe::{Cause, Operation, OperationError, Outcome, Started};
use percale::{Access, AddressSet, ErrorCode, PeerAddress, SharedReceiving, WindowAccess, WindowType};

use super::windows::how;
use crate::fabric::{Fabric, Transport};
use crate::memory::{Memory, content, same};
use crate::mesh::{Mesh, Receive};

/// The common methods of handles.
trait Handle: Future<Output = Result<Self::Done, OperationError>> + Unpin + Sized {
    type Done;

    /// Returns whether the operation has ended, if the handle supports this.
    fn ready(&self) -> Option<bool> {
        None
    }

    /// Cancels the operation, and returns whether that succeeded, if the handle supports this.
    fn cancelled(&self) -> Option<bool> {
        None
    }

    /// Waits for the operation, if the handle supports this.
    fn waited(self) -> Option<Result<(), OperationError>> {
        None
    }
}

impl<H: percale::endpoint::EndpointHandle, R: Outcome> Handle for Operation<H, R> {
    type Done = R;

    fn ready(&self) -> Option<bool> {
        Some(self.is_ready())
    }

    fn cancelled(&self) -> Option<bool> {
        Some(self.cancel())
    }

    fn waited(mut self) -> Option<Result<(), OperationError>> {
        Some(self.wait().map(drop))
    }
}

impl Handle for SharedReceiving {
    type Done = percale::endpoint::safe::Received;

    fn ready(&self) -> Option<bool> {
        Some(self.is_ready())
    }

    fn cancelled(&self) -> Option<bool> {
        Some(self.cancel())
    }

    fn waited(self) -> Option<Result<(), OperationError>> {
        self.take().map(|end| end.map(drop))
    }
}

impl<F: Handle> Handle for Started<F> {
    type Done = F::Done;
}

fn poll<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

#[track_caller]
fn taken<T>(end: Result<T, OperationError>) {
    let error = end.err().expect("there is no second result");
    assert!(matches!(error.cause(), Cause::Taken), "{error}");
    assert_eq!((error.errno(), error.buffer().is_none()), (258, true));
}

/// Checks that a handle that has returned its result does not affect operations of the same endpoint, which may now use
/// its slot.
#[track_caller]
fn used_up<F: Fabric, H: Handle>(mesh: &Mesh<F>, endpoint: usize, make: impl Fn() -> H) {
    for dropped in [false, true] {
        let mut old = make();
        let first = mesh.until(|| match poll(&mut old) {
            Poll::Ready(end) => Some(end),
            Poll::Pending => None,
        });
        assert!(first.is_ok(), "{}", first.err().expect("an error"));
        drop(first);
        let other = mesh.endpoint(endpoint).tagged_recv(77, 0, vec![0; 8]).start().expect("a receive");
        let also = mesh.endpoint(endpoint).tagged_recv(78, 0, vec![0; 8]).start().expect("a receive");
        let other_is_untouched = || assert!(!other.is_ready() && !also.is_ready(), "nothing was sent to it");
        for _ in 0..2 {
            match poll(&mut old) {
                Poll::Ready(end) => taken(end),
                Poll::Pending => panic!("a finished future is pending"),
            }
            other_is_untouched();
            assert!(old.ready() != Some(false), "a wait would return at once");
            assert!(old.cancelled() != Some(true), "there is nothing to cancel");
            other_is_untouched();
        }
        if dropped {
            drop(old);
        } else if let Some(end) = old.waited() {
            taken(end);
        }
        other_is_untouched();
        // The operations are not affected: each receives its own message into its own buffer.
        let from = endpoint + 1;
        for (tag, receiving) in [(78, also), (77, other)] {
            mesh.inject(from, endpoint, Some(tag), &content(tag, 8));
            same(
                &mesh.finish(receiving).expect("the message").to_vec(),
                &content(tag, 8),
                "the message of the other operation",
            );
        }
    }
}

/// Tests handles of sends and receives, including handles that are started by awaiting them.
pub fn finished_handles_of_messages_affect_no_other_operation<F: Transport>() {
    let mesh = Mesh::<F>::connected(2);
    let receive = |len: usize| {
        mesh.inject(1, 0, None, &content(1, len));
        mesh.endpoint(0).recv(vec![0; len])
    };
    used_up(&mesh, 0, || receive(8).start().expect("a receive"));
    used_up(&mesh, 0, || receive(2000).into_future());
    let send = |tag| mesh.endpoint(0).tagged_send(mesh.peer(1), tag, vec![1; 100]);
    used_up(&mesh, 0, || send(4).start().expect("a send"));
    used_up(&mesh, 0, || {
        let target = Memory::blank(100);
        mesh.receive(1, Receive::into(target).tag(5, 0));
        send(5).delivered().into_future()
    });
    let mut refused = mesh.endpoint(0).recv("constant").into_future();
    let Poll::Ready(Err(error)) = poll(&mut refused) else { panic!("the memory is read-only") };
    assert_eq!(error.errno(), libc::EACCES);
    for _ in 0..2 {
        let Poll::Ready(end) = poll(&mut refused) else { panic!("there is nothing to wait for") };
        taken(end);
    }
}

/// Tests handles of reads, writes and atomic operations.
pub fn finished_handles_of_accesses_affect_no_other_operation<F: Transport>() {
    let mesh = Mesh::<F>::connected(2);
    let rights = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
    let region = mesh.test_endpoint(1).domain.register(vec![0; 4096], rights).expect("a region");
    let (here, name) = (mesh.endpoint(0), region.remote());
    let (part, word) = (name.at(0..64), name.at(64..72));
    used_up(&mesh, 0, || here.write(mesh.peer(1), vec![1; 64], part).start().expect("a write"));
    used_up(&mesh, 0, || here.read(mesh.peer(1), part, vec![0; 64]).start().expect("a read"));
    used_up(&mesh, 0, || here.fetch_add(mesh.peer(1), word, 1_u64).start().expect("a sum"));
    used_up(&mesh, 0, || here.read(mesh.peer(1), part, vec![0; 64]).into_future());
}

/// Tests handles of binding and invalidating windows.
pub fn finished_handles_of_windows_affect_no_other_operation<F: Transport>() {
    let mesh = Mesh::<F>::connected(2);
    let domain = &mesh.test_endpoint(1).domain;
    let region = domain.register(vec![0; 4096], Access::empty()).expect("a region");
    let window = domain.window(WindowType::TwoB).expect("a window");
    let bind = |key| {
        let bind = how(0..64, WindowAccess::READ, key);
        mesh.endpoint(1).bind_window(mesh.peer(0), &window, &region, bind)
    };
    let invalidate = |key| mesh.finish(mesh.endpoint(1).invalidate(mesh.peer(0), key)).expect("the window was bound");
    let last = std::cell::Cell::new(None);
    let next = std::cell::Cell::new(1);
    used_up(&mesh, 1, || {
        if let Some(name) = last.take() {
            invalidate(name);
        }
        let key = next.replace(next.get() + 1);
        let name = mesh.finish(bind(key)).expect("a window").key;
        invalidate(name);
        let key = next.replace(next.get() + 1);
        last.set(Some((name & !0xff) | u64::from(key)));
        bind(key).start().expect("a bind")
    });
}

/// Tests handles of joins and collectives.
pub fn finished_handles_of_groups_affect_no_other_operation<F: Transport>() {
    let mesh = Mesh::<F>::connected(2);
    let count = if F::ALONE { 1 } else { 2 };
    let members: AddressSet = (0..count as u64).map(PeerAddress).collect();
    let others = std::cell::RefCell::new(Vec::new());
    used_up(&mesh, 0, || {
        others.borrow_mut().extend((1..count).map(|member| mesh.endpoint(member).join(&members).expect("a group")));
        mesh.endpoint(0).join(&members).expect("a group")
    });
    drop(others.take());
    let joins: Vec<_> = (0..count).map(|member| mesh.endpoint(member).join(&members).expect("a group")).collect();
    let groups: Vec<_> = joins.into_iter().map(|join| mesh.finish(join).expect("all members join")).collect();
    let others = std::cell::RefCell::new(Vec::new());
    used_up(&mesh, 0, || {
        others.borrow_mut().extend(groups[1..].iter().map(|group| group.barrier().start().expect("a barrier")));
        groups[0].barrier().start().expect("a barrier")
    });
    for other in others.take() {
        mesh.finish(other).expect("all members started the barrier");
    }
}

/// Tests handles of receives of a shared context.
pub fn finished_handles_of_shared_receives_affect_no_other_operation<F: Transport>() {
    let fabric = F::new(5);
    let domain = fabric.domain(|domain| domain);
    let (vector, shared) = (domain.address_vector().build().expect("a vector"), domain.shared_receive());
    let open = |builder: percale::EndpointBuilder<'_>| builder.bind(fabric.address()).expect("an endpoint");
    let endpoint = open(domain.endpoint().vector(&vector).shared_receive(&shared));
    let me = vector.insert(endpoint.address()).expect("an address");
    let ended = |mut receiving: SharedReceiving| loop {
        if let Poll::Ready(end) = poll(&mut receiving) {
            break (end.expect("a message").to_vec(), receiving);
        }
        fabric.tick();
        endpoint.progress();
    };
    for tag in 1..4 {
        let old = shared.tagged_recv(tag, 0, vec![0; 8]).expect("a receive");
        endpoint.tagged_inject(me, tag, &content(tag, 8)).expect("room");
        let (bytes, mut old) = ended(old);
        same(&bytes, &content(tag, 8), "the first message");
        let other = shared.tagged_recv(77, 0, vec![0; 8]).expect("a receive");
        for _ in 0..2 {
            let Poll::Ready(end) = poll(&mut old) else { panic!("there is nothing to wait for") };
            taken(end);
            assert!(old.is_ready() && !old.cancel() && !other.is_ready());
        }
        match tag {
            1 => drop(old),
            _ => taken(old.take().expect("the operation has ended")),
        }
        assert!(!other.is_ready());
        endpoint.tagged_inject(me, 77, &content(77, 8)).expect("room");
        same(&ended(other).0, &content(77, 8), "the message of the other operation");
    }
}

/// The result of finishing a multi-receive contains the messages and failures that were not read.
pub fn finish_of_multi_receive_returns_unread_messages<F: Transport>() {
    let mesh = Mesh::<F>::connected(2);
    let mut many = mesh.endpoint(1).recv(vec![0; 200]).many().expect("a receive");
    for number in 0..3 {
        mesh.inject(0, 1, None, &content(number, 20));
    }
    let part = mesh.until(|| many.wait_for(std::time::Duration::ZERO).ok()).expect("a part");
    same(&part.bytes, &content(0, 20), "the first message");
    mesh.inject(0, 1, None, &content(3, 500));
    mesh.settle(0, 1);
    let finished = many.finish();
    assert_eq!((finished.buffer.len(), finished.unread.len()), (200, 3));
    for (number, unread) in (1..).zip(&finished.unread[..2]) {
        let part = unread.as_ref().expect("a message");
        same(&part.bytes, &content(number, 20), "a message that was not read");
        assert_eq!(part.offset, 20 * number as usize);
    }
    let Some(Cause::Completion(error)) = finished.unread[2].as_ref().err().map(OperationError::cause) else {
        panic!("the last message was not truncated: {:?}", finished.unread)
    };
    assert_eq!((error.error, error.entry.len), (ErrorCode::Truncated, 140));
    // If there are no messages, the result contains only the buffer.
    let none = mesh.endpoint(1).recv(vec![0; 200]).many().expect("a receive").finish();
    assert_eq!((none.buffer.len(), none.unread.len()), (200, 0));
}
