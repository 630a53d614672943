//! Random operations on regions, windows, keys and endpoints, compared with a simple model.
//!
//! The model contains the access that each key permits, the users of each key, and every byte. Endpoint 1 owns the
//! memory. The users are endpoints 0 and 2, and an endpoint of the owner's domain that sends to itself. The latter is
//! sometimes closed and opened again.

use std::collections::BTreeMap;

use percale::endpoint::safe::{Cause, OperationError};
use percale::memory::region::CloseError;
use percale::memory::window::{WindowError, WindowState};
use percale::{
    Access, Bind, Buffer, Endpoint, ErrorCode, PeerAddress, Region, RemoteMemory, TypeTwo, Window, WindowAccess,
    WindowType,
};

use crate::fabric::Fabric;
use crate::memory::same;
use crate::mesh::Mesh;
use crate::random::{Random, seed};

const REGIONS: usize = 3;
const WINDOWS: usize = 6;
const LEN: usize = 24_000;

/// The number of the user of a key. `None` if every user can use it.
type KeyUser = Option<usize>;
/// The number of the endpoint of the owner's domain that sends to itself.
const INNER: usize = 2;

/// The access that a key permits.
#[derive(Clone, Copy, Debug)]
struct KeyAccess {
    region: usize,
    start: usize,
    len: usize,
    access: WindowAccess,
    key_user: KeyUser,
    /// The window, if the key belongs to one.
    window: Option<usize>,
}

struct Model<'m, F: Fabric> {
    mesh: &'m Mesh<F>,
    random: Random,
    two: TypeTwo,
    inner: Option<(Endpoint, PeerAddress)>,
    regions: Vec<Option<(Region, Vec<u8>)>>,
    windows: Vec<Option<Window>>,
    /// The valid keys.
    keys: BTreeMap<u64, KeyAccess>,
    /// The memory descriptions of all keys so far. Many of the keys are no longer valid.
    names: Vec<RemoteMemory>,
    counts: BTreeMap<&'static str, u64>,
}

fn outcome<R>(result: Result<R, OperationError>) -> Result<R, ErrorCode> {
    result.map_err(|error| match error.cause() {
        Cause::Completion(error) => error.error,
        other => panic!("the operation should have been posted: {other}"),
    })
}

