//! Tests of the order between operations on windows and other operations for the same peer.

use super::*;
use crate::endpoint::window_work::Bind;
use crate::memory::window::WindowState;
use crate::region::Access;
use crate::region::window::{WindowAccess, WindowType};
use crate::wire::head::{Flags, FrameKind};

const LEN: usize = 64;

/// Opens a test endpoint whose invalidations wait for the users of a key without a limit that a test could reach.
fn patient(transport: &str) -> TestEndpoint {
    let builder = Info::discover().unwrap().domain().transport(transport.parse().unwrap());
    TestEndpoint::of(builder.revoke_timeout(Duration::from_secs(3600)).open().unwrap(), &CompletionQueue::default())
}

/// An invalidation does not end while an access by the key is in progress, and a fence waits for it. This also holds if
/// the connection to the peer is replaced by another one meanwhile.
///
/// Requirements: MSG-016, MW-044.
#[test]
fn fenced_send_waits_for_a_pending_invalidation() {
    for (transport, reconnects) in [("shm", false), ("tcp", false), ("shm", true), ("tcp", true)] {
        let (owner, user) = (patient(transport), TestEndpoint::new(transport));
        let peer = connect(&owner, &user);
        let region = owner.domain.register(vec![0; LEN], Access::empty()).unwrap();
        let window = owner.domain.window(WindowType::TwoB).unwrap();
        let bind = Bind { range: 0..LEN as u64, access: WindowAccess::READ, key: 1 };
        let name = owner.endpoint.bind_window(peer, &window, &region, bind).wait().unwrap();
        // A thread of the owner executes an access.
        let accessed = window.cell.bound().unwrap();
        let inside = accessed.pin().enter().unwrap();
        let mut invalidation = owner.endpoint.invalidate(peer, name.key).start().unwrap();
        if reconnects {
            let head = Head { kind: FrameKind::Done, flags: Flags::ID, id: 1, ..Head::default() };
            user.forge(&owner, &head, &[]);
            until(&[&owner], || owner.ended());
            until(&[&user], || user.ended());
            connect(&owner, &user);
        }
        let before = (owner.finished(), user.finished());
        let mut receive = user.endpoint.tagged_recv(2, 0, vec![0; 8]).start().unwrap();
        let mut send = owner.endpoint.tagged_send(peer, 2, vec![2; 8]).fenced().start().unwrap();
        for _ in 0..1000 {
            owner.endpoint.progress();
            user.endpoint.progress();
        }
        let ended = (owner.finished(), user.finished());
        assert_eq!(ended, before, "{transport}: an operation ended while the key was still used");
        assert_eq!(window.state(), WindowState::Revoking(name.key), "{transport}");
        drop(inside);
        until(&[&owner, &user], || (owner.finished() == before.0 + 2 && user.finished() == before.1 + 1).then_some(()));
        invalidation.wait().unwrap();
        send.wait().unwrap();
        assert_eq!(receive.wait().unwrap().to_vec(), [2; 8], "{transport}");
        assert_eq!(window.state(), WindowState::Unbound, "{transport}");
    }
}
