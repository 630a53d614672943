use percale::{Counter, Info, Progress, TransportKind};
use std::time::Instant;
fn main() {
    let info = Info::discover().unwrap();
    let domain = info.domain().transport(TransportKind::Shm).progress(Progress::Manual).open().unwrap();
    let n: u64 = std::env::args().nth(1).unwrap().parse().unwrap();
    let rounds: u64 = std::env::args().nth(2).unwrap().parse().unwrap();
    let random = std::env::args().nth(3).is_some();
    let mut thresholds: Vec<u64> = (1..=n).collect();
    if random {
        let mut x = 88172645463325252u64;
        for at in (1..thresholds.len()).rev() {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            thresholds.swap(at, (x % (at as u64 + 1)) as usize);
        }
    }
    let done = Counter::new();
    let (mut q, mut f) = (vec![], vec![]);
    for _ in 0..rounds {
        let trigger = Counter::new();
        let since = Instant::now();
        for &t in &thresholds {
            domain.defer_add(&done, 1, (&trigger, t)).unwrap();
        }
        q.push(since.elapsed().as_nanos() as f64 / n as f64);
        let since = Instant::now();
        trigger.add(n);
        f.push(since.elapsed().as_nanos() as f64 / n as f64);
    }
    q.sort_by(f64::total_cmp);
    f.sort_by(f64::total_cmp);
    println!("queue {:.1} fire {:.1} (least {:.1} {:.1})", q[q.len() / 2], f[f.len() / 2], q[0], f[0]);
}
