//! Access to registered memory of this process through the device, with the same result as an access by a peer.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::adapter::Adapter;
use super::{CompletionChannel, CompletionQueue};
use super::{MemoryRegion, Rights};
use super::{PairSize, QueuePair};

/// The timeout of one access. A device that does not answer in this time is assumed never to answer.
const LIMIT: Duration = Duration::from_secs(20);
/// The identifier of each request. There is only one request at a time.
const REQUEST: u64 = 1;

/// Two queue pairs of one device that are connected to each other. The first reads and writes memory that is registered
/// in the adapter's protection domain, as a peer would. Only one thread may use them, for one access at a time.
#[derive(Debug)]
pub struct LoopbackPair {
    adapter: Arc<Adapter>,
    buffers: Arc<MemoryRegion>,
    pairs: Option<Pairs>,
}

#[derive(Debug)]
struct Pairs {
    queue: Arc<CompletionQueue>,
    near: QueuePair,
    /// The other end of the near queue pair. Nothing is posted to it.
    _far: QueuePair,
}

impl LoopbackPair {
    /// Creates queue pairs for accesses of at most `most` bytes.
    ///
    /// # Errors
    /// The error that the device reports.
    pub fn new(adapter: &Arc<Adapter>, most: usize) -> io::Result<Self> {
        let buffers = MemoryRegion::new(adapter.domain(), most, Rights::LOCAL_WRITE)?;
        let pairs = Some(Pairs::new(adapter, &buffers)?);
        Ok(Self { adapter: Arc::clone(adapter), buffers, pairs })
    }

    /// Writes to the memory with this remote key, which was registered at this address.
    ///
    /// # Errors
    /// The status with which the device completed the request. Success means that the bytes are in the registered
    /// pages.
    pub fn write(&mut self, bytes: &[u8], address: u64, key: u32) -> io::Result<()> {
        if self.buffers.copy_in(bytes, 0, bytes.len()) != bytes.len() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        self.access(|pair| pair.post_write(REQUEST, 0, bytes.len(), (address, key)))
    }

    /// Reads from the memory with this remote key.
    ///
    /// # Errors
    /// The status with which the device completed the request.
    pub fn read(&mut self, bytes: &mut [u8], address: u64, key: u32) -> io::Result<()> {
        let len = bytes.len();
        self.access(|pair| pair.post_read(REQUEST, 0, len, (address, key)))?;
        if self.buffers.copy_out(0, len, bytes) == len { Ok(()) } else { Err(io::ErrorKind::InvalidInput.into()) }
    }

    fn access(&mut self, post: impl FnOnce(&QueuePair) -> Result<(), super::VerbsError>) -> io::Result<()> {
        let pairs = match self.pairs.take() {
            Some(pairs) => pairs,
            None => Pairs::new(&self.adapter, &self.buffers)?,
        };
        post(&pairs.near)?;
        pairs.completed()?;
        // After an error the queue pair does not accept any more requests, so it is kept only after success.
        self.pairs = Some(pairs);
        Ok(())
    }
}

impl Pairs {
    fn new(adapter: &Adapter, buffers: &Arc<MemoryRegion>) -> io::Result<Self> {
        let channel = CompletionChannel::new(adapter.domain().context())?;
        let queue = CompletionQueue::new(&channel, 4)?;
        let size = PairSize { sends: 1, receives: 1, inline: 0, pieces: 1 };
        let (near, far) = (QueuePair::new(&queue, buffers, size)?, QueuePair::new(&queue, buffers, size)?);
        let path = adapter.path();
        near.prepare(path, Rights::LOCAL_WRITE)?;
        far.prepare(path, Rights::REMOTE_READ | Rights::REMOTE_WRITE)?;
        let (here, there) = (adapter.end(near.number())?, adapter.end(far.number())?);
        near.connect(path, &here, &there)?;
        far.connect(path, &there, &here)?;
        Ok(Self { queue, near, _far: far })
    }

    /// Waits for the posted request.
    fn completed(&self) -> io::Result<()> {
        match self.queue.finish(REQUEST, LIMIT, |_| {})? {
            Some(0) => Ok(()),
            Some(status) => Err(io::Error::other(self.queue.explain(status))),
            None => Err(io::ErrorKind::TimedOut.into()),
        }
    }
}
