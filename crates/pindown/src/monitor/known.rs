//! What a monitor knows of the mapping that it looked at last.

use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};

use crate::journal::Page;
use crate::range::Range;

/// A mapping that can be watched, for as long as nothing at all was told since: a mapping is replaced by another only
/// after its going was told. So many registrations in one mapping ask the kernel about it once.
#[derive(Debug, Default)]
pub(crate) struct Known(Mutex<Option<(Range, u64)>>);

/// Where the page stood before the kernel was asked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Since(Option<u64>);

impl Since {
    /// To be called before the kernel is asked. While a change is under way nothing can be known.
    pub(crate) fn now(page: &Page) -> Self {
        let head = page.head.load(Ordering::Acquire);
        Self((page.busy.load(Ordering::Acquire) == 0).then_some(head))
    }
}

impl Known {
    /// Whether the range is known to lie in such a mapping now.
    pub(crate) fn has(&self, range: Range, now: Since) -> bool {
        let known = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.is_some_and(|(mapping, head)| Some(head) == now.0 && mapping.contains(range))
    }

    /// The kernel has said since then that this is such a mapping.
    pub(crate) fn learn(&self, mapping: Range, since: Since) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = since.0.map(|head| (mapping, head));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::Change;

    #[test]
    fn a_mapping_is_known_until_anything_changes() {
        let page = Page::boxed();
        let known = Known::default();
        let range = |start, len| Range::new(start, len).expect("a range");
        let before = Since::now(&page);
        assert!(!known.has(range(0x2000, 0x1000), before));
        known.learn(range(0x1000, 0x4000), before);
        assert!(known.has(range(0x2000, 0x1000), Since::now(&page)));
        assert!(!known.has(range(0x4000, 0x2000), Since::now(&page)), "longer than it");
        page.emit(Change::Of(range(0x9000, 0x1000)));
        assert!(!known.has(range(0x2000, 0x1000), Since::now(&page)));
        // Asked before that change: nobody knows whether the answer was of before it, too.
        known.learn(range(0x1000, 0x4000), before);
        assert!(!known.has(range(0x2000, 0x1000), Since::now(&page)));
        page.busy.store(1, Ordering::Release);
        known.learn(range(0x1000, 0x4000), Since::now(&page));
        assert!(!known.has(range(0x2000, 0x1000), Since::now(&page)), "a change is under way");
        page.busy.store(0, Ordering::Release);
        assert!(!known.has(range(0x2000, 0x1000), Since::now(&page)), "and nothing was learnt meanwhile");
    }
}
