//! Within a scope nobody else touches the memory.

fn register(domain: &percale::Domain) {
    let mut bytes = vec![0_u8; 64];
    domain.scope(|scope| {
        let region = scope.register(&mut bytes, percale::Access::REMOTE_WRITE);
        bytes[0] = 1;
        drop(region);
    });
}

fn main() {}
