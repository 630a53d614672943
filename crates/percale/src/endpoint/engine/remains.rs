//! The records that an endpoint keeps of operations, as numbers. When no operation is in progress and no message waits,
//! each is zero. Tests compare them, to find a record that is never removed or a count that is never lowered.

use super::Engine;

impl Engine {
    /// Returns the records that are not zero, with their names.
    pub(crate) fn remains(&self) -> Vec<(&'static str, usize)> {
        let core = &self.core;
        let mut all = core.peers.remains();
        all.extend(core.messages.remains());
        all.extend(core.remote.remains());
        all.extend(core.triggered.remains());
        all.extend(core.groups.remains());
        all.push(("operations that wait for another process", core.left.len()));
        all.push(("reserved results", core.reporting.reserved()));
        all.push(("safe operations", core.operations.in_use()));
        all.retain(|(_, count)| *count > 0);
        all
    }
}