impl<F: Fabric> Model<'_, F> {
    fn count(&mut self, what: &'static str, result: bool) {
        *self.counts.entry(what).or_default() += u64::from(result);
    }

    /// Opens the inner endpoint if it is not open.
    fn open_inner(&mut self) {
        if self.inner.is_none() {
            let domain = &self.mesh.test_endpoint(1).domain;
            let vector = domain.address_vector().build().expect("a vector");
            let endpoint = domain.endpoint().vector(&vector).bind(self.mesh.fabric.address()).expect("an endpoint");
            let me = vector.insert(endpoint.address()).expect("an address");
            self.inner = Some((endpoint, me));
        }
    }

    /// Closes the inner endpoint, unless windows of type 2A prevent this.
    fn close_inner(&mut self) {
        let Some((endpoint, me)) = self.inner.take() else { return };
        let bound = self.keys.values().any(|given| given.key_user == Some(INNER));
        match endpoint.close() {
            Ok(()) => {
                assert!(!bound || self.two == TypeTwo::B, "closed under 2A windows");
                self.keys.retain(|_, given| given.key_user != Some(INNER));
            }
            Err(error) => {
                assert!(bound && self.two == TypeTwo::A, "closing failed although no window is bound");
                self.inner = Some((error.into_inner(), me));
            }
        }
        self.count("endpoints", !bound);
    }

    fn register(&mut self) {
        let at = self.random.below(REGIONS);
        if self.regions[at].is_some() {
            return self.close(at);
        }
        let domain = &self.mesh.test_endpoint(1).domain;
        let mut bytes = vec![0; LEN];
        self.random.fill(&mut bytes);
        let memory = if self.random.below(2) == 0 {
            Buffer::from(bytes.clone())
        } else {
            let mut allocation = domain.allocate(LEN).expect("memory");
            allocation.write(0, &bytes);
            Buffer::from(allocation)
        };
        let rights = WindowAccess::from_bits_retain(self.random.below(4) as u8);
        let (read, write) = (Access::REMOTE_READ, Access::REMOTE_WRITE);
        let access = [Access::empty(), read, write, read | write][usize::from(rights.bits())];
        let region = domain.registration(access).base(at as u64 * (1 << 20)).own(memory).expect("a region");
        let given = KeyAccess { region: at, start: 0, len: LEN, access: rights, key_user: None, window: None };
        self.names.push(region.remote());
        assert!(self.keys.insert(region.key(), given).is_none(), "a key was assigned twice");
        self.regions[at] = Some((region, bytes));
        self.count("regions", true);
    }

    fn close(&mut self, at: usize) {
        let Some((region, bytes)) = self.regions[at].take() else { return };
        let bound = self.keys.values().any(|given| given.region == at && given.window.is_some());
        let key = region.key();
        match region.close() {
            Ok(memory) => {
                assert!(!bound, "closed under bound windows");
                same(&memory.into_vec(), &bytes, "the memory of a closed region");
                self.keys.remove(&key);
            }
            Err(CloseError::Windows(region)) => {
                assert!(bound, "closing failed although no window is bound");
                self.regions[at] = Some((region, bytes));
            }
            Err(other) => panic!("closing failed although no access is in progress: {other}"),
        }
        self.count("closes", !bound);
    }

    fn window(&mut self, at: usize) {
        if let Some(window) = self.windows[at].take() {
            // The window is deallocated in both cases.
            if self.random.below(2) == 0 {
                assert!(window.close().is_ok(), "no access is in progress");
            } else {
                drop(window);
            }
            self.keys.retain(|_, given| given.window != Some(at));
        } else {
            let kind = if at.is_multiple_of(2) { WindowType::One } else { self.two.into() };
            self.windows[at] = Some(self.mesh.test_endpoint(1).domain.window(kind).expect("a window"));
        }
    }

    /// Returns the key of a bound window.
    fn bound(&self, at: usize) -> Option<u64> {
        self.keys.iter().find(|(_, given)| given.window == Some(at)).map(|(key, _)| *key)
    }

    fn bind(&mut self) {
        let (at, region) = (self.random.below(WINDOWS), self.random.below(REGIONS));
        let Some(window) = self.windows[at].take() else { return self.window(at) };
        let access = WindowAccess::from_bits_retain(self.random.below(8) as u8);
        let start = self.random.below(LEN + 10) as u64;
        let len = [0, 1, 8, 100, LEN / 2, LEN][self.random.below(6)] as u64;
        let fits = start + len <= LEN as u64;
        self.windows[at] = Some(match (&self.regions[region], window.kind()) {
            (None, _) => window,
            (Some(_), WindowType::One) => self.bind_one(window, at, region, start..start + len, access),
            (Some(_), _) => self.bind_two(window, at, region, start..start + len, access),
        });
        self.count("binds", fits);
    }

    fn given(
        at: usize,
        region: usize,
        range: &std::ops::Range<u64>,
        access: WindowAccess,
        key_user: KeyUser,
    ) -> KeyAccess {
        let (start, len) = (range.start as usize, (range.end - range.start) as usize);
        KeyAccess { region, start, len, access, key_user, window: Some(at) }
    }

    fn bind_one(
        &mut self,
        mut window: Window,
        at: usize,
        region: usize,
        range: std::ops::Range<u64>,
        access: WindowAccess,
    ) -> Window {
        let Some((of, _)) = &self.regions[region] else { return window };
        let old = self.bound(at);
        match window.bind(of, range.clone(), access) {
            Ok(name) => {
                assert!(range.end <= LEN as u64, "bound beyond its region");
                self.keys.retain(|_, given| given.window != Some(at));
                if name.len > 0 {
                    assert_ne!(Some(name.key), old, "the old key was reused immediately");
                    let given = Self::given(at, region, &range, access, None);
                    assert!(self.keys.insert(name.key, given).is_none(), "a key was assigned twice");
                    self.names.push(name);
                }
            }
            Err(error) => assert_eq!((error, range.end > LEN as u64), (WindowError::Range, true)),
        }
        window
    }

    fn bind_two(
        &mut self,
        window: Window,
        at: usize,
        region: usize,
        range: std::ops::Range<u64>,
        access: WindowAccess,
    ) -> Window {
        let Some((of, _)) = &self.regions[region] else { return window };
        let key_user = self.random.below(3);
        let bind = Bind { range: range.clone(), access, key: self.random.below(256) as u8 };
        let byte = bind.key;
        let bound = self.bound(at);
        let result = match (&self.inner, key_user) {
            (Some((inner, me)), INNER) => inner.bind_window(*me, &window, of, bind).wait(),
            (None, INNER) => return window,
            _ => self.mesh.finish(self.mesh.endpoint(1).bind_window(user(self.mesh, key_user), &window, of, bind)),
        };
        let wanted = match () {
            () if range.end > LEN as u64 || range.is_empty() => Err(ErrorCode::Invalid),
            () if bound.is_some() => Err(ErrorCode::Busy),
            () => Ok(window.key_with(byte)),
        };
        let result = outcome(result);
        assert_eq!(result.map(|name| name.key), wanted, "a bind of {range:?}");
        if let Ok(name) = result {
            let given = Self::given(at, region, &range, access, Some(place(self.mesh, key_user)));
            assert!(self.keys.insert(name.key, given).is_none(), "a key was assigned twice");
            self.names.push(name);
        }
        window
    }

    /// Returns a random key, which may be valid, no longer valid, or never valid so far.
    fn some_key(&mut self) -> u64 {
        let live = self.keys.len();
        match self.random.below(4) {
            0 | 1 if live > 0 => *self.keys.keys().nth(self.random.below(live)).expect("a valid key"),
            2 if !self.names.is_empty() => self.names[self.random.below(self.names.len())].key,
            _ => self.names.last().map_or(0, |name| name.key ^ 1 << self.random.below(40)),
        }
    }

    fn invalidate(&mut self) {
        let key = self.some_key();
        let key_user = self.random.below(3);
        let by_peer = self.random.below(2) == 0;
        let given = self.keys.get(&key).copied();
        // An allocated window owns all 256 keys of its index.
        let owner = self.windows.iter().flatten().find(|window| window.key_with(0) == key & !0xFF).map(Window::kind);
        let ours = |given: KeyAccess| given.key_user == Some(place(self.mesh, key_user));
        let wanted = match (given, owner) {
            _ if by_peer
                && !given.is_some_and(|given| given.window.is_some() && given.key_user.is_some() && ours(given)) =>
            {
                Err(ErrorCode::KeyRejected)
            }
            (_, Some(WindowType::One)) => Err(ErrorCode::Invalid),
            (Some(given), Some(_)) if !ours(given) => Err(ErrorCode::Denied),
            (Some(_), Some(_)) => Ok(()),
            _ => Err(ErrorCode::KeyRejected),
        };
        let inner = self.inner.as_ref();
        if key_user == INNER && inner.is_none() {
            return;
        }
        let result = match (by_peer, inner) {
            (false, Some((inner, me))) if key_user == INNER => inner.invalidate(*me, key).wait(),
            (false, _) => self.mesh.finish(self.mesh.endpoint(1).invalidate(user(self.mesh, key_user), key)),
            (true, Some((inner, me))) if key_user == INNER => {
                let mut receive = inner.recv(vec![0; 8]).start().expect("a receive");
                let sent = inner.send(*me, vec![1; 8]).invalidating(key).wait().map(drop);
                if sent.is_ok() {
                    assert_eq!(receive.wait().expect("the message").invalidated, Some(key));
                }
                sent
            }
            (true, _) => {
                let receive = self.mesh.endpoint(1).recv(vec![0; 8]).start().expect("a receive");
                let send = self.mesh.endpoint(2 * key_user).send(self.mesh.peer(1), vec![1; 8]).invalidating(key);
                let sent = self.mesh.finish(send).map(drop);
                if sent.is_ok() {
                    assert_eq!(self.mesh.finish(receive).expect("the message").invalidated, Some(key));
                }
                sent
            }
        };
        let result = outcome(result);
        assert_eq!(result, wanted, "invalidation of {key:#x} (by peer: {by_peer}); the model has {given:?}");
        if result.is_ok() {
            self.keys.remove(&key);
        }
        self.count("invalidations", result.is_ok());
    }

    /// Reads, writes or adds at a random position, which may be invalid.
    fn access(&mut self) {
        let (key, key_user) = (self.some_key(), self.random.below(3));
        if key_user == INNER && self.inner.is_none() {
            return self.open_inner();
        }
        let given = self.keys.get(&key).copied();
        let (base, room) = given.map_or((0, LEN), |given| (given.region * (1 << 20) + given.start, given.len));
        let kind = self.random.below(3);
        let len = if kind == 2 { 8 } else { [1, 7, 8, 64, 3000, 17_000][self.random.below(6)] };
        let offset = match self.random.below(8) {
            0 => room as i64 - len as i64 + self.random.below(3) as i64,
            1 => self.random.below(3) as i64 - 2,
            _ => self.random.below(room.saturating_sub(len).max(1)) as i64,
        };
        // Words are aligned in memory.
        let offset = if kind == 2 {
            offset - (offset + given.map_or(0, |given| given.start) as i64).rem_euclid(8)
        } else {
            offset
        };
        let name = RemoteMemory { key, address: (base as i64 + offset) as u64, len: len as u64 };
        let needed = [WindowAccess::READ, WindowAccess::WRITE, WindowAccess::ATOMIC][kind];
        let wanted = match given {
            None => Err(ErrorCode::KeyRejected),
            Some(given) if given.key_user.is_some_and(|only| only != place(self.mesh, key_user)) => {
                Err(ErrorCode::KeyRejected)
            }
            Some(given) => {
                let both = WindowAccess::READ | WindowAccess::WRITE;
                let right = given.access.contains(needed) || (kind == 2 && given.access.contains(both));
                let inside = offset >= 0 && offset as usize + len <= given.len;
                if right && inside { Ok(given) } else { Err(ErrorCode::Denied) }
            }
        };
        let mut bytes = vec![0; len];
        self.random.fill(&mut bytes);
        let (endpoint, peer) = match &self.inner {
            Some((inner, me)) if key_user == INNER => (inner, *me),
            _ => (self.mesh.endpoint(2 * key_user), self.mesh.peer(1)),
        };
        let mesh = self.mesh;
        macro_rules! end {
            ($operation:expr) => {
                outcome(if key_user == INNER { $operation.wait() } else { mesh.finish($operation) })
            };
        }
        let result = match kind {
            0 => end!(endpoint.read(peer, name, vec![0; len])).map(Buffer::into_vec),
            1 => end!(endpoint.write(peer, bytes.clone(), name)).map(Buffer::into_vec),
            _ => end!(endpoint.fetch_add(peer, name, 3_u64)).map(|before| before.to_ne_bytes().to_vec()),
        };
        let what = format!("access {kind} by {key_user} of {name:?}; the model has {given:?}");
        match wanted {
            Err(code) => assert_eq!(result.map(drop), Err(code), "{what}"),
            Ok(given) => {
                let start = given.start + offset as usize;
                let Some((region, model)) = &mut self.regions[given.region] else { panic!("a key without a region") };
                let model = &mut model[start..start + len];
                let got = result.unwrap_or_else(|error| panic!("{what}: {error}"));
                match kind {
                    0 => same(&got, model, &what),
                    1 => model.copy_from_slice(&bytes),
                    _ => {
                        same(&got, model, &what);
                        let before = u64::from_ne_bytes(got.try_into().expect("8 bytes"));
                        model.copy_from_slice(&before.wrapping_add(3).to_ne_bytes());
                    }
                }
                let mut now = vec![0; len];
                region.read(start, &mut now);
                same(&now, model, &what);
            }
        }
        self.count(["reads", "writes", "additions"][kind], wanted.is_ok());
    }

    /// Checks the states that windows report.
    fn query(&self) {
        for (at, window) in self.windows.iter().enumerate() {
            let Some(window) = window else { continue };
            let wanted = self.bound(at).map_or(WindowState::Unbound, WindowState::Bound);
            assert_eq!(window.state(), wanted, "window {at}");
        }
    }

    fn step(&mut self) {
        match self.random.below(100) {
            0..3 => self.register(),
            3..6 => {
                let at = self.random.below(WINDOWS);
                self.window(at);
            }
            6..22 => self.bind(),
            22..30 => self.invalidate(),
            30 => self.close_inner(),
            31 => self.open_inner(),
            32..34 => self.query(),
            _ => self.access(),
        }
        if self.names.len() > 64 {
            self.names.drain(..32);
        }
    }
}

