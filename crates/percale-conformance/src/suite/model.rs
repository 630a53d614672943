//! Random sequences of operations, compared with a simple model: two lists that are searched from the front.
//!
//! After each step, all sent messages have arrived (see [`Mesh::settle_untagged`]). Therefore it is known which
//! messages are available to the next step.

use std::collections::HashMap;

use percale::{ErrorCode, OpFlags, PostError};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::fabric::{Fabric, Transport};
use crate::memory::{Memory, content, same};
use crate::mesh::{Mesh, Receive, Send};

/// The buffer size of every receive. Some messages are longer.
const ROOM: usize = 12_000;
/// Lengths of messages.
const LENS: [usize; 7] = [0, 8, 100, 2048, 2049, 9000, 15_000];

#[derive(Clone, Copy, Debug)]
struct Wanted {
    tag: u64,
    ignore: u64,
    from: Option<usize>,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Send {
        from: usize,
        tag: u64,
        len: usize,
        delivered: bool,
    },
    Receive(Wanted),
    Peek(Wanted),
    Claim(Wanted),
    Discard(Wanted),
    /// Receives or discards one of the claimed messages.
    Fetch {
        which: usize,
        discard: bool,
    },
    Cancel {
        which: usize,
    },
}

fn wanted() -> impl Strategy<Value = Wanted> {
    let ignore = prop_oneof![3 => Just(0), 1 => Just(3), 1 => Just(!0)];
    (0..4u64, ignore, proptest::option::weighted(0.3, 0..2usize)).prop_map(|(tag, ignore, from)| Wanted {
        tag,
        ignore,
        from,
    })
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..2usize, 0..4u64, 0..LENS.len(), any::<bool>()).prop_map(|(from, tag, len, delivered)| Step::Send {
            from, tag, len: LENS[len], delivered
        }),
        5 => wanted().prop_map(Step::Receive),
        1 => wanted().prop_map(Step::Peek),
        1 => wanted().prop_map(Step::Claim),
        1 => wanted().prop_map(Step::Discard),
        2 => (0..4usize, any::<bool>()).prop_map(|(which, discard)| Step::Fetch { which, discard }),
        1 => (0..4usize).prop_map(|which| Step::Cancel { which }),
    ]
}

/// A sent message.
#[derive(Clone, Copy, Debug)]
struct Message {
    number: u64,
    from: usize,
    tag: u64,
    len: usize,
    context: u64,
    delivered: bool,
}

/// The model, and the mesh that is compared with it. Endpoints 0 and 1 send, and endpoint 2 receives.
struct Case<F: Fabric> {
    mesh: Mesh<F>,
    posted: Vec<(u64, Wanted, Memory)>,
    here: Vec<Message>,
    claimed: Vec<(u64, Message)>,
    senders: usize,
    numbers: u64,
    pools: HashMap<usize, Memory>,
}

impl<F: Fabric> Case<F> {
    fn agrees(&self, wanted: Wanted, message: &Message) -> bool {
        let from = wanted.from.is_none_or(|from| from % self.senders == message.from);
        from && (wanted.tag ^ message.tag) & !wanted.ignore == 0
    }

    fn find(&self, wanted: Wanted) -> Option<usize> {
        self.here.iter().position(|message| self.agrees(wanted, message))
    }

    fn receive(&self, receive: Receive, wanted: Wanted) -> Receive {
        let receive = receive.tag(wanted.tag, wanted.ignore);
        wanted.from.map_or(receive, |from| receive.from(self.mesh.peer(from % self.senders)))
    }

    /// Checks that the message is in this memory, truncated if there is not enough room, and that its send has
    /// completed.
    fn arrived(&self, context: u64, message: &Message, memory: Memory) {
        match self.mesh.report(context) {
            Ok(entry) => assert_eq!((entry.len, entry.tag), (message.len as u64, message.tag)),
            Err(error) => {
                assert_eq!(error.error, ErrorCode::Truncated);
                assert_eq!((error.entry.len, error.overflow), (ROOM as u64, (message.len - ROOM) as u64));
            }
        }
        let room = message.len.min(ROOM);
        same(&memory.read()[..room], &content(message.number, message.len)[..room], "a message");
        self.mesh.done(message.context);
    }

    fn none(&self, context: u64) {
        assert_eq!(self.mesh.failed(context).error, ErrorCode::NoMessage);
    }

