//! A client of the server: its requests and the answers.
//!
//! Each client has a thread that receives its requests. With its first request, two to four more threads start to work
//! for it. These threads wait only for this client and its files, and no other client waits for them. One receive is
//! posted at a time for each client, with a buffer of the maximum length of a request. Answers are sent only over the
//! connection that the client has established.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use percale::endpoint::safe::Cause;
use percale::{Domain, PeerAddress, SharedEndpoint};

use super::report::ServeReport;
use super::root::Root;
use super::transfer::Transfer;
use crate::failure::{Failure, Result};
use crate::transfer::path::ServedPath;
use crate::transfer::pool::Pool;
use crate::transfer::protocol::{
    ClientRequest, GREETING, LINE, NumberedReply, NumberedRequest, OUTSTANDING, PROTOCOL, ServerReply, TAG,
};

/// The maximum number of threads of a client for disk and checksums.
const THREADS: usize = 4;

/// The timeout for sending an answer to a client.
const SEND_TIMEOUT: Duration = Duration::from_secs(5);

/// The state that all clients share.
#[derive(Debug)]
pub(super) struct Service {
    pub(super) endpoint: SharedEndpoint,
    pub(super) domain: Domain,
    pub(super) root: Root,
    pub(super) writable: bool,
    pub(super) report: ServeReport,
    /// The umask for new files.
    pub(super) umask: u32,
    /// When the service started. The times for [`Client::idle`] are relative to it.
    pub(super) start: Instant,
}

/// A connected client.
#[derive(Debug)]
pub(super) struct Client {
    service: Arc<Service>,
    peer: PeerAddress,
    address: SocketAddr,
    work: Mutex<Work>,
    /// The number of requests that have not been answered.
    outstanding: AtomicUsize,
    /// The time of the client's last request or answer, in milliseconds since the start of the service.
    active: AtomicU64,
    /// Set if the client receives no more answers. Its requests are then dropped.
    gone: AtomicBool,
}

/// The work for a client.
#[derive(Debug, Default)]
struct Work {
    transfer: Option<Arc<Transfer>>,
    /// Why the last transfer failed. The answers to its later requests report this cause.
    failure: Option<String>,
    pool: Option<Pool<Job>>,
}

/// A request of a client, as a job.
#[derive(Debug)]
struct Job {
    client: Arc<Client>,
    requested: NumberedRequest,
}

impl Client {
    /// Starts a client's thread.
    ///
    /// # Errors
    /// Fails if the system does not create a thread.
    pub(super) fn start(service: &Arc<Service>, peer: PeerAddress, address: SocketAddr) -> Result<Arc<Self>> {
        let (service, work, outstanding) = (Arc::clone(service), Mutex::default(), AtomicUsize::new(0));
        let (active, gone) = (AtomicU64::new(0), AtomicBool::new(false));
        let client = Arc::new(Self { service, peer, address, work, outstanding, active, gone });
        client.touch();
        let listening = Arc::clone(&client);
        let thread = std::thread::Builder::new().name("percale-client".into());
        thread.spawn(move || listening.listen()).map_err(Failure::system("starting a thread"))?;
        Ok(client)
    }

    /// Returns the client's number in the address vector.
    pub(super) const fn peer(&self) -> PeerAddress {
        self.peer
    }

