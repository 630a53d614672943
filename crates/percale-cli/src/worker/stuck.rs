//! Where the threads of a process are that does not answer.

use std::fs;
use std::path::Path;

/// Threads that are named: a process has no more that are worth it.
const MOST: usize = 64;

/// The threads of a process and of its descendants, with the kernel's information on each: its state, its system call, and where it waits.
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
    // After the name in brackets, which may hold spaces.
    let stat = word(task, "stat");
    let state = stat.rsplit_once(") ").map_or("?", |(_, rest)| rest.get(..1).unwrap_or("?"));
    let call = word(task, "syscall");
    let call = call.split_whitespace().next().unwrap_or("?");
    format!("{} of {process}, state {state}, call {call}, in {}", word(task, "comm"), word(task, "wchan"))
}

/// What one of the thread's files in /proc says; nothing where it may not be read.
fn word(task: &Path, name: &str) -> String {
    fs::read_to_string(task.join(name)).unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_sleeps_is_said_to_be_in_that_call() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let mut said = threads_of(child.id());
        for _ in 0..2000 {
            if said.contains("call 230") {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
            said = threads_of(child.id());
        }
        child.kill().unwrap();
        child.wait().unwrap();
        let expected = format!("sleep of {}, state S, call 230, in ", child.id());
        assert!(said.contains(&expected), "{said}");
        assert!(threads_of(std::process::id()).contains(&format!("of {}", std::process::id())));
    }
}
