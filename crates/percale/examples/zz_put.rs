#![allow(unsafe_code)]
use percale::*;
use std::time::Instant;
fn main() {
    let domain = Info::discover().unwrap().domain().transport(TransportKind::Shm).open().unwrap();
    let vector = domain.address_vector().build().unwrap();
    let bind = || domain.endpoint().vector(&vector).bind("127.0.0.1:0").unwrap();
    let (a, b) = (bind(), bind());
    let peer = vector.insert(b.address()).unwrap();
    let region =
        domain.register(domain.allocate(1 << 20).unwrap(), Access::REMOTE_READ | Access::REMOTE_WRITE).unwrap();
    let src = vec![7u8; 1 << 20].leak();
    for len in [8usize, 64, 4096, 65536, 1 << 20] {
        let seg = Segments::one(unsafe { Segment::new(src.as_mut_ptr(), len) });
        let work = RmaWork {
            peer,
            local: seg,
            remote: RemotePieces::one(region.remote().slice(0..len as u64)),
            data: None,
            context: 1,
            flags: OpFlags::COMPLETION,
        };
        let mut e = [Entry::default(); 4];
        for op in ["put", "get"] {
            let n = if len <= 4096 { 200_000 } else { 2000 };
            let mut best = f64::MAX;
            for _ in 0..10 {
                let t = Instant::now();
                for _ in 0..n {
                    unsafe { if op == "put" { a.post_write(&work) } else { a.post_read(&work) } }.unwrap();
                    while a.poll(&mut e).unwrap() == 0 {
                        b.progress();
                    }
                }
                best = best.min(t.elapsed().as_nanos() as f64 / n as f64);
            }
            println!("{op} {len}: {best:.1} ns");
        }
    }
}
