//! Containers and clusters: limits, networks, keys, and how processes exchange addresses.
//!
//! First run `percale doctor` in the environment of the program and as its user. It checks the transports and all that
//! they need, finds the cause if something is missing, and prints the command that mends it. `percale info` lists
//! transports, facilities and limits; [`Info::transports`], [`Info::devices`] and [`Info::limits`] return the same
//! information to programs.
//!
//! # Limits
//! | limit | needed | if it is too low |
//! |---|---|---|
//! | open files (`ulimit -n`) | 4 descriptors for each peer over shared memory, 1 over TCP, and some for each endpoint and domain | connections fail with [`ErrorCode::NoDescriptors`], or use another transport; established ones continue |
//! | locked memory (`ulimit -l`, memlock) | nothing over shared memory and TCP; over verbs 656 KiB for each peer, and registered regions | connections use TCP instead; the target makes the accesses |
//! | memory of a cgroup | shared memory counts as memory of the process that touches it first | allocations fail with `NoMemory`, or the kernel kills the process |
//! | size of `/dev/shm` | nothing: percale uses memfds | |
//! | file size (`ulimit -f`) | the size of allocations and of the memory of connections | percale uses TCP, or an error names the limit |
//!
//! # Containers
//! Shared memory needs system calls that strict seccomp profiles forbid: `memfd_create`, `pidfd_open`, `eventfd2`,
//! futexes, and passing descriptors over Unix sockets. Without them percale uses TCP; [`Info::transports`] names the
//! call that failed. Long messages from ordinary memory are copied by `process_vm_readv`, which needs the same
//! permission as a debugger (`kernel.yama.ptrace_scope` 0, and in some containers `CAP_SYS_PTRACE`). Without it they
//! are copied through shared buffers. Memory of [`Domain::allocate`] is not affected.
//!
//! Two containers on one machine use shared memory only if they have the same **network namespace** and the same
//! **user**. With Docker: `--network host` for both, or `--network container:NAME`; in a Kubernetes pod the containers
//! have one network namespace. Otherwise they use TCP between the addresses of the containers, and [`Event::Connected`]
//! contains the reason.
//!
//! A published port (`docker run -p`) or other address translation is not enough for two-way traffic: the endpoint
//! advertises an address that its peers cannot reach. It can connect to others, which can answer over its connections,
//! but cannot connect to it. Use the host's network, or a network in which all peers can reach each other.
//!
//! # Choosing the network
//! An endpoint that is bound to `0.0.0.0:0` or `[::]:0` advertises one concrete address: that of the first real
//! interface that is up. [`Info::advertised`] returns the choice and the reason, [`Info::interfaces`] the candidates.
//! On a machine with several networks, bind to an address of the right network or set [`DomainBuilder::interface`]. The
//! kernel (port 0) or the program chooses the listening port. Open this TCP port in the firewall.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let info = percale::Info::discover()?;
//! println!("advertises {}", info.advertised());
//! for limit in info.limits() {
//!     println!("{}: {:?} ({})", limit.name, limit.value, limit.meaning);
//! }
//! # Ok(()) }
//! ```
//!
//! # Authorization keys
//! Without a key, every process that can reach the port can connect and send messages. With a key, both sides of each
//! connection prove that they have it, and connections without it are rejected with [`ErrorCode::Denied`]. The key is
//! not used for encryption: on untrusted networks, use a tunnel. Regions are also protected by their own keys. Keep the
//! authorization key in a file with mode 600:
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use percale::{ErrorCode, Info, domain::read_authorization_key};
//! # use std::os::unix::fs::OpenOptionsExt;
//! # let path = std::env::temp_dir().join(format!("percale-manual-key-{}", std::process::id()));
//! # std::io::Write::write_all(&mut std::fs::OpenOptions::new().write(true).create(true).mode(0o600).open(&path)?, b"secret\n")?;
//!
//! let key = read_authorization_key(&path)?; // an error if other users may read the file
//! # std::fs::remove_file(&path)?;
//! let domain = Info::discover()?.best()?.authorization_key(key).open()?;
//! # let vector = domain.address_vector().build()?;
//! # let endpoint = domain.endpoint().vector(&vector).bind("127.0.0.1:0")?;
//!
//! // A process without the key cannot send to it.
//! let stranger = Info::discover()?.best()?.open()?;
//! let others = stranger.address_vector().build()?;
//! let outside = stranger.endpoint().vector(&others).bind("127.0.0.1:0")?;
//! let error = outside.send(others.insert(endpoint.address())?, "hello").wait().unwrap_err();
//! assert_eq!(error.errno(), ErrorCode::Denied.errno());
//! # Ok(()) }
//! ```
//!
//! # How processes exchange addresses
//! percale has no launcher and no name service. A job needs a way to distribute the addresses of all processes at the
//! start:
//!
//! | start-up | method |
//! |---|---|
//! | a server with a known address | the server binds to a fixed port; each client sends [`Endpoint::address`] in its first message, as in [chapter 1](super::_01_getting_started) |
//! | **Slurm** (`srun`) | `SLURM_PROCID` is the rank, `SLURM_NTASKS` the size; exchange addresses with one of the methods below, or bind each rank to a fixed port plus `SLURM_LOCALID` and use the last method |
//! | **PMIx or PMI** | put the address as a string under a key of the rank, fence, and get the addresses of the others; percale does not include a PMIx client |
//! | **MPI** at start-up | `MPI_Allgather` of the address strings |
//! | a shared file system | each rank writes its address to a file with a temporary name, renames it to its rank, and reads the others |
//! | rank 0 as a directory | all ranks get the address of rank 0, send it their addresses, and receive the list, as in the program below |
//! | regular addresses | [`AddressVector::insert_symmetric`]`("node01", 16, "7471", 8)` inserts 16 nodes with 8 ports each; a range of consecutive addresses takes about 80 bytes |
//!
//! The following program uses rank 0 as a directory. Only the address of rank 0 must be passed to the other ranks, as
//! an argument or an environment variable. A tag separates the exchange from other messages.
//!
//! ```
//! # type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;
//! use percale::{AddressVector, Endpoint, PeerAddress};
//! # use percale::Info;
//!
//! const EXCHANGE: u64 = 1 << 63;
//!
//! /// Returns the numbers of all ranks, in order.
//! fn exchange(endpoint: &Endpoint, vector: &AddressVector, rank: usize, size: usize, root: &str) -> Outcome<Vec<PeerAddress>> {
//!     if rank == 0 {
//!         let mut addresses = vec![endpoint.address().to_string(); size];
//!         for _ in 1..size {
//!             let hello = endpoint.tagged_recv(EXCHANGE, u64::from(u32::MAX), vec![0; 64]).wait()?; // the rank is in the low bits
//!             addresses[hello.tag as u32 as usize] = String::from_utf8(hello.to_vec())?;
//!         }
//!         let all: Vec<PeerAddress> = addresses.iter().map(|one| vector.insert(one.as_str())).collect::<Result<_, _>>()?;
//!         for &peer in &all[1..] {
//!             endpoint.tagged_send(peer, EXCHANGE, addresses.join("\n")).wait()?;
//!         }
//!         return Ok(all);
//!     }
//!     let root = vector.insert(root)?;
//!     endpoint.tagged_send(root, EXCHANGE | rank as u64, endpoint.address().to_string()).wait()?;
//!     let list = endpoint.tagged_recv(EXCHANGE, 0, vec![0; 64 * size]).from(root).wait()?;
//!     let list = String::from_utf8(list.to_vec())?;
//!     Ok(list.lines().map(|one| vector.insert(one)).collect::<Result<_, _>>()?)
//! }
//!
//! # fn main() -> Outcome<()> {
//! # let domain = Info::discover()?.best()?.open()?;
//! # let open = || -> Outcome<_> {
//! #     let vector = domain.address_vector().build()?;
//! #     Ok((domain.endpoint().vector(&vector).bind("127.0.0.1:0")?, vector))
//! # };
//! // In this example the ranks are three threads.
//! # let ranks = [open()?, open()?, open()?];
//! # let root = ranks[0].0.address().to_string();
//! # let addresses: Vec<_> = ranks.iter().map(|(endpoint, _)| endpoint.address()).collect();
//! # std::thread::scope(|scope| {
//! #     let (root, addresses) = (&root, &addresses);
//! #     let threads: Vec<_> = ranks.into_iter().enumerate().map(|(rank, (endpoint, vector))| scope.spawn(move || -> Outcome<()> {
//! #         let all = exchange(&endpoint, &vector, rank, 3, root)?;
//! #         let got: Vec<_> = all.iter().map(|&peer| vector.lookup(peer).expect("it was inserted")).collect();
//! #         assert_eq!(&got, addresses);
//! #         Ok(())
//! #     })).collect();
//! #     threads.into_iter().try_for_each(|thread| thread.join().expect("no panic"))
//! # })
//! # }
//! ```
//!
//! Ranks of one node can share the memory of a vector: give all of them one
//! [`name`](crate::address::VectorBuilder::name). Connections to a process that has not bound its address yet fail with
//! [`ErrorCode::Refused`]. Processes that start together should therefore repeat their first send after a delay.
//!
//! Programs that use MPI or libfabric do not need this chapter: `libpercale-fi.so` is a libfabric provider
//! (`docs/libfabric.md`).

// Imported for the links in this text.
use crate::*;
