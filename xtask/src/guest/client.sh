#!/bin/sh
# Runs a client of the provider in the guest, and prints the number of packets that the RDMA devices sent meanwhile. Only
# verbs sends packets through them.
#   client.sh pingpong KIND   both sides of fi_pingpong, over endpoints of this kind
#   client.sh PROGRAM ...     any other program
sent() {
  total=0
  for counter in /sys/class/infiniband/*/ports/1/hw_counters/sent_pkts; do
    total=$((total + $(cat "$counter")))
  done
  echo $total
}

# Succeeds if both sides exit successfully. The client starts when the server listens on TCP port 47592 (B9E8).
pingpong() {
  fi_pingpong -p percale -e "$1" -c -S all -I 20 >/tmp/server 2>&1 &
  server=$!
  tries=0
  while ! grep -qi ':B9E8 00000000:0000 0A' /proc/net/tcp && kill -0 $server && [ $tries -lt 600 ]; do
    tries=$((tries + 1))
    sleep 0.1
  done
  fi_pingpong -p percale -e "$1" -c -S all -I 20 10.9.0.1
  code=$?
  wait $server && return $code
  cat /tmp/server
  return 1
}

before=$(sent)
if [ "$1" = pingpong ]; then pingpong "$2"; else "$@"; fi
code=$?
echo "RDMA devices sent $(($(sent) - before)) packets"
exit $code
