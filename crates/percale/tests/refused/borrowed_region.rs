//! A region outside of a scope owns its memory: forgetting it would end a borrow while peers still write.

fn register(domain: &percale::Domain) {
    let mut bytes = vec![0_u8; 64];
    let region = domain.register(&mut bytes[..], percale::Access::REMOTE_WRITE);
    std::mem::forget(region);
    bytes[0] = 1;
}

fn main() {}
