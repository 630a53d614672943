//! A region of borrowed memory does not outlive its scope.

fn register(domain: &percale::Domain) {
    let mut bytes = vec![0_u8; 64];
    let kept = domain.scope(|scope| scope.register(&mut bytes, percale::Access::REMOTE_WRITE).unwrap());
    println!("{:?}", kept.remote());
}

fn main() {}
