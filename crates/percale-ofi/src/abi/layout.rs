//! Compares sizes, offsets and values with libfabric's headers. A C program is generated from the tables that declare
//! the structures, compiled against the installed headers, and its output is compared. The sizes of the newest release
//! are also recorded below, so that a change is detected on a machine without headers.
//!
//! `PERCALE_LIBFABRIC_INCLUDE` names another directory of headers (2.6 or 1.17) to compare with.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::declare::Structure;
use super::*;

/// Returns all declared structures and tables.
fn structures() -> impl Iterator<Item = &'static Structure> {
    let all = [
        atomic::STRUCTURES,
        atomic::TABLES,
        cm::STRUCTURES,
        cm::TABLES,
        collective::STRUCTURES,
        collective::TABLES,
        domain::STRUCTURES,
        domain::TABLES,
        endpoint::STRUCTURES,
        endpoint::TABLES,
        eq::STRUCTURES,
        eq::TABLES,
        fabric::STRUCTURES,
        fabric::TABLES,
        info::STRUCTURES,
        provider::STRUCTURES,
        rma::STRUCTURES,
        rma::TABLES,
        tagged::STRUCTURES,
        tagged::TABLES,
        trigger::STRUCTURES,
    ];
    all.into_iter().flatten()
}

/// Returns the names and values of all constants. Negative values are sign-extended.
fn constants() -> impl Iterator<Item = &'static (&'static str, u64)> {
    let all = [
        atomic::CONSTANTS,
        collective::CONSTANTS,
        domain::CONSTANTS,
        endpoint::OPTIONS,
        eq::CONSTANTS,
        errno::ERRORS,
        fabric::CLASSES,
        fabric::COMMANDS,
        flags::COUNTS,
        flags::FLAGS,
        flags::MODES,
        flags::MR_MODES,
        flags::ORDERS,
        flags::SPECIAL,
        info::CONSTANTS,
        provider::CONSTANTS,
        tagged::CONSTANTS,
        trigger::CONSTANTS,
    ];
    all.into_iter().flatten()
}

/// The structures, fields (`structure.field`) and constants that 1.17 lacks.
const NOT_IN_1_17: &[&str] = &[
    "fi_mr_dmabuf",
    "fi_mr_auth_key",
    "fi_mr_xpu_desc",
    "fi_mr_attr.hmem_data",
    "fi_mr_attr.page_size",
    "fi_mr_attr.base_mr",
    "fi_mr_attr.sub_mr_cnt",
    "fi_ep_attr.xpu_ctx",
    "fi_domain_attr.max_ep_auth_key",
    "fi_domain_attr.max_group_id",
    "fi_domain_attr.max_cntr_value",
    "fi_domain_attr.max_err_cntr_value",
    "fi_domain_attr.max_xpu_ctx_cnt",
    "fi_cq_attr.xpu_ctx",
    "fi_cntr_attr.xpu_ctx",
    "fi_cq_err_entry.src_addr",
    "fi_ops_domain.xpu_ctx",
    "fi_ops_av.insert_auth_key",
    "fi_ops_av.lookup_auth_key",
    "fi_ops_av.set_user_id",
    "fi_ops_av.lookup2",
    "fi_ops_ep.export_xpu",
    "fi_ops_cq.export_xpu",
    "fi_ops_cntr.export_xpu",
    "FI_RESCAN",
    "FI_FIREWALL_ADDR",
    "FI_XPU",
    "FI_TAGGED_DIRECTED_RECV",
    "FI_TAGGED_MULTI_RECV",
    "FI_EXACT_DIRECTED_RECV",
    "FI_AUTH_KEY",
    "FI_AV_AUTH_KEY",
    "FI_SOCKADDR_IP",
    "FI_MR_XPU_DESC",
    "FI_MR_DMABUF",
    "FI_MR_SINGLE_USE",
    "FI_PROGRESS_CONTROL_UNIFIED",
    "FI_TAG_BITS",
    "FI_TAG_MPI",
    "FI_TAG_CCL",
    "FI_TAG_MAX_FORMAT",
    "FI_CLASS_PEER_CNTR",
    "FI_CLASS_PROFILE",
    "FI_CLASS_XPU_CTX",
    "FI_GET_FD",
    "FI_GET_MR_XPU_DESC",
    "FI_OPT_CUDA_API_PERMITTED",
    "FI_OPT_SHARED_MEMORY_PERMITTED",
    "FI_OPT_MAX_MSG_SIZE",
    "FI_OPT_MAX_TAGGED_SIZE",
    "FI_OPT_MAX_RMA_SIZE",
    "FI_OPT_MAX_ATOMIC_SIZE",
    "FI_OPT_INJECT_MSG_SIZE",
    "FI_OPT_INJECT_TAGGED_SIZE",
    "FI_OPT_INJECT_RMA_SIZE",
    "FI_OPT_INJECT_ATOMIC_SIZE",
    "FI_OPT_FIREWALL_ADDR",
    "FI_FLOAT16",
    "FI_BFLOAT16",
    "FI_FLOAT8_E4M3",
    "FI_FLOAT8_E5M2",
    "FI_DIFF",
    // In 1.17 this constant has another value, because it marks the end of the list.
    "FI_ATOMIC_OP_LAST",
    "FI_CNTR_EVENTS_BYTES",
    "FI_EPROTO",
    "FI_ENOMR",
    "FI_EFIREWALLADDR",
    "FI_MPI_IGNORE_TAG",
    "FI_MPI_IGNORE_PAYLOAD",
];

