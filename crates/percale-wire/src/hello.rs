//! The messages that two endpoints exchange before a connection stands.
//!
//! Over TCP, the authority: `Hello` → ← `Hello`, then with an authorization key `Proof` →, then ← `Verdict`, then
//! `Commit` → unless the two met over shared memory (see [`meeting`](super::meeting)). For verbs both name their queue pairs
//! before that ([`queue_pair`](super::queue_pair)).
//!
//! Every frame has a fixed size, so a reader takes exactly its bytes from the stream and never a byte of what follows. The first [`PREFIX_BYTES`] of
//! a hello keep their place in every version, so that two versions can recognize each other.

use std::fmt;
use std::net::SocketAddr;

use bitflags::bitflags;
use hmac_sha256::Hash as Sha256;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::address::AddressBytes;
use super::why::Why;
use percale_memory::short_debug;
use percale_memory::system::random::random;

pub use super::malformed::{Malformed, VERSION};

/// Stands first in every hello.
const MAGIC: [u8; 8] = *b"percale\0";

/// One life of one endpoint: 128 random bits, made when it opens. An endpoint with another incarnation is another peer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Incarnation(pub [u8; 16]);

impl Incarnation {
    /// A new one.
    ///
    /// # Errors
    /// If the kernel has no random bytes to give.
    pub fn random() -> std::io::Result<Self> {
        random().map(Self)
    }

    /// The name of the abstract Unix socket at which this endpoint meets local peers.
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
    /// Without the value: processes that know it can find the endpoint's socket.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Incarnation")
    }
}

/// Names one connection: made by the side that accepts it, presented at the meeting, and named by a reset.
pub type Token = [u8; 16];

bitflags! {
    /// What an endpoint can and wants to do.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct HelloFlags: u32 {
        /// It may use shared memory.
        const SHM = 1;
        /// It may use TCP.
        const TCP = 2;
        /// It has an authorization key and demands one.
        const AUTHORIZATION = 4;
        /// It no longer has the connection that `reset` names: the peer is to drop that one.
        const RESET = 8;
        /// It may use verbs: it has a port that carries traffic.
        const VERBS = 16;
        /// It asks for no connection, but about one: see [`Ruling::Known`].
        const PROBE = 32;
    }
}

/// What does not change from version to version.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Prefix {
    magic: [u8; 8],
    version: U16,
    size: U16,
    flags: U32,
}

/// Bytes of a [`Prefix`].
pub const PREFIX_BYTES: usize = size_of::<Prefix>();

/// A hello as it travels.
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

/// Bytes of a hello of this version.
pub const HELLO_BYTES: usize = size_of::<HelloBytes>();

impl Prefix {
    /// Checks what stands first in a hello, and returns the flags that it carries.
    ///
    /// # Errors
    /// If another protocol or version wrote it.
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

/// Which host, network namespace and user an endpoint lives in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The kernel's boot id; all zero if unknown, and then equal to no other.
    pub boot: [u8; 16],
    /// Device and inode of the network namespace.
    pub namespace: (u64, u64),
    /// The effective user, as that process sees itself.
    pub user: u32,
}

impl Place {
    /// Returns whether both are on one running kernel.
    #[must_use]
    #[inline]
    pub fn same_host(&self, other: &Self) -> bool {
        self.boot == other.boot && self.boot != [0; 16]
    }

    /// Returns whether both are on one running kernel and in one network namespace.
    #[must_use]
    #[inline]
    pub fn same_network(&self, other: &Self) -> bool {
        self.same_host(other) && self.namespace == other.namespace && self.namespace != (0, 0)
    }
}

/// The identity of an endpoint, as plain values.
#[derive(Clone, PartialEq, Eq)]
pub struct Hello {
    /// What it can and wants.
    pub flags: HelloFlags,
    /// Where it lives.
    pub place: Place,
    /// The address that it advertises.
    pub address: SocketAddr,
    /// The address that was called: as the initiator named it, or as the acceptor's socket has it. Where nothing translates addresses
    /// on the way, both are the same.
    pub called: SocketAddr,
    /// Which context of that address it is; 0 where there is only one.
    pub context: u16,
    /// The initiator's: which context it wants of the address that it called.
    pub wanted: u16,
    /// Which life of which endpoint it is.
    pub incarnation: Incarnation,
    /// With [`HelloFlags::RESET`]: the connection that it has no more. With [`HelloFlags::PROBE`]: the call that is asked about
    /// ([`name_of_call`]), or zero if it is about the connection that stands.
    pub reset: Token,
    /// Makes the proofs of this connection good for no other.
    pub nonce: [u8; 32],
}

impl HelloBytes {
    /// Which context of the called address is wanted; any number may be.
    #[must_use]
    #[inline]
    pub const fn wanted(&self) -> u16 {
        self.wanted.get()
    }

    /// Returns whether both sides of a call have the same address for it.
    #[must_use]
    #[inline]
    pub fn same_call(&self, other: &Self) -> bool {
        self.called.as_bytes() == other.called.as_bytes()
    }

    /// What makes the call different from all others.
    #[must_use]
    #[inline]
    pub const fn nonce(&self) -> &[u8; 32] {
        &self.nonce
    }

