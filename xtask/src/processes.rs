//! The processes of this machine, read from /proc.

use rustix::process::{Pid, Signal, kill_process};
use std::fs;

/// Kills a process and all its descendants. The descendants are collected first, and parents are killed before their
/// children, so that no parent restarts a child.
pub(crate) fn end_with_children(id: u32) {
    let mut doomed = vec![id];
    let all = parents();
    let mut next = 0;
    while let Some(&parent) = doomed.get(next) {
        doomed.extend(all.iter().filter(|(_, its)| *its == parent).map(|(child, _)| *child));
        next += 1;
    }
    for id in doomed {
        if let Some(pid) = i32::try_from(id).ok().and_then(Pid::from_raw) {
            // The process may have ended in the meantime. This is not an error.
            kill_process(pid, Signal::KILL).ok();
        }
    }
}

/// Returns all processes with their parents.
fn parents() -> Vec<(u32, u32)> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let ids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    ids.filter_map(|id| Some((id, parent_in(&fs::read_to_string(format!("/proc/{id}/stat")).ok()?)?))).collect()
}

/// Returns the parent in a line of /proc/ID/stat: the second field after the name. The name is in parentheses and may
/// contain any characters.
fn parent_in(stat: &str) -> Option<u32> {
    let (_, after) = stat.rsplit_once(')')?;
    after.split_whitespace().nth(1)?.parse().ok()
}

/// Returns whether a process listens on this TCP port (IPv4 or IPv6).
pub(crate) fn listens_on(port: u16) -> bool {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(|file| fs::read_to_string(file).unwrap_or_default());
    tables.iter().any(|table| table.lines().skip(1).any(|line| is_listener(line, port)))
}

/// Returns a port that was free at the time of the call.
pub(crate) fn free_port() -> std::io::Result<u16> {
    Ok(std::net::TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}

fn is_listener(line: &str, port: u16) -> bool {
    const LISTEN: &str = "0A";
    let mut fields = line.split_whitespace().skip(1);
    let (Some(local), Some(_), Some(state)) = (fields.next(), fields.next(), fields.next()) else { return false };
    let Some((_, its)) = local.rsplit_once(':') else { return false };
    state == LISTEN && u16::from_str_radix(its, 16) == Ok(port)
}

#[cfg(test)]
mod tests {
    use super::{is_listener, parent_in};

    #[test]
    fn parent_is_parsed_behind_any_process_name() {
        assert_eq!(parent_in("17 (a) b) (c) S 4 17 17 0"), Some(4));
        assert_eq!(parent_in("17 nothing"), None);
    }

    #[test]
    fn only_listeners_on_the_port_match() {
        let listening = "   0: 0100007F:36B1 00000000:0000 0A 00000000:00000000 00:00000000";
        assert!(is_listener(listening, 14001));
        assert!(!is_listener(listening, 14002));
        assert!(!is_listener(&listening.replace(" 0A ", " 01 "), 14001));
    }
}
