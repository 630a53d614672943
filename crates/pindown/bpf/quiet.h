/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * The system calls of x86-64 that are known to leave pinned pages where they are, with the reasons.
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
#define CALLS_THAT_COPY(ROW) \
	/* moves bytes between the caller's memory and a file, a pipe, a socket or the kernel */ \
	ROW(0, read) ROW(1, write) ROW(17, pread64) ROW(18, pwrite64) ROW(19, readv) ROW(20, writev) ROW(295, preadv) \
	ROW(296, pwritev) ROW(327, preadv2) ROW(328, pwritev2) ROW(40, sendfile) ROW(275, splice) ROW(276, tee) \
	ROW(278, vmsplice) ROW(326, copy_file_range) ROW(187, readahead) ROW(221, fadvise64) ROW(78, getdents) \
	ROW(217, getdents64) ROW(8, lseek) ROW(26, msync) ROW(27, mincore) ROW(318, getrandom) \
	ROW(310, process_vm_readv) ROW(311, process_vm_writev) ROW(101, ptrace) ROW(103, syslog) \
	/* uses sockets and message queues */ \
	ROW(41, socket) ROW(53, socketpair) ROW(42, connect) ROW(43, accept) ROW(288, accept4) ROW(49, bind) \
	ROW(50, listen) ROW(48, shutdown) ROW(44, sendto) ROW(45, recvfrom) ROW(46, sendmsg) ROW(47, recvmsg) \
	ROW(307, sendmmsg) ROW(299, recvmmsg) ROW(51, getsockname) ROW(52, getpeername) ROW(54, setsockopt) \
	ROW(55, getsockopt) ROW(68, msgget) ROW(69, msgsnd) ROW(70, msgrcv) ROW(71, msgctl) ROW(64, semget) \
	ROW(65, semop) ROW(220, semtimedop) ROW(66, semctl) ROW(240, mq_open) ROW(241, mq_unlink) \
	ROW(242, mq_timedsend) ROW(243, mq_timedreceive) ROW(244, mq_notify) ROW(245, mq_getsetattr) ROW(29, shmget) \
	ROW(31, shmctl) \
	/* waits, or sets up objects that are waited for */ \
	ROW(7, poll) ROW(271, ppoll) ROW(23, select) ROW(270, pselect6) ROW(213, epoll_create) ROW(291, epoll_create1) \
	ROW(233, epoll_ctl) ROW(232, epoll_wait) ROW(281, epoll_pwait) ROW(441, epoll_pwait2) ROW(34, pause) \
	ROW(35, nanosleep) ROW(230, clock_nanosleep) ROW(202, futex) ROW(449, futex_waitv) ROW(454, futex_wake) \
	ROW(455, futex_wait) ROW(456, futex_requeue) ROW(273, set_robust_list) ROW(274, get_robust_list) \
	ROW(61, wait4) ROW(247, waitid) ROW(128, rt_sigtimedwait) ROW(130, rt_sigsuspend) ROW(219, restart_syscall) \
	ROW(284, eventfd) ROW(290, eventfd2) ROW(282, signalfd) ROW(289, signalfd4) ROW(283, timerfd_create) \
	ROW(286, timerfd_settime) ROW(287, timerfd_gettime) ROW(253, inotify_init) ROW(294, inotify_init1) \
	ROW(254, inotify_add_watch) ROW(255, inotify_rm_watch) ROW(300, fanotify_init) ROW(301, fanotify_mark) \
	/* submits requests, and runs those that do not block: workers run those that change memory or the length of a file */ \
	ROW(425, io_uring_setup) ROW(426, io_uring_enter) ROW(427, io_uring_register) ROW(206, io_setup) \
	ROW(207, io_destroy) ROW(209, io_submit) ROW(210, io_cancel) ROW(208, io_getevents) ROW(333, io_pgetevents) \
	/* makes, copies, closes or queries descriptors */ \
	ROW(3, close) ROW(436, close_range) ROW(32, dup) ROW(33, dup2) ROW(292, dup3) ROW(22, pipe) ROW(293, pipe2) \
	ROW(72, fcntl) ROW(73, flock) ROW(319, memfd_create) ROW(447, memfd_secret) ROW(323, userfaultfd) \
	ROW(298, perf_event_open) ROW(321, bpf) ROW(434, pidfd_open) ROW(438, pidfd_getfd) ROW(424, pidfd_send_signal) \
	ROW(303, name_to_handle_at) ROW(312, kcmp) \
	/* reads or changes names and attributes other than lengths */ \
	ROW(4, stat) ROW(5, fstat) ROW(6, lstat) ROW(262, newfstatat) ROW(332, statx) ROW(137, statfs) \
	ROW(138, fstatfs) ROW(136, ustat) ROW(21, access) ROW(269, faccessat) ROW(439, faccessat2) ROW(89, readlink) \
	ROW(267, readlinkat) ROW(79, getcwd) ROW(80, chdir) ROW(81, fchdir) ROW(161, chroot) ROW(82, rename) \
	ROW(264, renameat) ROW(316, renameat2) ROW(83, mkdir) ROW(258, mkdirat) ROW(84, rmdir) ROW(133, mknod) \
	ROW(259, mknodat) ROW(86, link) ROW(265, linkat) ROW(87, unlink) ROW(263, unlinkat) ROW(88, symlink) \
	ROW(266, symlinkat) ROW(90, chmod) ROW(91, fchmod) ROW(268, fchmodat) ROW(452, fchmodat2) ROW(92, chown) \
	ROW(93, fchown) ROW(94, lchown) ROW(260, fchownat) ROW(95, umask) ROW(132, utime) ROW(235, utimes) \
	ROW(261, futimesat) ROW(280, utimensat) ROW(188, setxattr) ROW(189, lsetxattr) ROW(190, fsetxattr) \
	ROW(191, getxattr) ROW(192, lgetxattr) ROW(193, fgetxattr) ROW(194, listxattr) ROW(195, llistxattr) \
	ROW(196, flistxattr) ROW(197, removexattr) ROW(198, lremovexattr) ROW(199, fremovexattr) ROW(74, fsync) \
	ROW(75, fdatasync) ROW(162, sync) ROW(306, syncfs) ROW(277, sync_file_range) \
	/* delivers and blocks signals */ \
	ROW(13, rt_sigaction) ROW(14, rt_sigprocmask) ROW(15, rt_sigreturn) ROW(127, rt_sigpending) \
	ROW(129, rt_sigqueueinfo) ROW(297, rt_tgsigqueueinfo) ROW(131, sigaltstack) ROW(62, kill) ROW(200, tkill) \
	ROW(234, tgkill) ROW(37, alarm) \
	/* reads or sets the time, timers, limits, scheduling and identity */ \
	ROW(201, time) ROW(100, times) ROW(96, gettimeofday) ROW(228, clock_gettime) ROW(229, clock_getres) \
	ROW(227, clock_settime) ROW(36, getitimer) ROW(38, setitimer) ROW(222, timer_create) ROW(223, timer_settime) \
	ROW(224, timer_gettime) ROW(225, timer_getoverrun) ROW(226, timer_delete) ROW(97, getrlimit) \
	ROW(160, setrlimit) ROW(302, prlimit64) ROW(98, getrusage) ROW(99, sysinfo) ROW(63, uname) \
	ROW(24, sched_yield) ROW(142, sched_setparam) ROW(143, sched_getparam) ROW(144, sched_setscheduler) \
	ROW(145, sched_getscheduler) ROW(146, sched_get_priority_max) ROW(147, sched_get_priority_min) \
	ROW(148, sched_rr_get_interval) ROW(203, sched_setaffinity) ROW(204, sched_getaffinity) \
	ROW(314, sched_setattr) ROW(315, sched_getattr) ROW(140, getpriority) ROW(141, setpriority) \
	ROW(251, ioprio_set) ROW(252, ioprio_get) ROW(309, getcpu) ROW(39, getpid) ROW(186, gettid) ROW(110, getppid) \
	ROW(102, getuid) ROW(107, geteuid) ROW(104, getgid) ROW(108, getegid) ROW(105, setuid) ROW(106, setgid) \
	ROW(113, setreuid) ROW(114, setregid) ROW(117, setresuid) ROW(118, getresuid) ROW(119, setresgid) \
	ROW(120, getresgid) ROW(122, setfsuid) ROW(123, setfsgid) ROW(115, getgroups) ROW(116, setgroups) \
	ROW(109, setpgid) ROW(121, getpgid) ROW(111, getpgrp) ROW(112, setsid) ROW(124, getsid) ROW(125, capget) \
	ROW(126, capset) ROW(218, set_tid_address) ROW(158, arch_prctl) ROW(205, set_thread_area) \
	ROW(211, get_thread_area) ROW(334, rseq) ROW(324, membarrier) ROW(135, personality) ROW(317, seccomp) \
	ROW(444, landlock_create_ruleset) ROW(445, landlock_add_rule) ROW(446, landlock_restrict_self) \
	ROW(272, unshare) ROW(308, setns) ROW(248, add_key) ROW(249, request_key) ROW(250, keyctl) \
	/* ends the thread or its program: the last task to leave the address space does so outside of any system call */ \
	ROW(60, exit) ROW(231, exit_group) ROW(59, execve) ROW(322, execveat)

