//! Writes from ordinary memory through io_uring's fixed buffers, which are either registered for each write or found in
//! the registration cache, and by pwrite(2) for comparison. Writes to /dev/null copy nothing, so the times show the
//! cost of registration.
//!
//! `cargo run --release -p percale --example fixed_buffers`

use std::error::Error;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Instant;

use percale::{CacheSettings, Info};

const ROUNDS: u32 = 300;

/// Returns the duration of one call in microseconds.
fn measure(mut call: impl FnMut() -> Result<(), Box<dyn Error>>) -> Result<f64, Box<dyn Error>> {
    let start = Instant::now();
    for _ in 0..ROUNDS {
        call()?;
    }
    Ok(start.elapsed().as_secs_f64() * 1e6 / f64::from(ROUNDS))
}

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::temp_dir().join(format!("percale-fixed-buffers-{}", std::process::id()));
    let file = File::create_new(&path)?;
    std::fs::remove_file(path)?;
    for (name, target) in [("a file", file), ("/dev/null", File::options().write(true).open("/dev/null")?)] {
        for size in [4096, 65_536, 1 << 20] {
            let memory = vec![7_u8; size];
            println!("writes of {size} bytes to {name}, µs each:");
            let ways =
                [("registered each time", CacheSettings::default().max_count(0)), ("cached", Default::default())];
            for (way, settings) in ways {
                let domain = Info::discover()?.domain().registration_cache(settings).open()?;
                let buffers = match domain.fixed_buffers(16) {
                    Ok(buffers) => buffers,
                    Err(why) => {
                        println!("{why}");
                        return Ok(());
                    }
                };
                let lane = buffers.lane();
                let cost = measure(|| {
                    assert_eq!(lane.write(&memory, &target, 0)?, size);
                    Ok(())
                })?;
                let (made, why) = (buffers.table().made(), buffers.explanation().replace('\n', "; "));
                println!("  {way:<22}{cost:>8.1}  {made} registrations, {why}");
            }
            let cost = measure(|| target.write_all_at(&memory, 0).map_err(Into::into))?;
            println!("  {:<22}{cost:>8.1}", "pwrite");
        }
    }
    Ok(())
}
