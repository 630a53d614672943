//! A change wakes waiting threads, and changes have no additional cost while no thread waits.

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{Memory, PAGE, alone, done, monitor};
use crate::journal::{MonitorDoorbell, WaitingThread};

/// Returns whether the doorbell rings within this number of seconds. Changes by other threads also ring it.
fn rings(waiting: &WaitingThread<'_>, seconds: i64) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(waiting.descriptor(), PollFlags::IN)];
    poll(&mut fds, Some(&Timespec { tv_sec: seconds, tv_nsec: 0 })).expect("the descriptor can be polled") == 1
}

/// Requirements: MON-048.
#[test]
fn change_wakes_waiting_threads() {
    let _alone = alone();
    let Some(monitor) = monitor() else { return };
    let memory = Memory::anonymous(8);
    for page in 0..8 {
        let waiting = WaitingThread::on(monitor.doorbell());
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| rings(&waiting, 20));
            done(libc::SYS_munmap, [memory.at(page), PAGE, 0, 0, 0, 0]);
            assert!(waiter.join().expect("the thread ends"), "page {page}");
        });
        waiting.silence();
        drop(waiting);
    }
}

/// Requirements: MON-048.
#[test]
fn pages_dropped_from_a_file_wake_waiting_threads() {
    let _alone = alone();
    let Some(monitor) = monitor() else { return };
    let (memory, fd) = Memory::shared(2);
    let slot = match monitor.watch(memory.all()).expect("the memory can be watched") {
        super::super::Watch::Inode(slot) => slot,
        super::super::Watch::Records => panic!("a shared mapping"),
    };
    // The memory is no longer mapped here, so that only the file reports the change.
    done(libc::SYS_munmap, [memory.start, 2 * PAGE, 0, 0, 0, 0]);
    let waiting = WaitingThread::on(monitor.doorbell());
    let before = monitor.page().inode(slot);
    done(libc::SYS_ftruncate, [fd as u64, 0, 0, 0, 0, 0]);
    assert!(monitor.page().inode(slot) > before);
    assert!(rings(&waiting, 20));
    drop(waiting);
    monitor.unwatch(slot);
}

/// Requirements: MON-049.
#[test]
fn doorbell_is_not_rung_without_waiting_threads() {
    let _alone = alone();
    let Some(monitor) = monitor() else { return };
    let memory = Memory::anonymous(1);
    let change = || {
        done(libc::SYS_madvise, [memory.start, PAGE, libc::MADV_DONTNEED as u64, 0, 0, 0]);
        memory.touch();
    };
    // The doorbell rings at most once, for the last thread that waited.
    change();
    let rung = monitor.doorbell().rung();
    for _ in 0..1000 {
        change();
    }
    assert_eq!(monitor.doorbell().rung(), rung);
    // Threads that wait later miss no change.
    monitor.doorbell().silence();
    for _ in 0..1000 {
        change();
    }
    assert!(monitor.doorbell().rung() > rung);
    let mut fds = [PollFd::from_borrowed_fd(monitor.doorbell().descriptor(), PollFlags::IN)];
    assert_eq!(poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })), Ok(1));
}
