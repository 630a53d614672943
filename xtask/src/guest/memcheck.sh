#!/bin/sh
# Runs a program under valgrind's memcheck in the guest:
#   memcheck.sh PROGRAM ...
# What memcheck says comes after what the program prints, so that lines of the two do not mix.
#
# A fair turn for each thread, since memcheck lets only one run at a time. Of lost memory only what nothing points to is an
# error: a test program ends without freeing what its harness and its loaded libraries keep. memcheck does not ask the C
# library to free its own at the end: that frees the dynamic linker's list of lookup scopes that it no longer needs without
# what is in the list, and so makes lost memory of it.
#
# pindown's kernel tier needs a pidfd, which valgrind lets nobody have. It finds that out once it has read the kernel's types,
# which takes a minute for every domain; without them it gives up at once.
mount -t tmpfs tmpfs /sys/kernel/btf
valgrind.bin --tool=memcheck --error-exitcode=9 --num-callers=30 --fair-sched=yes --run-libc-freeres=no \
  --leak-check=full --show-leak-kinds=definite --errors-for-leak-kinds=definite \
  --suppressions="${0%.sh}.supp" --log-file=/tmp/memcheck.%p "$@"
code=$?
cat /tmp/memcheck.*
exit $code
