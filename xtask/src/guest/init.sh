#!/bin/busybox sh
# The guest's init process: sets up the soft-RoCE devices, runs /percale/run and reports its exit status.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
/bin/busybox mkdir -p /proc /sys /dev /tmp /root /run /usr/bin /usr/sbin
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs tmpfs /dev/shm
mount -t bpf bpf /sys/fs/bpf
mount -t tracefs tracefs /sys/kernel/tracing
chmod 1777 /tmp /dev/shm
ln -s /proc/self/fd /dev/fd
hostname guest
# The shell would otherwise use its builtin tool, which has fewer options.
ip() { /usr/bin/ip "$@"; }
export HOME=/root

while read -r module; do insmod "/modules/$module"; done </modules/order

# The output ports: the program's output goes to one port, its exit status to the other.
port() {
  tries=0
  while [ $tries -lt 100 ]; do
    for name in /sys/class/virtio-ports/*/name; do
      if [ -e "$name" ] && [ "$(cat "$name")" = "$1" ]; then
        name=${name%/name}
        echo "/dev/${name##*/}"
        return
      fi
    done
    tries=$((tries + 1))
    sleep 0.05
  done
}
printed=$(port printed)
status=$(port status)

ip link set lo up
ip addr add 10.9.0.1/24 dev dummy0
ip link set dummy0 mtu 4200 up
rdma link add rxe0 type rxe netdev dummy0

# Two devices connected by a veth pair. Packets from the address of one end to the address of the other are routed over the
# pair and not over lo, where no device would receive them.
ip link add wire0 type veth peer name wire1
for end in 0 1; do
  echo 1 >/proc/sys/net/ipv4/conf/wire$end/accept_local
  echo 0 >/proc/sys/net/ipv4/conf/wire$end/rp_filter
  ip addr add 10.9.1.$((end + 1))/24 dev wire$end
  ip link set wire$end mtu 4200 up
  ip route add 10.9.1.$((2 - end)) dev wire$end src 10.9.1.$((end + 1)) table $((101 + end))
  ip rule add pref 10 iif lo from 10.9.1.$((end + 1)) to 10.9.1.$((2 - end)) lookup $((101 + end))
done
ip rule add pref 100 lookup local
ip rule del pref 0
rdma link add rxe1 type rxe netdev wire0
rdma link add rxe2 type rxe netdev wire1

echo 32 >/proc/sys/vm/nr_hugepages
ulimit -l unlimited
# The kernel's default for the init process is 1,024 descriptors, which is too few for tests with many connections.
ulimit -n 4096
ulimit -c 0

exec 3>"$status"
echo ready >&3
sh /percale/run >"$printed" 2>&1
echo "ended $?" >&3
exec 3>&-
poweroff -f
