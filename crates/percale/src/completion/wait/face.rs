//! The methods of [`Wait`](super::Wait) that queues expose.

/// Gives a queue with `shared.wait` and `is_empty` the methods that attach endpoints to it and let threads sleep on its descriptor.
macro_rules! face {
    ($queue:ty) => {
        impl $queue {
            /// The [`Wait`](super::wait::Wait) in which the queue's readers sleep.
            pub(in crate::completion) fn place(&self) -> &super::wait::Wait {
                &self.shared.wait
            }

            /// Makes readers and waiting threads drive `endpoint` from now on, for as long as it lives.
            ///
            /// # Errors
            /// If the system refuses to watch the endpoint's descriptor, or a thread for its progress; in a forked child.
            pub fn attach(&self, endpoint: &Arc<dyn Progress>) -> io::Result<()> {
                self.shared.wait.attach(endpoint)
            }

            /// Forgets `endpoint`.
            pub fn detach(&self, endpoint: &Arc<dyn Progress>) {
                self.shared.wait.detach(endpoint);
            }

            /// A descriptor for the caller's own poll or epoll set, readable when there may be something to read. Before
            /// each sleep on it, [`try_wait`](Self::try_wait) must have returned true.
            ///
            /// # Errors
            /// If the system refuses a descriptor; in a forked child.
            pub fn descriptor(&self) -> io::Result<BorrowedFd<'_>> {
                self.shared.wait.descriptor()
            }

            /// Whether the caller may sleep on the [`descriptor`](Self::descriptor): false if there is something to
            /// read, or progress to be made by reading, or by the owner of an endpoint that reports here.
            ///
            /// # Errors
            /// If the system refuses a descriptor; in a forked child.
            pub fn try_wait(&self) -> io::Result<bool> {
                Ok(self.shared.wait.arm()? && self.is_empty() && !self.shared.wait.is_undriven())
            }
        }
    };
}

pub(in crate::completion) use face;
