//! The windows of a worker, which it binds, revokes and binds again while others write through them.
//!
//! The regions of the windows give peers no access rights. Therefore the memory must not change while no window is
//! bound to it.

use std::time::{Duration, Instant};

use percale::{Access, Region, Window, WindowAccess, WindowType};

use super::{Open, Worker};
use crate::search_processes::plan::PATIENCE;
use crate::search_processes::station::{CELL, cells_of, check_cells};

/// How long memory is checked after its window was revoked.
const WATCH: Duration = Duration::from_millis(300);

#[derive(Debug)]
enum State {
    Bound,
    /// The window is being revoked. A peer in the middle of an access may delay this.
    Leaving(Instant),
    /// The memory must not change. These are its contents.
    Shut(Instant, Vec<u8>),
}

/// A region that can be accessed only through a window.
#[derive(Debug)]
pub(super) struct Pane {
    region: Region,
    window: Window,
    tag: u64,
    state: State,
}

impl Pane {
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
        let bound = self.panes.iter().position(|pane| matches!(pane.state, State::Bound));
        if let Some(at) = bound {
            self.panes[at].state = State::Leaving(Instant::now());
            self.look_at_windows();
        }
    }

    fn open_window(&mut self) {
        let (len, tag) = (CELL * (16 << self.ledger.random.below(9)), self.next_tag());
        let buffer = self.ledger.buffer_of(&self.domain, cells_of(tag, len, 0));
        let Some(window) = self.expected(self.domain.window(WindowType::One), "no window") else { return };
        let Some(region) = self.expected(self.domain.register(buffer, Access::empty()), "no region") else { return };
        let mut pane = Pane { region, window, tag, state: State::Bound };
        self.bind(&mut pane);
        self.panes.push(pane);
    }

    /// Binds a window, and publishes it.
    fn bind(&mut self, pane: &mut Pane) {
        let all = 0..pane.region.len() as u64;
        let bound = pane.window.bind(&pane.region, all, WindowAccess::READ | WindowAccess::WRITE);
        let Some(name) = self.expected(bound, "no bind of a window") else { return };
        pane.state = State::Bound;
        self.publish(&name, pane.tag);
    }

    /// Continues to revoke windows. Checks the memory of revoked windows.
    pub(super) fn look_at_windows(&mut self) {
        for at in 0..self.panes.len() {
            match &self.panes[at].state {
                State::Bound => {}
                State::Leaving(since) => {
                    let since = *since;
                    self.take_back(at, since);
                }
                State::Shut(since, before) => {
                    let since = *since;
                    let pane = &self.panes[at];
                    let now = pane.contents();
                    if let Some(first) = (0..now.len()).find(|&byte| now[byte] != before[byte]) {
                        let after = since.elapsed();
                        self.ledger.fault(&format!(
                            "byte {first} of {} was written through a window {after:?} after it was taken back, or earlier",
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
        let pane = &mut self.panes[at];
        match pane.window.bind(&pane.region, 0..0, WindowAccess::empty()) {
            Ok(_) => {
                self.ledger.counts.lives += 1;
                let bytes = pane.contents();
                let tag = pane.tag;
                pane.state = State::Shut(Instant::now(), bytes.clone());
                check_cells(&mut self.ledger, &bytes, tag, 0);
            }
            Err(error) if since.elapsed() > PATIENCE => {
                pane.state = State::Leaving(Instant::now() + PATIENCE * 100);
                self.ledger.fault(&format!("a window is not taken back for {PATIENCE:?}: {error}"));
            }
            Err(_) => {}
        }
    }

    fn bind_again(&mut self, at: usize) {
        let tag = self.next_tag();
        let mut pane = self.panes.swap_remove(at);
        pane.tag = tag;
        pane.region.write(0, &cells_of(tag, pane.region.len(), 0));
        self.bind(&mut pane);
        self.panes.push(pane);
        let last = self.panes.len() - 1;
        self.panes.swap(at, last);
    }

    /// Closes all windows and their regions. The memory is kept for checks.
    pub(super) fn close_windows(&mut self) {
        for Pane { window, region, .. } in std::mem::take(&mut self.panes) {
            let until = Instant::now() + PATIENCE;
            let mut window = Some(window);
            while let Some(Err(busy)) = window.take().map(Window::close) {
                if Instant::now() > until {
                    self.ledger.fault("a window is not closed: a peer does not move");
                    std::mem::forget(busy);
                    break;
                }
                window = Some(busy);
                std::thread::sleep(Duration::from_millis(10));
            }
            match region.close() {
                Ok(buffer) => self.ledger.graves.bury(buffer, "a closed region below a window".into()),
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
