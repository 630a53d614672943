/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * The system calls that are known to leave pinned pages where they are, with the reasons.
 *
 * ROW(x86-64, aarch64, name) has the numbers of a call on both processors. OLD(x86-64, name) is a call that aarch64
 * does not have. `cargo xtask bpf` compares the numbers with the kernel's headers (numbers.c).
 *
 * A call that has no row here, and no separate case in calls.h or pindown.bpf.c, counts as a change of everything as
 * soon as it changes a count of pages or releases the lock of the address space. This is correct for every unknown
 * call, and cheap for calls that are rarely made (mount, swapoff, init_module, ...). The calls without a row that have
 * separate cases are open, openat, open_by_handle_at, process_madvise and ioctl.
 */
#ifndef PINDOWN_QUIET_H
#define PINDOWN_QUIET_H

/*
 * These calls affect pages only by transferring bytes through the mappings of the caller: pages are brought in, or are
 * copied before they are written, as in an exception. If such a call holds the lock of the address space for writing (a
 * ring that is mapped, a stack that grows), the release counts as a change of everything.
 */
#define CALLS_THAT_COPY(ROW, OLD) \
	/* moves bytes between the caller's memory and a file, a pipe, a socket or the kernel */ \
	ROW(0, 63, read) ROW(1, 64, write) ROW(17, 67, pread64) ROW(18, 68, pwrite64) ROW(19, 65, readv) \
	ROW(20, 66, writev) ROW(295, 69, preadv) ROW(296, 70, pwritev) ROW(327, 286, preadv2) ROW(328, 287, pwritev2) \
	ROW(40, 71, sendfile) ROW(275, 76, splice) ROW(276, 77, tee) ROW(278, 75, vmsplice) \
	ROW(326, 285, copy_file_range) ROW(187, 213, readahead) ROW(221, 223, fadvise64) OLD(78, getdents) \
	ROW(217, 61, getdents64) ROW(8, 62, lseek) ROW(26, 227, msync) ROW(27, 232, mincore) ROW(318, 278, getrandom) \
	ROW(310, 270, process_vm_readv) ROW(311, 271, process_vm_writev) ROW(101, 117, ptrace) ROW(103, 116, syslog) \
	/* uses sockets and message queues */ \
	ROW(41, 198, socket) ROW(53, 199, socketpair) ROW(42, 203, connect) ROW(43, 202, accept) \
	ROW(288, 242, accept4) ROW(49, 200, bind) ROW(50, 201, listen) ROW(48, 210, shutdown) ROW(44, 206, sendto) \
	ROW(45, 207, recvfrom) ROW(46, 211, sendmsg) ROW(47, 212, recvmsg) ROW(307, 269, sendmmsg) \
	ROW(299, 243, recvmmsg) ROW(51, 204, getsockname) ROW(52, 205, getpeername) ROW(54, 208, setsockopt) \
	ROW(55, 209, getsockopt) ROW(68, 186, msgget) ROW(69, 189, msgsnd) ROW(70, 188, msgrcv) ROW(71, 187, msgctl) \
	ROW(64, 190, semget) ROW(65, 193, semop) ROW(220, 192, semtimedop) ROW(66, 191, semctl) ROW(240, 180, mq_open) \
	ROW(241, 181, mq_unlink) ROW(242, 182, mq_timedsend) ROW(243, 183, mq_timedreceive) ROW(244, 184, mq_notify) \
	ROW(245, 185, mq_getsetattr) ROW(29, 194, shmget) ROW(31, 195, shmctl) \
	/* waits, or sets up objects that are waited for */ \
	OLD(7, poll) ROW(271, 73, ppoll) OLD(23, select) ROW(270, 72, pselect6) OLD(213, epoll_create) \
	ROW(291, 20, epoll_create1) ROW(233, 21, epoll_ctl) OLD(232, epoll_wait) ROW(281, 22, epoll_pwait) \
	ROW(441, 441, epoll_pwait2) OLD(34, pause) ROW(35, 101, nanosleep) ROW(230, 115, clock_nanosleep) \
	ROW(202, 98, futex) ROW(449, 449, futex_waitv) ROW(454, 454, futex_wake) ROW(455, 455, futex_wait) \
	ROW(456, 456, futex_requeue) ROW(273, 99, set_robust_list) ROW(274, 100, get_robust_list) ROW(61, 260, wait4) \
	ROW(247, 95, waitid) ROW(128, 137, rt_sigtimedwait) ROW(130, 133, rt_sigsuspend) \
	ROW(219, 128, restart_syscall) OLD(284, eventfd) ROW(290, 19, eventfd2) OLD(282, signalfd) \
	ROW(289, 74, signalfd4) ROW(283, 85, timerfd_create) ROW(286, 86, timerfd_settime) \
	ROW(287, 87, timerfd_gettime) OLD(253, inotify_init) ROW(294, 26, inotify_init1) \
	ROW(254, 27, inotify_add_watch) ROW(255, 28, inotify_rm_watch) ROW(300, 262, fanotify_init) \
	ROW(301, 263, fanotify_mark) \
	/* submits requests, and runs those that do not block: workers run those that change memory or the length of a file */ \
	ROW(425, 425, io_uring_setup) ROW(426, 426, io_uring_enter) ROW(427, 427, io_uring_register) \
	ROW(206, 0, io_setup) ROW(207, 1, io_destroy) ROW(209, 2, io_submit) ROW(210, 3, io_cancel) \
	ROW(208, 4, io_getevents) ROW(333, 292, io_pgetevents) \
	/* makes, copies, closes or queries descriptors */ \
	ROW(3, 57, close) ROW(436, 436, close_range) ROW(32, 23, dup) OLD(33, dup2) ROW(292, 24, dup3) OLD(22, pipe) \
	ROW(293, 59, pipe2) ROW(72, 25, fcntl) ROW(73, 32, flock) ROW(319, 279, memfd_create) \
	ROW(447, 447, memfd_secret) ROW(323, 282, userfaultfd) ROW(298, 241, perf_event_open) ROW(321, 280, bpf) \
	ROW(434, 434, pidfd_open) ROW(438, 438, pidfd_getfd) ROW(424, 424, pidfd_send_signal) \
	ROW(303, 264, name_to_handle_at) ROW(312, 272, kcmp) \
	/* reads or changes names and attributes other than lengths */ \
	OLD(4, stat) ROW(5, 80, fstat) OLD(6, lstat) ROW(262, 79, newfstatat) ROW(332, 291, statx) \
	ROW(137, 43, statfs) ROW(138, 44, fstatfs) OLD(136, ustat) OLD(21, access) ROW(269, 48, faccessat) \
	ROW(439, 439, faccessat2) OLD(89, readlink) ROW(267, 78, readlinkat) ROW(79, 17, getcwd) ROW(80, 49, chdir) \
	ROW(81, 50, fchdir) ROW(161, 51, chroot) OLD(82, rename) ROW(264, 38, renameat) ROW(316, 276, renameat2) \
	OLD(83, mkdir) ROW(258, 34, mkdirat) OLD(84, rmdir) OLD(133, mknod) ROW(259, 33, mknodat) OLD(86, link) \
	ROW(265, 37, linkat) OLD(87, unlink) ROW(263, 35, unlinkat) OLD(88, symlink) ROW(266, 36, symlinkat) \
	OLD(90, chmod) ROW(91, 52, fchmod) ROW(268, 53, fchmodat) ROW(452, 452, fchmodat2) OLD(92, chown) \
	ROW(93, 55, fchown) OLD(94, lchown) ROW(260, 54, fchownat) ROW(95, 166, umask) OLD(132, utime) \
	OLD(235, utimes) OLD(261, futimesat) ROW(280, 88, utimensat) ROW(188, 5, setxattr) ROW(189, 6, lsetxattr) \
	ROW(190, 7, fsetxattr) ROW(191, 8, getxattr) ROW(192, 9, lgetxattr) ROW(193, 10, fgetxattr) \
	ROW(194, 11, listxattr) ROW(195, 12, llistxattr) ROW(196, 13, flistxattr) ROW(197, 14, removexattr) \
	ROW(198, 15, lremovexattr) ROW(199, 16, fremovexattr) ROW(74, 82, fsync) ROW(75, 83, fdatasync) \
	ROW(162, 81, sync) ROW(306, 267, syncfs) ROW(277, 84, sync_file_range) \
	/* delivers and blocks signals */ \
	ROW(13, 134, rt_sigaction) ROW(14, 135, rt_sigprocmask) ROW(15, 139, rt_sigreturn) \
	ROW(127, 136, rt_sigpending) ROW(129, 138, rt_sigqueueinfo) ROW(297, 240, rt_tgsigqueueinfo) \
	ROW(131, 132, sigaltstack) ROW(62, 129, kill) ROW(200, 130, tkill) ROW(234, 131, tgkill) OLD(37, alarm) \
	/* reads or sets the time, timers, limits, scheduling and identity */ \
	OLD(201, time) ROW(100, 153, times) ROW(96, 169, gettimeofday) ROW(228, 113, clock_gettime) \
	ROW(229, 114, clock_getres) ROW(227, 112, clock_settime) ROW(36, 102, getitimer) ROW(38, 103, setitimer) \
	ROW(222, 107, timer_create) ROW(223, 110, timer_settime) ROW(224, 108, timer_gettime) \
	ROW(225, 109, timer_getoverrun) ROW(226, 111, timer_delete) ROW(97, 163, getrlimit) ROW(160, 164, setrlimit) \
	ROW(302, 261, prlimit64) ROW(98, 165, getrusage) ROW(99, 179, sysinfo) ROW(63, 160, uname) \
	ROW(24, 124, sched_yield) ROW(142, 118, sched_setparam) ROW(143, 121, sched_getparam) \
	ROW(144, 119, sched_setscheduler) ROW(145, 120, sched_getscheduler) ROW(146, 125, sched_get_priority_max) \
	ROW(147, 126, sched_get_priority_min) ROW(148, 127, sched_rr_get_interval) ROW(203, 122, sched_setaffinity) \
	ROW(204, 123, sched_getaffinity) ROW(314, 274, sched_setattr) ROW(315, 275, sched_getattr) \
	ROW(140, 141, getpriority) ROW(141, 140, setpriority) ROW(251, 30, ioprio_set) ROW(252, 31, ioprio_get) \
	ROW(309, 168, getcpu) ROW(39, 172, getpid) ROW(186, 178, gettid) ROW(110, 173, getppid) ROW(102, 174, getuid) \
	ROW(107, 175, geteuid) ROW(104, 176, getgid) ROW(108, 177, getegid) ROW(105, 146, setuid) \
	ROW(106, 144, setgid) ROW(113, 145, setreuid) ROW(114, 143, setregid) ROW(117, 147, setresuid) \
	ROW(118, 148, getresuid) ROW(119, 149, setresgid) ROW(120, 150, getresgid) ROW(122, 151, setfsuid) \
	ROW(123, 152, setfsgid) ROW(115, 158, getgroups) ROW(116, 159, setgroups) ROW(109, 154, setpgid) \
	ROW(121, 155, getpgid) OLD(111, getpgrp) ROW(112, 157, setsid) ROW(124, 156, getsid) ROW(125, 90, capget) \
	ROW(126, 91, capset) ROW(218, 96, set_tid_address) OLD(158, arch_prctl) OLD(205, set_thread_area) \
	OLD(211, get_thread_area) ROW(334, 293, rseq) ROW(324, 283, membarrier) ROW(135, 92, personality) \
	ROW(317, 277, seccomp) ROW(444, 444, landlock_create_ruleset) ROW(445, 445, landlock_add_rule) \
	ROW(446, 446, landlock_restrict_self) ROW(272, 97, unshare) ROW(308, 268, setns) ROW(248, 217, add_key) \
	ROW(249, 218, request_key) ROW(250, 219, keyctl) \
	/* ends the thread or its program: the last task to leave the address space does so outside of any system call */ \
	ROW(60, 93, exit) ROW(231, 94, exit_group) ROW(59, 221, execve) ROW(322, 281, execveat)

