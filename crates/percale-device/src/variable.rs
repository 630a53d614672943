//! Variables that a device, or a thread, writes to begin an operation (fi_trigger(3), FI_TRIGGER_XPU).
//!
//! A variable consists of 64 bits of memory and the value to be written there. It is used for one operation. Its memory
//! is reused with another value when no handle is left, so a value that was written there earlier is never accepted.
//! The variables are 64 bytes apart, in pages that contain nothing else, so that a device's driver can map them.
//!
//! A variable that was not written may still be written late, because the device is not notified when the operation is
//! canceled or the endpoint is closed. If the memory of the variable were used for another operation by then, the late
//! store would overwrite the value written for that operation. So the memory of an unwritten variable is not reused
//! until the late store has arrived, or until at least [`LATE`] younger variables are waiting for theirs.

#![expect(unsafe_code, reason = "passes a variable to a driver; the block states its reason")]

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard};

use crate::system::forked::ProcessMutex;
use crate::{Device, DeviceError, Driver, Mapped};

/// The number of unwritten variables that are kept from reuse if no late store arrives. There may be up to twice as
/// many. Each takes 64 bytes.
const LATE: usize = 1 << 13;

/// The size of the largest ordinary page of the processor. No other memory is in a page that is mapped for devices.
const PAGE: usize = if cfg!(target_arch = "x86_64") { 4 << 10 } else { 64 << 10 };

/// The number of variables in a page.
const PLACES: usize = PAGE / size_of::<VariablePlace>();

#[derive(Debug)]
#[repr(C, align(64))]
struct VariablePlace(AtomicU64);

#[derive(Debug)]
#[cfg_attr(target_arch = "x86_64", repr(C, align(4096)))]
#[cfg_attr(not(target_arch = "x86_64"), repr(C, align(65536)))]
struct Page([VariablePlace; PLACES]);

const _: () = assert!(size_of::<Page>() == PAGE && align_of::<Page>() == PAGE);

/// A page, which may be mapped for devices.
#[derive(Debug)]
enum VariablePage {
    Ours(Box<Page>),
    Devices(Mapped<Page>),
}

impl VariablePage {
    #[inline]
    fn page(&self) -> &Page {
        match self {
            Self::Ours(page) => page,
            Self::Devices(mapped) => mapped.get(),
        }
    }

    #[inline]
    fn is_written(&self, place: usize, value: u64) -> bool {
        self.page().0[place].0.load(Ordering::Acquire) == value
    }
}

/// The variables of a domain.
#[derive(Debug, Default)]
pub struct Variables {
    free: ProcessMutex<Free>,
}

#[derive(Debug, Default)]
struct Free {
    places: Vec<(Arc<VariablePage>, usize)>,
    /// Free slots in pages that devices can access.
    mapped: Vec<(Arc<VariablePage>, usize)>,
    /// The slots of variables that were not written, the oldest first.
    late: VecDeque<LateVariable>,
    /// The length of `late` above which the list is searched for slots that were written in the meantime.
    limit: usize,
    /// The last value that was assigned.
    value: u64,
}

/// The slot of a variable that has no handle left and was not written.
#[derive(Debug)]
struct LateVariable {
    page: Arc<VariablePage>,
    place: usize,
    value: u64,
}

impl LateVariable {
    fn is_written(&self) -> bool {
        self.page.is_written(self.place, self.value)
    }
}

impl Free {
    /// Makes the slot available again.
    fn give_back(&mut self, page: Arc<VariablePage>, place: usize) {
        let places = match *page {
            VariablePage::Ours(_) => &mut self.places,
            VariablePage::Devices(_) => &mut self.mapped,
        };
        places.push((page, place));
    }

