//! Tests of hints that are granted, echoed or rejected.

use super::*;

#[test]
fn application_attributes_are_echoed() {
    for threading in FI_THREAD_SAFE..=FI_THREAD_ENDPOINT {
        let answer = TestHints::new(|wishes| wishes.domain.threading = threading).ask(API).unwrap();
        assert!(answer.all().iter().all(|one| one.domain().threading == threading));
    }
    for (control, data, expected) in [
        (0, 0, (FI_PROGRESS_MANUAL, FI_PROGRESS_MANUAL)),
        (0, FI_PROGRESS_AUTO, (FI_PROGRESS_AUTO, FI_PROGRESS_AUTO)),
        (FI_PROGRESS_AUTO, FI_PROGRESS_MANUAL, (FI_PROGRESS_AUTO, FI_PROGRESS_MANUAL)),
        (0, FI_PROGRESS_CONTROL_UNIFIED, (FI_PROGRESS_CONTROL_UNIFIED, FI_PROGRESS_CONTROL_UNIFIED)),
    ] {
        let change =
            |wishes: &mut TestHints| (wishes.domain.control_progress, wishes.domain.data_progress) = (control, data);
        let answer = TestHints::new(change).ask(API).unwrap();
        let domain = answer.all()[0].domain();
        assert_eq!((domain.control_progress, domain.data_progress), expected);
    }
    for av_type in [FI_AV_UNSPEC, FI_AV_MAP, FI_AV_TABLE] {
        let answer = TestHints::new(|wishes| wishes.domain.av_type = av_type).ask(API).unwrap();
        assert_eq!(answer.all()[0].domain().av_type, av_type);
    }
    let mut wishes = TestHints::new(|wishes| {
        wishes.tx.op_flags = FI_COMPLETION | FI_DELIVERY_COMPLETE;
        wishes.tx.msg_order = FI_ORDER_SAS | FI_ORDER_ATOMIC_RAR | FI_ORDER_ATOMIC_WAW;
        wishes.domain.cq_data_size = 4;
        wishes.info.handle = std::ptr::without_provenance_mut(16);
    });
    let answer = wishes.ask(API).unwrap();
    for one in answer.all() {
        assert_eq!(one.tx().op_flags, FI_COMPLETION | FI_DELIVERY_COMPLETE);
        assert_eq!(one.tx().msg_order & wishes.tx.msg_order, wishes.tx.msg_order);
        assert!(one.domain().cq_data_size >= 4);
        assert_eq!(one.0.handle, wishes.info.handle);
    }
}

#[test]
fn an_authorization_key_is_copied_into_the_answer() {
    let mut key = *b"0123456789";
    let answer = TestHints::new(|wishes| {
        (wishes.domain.auth_key, wishes.domain.auth_key_size) = (key.as_mut_ptr(), key.len());
        (wishes.ep.auth_key, wishes.ep.auth_key_size) = (key.as_mut_ptr(), key.len());
    })
    .ask(API)
    .unwrap();
    for one in answer.all() {
        for (at, size) in
            [(one.domain().auth_key, one.domain().auth_key_size), (one.ep().auth_key, one.ep().auth_key_size)]
        {
            assert_ne!(at, key.as_mut_ptr());
            // SAFETY: the key has the stated length.
            assert_eq!(unsafe { std::slice::from_raw_parts(at, size) }, key);
        }
    }
}

/// Returns the registration mode that is granted for a requested mode.
fn registration_mode(version: u32, requested: c_int) -> Result<c_int, String> {
    let answer = TestHints::new(|wishes| wishes.domain.mr_mode = requested).ask(version);
    answer.map(|answer| answer.all()[0].domain().mr_mode).map_err(|(code, why)| {
        assert_eq!(code, -FI_ENODATA);
        why
    })
}

