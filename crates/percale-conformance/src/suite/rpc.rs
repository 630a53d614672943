//! Requests and answers.

use std::future::{Future as _, IntoFuture};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Wake, Waker};
use std::time::{Duration, Instant};

use percale::rpc::{Client, INLINE, Reply, Request, RpcError, Server, Service};
use percale::{PeerAddress, RemoteMemory, SharedEndpoint};

use crate::fabric::Peers;
use crate::memory::{content, same};
use crate::polled::polled;
use crate::watchdog::Watchdog;

const SERVICE: Service = Service { number: 7, request_limit: 4096, requests: 4, calls: 64 };

/// A client and a server, which does not have the client's address.
struct World<F> {
    client: SharedEndpoint,
    server: SharedEndpoint,
    /// The address of the server at the client.
    peer: PeerAddress,
    fabric: F,
    _watchdog: Watchdog,
}

impl<F: Peers> World<F> {
    fn new(what: &str) -> Self {
        let fabric = F::new(7);
        let (near, far) = (fabric.domain(|domain| domain), fabric.domain(|domain| domain));
        let vector = near.address_vector().build().expect("a vector");
        let client = near.endpoint().vector(&vector).bind_shared(fabric.address()).expect("an endpoint");
        let server = far.endpoint().bind_shared(fabric.address()).expect("an endpoint");
        let peer = vector.insert(server.address()).expect("an address");
        Self { client, server, peer, fabric, _watchdog: Watchdog::new(what) }
    }

    fn until<T>(&self, mut done: impl FnMut() -> Option<T>) -> T {
        loop {
            if let Some(result) = done() {
                return result;
            }
            self.client.progress();
            self.server.progress();
            self.fabric.tick();
            std::thread::yield_now();
        }
    }

    fn finish<T>(&self, operation: impl IntoFuture<Output = T>) -> T {
        self.until(polled(operation))
    }

    /// Waits until the server has a request.
    fn next(&self, server: &mut Server) -> Request {
        self.until(|| server.next_request_until(Some(Instant::now())).expect("the server works"))
    }

    fn sent(&self, reply: Reply) {
        self.finish(reply).expect("the answer is sent");
    }

    /// Sends a message of the client to the server without the help of a [`Client`].
    fn inject(&self, tag: u64, bytes: &[u8]) {
        self.until(|| self.client.tagged_inject(self.peer, tag, bytes).ok());
    }
}

/// Answers are messages or are written into the client's memory. The server has no address of the client.
pub fn calls_with_answers_of_all_lengths_return_them<F: Peers>() {
    let world = World::<F>::new("calls with answers of all lengths return them");
    let mut server = Server::new(&world.server, SERVICE).expect("a server");
    let client = Client::new(&world.client, SERVICE);
    for len in [0, 1, INLINE, INLINE + 1, F::BULK] {
        // Without a buffer, with buffers of other lengths than the answer's, and with one of its length.
        for room in [None, Some(1), Some(INLINE), Some(len)] {
            let request = content(len as u64, len.min(4096));
            let call = match room {
                Some(room) => client.call_into(world.peer, &request, vec![0; room]),
                None => client.call(world.peer, &request),
            };
            let call = call.expect("a call");
            let limit = room.unwrap_or(0).max(INLINE);
            let received = world.next(&mut server);
            same(received.bytes(), &request, "the request");
            assert_eq!(received.answer_limit(), limit as u64);
            world.sent(received.reply(content(2, len)));
            match world.finish(call) {
                Ok(answer) => same(&answer, &content(2, len), "the answer"),
                Err(RpcError::AnswerTooLong { len: long, room }) => {
                    assert_eq!((long, room), (len as u64, limit as u64));
                    assert!(len > limit);
                }
                Err(error) => panic!("{error}"),
            }
        }
    }
}