    /// Makes the slot available again when its late store has arrived. Without that store, the slot is kept until
    /// [`LATE`] younger slots are kept.
    #[cold]
    fn keep(&mut self, late: LateVariable) {
        self.late.push_back(late);
        if self.late.len() <= self.limit {
            return;
        }
        // Most of the slots above the limit will never be written, because their writers were stopped too.
        let mut surplus = self.late.len().saturating_sub(LATE);
        for late in std::mem::take(&mut self.late) {
            if surplus > 0 || late.is_written() {
                surplus = surplus.saturating_sub(1);
                self.give_back(late.page, late.place);
            } else {
                self.late.push_back(late);
            }
        }
        self.limit = (2 * self.late.len()).max(64);
    }
}

/// A variable. Clones are handles to the same variable. Its memory exists as long as there is a handle.
#[derive(Clone)]
pub struct Variable(Arc<Inner>);

crate::short_debug!(Variable, "Variable");

#[derive(Debug)]
struct Inner {
    page: Arc<VariablePage>,
    place: usize,
    value: u64,
    of: Arc<Variables>,
}

impl Variables {
    /// Locks the free slots. Returns `None` in a forked child.
    fn lock(&self) -> Option<MutexGuard<'_, Free>> {
        self.free.lock()
    }

    /// Creates a variable that has not been written, for threads.
    pub fn take(this: &Arc<Self>) -> Variable {
        let taken = Self::take_of(this, |free| &mut free.places, |page| Ok::<_, Infallible>(VariablePage::Ours(page)));
        match taken {
            Ok(variable) => variable,
            Err(never) => match never {},
        }
    }

    /// Creates a variable that has not been written, for devices of this driver and for threads.
    pub fn take_mapped(this: &Arc<Self>, driver: &'static dyn Driver) -> Result<Variable, DeviceError> {
        Self::take_of(this, |free| &mut free.mapped, |page| Mapped::new(driver, page).map(VariablePage::Devices))
    }

    fn take_of<E>(
        this: &Arc<Self>,
        places: impl Fn(&mut Free) -> &mut Vec<(Arc<VariablePage>, usize)>,
        make: impl FnOnce(Box<Page>) -> Result<VariablePage, E>,
    ) -> Result<Variable, E> {
        let Some(mut free) = this.lock() else {
            // A forked child must not assign slots of its parent, so the variable gets a slot of the child.
            return Self::take_of(&Arc::default(), places, make);
        };
        let (page, place) = match places(&mut free).pop() {
            Some(taken) => taken,
            None => {
                let page = Arc::new(make(Box::new(Page([const { VariablePlace(AtomicU64::new(0)) }; PLACES])))?);
                places(&mut free).extend((1..PLACES).rev().map(|place| (Arc::clone(&page), place)));
                (page, 0)
            }
        };
        free.value += 1;
        let value = free.value;
        Ok(Variable(Arc::new(Inner { page, place, value, of: Arc::clone(this) })))
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let (page, place, value) = (Arc::clone(&self.page), self.place, self.value);
        let Some(mut free) = self.of.lock() else { return };
        if page.is_written(place, value) {
            free.give_back(page, place);
        } else {
            free.keep(LateVariable { page, place, value });
        }
    }
}

impl Variable {
    fn place(&self) -> &AtomicU64 {
        &self.0.page.page().0[self.0.place].0
    }

    /// Returns the variable's address, for writing it in other ways than with [`write`](Self::write). The address has 8
    /// bytes, is aligned, and must be written in one store while a handle exists.
    #[must_use]
    pub fn address(&self) -> *mut u64 {
        self.place().as_ptr()
    }

    /// Returns the variable's address for devices, or `None` for a variable that only threads write.
    #[must_use]
    pub fn device_address(&self) -> Option<u64> {
        match &*self.0.page {
            VariablePage::Ours(_) => None,
            VariablePage::Devices(mapped) => {
                Some(mapped.address() + (self.0.place * size_of::<VariablePlace>()) as u64)
            }
        }
    }

    /// Returns the value to be written.
    #[must_use]
    #[inline]
    pub fn value(&self) -> u64 {
        self.0.value
    }

    /// Writes the variable. Earlier writes of this thread are visible to the thread that begins the operation.
    pub fn write(&self) {
        self.place().store(self.0.value, Ordering::Release);
    }

