//! Remote procedure calls: a client and a server with endpoints of their own.
//!
//! A request consists of the number of its call, the length of the answer that it requests, and bytes that the number
//! determines. The number determines the bytes of the answer too.

use std::any::Any;
use std::collections::HashMap;
use std::future::Future as _;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use percale::endpoint::safe::Cause;
use percale::rpc::{Call, Client, INLINE, Reply, Request, RpcError, Server, Service};
use percale::{AddressVector, Domain, PeerAddress, PostError, SharedEndpoint};

use super::World;
use super::handles::SHORT;
use crate::fabric::own_host;
use crate::search::ledger::{Fault, Verdict};
use crate::search::payload;
use crate::search::step::{CallStep, HandleStep, RunTransport};
use crate::search::waker::RecordingWaker;

const SERVICE: Service = Service { number: 3, request_limit: 128, requests: 3, calls: 8 };

/// The length of the numbers at the begin of a request.
const HEAD: usize = 16;

/// The bit that makes the bytes of an answer differ from those of its request.
const ANSWER: u64 = 1 << 62;

/// The first port of the endpoints on the simulated network.
const PORTS: u16 = 900;

/// The number of rounds, and the time, after which calls that have not ended are reported.
const ROUNDS: u32 = 2_000;
const QUIET: Duration = Duration::from_secs(5);

/// What is known of a call.
#[derive(Clone, Copy, Debug)]
struct Expected {
    request: usize,
    answer: usize,
    room: usize,
    /// Whether the server has taken the request.
    is_served: bool,
    /// Whether the server has started to answer.
    is_replied: bool,
    /// Whether the call may fail or get no answer.
    may_fail: bool,
}

struct HeldCall {
    number: u64,
    call: Call,
    is_finished: bool,
}

struct HeldReply {
    number: u64,
    reply: Reply,
    is_finished: bool,
}

/// The client, the server, and the calls of a run.
pub(super) struct Calls {
    domain: Domain,
    vector: AddressVector,
    calls: Vec<HeldCall>,
    replies: Vec<HeldReply>,
    requests: Vec<(u64, Request)>,
    client: Client,
    server: Option<Server>,
    peer: PeerAddress,
    at_client: SharedEndpoint,
    at_server: SharedEndpoint,
    expected: HashMap<u64, Expected>,
    /// Forgotten handles, which keep their endpoints. They are dropped after the endpoints were closed.
    forgotten: Vec<Box<dyn Any>>,
    /// The number of calls that were dropped or forgotten before their end.
    abandoned: usize,
    /// Whether any call may fail.
    is_lenient: bool,
}

fn nth<T>(of: &[T], nth: u8) -> Option<usize> {
    (!of.is_empty()).then(|| usize::from(nth) % of.len())
}

impl Calls {
    fn new(domain: Domain, is_simulated: bool, is_lenient: bool) -> Result<Self, Fault> {
        let fault = |error: &dyn std::fmt::Display| Fault::new("refused without a cause", format!("rpc: {error}"));
        let vector = domain.address_vector().build().map_err(|error| fault(&error))?;
        let text = address(is_simulated, 0);
        let at_client = domain.endpoint().vector(&vector).bind_shared(&text);
        let at_client = at_client.map_err(|error| fault(&error))?;
        let at_server = open_server(&domain, is_simulated, 1)?;
        let peer = vector.insert(at_server.address()).map_err(|error| fault(&error))?;
        let server = Server::new(&at_server, SERVICE).map_err(|error| fault(&error))?;
        Ok(Self {
            domain,
            vector,
            calls: Vec::new(),
            replies: Vec::new(),
            requests: Vec::new(),
            client: Client::new(&at_client, SERVICE),
            server: Some(server),
            peer,
            at_client,
            at_server,
            expected: HashMap::new(),
            forgotten: Vec::new(),
            abandoned: 0,
            is_lenient,
        })
    }

