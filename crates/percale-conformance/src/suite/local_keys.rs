//! Local keys: work requests that identify memory of this process by address and key.

#![expect(unsafe_code, reason = "posts through the raw API; the regions outlive their operations")]

use percale::memory::region::RegisterError;
use percale::{
    Access, ErrorCode, LocalPiece, OpFlags, PeerAddress, Region, RemoteMemory, VerbsAccess, WindowAccess, WindowType,
    WorkRequest,
};

use crate::fabric::Fabric;
use crate::memory::{content, same};
use crate::mesh::{Mesh, Report};

const LEN: usize = 20_000;

/// Posts a work request at an endpoint and waits until it ends.
fn work<F: Fabric>(
    mesh: &Mesh<F>,
    test_endpoint: usize,
    peer: PeerAddress,
    what: WorkRequest,
    pieces: &[LocalPiece],
) -> Report {
    let context = mesh.context();
    // SAFETY: every test waits until the posted operation has ended before it closes a region or accesses its memory.
    let posted = unsafe { mesh.endpoint(test_endpoint).post_work(peer, what, pieces, context, OpFlags::COMPLETION) };
    posted.expect("the operation is posted");
    mesh.report(context)
}

fn piece(region: &Region, offset: u64, len: u64) -> LocalPiece {
    LocalPiece { address: region.local_address() + offset, len, key: region.local_key().expect("a local key") }
}

fn bytes_of(region: &Region) -> Vec<u8> {
    let mut bytes = vec![0; region.len()];
    region.read(0, &mut bytes);
    bytes
}

/// Pieces covered by their keys are sent, received, gathered and scattered. A region without access rights can be the
/// source of a send.
///
/// Requirements: MW-012.
pub fn work_requests_use_local_keys<F: Fabric>() {
    let mesh = Mesh::<F>::new(2);
    let (user, owner) = (&mesh.test_endpoint(0).domain, &mesh.test_endpoint(1).domain);
    let source = user.register_verbs(content(1, LEN), VerbsAccess::empty()).expect("a region");
    let room = user.register_verbs(vec![0; LEN], VerbsAccess::LOCAL_WRITE).expect("a region");
    let all =
        VerbsAccess::LOCAL_WRITE | VerbsAccess::REMOTE_WRITE | VerbsAccess::REMOTE_READ | VerbsAccess::REMOTE_ATOMIC;
    let target = owner.register_verbs(vec![0; LEN], all).expect("a region");
    let (peer, there) = (mesh.peer(1), target.remote());
    let halves = [piece(&source, 100, 3000), piece(&source, 0, 100)];
    for _ in 0..3 {
        work(&mesh, 0, peer, WorkRequest::Write(there.at(0..3100)), &halves).expect("the write");
        same(&bytes_of(&target)[..3000], &content(1, LEN)[100..3100], "the first piece");
        same(&bytes_of(&target)[3000..3100], &content(1, LEN)[..100], "the second piece");
        let into = [piece(&room, 50, 8), piece(&room, 200, 3092)];
        work(&mesh, 0, peer, WorkRequest::Read(there.at(0..3100)), &into).expect("the read");
        same(&bytes_of(&room)[50..58], &content(1, LEN)[100..108], "the first part of the data read");
        same(&bytes_of(&room)[3192..3292], &content(1, LEN)[..100], "the last part of the data read");
        let before = u64::from_ne_bytes(bytes_of(&target)[8..16].try_into().expect("8 bytes"));
        work(&mesh, 0, peer, WorkRequest::FetchAdd(there.at(8..16), 5), &[piece(&room, 0, 8)]).expect("the add");
        assert_eq!(bytes_of(&room)[..8], before.to_ne_bytes());
        let receive = mesh.endpoint(1).recv(vec![0; 64]).start().expect("a receive");
        work(&mesh, 0, peer, WorkRequest::Send(None), &[piece(&source, 0, 64)]).expect("the send");
        same(&mesh.finish(receive).expect("the message").to_vec(), &content(1, LEN)[..64], "the message");
    }
}

