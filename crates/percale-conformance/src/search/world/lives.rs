//! Opening and closing endpoints.

use super::{EndpointAddress, Open, Port, World, on};
use crate::search::ledger::{Fault, Life, Verdict};
use crate::search::step::RunTransport;
use crate::search::waker;

impl World {
    /// Opens an endpoint at a place, at the place's address or at a new one.
    pub(super) fn open(&mut self, place: usize, moved: bool) -> Verdict {
        let seating = self.settings.seats[place];
        let opened_endpoint = &mut self.seats[place];
        let mut address = opened_endpoint.address;
        if moved {
            address.set_port(if self.settings.transport == RunTransport::Sim { 2_000 + self.lives as u16 } else { 0 });
        }
        let mut builder = opened_endpoint
            .domain
            .endpoint()
            .connection_addresses(false)
            .vector(&opened_endpoint.vector)
            .event_queue(&opened_endpoint.events);
        if let Some(queue) = seating.queue {
            let queue = &self.queues[usize::from(queue)];
            builder = builder.transmit_queue(queue).receive_queue(queue);
        }
        if seating.pool {
            builder = builder.shared_receive(&self.pool);
        }
        if seating.counted {
            builder = builder.transmit_counter(&opened_endpoint.counter).receive_counter(&opened_endpoint.counter);
        }
        let text = address.to_string();
        let opened = match seating.shared {
            true => builder.bind_shared(&text).map(Port::shared),
            false => builder.bind(&text).map(Port::owned),
        };
        let port = opened.map_err(|error| {
            let text = format!("place {place} could not be opened again at {text}: {error}");
            Fault::new("address not released", text)
        })?;
        let address = on!(port, endpoint => endpoint.address());
        let is_new = opened_endpoint.address != address || self.names.values().all(|other| other.0 as usize != place);
        opened_endpoint.address = address;
        let life = Life(self.lives);
        self.lives += 1;
        opened_endpoint.open = Some(Open { life, port, posted: Vec::new(), claimed: Vec::new(), has_forgotten: false });
        if is_new {
            // All vectors assign the same numbers.
            for opened_endpoint in &self.seats {
                let name = opened_endpoint.vector.insert(address).expect("an address");
                self.names.insert(name.0, EndpointAddress(place as u32));
            }
        }
        self.set_calls();
        Ok(())
    }

    /// Sets the function that wakers call: it makes progress on each open endpoint.
    fn set_calls(&self) {
        let ports: Vec<Port> = self
            .seats
            .iter()
            .filter_map(|opened_endpoint| opened_endpoint.open.as_ref().map(|open| open.port))
            .collect();
        waker::set_call(Some(Box::new(move || {
            for port in &ports {
                on!(*port, endpoint => {
                    endpoint.progress();
                    _ = endpoint.poll_lingering(&mut []);
                });
            }
        })));
    }

    /// Drops or forgets the handles of an endpoint, and then closes the endpoint.
    pub(super) fn close(&mut self, place: usize, forget: bool) -> Verdict {
        let Some(life) = self.seats[place].open.as_ref().map(|open| open.life) else { return Ok(()) };
        self.let_go_of_handles(life, forget);
        if self.groups.forget(life) {
            self.groups_may_fail();
        }
        let Some(open) = self.seats[place].open.take() else { return Ok(()) };
        self.seats[place].was_closed = true;
        self.set_calls();
        open.port.close(open.has_forgotten);
        self.regions.closed(life);
        // Operations of the closed endpoint may never end, but their memory belongs to the application again.
        let theirs: Vec<u64> = self.ledger.pending_of(life);
        self.ledger.harm(Some(EndpointAddress(place as u32)), Some(life));
        let seating = self.settings.seats[place];
        if seating.pool && seating.queue.is_none() {
            self.ledger.vanish();
        }
        for id in theirs {
            if let Some(operation) = self.ledger.operation_mut(id) {
                operation.is_closed = true;
            }
            self.give_back(id)?;
        }
        Ok(())
    }

    /// Converts an exclusively owned endpoint into a shared one, or clones and drops a handle of a shared one.
    pub(super) fn share(&mut self, place: usize) {
        let Some(open) = &mut self.seats[place].open else { return };
        match open.port {
            Port::Shared(endpoint, _) => drop(endpoint.clone()),
            Port::Owned(..) => {
                let life = open.life;
                let is_held = self.held.iter().flatten().any(|held| held.life == Some(life));
                if is_held || self.has_set(life) || self.has_many(life) {
                    return;
                }
                let Some(open) = self.seats[place].open.take() else { return };
                waker::set_call(None);
                let port = open.port.share();
                self.seats[place].open = Some(Open { port, ..open });
                self.set_calls();
            }
        }
    }
}
