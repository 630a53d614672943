//! Registrations of the memory of operations, from the domain's registration cache.

#[cfg(not(loom))]
mod registered {
    #![expect(unsafe_code, reason = "has memory of operations registered; the block states its reason")]

    use std::fmt;
    use std::sync::Arc;

    use pindown::{Access, Cache, Lane, Range, Use};

    use super::super::super::{Adapter, Rights, VerbsRegistrar};
    use crate::local_memory::volatile::{IOV_LIMIT, Segment, Segments};
    use percale_verbs::Sge;

    /// The owner of a registration cache.
    pub trait Registers: fmt::Debug + Send + Sync {
        /// Returns the cache, or `None` if it cannot be opened. The first call opens the cache with `registrar`.
        fn cache(&self, registrar: VerbsRegistrar) -> Option<&Cache<VerbsRegistrar>>;
    }

    /// The owner of the domain's registration cache.
    pub type Pins = Arc<dyn Registers>;

    /// The registrations that an outstanding access uses.
    pub(in super::super) type Uses = [Option<Use>; IOV_LIMIT];

    /// A user of the cache.
    #[derive(Debug)]
    pub(in super::super) struct CacheUser {
        pins: Pins,
        /// The lane of the cache, once it was requested. The inner `None` means that there is no cache.
        lane: Option<Option<Lane<VerbsRegistrar>>>,
    }

    impl CacheUser {
        pub(in super::super) fn new(pins: &Pins) -> Self {
            Self { pins: Arc::clone(pins), lane: None }
        }

        /// Registers the memory of an access until [`end`](Self::end), and fills in `parts` for the device. Returns
        /// `None` if that is not possible.
        pub(in super::super) fn register(
            &mut self,
            adapter: &Adapter,
            memory: &Segments,
            filled: bool,
            parts: &mut [Sge; IOV_LIMIT],
        ) -> Option<Uses> {
            let pins = &self.pins;
            let lane = self.lane.get_or_insert_with(|| {
                // SAFETY: only the memory of operations is registered, for requests of this process. No peer has a
                // right to it, and the device accesses it only as the operations specify.
                let registrar = unsafe { VerbsRegistrar::new(Arc::clone(adapter.domain()), Rights::empty()) };
                pins.cache(registrar).map(Cache::lane)
            });
            let lane = lane.as_ref()?;
            let access = if filled { Access::LOCAL_WRITE } else { Access::empty() };
            let mut uses = Uses::default();
            for (at, piece) in memory.as_slice().iter().enumerate() {
                let address = piece.as_ptr().expose_provenance() as u64;
                let range = Range::new(address, piece.len() as u64);
                match range.map_err(Into::into).and_then(|range| lane.get(range, access)) {
                    Ok(used) => {
                        let lkey = used.local_key() as u32;
                        parts[at] = Sge { addr: address, length: u32::try_from(piece.len()).unwrap_or(u32::MAX), lkey };
                        // Hold the registration until the peer's device answers, which may take a long time.
                        uses[at] = Some(lane.hold(used));
                    }
                    Err(error) => {
                        crate::later::later!(debug: %error, "cannot use memory for RDMA: the target executes the access");
                        self.end(&mut uses);
                        return None;
                    }
                }
            }
            Some(uses)
        }

        /// Ends the use of the registrations by an access.
        pub(in super::super) fn end(&self, uses: &mut Uses) {
            let Some(Some(lane)) = &self.lane else { return };
            uses.iter_mut().filter_map(Option::take).for_each(|used| lane.end(used));
        }
    }

    /// A registration that exists before the first operation uses the memory, and is kept in the cache until this value
    /// is dropped. The cache finds it for accesses to any part of the memory.
    #[derive(Debug)]
    pub struct EarlyRegistration {
        user: CacheUser,
        uses: Uses,
    }

    impl EarlyRegistration {
        /// Registers the memory. Returns `None` if that is not possible, or if the cache cannot keep registrations of
        /// this memory. Each operation then has its memory registered itself.
        pub fn new(pins: &Pins, adapter: &Adapter, memory: Segment) -> Option<Self> {
            if memory.is_empty() || !adapter.is_here() {
                return None;
            }
            let mut user = CacheUser::new(pins);
            let mut parts = [Sge { addr: 0, length: 0, lkey: 0 }; IOV_LIMIT];
            let mut uses = user.register(adapter, &Segments::one(memory), true, &mut parts)?;
            if uses.iter().flatten().any(Use::is_single) {
                user.end(&mut uses);
                return None;
            }
            Some(Self { user, uses })
        }
    }

    impl Drop for EarlyRegistration {
        fn drop(&mut self) {
            self.user.end(&mut self.uses);
        }
    }
}

/// The replacement in loom tests, which have no registration cache.
#[cfg(loom)]
mod registered {
    use super::super::super::Adapter;
    use crate::local_memory::volatile::{IOV_LIMIT, Segments};
    use percale_verbs::Sge;

    /// Unused in loom tests.
    pub type Pins = ();
    pub(in super::super) type Uses = ();

    #[derive(Debug)]
    pub(in super::super) struct CacheUser;

    impl CacheUser {
        pub(in super::super) fn new(_: &Pins) -> Self {
            Self
        }

        pub(in super::super) fn register(
            &mut self,
            _: &Adapter,
            _: &Segments,
            _: bool,
            _: &mut [Sge; IOV_LIMIT],
        ) -> Option<Uses> {
            None
        }

        pub(in super::super) fn end(&self, _: &mut Uses) {}
    }
}

pub use registered::Pins;
pub(super) use registered::{CacheUser, Uses};
#[cfg(not(loom))]
pub use registered::{EarlyRegistration, Registers};
