//! An initiator's table of a target's regions, by key.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use crate::wire::located::{AccessGrant, LocateAnswer};

/// The maximum number of keys in the table.
const KEYS: usize = 64 << 10;
/// The maximum number of pending requests.
const REQUEST_LIMIT: usize = 64;
/// The number of accesses that the target executes before a new request is sent. By then the key may belong to another
/// region or window.
const AGAIN: u32 = 1000;

#[derive(Clone, Copy, Debug)]
enum KeyState {
    Asked,
    Granted(AccessGrant),
    /// The target executes the accesses itself. A new request is sent after this number of further accesses.
    Executed(u32),
}

/// The initiator's table of a target's regions, by key.
#[derive(Debug, Default)]
pub(super) struct Grants {
    known: HashMap<u64, KeyState>,
    /// The number and key of each pending request.
    requested: Vec<(u32, u64)>,
    next: u32,
    /// The grant that was looked up last.
    last: Option<(u64, AccessGrant)>,
}

impl Grants {
    /// Returns the grant of a key. Otherwise returns the number of the request to send, if one is needed.
    pub(super) fn find(&mut self, key: u64, may_ask: bool) -> Result<AccessGrant, Option<u32>> {
        if let Some((last, grant)) = self.last
            && last == key
        {
            return Ok(grant);
        }
        match self.known.get_mut(&key) {
            Some(KeyState::Granted(grant)) => {
                self.last = Some((key, *grant));
                return Ok(*grant);
            }
            Some(KeyState::Asked) => return Err(None),
            Some(KeyState::Executed(left)) if *left > 0 => {
                *left -= 1;
                return Err(None);
            }
            Some(KeyState::Executed(_)) | None => {}
        }
        if !may_ask || self.requested.len() >= REQUEST_LIMIT {
            return Err(None);
        }
        if self.known.len() >= KEYS {
            self.known.retain(|_, known| !matches!(known, KeyState::Executed(_)));
            if self.known.len() >= KEYS {
                return Err(None);
            }
        }
        self.next = self.next.wrapping_add(1);
        self.requested.push((self.next, key));
        self.known.insert(key, KeyState::Asked);
        Err(Some(self.next))
    }

    /// Records an answer of the target.
    ///
    /// # Errors
    /// If there was no such request.
    pub(super) fn learn(&mut self, question: u32, located: &LocateAnswer) -> Result<(), &'static str> {
        let requested = self.requested.iter().position(|(number, _)| *number == question);
        let (_, key) = self.requested.swap_remove(requested.ok_or("unexpected reply about a region")?);
        match located {
            LocateAnswer::Granted(grant) => drop(self.known.insert(key, KeyState::Granted(*grant))),
            LocateAnswer::Executed => drop(self.known.insert(key, KeyState::Executed(AGAIN))),
            LocateAnswer::Unknown => drop(self.known.remove(&key)),
        }
        Ok(())
    }

    /// Removes a grant that has ended, identified by the target's number. A new request for the key may then be sent.
    pub(super) fn forget(&mut self, key: u64, number: u32) {
        if let Entry::Occupied(known) = self.known.entry(key)
            && matches!(known.get(), KeyState::Granted(grant) if grant.number == number)
        {
            known.remove();
            self.last = None;
        }
    }

    /// Returns the number of grants.
    pub(super) fn granted(&self) -> usize {
        self.known.values().filter(|known| matches!(known, KeyState::Granted(_))).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn grant(number: u32) -> AccessGrant {
        AccessGrant { number, reads: true, writes: true, remote_key: number, base: 0, len: 1, address: 0 }
    }

    #[test]
    fn key_is_requested_once_and_again_after_grant_loss() {
        let mut grants = Grants::default();
        assert_eq!(grants.find(7, false), Err(None));
        assert_eq!(grants.find(7, true), Err(Some(1)));
        assert_eq!(grants.find(7, true), Err(None), "the key was already requested");
        assert!(grants.learn(2, &LocateAnswer::Executed).is_err());
        grants.learn(1, &LocateAnswer::Granted(grant(5))).unwrap();
        assert!(grants.learn(1, &LocateAnswer::Executed).is_err(), "the request was already answered");
        assert_eq!((grants.find(7, true), grants.find(7, true)), (Ok(grant(5)), Ok(grant(5))));
        grants.forget(7, 4);
        assert_eq!(grants.find(7, true), Ok(grant(5)), "another grant was revoked");
        grants.forget(7, 5);
        assert_eq!(grants.find(7, true), Err(Some(2)));
        grants.learn(2, &LocateAnswer::Unknown).unwrap();
        assert_eq!(grants.find(7, true), Err(Some(3)), "unknown is not remembered");
        grants.learn(3, &LocateAnswer::Executed).unwrap();
        let again = (0..=AGAIN).filter_map(|_| grants.find(7, true).unwrap_err()).collect::<Vec<_>>();
        assert_eq!(again, [4], "executed accesses rarely cause a new request");
        assert_eq!(grants.granted(), 0);
    }

    #[test]
    fn outstanding_key_requests_are_limited() {
        let mut grants = Grants::default();
        let requested = (0..1000).filter(|key| grants.find(*key, true) != Err(None)).count();
        assert_eq!(requested, REQUEST_LIMIT);
    }
}
