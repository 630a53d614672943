//! The windows of a worker, which it binds, revokes and binds again while other workers write through them.
//!
//! The regions of the windows give peers no access rights. Therefore the memory must not change while no window is
//! bound to it.

use std::time::{Duration, Instant};

use percale::{Access, Region, Window, WindowAccess, WindowType};

use super::{Open, Worker};
use crate::search_processes::plan::OPERATION_TIMEOUT;
use crate::search_processes::worker_endpoint::{CELL, cells_of, check_cells};

/// How long memory is checked after its window was revoked.
const WATCH: Duration = Duration::from_millis(300);

#[derive(Debug)]
enum BindingState {
    Bound,
    /// The window is being revoked. A peer in the middle of an access may delay this.
    Leaving(Instant),
    /// The memory must not change. These are its contents.
    Shut(Instant, Vec<u8>),
}

/// A region that can be accessed only through a window.
#[derive(Debug)]
pub(super) struct WindowRegion {
    region: Region,
    window: Window,
    tag: u64,
    state: BindingState,
}

impl WindowRegion {
    fn contents(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.region.len()];
        self.region.read(0, &mut bytes);
        bytes
    }
}

impl<A: Open> Worker<A> {
    /// Returns a unique tag for a region.
    pub(super) fn next_tag(&mut self) -> u64 {
        self.next_region += 1;
        self.next_region.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1
    }

    /// Opens a window, or begins to revoke one.
    pub(super) fn change_windows(&mut self) {
        if self.panes.len() < 3 && self.ledger.random.below(2) == 0 {
            return self.open_window();
        }
        let bound = self.panes.iter().position(|window_region| matches!(window_region.state, BindingState::Bound));
        if let Some(at) = bound {
            self.panes[at].state = BindingState::Leaving(Instant::now());
            self.look_at_windows();
        }
    }

    fn open_window(&mut self) {
        let (len, tag) = (CELL * (16 << self.ledger.random.below(9)), self.next_tag());
        let buffer = self.ledger.buffer_of(&self.domain, cells_of(tag, len, 0));
        let Some(window) = self.expected(self.domain.window(WindowType::One), "no window") else { return };
        let Some(region) = self.expected(self.domain.register(buffer, Access::empty()), "no region") else { return };
        let mut window_region = WindowRegion { region, window, tag, state: BindingState::Bound };
        self.bind(&mut window_region);
        self.panes.push(window_region);
    }

    /// Binds a window, and publishes it.
    fn bind(&mut self, window_region: &mut WindowRegion) {
        let all = 0..window_region.region.len() as u64;
        let bound = window_region.window.bind(&window_region.region, all, WindowAccess::READ | WindowAccess::WRITE);
        let Some(name) = self.expected(bound, "no bind of a window") else { return };
        window_region.state = BindingState::Bound;
        self.publish(&name, window_region.tag);
    }

    /// Continues to revoke windows. Checks the memory of revoked windows.
    pub(super) fn look_at_windows(&mut self) {
        for at in 0..self.panes.len() {
            match &self.panes[at].state {
                BindingState::Bound => {}
                BindingState::Leaving(since) => {
                    let since = *since;
                    self.take_back(at, since);
                }
                BindingState::Shut(since, before) => {
                    let since = *since;
                    let window_region = &self.panes[at];
                    let now = window_region.contents();
                    if let Some(first) = (0..now.len()).find(|&byte| now[byte] != before[byte]) {
                        let after = since.elapsed();
                        self.ledger.fault(&format!(
                            "byte {first} of {} was written through a window {after:?} after its revocation, or earlier",
                            now.len()
                        ));
                    }
                    if since.elapsed() > WATCH {
                        self.bind_again(at);
                    }
                }
            }
        }
    }

    fn take_back(&mut self, at: usize, since: Instant) {
        let window_region = &mut self.panes[at];
        match window_region.window.bind(&window_region.region, 0..0, WindowAccess::empty()) {
            Ok(_) => {
                self.ledger.counts.lives += 1;
                let bytes = window_region.contents();
                let tag = window_region.tag;
                window_region.state = BindingState::Shut(Instant::now(), bytes.clone());
                check_cells(&mut self.ledger, &bytes, tag, 0);
            }
            Err(error) if since.elapsed() > OPERATION_TIMEOUT => {
                window_region.state = BindingState::Leaving(Instant::now() + OPERATION_TIMEOUT * 100);
                self.ledger.fault(&format!("a window could not be revoked for {OPERATION_TIMEOUT:?}: {error}"));
            }
            Err(_) => {}
        }
    }

    fn bind_again(&mut self, at: usize) {
        let tag = self.next_tag();
        let mut window_region = self.panes.swap_remove(at);
        window_region.tag = tag;
        window_region.region.write(0, &cells_of(tag, window_region.region.len(), 0));
        self.bind(&mut window_region);
        self.panes.push(window_region);
        let last = self.panes.len() - 1;
        self.panes.swap(at, last);
    }

    /// Closes all windows and their regions. The memory is kept for checks.
    pub(super) fn close_windows(&mut self) {
        for WindowRegion { window, region, .. } in std::mem::take(&mut self.panes) {
            let until = Instant::now() + OPERATION_TIMEOUT;
            let mut window = Some(window);
            while let Some(Err(busy)) = window.take().map(Window::close) {
                if Instant::now() > until {
                    self.ledger.fault("a window cannot be closed: a peer makes no progress");
                    std::mem::forget(busy);
                    break;
                }
                window = Some(busy.into_inner());
                std::thread::sleep(Duration::from_millis(10));
            }
            match region.close() {
                Ok(buffer) => self.ledger.graves.add_freed(buffer, "a closed region below a window".into()),
                Err(error) => {
                    self.ledger.fault(&format!("the region below a closed window is not closed: {error}"));
                    std::mem::forget(error);
                }
            }
        }
    }

    /// Returns the value. Reports an error as a fault, unless memory or descriptors may run out.
    fn expected<T, E: std::fmt::Display>(&mut self, result: Result<T, E>, what: &str) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error) if self.ledger.plan.has("files") || self.ledger.plan.has("no-mappings") => {
                self.ledger.note(|| format!("{what}: {error}"));
                None
            }
            Err(error) => {
                self.ledger.fault(&format!("{what}: {error}"));
                None
            }
        }
    }
}
