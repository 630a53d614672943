//! Measures libfabric with its own `fi_pingpong` over its tcp and shm providers. That program prints only a mean.

use super::cases::{Op, PeerCase};
use super::pair;
use crate::failure::{Failure, Outcome};
use crate::program::Program;

const NAME: &str = "fi_pingpong";

/// Returns whether the program measures a case. It measures only round trips.
pub(super) fn measures(case: &PeerCase) -> bool {
    case.op == Op::TaggedLatency
}

/// Returns the mean one-way latency in nanoseconds.
pub(super) fn measure(case: &PeerCase) -> Outcome<f64> {
    let iterations = match (case.transport, case.bytes) {
        ("shm", ..=8192) => 200_000,
        (_, ..=8192) => 50_000,
        (_, ..=131_072) => 10_000,
        _ => 1_000,
    };
    let printed = pair::run(NAME, |program, port, is_client| {
        let (port, bytes, count) = (port.to_string(), case.bytes.to_string(), iterations.to_string());
        let program = program.args(["-p", case.transport, "-e", "rdm", "-m", "tagged", "-I", &count, "-S", &bytes]);
        if is_client { program.args(["-P", &port, "127.0.0.1"]) } else { program.args(["-B", &port]) }
    })?;
    one_way(&printed).ok_or_else(|| Failure::new(format!("unexpected output of {NAME}: {printed}")))
}

/// Returns the column `usec/xfer` of the last row. It is counted from the end, because a version may add fields at the
/// start of a row.
fn one_way(printed: &str) -> Option<f64> {
    let mut lines = printed.lines().skip_while(|line| !line.contains("usec/xfer"));
    let heads: Vec<&str> = lines.next()?.split_whitespace().collect();
    let position = heads.iter().position(|head| *head == "usec/xfer")?;
    let row: Vec<&str> = lines.filter(|line| !line.trim().is_empty()).last()?.split_whitespace().collect();
    let figure: f64 = row.get(row.len().checked_sub(heads.len() - position)?)?.parse().ok()?;
    (figure > 0.0).then_some(figure * 1e3)
}

/// Returns the version, for the document.
pub(super) fn version() -> Option<String> {
    let output = Program::new("fi_info").arg("--version").output().ok()?;
    let line = output.stdout.lines().find_map(|line| line.strip_prefix("libfabric: "))?;
    Some(format!("libfabric {line}"))
}

#[cfg(test)]
mod tests {
    use super::one_way;

    #[test]
    fn the_mean_is_read() {
        let printed = "bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec\n\
            8       20k     =20k     312k        0.33s      0.98       8.14       0.12\n";
        assert_eq!(one_way(printed).map(f64::round), Some(8140.0));
        assert_eq!(one_way("nothing"), None);
    }
}
