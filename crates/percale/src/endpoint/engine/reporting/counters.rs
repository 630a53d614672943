//! The counters of an endpoint, by kind of operation (fi_endpoint(3), fi_ep_bind; fi_cntr(3)).

use crate::completion::counter::Counter;
use crate::completion::entry::CompletionFlags;
use crate::endpoint::counted::Counted;
use crate::endpoint::submissions::Submissions;
use crate::wire::head::Counts;

/// The counters of an endpoint. Several may be the same.
#[derive(Clone, Debug)]
pub(crate) struct Counters {
    /// Whether regions count the accesses that peers make through the endpoint.
    regions: bool,
    sends: Option<Counter>,
    receives: Option<Counter>,
    /// Reads and fetching atomic operations.
    reads: Option<Counter>,
    /// Writes and non-fetching atomic operations.
    writes: Option<Counter>,
    /// Reads and fetching atomic operations by peers on local regions.
    remote_reads: Option<Counter>,
    /// Writes and non-fetching atomic operations by peers on local regions.
    remote_writes: Option<Counter>,
}

impl Default for Counters {
    fn default() -> Self {
        let [sends, receives, reads, writes, remote_reads, remote_writes] = [const { None }; 6];
        Self { regions: true, sends, receives, reads, writes, remote_reads, remote_writes }
    }
}

impl Counters {
    /// Sets whether regions count the accesses that peers make through the endpoint.
    pub(crate) const fn count_regions(&mut self, count: bool) {
        self.regions = count;
    }

    /// Counts operations of these kinds with this counter, in place of their previous counters.
    pub(crate) fn set(&mut self, what: Counted, counter: &Counter) {
        let places = [
            (Counted::SENDS, &mut self.sends),
            (Counted::RECEIVES, &mut self.receives),
            (Counted::READS, &mut self.reads),
            (Counted::WRITES, &mut self.writes),
            (Counted::REMOTE_READS, &mut self.remote_reads),
            (Counted::REMOTE_WRITES, &mut self.remote_writes),
        ];
        for (_, place) in places.into_iter().filter(|(kind, _)| what.contains(*kind)) {
            *place = Some(counter.clone());
        }
    }

    /// Returns the name of the first of these kinds that has a counter.
    pub(in super::super) fn has_any(&self, what: Counted) -> Option<&'static str> {
        let places = [
            (Counted::SENDS, &self.sends, "sends"),
            (Counted::RECEIVES, &self.receives, "receives"),
            (Counted::READS, &self.reads, "reads"),
            (Counted::WRITES, &self.writes, "writes"),
            (Counted::REMOTE_READS, &self.remote_reads, "peers' reads"),
            (Counted::REMOTE_WRITES, &self.remote_writes, "peers' writes"),
        ];
        places.into_iter().find(|(kind, place, _)| what.contains(*kind) && place.is_some()).map(|(.., kind)| kind)
    }

    /// Returns whether any operation that the endpoint begins is counted.
    pub(super) const fn count_transmits(&self) -> bool {
        self.sends.is_some() || self.reads.is_some() || self.writes.is_some()
    }

    /// Returns whether received messages are counted.
    pub(super) const fn count_receives(&self) -> bool {
        self.receives.is_some()
    }

    /// Returns every counter. A counter may appear several times.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Counter> {
        let Self { regions: _, sends, receives, reads, writes, remote_reads, remote_writes } = self;
        [sends, receives, reads, writes, remote_reads, remote_writes].into_iter().flatten()
    }

    /// Returns the counter of completions with these flags. A write of a peer (REMOTE_WRITE) is not counted as the
    /// receive of a message.
    pub(in super::super) fn of(&self, flags: CompletionFlags) -> Option<&Counter> {
        let kinds = [
            (CompletionFlags::SEND, &self.sends),
            (CompletionFlags::RECEIVE, &self.receives),
            (CompletionFlags::READ, &self.reads),
            (CompletionFlags::WRITE, &self.writes),
        ];
        kinds.into_iter().find(|(kind, _)| flags.contains(*kind))?.1.as_ref()
    }

    #[inline(never)]
    pub(in super::super) fn succeeded(&self, flags: CompletionFlags, inside: &Submissions) {
        if let Some(counter) = self.of(flags) {
            inside.counting(|| counter.add(1));
        }
    }

    #[inline(never)]
    pub(in super::super) fn failed(&self, flags: CompletionFlags, inside: &Submissions) {
        if let Some(counter) = self.of(flags) {
            inside.counting(|| counter.add_error(1));
        }
    }

    /// Returns which accesses of peers are counted, apart from those that regions count.
    pub(in super::super) fn remote(&self) -> Counts {
        let mut counts = Counts::empty();
        counts.set(Counts::WRITES, self.remote_writes.is_some());
        counts.set(Counts::READS, self.remote_reads.is_some());
        counts
    }

    /// Returns the counters of peers' accesses of these kinds.
    pub(in super::super) fn of_accesses(&self, counts: Counts) -> impl Iterator<Item = &Counter> {
        let kinds = [(Counts::WRITES, &self.remote_writes), (Counts::READS, &self.remote_reads)];
        kinds.into_iter().filter(move |(kind, _)| counts.contains(*kind)).filter_map(|(_, counter)| counter.as_ref())
    }

    /// Returns whether regions count accesses of these kinds.
    pub(in super::super) const fn regions_count(&self, counts: Counts) -> bool {
        self.regions && counts.contains(Counts::REGION)
    }
}
