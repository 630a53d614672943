//! Describes the threads of a process that does not answer.

use std::fs;
use std::path::Path;

/// The maximum number of threads described.
const MOST: usize = 64;

/// Describes the threads of a process and of its descendants: the state, the system call, and the kernel function in
/// which each waits.
pub(super) fn threads_of(process: u32) -> String {
    let (mut processes, mut threads) = (vec![process], Vec::new());
    while let Some(process) = processes.pop() {
        let Ok(tasks) = fs::read_dir(format!("/proc/{process}/task")) else { continue };
        for task in tasks.flatten().map(|entry| entry.path()).take(MOST.saturating_sub(threads.len())) {
            let children = word(&task, "children");
            processes.extend(children.split_whitespace().filter_map(|child| child.parse::<u32>().ok()));
            threads.push(describe(process, &task));
        }
    }
    format!("its threads: {}", threads.join("; "))
}

fn describe(process: u32, task: &Path) -> String {
    // The state follows the name in parentheses, which may contain spaces.
    let stat = word(task, "stat");
    let state = stat.rsplit_once(") ").map_or("?", |(_, rest)| rest.get(..1).unwrap_or("?"));
    let call = word(task, "syscall");
    let call = call.split_whitespace().next().unwrap_or("?");
    format!("{} of {process}, state {state}, call {call}, in {}", word(task, "comm"), word(task, "wchan"))
}

/// Returns the content of one of the thread's files in /proc, or an empty string if it cannot be read.
fn word(task: &Path, name: &str) -> String {
    fs::read_to_string(task.join(name)).unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sleeping_process_is_described_with_its_call() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let expected = format!("sleep of {}, state S, call {}, in ", child.id(), libc::SYS_clock_nanosleep);
        let mut described = threads_of(child.id());
        for _ in 0..2000 {
            if described.contains(&expected) {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
            described = threads_of(child.id());
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(described.contains(&expected), "{described}");
        assert!(threads_of(std::process::id()).contains(&format!("of {}", std::process::id())));
    }
}
