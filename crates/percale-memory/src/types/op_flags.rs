//! The flags of an operation.

use bitflags::bitflags;

bitflags! {
    /// How one operation is executed and reported (fi_msg(3), fi_tagged(3), fi_cq(3)).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct OpFlags: u32 {
        /// Report success in the completion queue. Errors are always reported; counters count in either case.
        const COMPLETION = 1;
        /// More operations follow immediately, so the transport may combine them (FI_MORE).
        const MORE = 1 << 1;
        /// Start only after every earlier operation to the same peer has completed (FI_FENCE). Operations of groups are
        /// not directed at one peer: fences do not wait for them, and they do not wait for fences.
        const FENCE = 1 << 2;
        /// The buffer may be reused when the call returns (FI_INJECT). The length is at most `INJECT_LIMIT` bytes.
        const INJECT = 1 << 3;
        /// Complete when the peer's transport has received the message (FI_TRANSMIT_COMPLETE). This is the default.
        const TRANSMIT_COMPLETE = 1 << 4;
        /// Complete when the message is in the peer application's buffer (FI_DELIVERY_COMPLETE).
        const DELIVERY_COMPLETE = 1 << 5;
        /// Complete when the peer has matched the message with a receive (FI_MATCH_COMPLETE).
        const MATCH_COMPLETE = 1 << 6;
        /// The receive accepts messages until its buffer has less free space than the endpoint's minimum
        /// (FI_MULTI_RECV).
        const MULTI_RECEIVE = 1 << 7;
        /// Check whether a matching message has arrived, without receiving it (FI_PEEK).
        const PEEK = 1 << 8;
        /// With `PEEK`: keep the message for a later receive with `CLAIM` and the same context (FI_CLAIM).
        const CLAIM = 1 << 9;
        /// With `PEEK` or `CLAIM`: discard the message (FI_DISCARD).
        const DISCARD = 1 << 10;
        /// For a send with `data`: the data is the key of a window of the peer. The window must be of type 2 and bound
        /// for this endpoint. The peer invalidates the window before it receives the message. If the key does not
        /// identify such a window, the send fails and the message is not received.
        const INVALIDATE = 1 << 11;
        /// Some of the operation's local memory may belong to a device (FI_HMEM). The available drivers are queried for
        /// each segment. Without this flag all memory is host memory, and no driver is queried.
        const DEVICE = 1 << 12;
    }
}
