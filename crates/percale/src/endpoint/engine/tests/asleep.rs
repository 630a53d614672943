//! Who sleeps is woken by what is no message.

use super::*;

/// Longer than anything here takes.
const LONG: Duration = Duration::from_secs(60);

#[test]
fn cmp_015_who_sleeps_on_the_bell_alone_hears_of_a_connection() {
    let (server, client) = (Station::new("shm"), Station::new("shm"));
    let to_server = client.peer(&server);
    std::thread::scope(|threads| {
        let calling = threads.spawn(move || {
            std::thread::sleep(Duration::from_millis(20)); // The other one sleeps by now.
            client.endpoint.tagged_inject(to_server, 1, &[1; 8]).unwrap();
            client
        });
        let armed = until(&[&server], || {
            server.engine(|engine| {
                let looked = engine.results();
                engine.arm(looked)
            })
        });
        let since = Instant::now();
        while since.elapsed() < LONG && !server.engine(|engine| engine.connector.has_notices()) {
            armed.sleep_on_the_bell(LONG);
        }
        assert!(since.elapsed() < LONG, "nobody woke it");
        server.engine(|engine| engine.disarm(&armed));
        let client = calling.join().unwrap();
        until(&[&server, &client], || server.engine(|engine| engine.core.table(true).holds_any().then_some(())));
    });
}
