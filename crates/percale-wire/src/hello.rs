//! The messages that two endpoints exchange before a connection is established.
//!
//! They are sent over TCP. The messages are `Hello` →, ← `Hello`, then with an authorization key `Proof` →, then ←
//! `Verdict`, then `Commit` → unless the two endpoints met over shared memory (see [`meeting`](super::meeting)). For
//! verbs both sides send the identities of their queue pairs before the `Commit` ([`queue_pair`](super::queue_pair)).
//!
//! Every frame has a fixed size, so a reader takes exactly its bytes from the stream. The first [`PREFIX_BYTES`] of a
//! hello have the same layout in every version, so that two versions can recognize each other.

use std::fmt;
use std::net::SocketAddr;

use bitflags::bitflags;
use hmac_sha256::Hash as Sha256;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::address::AddressBytes;
use super::refusal_reason::RefusalReason;
use percale_memory::short_debug;
use percale_memory::system::random::random;

pub use super::malformed::{Malformed, VERSION};

/// The first bytes of every hello.
const MAGIC: [u8; 8] = *b"percale\0";

/// The incarnation of an endpoint, which consists of 128 random bits that are generated when the endpoint opens. An
/// endpoint with another incarnation is another peer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Incarnation(pub [u8; 16]);

impl Incarnation {
    /// Creates a new incarnation.
    ///
    /// # Errors
    /// If the kernel does not provide random bytes.
    pub fn random() -> std::io::Result<Self> {
        random().map(Self)
    }

    /// Returns the name of the abstract Unix socket at which this endpoint meets local peers.
    #[must_use]
    pub fn socket_name(&self) -> String {
        format!("percale-{self}")
    }
}

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Incarnation {
    /// Does not print the value, because processes that know it can find the endpoint's socket.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Incarnation")
    }
}

/// Identifies one connection. The side that accepts the connection creates the token. The initiator presents it at the
/// meeting, and a reset contains it.
pub type Token = [u8; 16];

bitflags! {
    /// The capabilities and requests of an endpoint.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct HelloFlags: u32 {
        /// The endpoint may use shared memory.
        const SHM = 1;
        /// The endpoint may use TCP.
        const TCP = 2;
        /// The endpoint has an authorization key and requires one.
        const AUTHORIZATION = 4;
        /// The endpoint no longer has the connection in `reset`, and the peer must drop it.
        const RESET = 8;
        /// The endpoint may use verbs, because it has an active port.
        const VERBS = 16;
        /// The call does not request a connection, but queries one (see [`Ruling::Known`]).
        const PROBE = 32;
    }
}

/// The part of a hello that is the same in all versions.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Prefix {
    magic: [u8; 8],
    version: U16,
    size: U16,
    flags: U32,
}

/// The size of a [`Prefix`] in bytes.
pub const PREFIX_BYTES: usize = size_of::<Prefix>();

/// The wire representation of a hello.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct HelloBytes {
    prefix: Prefix,
    boot: [u8; 16],
    namespace_device: U64,
    namespace_inode: U64,
    user: U32,
    wanted: U16,
    context: U16,
    address: AddressBytes,
    called: AddressBytes,
    incarnation: [u8; 16],
    reset: Token,
    nonce: [u8; 32],
}

// Nonces, tokens and MACs are secrets.
short_debug!(HelloBytes, "HelloBytes");
short_debug!(Hello, "Hello", address: |this| this.address, called: |this| this.called, flags: |this| this.flags);
short_debug!(Proof, "Proof");
short_debug!(Verdict, "Verdict", ruling: |this| this.ruling, why: |this| this.why);
short_debug!(VerdictBytes, "VerdictBytes");

/// The size of a hello of this version in bytes.
pub const HELLO_BYTES: usize = size_of::<HelloBytes>();

impl Prefix {
    /// Checks the start of a hello, and returns its flags.
    ///
    /// # Errors
    /// If it belongs to another protocol or version.
    pub fn check(&self) -> Result<HelloFlags, Malformed> {
        if self.magic != MAGIC {
            return Err(Malformed::Magic);
        }
        if self.version.get() != VERSION {
            return Err(Malformed::Version(self.version.get()));
        }
        if usize::from(self.size.get()) != HELLO_BYTES {
            return Err(Malformed::Field("the hello has a wrong size"));
        }
        HelloFlags::from_bits(self.flags.get()).ok_or(Malformed::Field("the hello has unknown flags"))
    }
}

/// The host, network namespace and user of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostIdentity {
    /// The kernel's boot id. It is all zero if it is unknown. In this case it does not match any other.
    pub boot: [u8; 16],
    /// The device and inode numbers of the network namespace.
    pub namespace: (u64, u64),
    /// The effective user id, as seen by that process.
    pub user: u32,
}

impl HostIdentity {
    /// Returns whether both are on the same running kernel.
    #[must_use]
    #[inline]
    pub fn same_host(&self, other: &Self) -> bool {
        self.boot == other.boot && self.boot != [0; 16]
    }

