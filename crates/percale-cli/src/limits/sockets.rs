//! The limit of TCP: plain non-blocking sockets with TCP_NODELAY, polled in a loop.
//!
//! The speed depends on the amount of data per write call, on the sizes of the socket buffers, and on the calls: either
//! `writev` and `readv` for header and payload, or `write` and `read` for only the payload, if the receiver knows its
//! length. The best choice depends on the machine and on the message. Therefore every combination is a setting, and the
//! result of the fastest setting is used. Small messages of a stream are combined into writes of the setting's size.

use std::io::{ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

use rustix::net::sockopt::{set_socket_recv_buffer_size, set_socket_send_buffer_size};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, listen, socket_with};

use super::shared::LimitSide;
use crate::channel::watch::{Spin, Watch};
use crate::failure::{Failure, Result};
use crate::pattern::Content;
use crate::round::MessageShape;
use crate::row::{MeasuredOperation, Pattern};
use crate::subject::Subject;

/// The buffer sizes. The first is the default of the kernel.
const BUFFERS: [(Option<usize>, &str); 3] = [(None, "default"), (Some(512 << 10), "512 KiB"), (Some(1 << 20), "1 MiB")];

/// The sizes of one write.
const WRITES: [(usize, &str); 4] =
    [(usize::MAX, "whole"), (32 << 10, "32 KiB"), (64 << 10, "64 KiB"), (256 << 10, "256 KiB")];

/// Below this size, buffer and write sizes make no difference, and streams combine messages.
const SMALL: usize = 16 << 10;

/// The length of requests and answers without data.
const WORD: usize = 8;

/// The length of a header, which contains the length of the payload.
const HEADER: usize = 8;

/// A setting, as indices into the tables above.
#[derive(Clone, Copy, Debug, Default)]
struct Setting {
    buffers: usize,
    write: usize,
    vectored: bool,
}

/// One side of the connections.
#[derive(Debug)]
pub(crate) struct Sockets {
    /// The side of this process. For accesses to memory, the near side sends the requests.
    side: LimitSide,
    /// The listeners, until the other side has connected.
    listeners: Vec<TcpListener>,
    /// The connections, one for each of `BUFFERS`.
    links: Vec<TcpStream>,
    settings: Vec<Setting>,
    now: Setting,
    source: Vec<u8>,
    target: Vec<u8>,
    /// Small messages of a stream that are not yet written, or not yet processed.
    gathered: Vec<u8>,
    taken: usize,
}

fn socket(address: SocketAddr, buffers: Option<usize>) -> Result<std::os::fd::OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let made = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None).and_then(|socket| {
        if let Some(bytes) = buffers {
            // The sizes must be set before connecting, because TCP negotiates the window scale then.
            set_socket_send_buffer_size(&socket, bytes)?;
            set_socket_recv_buffer_size(&socket, bytes)?;
        }
        Ok(socket)
    });
    made.map_err(Failure::system("making a TCP socket"))
}

impl Sockets {
    fn with(side: LimitSide, listeners: Vec<TcpListener>, links: Vec<TcpStream>) -> Self {
        Self {
            side,
            listeners,
            links,
            settings: vec![Setting::default()],
            now: Setting::default(),
            source: Vec::new(),
            target: Vec::new(),
            gathered: Vec::new(),
            taken: 0,
        }
    }

    /// Makes the side that listens on loopback. Returns it and its addresses.
    pub(crate) fn listening() -> Result<(Self, String)> {
        let mut listeners = Vec::new();
        let mut addresses = Vec::new();
        for (buffers, _) in BUFFERS {
            let here = crate::loopback::here();
            let socket = socket(here, buffers)?;
            let bound = bind(&socket, &here).and_then(|()| listen(&socket, 1));
            bound.map_err(Failure::system("listening on loopback"))?;
            let listener = TcpListener::from(socket);
            let address = listener.local_addr().map_err(Failure::system("listening on loopback"))?;
            addresses.push(address.to_string());
            listeners.push(listener);
        }
        Ok((Self::with(LimitSide::Far, listeners, Vec::new()), addresses.join(" ")))
    }