    /// Returns whether the variable was written.
    #[must_use]
    #[inline]
    pub fn is_written(&self) -> bool {
        self.0.page.is_written(self.0.place, self.0.value)
    }
}

impl Device {
    /// Makes a stream of the device write a variable (`Domain::device_variable` of percale), as a program of the device
    /// would. The operation that waits for the variable begins. Returns when the variable was written.
    ///
    /// # Errors
    /// The driver's error. [`DeviceError::Mixed`] if the variable is not for devices.
    pub fn write_variable(self, variable: &Variable) -> Result<(), DeviceError> {
        let address = variable.device_address().ok_or(DeviceError::Mixed)?;
        // SAFETY: the address has 8 aligned bytes that are mapped as long as the variable exists, and the write has
        // ended when this returns.
        unsafe { self.driver().write_value(self.ordinal(), address, variable.value()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requirements: XPU-010.
    #[test]
    fn variables_are_64_bits_on_separate_cache_lines() {
        let all = Arc::new(Variables::default());
        let variables: Vec<_> = (0..200).map(|_| Variables::take(&all)).collect();
        let mut addresses: Vec<_> = variables.iter().map(|variable| variable.address().addr()).collect();
        addresses.sort_unstable();
        assert!(addresses.windows(2).all(|pair| pair[1] - pair[0] >= 64));
        assert!(addresses.iter().all(|address| address % 64 == 0));
        variables[7].write();
        let written: Vec<_> = variables.iter().map(Variable::is_written).collect();
        assert!(written.iter().enumerate().all(|(number, written)| *written == (number == 7)));
    }

    /// Requirements: XPU-012.
    #[test]
    fn old_value_in_a_reused_slot_does_not_count_as_written() {
        let all = Arc::new(Variables::default());
        let first = Variables::take(&all);
        first.write();
        let (address, value) = (first.address(), first.value());
        let kept = first.clone();
        drop(first);
        let other = Variables::take(&all);
        assert!(kept.is_written() && other.address() != address, "the place is still in use");
        other.write();
        drop((kept, other));
        let places: Vec<_> = (0..PLACES).map(|_| Variables::take(&all)).collect();
        let again = places.iter().find(|variable| variable.address() == address).expect("the place is available again");
        assert!(!again.is_written() && again.value() > value);
        assert_eq!(all.lock().unwrap().places.len(), 0);
    }
    /// Requirements: XPU-012.
    #[test]
    fn slot_with_a_possible_late_store_is_not_reused() {
        let all = Arc::new(Variables::default());
        let dropped = Variables::take(&all);
        let (address, value) = (dropped.address(), dropped.value());
        drop(dropped);
        let others: Vec<_> = (0..3 * PLACES).map(|_| Variables::take(&all)).collect();
        assert!(others.iter().all(|other| other.address() != address), "the place was reused before the store");
        // SAFETY: the page exists as long as `all`.
        unsafe { AtomicU64::from_ptr(address) }.store(value, Ordering::Release);
        drop(others);
        let again: Vec<_> = (0..5 * PLACES).map(|_| Variables::take(&all)).collect();
        assert!(again.iter().any(|other| other.address() == address), "the place is reused after the store");
    }

    /// Requirements: XPU-012.
    #[test]
    fn slots_of_unwritten_variables_are_reused() {
        let all = Arc::new(Variables::default());
        for _ in 0..5 * LATE {
            drop(Variables::take(&all));
            assert!(all.lock().unwrap().late.len() <= 2 * LATE);
        }
        let free = all.lock().unwrap();
        assert!(free.late.len() + free.places.len() <= 2 * LATE + PLACES);
        drop(free);
        let all = Arc::new(Variables::default());
        for _ in 0..1000 {
            let variable = Variables::take(&all);
            variable.write();
            drop(variable);
            assert!(all.lock().unwrap().late.is_empty());
        }
        assert_eq!(all.lock().unwrap().places.len(), PLACES);
    }
}
