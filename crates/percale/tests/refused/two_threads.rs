//! An endpoint without a lock has one user at a time.

fn share(endpoint: &percale::Endpoint) {
    std::thread::scope(|threads| {
        threads.spawn(|| endpoint.progress());
    });
}

fn main() {}
