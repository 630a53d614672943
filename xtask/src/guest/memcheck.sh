#!/bin/sh
# Runs a program under valgrind's memcheck in the guest:
#   memcheck.sh PROGRAM ...
# memcheck's report is printed after the program's output, so that their lines do not mix.
#
# Fair scheduling is enabled, because memcheck runs only one thread at a time. Only memory to which no pointer exists is
# reported as lost, because a test program exits without freeing the memory of its harness and of its loaded libraries. The
# C library does not free its own memory at exit. Otherwise the dynamic linker's list of unused lookup scopes would be freed
# without the entries of the list, which would then be reported as lost.
#
# pindown's monitor `bpf` needs a pidfd, which valgrind does not support. The monitor detects this only after it has read the
# kernel's types, which takes a minute for every domain. Without these types (the mount below) it fails immediately.
mount -t tmpfs tmpfs /sys/kernel/btf
valgrind.bin --tool=memcheck --error-exitcode=9 --num-callers=30 --fair-sched=yes --run-libc-freeres=no \
  --leak-check=full --show-leak-kinds=definite --errors-for-leak-kinds=definite \
  --suppressions="${0%.sh}.supp" --log-file=/tmp/memcheck.%p "$@"
code=$?
cat /tmp/memcheck.*
exit $code
