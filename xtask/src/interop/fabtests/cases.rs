//! The list of cases, and the arguments of the programs of each case.

/// How the programs of a case are run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// One program.
    Alone,
    /// One program with a wrong argument, which must not find a provider.
    Refused,
    /// A server and a client that exchange their addresses over a socket.
    Datagrams,
    /// A server that listens and a client that connects.
    Connected,
    /// Like `Connected`, with both bound to ports.
    Bound,
    /// Like `Connected`, with an additional socket.
    Beside,
    /// A server that runs until it is killed, and a client that reads its requests from this file.
    Served(&'static str),
    /// A server, and a client with a list of tests. In the list, `PROVIDER` is replaced by the provider's name.
    Listed(&'static str),
    /// This number of processes with the same arguments.
    Ranks(usize),
}

/// A case. Programs and options that exist in only one generation are in cases of that generation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FabtestsCase {
    /// The program's name without its prefix, and its arguments. `%` was replaced.
    pub(super) line: String,
    pub(super) shape: Shape,
}

/// The generation of fabtests. Programs were renamed and options were added between generations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Generation {
    /// The fabtests of libfabric 1.
    Older,
    /// The fabtests of libfabric 2.
    Newer,
}

/// Cases of one shape. `%` is replaced by each of the listed variants.
type List = (Shape, &'static [(&'static str, &'static [&'static str])]);

const COMMON: [List; 13] = [
    (
        Shape::Alone,
        &[
            ("getinfo_test -s 127.0.0.1 127.0.0.1", &[]),
            ("av_test -g 127.0.0.1 -n 1 -s 127.0.0.1 -e rdm", &[]),
            ("dom_test -n 2", &[]),
            ("eq_test", &[]),
            ("cq_test", &[]),
            ("mr_test", &[]),
            ("cntr_test", &[]),
            ("mr_cache_evict", &[]),
            ("loopback", &[]),
        ],
    ),
    (Shape::Refused, &[("% g00n13s", &["rdm", "msg", "dgram"])]),
    (
        Shape::Datagrams,
        &[
            ("av_xfer -e rdm", &[]),
            ("rdm%", &["", " -U"]),
            ("rdm_rma_event", &[]),
            ("rdm_rma_trigger", &[]),
            ("rdm_tagged_peek", &[]),
            ("multi_mr -e rdm -V", &[]),
            ("recv_cancel -e rdm -V", &[]),
            ("unexpected_msg -e rdm -I 10", &[]),
            ("rdm_multi_client -C 10 -I 5%", &["", " -U"]),
            ("rdm_multi_domain -V", &[]),
            ("resmgmt_test%", &["", " -t", " -j"]),
            ("rma_bw -e rdm -o % -I 5", &["write", "read", "writedata", "write -U", "read -U", "writedata -U"]),
            ("rdm_atomic -I 5 -o all%", &["", " -U"]),
            ("rdm_cntr_pingpong -I 5", &[]),
            ("multi_recv -e rdm -I 5", &[]),
            ("rdm_pingpong -I 5%", &["", " -U", " -v", " -v -U", " -k -v"]),
            ("rdm_tagged_pingpong -I 5%", &["", " -U", " -v", " -v -U"]),
            ("rdm_tagged_bw -I 5%", &["", " -U", " -v", " -v -U"]),
            ("dgram", &[]),
            ("dgram_pingpong -I 5", &[]),
        ],
    ),
    (
        Shape::Connected,
        &[
            ("rdm_shared_av", &[]),
            // The program counts the messages that exchange the addresses.
            ("rdm_deferred_wq -T %", &["msg", "tagged", "rma", "atomic", "f_atomic", "c_atomic"]),
            ("cm_data", &[]),
            ("msg", &[]),
            ("msg_epoll", &[]),
            ("shared_ctx -e msg%", &["", " --no-tx-shared-ctx", " --no-rx-shared-ctx"]),
            ("multi_mr -e msg -V", &[]),
            ("unexpected_msg -e msg -I 10", &[]),
            ("msg_pingpong -I 5%", &["", " -v", " -k"]),
            ("msg_bw -I 5%", &["", " -v"]),
            ("rma_bw -e msg -o % -I 5", &["write", "read", "writedata"]),
            ("multi_recv -e msg -I 5", &[]),
        ],
    ),
    // In these programs the two processes exchange their addresses themselves. The client needs only the server's
    // address.
    (
        Shape::Bound,
        &[
            ("shared_ctx%", &["", " --no-tx-shared-ctx", " --no-rx-shared-ctx"]),
            ("scalable_ep", &[]),
            ("msg_sockets", &[]),
        ],
    ),
    (Shape::Served(STRESS), &[("rdm_stress -C %", &["1", "8"])]),
    (Shape::Ranks(3), &[("multinode_coll", &[])]),
    (Shape::Listed(MESSAGES), &[("ubertest messages", &[])]),
    (Shape::Listed(CONNECTED), &[("ubertest connected", &[])]),
    (Shape::Listed(SELECTIVE), &[("ubertest selective completion", &[])]),
    (Shape::Listed(WAITS), &[("ubertest waits", &[])]),
    (Shape::Listed(REMOTE), &[("ubertest remote access", &[])]),
    (Shape::Listed(ATOMICS), &[("ubertest atomics", &[])]),
];