/// The output of a compiled program: sizes by structure, offsets by `structure.field`, values by constant.
struct Measured(HashMap<String, u64>);

impl Measured {
    fn get(&self, name: &str) -> u64 {
        *self.0.get(name).unwrap_or_else(|| panic!("the C program did not print {name}"))
    }
}

/// Returns the directory of the headers, if there is one.
fn include() -> Option<PathBuf> {
    let directory = std::env::var_os("PERCALE_LIBFABRIC_INCLUDE").map_or_else(|| "/usr/include".into(), PathBuf::from);
    directory.join("rdma/fabric.h").exists().then_some(directory)
}

/// Returns the version that the headers declare.
fn version(include: &Path) -> (u32, u32) {
    let text = std::fs::read_to_string(include.join("rdma/fabric.h")).unwrap();
    let value = |name: &str| {
        let line = text.lines().find(|line| line.contains("#define") && line.contains(name)).unwrap();
        line.split_whitespace().last().unwrap().parse().unwrap()
    };
    (value("FI_MAJOR_VERSION"), value("FI_MINOR_VERSION"))
}

/// Compiles and runs a program that prints everything that is not in `lacking`.
fn measure(include: &Path, lacking: &[&str]) -> Measured {
    let mut program = String::from("#include <stdio.h>\n#include <stddef.h>\n#include <string.h>\n");
    for header in ["fabric", "fi_domain", "fi_endpoint", "fi_eq", "fi_cm", "fi_rma", "fi_tagged", "fi_atomic"] {
        writeln!(program, "#include <rdma/{header}.h>").unwrap();
    }
    for header in ["fi_trigger", "fi_collective", "fi_ext", "fi_errno", "providers/fi_prov", "providers/fi_log"] {
        writeln!(program, "#include <rdma/{header}.h>").unwrap();
    }
    program.push_str("int main(void) {\n");
    let mut line = |name: &str, what: &str| {
        writeln!(program, "printf(\"{name} %llu\\n\", (unsigned long long)({what}));").unwrap();
    };
    for one in structures().filter(|one| !lacking.contains(&one.name)) {
        line(one.name, &format!("sizeof(struct {})", one.name));
        for (field, _) in one.fields {
            let path = format!("{}.{}", one.name, field.trim_start_matches("r#"));
            if !lacking.contains(&path.as_str()) {
                let what = format!("offsetof(struct {}, {})", one.name, field.trim_start_matches("r#"));
                line(&path, &what);
            }
        }
    }
    for (name, _) in constants().filter(|(name, _)| !lacking.contains(name)) {
        line(name, name);
    }
    program.push_str("return 0; }\n");

    let directory = std::env::temp_dir().join(format!("percale-layout-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let (source, binary) = (directory.join("layout.c"), directory.join("layout"));
    std::fs::write(&source, program).unwrap();
    let compiled = Command::new("cc").arg("-w").arg("-I").arg(include).arg("-o").arg(&binary).arg(&source).output();
    let compiled = compiled.expect("cc is installed, because Rust links with it");
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let printed = Command::new(&binary).output().unwrap();
    std::fs::remove_dir_all(&directory).unwrap();
    assert!(printed.status.success());
    let printed = String::from_utf8(printed.stdout).unwrap();
    let pair = |line: &str| {
        let (name, value) = line.split_once(' ').unwrap();
        (name.to_owned(), value.parse().unwrap())
    };
    Measured(printed.lines().map(pair).collect())
}

#[test]
fn layouts_and_values_match_the_headers() {
    let Some(include) = include() else {
        return percale_conformance::skipped(
            "libfabric",
            "layouts beside libfabric's headers",
            "libfabric-dev is not installed",
        );
    };
    let version = version(&include);
    let lacking = match version {
        (1, 17) => NOT_IN_1_17,
        (2, 6) => &[],
        (major, minor) => {
            let why = format!("the headers have version {major}.{minor}, not 1.17 or 2.6");
            return percale_conformance::skipped("libfabric", "layouts beside libfabric's headers", &why);
        }
    };
    let measured = measure(&include, lacking);
    let mut wrong = Vec::new();
    for one in structures().filter(|one| !lacking.contains(&one.name)) {
        let fields =
            one.fields.iter().map(|(field, at)| (format!("{}.{}", one.name, field.trim_start_matches("r#")), *at));
        let newer = fields.clone().find(|(path, _)| lacking.contains(&path.as_str()));
        // New fields are at the end, so the older structure ends where they begin.
        let mut size = newer.map_or(one.size, |(_, at)| at) as u64;
        if one.name == "fi_mr_modify" {
            // The last field is the structure that grew.
            size -= size_of::<fi_mr_attr>() as u64 - measured.get("fi_mr_attr");
        }
        let theirs = measured.get(one.name);
        // New fields that begin in the padding of the older structure do not enlarge it.
        if theirs != size.next_multiple_of(8) && theirs != size {
            wrong.push(format!("{}: {size} bytes, but {theirs} in the headers", one.name));
        }
        for (path, at) in fields.filter(|(path, _)| !lacking.contains(&path.as_str())) {
            let theirs = measured.get(&path);
            if theirs != at as u64 {
                wrong.push(format!("{path}: at {at}, but at {theirs} in the headers"));
            }
        }
    }
    for (name, value) in constants().filter(|(name, _)| !lacking.contains(name)) {
        let theirs = measured.get(name);
        if theirs != *value {
            wrong.push(format!("{name}: {value:#x}, but {theirs:#x} in the headers"));
        }
    }
    assert!(wrong.is_empty(), "libfabric {version:?}:\n{}", wrong.join("\n"));
    assert!(measured.0.len() > 700, "only {} values were compared", measured.0.len());
}

/// The sizes of all structures and tables of 2.6 in bytes, measured once by the test above.
const NEWEST: &[(&str, usize)] = &[
    ("fi_atomic_attr", 16),
    ("fi_msg_atomic", 72),
    ("fi_msg_fetch", 24),
    ("fi_msg_compare", 24),
    ("fi_ops_atomic", 112),
    ("fid_mc", 32),
    ("fi_ops_cm", 80),
    ("fid_av_set", 32),
    ("fi_collective_attr", 40),
    ("fi_collective_addr", 16),
    ("fi_msg_collective", 64),
    ("fi_ops_av_set", 56),
    ("fi_ops_collective", 96),
    ("fid_domain", 40),
    ("fi_av_attr", 48),
    ("fi_av_set_attr", 56),
    ("fid_av", 32),
    ("fid_mr", 40),
    ("fi_mr_dmabuf", 32),
    ("fi_mr_auth_key", 16),
    ("fi_mr_attr", 112),
    ("fi_mr_modify", 120),
    ("fi_ops_domain", 104),
    ("fi_ops_mr", 32),
    ("fi_ops_av", 96),
    ("fid_ep", 80),
    ("fid_pep", 40),
    ("fid_stx", 32),
    ("fi_msg", 48),
    ("fi_ops_ep", 72),
    ("fi_ops_msg", 80),
    ("fi_wait_attr", 16),
    ("fid_wait", 32),
    ("fi_mutex_cond", 16),
    ("fi_wait_pollfd", 24),
    ("fi_poll_attr", 8),
    ("fid_poll", 32),
    ("fi_eq_attr", 32),
    ("fi_eq_entry", 24),
    ("fi_eq_err_entry", 48),
    ("fi_eq_cm_entry", 16),
    ("fid_eq", 32),
    ("fi_cq_entry", 8),
    ("fi_cq_msg_entry", 24),
    ("fi_cq_data_entry", 40),
    ("fi_cq_tagged_entry", 48),
    ("fi_cq_err_entry", 88),
    ("fi_cq_attr", 48),
    ("fid_cq", 32),
    ("fi_cntr_attr", 32),
    ("fid_cntr", 32),
    ("fi_ops_wait", 16),
    ("fi_ops_poll", 32),
    ("fi_ops_eq", 48),
    ("fi_ops_cq", 72),
    ("fi_ops_cntr", 72),
    ("fid", 24),
    ("fid_fabric", 40),
    ("fi_ioc", 16),
    ("fi_context", 32),
    ("fi_context2", 64),
    ("fi_recv_context", 16),
    ("fi_alias", 16),
    ("fi_fid_var", 16),
    ("fi_fid_export", 24),
    ("fi_mr_raw_attr", 32),
    ("fi_mr_map_raw", 40),
    ("fi_mr_xpu_desc", 32),
    ("fi_param", 32),
    ("fi_ops", 56),
    ("fi_ops_fabric", 56),
    ("fi_info", 120),
    ("fi_tx_attr", 80),
    ("fi_rx_attr", 64),
    ("fi_ep_attr", 104),
    ("fi_domain_attr", 232),
    ("fi_fabric_attr", 32),
    ("fid_nic", 56),
    ("fi_device_attr", 48),
    ("fi_pci_attr", 6),
    ("fi_bus_attr", 12),
    ("fi_link_attr", 40),
    ("fi_provider", 72),
    ("fi_rma_iov", 24),
    ("fi_rma_ioc", 24),
    ("fi_msg_rma", 64),
    ("fi_ops_rma", 80),
    ("fi_msg_tagged", 64),
    ("fi_ops_tagged", 80),
    ("fi_trigger_threshold", 16),
    ("fi_trigger_var", 24),
    ("fi_trigger_xpu", 24),
    ("fi_triggered_context", 32),
    ("fi_triggered_context2", 64),
    ("fi_op_msg", 64),
    ("fi_op_tagged", 80),
    ("fi_op_rma", 80),
    ("fi_op_atomic", 88),
    ("fi_op_fetch_atomic", 112),
    ("fi_op_compare_atomic", 136),
    ("fi_op_cntr", 16),
    ("fi_deferred_work", 104),
];

#[test]
fn sizes_match_the_newest_release() {
    let ours: Vec<_> = structures().map(|one| (one.name, one.size)).collect();
    assert_eq!(ours, NEWEST);
}
