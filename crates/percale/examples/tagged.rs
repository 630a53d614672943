//! Receives select messages by tag, in any order of arrival. The endpoint sends to itself.
//!
//! `cargo run -p percale --example tagged`

use std::error::Error;

use percale::Info;

/// The application defines the meaning of tags. Here the upper half is the kind of a message, and the lower half is a
/// number.
const ORDER: u64 = 1 << 32;
const ALARM: u64 = 2 << 32;
/// A mask that ignores the number.
const ANY_NUMBER: u64 = u32::MAX as u64;

fn main() -> Result<(), Box<dyn Error>> {
    let domain = Info::discover()?.best()?.open()?;
    let vector = domain.address_vector().build()?;
    let endpoint = domain.endpoint().vector(&vector).bind("127.0.0.1:0")?;
    let me = vector.insert(endpoint.address())?;

    // Short messages are injected: the buffer can be reused immediately, and no completion is reported.
    endpoint.tagged_inject(me, ORDER | 1, b"first order")?;
    endpoint.tagged_inject(me, ORDER | 2, b"second order")?;
    endpoint.tagged_inject(me, ALARM | 7, b"fire")?;

    // The alarm, with any number, is received first although it was sent last.
    let alarm = endpoint.tagged_recv(ALARM, ANY_NUMBER, vec![0; 64]).wait()?;
    assert_eq!((alarm.tag, alarm.to_vec().as_slice()), (ALARM | 7, b"fire".as_slice()));

    // The first receive selects one particular order, and the second one the oldest order.
    let second = endpoint.tagged_recv(ORDER | 2, 0, vec![0; 64]).wait()?;
    assert_eq!(second.to_vec(), b"second order");
    let any = endpoint.tagged_recv(ORDER, ANY_NUMBER, vec![0; 64]).wait()?;
    assert_eq!(any.to_vec(), b"first order");

    // A receive may also be posted before its message arrives. A long message is then received directly into its
    // buffer.
    let mut receiving = endpoint.tagged_recv(ORDER | 3, 0, vec![0; 1 << 20]).start()?;
    let mut sending = endpoint.tagged_send(me, ORDER | 3, vec![42; 1 << 20]).data(2026).start()?;
    let got = receiving.wait()?;
    sending.wait()?;
    assert_eq!((got.len, got.data), (1 << 20, Some(2026)));
    assert!(got.buffer.as_slice().is_some_and(|bytes| bytes.iter().all(|&byte| byte == 42)));
    println!(
        "received an alarm before earlier orders, orders by number, and a message of 1 MiB with remote completion data"
    );
    Ok(())
}