/// Requirements: MR-016, MR-017.
#[test]
fn registration_modes_that_are_not_needed_are_cleared() {
    let every = FI_MR_LOCAL
        | FI_MR_RAW
        | FI_MR_VIRT_ADDR
        | FI_MR_ALLOCATED
        | FI_MR_PROV_KEY
        | FI_MR_MMU_NOTIFY
        | FI_MR_RMA_EVENT
        | FI_MR_ENDPOINT
        | FI_MR_HMEM
        | FI_MR_COLLECTIVE;
    // Modes are bits since version 1.5.
    for version in [fi_version(1, 5), API] {
        for requested in [0, FI_MR_VIRT_ADDR, FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_VIRT_ADDR, FI_MR_LOCAL, every] {
            assert_eq!(registration_mode(version, requested), Ok(0), "{version:#x}: {requested:#x}");
        }
    }
}

/// Requirements: MR-020, MR-021, MR-022.
#[test]
fn old_mr_modes_exclude_others_and_are_kept() {
    for version in [fi_version(1, 4), fi_version(1, 5), API] {
        assert_eq!(registration_mode(version, FI_MR_BASIC), Ok(FI_MR_BASIC));
        assert_eq!(registration_mode(version, FI_MR_SCALABLE), Ok(FI_MR_SCALABLE));
        for both in [FI_MR_BASIC | FI_MR_SCALABLE, FI_MR_BASIC | FI_MR_LOCAL, FI_MR_SCALABLE | FI_MR_ALLOCATED] {
            let why = registration_mode(version, both).unwrap_err();
            assert!(why.contains("domain_attr->mr_mode") && why.contains("cannot be combined"), "{why}");
        }
    }
    assert_eq!(registration_mode(fi_version(1, 4), 0), Ok(FI_MR_SCALABLE), "unspecified: one of the two");
    assert!(registration_mode(fi_version(1, 4), FI_MR_VIRT_ADDR).is_err(), "mode bits require version 1.5");
}

/// Requirements: MR-024.
#[test]
fn local_registration_is_never_needed() {
    let wishes =
        |mode| TestHints::new(|wishes| (wishes.info.mode, wishes.domain.mr_mode) = (mode, FI_MR_BASIC)).ask(API);
    for mode in [0, FI_LOCAL_MR, FI_CONTEXT | FI_CONTEXT2 | FI_RX_CQ_DATA] {
        assert!(wishes(mode).unwrap().all().iter().all(|one| one.0.mode == 0));
    }
}

