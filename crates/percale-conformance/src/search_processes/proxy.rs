//! Proxies in front of endpoints, which delay data and reset connections.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::random::Random;

/// The proxies of a round. They stop accepting connections when this value is dropped.
#[derive(Debug, Default)]
pub(super) struct Proxies {
    over: Arc<AtomicBool>,
}

impl Proxies {
    /// Starts a proxy for the endpoint at this port. Returns the port of the proxy.
    pub(super) fn before(&self, port: u16, seed: u64) -> Option<u16> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).ok()?;
        listener.set_nonblocking(true).ok()?;
        let own = listener.local_addr().ok()?.port();
        let (over, mut random) = (Arc::clone(&self.over), Random::new(seed));
        std::thread::spawn(move || {
            while !over.load(Ordering::Relaxed) {
                match listener.accept() {
                    Ok((stream, _)) => drop(pass(stream, port, random.next())),
                    Err(_) => std::thread::sleep(Duration::from_millis(5)),
                }
            }
        });
        Some(own)
    }
}

impl Drop for Proxies {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
    }
}

/// Connects to the endpoint, and forwards data in both directions until one side closes its connection.
fn pass(caller: TcpStream, port: u16, seed: u64) -> std::io::Result<()> {
    caller.set_nonblocking(false)?;
    let called = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    for stream in [&caller, &called] {
        stream.set_nodelay(true)?;
    }
    let ways = [(caller.try_clone()?, called.try_clone()?), (called, caller)];
    for (way, (from, to)) in ways.into_iter().enumerate() {
        let random = Random::new(seed ^ way as u64);
        std::thread::spawn(move || carry(&from, &to, random));
    }
    Ok(())
}

/// Forwards data in one direction of a connection.
fn carry(mut from: &TcpStream, mut to: &TcpStream, mut random: Random) {
    let mut bytes = [0; 8192];
    loop {
        let most = 1 + random.below(bytes.len());
        let Ok(count) = from.read(&mut bytes[..most]) else { break };
        if random.below(300) == 0 {
            std::thread::sleep(Duration::from_millis(random.below(2000) as u64));
        }
        if random.below(3000) == 0 {
            super::ignored(rustix::net::connect_unspec(from));
            super::ignored(rustix::net::connect_unspec(to));
            break;
        }
        if count == 0 || to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    // This also ends the other direction.
    drop(to.shutdown(Shutdown::Both));
    drop(from.shutdown(Shutdown::Both));
}