/// Calls are answered in any order. No more than the limit are in flight.
pub fn calls_in_flight_are_bounded_and_answered_in_any_order<F: Peers>() {
    let world = World::<F>::new("calls in flight are bounded and answered in any order");
    let service = Service { requests: 1, ..SERVICE };
    let mut server = Server::new(&world.server, service).expect("a server");
    let client = Client::new(&world.client, service);
    for _ in 0..3 {
        let request = |number: usize| content(number as u64, 100);
        let calls: Vec<_> = (0..service.calls)
            .map(|number| client.call_into(world.peer, &request(number), vec![0; 5000]).expect("a call"))
            .collect();
        let error = client.call(world.peer, b"").expect_err("there are too many");
        assert!(matches!(error, RpcError::TooManyCalls(64)), "{error}");
        let mut requests: Vec<_> = calls.iter().map(|_| world.next(&mut server)).collect();
        requests.reverse();
        for (number, request) in requests.into_iter().enumerate() {
            let answer = request.bytes().repeat(if number % 2 == 0 { 1 } else { 50 });
            world.sent(request.reply(answer));
        }
        for (number, call) in calls.into_iter().enumerate() {
            let answer = world.finish(call).expect("an answer");
            same(&answer[..100], &request(number), "the answer of this call");
        }
    }
}

/// A call that was dropped, or whose deadline has expired, has no memory that the server can write. Its answer is
/// discarded. Until it arrives, the call counts.
pub fn server_cannot_write_the_answer_of_a_dropped_call<F: Peers>() {
    let world = World::<F>::new("server cannot write the answer of a dropped call");
    let service = Service { calls: 1, ..SERVICE };
    let mut server = Server::new(&world.server, service).expect("a server");
    let client = Client::new(&world.client, service);
    for len in [8, 5000] {
        let mut call =
            client.call_into(world.peer, b"slow", vec![0; 5000]).expect("a call").deadline(Duration::from_millis(1));
        let request = world.next(&mut server);
        assert!(matches!(call.wait(), Err(RpcError::TimedOut)));
        drop(call);
        assert!(matches!(client.call(world.peer, b""), Err(RpcError::TooManyCalls(1))));
        world.sent(request.reply(content(1, len)));
        let call = world.until(|| client.call(world.peer, b"again").ok());
        let request = world.next(&mut server);
        assert_eq!(request.bytes(), b"again", "the earlier answer has arrived, so this call is made");
        world.sent(request.reply("answer"));
        assert_eq!(world.finish(call).expect("an answer"), b"answer");
    }
    // A call that is waited for again after its deadline gets its answer.
    let call = client.call(world.peer, b"slow").expect("a call");
    let mut call = call.deadline(Duration::from_millis(1));
    assert!(matches!(call.wait(), Err(RpcError::TimedOut)));
    world.sent(world.next(&mut server).reply("late"));
    assert_eq!(world.finish(&mut call).expect("an answer"), b"late");
    assert!(matches!(call.wait(), Err(RpcError::Taken)));
}

/// Requests that are too long are rejected, and messages that are no requests are discarded.
pub fn invalid_requests_do_not_stop_the_server<F: Peers>() {
    let world = World::<F>::new("invalid requests do not stop the server");
    let mut server = Server::new(&world.server, SERVICE).expect("a server");
    let client = Client::new(&world.client, SERVICE);
    let long = client.call(world.peer, &[1; 4097]).expect("a call");
    for bytes in [&b""[..], b"short", &[255; 30]] {
        world.inject(7 << 48 | 5, bytes);
    }
    let call = client.call(world.peer, &[2; 4096]).expect("a call");
    let request = world.next(&mut server);
    assert_eq!(request.bytes(), [2; 4096]);
    world.sent(request.reply("ok"));
    assert_eq!(world.finish(call).expect("an answer"), b"ok");
    assert!(matches!(world.finish(long), Err(RpcError::RequestTooLong(4096))));
}

