//! The methods of [`Wait`](super::Wait) that queues expose.

/// Adds the methods that attach endpoints and let threads sleep on a descriptor to a queue with `shared.wait` and
/// `is_empty`.
macro_rules! wait_api {
    ($queue:ty) => {
        impl $queue {
            /// Returns the [`Wait`](super::wait::Wait) in which the queue's readers sleep.
            pub(in crate::completion) fn place(&self) -> &super::wait::Wait {
                &self.shared.wait
            }

            /// Makes readers and waiting threads drive `endpoint` from now on, as long as it exists.
            ///
            /// # Errors
            /// If the system cannot watch the endpoint's descriptor or start a thread for its progress, or in a forked
            /// child.
            pub fn attach(&self, endpoint: &Arc<dyn Driven>) -> io::Result<()> {
                self.shared.wait.attach(endpoint)
            }

            /// Removes `endpoint`.
            pub fn detach(&self, endpoint: &Arc<dyn Driven>) {
                self.shared.wait.detach(endpoint);
            }

            /// Returns a descriptor for the caller's own poll or epoll set. It is readable when there may be something
            /// to read. Before each sleep on it, [`try_wait`](Self::try_wait) must have returned true.
            ///
            /// # Errors
            /// If no descriptor can be created, or in a forked child.
            pub fn descriptor(&self) -> io::Result<BorrowedFd<'_>> {
                self.shared.wait.descriptor()
            }

            /// Returns whether the caller may sleep on the [`descriptor`](Self::descriptor). Returns false if there is
            /// something to read, or if progress can be made by reading or by the owner of an endpoint that reports
            /// here.
            ///
            /// # Errors
            /// If no descriptor can be created, or in a forked child.
            pub fn try_wait(&self) -> io::Result<bool> {
                Ok(self.shared.wait.arm()? && self.is_empty() && !self.shared.wait.is_undriven())
            }
        }
    };
}

pub(in crate::completion) use wait_api;
