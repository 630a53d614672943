//! Tests of an endpoint's part in a shared receive context, without an engine.

use super::*;
use crate::local_memory::doorbell::Doorbell;

fn member(pool: &Arc<Pool>) -> SharedReceives {
    SharedReceives::new(Some(pool.join(None, &Arc::new(Doorbell::new().expect("a doorbell")))))
}

#[test]
fn endpoint_without_shared_context_has_no_membership() {
    let mut shared = SharedReceives::new(None);
    assert!(!shared.is_member() && shared.membership().is_none() && shared.with_notes().is_none());
    assert!(shared.leave(false).is_none() && shared.successor().is_none());
}

#[test]
fn endpoint_without_queue_reports_through_other_members() {
    let pool = Pool::new(1);
    for reports_elsewhere in [true, false] {
        let mut shared = member(&pool);
        assert!(shared.is_member() && shared.with_notes().is_none() && shared.successor().is_none());
        let left = shared.leave(reports_elsewhere).expect("the endpoint was a member");
        assert!(left.leave().is_empty(), "no message was promised");
        assert!(!shared.is_member() && shared.leave(reports_elsewhere).is_none());
        assert_eq!(shared.successor().is_some_and(|successor| Arc::ptr_eq(successor, &pool)), !reports_elsewhere);
    }
}
