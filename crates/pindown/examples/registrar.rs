//! An example of a registrar: a device with a table of 4 numbered buffers, like the fixed buffers of io_uring. The
//! device is a mock that gets the same calls as a real one.

// begin
use std::io;
use std::sync::Mutex;

use pindown::monitor::{Choice, imported::Notifier};
use pindown::{Access, Cache, Pinned, Range, Registrar};

/// The device's table of buffers, by number.
#[derive(Default)]
struct Device {
    buffers: Mutex<[Option<Range>; 4]>,
}

impl Registrar for &'static Device {
    /// The number of a buffer.
    type Pin = usize;

    fn pin(&self, range: Range, _access: Access) -> io::Result<Pinned<usize>> {
        let mut buffers = self.buffers.lock().unwrap();
        // After this error the cache drops idle registrations and tries again.
        let full = || io::Error::from_raw_os_error(libc::ENOSPC);
        let number = buffers.iter().position(Option::is_none).ok_or_else(full)?;
        // A real device pins the pages here.
        buffers[number] = Some(range);
        Ok(Pinned { pin: number, local_key: number as u64, remote_key: 0 })
    }

    fn unpin(&self, number: usize) {
        self.buffers.lock().unwrap()[number] = None;
    }
}

pub(crate) fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device: &Device = Box::leak(Box::default());
    // This program reports changes of its memory itself. With Choice::Userfaultfd the kernel would report them.
    let (notifier, imported) = Notifier::new(|_, _| true)?;
    let cache = Cache::builder(device).monitor(Choice::Imported(imported)).open()?;
    let lane = cache.lane();
    let buffers: Vec<_> = (0..6).map(|_| vec![0_u8; 1 << 20]).collect();
    for buffer in buffers.iter().flat_map(|buffer| [buffer; 100]) {
        let used = lane.get(Range::of(buffer)?, Access::empty())?;
        println!("send from buffer {}", used.local_key());
        lane.end(used);
    }
    // Called before other memory can be visible at these addresses:
    notifier.changed(Range::of(&buffers[5])?);
    drop(buffers);
    println!("{:?}", cache.stats());
    Ok(())
}
// end
