//! A registrar of one's own: a device with a table of 4 numbered buffers, as io_uring's fixed buffers are. The device is a
//! mock; what it is told is what a real one would be.

// begin
use std::io;
use std::sync::Mutex;

use pindown::monitor::{Choice, imported::Notifier};
use pindown::{Access, Cache, Pinned, Range, Registrar};

/// The buffers that the device knows by their numbers.
#[derive(Default)]
struct Device {
    buffers: Mutex<[Option<Range>; 4]>,
}

impl Registrar for &'static Device {
    /// A buffer's number.
    type Pin = usize;

    fn pin(&self, range: Range, _access: Access) -> io::Result<Pinned<usize>> {
        let mut buffers = self.buffers.lock().unwrap();
        // The cache lets idle registrations go after this error, and asks again.
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
    // This program answers for its memory itself; Choice::Userfaultfd has the kernel tell.
    let (notifier, imported) = Notifier::new(|_, _| true)?;
    let cache = Cache::builder(device).monitor(Choice::Imported(imported)).open()?;
    let lane = cache.lane();
    let buffers: Vec<_> = (0..6).map(|_| vec![0_u8; 1 << 20]).collect();
    for buffer in buffers.iter().flat_map(|buffer| [buffer; 100]) {
        let used = lane.get(Range::of(buffer)?, Access::empty())?;
        println!("send from buffer {}", used.local_key());
        lane.end(used);
    }
    // Before other memory can be seen at these addresses:
    notifier.changed(Range::of(&buffers[5])?);
    drop(buffers);
    println!("{:?}", cache.stats());
    Ok(())
}
// end
