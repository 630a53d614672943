//! Programs that must not compile (REV-009). Each stands beside a program that compiles and differs from it only in the
//! code that the compiler rejects, so it cannot fail for another reason.

/// An operation owns its buffer: memory that is only borrowed could be freed while the peer writes it.
/// ```
/// fn read(endpoint: &percale::Endpoint, peer: percale::PeerAddress, remote: percale::RemoteMemory) {
///     let bytes = [0_u8; 64];
///     std::mem::forget(endpoint.read(peer, remote, bytes.to_vec()).start());
/// }
/// ```
/// ```compile_fail
/// fn read(endpoint: &percale::Endpoint, peer: percale::PeerAddress, remote: percale::RemoteMemory) {
///     let bytes = [0_u8; 64];
///     std::mem::forget(endpoint.read(peer, remote, &bytes[..]).start());
/// }
/// ```
///
/// Requirements: REV-009.
pub mod an_operation_of_borrowed_memory {}

/// A region outside of a scope owns its memory too: forgetting it would end a borrow while peers still write.
/// ```
/// fn register(domain: &percale::Domain) {
///     let mut bytes = vec![0_u8; 64];
///     std::mem::forget(domain.register(bytes.clone(), percale::Access::REMOTE_WRITE));
///     bytes[0] = 1;
/// }
/// ```
/// ```compile_fail
/// fn register(domain: &percale::Domain) {
///     let mut bytes = vec![0_u8; 64];
///     std::mem::forget(domain.register(&mut bytes[..], percale::Access::REMOTE_WRITE));
///     bytes[0] = 1;
/// }
/// ```
///
/// Requirements: REV-009.
pub mod a_region_of_borrowed_memory {}

/// Within a scope, no other code accesses the registered memory.
/// ```
/// fn register(domain: &percale::Domain) {
///     let mut bytes = vec![0_u8; 64];
///     domain.scope(|scope| drop(scope.register(&mut bytes, percale::Access::REMOTE_WRITE)));
///     bytes[0] = 1;
/// }
/// ```
/// ```compile_fail
/// fn register(domain: &percale::Domain) {
///     let mut bytes = vec![0_u8; 64];
///     domain.scope(|scope| {
///         drop(scope.register(&mut bytes, percale::Access::REMOTE_WRITE));
///         bytes[0] = 1;
///     });
/// }
/// ```
///
/// Requirements: REV-009.
pub mod memory_used_while_it_is_registered {}

/// A region of borrowed memory does not leave its scope. Its remote name may leave it.
/// ```
/// fn register(domain: &percale::Domain) -> percale::RemoteMemory {
///     let mut bytes = vec![0_u8; 64];
///     domain.scope(|scope| scope.register(&mut bytes, percale::Access::REMOTE_WRITE).unwrap().remote())
/// }
/// ```
/// ```compile_fail
/// fn register(domain: &percale::Domain) -> percale::RemoteMemory {
///     let mut bytes = vec![0_u8; 64];
///     domain.scope(|scope| scope.register(&mut bytes, percale::Access::REMOTE_WRITE).unwrap()).remote()
/// }
/// ```
///
/// Requirements: REV-009.
pub mod a_region_that_leaves_its_scope {}

/// Memory that is registered in a scope outlives the scope.
/// ```
/// fn register(domain: &percale::Domain) {
///     let mut bytes = vec![0_u8; 64];
///     domain.scope(|scope| drop(scope.register(&mut bytes, percale::Access::REMOTE_WRITE)));
/// }
/// ```
/// ```compile_fail
/// fn register(domain: &percale::Domain) {
///     domain.scope(|scope| {
///         let mut bytes = vec![0_u8; 64];
///         drop(scope.register(&mut bytes, percale::Access::REMOTE_WRITE));
///     });
/// }
/// ```
///
/// Requirements: REV-009.
pub mod memory_that_ends_before_its_scope {}

/// Closing a region consumes it, so the returned memory cannot be accessed through the region.
/// ```
/// fn close(region: percale::Region) {
///     region.read(0, &mut [0; 8]);
///     drop(region.close());
/// }
/// ```
/// ```compile_fail
/// fn close(region: percale::Region) {
///     drop(region.close());
///     region.read(0, &mut [0; 8]);
/// }
/// ```
///
/// Requirements: REV-009.
pub mod a_region_used_after_it_was_closed {}

/// An endpoint without a lock has one user at a time.
/// ```
/// fn share(endpoint: &percale::SharedEndpoint) {
///     std::thread::scope(|threads| { threads.spawn(|| endpoint.progress()); });
/// }
/// ```
/// ```compile_fail
/// fn share(endpoint: &percale::Endpoint) {
///     std::thread::scope(|threads| { threads.spawn(|| endpoint.progress()); });
/// }
/// ```
///
/// Requirements: REV-009.
pub mod an_endpoint_of_two_threads {}

/// An operation under way does not outlive its endpoint.
/// ```
/// fn send(endpoint: percale::Endpoint, peer: percale::PeerAddress) {
///     let sending = endpoint.send(peer, vec![1, 2, 3]).start();
///     drop(sending);
///     drop(endpoint);
/// }
/// ```
/// ```compile_fail
/// fn send(endpoint: percale::Endpoint, peer: percale::PeerAddress) {
///     let sending = endpoint.send(peer, vec![1, 2, 3]).start();
///     drop(endpoint);
///     drop(sending);
/// }
/// ```
///
/// Requirements: REV-009.
pub mod an_operation_that_outlives_its_endpoint {}

/// Segments have no lifetime. The creator of a segment guarantees that the memory is valid, and no safe function lends
/// memory to a segment.
/// ```
/// fn lend(bytes: &mut Vec<u8>) -> percale::Segments {
///     percale::Segments::one(unsafe { percale::Segment::new(bytes.as_mut_ptr(), bytes.len()) })
/// }
/// ```
/// ```compile_fail
/// fn lend(bytes: &mut Vec<u8>) -> percale::Segments {
///     percale::Segments::lend(bytes, |lent| *lent)
/// }
/// ```
///
/// Requirements: REV-009.
pub mod memory_lent_without_a_word {}

/// No safe function reads memory through a segment: the memory may have been freed.
/// ```
/// fn look(segments: percale::Segments) -> usize {
///     segments.len()
/// }
/// ```
/// ```compile_fail
/// fn look(segments: percale::Segments) -> usize {
///     segments.to_vec().len()
/// }
/// ```
///
/// Requirements: REV-009.
pub mod segments_read_by_whoever_has_them {}