    /// Makes the side that connects to the addresses of the other side.
    pub(crate) fn connected(addresses: &str) -> Result<Self> {
        let mut links = Vec::new();
        for ((buffers, _), address) in BUFFERS.iter().zip(addresses.split(' ')) {
            let what = || format!("connecting to {address}");
            let address: SocketAddr = address.parse().map_err(|_| Failure::Protocol(what()))?;
            let socket = socket(address, *buffers)?;
            connect(&socket, &address).map_err(Failure::system(what()))?;
            links.push(Self::prepared(TcpStream::from(socket))?);
        }
        Ok(Self::with(LimitSide::Near, Vec::new(), links))
    }

    fn prepared(link: TcpStream) -> Result<TcpStream> {
        let prepared = link.set_nodelay(true).and_then(|()| link.set_nonblocking(true));
        prepared.map_err(Failure::system("preparing a TCP connection"))?;
        Ok(link)
    }

    /// Returns the maximum number of bytes in one write.
    const fn write_size(&self) -> usize {
        WRITES[self.now.write].0
    }

    /// Retries `call` until the kernel accepts or returns some bytes.
    #[inline]
    fn some(watch: &mut Watch, mut call: impl FnMut() -> std::io::Result<usize>) -> Result<usize> {
        let mut spin = Spin::default();
        loop {
            match call() {
                Ok(0) => return Err(watch.control.check().err().unwrap_or(Failure::PeerEnded)),
                Ok(count) => return Ok(count),
                Err(error) if error.kind() == ErrorKind::WouldBlock => spin.turn(watch)?,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(Failure::system("a TCP connection broke")(error)),
            }
        }
    }

    fn write_all(mut link: &TcpStream, bytes: &[u8], size: usize, watch: &mut Watch) -> Result<()> {
        let mut done = 0;
        while done < bytes.len() {
            let end = bytes.len().min(done.saturating_add(size));
            done += Self::some(watch, || link.write(&bytes[done..end]))?;
        }
        Ok(())
    }

    fn read_all(mut link: &TcpStream, bytes: &mut [u8], watch: &mut Watch) -> Result<()> {
        let mut done = 0;
        while done < bytes.len() {
            done += Self::some(watch, || link.read(&mut bytes[done..]))?;
        }
        Ok(())
    }

    fn write_vectored(mut link: &TcpStream, bytes: &[u8], size: usize, watch: &mut Watch) -> Result<()> {
        let header = (bytes.len() as u64).to_le_bytes();
        let first = bytes.len().min(size);
        let mut done = 0;
        while done < HEADER {
            let vectors = [IoSlice::new(&header[done..]), IoSlice::new(&bytes[..first])];
            done += Self::some(watch, || link.write_vectored(&vectors))?;
        }
        Self::write_all(link, &bytes[done - HEADER..], size, watch)
    }

    fn read_vectored(mut link: &TcpStream, bytes: &mut [u8], watch: &mut Watch) -> Result<()> {
        let mut header = [0; HEADER];
        let mut done = 0;
        while done < HEADER {
            let mut vectors = [IoSliceMut::new(&mut header[done..]), IoSliceMut::new(bytes)];
            done += Self::some(watch, || link.read_vectored(&mut vectors))?;
        }
        if u64::from_le_bytes(header) != bytes.len() as u64 {
            return Err(Failure::Data("the length in a received header differs from the sent length".into()));
        }
        Self::read_all(link, &mut bytes[done - HEADER..], watch)
    }
}

impl Subject for Sockets {
    fn prepare(&mut self, shape: &MessageShape) -> Result<()> {
        for listener in self.listeners.drain(..) {
            let (link, _) = listener.accept().map_err(Failure::system("accepting a connection on loopback"))?;
            self.links.push(Self::prepared(link)?);
        }
        if self.links.len() != BUFFERS.len() {
            return Err(Failure::Protocol("too few connections".into()));
        }
        // A put sends its data to the far side, and a get returns data to the near side. Only a small word is sent in
        // the other direction.
        let (there, back) = match shape.op {
            MeasuredOperation::Put => (shape.bytes, WORD),
            MeasuredOperation::Get => (WORD, shape.bytes),
            _ => (shape.bytes, shape.bytes),
        };
        let (out, into) = if self.side == LimitSide::Near { (there, back) } else { (back, there) };
        (self.source, self.target) = (vec![0; out], vec![0; into]);
        let gathering = shape.op.pattern() == Pattern::Stream && shape.bytes <= SMALL;
        let writes = |&write: &usize| match WRITES[write].0 {
            usize::MAX => !gathering,
            size => gathering || size < shape.bytes,
        };
        let buffers = if shape.bytes <= SMALL && !gathering { 1 } else { BUFFERS.len() };
        self.settings.clear();
        for buffers in 0..buffers {
            for write in (0..WRITES.len()).filter(writes) {
                self.settings.push(Setting { buffers, write, vectored: false });
                if !gathering {
                    self.settings.push(Setting { buffers, write, vectored: true });
                }
            }
        }
        self.choose(0);
        Ok(())
    }

