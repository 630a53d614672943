//! Implementations of `Link` for transports that are not compiled into this build.

/// Implements `Link` for a type that has no values.
macro_rules! absent_link {
    ($link:ident) => {
        impl crate::Link for $link {
            fn frame_limit(&self) -> usize {
                match self.0 {}
            }

            fn is_stream(&self) -> bool {
                match self.0 {}
            }

            fn send(
                &mut self,
                _: &crate::wire::head::Head,
                _: &crate::local_memory::volatile::Segments,
                _: bool,
            ) -> Result<(), crate::Refused> {
                match self.0 {}
            }

            fn poll(&mut self, _: crate::ConnectionId, _: &mut impl crate::Sink) -> Result<bool, crate::Broken> {
                match self.0 {}
            }

            fn pull(
                &mut self,
                _: u32,
                _: &crate::wire::head::Offer,
                _: &crate::region::lease::Lease,
                _: u32,
            ) -> Result<(), crate::Refused> {
                match self.0 {}
            }

            fn expect(&mut self, _: &crate::region::lease::Lease, _: u32) {
                match self.0 {}
            }

            fn push(
                &mut self,
                _: u32,
                _: u64,
                _: crate::local_memory::volatile::View<'_>,
                _: &crate::region::lease::Lease,
            ) -> Result<(), crate::Refused> {
                match self.0 {}
            }

            fn is_idle(&self) -> bool {
                match self.0 {}
            }
        }
    };
}
pub(super) use absent_link;
