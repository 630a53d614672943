//! Measures UCX with its own benchmark `ucx_perftest`.

use super::cases::{Op, PeerCase};
use super::pair;
use crate::failure::{Failure, Outcome};
use crate::program::Program;

const NAME: &str = "ucx_perftest";

/// The UCX transports that are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Setup {
    /// All transports that suit the case.
    Usual,
    /// Only mapped memory. It is the fastest for one-sided operations and checks no access rights.
    PosixAlone,
}

impl Setup {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Usual => "UCX",
            Self::PosixAlone => "UCX posix",
        }
    }
}

/// Returns the setups with which a case is measured.
pub(super) fn setups(case: &PeerCase) -> &'static [Setup] {
    match case.op {
        Op::Allreduce => &[],
        op if case.transport == "shm" && op.is_one_sided() => &[Setup::Usual, Setup::PosixAlone],
        _ => &[Setup::Usual],
    }
}

/// Returns the p50 of the one-way latency (or of the operation) in nanoseconds, messages per second, or bytes per
/// second.
pub(super) fn measure(case: &PeerCase, setup: Setup) -> Outcome<f64> {
    let tls = match (case.transport, setup) {
        (_, Setup::PosixAlone) => "posix",
        ("shm", Setup::Usual) => "posix,cma",
        _ => "tcp",
    };
    let test = match case.op {
        Op::TaggedLatency => "tag_lat",
        Op::TaggedRate | Op::Bandwidth => "tag_bw",
        Op::PutLatency => "ucp_put_lat",
        Op::Get => "ucp_get",
        Op::FetchAddAlone => "ucp_fadd",
        Op::CompareSwap => "ucp_cswap",
        Op::Allreduce => return Err(Failure::new(format!("{NAME} measures no collectives"))),
    };
    let iterations = iterations(case);
    let printed = pair::run(NAME, |program, port, is_client| {
        let program = program.env("UCX_TLS", tls).env("UCX_NET_DEVICES", "lo").env("UCX_WARN_UNUSED_ENV_VARS", "n");
        let program = program.args(["-p", &port.to_string()]);
        if !is_client {
            return program;
        }
        let (bytes, warmup) = (case.bytes.to_string(), (iterations / 5).max(100).to_string());
        let program = program.args(["127.0.0.1", "-t", test, "-s", &bytes]);
        program.args(["-n", &iterations.to_string(), "-w", &warmup, "-v", "-f"])
    })?;
    let column = |name| column(&printed, name);
    let figure = match case.op {
        op if op.is_time() => column("50.0_percentile_lat").map(|us| us * 1e3),
        Op::TaggedRate => column("overall_mr"),
        // The program's megabytes have 2^20 bytes, so the rate is computed from the message rate.
        _ => column("overall_mr").map(|rate| rate * case.bytes as f64),
    };
    figure.filter(|value| *value > 0.0).ok_or_else(|| Failure::new(format!("unexpected output of {NAME}: {printed}")))
}

/// Returns the number of iterations that take about half a second.
fn iterations(case: &PeerCase) -> u64 {
    match (case.transport, case.op, case.bytes) {
        ("shm", Op::TaggedRate, _) => 5_000_000,
        ("shm", _, ..=1024) => 1_000_000,
        ("shm", _, ..=8192) => 300_000,
        ("shm", _, ..=131_072) => 60_000,
        ("shm", ..) => 5_000,
        (_, Op::TaggedRate, _) => 500_000,
        (_, _, ..=8192) => 80_000,
        (_, _, ..=131_072) => 15_000,
        _ => 1_000,
    }
}

/// Returns a result from the last row of the CSV output (`-v`) by the name of its column, because columns differ
/// between versions.
fn column(printed: &str, name: &str) -> Option<f64> {
    let mut lines = printed.lines().skip_while(|line| !line.starts_with("iterations,"));
    let heads: Vec<&str> = lines.next()?.split(',').map(str::trim).collect();
    let row = lines.filter(|line| line.split(',').count() == heads.len()).last()?;
    let position = heads.iter().position(|head| *head == name)?;
    row.split(',').nth(position)?.trim().parse().ok()
}

/// Returns the version, for the document.
pub(super) fn version() -> Option<String> {
    let output = Program::new("ucx_info").arg("-v").output().ok()?;
    let line = output.stdout.lines().find(|line| line.contains("ersion"))?;
    Some(format!("UCX {}", line.split_whitespace().last()?))
}

#[cfg(test)]
mod tests {
    use super::column;

    #[test]
    fn columns_are_found_by_name() {
        let printed = "some warning\n\
            iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr\n\
            200000,0.403,0.495,0.495,15.42,15.42,2020711,2020712\n";
        assert_eq!(column(printed, "50.0_percentile_lat"), Some(0.403));
        assert_eq!(column(printed, "overall_mr"), Some(2_020_712.0));
        assert_eq!(column(printed, "other"), None);
        assert_eq!(column("iterations,a\n", "a"), None);
    }
}
