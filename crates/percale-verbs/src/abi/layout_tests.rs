//! Compares the structures and constants of this module with libibverbs' own headers. A C program prints the values of
//! the headers.

use std::fmt::Write as _;
use std::io::Write as _;
use std::mem::offset_of;
use std::process::{Command, Stdio};

use super::*;

/// A value to compare, as the C expression and the value in Rust.
type Fact = (String, usize);

/// Returns the size of a structure and the offsets of its fields. A field is given by its Rust name. If the C name
/// differs, `as` and the C name follow.
macro_rules! facts {
    ($($rust:ty = $c:literal { $($($field:ident).+ $(as $in_c:literal)?),* $(,)? })*) => {{
        let mut all: Vec<Fact> = Vec::new();
        $(
            all.push((format!("sizeof({})", $c), size_of::<$rust>()));
            all.push((format!("_Alignof({})", $c), align_of::<$rust>()));
            $(
                let name = concat!($(".", stringify!($field)),+).trim_start_matches('.');
                $(let name = { let _ = name; $in_c };)?
                all.push((format!("offsetof({}, {name})", $c), offset_of!($rust, $($field).+)));
            )*
        )*
        all
    }};
}

fn facts() -> Vec<Fact> {
    facts! {
        Device = "struct ibv_device" {
            ops as "_ops", node_type, transport_type, name, dev_name, dev_path, ibdev_path,
        }
        ContextOps = "struct ibv_context_ops" {
            alloc_mw, bind_mw, dealloc_mw, poll_cq, req_notify_cq, post_srq_recv, post_send, post_recv,
        }
        Context = "struct ibv_context" { device, ops, cmd_fd, async_fd, num_comp_vectors, mutex, abi_compat }
        DeviceAttr = "struct ibv_device_attr" {
            fw_ver, node_guid, sys_image_guid, max_mr_size, page_size_cap, vendor_id, vendor_part_id, hw_ver, max_qp,
            max_qp_wr, device_cap_flags, max_sge, max_sge_rd, max_cq, max_cqe, max_mr, max_pd, max_qp_rd_atom,
            max_ee_rd_atom, max_res_rd_atom, max_qp_init_rd_atom, max_ee_init_rd_atom, atomic_cap, max_ee, max_rdd, max_mw,
            max_raw_ipv6_qp, max_raw_ethy_qp, max_mcast_grp, max_mcast_qp_attach, max_total_mcast_qp_attach, max_ah,
            max_fmr, max_map_per_fmr, max_srq, max_srq_wr, max_srq_sge, max_pkeys, local_ca_ack_delay, phys_port_cnt,
        }
        PortAttr = "struct ibv_port_attr" {
            state, max_mtu, active_mtu, gid_tbl_len, port_cap_flags, max_msg_sz, bad_pkey_cntr, qkey_viol_cntr,
            pkey_tbl_len, lid, sm_lid, lmc, max_vl_num, sm_sl, subnet_timeout, init_type_reply, active_width,
            active_speed, phys_state, link_layer, flags, port_cap_flags2,
        }
        Pd = "struct ibv_pd" { context, handle }
        Mr = "struct ibv_mr" { context, pd, addr, length, handle, lkey, rkey }
        Mw = "struct ibv_mw" { context, pd, rkey, handle, kind as "type" }
        MwBindInfo = "struct ibv_mw_bind_info" { mr, addr, length, mw_access_flags }
        MwBind = "struct ibv_mw_bind" { wr_id, send_flags, bind_info }
        CompChannel = "struct ibv_comp_channel" { context, fd, refcnt }
        Cq = "struct ibv_cq" {
            context, channel, cq_context, handle, cqe, mutex, cond, comp_events_completed, async_events_completed,
        }
        Qp = "struct ibv_qp" {
            context, qp_context, pd, send_cq, recv_cq, srq, handle, qp_num, state, qp_type, mutex, cond,
            events_completed,
        }
        QpCap = "struct ibv_qp_cap" { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data }
        QpInitAttr = "struct ibv_qp_init_attr" { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all }
        GlobalRoute = "struct ibv_global_route" { dgid, flow_label, sgid_index, hop_limit, traffic_class }
        AlignedGid = "union ibv_gid" { raw }
        AhAttr = "struct ibv_ah_attr" { grh, dlid, sl, src_path_bits, static_rate, is_global, port_num }
        QpAttr = "struct ibv_qp_attr" {
            qp_state, cur_qp_state, path_mtu, path_mig_state, qkey, rq_psn, sq_psn, dest_qp_num, qp_access_flags, cap,
            ah_attr, alt_ah_attr, pkey_index, alt_pkey_index, en_sqd_async_notify, sq_draining, max_rd_atomic,
            max_dest_rd_atomic, min_rnr_timer, port_num, timeout, retry_cnt, rnr_retry, alt_port_num, alt_timeout,
            rate_limit,
        }
        Sge = "struct ibv_sge" { addr, length, lkey }
        SendWr = "struct ibv_send_wr" {
            wr_id, next, sg_list, num_sge, opcode, send_flags, imm_data, wr,
            wr.rdma.remote_addr, wr.rdma.rkey, wr.atomic.remote_addr, wr.atomic.compare_add, wr.atomic.swap,
            wr.atomic.rkey, remote_srqn as "qp_type.xrc.remote_srqn", bind_mw, bind_mw.mw, bind_mw.rkey,
            bind_mw.bind_info,
        }
        RecvWr = "struct ibv_recv_wr" { wr_id, next, sg_list, num_sge }
        Wc = "struct ibv_wc" {
            wr_id, status, opcode, vendor_err, byte_len, imm_data, qp_num, src_qp, wc_flags, pkey_index, slid, sl,
            dlid_path_bits,
        }
        AsyncEvent = "struct ibv_async_event" { element, event_type }
    }
}