#[test]
fn unsupported_hints_are_rejected_by_name() {
    type Change = fn(&mut TestHints);
    let refused: &[(&str, Change)] = &[
        ("ep_attr->type FI_EP_DGRAM", |wishes| wishes.ep.r#type = FI_EP_DGRAM),
        ("ep_attr->type 9", |wishes| wishes.ep.r#type = 9),
        ("caps FI_MULTICAST", |wishes| wishes.info.caps = FI_MULTICAST),
        ("FI_EP_MSG", |wishes| (wishes.info.caps, wishes.ep.r#type) = (FI_MSG | FI_SOURCE, FI_EP_MSG)),
        ("tx_attr->caps FI_RMA", |wishes| (wishes.info.caps, wishes.tx.caps) = (FI_MSG, FI_MSG | FI_RMA)),
        ("rx_attr->caps FI_DIRECTED_RECV", |wishes| {
            (wishes.info.caps, wishes.rx.caps) = (FI_TAGGED, FI_TAGGED | FI_DIRECTED_RECV);
        }),
        ("tx_attr->op_flags", |wishes| wishes.tx.op_flags = FI_COMMIT_COMPLETE),
        ("tx_attr->msg_order", |wishes| wishes.tx.msg_order = FI_ORDER_STRICT),
        ("tx_attr->comp_order", |wishes| wishes.tx.comp_order = FI_ORDER_STRICT),
        ("tx_attr->inject_size 4096; at most 2048", |wishes| wishes.tx.inject_size = 4096),
        ("tx_attr->size", |wishes| wishes.tx.size = 1 << 30),
        ("tx_attr->iov_limit", |wishes| wishes.tx.iov_limit = 5),
        ("tx_attr->rma_iov_limit", |wishes| wishes.tx.rma_iov_limit = 5),
        ("tx_attr->tclass", |wishes| wishes.tx.tclass = FI_TC_NETWORK_CTRL + 1),
        ("rx_attr->op_flags", |wishes| wishes.rx.op_flags = FI_INJECT),
        ("rx_attr->msg_order", |wishes| wishes.rx.msg_order = FI_ORDER_RAS),
        ("rx_attr->size", |wishes| wishes.rx.size = 1 << 30),
        ("rx_attr->iov_limit", |wishes| wishes.rx.iov_limit = 5),
        ("ep_attr->protocol", |wishes| wishes.ep.protocol = FI_PROTO_SHM),
        ("ep_attr->protocol_version", |wishes| wishes.ep.protocol_version = 1000),
        ("ep_attr->max_msg_size", |wishes| wishes.ep.max_msg_size = usize::MAX),
        ("ep_attr->tx_ctx_cnt", |wishes| wishes.ep.tx_ctx_cnt = 257),
        ("ep_attr->rx_ctx_cnt 2", |wishes| (wishes.ep.rx_ctx_cnt, wishes.ep.r#type) = (2, FI_EP_MSG)),
        ("ep_attr->auth_key", |wishes| wishes.ep.auth_key_size = 8),
        ("domain_attr->threading", |wishes| wishes.domain.threading = 77),
        ("domain_attr->progress", |wishes| wishes.domain.data_progress = 77),
        ("domain_attr->control_progress", |wishes| wishes.domain.control_progress = 77),
        ("domain_attr->resource_mgmt", |wishes| wishes.domain.resource_mgmt = 77),
        ("domain_attr->av_type", |wishes| wishes.domain.av_type = 77),
        ("domain_attr->mr_key_size", |wishes| wishes.domain.mr_key_size = 9),
        ("domain_attr->cq_data_size", |wishes| wishes.domain.cq_data_size = 9),
        ("domain_attr->max_ep_tx_ctx", |wishes| wishes.domain.max_ep_tx_ctx = 257),
        ("domain_attr->max_ep_stx_ctx", |wishes| wishes.domain.max_ep_stx_ctx = 1 << 20),
        ("domain_attr->mr_iov_limit", |wishes| wishes.domain.mr_iov_limit = 5),
        ("domain_attr->caps FI_HMEM", |wishes| wishes.domain.caps = FI_HMEM),
        ("FI_AV_AUTH_KEY", |wishes| wishes.domain.auth_key_size = FI_AV_AUTH_KEY),
        ("domain_attr->max_xpu_ctx_cnt", |wishes| wishes.domain.max_xpu_ctx_cnt = 1),
        ("domain_attr->name \"nowhere0\"", |wishes| wishes.domain.name = wishes.text("nowhere0")),
        ("fabric_attr->name", |wishes| wishes.fabric.name = wishes.text("another")),
        ("another provider", |wishes| wishes.fabric.prov_name = wishes.text("tcp;ofi_rxm")),
        ("fabric_attr->prov_version", |wishes| wishes.fabric.prov_version = u32::MAX),
        ("addr_format 10", |wishes| wishes.info.addr_format = 10),
    ];
    for (expected, change) in refused {
        let (code, why) =
            TestHints::new(change).ask(API).err().unwrap_or_else(|| panic!("a request with {expected} was accepted"));
        assert_eq!(code, -FI_ENODATA, "{expected}");
        assert!(
            why.starts_with("getinfo: no match: ") && why.contains(expected),
            "{why:?} does not contain {expected:?}"
        );
    }
}

#[test]
fn callers_of_older_versions_have_shorter_attributes() {
    // Bytes after the attributes of an older version are not read.
    let change = |wishes: &mut TestHints| {
        wishes.domain.max_ep_auth_key = usize::MAX;
        wishes.domain.max_group_id = u32::MAX;
        wishes.domain.max_xpu_ctx_cnt = usize::MAX;
        wishes.ep.xpu_ctx = std::ptr::without_provenance_mut(8);
    };
    for version in [fi_version(1, 4), fi_version(1, 17), fi_version(1, 19)] {
        assert!(TestHints::new(change).ask(version).is_ok());
    }
    for version in [fi_version(1, 20), fi_version(2, 5), API] {
        assert!(TestHints::new(change).ask(version).is_err());
    }
    assert!(
        TestHints::new(|wishes| wishes.domain.data_progress = FI_PROGRESS_CONTROL_UNIFIED)
            .ask(fi_version(1, 20))
            .is_err()
    );
}