    /// Makes a call.
    fn call(&mut self, number: u64, (request, answer): (usize, usize), has_room: bool) -> Verdict {
        let mut bytes = [number.to_le_bytes(), (answer as u64).to_le_bytes()].concat();
        bytes.extend(payload::of(number, request));
        let called = match has_room {
            true => self.client.call_into(self.peer, &bytes, vec![0; answer]),
            false => self.client.call(self.peer, &bytes),
        };
        match called {
            Ok(call) => {
                let room = if has_room { answer } else { 0 };
                let may_fail = self.is_lenient;
                let expected = Expected { request, answer, room, is_served: false, is_replied: false, may_fail };
                self.expected.insert(number, expected);
                self.calls.push(HeldCall { number, call, is_finished: false });
                Ok(())
            }
            Err(RpcError::TooManyCalls(_)) if self.calls.len() + self.abandoned >= SERVICE.calls => Ok(()),
            Err(RpcError::Operation(error)) if matches!(error.cause(), Cause::Post(PostError::Again)) => Ok(()),
            Err(_) if self.is_lenient => Ok(()),
            Err(error) => {
                let text = format!("call {number} with {} calls in flight: {error}", self.calls.len());
                Err(Fault::new("refused without a cause", text))
            }
        }
    }

    /// Takes the next request at the server. Returns whether there was one.
    fn serve(&mut self) -> Verdict<bool> {
        let Some(server) = &mut self.server else { return Ok(false) };
        let request = match server.next_request_until(Some(Instant::now())) {
            Ok(Some(request)) => request,
            Ok(None) => return Ok(false),
            Err(_) if self.is_lenient => return Ok(false),
            Err(error) => return Err(Fault::new("failed without a cause", format!("the server: {error}"))),
        };
        let bytes = request.bytes();
        let word = |at: usize| bytes.get(at..at + 8).and_then(|word| word.try_into().ok()).map(u64::from_le_bytes);
        let known = word(0).and_then(|number| self.expected.get_mut(&number).map(|expected| (number, expected)));
        let Some((number, expected)) = known else {
            let text = format!("the server got a request of {} bytes that was not sent", bytes.len());
            return Err(Fault::new("bytes that were not sent", text));
        };
        if expected.is_served {
            return Err(Fault::new("arrived twice", format!("the server got the request of call {number} twice")));
        }
        expected.is_served = true;
        let is_long = bytes.len() != HEAD + expected.request || word(8) != Some(expected.answer as u64);
        if let Some(why) = payload::describe(number, &bytes[HEAD..])
            .or_else(|| is_long.then(|| format!("{} bytes instead of {expected:?}", bytes.len())))
        {
            return Err(Fault::new("wrong bytes", format!("the request of call {number}: {why}")));
        }
        let limit = (expected.room as u64).max(INLINE as u64);
        if request.answer_limit() != limit {
            let text = format!("call {number} has room for {limit} bytes, reported {}", request.answer_limit());
            return Err(Fault::new("wrong length", text));
        }
        self.requests.push((number, request));
        Ok(true)
    }

    fn reply(&mut self, index: usize) {
        let (number, request) = self.requests.swap_remove(index);
        let Some(expected) = self.expected.get_mut(&number) else { return };
        expected.is_replied = true;
        let reply = request.reply(payload::of(number | ANSWER, expected.answer));
        self.replies.push(HeldReply { number, reply, is_finished: false });
    }

    fn may_fail(&mut self, number: u64) {
        if let Some(expected) = self.expected.get_mut(&number) {
            expected.may_fail = true;
        }
    }

    fn poll_reply(&mut self, index: usize, waker: &Waker) -> Verdict {
        let HeldReply { number, reply, is_finished } = &mut self.replies[index];
        let Poll::Ready(result) = Pin::new(reply).poll(&mut Context::from_waker(waker)) else { return Ok(()) };
        let (number, was_finished) = (*number, std::mem::replace(is_finished, true));
        match result {
            Err(RpcError::Taken) if was_finished => Ok(()),
            _ if was_finished => {
                Err(Fault::new("finished handle acted", format!("the reply to call {number} ended twice")))
            }
            Ok(()) => Ok(()),
            Err(_) if self.expected.get(&number).is_none_or(|expected| expected.may_fail) => Ok(()),
            Err(error) => Err(Fault::new("failed without a cause", format!("the reply to call {number}: {error}"))),
        }
    }

