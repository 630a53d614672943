//! A stranger at the address of a peer that has ended. It accepts connections intended for the peer.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use percale_wire::hello::{HELLO_BYTES, Hello, HelloBytes, Ruling, Verdict};
use percale_wire::refusal_reason::RefusalReason;
use zerocopy::{FromBytes, IntoBytes};

use super::stranger::{own, reset};
use crate::random::Random;

/// Listens at this port for a while, if it is free, and sends random answers.
pub(super) fn stay(port: u16, seed: u64) {
    let mut random = Random::new(seed);
    let Ok(listener) = TcpListener::bind((Ipv4Addr::LOCALHOST, port)) else { return };
    if listener.set_nonblocking(true).is_err() {
        return;
    }
    let until = Instant::now() + Duration::from_millis(200 + random.below(3000) as u64);
    let mut held = Vec::new();
    while Instant::now() < until {
        match listener.accept() {
            Ok((stream, _)) => held.extend(answer(stream, port, &mut random)),
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
    if random.below(2) == 0 {
        held.iter().for_each(reset);
    }
}

/// Answers a connection request. Returns the connection if it must stay open.
fn answer(mut stream: TcpStream, port: u16, random: &mut Random) -> Option<TcpStream> {
    match random.below(5) {
        0 => return None,
        1 => return Some(stream),
        _ => {}
    }
    stream.set_nonblocking(false).ok()?;
    stream.set_read_timeout(Some(Duration::from_millis(300))).ok()?;
    stream.set_write_timeout(Some(Duration::from_millis(300))).ok()?;
    let mut bytes = [0; HELLO_BYTES];
    stream.read_exact(&mut bytes).ok()?;
    let theirs = Hello::from_bytes(&HelloBytes::read_from_bytes(&bytes).ok()?).ok()?;
    let mut hello = own(random, (Ipv4Addr::LOCALHOST, port).into());
    if random.below(4) == 0 {
        // Send the caller's own identity.
        (hello.incarnation, hello.place) = (theirs.incarnation, theirs.place);
    }
    stream.write_all(hello.to_bytes().as_bytes()).ok()?;
    let rulings = [Ruling::Tcp, Ruling::Tcp, Ruling::Tcp, Ruling::Duplicate, Ruling::Busy, Ruling::Shm, Ruling::Known];
    let ruling = rulings[random.below(rulings.len())];
    let mut token = [0; 16];
    random.fill(&mut token);
    let verdict = Verdict { ruling, why: RefusalReason::AnotherHost, token };
    stream.write_all(verdict.to_bytes().as_bytes()).ok()?;
    // Read the first messages without acknowledging any.
    for _ in 0..random.below(4) {
        if !stream.read(&mut [0; 4096]).is_ok_and(|count| count > 0) {
            break;
        }
    }
    Some(stream)
}