/// A client stops in the middle of a request that its server has to fetch. The server answers another client.
pub fn client_that_stops_in_a_long_request_delays_no_other<F: Peers>() {
    let world = World::<F>::new("a client that stops in a long request delays no other");
    let near = world.fabric.domain(|domain| domain);
    let vector = near.address_vector().build().expect("a vector");
    let stopping = near.endpoint().vector(&vector).bind_shared(world.fabric.address()).expect("an endpoint");
    let peer = vector.insert(world.server.address()).expect("an address");
    let mut server = Server::new(&world.server, SERVICE).expect("a server");
    let long = Service { request_limit: 1 << 20, ..SERVICE };
    let (stopping_client, client) = (Client::new(&stopping, long), Client::new(&world.client, SERVICE));
    let mut first = polled(stopping_client.call(peer, b"first").expect("a call"));
    let request = world.until(|| {
        stopping.progress();
        server.next_request_until(Some(Instant::now())).expect("the server works")
    });
    let mut sent = polled(request.reply(b"answer"));
    world
        .until(|| {
            stopping.progress();
            sent()
        })
        .expect("the answer is sent");
    world.until(&mut first).expect("an answer");
    // From here on this client makes no progress.
    let stopped = stopping_client.call(peer, &vec![1; 1 << 20]).expect("a call");
    for number in 0..10_u8 {
        let call = client.call(world.peer, &[number]).expect("a call");
        let request = world.next(&mut server);
        assert_eq!(request.bytes(), [number]);
        world.sent(request.reply(vec![number; 3]));
        assert_eq!(*world.finish(call).expect("an answer"), [number; 3]);
    }
    drop(stopped);
}

/// A call describes memory that does not exist, or of which the server writes more than there is. The server's reply
/// ends, and the client gets an error.
pub fn answer_that_cannot_be_written_is_an_error_of_the_call<F: Peers>() {
    let world = World::<F>::new("answer that cannot be written is an error of the call");
    let mut server = Server::new(&world.server, SERVICE).expect("a server");
    let rooms = [(12345, 0, 1 << 40), (u64::MAX, 1 << 40, 5000), (0, 0, 5000)];
    for (call, (key, address, len)) in rooms.into_iter().enumerate() {
        let tag = 7 << 48 | call as u64;
        let answer = world.client.tagged_recv(tag | 1 << 47, 0, vec![0; 100]).start().expect("a receive");
        world.inject(tag, &RemoteMemory { key, address, len }.to_bytes());
        world.sent(world.next(&mut server).reply(vec![1; 5000]));
        let answer = world.finish(answer).expect("an answer").to_vec();
        assert_eq!(answer[..8], 4_u64.to_le_bytes(), "the answer was not written");
    }
}

/// A waker that makes a call.
struct CallingWaker {
    client: Client,
    peer: PeerAddress,
    is_woken: AtomicBool,
}

impl Wake for CallingWaker {
    fn wake(self: Arc<Self>) {
        let call = self.client.call(self.peer, b"of the waker");
        assert!(matches!(call, Err(RpcError::TooManyCalls(1))), "the dropped call is in flight");
        self.is_woken.store(true, Ordering::Release);
    }
}

