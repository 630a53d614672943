//! The rules that hostile clients break. Each client breaks one.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::client::map;
use crate::hostile::{fork, wait};
use crate::parked::Parked;
use crate::protocol::{CHALLENGE, DONE, HELLO, Link, SharedFile, UNWATCH, WATCH, WATCHED, protect};
use crate::support::PAGE;

/// The number of a socket that is kept across exec.
const SOCKET: i32 = 100;

/// xorshift64*.
#[derive(Debug)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed | 1)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub(super) fn below(&mut self, end: u64) -> u64 {
        (self.next() >> 16) % end
    }
}

type Rule = fn(&Path, &mut Random);

/// Each rule, and the function that breaks it.
pub(super) const RULES: &[(&str, Rule)] = &[
    ("a version that exists", |path, random| with_link(path, |link| _ = link.ask([1, 3 + random.next() % 9, 0, 0]))),
    ("Hello before Done", |path, _| with_link(path, |link| _ = link.ask(DONE))),
    ("Hello before Watch", |path, _| with_link(path, |link| _ = link.ask([WATCH, 4096, 8192, 0]))),
    ("Hello before Unwatch", |path, random| with_link(path, |link| _ = link.ask([UNWATCH, random.below(64), 0, 0]))),
    ("Hello once", hello_twice),
    ("Hello once, also when served", |path, _| served(path, |link| _ = link.ask(HELLO))),
    ("kinds that exist", |path, random| served(path, |link| _ = link.ask([11 + random.next() % 999, 0, 0, 0]))),
    ("kinds of a client", |path, random| {
        served(path, |link| _ = link.ask([[2, 4, 6, 7, 9, 10][random.below(6) as usize], 0, 0, 0]))
    }),
    ("unused words are zero", |path, random| served(path, |link| _ = link.ask([UNWATCH, 0, random.next(), 1]))),
    ("messages are whole", |path, random| {
        with_link(path, |link| _ = link.send_bytes(&[1; 31][..random.below(32) as usize], &[]))
    }),
    ("messages are not longer", |path, random| {
        served(path, |link| _ = link.send_bytes(&vec![1; 33 + random.below(50_000) as usize], &[]))
    }),
    ("no descriptors", descriptors),
    ("no slow descriptors", slow_descriptor),
    ("the challenge is met", |path, _| challenged(path, |link, _, _| _ = link.ask(DONE))),
    ("the whole challenge is met", |path, _| {
        challenged(path, |link, start, len| {
            protect(start, len - 1 + 4096 * 2);
            _ = link.ask(DONE)
        })
    }),
    ("the challenge is met by the client", |path, _| {
        challenged(path, |link, start, len| {
            wait(fork(|| {
                protect(start, len);
                0
            }));
            _ = link.ask(DONE)
        })
    }),
    ("the challenge is met in time", |path, _| challenged(path, |link, _, _| _ = link.receive())),
    ("ranges are valid", |path, random| {
        served(path, |link| {
            for _ in 0..8 {
                _ = link.ask([WATCH, random.next(), random.next() >> random.below(64), 0])
            }
        })
    }),
    ("ranges belong to the client", |path, random| {
        served(path, |link| {
            for _ in 0..8 {
                _ = link.ask([WATCH, u64::MAX << 47 | random.next() >> 20, u64::MAX, 0])
            }
        })
    }),
    ("slots are assigned", |path, random| {
        served(path, |link| {
            for _ in 0..8 {
                _ = link.ask([UNWATCH, random.below(64), 0, 0])
            }
        })
    }),
    ("slots exist", |path, random| served(path, |link| _ = link.ask([UNWATCH, 64 + random.next(), 0, 0]))),
    ("slots are released once", unwatch_twice),
    ("answers are read", answers_unread),
    ("connections are whole", |path, _| {
        served(path, |link| {
            _ = rustix::net::shutdown(&link.0, rustix::net::Shutdown::Write);
            _ = link.receive()
        })
    }),
    ("a connection is not used after exec", exec),
    ("a connection is not used by a child", child_speaks),
    ("a connection is used by its opener", passed_on),
    ("calls end", never_quiet),
    ("calls end after the client has exited", parked_and_gone),
    ("the address space is unlocked", locked),
    ("a few connections", storm),
    ("a few files", files),
    ("the client is dumpable", |path, _| {
        served(path, |link| {
            dumpable(false);
            _ = SharedFile::new().watch(link);
            dumpable(true);
            _ = link.ask(HELLO)
        })
    }),
    ("a client stays alive during a request", |path, random| {
        challenged(path, |link, start, len| {
            protect(start, len);
            _ = link.send(DONE);
            sleep(random);
            die()
        })
    }),
    ("a client has memory", no_memory),
];