/// Returns the owner's address for a user that is an endpoint.
fn user<F: Fabric>(mesh: &Mesh<F>, key_user: usize) -> PeerAddress {
    mesh.peer(2 * key_user)
}

/// Returns the user's number. Users at the same endpoint are the same user.
fn place<F: Fabric>(_: &Mesh<F>, key_user: usize) -> usize {
    if F::ALONE && key_user != INNER { 0 } else { key_user }
}

/// Random operations have the same results as the model. With `PERCALE_LONG`, there are a million of them.
///
/// Requirements: MW-021, MW-043.
pub fn random_window_operations_match_the_model<F: Fabric>() {
    let count = if crate::long() { 500_000 } else { 4000 };
    for two in [TypeTwo::A, TypeTwo::B] {
        let mesh = Mesh::<F>::with(3, |domain| domain.windows(two), |_, endpoint| endpoint);
        let mut model = Model {
            mesh: &mesh,
            random: Random::new(seed()),
            two,
            inner: None,
            regions: (0..REGIONS).map(|_| None).collect(),
            windows: (0..WINDOWS).map(|_| None).collect(),
            keys: BTreeMap::new(),
            names: Vec::new(),
            counts: BTreeMap::new(),
        };
        for _ in 0..count {
            model.step();
        }
        println!("{}, type 2{two:?}: {count} operations; done: {:?}", F::NAME, model.counts);
        for (what, done) in &model.counts {
            assert!(*done > 0, "no {what} succeeded");
        }
        for region in model.regions.iter().flatten() {
            same(&super::windows::bytes_of(&region.0), &region.1, "a region at the end");
        }
    }
}
