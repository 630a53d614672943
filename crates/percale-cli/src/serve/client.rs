//! A client: what it asked for, and the answers.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use percale::{Domain, PeerAddress, SharedEndpoint};

use super::report::Report;
use super::root::Root;
use super::transfer::Transfer;
use crate::transfer::protocol::{OUTSTANDING, PROTOCOL, Reply, Request, TAG};

/// How many transfers there may be at a time.
const TRANSFERS: usize = 64;

/// How long a client may leave an answer waiting.
const PATIENCE: Duration = Duration::from_secs(5);

/// What all clients share.
#[derive(Debug)]
pub(super) struct Service {
    pub(super) endpoint: SharedEndpoint,
    pub(super) domain: Domain,
    pub(super) root: Root,
    pub(super) writable: bool,
    pub(super) report: Report,
    /// Transfers that are open.
    transfers: AtomicUsize,
}

impl Service {
    pub(super) fn new(
        endpoint: SharedEndpoint,
        domain: Domain,
        (root, writable): (Root, bool),
        report: Report,
    ) -> Self {
        Self { endpoint, domain, root, writable, report, transfers: AtomicUsize::new(0) }
    }
}

/// A connected client.
#[derive(Debug)]
pub(super) struct Client {
    service: Arc<Service>,
    peer: PeerAddress,
    address: SocketAddr,
    transfer: Mutex<Option<Arc<Counted>>>,
    /// Requests that wait for their answers.
    outstanding: AtomicUsize,
    /// It does not take answers any more: what it asked for is not done.
    gone: AtomicBool,
}

/// A transfer, counted.
#[derive(Debug)]
struct Counted {
    service: Arc<Service>,
    transfer: Transfer,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.service.transfers.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Something to be done for a client.
#[derive(Debug)]
pub(super) struct Job {
    client: Arc<Client>,
    /// `None`: what it sent was no request.
    request: Option<Request>,
}

impl Drop for Client {
    fn drop(&mut self) {
        self.abandon();
    }
}

impl Client {
    pub(super) fn new(service: &Arc<Service>, peer: PeerAddress, address: SocketAddr) -> Arc<Self> {
        let (service, transfer, outstanding) = (Arc::clone(service), Mutex::default(), AtomicUsize::new(0));
        Arc::new(Self { service, peer, address, transfer, outstanding, gone: AtomicBool::new(false) })
    }

    /// Its number in the address vector.
    pub(super) const fn peer(&self) -> PeerAddress {
        self.peer
    }

    fn open(&self) -> MutexGuard<'_, Option<Arc<Counted>>> {
        self.transfer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes what is open: the client is gone.
    pub(super) fn abandon(&self) {
        self.gone.store(true, Ordering::Relaxed);
        if let Some(open) = self.open().take() {
            self.service.report.left(self.address, &open.transfer);
        }
    }

    /// What to do with a message; `None` if nothing: it is a greeting, which was answered when the client connected, or the
    /// client asks for more than it may.
    pub(super) fn job(self: &Arc<Self>, message: &[u8]) -> Option<Job> {
        let request = serde_json::from_slice(message).ok();
        if request == Some(Request::Hello) {
            return None;
        }
        if self.outstanding.fetch_add(1, Ordering::Relaxed) >= OUTSTANDING {
            self.outstanding.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        Some(Job { client: Arc::clone(self), request })
    }

    /// To greet it, when it has connected.
    pub(super) fn welcome(self: &Arc<Self>) -> Job {
        self.outstanding.fetch_add(1, Ordering::Relaxed);
        Job { client: Arc::clone(self), request: Some(Request::Hello) }
    }

    /// Opens a file for it, in place of what it has open.
    fn begin(&self, open: impl FnOnce(&Service) -> io::Result<Transfer>) -> io::Result<Reply> {
        // What it had open must not be in the way of what it opens.
        drop(self.open().take());
        let service = &self.service;
        if service.transfers.fetch_add(1, Ordering::Relaxed) >= TRANSFERS {
            service.transfers.fetch_sub(1, Ordering::Relaxed);
            return Err(io::Error::other(format!("there are {TRANSFERS} copies under way already; try again later")));
        }
        let transfer = open(service).inspect_err(|_| {
            service.transfers.fetch_sub(1, Ordering::Relaxed);
        })?;
        let counted = Arc::new(Counted { service: Arc::clone(service), transfer });
        let reply = counted.transfer.opened()?;
        *self.open() = Some(counted);
        Ok(reply)
    }

    /// Does something with the open file.
    fn with(&self, work: impl FnOnce(&Transfer) -> io::Result<Reply>) -> io::Result<Reply> {
        let open = self.open().clone().ok_or_else(|| io::Error::other("no file is open"))?;
        work(&open.transfer)
    }

    fn answer(&self, request: Option<Request>, scratch: &mut [u8]) -> io::Result<Reply> {
        let Some(request) = request else {
            return Err(io::Error::other("this is no request that this version knows; are both of the same version?"));
        };
        match request {
            Request::Hello => Ok(Reply::Welcome { protocol: PROTOCOL }),
            Request::Get { path } => {
                let named = |error| named(&path, error);
                self.begin(|service| Transfer::get(&service.root, &service.domain, path.clone())).map_err(named)
            }
            Request::Put { path, .. } if !self.service.writable => {
                Err(named(&path, io::Error::other("this server is read-only (it was started without --writable)")))
            }
            Request::Put { path, size, mode } => {
                let named = |error| named(&path, error);
                let open =
                    |service: &Service| Transfer::put(&service.root, &service.domain, path.clone(), size, mode & 0o777);
                self.begin(open).map_err(named)
            }
            Request::Hash { block } => self.with(|file| file.hash(block, scratch)),
            Request::Fill { block, slot } => self.with(|file| file.fill(block, slot, scratch)),
            Request::Store { block, slot, digest } => self.with(|file| file.store(block, slot, digest, scratch)),
            Request::Finish { digest } => {
                let reply = self.with(|file| file.finish(digest))?;
                if let Some(done) = self.open().take() {
                    self.service.report.done(self.address, &done.transfer);
                }
                Ok(reply)
            }
        }
    }
}

/// An error with the file that it is about.
fn named(path: &str, error: io::Error) -> io::Error {
    io::Error::other(format!("{path:?}: {error}"))
}

impl Job {
    /// Does it, and answers.
    pub(super) fn run(self, scratch: &mut [u8]) {
        let Self { client, request } = self;
        let (endpoint, report) = (&client.service.endpoint, &client.service.report);
        let reply = match client.answer(request, scratch) {
            _ if client.gone.load(Ordering::Relaxed) => return,
            Ok(reply) => reply,
            Err(error) => {
                report.failed(client.address, &error);
                drop(client.open().take());
                Reply::Failed { why: error.to_string() }
            }
        };
        // Replies are plain data.
        let Ok(bytes) = serde_json::to_vec(&reply) else { return };
        client.outstanding.fetch_sub(1, Ordering::Relaxed);
        let sent = endpoint.tagged_send(client.peer, TAG, bytes).start().and_then(|sending| sending.wait_for(PATIENCE));
        if sent.is_err() {
            // It is gone, or does not listen: nothing is kept for it.
            client.abandon();
        }
    }
}