    /// Returns whether both are on the same running kernel and in the same network namespace.
    #[must_use]
    #[inline]
    pub fn same_network(&self, other: &Self) -> bool {
        self.same_host(other) && self.namespace == other.namespace && self.namespace != (0, 0)
    }
}

/// The identity of an endpoint, as plain values.
#[derive(Clone, PartialEq, Eq)]
pub struct Hello {
    /// Its capabilities and requests.
    pub flags: HelloFlags,
    /// Its host, network namespace and user.
    pub place: HostIdentity,
    /// The address that it advertises.
    pub address: SocketAddr,
    /// The address that was called. For the initiator this is the address that it used, and for the acceptor the local
    /// address of its socket. They are equal unless addresses are translated on the way.
    pub called: SocketAddr,
    /// The number of the context at that address, or 0 if there is only one.
    pub context: u16,
    /// The number of the context at the called address that the initiator requests.
    pub wanted: u16,
    /// The incarnation of the endpoint.
    pub incarnation: Incarnation,
    /// With [`HelloFlags::RESET`], the connection that the endpoint no longer has. With [`HelloFlags::PROBE`], the call
    /// that is queried ([`name_of_call`]), or zero if the established connection is queried.
    pub reset: Token,
    /// A random number that makes the proofs of this connection invalid for all others.
    pub nonce: [u8; 32],
}

impl HelloBytes {
    /// Returns the number of the requested context of the called address. Any value is possible.
    #[must_use]
    #[inline]
    pub const fn wanted(&self) -> u16 {
        self.wanted.get()
    }

    /// Returns whether both sides of a call have the same called address.
    #[must_use]
    #[inline]
    pub fn same_call(&self, other: &Self) -> bool {
        self.called.as_bytes() == other.called.as_bytes()
    }

    /// Returns the value that distinguishes the call from all others.
    #[must_use]
    #[inline]
    pub const fn nonce(&self) -> &[u8; 32] {
        &self.nonce
    }

    /// Returns whether the call only queries a connection.
    #[must_use]
    #[inline]
    pub const fn probes(&self) -> bool {
        self.prefix.flags.get() & HelloFlags::PROBE.bits() != 0
    }
}

/// Returns the name of a call. It is computed from the nonce in its hello and the address that was called. Only a call
/// that reached this address has this name.
#[must_use]
#[inline]
pub fn name_of_call(nonce: &[u8; 32], called: SocketAddr) -> Token {
    digest(&[b"percale call", nonce, AddressBytes::of(called).as_bytes()])
}

/// Returns the proof, for the other end of a connection, that this end still has the connection. It is computed from
/// the connection's token, which no third endpoint has, and from both nonces of the call that queries the connection.
#[must_use]
#[inline]
pub fn proof_of_holding(token: &Token, asking: &[u8; 32], queried: &[u8; 32]) -> Token {
    digest(&[b"percale held", token, asking, queried])
}

fn digest(parts: &[&[u8]]) -> Token {
    let mut hash = Sha256::new();
    parts.iter().for_each(|part| hash.update(part));
    let mut token = Token::default();
    token.copy_from_slice(&hash.finalize()[..16]);
    token
}

impl Hello {
    /// Returns the wire representation.
    #[must_use]
    pub fn to_bytes(&self) -> HelloBytes {
        HelloBytes {
            prefix: Prefix {
                magic: MAGIC,
                version: U16::new(VERSION),
                size: U16::new(HELLO_BYTES as u16),
                flags: U32::new(self.flags.bits()),
            },
            boot: self.place.boot,
            namespace_device: U64::new(self.place.namespace.0),
            namespace_inode: U64::new(self.place.namespace.1),
            user: U32::new(self.place.user),
            wanted: U16::new(self.wanted),
            context: U16::new(self.context),
            address: AddressBytes::of(self.address),
            called: AddressBytes::of(self.called),
            incarnation: self.incarnation.0,
            reset: self.reset,
            nonce: self.nonce,
        }
    }

    /// Parses the wire representation.
    ///
    /// # Errors
    /// If a field has an invalid value.
    pub fn from_bytes(bytes: &HelloBytes) -> Result<Self, Malformed> {
        let flags = bytes.prefix.check()?;
        let names_a_call = flags.intersects(HelloFlags::RESET | HelloFlags::PROBE);
        if flags.contains(HelloFlags::RESET | HelloFlags::PROBE) || (bytes.reset != Token::default() && !names_a_call) {
            return Err(Malformed::Field("the hello names a connection without a purpose"));
        }
        let (address, called) = (bytes.address.parse()?, bytes.called.parse()?);
        Ok(Self {
            flags,
            place: HostIdentity {
                boot: bytes.boot,
                namespace: (bytes.namespace_device.get(), bytes.namespace_inode.get()),
                user: bytes.user.get(),
            },
            address,
            called,
            context: bytes.context.get(),
            wanted: bytes.wanted.get(),
            incarnation: Incarnation(bytes.incarnation),
            reset: bytes.reset,
            nonce: bytes.nonce,
        })
    }
}