fn with_link(path: &Path, work: impl FnOnce(&Link)) {
    if let Ok(link) = Link::open(path) {
        work(&link);
        // Reads the end of the connection, if the helper has closed it.
        rustix::net::recv(&link.0, &mut [0_u8; 32][..], rustix::net::RecvFlags::DONTWAIT).ok();
    }
}

/// Runs the protocol up to the challenge.
fn challenged(path: &Path, work: impl FnOnce(&Link, u64, u64)) {
    with_link(path, |link| {
        if let [CHALLENGE, start, len, _] = link.ask(HELLO) {
            work(link, start, len);
        }
    });
}

/// Runs the protocol up to the grant, and possibly makes some valid requests.
fn served(path: &Path, work: impl FnOnce(&Link)) {
    with_link(path, |link| {
        if let Ok(_page) = link.join() {
            SharedFile::new().watch(link);
            work(link);
        }
    });
}

fn sleep(random: &mut Random) {
    std::thread::sleep(Duration::from_micros(random.below(3000)));
}

fn die() {
    // SAFETY: the call ends this process.
    unsafe { libc::_exit(0) };
}

fn dumpable(yes: bool) {
    // SAFETY: the call takes no pointers.
    unsafe { libc::prctl(libc::PR_SET_DUMPABLE, i32::from(yes)) };
}

fn hello_twice(path: &Path, _: &mut Random) {
    with_link(path, |link| {
        link.send(HELLO).ok();
        link.send(HELLO).ok();
        while link.receive().is_some() {}
    });
}

/// Passes descriptors of various kinds: pipes, files, the connection itself, up to as many as the kernel accepts.
fn descriptors(path: &Path, random: &mut Random) {
    with_link(path, |link| {
        let (from, to) = rustix::pipe::pipe().expect("a pipe");
        let kinds = [from.as_raw_fd(), to.as_raw_fd(), link.0.as_raw_fd()];
        let count = [1, 2, 16, 253][random.below(4) as usize];
        let fds: Vec<i32> = (0..count).map(|index| kinds[index % kinds.len()]).collect();
        let hello = HELLO.map(u64::to_le_bytes).concat();
        link.send_bytes(&hello[..random.below(2) as usize * 32], &fds).ok();
        sleep(random);
    });
}

/// Sends a message with the last copy of a socket that takes a long time to close.
fn slow_descriptor(path: &Path, random: &mut Random) {
    use std::net::{TcpListener, TcpStream};
    let Ok(listener) = TcpListener::bind("127.0.0.1:0") else { return };
    let Ok(stream) = listener.local_addr().and_then(TcpStream::connect) else { return };
    stream.set_nonblocking(true).ok();
    while std::io::Write::write(&mut &stream, &[0; 1 << 16]).is_ok() {}
    let linger = libc::linger { l_onoff: 1, l_linger: 1 + random.below(60) as i32 };
    let (level, option, len) = (libc::SOL_SOCKET, libc::SO_LINGER, size_of::<libc::linger>() as u32);
    // SAFETY: the option has this type.
    unsafe { libc::setsockopt(stream.as_raw_fd(), level, option, (&raw const linger).cast(), len) };
    with_link(path, |link| {
        if link.send_bytes(&HELLO.map(u64::to_le_bytes).concat(), &[stream.as_raw_fd()]).is_err() {
            // The kernel rejected the message. At exit the socket is closed without delay.
            die();
        }
        drop(stream);
        // While the listener exists and reads nothing, the connection closes slowly.
        std::thread::sleep(Duration::from_secs(10));
    });
}

fn unwatch_twice(path: &Path, _: &mut Random) {
    served(path, |link| {
        if let [WATCHED, slot, ..] = SharedFile::new().watch(link) {
            for _ in 0..3 {
                link.ask([UNWATCH, slot, 0, 0]);
            }
        }
    });
}

/// Sends requests until no more can be sent, and reads no answers.
fn answers_unread(path: &Path, random: &mut Random) {
    served(path, |link| {
        rustix::io::ioctl_fionbio(&link.0, true).ok();
        for _ in 0..2000 {
            if link.send([UNWATCH, random.below(64), 0, 0]).is_err() {
                sleep(random);
            }
        }
    });
}