/* These calls keep pinned pages, or their changes are reported elsewhere. */
#define CALLS_THAT_KEEP(ROW, OLD) \
	/* starts a process or a thread: a pinned page is copied for the child, and stays with the parent */ \
	ROW(56, 220, clone) ROW(435, 435, clone3) OLD(57, fork) OLD(58, vfork) \
	/* locks pages where they are, or brings them in */ \
	ROW(149, 228, mlock) ROW(325, 284, mlock2) ROW(151, 230, mlockall) ROW(150, 229, munlock) \
	ROW(152, 231, munlockall) \
	/* migrates pages, but not pinned ones */ \
	ROW(237, 235, mbind) ROW(238, 237, set_mempolicy) ROW(239, 236, get_mempolicy) \
	ROW(450, 450, set_mempolicy_home_node) ROW(256, 238, migrate_pages) ROW(279, 239, move_pages) \
	/* makes mappings harder to change, or allocates protection keys */ \
	ROW(462, 462, mseal) ROW(330, 289, pkey_alloc) ROW(331, 290, pkey_free) \
	/* removes pages only with certain advice, which is reported when they are counted (pages_counted) */ \
	ROW(28, 233, madvise) \
	/* changes mappings under the lock of the address space; the release of the lock is reported (lock_released) */ \
	ROW(11, 215, munmap) ROW(9, 222, mmap) ROW(25, 216, mremap) ROW(12, 214, brk) ROW(30, 196, shmat) \
	ROW(67, 197, shmdt) ROW(216, 234, remap_file_pages) ROW(10, 226, mprotect) ROW(329, 288, pkey_mprotect) \
	/* changes settings of the caller; PR_SET_MM is reported when the lock is released */ \
	ROW(157, 167, prctl)

#endif
