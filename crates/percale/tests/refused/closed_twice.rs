//! Closing takes the region: what it gave back is not reachable through it.

fn close(region: percale::Region) {
    let memory = region.close();
    region.read(0, &mut [0; 8]);
    drop(memory);
}

fn main() {}
