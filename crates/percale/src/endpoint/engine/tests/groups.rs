//! Tests of groups that end while their endpoint makes no progress.

use super::*;
use crate::transport::Broken;
use crate::{AddressSet, Entry};

/// Joins a group of two, on both sides.
fn join(stations: [&TestEndpoint; 2], context: u64) -> crate::GroupId {
    let ids = stations.map(|test_endpoint| {
        let members: AddressSet = stations.map(|member| test_endpoint.peer(member)).into_iter().collect();
        test_endpoint.endpoint.join_group(&members, context).unwrap()
    });
    let mut joined = 0;
    until(&stations, || {
        for test_endpoint in stations {
            while let Some(event) = test_endpoint.events.read() {
                match event {
                    Event::Joined { context: of, .. } => joined += usize::from(of == context),
                    Event::JoinFailed { context: of, reason, .. } => assert_ne!(of, context, "{reason}"),
                    _ => {}
                }
            }
        }
        (joined == 2).then_some(())
    });
    ids[0]
}

#[test]
fn ready_group_is_not_confused_with_new_group_in_its_slot() {
    for transport in ["shm", "tcp"] {
        let queue = CompletionQueue::new(1, 2);
        let (left, gone, other) = (
            TestEndpoint::reporting(transport, Trust::SameUser, &queue),
            TestEndpoint::new(transport),
            TestEndpoint::new(transport),
        );
        let group = join([&left, &gone], 1);
        // The queue is not read, so the next due work of the group waits.
        while left.engine(|engine| engine.core.has_room()) {
            queue.update(|ring| ring.push_event(Entry::default()));
        }
        let slot = left.slot(&gone);
        left.engine(|engine| engine.down(slot, &Broken::Died("killed".to_owned())));
        left.endpoint.leave_group(group);
        let members: AddressSet = [&left, &other].map(|member| left.peer(member)).into_iter().collect();
        let next = left.endpoint.join_group(&members, 2).unwrap();
        assert_ne!(next, group);
        assert!(left.endpoint.rank_in(next).is_some(), "{transport}: the new group was removed");
        while queue.read(&mut [Entry::default(); 4]).unwrap() > 0 {}
        let theirs: AddressSet = [&left, &other].map(|member| other.peer(member)).into_iter().collect();
        other.endpoint.join_group(&theirs, 2).unwrap();
        let mut joined = 0;
        until(&[&left, &other], || {
            for test_endpoint in [&left, &other] {
                while let Some(event) = test_endpoint.events.read() {
                    match event {
                        Event::Joined { context: 2, .. } => joined += 1,
                        Event::JoinFailed { context: 2, reason, .. } => panic!("{transport}: {reason}"),
                        _ => {}
                    }
                }
            }
            (joined == 2).then_some(())
        });
    }
}