    /// Handles the result of a wait for a call.
    fn answered(&mut self, index: usize, result: Result<Vec<u8>, RpcError>) -> Verdict {
        let HeldCall { number, is_finished, .. } = &mut self.calls[index];
        let number = *number;
        if *is_finished {
            return match result {
                Err(RpcError::Taken) => Ok(()),
                _ => Err(Fault::new("finished handle acted", format!("call {number} ended twice"))),
            };
        }
        if matches!(result, Err(RpcError::TimedOut)) {
            return Ok(());
        }
        *is_finished = true;
        let Some(&expected) = self.expected.get(&number) else { return Ok(()) };
        let limit = (expected.room as u64).max(INLINE as u64);
        let why = match result {
            Ok(_) if !expected.is_replied => "it ended without a reply".to_owned(),
            Ok(answer) if answer.len() != expected.answer => format!("the answer has {} bytes", answer.len()),
            Ok(answer) => match payload::describe(number | ANSWER, &answer) {
                Some(why) => why,
                None => return Ok(()),
            },
            Err(RpcError::AnswerTooLong { len, room })
                if len == expected.answer as u64 && len > limit && room == limit && expected.is_replied =>
            {
                return Ok(());
            }
            Err(RpcError::RequestTooLong(limit)) if HEAD + expected.request > limit as usize => return Ok(()),
            Err(RpcError::Operation(_) | RpcError::NotWritten) if expected.may_fail => return Ok(()),
            Err(error) => format!("it failed: {error}"),
        };
        Err(Fault::new("wrong answer", format!("call {number} ({expected:?}): {why}")))
    }

    fn poll_call(&mut self, index: usize, waker: &Waker) -> Verdict {
        match Pin::new(&mut self.calls[index].call).poll(&mut Context::from_waker(waker)) {
            Poll::Ready(result) => self.answered(index, result),
            Poll::Pending => Ok(()),
        }
    }

    /// Closes the server and its endpoint, and opens others.
    fn restart(&mut self, is_simulated: bool, count: u16) -> Verdict {
        let fault = |error: &dyn std::fmt::Display| Fault::new("refused without a cause", format!("rpc: {error}"));
        self.expected.values_mut().for_each(|expected| expected.may_fail = true);
        self.requests.clear();
        self.replies.clear();
        self.server = None;
        self.at_server.shut();
        self.at_server = open_server(&self.domain, is_simulated, 2 + count)?;
        self.peer = self.vector.insert(self.at_server.address()).map_err(|error| fault(&error))?;
        self.server = Some(Server::new(&self.at_server, SERVICE).map_err(|error| fault(&error))?);
        Ok(())
    }

    /// Returns the first call that must end and has not.
    fn endless(&self) -> Option<u64> {
        let open = self.calls.iter().filter(|held| !held.is_finished).map(|held| held.number);
        open.filter(|number| self.expected.get(number).is_some_and(|expected| !expected.may_fail)).min()
    }
}

fn address(is_simulated: bool, number: u16) -> String {
    match is_simulated {
        true => SocketAddr::from(([10, 0, 0, 2], PORTS + number)).to_string(),
        false => SocketAddr::from((own_host(), 0)).to_string(),
    }
}

fn open_server(domain: &Domain, is_simulated: bool, number: u16) -> Result<SharedEndpoint, Fault> {
    let opened = domain.endpoint().bind_shared(address(is_simulated, number));
    opened.map_err(|error| Fault::new("refused without a cause", format!("the server of calls: {error}")))
}

impl Drop for Calls {
    fn drop(&mut self) {
        self.calls.clear();
        self.replies.clear();
        self.requests.clear();
        self.server = None;
        self.at_client.shut();
        self.at_server.shut();
    }
}