    pub(super) const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns whether the client has disconnected. Its requests are no longer executed.
    pub(super) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }

    fn touch(&self) {
        let now = self.service.start.elapsed().as_millis();
        self.active.store(now.try_into().unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Returns how long the client has had no open request.
    pub(super) fn idle(&self) -> Duration {
        if self.outstanding.load(Ordering::Relaxed) > 0 {
            return Duration::ZERO;
        }
        self.service.start.elapsed().saturating_sub(Duration::from_millis(self.active.load(Ordering::Relaxed)))
    }

    /// Returns whether the client has an open file.
    pub(super) fn has_transfer(&self) -> bool {
        self.work().transfer.is_some()
    }

    fn work(&self) -> MutexGuard<'_, Work> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Marks the client as disconnected. Its requests are no longer executed. The receive of the client's thread has
    /// ended with the connection. That thread closes the open files, because closing may wait for a disk.
    pub(super) fn leave(&self) {
        self.gone.store(true, Ordering::Relaxed);
    }

    /// Closes the connection.
    pub(super) fn cut_off(&self, why: &str) {
        if !self.gone.swap(true, Ordering::Relaxed) {
            self.service.report.failed(self.address, &why);
            self.service.endpoint.disconnect(self.peer);
        }
    }

    /// The body of the client's thread.
    fn listen(self: Arc<Self>) {
        let endpoint = &self.service.endpoint;
        self.outstanding.fetch_add(1, Ordering::Relaxed);
        self.answer(GREETING, &ServerReply::Welcome { protocol: PROTOCOL });
        while !self.is_gone() {
            let receiving = endpoint.tagged_recv(TAG, 0, vec![0; LINE]).from(self.peer).start();
            match receiving.and_then(|mut receiving| receiving.wait()) {
                Ok(message) => self.take(&message.to_vec()),
                Err(error) => {
                    // The message was longer than any request. Any other error means that the connection has ended,
                    // which is not reported.
                    if matches!(error.cause(), Cause::Completion(error) if error.error == percale::ErrorCode::Truncated)
                    {
                        self.cut_off("the request is too long");
                    }
                    break;
                }
            }
        }
        self.leave();
        let Work { transfer, pool, .. } = std::mem::take(&mut *self.work());
        drop(pool);
        if let Some(transfer) = transfer {
            self.service.report.left(self.address, &transfer);
        }
    }

    /// Handles a message by passing its request to a thread.
    fn take(self: &Arc<Self>, message: &[u8]) {
        self.touch();
        let requested = serde_json::from_slice(message);
        if matches!(requested, Ok(NumberedRequest { request: ClientRequest::Hello, .. })) {
            return; // The server has already welcomed the client on this connection.
        }
        if self.outstanding.fetch_add(1, Ordering::Relaxed) >= OUTSTANDING {
            // The client exceeds its limit of open requests, so this request is not answered.
            self.outstanding.fetch_sub(1, Ordering::Relaxed);
            return;
        }
        let Ok(requested) = requested else {
            return self
                .fail(GREETING, &io::Error::other("unknown request; check that both sides have the same version"));
        };
        let number = requested.number;
        let mut work = self.work();
        if self.is_gone() {
            return;
        }
        let pool = match work.pool.take() {
            Some(pool) => Ok(pool),
            None => Pool::start(THREADS, Job::run),
        };
        match pool {
            Ok(pool) => work.pool.insert(pool).give(Job { client: Arc::clone(self), requested }),
            Err(error) => {
                drop(work);
                self.fail(number, &io::Error::other(error.to_string()));
            }
        }
    }

    /// Opens a file for the client. It replaces the previously opened file.
    fn begin(&self, open: impl FnOnce(&Service) -> io::Result<Transfer>) -> io::Result<ServerReply> {
        // The previous file must not block the new one. It is not closed under the lock, because closing may wait for a
        // disk.
        let former = {
            let mut work = self.work();
            work.failure = None;
            work.transfer.take()
        };
        drop(former);
        let transfer = open(&self.service)?;
        let reply = transfer.opened()?;
        let mut work = self.work();
        if self.is_gone() {
            return Err(io::ErrorKind::NotConnected.into());
        }
        work.transfer = Some(Arc::new(transfer));
        Ok(reply)
    }

    /// Calls `work` with the open file.
    fn with(&self, work: impl FnOnce(&Transfer) -> io::Result<ServerReply>) -> io::Result<ServerReply> {
        let open = {
            let state = self.work();
            match (&state.transfer, &state.failure) {
                (Some(transfer), _) => Ok(Arc::clone(transfer)),
                (None, Some(failure)) => Err(io::Error::other(format!("no file is open: {failure}"))),
                (None, None) => Err(io::Error::other("no file is open")),
            }
        }?;
        work(&open)
    }

    fn execute(&self, request: ClientRequest, scratch: &mut [u8]) -> io::Result<ServerReply> {
        let service = &self.service;
        match request {
            ClientRequest::Hello => Ok(ServerReply::Welcome { protocol: PROTOCOL }),
            ClientRequest::Get { path } => {
                let open = |service: &Service| Transfer::get(&service.root, &service.domain, path.clone());
                self.begin(open).map_err(|error| named(&path, error))
            }
            ClientRequest::Put { path, .. } if !service.writable => {
                Err(named(&path, io::Error::other("this server is read-only (it was started without --writable)")))
            }
            ClientRequest::Put { path, size, mode } => {
                let mode = mode & 0o777 & !service.umask;
                let open = |service: &Service| Transfer::put(&service.root, &service.domain, path.clone(), size, mode);
                self.begin(open).map_err(|error| named(&path, error))
            }
            ClientRequest::Hash { block } => self.with(|file| file.hash(block, scratch)),
            ClientRequest::Fill { block, slot } => self.with(|file| file.fill(block, slot, scratch)),
            ClientRequest::Store { block, slot, digest } => self.with(|file| file.store(block, slot, digest, scratch)),
            ClientRequest::Finish { digest } => {
                let reply = self.with(|file| file.finish(digest, scratch))?;
                let done = self.work().transfer.take();
                if let Some(done) = done {
                    service.report.done(self.address, &done);
                }
                Ok(reply)
            }
        }
    }

    /// Reports a failure and ends the transfer.
    fn fail(&self, number: u64, error: &io::Error) {
        self.service.report.failed(self.address, error);
        let failed = {
            let mut work = self.work();
            let failed = work.transfer.take();
            if failed.is_some() {
                work.failure = Some(error.to_string());
            }
            failed
        };
        drop(failed);
        let again = error.kind() == io::ErrorKind::WouldBlock;
        self.answer(number, &ServerReply::Failed { why: error.to_string(), again });
    }

    /// Sends an answer.
    fn answer(&self, number: u64, reply: &ServerReply) {
        // Serializing an answer cannot fail, because it is plain data.
        let Ok(bytes) = serde_json::to_vec(&NumberedReply { number, reply: reply.clone() }) else { return };
        let sending = self.service.endpoint.tagged_send(self.peer, TAG, bytes).start();
        let sent = sending.and_then(|mut sending| sending.wait_for(SEND_TIMEOUT));
        self.outstanding.fetch_sub(1, Ordering::Relaxed);
        self.touch();
        match sent {
            Ok(_) => {}
            Err(error) if matches!(error.cause(), Cause::TimedOut) => {
                self.cut_off("the client does not receive its replies")
            }
            // The client has disconnected. Its thread also detects this, and no state is kept for the client.
            Err(_) if !self.gone.swap(true, Ordering::Relaxed) => {
                self.service.endpoint.disconnect(self.peer);
            }
            Err(_) => {}
        }
    }
}

/// Adds the file's name to an error.
fn named(path: &ServedPath, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.shown()))
}

impl Job {
    /// Executes the job and sends the answer.
    fn run(self, scratch: &mut [u8]) {
        let Self { client, requested: NumberedRequest { number, request } } = self;
        if client.is_gone() {
            return;
        }
        match client.execute(request, scratch) {
            _ if client.is_gone() => {}
            Ok(reply) => client.answer(number, &reply),
            Err(error) => client.fail(number, &error),
        }
    }
}
