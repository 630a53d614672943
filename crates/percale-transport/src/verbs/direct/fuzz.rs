//! Fuzzes an initiator's table of a target's regions. The target sends arbitrary answers.

use std::collections::HashMap;

use zerocopy::FromBytes;

use super::grants::Grants;
use crate::wire::located::{AccessGrant, LocateAnswer, LocatedBytes};

/// The state of a key in a simple model.
#[derive(Clone, Copy, PartialEq, Eq)]
enum KeyState {
    Asked,
    Executed,
    Granted(AccessGrant),
}

/// Sends requests, processes answers and removes grants, as the arbitrary bytes determine. A lookup must return the
/// content of the last answer to a pending request, until the grant is removed.
pub fn fuzz_grants(mut bytes: &[u8]) {
    let mut grants = Grants::default();
    let (mut model, mut requested) = (HashMap::new(), HashMap::new());
    while let Some((&[what, key, number], rest)) = bytes.split_first_chunk() {
        bytes = rest;
        let (key, number) = (u64::from(key), u32::from(number));
        match what % 4 {
            0 | 1 => match (grants.find(key, what % 4 == 0), model.get(&key)) {
                (Ok(found), Some(KeyState::Granted(grant))) => assert_eq!(found, *grant),
                (Err(Some(question)), None | Some(KeyState::Executed)) => {
                    assert!(
                        what % 4 == 0 && requested.insert(question, key).is_none(),
                        "a request was not permitted, or was made twice"
                    );
                    model.insert(key, KeyState::Asked);
                }
                (Err(None), Some(KeyState::Asked | KeyState::Executed)) => {}
                (Err(None), None) => assert!(what % 4 == 1 || requested.len() >= 64, "the region was not requested"),
                (found, _) => panic!("{found:?} was returned for a key without a matching reply"),
            },
            2 => {
                let Ok((reply, rest)) = LocatedBytes::read_from_prefix(bytes) else { break };
                bytes = rest;
                let Some(located) = reply.parse() else { continue };
                let answered = requested.remove(&number);
                assert_eq!(grants.learn(number, &located).is_ok(), answered.is_some());
                if let Some(key) = answered {
                    model.remove(&key);
                    match located {
                        LocateAnswer::Granted(grant) => drop(model.insert(key, KeyState::Granted(grant))),
                        LocateAnswer::Executed => drop(model.insert(key, KeyState::Executed)),
                        LocateAnswer::Unknown => {}
                    }
                }
            }
            _ => {
                grants.forget(key, number);
                if matches!(model.get(&key), Some(KeyState::Granted(grant)) if grant.number == number) {
                    model.remove(&key);
                }
            }
        }
    }
    assert_eq!(grants.granted(), model.values().filter(|known| matches!(known, KeyState::Granted(_))).count());
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;
    use zerocopy::IntoBytes;

    use super::*;

    proptest! {
        /// Uses mostly valid steps, because arbitrary bytes rarely form an answer.
        ///
        /// Requirements: FLT-007.
        #[test]
        fn target_answers_match_the_model(steps in prop::collection::vec((0u8..4, 0u8..5, 0u8..8, 0u8..4), 0..200)) {
            let mut bytes = Vec::new();
            for (what, key, number, says) in steps {
                bytes.extend([what, key, number]);
                if what == 2 {
                    let grant = AccessGrant {
                        number: u32::from(says),
                        reads: true,
                        writes: says == 1,
                        remote_key: 1,
                        base: u64::from(says),
                        len: 8,
                        address: 16,
                    };
                    let located = [LocateAnswer::Executed, LocateAnswer::Unknown].get(usize::from(says)).copied();
                    bytes.extend(LocatedBytes::of(&located.unwrap_or(LocateAnswer::Granted(grant))).as_bytes());
                }
            }
            fuzz_grants(&bytes);
        }

        /// Requirements: FLT-007.
        #[test]
        fn arbitrary_grant_bytes_match_the_model(bytes in prop::collection::vec(any::<u8>(), 0..500)) {
            fuzz_grants(&bytes);
        }
    }
}