/// The initiator's proof that it has the authorization key.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Proof {
    /// HMAC-SHA-256 over the role and both hellos.
    pub mac: [u8; 32],
}

/// The acceptor's answer to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ruling {
    /// Continue over this socket.
    Tcp,
    /// Continue by meeting at the Unix socket with the acceptor's incarnation in its name.
    Shm,
    /// Continue by connecting queue pairs.
    Verbs,
    /// The token identifies the connection that the acceptor already has with this incarnation.
    Duplicate,
    /// Another connection between the two endpoints is being made. The initiator waits for it.
    Busy,
    /// The call is refused.
    Refuse,
    /// The answer to a probe: the call belongs to this endpoint, or the endpoint has the connection (in this case the
    /// token is [`proof_of_holding`]).
    Known,
}

/// The acceptor's verdict, as plain values.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Verdict {
    /// The ruling.
    pub ruling: Ruling,
    /// The reason.
    pub why: RefusalReason,
    /// The token of the connection.
    pub token: Token,
}

/// The wire representation of a verdict. The MAC covers both hellos and the verdict itself. It is zero if no key is
/// used.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct VerdictBytes {
    ruling: u8,
    why: u8,
    reserved: [u8; 6],
    token: Token,
    /// HMAC-SHA-256 over the role, both hellos and [`VerdictBytes::covered`].
    pub mac: [u8; 32],
}

impl VerdictBytes {
    /// Returns the bytes that the MAC covers.
    #[must_use]
    #[inline]
    pub fn covered(&self) -> &[u8] {
        &self.as_bytes()[..24]
    }
}

impl Verdict {
    /// Returns the wire representation, without the MAC.
    #[must_use]
    pub fn to_bytes(&self) -> VerdictBytes {
        let ruling = match self.ruling {
            Ruling::Tcp => 1,
            Ruling::Shm => 2,
            Ruling::Duplicate => 3,
            Ruling::Busy => 4,
            Ruling::Refuse => 5,
            Ruling::Verbs => 6,
            Ruling::Known => 7,
        };
        VerdictBytes { ruling, why: self.why as u8, reserved: [0; 6], token: self.token, mac: [0; 32] }
    }

    /// Parses the wire representation, without the MAC.
    ///
    /// # Errors
    /// If a field has an invalid value.
    pub fn from_bytes(bytes: &VerdictBytes) -> Result<Self, Malformed> {
        let ruling = match bytes.ruling {
            1 => Ruling::Tcp,
            2 => Ruling::Shm,
            3 => Ruling::Duplicate,
            4 => Ruling::Busy,
            5 => Ruling::Refuse,
            6 => Ruling::Verbs,
            7 => Ruling::Known,
            _ => return Err(Malformed::Field("unknown verdict")),
        };
        let why = RefusalReason::from_u8(bytes.why).ok_or(Malformed::Field("unknown reason in the verdict"))?;
        if bytes.reserved != [0; 6] {
            return Err(Malformed::Field("reserved bytes of the verdict are not zero"));
        }
        Ok(Self { ruling, why, token: bytes.token })
    }
}

/// The initiator's last message over TCP, with the kind of the connection. It is sent unless the meeting succeeded.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CommitBytes {
    choice: u8,
    why: u8,
    reserved: [u8; 2],
    errno: U32,
}

/// The kind of a connection, in the initiator's last message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionChoice {
    /// There is no connection.
    Nothing,
    /// This socket is the connection.
    Tcp,
    /// The queue pairs are the connection. The socket only signals the end of the peer.
    Verbs,
}

/// The initiator's last message over TCP, as plain values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Commit {
    /// The kind of the connection.
    pub choice: ConnectionChoice,
    /// The reason.
    pub why: RefusalReason,
    /// The kernel's error number, or 0.
    pub errno: u32,
}

impl Commit {
    /// Returns the wire representation.
    #[must_use]
    #[inline]
    pub fn to_bytes(&self) -> CommitBytes {
        let choice = match self.choice {
            ConnectionChoice::Nothing => 0,
            ConnectionChoice::Tcp => 1,
            ConnectionChoice::Verbs => 2,
        };
        CommitBytes { choice, why: self.why as u8, reserved: [0; 2], errno: U32::new(self.errno) }
    }

    /// Parses the wire representation.
    ///
    /// # Errors
    /// If a field has an invalid value.
    pub fn from_bytes(bytes: &CommitBytes) -> Result<Self, Malformed> {
        let why = RefusalReason::from_u8(bytes.why).ok_or(Malformed::Field("unknown reason in the commit"))?;
        let choice = match bytes.choice {
            0 => ConnectionChoice::Nothing,
            1 => ConnectionChoice::Tcp,
            2 => ConnectionChoice::Verbs,
            _ => return Err(Malformed::Field("unknown transport in the commit")),
        };
        if bytes.reserved != [0; 2] {
            return Err(Malformed::Field("reserved bytes of the commit are not zero"));
        }
        Ok(Self { choice, why, errno: bytes.errno.get() })
    }
}

#[cfg(test)]
#[path = "hello_tests.rs"]
mod tests;
