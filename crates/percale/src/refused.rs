//! Programs that must not compile (REV-009). For each of them there is a program that compiles. The two differ only in
//! the code that the compiler rejects, so the first program cannot fail for another reason.

/// An operation owns its buffer: memory that is only borrowed could be freed while the peer writes to it.
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
pub mod operation_with_borrowed_memory_does_not_compile {}

/// A region outside of a scope owns its memory: if the region were forgotten, a borrow would end while peers are still
/// writing.
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
pub mod region_of_borrowed_memory_does_not_compile {}

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
pub mod access_to_registered_memory_does_not_compile {}

/// A region of borrowed memory cannot leave its scope. Its description may leave it.
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
pub mod region_outside_its_scope_does_not_compile {}

/// Memory that is registered in a scope must outlive the scope.
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
pub mod memory_shorter_lived_than_scope_does_not_compile {}

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
pub mod use_of_closed_region_does_not_compile {}

/// An endpoint without a lock is used by one thread at a time.
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
pub mod endpoint_shared_by_threads_does_not_compile {}

/// An operation under way cannot outlive its endpoint.
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
pub mod operation_outliving_its_endpoint_does_not_compile {}

/// Segments have no lifetime. The creator of a segment guarantees that the memory is valid, and no safe function
/// creates a segment of borrowed memory.
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
pub mod safe_segment_creation_does_not_compile {}

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
pub mod safe_segment_read_does_not_compile {}