/// Evaluates the expressions with the C headers. Returns `None` if there are no headers or no compiler.
fn in_c(what: &str, expressions: &[&str]) -> Option<Vec<i64>> {
    let mut source =
        String::from("#include <stddef.h>\n#include <stdio.h>\n#include <infiniband/verbs.h>\nint main(void) {\n");
    for expression in expressions {
        writeln!(source, "  printf(\"%lld\\n\", (long long)({expression}));").expect("writing to a string");
    }
    source.push_str("  return 0;\n}\n");
    let program = std::env::temp_dir().join(format!("percale-verbs-{what}-{}", std::process::id()));
    let compile = |what: &str, source: &str| {
        let mut compiler = Command::new("cc")
            .args(["-x", "c", what, "-o"])
            .arg(&program)
            .arg("-")
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .ok()?;
        compiler.stdin.take().expect("a pipe").write_all(source.as_bytes()).expect("the compiler reads");
        Some(compiler.wait_with_output().expect("the compiler ends"))
    };
    let Some(headers) = compile("-E", "#include <infiniband/verbs.h>\n") else {
        println!("skipped (C compiler): cc is not installed");
        return None;
    };
    if !headers.status.success() {
        println!("skipped (libibverbs): the headers are not installed (libibverbs-dev)");
        return None;
    }
    let compiled = compile("-std=gnu11", &source).expect("the compiler is installed");
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let message = Command::new(&program).output().expect("the program runs");
    std::fs::remove_file(&program).expect("the program file exists");
    let message = String::from_utf8(message.stdout).expect("the program prints numbers");
    Some(message.lines().map(|line| line.parse().expect("a number")).collect())
}

#[test]
fn structures_are_laid_out_as_in_libibverbs() {
    let facts = facts();
    let names: Vec<&str> = facts.iter().map(|(name, _)| name.as_str()).collect();
    let Some(theirs) = in_c("layout", &names) else { return };
    assert_eq!(theirs.len(), facts.len());
    let wrong = facts.iter().zip(theirs).filter(|((_, ours), theirs)| i64::try_from(*ours) != Ok(*theirs));
    let wrong: Vec<_> = wrong.collect();
    assert!(wrong.is_empty(), "different values ((name, Rust), C): {wrong:#?}");
    assert!(facts.len() > 200, "only {} facts were compared", facts.len());
}

#[test]
fn constants_match_libibverbs() {
    let names: Vec<&str> = numbers::ALL.iter().map(|(name, _)| *name).collect();
    let Some(theirs) = in_c("constants", &names) else { return };
    assert_eq!(theirs.len(), names.len());
    for ((name, ours), theirs) in numbers::ALL.iter().zip(theirs) {
        assert_eq!(*ours, theirs, "{name}");
    }
}