    fn run(&mut self, step: Step) {
        match step {
            Step::Send { from, tag, len, delivered } => self.send(from % self.senders, tag, len, delivered),
            Step::Receive(wanted) => {
                let memory = Memory::blank(ROOM);
                let context = self.mesh.receive(2, self.receive(Receive::into(memory), wanted));
                match self.find(wanted) {
                    Some(at) => {
                        let message = self.here.remove(at);
                        self.arrived(context, &message, memory);
                    }
                    None => self.posted.push((context, wanted, memory)),
                }
            }
            Step::Peek(wanted) | Step::Claim(wanted) | Step::Discard(wanted) => self.look(step, wanted),
            Step::Fetch { which, discard } => self.fetch(which, discard),
            Step::Cancel { which } => {
                if !self.posted.is_empty() {
                    let (context, ..) = self.posted.remove(which % self.posted.len());
                    assert!(self.mesh.endpoint(2).cancel(context));
                    assert_eq!(self.mesh.failed(context).error, ErrorCode::Canceled);
                }
            }
        }
    }

    fn send(&mut self, from: usize, tag: u64, len: usize, delivered: bool) {
        self.numbers += 1;
        let number = self.numbers;
        let flags = if delivered { OpFlags::DELIVERY_COMPLETE } else { OpFlags::empty() };
        let memory = Memory::content(number, len);
        let context = self.mesh.send(from, 2, Send::of(memory).tag(tag).with(flags));
        self.mesh.settle_untagged(from, 2);
        let message = Message { number, from, tag, len, context, delivered };
        match self.posted.iter().position(|&(_, wanted, _)| self.agrees(wanted, &message)) {
            Some(at) => {
                let (context, _, memory) = self.posted.remove(at);
                self.arrived(context, &message, memory);
            }
            None => self.here.push(message),
        }
    }

    fn look(&mut self, step: Step, wanted: Wanted) {
        let flags = match step {
            Step::Claim(_) => OpFlags::CLAIM,
            Step::Discard(_) => OpFlags::DISCARD,
            _ => OpFlags::empty(),
        };
        let context = self.mesh.receive(2, self.receive(Receive::peek(flags), wanted));
        let Some(at) = self.find(wanted) else { return self.none(context) };
        let message = self.here[at];
        let entry = self.mesh.done(context);
        assert_eq!((entry.len, entry.tag), (message.len as u64, message.tag));
        match step {
            Step::Claim(_) => self.claimed.push((context, self.here.remove(at))),
            Step::Discard(_) => {
                self.here.remove(at);
                self.mesh.done(message.context);
            }
            _ => {}
        }
    }

    fn fetch(&mut self, which: usize, discard: bool) {
        let memory = *self.pools.entry(0).or_insert_with(|| Memory::blank(ROOM));
        let mut receive = Receive::into(memory).tag(0, !0).with(OpFlags::CLAIM);
        if discard {
            receive = receive.with(OpFlags::DISCARD);
        }
        if self.claimed.is_empty() {
            let context = self.mesh.context();
            assert_eq!(self.mesh.try_receive(2, receive.context(context)), Err(PostError::NotClaimed));
            return;
        }
        let (context, message) = self.claimed.remove(which % self.claimed.len());
        self.mesh.receive(2, receive.context(context));
        if discard {
            assert_eq!(self.mesh.done(context).len, message.len as u64);
            self.mesh.done(message.context);
        } else {
            self.arrived(context, &message, memory);
        }
    }

    /// Checks that nothing else was reported, so no receive got a message that the model assigned to another receive.
    fn end(self) {
        self.mesh.turns(50);
        for (context, ..) in &self.posted {
            assert!(self.mesh.take(*context).is_none(), "a receive that matches nothing");
        }
        for message in self.here.iter().chain(self.claimed.iter().map(|(_, message)| message)) {
            assert!(!message.delivered || self.mesh.take(message.context).is_none(), "an undelivered message");
        }
    }
}

/// 200 random sequences have the same results as a simple model.
///
/// Requirements: TAG-011.
pub fn random_message_sequences_match_the_model<F: Transport>() {
    let config = Config { cases: 200, failure_persistence: None, max_shrink_iters: 2000, ..Config::default() };
    let mut runner = TestRunner::new(config);
    let steps = proptest::collection::vec(step(), 1..60);
    let result = runner.run(&steps, |steps| {
        let mesh = Mesh::<F>::new(3);
        let senders = if F::ALONE { 1 } else { 2 };
        let (posted, here, claimed) = Default::default();
        let mut case = Case { mesh, posted, here, claimed, senders, numbers: 0, pools: HashMap::new() };
        steps.into_iter().for_each(|step| case.run(step));
        case.end();
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
}
