//! An endpoint in each process, on one transport. The functions for posting and polling are for the raw API, as a
//! provider or a benchmark of another library uses it.

use percale::{AddressVector, Domain, Endpoint, Entry, Info, PeerAddress, PostError, Progress};

use super::MachinePlacement;
use crate::channel::watch::{Spin, Watch};
use crate::failure::{Failure, Result, percale};
use crate::row::Transport;

/// The endpoint of this process, and the address of the other process.
pub(super) struct Node {
    pub(super) endpoint: Endpoint,
    vector: AddressVector,
    pub(super) domain: Domain,
    pub(super) peer: PeerAddress,
    entries: [Entry; 32],
}

impl Node {
    /// Opens an endpoint on `transport`. Its peer is not known yet.
    fn open(transport: Transport, cma: bool, place: &MachinePlacement) -> Result<Self> {
        let here = match place {
            MachinePlacement::Local(_) => crate::loopback::here().to_string(),
            MachinePlacement::Remote(address, _) => address.to_string(),
        };
        let info = Info::discover().map_err(percale("discovering transports"))?;
        let domain = info.domain().transport(transport.kind()).progress(Progress::Manual);
        let domain = if cma { domain } else { domain.cma(false) };
        let domain = match place.key() {
            Some(key) => domain.authorization_key(key),
            None => domain,
        };
        let domain = domain.open();
        let domain = domain.map_err(percale("opening a domain"))?;
        let vector = domain.address_vector().build().map_err(percale("creating an address vector"))?;
        let endpoint = domain.endpoint().vector(&vector).bind(here.as_str()).map_err(percale("opening an endpoint"))?;
        Ok(Self { endpoint, vector, domain, peer: PeerAddress::UNSPECIFIED, entries: [Entry::default(); 32] })
    }

    /// Opens the endpoint of the answering process. The address of the other side is already known.
    pub(super) fn open_far(
        transport: Transport,
        cma: bool,
        place: &MachinePlacement,
        address: Option<&str>,
    ) -> Result<Self> {
        let mut node = Self::open(transport, cma, place)?;
        node.meet(address)?;
        Ok(node)
    }

    /// Opens the endpoint of the measuring process. `exchange` is called with the address of this side. It opens the
    /// endpoint in the other process and returns its address.
    pub(super) fn open_near(
        transport: Transport,
        cma: bool,
        place: &MachinePlacement,
        mut exchange: impl FnMut(Option<String>) -> Result<Option<String>>,
    ) -> Result<Self> {
        let mut node = Self::open(transport, cma, place)?;
        let there = exchange(Some(node.address()))?;
        node.meet(there.as_deref())?;
        Ok(node)
    }

    /// Returns the address of this side.
    pub(super) fn address(&self) -> String {
        self.endpoint.address().to_string()
    }

    fn meet(&mut self, address: Option<&str>) -> Result<()> {
        let address = address.ok_or_else(|| Failure::Protocol("no address".into()))?;
        self.peer = self.vector.insert(address).map_err(percale("inserting the other side's address"))?;
        Ok(())
    }

    /// Makes progress, and passes completions to `take`. Returns whether there were any.
    #[inline]
    pub(super) fn poll(&mut self, mut take: impl FnMut(&Entry) -> Result<()>) -> Result<bool> {
        let count = match self.endpoint.poll(&mut self.entries) {
            Ok(count) => count,
            Err(error) => return Err(self.broken(&error)),
        };
        for entry in &self.entries[..count] {
            take(entry)?;
        }
        Ok(count > 0)
    }

    #[cold]
    fn broken(&mut self, error: &impl std::fmt::Display) -> Failure {
        let why = match self.endpoint.read_error() {
            Some(entry) => entry.to_string(),
            None => error.to_string(),
        };
        Failure::Percale { what: "polling the endpoint", why }
    }

    /// Calls `post` until there is room for the operation. Meanwhile passes completions to `take`.
    #[inline]
    pub(super) fn post(
        &mut self,
        what: &'static str,
        watch: &mut Watch,
        post: impl Fn(&Endpoint) -> Result<(), PostError>,
        mut take: impl FnMut(&Entry) -> Result<()>,
    ) -> Result<()> {
        let mut spin = Spin::default();
        loop {
            match post(&self.endpoint) {
                Ok(()) => return Ok(()),
                Err(PostError::Again) => {
                    self.poll(&mut take)?;
                    spin.polled(watch)?;
                }
                Err(error) => return Err(percale(what)(error)),
            }
        }
    }

    /// Makes progress on outstanding transfers.
    pub(super) fn progress(&self) {
        self.endpoint.progress();
    }
}