const OLDER: [List; 5] = [
    (Shape::Ranks(3), &[("multinode -C %", &["msg", "rma"])]),
    (
        Shape::Datagrams,
        &[
            ("cq_data -e rdm", &[]),
            ("multi_ep -e rdm -v", &[]),
            ("msg_inject% -v", &INJECT),
            ("bw -e rdm -v -T 1%", &["", " -U"]),
        ],
    ),
    // The program exchanges no data outside the fabric.
    (Shape::Bound, &[("poll -t %", &["queue", "counter"])]),
    (Shape::Connected, &[("cq_data -e msg", &[]), ("bw -e msg -v -T 1", &[])]),
    (Shape::Beside, &[("multi_ep -e msg -v", &[])]),
];

const NEWER: [List; 5] = [
    (Shape::Ranks(3), &[("multinode -x %", &["msg", "rma"])]),
    (Shape::Alone, &[("setopt_test", &[])]),
    (
        Shape::Datagrams,
        &[
            ("cq_data -e rdm -o %", &["senddata", "writedata"]),
            ("multi_ep -e rdm -v%", &WAYS),
            ("inject_test% -v", &INJECT),
            ("flood -e rdm -v -T 1%", &["", " -U"]),
            ("rma_pingpong -e rdm -o % -I 5", &["write", "writedata"]),
            ("rma_tx_completion -e rdm -o % -I 5", &["write", "writedata"]),
            ("rdm_atomic -I 5 -o all -v%", &["", " -U"]),
            ("rdm_bw -I 5%", &["", " -v -U"]),
            ("rdm_bw_mt -I 20 -n %", &["2", "8", "8 -g"]),
            ("unmap_mem -e rdm", &[]),
            // This is a program of EFA, which not all builds contain. It expects EFA's own error numbers from a target
            // that closes its regions.
            ("mr_abort -T abort -o % -S 65536 -W 64 -N 4", &["write", "read", "writedata"]),
            ("mr_abort -T partial -o write -S 65536 -W 64", &[]),
        ],
    ),
    (Shape::Connected, &[("cq_data -e msg -o %", &["senddata", "writedata"]), ("flood -e msg -v -T 1", &[])]),
    (Shape::Beside, &[("multi_ep -e msg -O 127.0.0.1 -v%", &WAYS)]),
];

/// Variants of multi_ep: a shared address vector, shared queues, and threading without locks.
const WAYS: [&str; 5] = ["", " -A", " -Q", " -A -Q", " -A -Q --threading completion"];

/// Variants of inject_test: with the flags of the endpoint, and with the flags of a call.
const INJECT: [&str; 4] = [" -A inject", " -N -A inject", " -A inj_complete", " -N -A inj_complete"];

const STRESS: &str = include_str!("configs/stress.json");
const MESSAGES: &str = include_str!("configs/messages.test");
const CONNECTED: &str = include_str!("configs/connected.test");
const SELECTIVE: &str = include_str!("configs/selective.test");
const WAITS: &str = include_str!("configs/waits.test");
const REMOTE: &str = include_str!("configs/remote.test");
const ATOMICS: &str = include_str!("configs/atomics.test");

impl Generation {
    /// Returns all cases, grouped by shape.
    pub(super) fn cases(self) -> Vec<FabtestsCase> {
        let own: &[List] = match self {
            Self::Older => &OLDER,
            Self::Newer => &NEWER,
        };
        let every = COMMON.iter().chain(own).flat_map(|(shape, lines)| lines.iter().map(move |line| (*shape, line)));
        every
            .flat_map(|(shape, (line, ways))| each_way(line, ways).map(move |line| FabtestsCase { line, shape }))
            .collect()
    }
}

/// Returns a line for each of its variants.
fn each_way<'a>(line: &'a str, ways: &'a [&str]) -> impl Iterator<Item = String> {
    let ways = if ways.is_empty() { &[""] } else { ways };
    ways.iter().map(|way| line.replace('%', way))
}

#[cfg(test)]
mod tests {
    use super::{Generation, each_way};

    #[test]
    fn case_variants_replace_their_placeholder() {
        assert!(each_way("rdm%", &["", " -U"]).eq(["rdm", "rdm -U"]));
        assert!(each_way("flood", &[]).eq(["flood"]));
    }

    #[test]
    fn no_case_is_named_twice() {
        for generation in [Generation::Older, Generation::Newer] {
            let mut lines: Vec<String> = generation.cases().into_iter().map(|case| case.line).collect();
            let count = lines.len();
            lines.sort();
            lines.dedup();
            assert_eq!(lines.len(), count, "{generation:?}");
        }
    }
}
