//! Links over verbs in the endpoint's epoll: their completions, and the descriptors that report their end.

use std::os::fd::BorrowedFd;

use rustix::event::epoll;

use super::Engine;
use crate::transport::ConnectionId;
use crate::transport::any::AnyLink;
use crate::transport::verbs::VerbsLink;

/// The bit in the epoll data of a descriptor that reports the end of a link. The other bits are the link's connection
/// number. Completions have the connection number alone.
pub(super) const WATCH: u64 = 1 << 32;

impl Engine {
    /// Adds the descriptors of a link that is in use to the epoll.
    pub(super) fn watch_pair(&mut self, slot: ConnectionId, link: &VerbsLink) {
        self.poller.sockets += 1;
        self.has_descriptor();
        self.poller.add_polled(slot);
        let watch = |fd: BorrowedFd<'_>, name: u64| {
            let data = epoll::EventData::new_u64(name);
            if let Err(error) = epoll::add(&*self.epoll, fd, data, epoll::EventFlags::IN) {
                crate::later::later!(error: %error, "a queue pair cannot be watched");
            }
        };
        watch(link.completions(), slot.into());
        link.watches().for_each(|fd| watch(fd, WATCH | u64::from(slot)));
    }

    /// Removes the descriptors of a link from the epoll set. Closing them is not sufficient: epoll watches a file until
    /// all of its descriptors are closed, and a forked child has copies.
    pub(super) fn unwatch_pair(&self, link: &VerbsLink) {
        for fd in link.watches().chain([link.completions()]) {
            if let Err(error) = epoll::delete(&*self.epoll, fd) {
                crate::later::later!(error: %error, "a queue pair is still watched");
            }
        }
    }

    /// Handles an event of a link that is not a completion.
    #[cold]
    pub(super) fn handle_link_event(&mut self, slot: ConnectionId) {
        if let Some(Some(AnyLink::Verbs(link))) = self.links.get_mut(slot as usize)
            && link.look()
        {
            self.poller.waits(slot); // The link is polled until it reports its end itself.
        }
    }
}
