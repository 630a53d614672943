#![allow(unsafe_code, missing_docs)]
use percale::trigger::Operation;
use percale::*;
use percale_conformance::memory::Memory;
use std::time::Instant;
#[inline(never)]
fn bump(c: &Counter) {
    c.add(1)
}
#[inline(never)]
fn direct(l: &SharedEndpoint, s: &SendWork) {
    unsafe { l.post_send(s) }.unwrap();
}
fn main() {
    let times: u64 = std::env::args().nth(1).unwrap().parse().unwrap();
    let info = Info::discover().unwrap();
    let domain = info.domain().transport(TransportKind::Shm).progress(Progress::Manual).open().unwrap();
    let vector = domain.address_vector().build().unwrap();
    let bind = || domain.endpoint().vector(&vector).bind_shared("127.0.0.1:0").unwrap();
    let (left, right) = (bind(), bind());
    let peer = vector.insert(right.address()).unwrap();
    let memory = Memory::of(&[7; 8]);
    let trigger = Counter::new();
    let flags = OpFlags::empty();
    let work = SendWork { peer, segments: memory.segments(), tag: Some(0), data: None, context: 0, flags };
    let send = Operation::Send(work);
    let mut sent = vec![];
    let mut dir = vec![];
    for round in 0..times {
        for way in 0..2 {
            let receive = right.tagged_recv(0, 0, vec![0; 8]).start().unwrap();
            if way == 0 {
                unsafe { left.post_when(&send, &trigger, round + 1) }.unwrap();
                let since = Instant::now();
                bump(&trigger);
                sent.push(since.elapsed().as_nanos() as f64);
            } else {
                let since = Instant::now();
                direct(&left, &work);
                dir.push(since.elapsed().as_nanos() as f64);
            }
            while !receive.is_ready() {
                left.progress();
            }
            drop(receive.wait().unwrap());
        }
    }
    sent.sort_by(f64::total_cmp);
    dir.sort_by(f64::total_cmp);
    println!("fired {:.0} direct {:.0}", sent[sent.len() / 2], dir[dir.len() / 2]);
}
