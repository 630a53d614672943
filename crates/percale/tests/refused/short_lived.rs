//! What is registered in a scope lives longer than the scope.

fn register(domain: &percale::Domain) {
    domain.scope(|scope| {
        let mut bytes = vec![0_u8; 64];
        let region = scope.register(&mut bytes, percale::Access::REMOTE_WRITE);
        drop(region);
    });
}

fn main() {}