/// Any error in a piece results in a local error. No data is read, written or sent.
///
/// Requirements: MW-009.
pub fn wrong_local_key_transfers_nothing<F: Fabric>() {
    let mesh = Mesh::<F>::new(2);
    let (user, owner) = (&mesh.test_endpoint(0).domain, &mesh.test_endpoint(1).domain);
    let open = |bytes| user.register_verbs(bytes, VerbsAccess::LOCAL_WRITE).expect("a region");
    let (mine, other) = (open(content(1, LEN)), open(content(2, LEN)));
    let fixed = user.register_verbs(content(3, LEN), VerbsAccess::REMOTE_READ).expect("a region");
    let closed = open(content(4, LEN));
    let dead = piece(&closed, 0, 8);
    let kept = closed.close().expect("no access is in progress");
    let target = owner.register(content(5, LEN), Access::REMOTE_READ | Access::REMOTE_WRITE).expect("a region");
    let good = piece(&mine, 0, 8);
    let (low, past) = (good.address.wrapping_sub(1), good.address + LEN as u64);
    let wrong = [
        LocalPiece { key: other.local_key().expect("a local key"), ..good },
        LocalPiece { key: good.key ^ 1, ..good },
        LocalPiece { key: good.key ^ 0x100_0000, ..good },
        LocalPiece { key: 0, ..good },
        LocalPiece { key: mine.key() as u32, ..good },
        LocalPiece { address: low, ..good },
        LocalPiece { address: past - 7, ..good },
        LocalPiece { address: past, ..good },
        LocalPiece { address: u64::MAX - 3, ..good },
        LocalPiece { len: u64::MAX, ..good },
        LocalPiece { len: LEN as u64 + 1, ..good },
        dead,
    ];
    let (peer, there) = (mesh.peer(1), target.remote());
    let receive = mesh.endpoint(1).recv(vec![0; 64]).start().expect("a receive");
    for piece in wrong {
        for pieces in [&[piece][..], &[good, piece]] {
            let part = there.at(0..8 * pieces.len() as u64);
            let word = there.at(0..8);
            let all = [
                WorkRequest::Send(None),
                WorkRequest::Write(part),
                WorkRequest::Read(part),
                WorkRequest::FetchAdd(word, 1),
            ];
            for what in all.into_iter().chain([WorkRequest::Receive]) {
                let error = work(&mesh, 0, peer, what, pieces).expect_err("the key does not cover it");
                assert_eq!(error.error, ErrorCode::Denied, "{what:?} of {piece:?}");
            }
        }
    }
    // Memory without write access is not written. It can be sent.
    let only_read = piece(&fixed, 0, 8);
    for what in [WorkRequest::Receive, WorkRequest::Read(there.at(0..8)), WorkRequest::FetchAdd(there.at(0..8), 1)] {
        assert_eq!(work(&mesh, 0, peer, what, &[only_read]).expect_err("read-only").error, ErrorCode::Denied);
    }
    assert!(!receive.is_ready(), "something was sent");
    for (region, number) in [(&mine, 1), (&other, 2), (&fixed, 3), (&target, 5)] {
        same(&bytes_of(region), &content(number, LEN), "nothing was written");
    }
    same(&kept.into_vec(), &content(4, LEN), "memory of a closed region");
    work(&mesh, 0, peer, WorkRequest::Send(None), &[only_read]).expect("a send");
    same(&mesh.finish(receive).expect("the message").to_vec(), &content(3, LEN)[..8], "the message");
}

/// The key of a window is not a local key, but the key of its region is.
///
/// Requirements: MW-011.
pub fn a_window_has_no_local_key<F: Fabric>() {
    let mesh = Mesh::<F>::new(2);
    let domain = &mesh.test_endpoint(0).domain;
    let region = domain.register_verbs(content(1, LEN), VerbsAccess::MW_BIND).expect("a region");
    let mut window = domain.window(WindowType::One).expect("a window");
    let name = window.bind(&region, 0..100, WindowAccess::READ).expect("a bind");
    let by_window = LocalPiece { key: name.key as u32, ..piece(&region, 0, 8) };
    let receive = mesh.endpoint(1).recv(vec![0; 8]).start().expect("a receive");
    let refused = work(&mesh, 0, mesh.peer(1), WorkRequest::Send(None), &[by_window]);
    assert_eq!(refused.expect_err("the key is not a local key").error, ErrorCode::Denied);
    assert!(!receive.is_ready());
    work(&mesh, 0, mesh.peer(1), WorkRequest::Send(None), &[piece(&region, 0, 8)])
        .expect("the key of the region is a local key");
    same(&mesh.finish(receive).expect("the message").to_vec(), &content(1, LEN)[..8], "the message");
}

/// Remote write access and remote atomic access require local write access. A window with write access requires a
/// region with local write access.
///
/// Requirements: MW-013.
pub fn remote_write_access_requires_local_write_access<F: Fabric>() {
    let mesh = Mesh::<F>::new(2);
    let domain = &mesh.test_endpoint(1).domain;
    let (user, peer) = (mesh.endpoint(0), mesh.peer(1));
    for bits in 0..32 {
        let access = VerbsAccess::from_bits_retain(bits);
        let changes = access.intersects(VerbsAccess::REMOTE_WRITE | VerbsAccess::REMOTE_ATOMIC);
        let local = access.contains(VerbsAccess::LOCAL_WRITE);
        let region = match domain.register_verbs(vec![7; 16], access) {
            Err(RegisterError::LocalWrite) => {
                assert!(changes && !local, "{access:?}");
                continue;
            }
            region => region.expect("a region"),
        };
        assert!(local || !changes, "{access:?}");
        let part = region.remote().at(0..8);
        let wrote = mesh.finish(user.write(peer, vec![7; 8], part)).is_ok();
        let read = mesh.finish(user.read(peer, part, vec![0; 8])).is_ok();
        let added = mesh.finish(user.fetch_add(peer, part, 0_u64)).is_ok();
        let (writes, reads) = (access.contains(VerbsAccess::REMOTE_WRITE), access.contains(VerbsAccess::REMOTE_READ));
        let fetches = access.contains(VerbsAccess::REMOTE_ATOMIC) || (writes && reads);
        assert_eq!((wrote, read, added), (writes, reads, fetches), "{access:?}");
        let mut window = domain.window(WindowType::One).expect("a window");
        let may_bind = access.contains(VerbsAccess::MW_BIND);
        assert_eq!(window.bind(&region, 0..8, WindowAccess::READ).is_ok(), may_bind, "{access:?}");
        assert_eq!(window.bind(&region, 0..8, WindowAccess::WRITE).is_ok(), may_bind && local, "{access:?}");
        drop(window);
        let name: RemoteMemory = region.remote();
        region.close().expect("nothing is bound");
        assert!(mesh.finish(user.read(peer, name.at(0..8), vec![0; 8])).is_err());
    }
}
