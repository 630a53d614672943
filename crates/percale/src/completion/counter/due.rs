//! The work that begins when a counter has reached a threshold.

use std::any::Any;
use std::fmt::Debug;

use super::Counter;
use super::fire::Begun;

/// The action to perform when a counter meets its condition.
#[derive(Debug)]
pub(crate) enum Due {
    /// Adds to a counter.
    Add(Counter, u64),
    /// Sets a counter's value.
    Set(Counter, u64),
    /// Begins the work of an object outside of this module.
    Work(Box<dyn CounterWork>),
}

/// Work that waits for a counter. Its owner determines its kind and how it begins.
pub(crate) trait CounterWork: Any + Debug + Send {
    /// Begins the work. The counter's line is locked during the call, so this function must not wait for another thread
    /// or wake a task. It passes the actions that must run after the line is unlocked to `begun`.
    fn begin(self: Box<Self>, begun: &mut Begun);

    /// Ends work that will not begin, because it was canceled or its counter no longer exists.
    fn end(self: Box<Self>);
}

impl Due {
    /// Returns the work if it is of this type.
    pub(crate) fn work<W: CounterWork>(&self) -> Option<&W> {
        match self {
            Self::Work(work) => (&**work as &dyn Any).downcast_ref(),
            Self::Add(..) | Self::Set(..) => None,
        }
    }

    /// Returns the work if it is of this type.
    pub(crate) fn into_work<W: CounterWork>(self) -> Option<Box<W>> {
        match self {
            Self::Work(work) => (work as Box<dyn Any>).downcast().ok(),
            Self::Add(..) | Self::Set(..) => None,
        }
    }
}