/// A call that looks for the answers of dropped calls makes progress, and so wakes tasks. Their wakers may call the same
/// client.
pub fn waker_that_a_call_wakes_can_call_the_client<F: Peers>() {
    let world = World::<F>::new("waker that a call wakes can call the client");
    let service = Service { calls: 1, ..SERVICE };
    let mut server = Server::new(&world.server, service).expect("a server");
    let client = Client::new(&world.client, service);
    let call = client.call_into(world.peer, b"slow", vec![0; 8]).expect("a call");
    let request = world.next(&mut server);
    drop(call);
    let peer = world.peer;
    let calling = Arc::new(CallingWaker { client: client.clone(), peer, is_woken: AtomicBool::new(false) });
    let waker = Waker::from(Arc::clone(&calling));
    let mut message = pin!(world.client.tagged_recv(1, 0, vec![0; 8]).start().expect("a receive"));
    assert!(message.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    let mut send = pin!(world.server.tagged_send(request.client(), 1, "wake").start().expect("a send"));
    // Only the client's calls make progress at its endpoint.
    while !calling.is_woken.load(Ordering::Acquire) {
        assert!(matches!(client.call(peer, b"again"), Err(RpcError::TooManyCalls(1))));
        world.server.progress();
        world.fabric.tick();
        std::thread::yield_now();
    }
    assert_eq!(world.finish(message.as_mut()).expect("a message").to_vec(), b"wake");
    world.finish(send.as_mut()).expect("the message was sent");
    world.sent(request.reply("answer"));
    let call = world.until(|| client.call(peer, b"next").ok());
    world.sent(world.next(&mut server).reply("next"));
    assert_eq!(world.finish(call).expect("an answer"), b"next");
}

/// The end of the connection ends the calls of a client, and the replies of a server.
pub fn calls_end_with_the_connection<F: Peers>() {
    let world = World::<F>::new("calls end with the connection");
    let mut server = Server::new(&world.server, SERVICE).expect("a server");
    let client = Client::new(&world.client, SERVICE);
    let calls = [8, 5000].map(|room| client.call_into(world.peer, b"", vec![0; room]).expect("a call"));
    let requests = [world.next(&mut server), world.next(&mut server)];
    world.client.disconnect(world.peer);
    for call in calls {
        assert!(matches!(world.finish(call), Err(RpcError::Operation(_))));
    }
    world.until(|| (!world.server.is_connected(requests[0].client())).then_some(()));
    for (request, len) in requests.into_iter().zip([8, 5000]) {
        let error = world.finish(request.reply(vec![1; len])).expect_err("the client has disconnected");
        assert_eq!(error.errno(), percale::PostError::ConnectionEnded.errno(), "{error}");
    }
    let call = client.call(world.peer, b"again").expect("a call");
    world.sent(world.next(&mut server).reply("ok"));
    assert_eq!(world.finish(call).expect("an answer"), b"ok");
    let call = client.call(world.peer, b"").expect("a call");
    world.server.shut();
    world.finish(call).expect_err("the server has closed");
    // The request may have arrived before. After that there are no more.
    if server.next_request().is_ok() {
        server.next_request().expect_err("its endpoint is closed");
    }
}

/// A server sends an answer whose head is invalid, or that is longer than the memory into which it was written. The call
/// fails, and the client can be used for other calls.
pub fn answer_that_breaks_the_protocol_is_an_error_of_the_call<F: Peers>() {
    let world = World::<F>::new("answer that breaks the protocol is an error of the call");
    let client = Client::new(&world.client, SERVICE);
    let answer = |room: Option<usize>, head: [u64; 2]| {
        let receive = world.server.tagged_recv(7 << 48, (1 << 47) - 1, vec![0; 4200]).start().expect("a receive");
        let call = match room {
            Some(room) => client.call_into(world.peer, b"", vec![0; room]),
            None => client.call(world.peer, b""),
        };
        let call = call.expect("a call");
        let request = world.finish(receive).expect("a request");
        let to_client = request.source.expect("the server can answer");
        let message = head.map(u64::to_le_bytes).concat();
        let send = world.server.tagged_send(to_client, request.tag | 1 << 47, message).start().expect("a send");
        world.finish(send).expect("the answer is sent");
        world.finish(call)
    };
    // The kind of the answer is 0 (it follows) or 1 (it was written), and its length comes next.
    let invalid =
        [(Some(5000), [1, 5001]), (Some(5000), [1, u64::MAX]), (None, [1, 1]), (None, [0, 1]), (None, [5, 0])];
    for (room, head) in invalid {
        let error = answer(room, head).expect_err("the answer is invalid");
        assert!(matches!(error, RpcError::Protocol(_)), "{head:?}: {error}");
    }
    assert_eq!(answer(Some(5000), [1, 5000]).expect("an answer"), [0; 5000]);
}