/* These calls keep pinned pages, or their changes are reported elsewhere. */
#define CALLS_THAT_KEEP(ROW) \
	/* starts a process or a thread: a pinned page is copied for the child, and stays with the parent */ \
	ROW(56, clone) ROW(435, clone3) ROW(57, fork) ROW(58, vfork) \
	/* locks pages where they are, or brings them in */ \
	ROW(149, mlock) ROW(325, mlock2) ROW(151, mlockall) ROW(150, munlock) ROW(152, munlockall) \
	/* migrates pages, but not pinned ones */ \
	ROW(237, mbind) ROW(238, set_mempolicy) ROW(239, get_mempolicy) ROW(450, set_mempolicy_home_node) \
	ROW(256, migrate_pages) ROW(279, move_pages) \
	/* makes mappings harder to change, or allocates protection keys */ \
	ROW(462, mseal) ROW(330, pkey_alloc) ROW(331, pkey_free) \
	/* removes pages only with certain advice, which is reported when they are counted (pages_counted) */ \
	ROW(28, madvise) \
	/* changes mappings under the lock of the address space; the release of the lock is reported (lock_released) */ \
	ROW(11, munmap) ROW(9, mmap) ROW(25, mremap) ROW(12, brk) ROW(30, shmat) ROW(67, shmdt) \
	ROW(216, remap_file_pages) ROW(10, mprotect) ROW(329, pkey_mprotect) \
	/* changes settings of the caller; PR_SET_MM is reported when the lock is released */ \
	ROW(157, prctl)

#endif