/// Keeps the socket across exec; the next program continues.
fn exec(path: &Path, _: &mut Random) {
    served(path, |link| {
        // SAFETY: the call takes no pointers; the copy is not closed at exec.
        unsafe { libc::dup2(link.0.as_raw_fd(), SOCKET) };
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args(std::env::args().skip(1)).env("PINDOWN_ROLE", "leftover");
        panic!("{}", std::os::unix::process::CommandExt::exec(&mut command));
    });
}

/// The actions of the next program with the socket.
pub(super) fn leftover() {
    // SAFETY: the descriptor was kept for this purpose.
    let link = Link(unsafe { OwnedFd::from_raw_fd(SOCKET) });
    for slot in 0..64 {
        if link.ask([UNWATCH, slot, 0, 0]) == [0; 4] {
            break;
        }
    }
}

fn child_speaks(path: &Path, random: &mut Random) {
    served(path, |link| {
        let words = [[UNWATCH, 0, 0, 0], [WATCH, 4096, 8192, 0], HELLO, DONE][random.below(4) as usize];
        wait(fork(|| {
            link.ask(words);
            0
        }));
        link.ask([UNWATCH, 0, 0, 0]);
    });
}

/// Connects, and lets another process send Hello and do the challenge.
fn passed_on(path: &Path, random: &mut Random) {
    with_link(path, |link| {
        let stage = random.below(2);
        if stage == 1 && link.ask(HELLO)[0] != CHALLENGE {
            return;
        }
        wait(fork(|| {
            match stage {
                0 => _ = link.join(),
                _ => _ = link.ask(DONE),
            }
            0
        }));
        link.ask([UNWATCH, 0, 0, 0]);
    });
}

fn never_quiet(path: &Path, random: &mut Random) {
    let Some(parked) = Parked::new(1 + random.below(8) as usize) else { return };
    let links: Vec<_> = (0..4).filter_map(|_| Link::open(path).ok()).collect();
    for link in &links {
        link.send(HELLO).ok();
    }
    if random.below(4) > 0 {
        // Waits until the helper ends the connections.
        for link in &links {
            link.receive();
        }
    }
    if random.below(2) == 0 {
        parked.release();
    }
}

fn parked_and_gone(path: &Path, random: &mut Random) {
    challenged(path, |link, _, _| {
        let parked = Parked::new(1 + random.below(32) as usize);
        rustix::net::shutdown(&link.0, rustix::net::Shutdown::Both).ok();
        sleep(random);
        if let Some(parked) = parked {
            parked.release();
        }
    });
}

/// Holds the lock of the address space most of the time while it sends requests.
fn locked(path: &Path, random: &mut Random) {
    served(path, |link| {
        let (over, file) = (AtomicBool::new(false), SharedFile::new());
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !over.load(Ordering::Relaxed) {
                        let start = map(libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE, -1);
                        // SAFETY: the mapping belongs to this function.
                        unsafe { libc::munmap(start, PAGE) };
                    }
                });
            }
            for _ in 0..random.below(40) {
                if link.ask([WATCH, file.start, file.start + 4096, 0])[0] == 0 {
                    break;
                }
            }
            over.store(true, Ordering::Relaxed);
        });
    });
}

/// Opens more connections than a user may have, and sends arbitrary messages on them.
fn storm(path: &Path, random: &mut Random) {
    let links: Vec<_> = (0..100).filter_map(|_| Link::open(path).ok()).collect();
    for link in links.iter().take(20) {
        link.send([random.below(12), random.below(3), 0, 0]).ok();
    }
    sleep(random);
}

fn files(path: &Path, random: &mut Random) {
    served(path, |link| {
        for _ in 0..70 {
            let file = SharedFile::new();
            if file.watch(link)[0] == 0 {
                break;
            }
            if random.below(4) == 0 {
                file.truncate();
            }
        }
    });
}

/// Unmaps all memory in the middle of the protocol: the address space ends without a mapping.
fn no_memory(path: &Path, random: &mut Random) {
    challenged(path, |link, start, len| {
        if random.below(2) == 0 {
            protect(start, len);
        }
        link.send(DONE).ok();
        // SAFETY: this ends the process, as intended, and the process shares its memory with no other process.
        unsafe { libc::syscall(libc::SYS_munmap, 0, 1_u64 << 46) };
        // SAFETY: only reached if nothing was unmapped.
        unsafe { libc::munmap(std::ptr::null_mut(), (1_usize << 47) - 4096) };
    });
}