impl World {
    /// Executes an operation on remote procedure calls.
    pub(super) fn call(&mut self, what: CallStep) -> Verdict {
        let is_simulated = self.settings.transport == RunTransport::Sim;
        if self.settings.transport == RunTransport::Loopback {
            return Ok(()); // Two endpoints cannot reach each other.
        }
        let is_lenient = self.settings.breaks || self.settings.devices.is_some();
        let calls = match self.calls.take() {
            Some(calls) => calls,
            None => Calls::new(self.domain(), is_simulated, is_lenient)?,
        };
        let calls = self.calls.insert(calls);
        match what {
            CallStep::Call { request, answer, has_room } => {
                let number = self.ledger.number();
                calls.call(number, (request.into(), answer.into()), has_room)
            }
            CallStep::Serve => calls.serve().map(|_| ()),
            CallStep::Reply { nth: chosen } => {
                if let Some(index) = nth(&calls.requests, chosen) {
                    calls.reply(index);
                }
                Ok(())
            }
            CallStep::Ignore { nth: chosen } => {
                if let Some(index) = nth(&calls.requests, chosen) {
                    let (number, _) = calls.requests.swap_remove(index);
                    calls.may_fail(number);
                }
                Ok(())
            }
            CallStep::Answer { nth: chosen, what } => {
                let Some(index) = nth(&calls.replies, chosen) else { return Ok(()) };
                match what {
                    HandleStep::Poll(waking) => {
                        let (_bell, waker) = RecordingWaker::new(waking);
                        calls.poll_reply(index, &waker)
                    }
                    _ => {
                        let HeldReply { number, reply, is_finished } = calls.replies.swap_remove(index);
                        if !is_finished {
                            calls.may_fail(number);
                        }
                        match what {
                            HandleStep::Forget => {
                                self.done.forgot = true;
                                calls.forgotten.push(Box::new(reply));
                            }
                            _ => drop(reply),
                        }
                        Ok(())
                    }
                }
            }
            CallStep::Handle { nth: chosen, what } => {
                let Some(index) = nth(&calls.calls, chosen) else { return Ok(()) };
                match what {
                    HandleStep::Poll(waking) => {
                        let (_bell, waker) = RecordingWaker::new(waking);
                        calls.poll_call(index, &waker)
                    }
                    HandleStep::Wait => {
                        let HeldCall { number, call, is_finished } = calls.calls.swap_remove(index);
                        let mut call = call.deadline(SHORT);
                        let result = call.wait();
                        calls.calls.push(HeldCall { number, call, is_finished });
                        calls.answered(calls.calls.len() - 1, result)
                    }
                    _ => {
                        let HeldCall { number, call, is_finished } = calls.calls.swap_remove(index);
                        calls.abandoned += 1;
                        if !is_finished {
                            // The server may be unable to answer.
                            calls.may_fail(number);
                        }
                        match what {
                            HandleStep::Forget => {
                                self.done.forgot = true;
                                calls.forgotten.push(Box::new(call));
                            }
                            _ => drop(call),
                        }
                        Ok(())
                    }
                }
            }
            CallStep::Restart => {
                self.lives += 1;
                calls.restart(is_simulated, self.lives as u16)
            }
        }
    }

    /// Ends all calls, and closes the client and the server.
    pub(super) fn settle_calls(&mut self) -> Verdict {
        let noop = Waker::noop();
        let (mut rounds, since) = (0, Instant::now());
        loop {
            self.tick(self.settings.delay.max(20_000));
            let Some(calls) = &mut self.calls else { return Ok(()) };
            calls.at_server.progress();
            calls.at_client.progress();
            while calls.serve()? {}
            (0..calls.requests.len()).for_each(|_| calls.reply(0));
            for index in 0..calls.replies.len() {
                if !calls.replies[index].is_finished {
                    calls.poll_reply(index, noop)?;
                }
            }
            for index in 0..calls.calls.len() {
                if !calls.calls[index].is_finished {
                    calls.poll_call(index, noop)?;
                }
            }
            let Some(number) = calls.endless() else { break };
            rounds += 1;
            if rounds > ROUNDS && (self.settings.transport == RunTransport::Sim || since.elapsed() > QUIET) {
                let text = format!("call {number} has not ended: {:?}", calls.expected.get(&number));
                return Err(Fault::new("call never ended", text));
            }
        }
        self.calls = None;
        Ok(())
    }
}