    fn settings(&self) -> Vec<String> {
        let name = |setting: &Setting| {
            let call = if setting.vectored { "header + payload" } else { "payload alone" };
            format!("writes {}, buffers {}, {call}", WRITES[setting.write].1, BUFFERS[setting.buffers].1)
        };
        self.settings.iter().map(name).collect()
    }

    fn choose(&mut self, setting: usize) {
        self.now = self.settings.get(setting).copied().unwrap_or_default();
    }

    #[inline]
    fn write(&mut self, content: Content, _watch: &mut Watch) -> Result<()> {
        content.fill(&mut self.source);
        Ok(())
    }

    #[inline]
    fn send(&mut self, watch: &mut Watch) -> Result<()> {
        let (link, size) = (&self.links[self.now.buffers], self.write_size());
        if self.now.vectored {
            Self::write_vectored(link, &self.source, size, watch)
        } else {
            Self::write_all(link, &self.source, size, watch)
        }
    }

    #[inline]
    fn receive(&mut self, watch: &mut Watch) -> Result<()> {
        let link = &self.links[self.now.buffers];
        if self.now.vectored {
            Self::read_vectored(link, &mut self.target, watch)
        } else {
            Self::read_all(link, &mut self.target, watch)
        }
    }

    #[inline]
    fn check(&mut self, content: Content) -> Result<()> {
        content.check(&self.target)
    }

    fn stream_out(&mut self, _index: u64, content: Content, watch: &mut Watch) -> Result<()> {
        self.write(content, watch)?;
        if self.source.len() > SMALL {
            return self.send(watch);
        }
        self.gathered.extend_from_slice(&self.source);
        if self.gathered.len() + self.source.len() > self.write_size() {
            self.flush(watch)?;
        }
        Ok(())
    }

    fn flush(&mut self, watch: &mut Watch) -> Result<()> {
        Self::write_all(&self.links[self.now.buffers], &self.gathered, usize::MAX, watch)?;
        self.gathered.clear();
        Ok(())
    }

    fn expect_stream(&mut self, _count: u64, _watch: &mut Watch) -> Result<()> {
        self.gathered.clear();
        self.taken = 0;
        Ok(())
    }

    fn stream_in(&mut self, _index: u64, content: Content, watch: &mut Watch) -> Result<()> {
        let len = self.target.len();
        if len > SMALL {
            self.receive(watch)?;
            return self.check(content);
        }
        if self.gathered.len() - self.taken < len {
            // The rest is the beginning of a message. Move it to the front of the buffer and append the bytes that have
            // arrived.
            self.gathered.drain(..self.taken);
            self.taken = 0;
            let mut link = &self.links[self.now.buffers];
            let mut have = self.gathered.len();
            self.gathered.resize(have.max(WRITES[3].0), 0);
            while have < len {
                have += Self::some(watch, || link.read(&mut self.gathered[have..]))?;
            }
            self.gathered.truncate(have);
        }
        let end = self.taken + len;
        content.check(&self.gathered[self.taken..end])?;
        self.taken = end;
        Ok(())
    }

    fn answer(&mut self, watch: &mut Watch) -> Result<()> {
        self.gathered.clear();
        Self::write_all(&self.links[self.now.buffers], &[1], usize::MAX, watch)
    }

    fn await_answer(&mut self, watch: &mut Watch) -> Result<()> {
        Self::read_all(&self.links[self.now.buffers], &mut [0], watch)
    }
}
