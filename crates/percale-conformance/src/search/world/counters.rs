//! Deferred and triggered work.

#![expect(unsafe_code, reason = "posts operations on memory that it keeps until they have ended")]

use percale::trigger::{RawOperation, WorkId};
use percale::{Counter, Domain, OpFlags, SendWork};

use super::{World, on};
use crate::search::ledger::{Fault, Verdict};
use crate::search::payload;
use crate::search::step::{COUNTERS, CounterStep, DOMAINS};

/// The model's record of a deferred addition.
#[derive(Debug)]
struct DeferredAddition {
    id: WorkId,
    domain: usize,
    counter: usize,
    threshold: u64,
    to: usize,
    count: u64,
    /// Whether it has been neither executed nor cancelled so far.
    waits: bool,
}

/// Counters, and the work that waits for them.
pub(super) struct Deferrals {
    counters: Vec<Counter>,
    values: [u64; COUNTERS],
    domains: Vec<Option<Domain>>,
    work: Vec<DeferredAddition>,
}

impl Deferrals {
    pub(super) fn new() -> Self {
        let counters = (0..COUNTERS).map(|_| Counter::new()).collect();
        Self { counters, values: [0; COUNTERS], domains: (0..DOMAINS).map(|_| None).collect(), work: Vec::new() }
    }

    /// Executes the due work in the model.
    fn fire(&mut self) {
        while let Some(due) =
            self.work.iter_mut().find(|work| work.waits && self.values[work.counter] >= work.threshold)
        {
            due.waits = false;
            self.values[due.to] += due.count;
        }
    }
}

impl World {
    pub(super) fn counter(&mut self, counter: usize, what: CounterStep) -> Verdict {
        let counter = counter % COUNTERS;
        match what {
            CounterStep::Add(count) => {
                self.deferrals.values[counter] += u64::from(count);
                self.deferrals.counters[counter].add(count.into());
            }
            CounterStep::Defer { to, count, threshold, domain } => {
                let (domain, to) = (usize::from(domain) % DOMAINS, usize::from(to) % COUNTERS);
                if to == counter {
                    return Ok(()); // Otherwise two counters could trigger each other without end.
                }
                if self.deferrals.domains[domain].is_none() {
                    self.deferrals.domains[domain] = Some(self.domain());
                }
                let Deferrals { counters, values, domains, work } = &mut self.deferrals;
                let threshold = values[counter] + u64::from(threshold);
                let Some(owner) = &domains[domain] else { return Ok(()) };
                let id = owner.defer_add(&counters[to], count.into(), (&counters[counter], threshold));
                let id = id.map_err(|error| Fault::new("refused without a cause", error.to_string()))?;
                work.push(DeferredAddition { id, domain, counter, threshold, to, count: count.into(), waits: true });
            }
            CounterStep::Cancel { nth } => {
                let Deferrals { domains, work, .. } = &mut self.deferrals;
                let Some(index) = work.len().checked_sub(1 + usize::from(nth)) else { return Ok(()) };
                let work = &mut work[index];
                let Some(owner) = &domains[work.domain] else { return Ok(()) };
                let cancelled = owner.cancel_work(&work.id);
                let expected = std::mem::replace(&mut work.waits, false);
                if cancelled != expected {
                    let text = format!("cancelling deferred work returned {cancelled} instead of {expected}");
                    return Err(Fault::new("deferred work", text));
                }
            }
            CounterStep::Flush { domain } => {
                let Deferrals { domains, work, counters, .. } = &mut self.deferrals;
                let domain = usize::from(domain) % DOMAINS;
                let Some(owner) = &domains[domain] else { return Ok(()) };
                let flushed = owner.flush_work(Some(&counters[counter]));
                let mut expected = 0;
                for work in
                    work.iter_mut().filter(|work| work.waits && work.domain == domain && work.counter == counter)
                {
                    work.waits = false;
                    expected += 1;
                }
                if flushed != expected {
                    let text = format!("flushing removed {flushed} operations instead of {expected}");
                    return Err(Fault::new("deferred work", text));
                }
            }
            CounterStep::EndDomain { domain } => {
                let domain = usize::from(domain) % DOMAINS;
                let Deferrals { domains, work, .. } = &mut self.deferrals;
                domains[domain] = None;
                // The domain dropped the work that waited in it.
                work.retain(|work| work.domain != domain);
            }
        }
        self.deferrals.fire();
        self.counters_agree()
    }

    fn counters_agree(&self) -> Verdict {
        let Deferrals { counters, values, .. } = &self.deferrals;
        let found: Vec<u64> = counters.iter().map(Counter::read).collect();
        if found == values {
            return Ok(());
        }
        let text = format!("the counters are {found:?}, and should be {values:?}");
        Err(Fault::new("deferred work", text))
    }

    pub(super) fn send_when(
        &mut self,
        at: usize,
        to: usize,
        len: usize,
        (counter, threshold): (usize, u64),
        slot: usize,
        safe: bool,
    ) -> Verdict {
        let Some((life, port)) = self.port(at) else { return Ok(()) };
        let counter = counter % COUNTERS;
        let threshold = self.deferrals.values[counter] + threshold;
        let when = self.deferrals.counters[counter].clone();
        if safe {
            return self.send_safe_when(at, to, len, (&when, threshold), slot);
        }
        let _ = life;
        let id = self.ledger.number();
        let peer = self.name(to);
        let lent = self.lender.lend(len)?;
        lent.write(&payload::of(id, len));
        self.enter(id, "triggered send", at, Some(to), true);
        self.enter_message(id, at, to, (len, None, true), (false, false));
        let segments = super::messages::segments(lent.segment(), 1);
        let flags = OpFlags::COMPLETION;
        let operation = RawOperation::Send(SendWork { peer, segments, tag: None, data: Some(id), context: id, flags });
        self.lent.insert(id, vec![lent]);
        // SAFETY: the buffer is kept in `lent` until the operation has ended.
        let posted = on!(port, endpoint => unsafe { endpoint.post_when(&operation, &when, threshold) });
        posted.or_else(|error| self.refused(id, &error))
    }

    /// Starts all waiting work.
    pub(super) fn fire_everything(&mut self) -> Verdict {
        for counter in 0..COUNTERS {
            self.deferrals.values[counter] += 1_000;
            self.deferrals.counters[counter].add(1_000);
        }
        self.deferrals.fire();
        self.counters_agree()
    }
}
