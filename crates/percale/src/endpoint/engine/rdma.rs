//! Links over verbs in the endpoint's epoll: their completions, and what tells of their end.

use std::os::fd::BorrowedFd;

use rustix::event::epoll;

use super::Engine;
use crate::transport::Connection;
use crate::transport::any::AnyLink;
use crate::transport::verbs::VerbsLink;

/// What tells of the end of a link, in the epoll: this and its connection number. Its completions have the number alone.
pub(super) const WATCH: u64 = 1 << 32;

impl Engine {
    /// A link is in use.
    pub(super) fn watch_pair(&mut self, slot: Connection, link: &VerbsLink) {
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

    /// It is no longer. Closing one of several descriptors of a file would not end its watch, and a forked child has some.
    pub(super) fn unwatch_pair(&self, link: &VerbsLink) {
        for fd in link.watches().chain([link.completions()]) {
            if let Err(error) = epoll::delete(&*self.epoll, fd) {
                crate::later::later!(error: %error, "a queue pair is still watched");
            }
        }
    }

    /// Something was told about a link, apart from what it carries.
    #[cold]
    pub(super) fn look_after(&mut self, slot: Connection) {
        if let Some(Some(AnyLink::Verbs(link))) = self.links.get_mut(slot as usize)
            && link.look()
        {
            self.poller.waits(slot); // Looked at until it says itself that it is over.
        }
    }
}