    /// Returns whether it only asks about a connection.
    #[must_use]
    #[inline]
    pub const fn probes(&self) -> bool {
        self.prefix.flags.get() & HelloFlags::PROBE.bits() != 0
    }
}

/// The name of a call: of the nonce in its hello, and the address that it went to. Only a call that reached this address has it.
#[must_use]
#[inline]
pub fn name_of_call(nonce: &[u8; 32], called: SocketAddr) -> Token {
    digest(&[b"percale call", nonce, AddressBytes::of(called).as_bytes()])
}

/// The proof, for the other end of a connection, that this end is held too: made of the connection's token, which no third endpoint knows, and of
/// both nonces of the call that asks.
#[must_use]
#[inline]
pub fn proof_of_holding(token: &Token, asking: &[u8; 32], asked: &[u8; 32]) -> Token {
    digest(&[b"percale held", token, asking, asked])
}

fn digest(parts: &[&[u8]]) -> Token {
    let mut hash = Sha256::new();
    parts.iter().for_each(|part| hash.update(part));
    let mut token = Token::default();
    token.copy_from_slice(&hash.finalize()[..16]);
    token
}

impl Hello {
    /// The hello as it travels.
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
        let (address, called) = (bytes.address.parse()?, bytes.called.parse()?);
        Ok(Self {
            flags,
            place: Place {
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

/// The initiator's proof that it knows the authorization key.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Proof {
    /// HMAC-SHA-256 over role and both hellos.
    pub mac: [u8; 32],
}

/// The acceptor's answer to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ruling {
    /// Go on, over this very socket.
    Tcp,
    /// Go on, and meet at the Unix socket named by the acceptor's incarnation.
    Shm,
    /// Go on, and connect queue pairs.
    Verbs,
    /// The token names the connection that the acceptor already has with this incarnation.
    Duplicate,
    /// Another connection between the two is being made: wait for it.
    Busy,
    /// No.
    Refuse,
    /// To a probe: the call is one of this endpoint's, or (the token is [`proof_of_holding`]) it holds the connection.
    Known,
}

/// The acceptor's verdict, as plain values.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Verdict {
    /// The ruling.
    pub ruling: Ruling,
    /// The reason.
    pub why: Why,
    /// The connection's name.
    pub token: Token,
}

/// A verdict as it travels. The MAC covers both hellos and the verdict itself; it is zero where no key is used.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct VerdictBytes {
    ruling: u8,
    why: u8,
    reserved: [u8; 6],
    token: Token,
    /// HMAC-SHA-256 over role, both hellos and [`VerdictBytes::covered`].
    pub mac: [u8; 32],
}

impl VerdictBytes {
    /// The bytes that the MAC covers.
    #[must_use]
    #[inline]
    pub fn covered(&self) -> &[u8] {
        &self.as_bytes()[..24]
    }
}

impl Verdict {
    /// The verdict as it travels, its MAC still empty.
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

    /// Parses the wire representation (not the MAC).
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
            _ => return Err(Malformed::Field("the verdict is unknown")),
        };
        let why = Why::from_u8(bytes.why).ok_or(Malformed::Field("the verdict's reason is unknown"))?;
        if bytes.reserved != [0; 6] {
            return Err(Malformed::Field("the verdict has bytes where none belong"));
        }
        Ok(Self { ruling, why, token: bytes.token })
    }
}

/// The initiator's last word over TCP: what the connection is (sent unless the meeting succeeded).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CommitBytes {
    choice: u8,
    why: u8,
    reserved: [u8; 2],
    errno: U32,
}

/// What a connection is, in the initiator's last word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// There is none.
    Nothing,
    /// This very socket.
    Tcp,
    /// The queue pairs; the socket only signals the end of the peer.
    Verbs,
}

/// The initiator's last word over TCP, as plain values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Commit {
    /// What the connection is from now on.
    pub choice: Choice,
    /// The reason.
    pub why: Why,
    /// The kernel's error number, or 0.
    pub errno: u32,
}

impl Commit {
    /// Returns the wire representation.
    #[must_use]
    #[inline]
    pub fn to_bytes(&self) -> CommitBytes {
        let choice = match self.choice {
            Choice::Nothing => 0,
            Choice::Tcp => 1,
            Choice::Verbs => 2,
        };
        CommitBytes { choice, why: self.why as u8, reserved: [0; 2], errno: U32::new(self.errno) }
    }

    /// Parses the wire representation.
    ///
    /// # Errors
    /// If a field has an invalid value.
    pub fn from_bytes(bytes: &CommitBytes) -> Result<Self, Malformed> {
        let why = Why::from_u8(bytes.why).ok_or(Malformed::Field("the commit's reason is unknown"))?;
        let choice = match bytes.choice {
            0 => Choice::Nothing,
            1 => Choice::Tcp,
            2 => Choice::Verbs,
            _ => return Err(Malformed::Field("the commit's choice is unknown")),
        };
        if bytes.reserved != [0; 2] {
            return Err(Malformed::Field("the commit has bytes where none belong"));
        }
        Ok(Self { choice, why, errno: bytes.errno.get() })
    }
}

#[cfg(test)]
#[path = "hello_tests.rs"]
mod tests;
