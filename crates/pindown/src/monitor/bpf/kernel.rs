//! The programs, loaded: which address spaces they report on, and to which pages.
//!
//! Used by one owner at a time: the helper's loop, or a monitor of this process behind a lock.

use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use super::bell;
use super::load::{self, Loaded};
use super::page::{self, Page, SLOTS, Slot};
use super::refusal::{Denial, Unavailable, Unwatchable};
use super::sys;

/// Control's words, see `control` in bpf/pindown.bpf.c.
const END: u64 = 0;
const SUBSCRIBE: u64 = 1;
const UNSUBSCRIBE: u64 = 2;
const ADMIT: u64 = 3;
const DISMISS: u64 = 4;
const DISTRUST: u64 = 5;

/// Mapped as shared; VM_SHARED is gone where the file is open for reading only.
const VM_MAYSHARE: u64 = 0x80;
const VM_MAYWRITE: u64 = 0x20;
const VM_HUGETLB: u64 = 0x40_0000;

const TMPFS: u64 = 0x0102_1994;
const HUGETLBFS: u64 = 0x9584_58f6;
/// File systems of this machine, whose files change by nothing but system calls here: ext4, XFS, Btrfs, F2FS, ramfs,
/// EROFS, SquashFS. A private mapping of another one's file may be truncated by a server.
const LOCAL: [u64; 8] = [0xef53, 0x5846_5342, 0x9123_683e, 0xf2f5_2010, 0x8584_58f6, 0xe0f5_e1e2, 0x7371_7368, TMPFS];

/// How long a call that began before a page was there may take to end.
const QUIET: Duration = Duration::from_secs(2);

/// What `identify` answered: `struct question` in bpf/page.h.
#[derive(Clone, Copy, Debug)]
struct Answer([u64; ANSWER]);

/// Words of it.
const ANSWER: usize = 17;

impl Answer {
    const MM: usize = 2;
    const DUMPABLE: usize = 3;
    const EUID: usize = 4;
    const BEGINNING: usize = 5;
    const VM_START: usize = 6;
    const VM_END: usize = 7;
    const VM_FLAGS: usize = 8;
    const DEV: usize = 9;
    const INO: usize = 10;
    const MAGIC: usize = 11;
    const REGULAR: usize = 12;
    const FOUND: usize = 13;
    const WORKING: usize = 14;
    const TASKS: usize = 15;
    const USERS: usize = 16;

    fn is(&self, flag: u64) -> bool {
        self.0[Self::VM_FLAGS] & flag != 0
    }
}

/// An inode and how many times the client asked for it.
#[derive(Clone, Copy, Debug)]
struct Watched {
    inode: (u64, u64),
    uses: u64,
}

/// One address space that is reported on.
#[derive(Debug)]
struct Space {
    map: OwnedFd,
    page: Page,
    /// The ring that wakes who waits, and its place among all.
    bell: OwnedFd,
    number: u32,
    /// The process that asked first.
    owner: OwnedFd,
    slots: [Option<Watched>; SLOTS],
}

/// The programs and their maps.
#[derive(Debug)]
pub(super) struct Kernel {
    loaded: Loaded,
    spaces: HashMap<u64, Space>,
    /// How many pages count each inode.
    inodes: HashMap<(u64, u64), usize>,
}

/// Who a process is, without doubt.
#[derive(Clone, Copy, Debug)]
pub(super) struct Identity {
    /// Its address space: the kernel's own pointer, which leaves this process in no message.
    pub(super) mm: u64,
    dumpable: bool,
    euid: u32,
    beginning: u64,
    /// Workers of io_uring may be in the middle of a change that was not seen to begin, or tasks of other processes that have the address
    /// space, too.
    unseen: bool,
}

impl Kernel {
    pub(super) fn load() -> Result<Self, Unavailable> {
        Ok(Self::with(load::load()?))
    }

    pub(super) fn with(loaded: Loaded) -> Self {
        Self { loaded, spaces: HashMap::new(), inodes: HashMap::new() }
    }

    /// What keeps the programs attached: reports go on while anybody has these.
    pub(super) fn links(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.loaded.links.iter().map(AsFd::as_fd)
    }

    /// The same, for who holds them where nobody else can close them.
    pub(super) fn take_links(&mut self) -> Vec<OwnedFd> {
        std::mem::take(&mut self.loaded.links)
    }

    /// Whether all that it asks and tells the kernel by is open: a program may have closed it, and have opened something else there.
    pub(super) fn is_open(&self) -> bool {
        self.loaded.is_open()
    }

    /// Whether calls are reported when they begin, too.
    pub(super) fn starts(&self) -> bool {
        self.loaded.hooks.starts
    }

    /// An error if a program was skipped: then reports may be missing.
    pub(super) fn check(&self) -> Result<(), Unavailable> {
        for program in &self.loaded.programs {
            let missed = sys::misses(program.as_fd()).map_err(load::refused("the count of skipped programs"))?;
            if missed != 0 {
                return Err(Unavailable::Missed(missed));
            }
        }
        Ok(())
    }

    fn ask(&self, process: BorrowedFd<'_>, range: &Range<u64>) -> io::Result<Answer> {
        let mut bytes = [0_u8; 8 * ANSWER];
        bytes[..8].copy_from_slice(&range.start.to_ne_bytes());
        bytes[8..16].copy_from_slice(&range.end.to_ne_bytes());
        let map = self.loaded.asked.as_fd();
        sys::update(map, &0_u32.to_ne_bytes(), &bytes, false)?;
        sys::iterate(self.loaded.identify.as_fd(), process)?;
        sys::lookup(map, &0_u32.to_ne_bytes(), &mut bytes)?;
        let mut answer = Answer([0; ANSWER]);
        for (word, bytes) in answer.0.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *word = u64::from_ne_bytes(*bytes);
        }
        Ok(answer)
    }

    /// The address space of the process that `process` (a pidfd) names.
    pub(super) fn identify(&self, process: BorrowedFd<'_>) -> Result<Identity, Denial> {
        let Answer(answer) = self.ask(process, &(0..0)).map_err(|_| Denial::NoAddressSpace)?;
        if answer[Answer::MM] == 0 {
            return Err(Denial::NoAddressSpace);
        }
        Ok(Identity {
            mm: answer[Answer::MM],
            dumpable: answer[Answer::DUMPABLE] == 1,
            euid: answer[Answer::EUID] as u32,
            beginning: answer[Answer::BEGINNING],
            unseen: answer[Answer::WORKING] != 0 || answer[Answer::USERS] > answer[Answer::TASKS],
        })
    }

    /// As [`Self::identify`], if the process runs for `user` and its user may look into it: a program that gained
    /// privileges since it connected is refused.
    pub(super) fn identify_for(&self, process: BorrowedFd<'_>, user: u32) -> Result<Identity, Denial> {
        let identity = self.identify(process)?;
        if identity.dumpable && identity.euid == user { Ok(identity) } else { Err(Denial::NotTheUsers) }
    }

    /// Whether that address space is reported on already.
    pub(super) fn knows(&self, mm: u64) -> bool {
        self.spaces.contains_key(&mm)
    }

    /// Begins to report on an address space of `process`; nothing if that is so already.
    pub(super) fn admit(&mut self, process: BorrowedFd<'_>, mm: u64) -> Result<(), Denial> {
        if self.knows(mm) {
            return Ok(());
        }
        let kernel = |_| Denial::Kernel;
        let map = sys::create_page(page::SIZE).map_err(kernel)?;
        let bell = sys::create_ring(bell::SIZE).map_err(kernel)?;
        let taken = |number: &u32| self.spaces.values().any(|space| space.number == *number);
        let number = (0..).find(|number| !taken(number)).ok_or(Denial::Kernel)?;
        let bells = self.loaded.bells.as_fd();
        sys::update(bells, &number.to_ne_bytes(), &bell.as_raw_fd().to_ne_bytes(), false).map_err(kernel)?;
        let mut first = vec![0_u8; page::SIZE];
        for (index, word) in [(page::LAYOUT, page::SALT), (page::BELL, u64::from(number))] {
            first[8 * index..8 * index + 8].copy_from_slice(&word.to_ne_bytes());
        }
        sys::update(map.as_fd(), &0_u32.to_ne_bytes(), &first, false).map_err(kernel)?;
        sys::freeze(map.as_fd()).map_err(kernel)?;
        let page = Page::open(map.as_fd()).map_err(kernel)?;
        let owner = process.try_clone_to_owned().map_err(kernel)?;
        if !self.tell(ADMIT, mm) {
            return Err(Denial::Kernel);
        }
        let pages = self.loaded.pages.as_fd();
        if sys::update(pages, &mm.to_ne_bytes(), &map.as_raw_fd().to_ne_bytes(), false).is_err() {
            self.tell(DISMISS, mm);
            return Err(Denial::Kernel);
        }
        self.spaces.insert(mm, Space { map, page, bell, number, owner, slots: [None; SLOTS] });
        self.quiet(process, mm).inspect_err(|_| self.end(mm))
    }

    /// Waits until no thread of the process is inside a call that began before its page was there: such a call's
    /// beginning went unreported.
    fn quiet(&self, process: BorrowedFd<'_>, mm: u64) -> Result<(), Denial> {
        let deadline = Instant::now() + QUIET;
        loop {
            let now = self.identify(process)?;
            if now.mm != mm {
                return Err(Denial::NoAddressSpace);
            }
            let beginning = self.starts() && now.beginning != 0;
            if !beginning && !now.unseen {
                return Ok(());
            }
            if Instant::now() > deadline {
                return if beginning { Err(Denial::NeverQuiet) } else { self.distrust(mm) };
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Counts whatever workers of io_uring do to pages as a change, and has nothing kept where that may be seen too late.
    fn distrust(&self, mm: u64) -> Result<(), Denial> {
        let arguments = [DISTRUST, mm, 0, 0, u64::from(self.starts())];
        let done = sys::run(self.loaded.control.as_fd(), &arguments).is_ok_and(|answer| answer == 1);
        done.then_some(()).ok_or(Denial::Kernel)
    }

    /// The page of an address space, and the descriptor of its map.
    pub(super) fn page(&self, mm: u64) -> Option<(&Page, BorrowedFd<'_>)> {
        self.spaces.get(&mm).map(|space| (&space.page, space.map.as_fd()))
    }

    /// The ring that wakes who waits for reports on an address space.
    pub(super) fn bell(&self, mm: u64) -> Option<BorrowedFd<'_>> {
        self.spaces.get(&mm).map(|space| space.bell.as_fd())
    }

    /// Has the pages of `range` watched, of which `process` (with address space `mm`) wants to pin some. `None`: the
    /// records tell all there is to know.
    pub(super) fn watch(
        &mut self,
        process: BorrowedFd<'_>,
        mm: u64,
        range: &Range<u64>,
    ) -> Result<Option<Slot>, Unwatchable> {
        let answer = self.mapping(process, mm, range)?;
        if answer.0[Answer::VM_END] < range.end || answer.0[Answer::VM_START] > range.start {
            return Err(Unwatchable::SeveralMappings);
        }
        let magic = answer.0[Answer::MAGIC];
        match (magic, answer.is(VM_MAYSHARE)) {
            // No file: anonymous memory.
            (0, false) => Ok(None),
            // A device, though its name lies in /dev, which is a tmpfs: its driver takes pages as it likes.
            (TMPFS, _) if answer.0[Answer::REGULAR] != 1 => Err(Unwatchable::FileSystem),
            (_, true) if !answer.is(VM_MAYWRITE) => Err(Unwatchable::ReadOnlyShared),
            (TMPFS | HUGETLBFS, true) => self.subscribe(mm, (answer.0[Answer::DEV], answer.0[Answer::INO])).map(Some),
            (_, true) => Err(Unwatchable::FileSystem),
            // Its pages come and go without a word. Of a mapping without a name, too: /proc/PID/map_files leads to its file, which another
            // process may cut.
            (HUGETLBFS, false) => Err(Unwatchable::PrivateHuge),
            (_, false) if answer.is(VM_HUGETLB) => Err(Unwatchable::PrivateHuge),
            (magic, false) if LOCAL.contains(&magic) => Ok(None),
            (_, false) => Err(Unwatchable::FileSystem),
        }
    }

    fn mapping(&self, process: BorrowedFd<'_>, mm: u64, range: &Range<u64>) -> Result<Answer, Unwatchable> {
        if range.start == 0 || range.end <= range.start {
            return Err(Unwatchable::Unmapped);
        }
        // The program only tries the lock: a writer may hold it for a moment.
        for _ in 0..200 {
            let answer = self.ask(process, range).map_err(|_| Unwatchable::Gone)?;
            if answer.0[Answer::MM] != mm {
                return Err(Unwatchable::Gone);
            }
            match answer.0[Answer::FOUND].cast_signed() as i32 {
                0 => return Ok(answer),
                error if error == -libc::EBUSY => std::thread::sleep(Duration::from_micros(100)),
                _ => return Err(Unwatchable::Unmapped),
            }
        }
        Err(Unwatchable::Locked)
    }

    fn subscribe(&mut self, mm: u64, inode: (u64, u64)) -> Result<Slot, Unwatchable> {
        let space = self.spaces.get_mut(&mm).ok_or(Unwatchable::Gone)?;
        let same = |slot: &Option<Watched>| slot.is_some_and(|w| w.inode == inode);
        if let Some(index) = space.slots.iter().position(same) {
            if let Some(watched) = &mut space.slots[index] {
                watched.uses += 1;
            }
            return Slot::new(index).ok_or(Unwatchable::Full);
        }
        let index = space.slots.iter().position(Option::is_none).ok_or(Unwatchable::Full)?;
        let slot = Slot::new(index).ok_or(Unwatchable::Full)?;
        let key = inode_key(inode);
        if !self.inodes.contains_key(&inode) {
            sys::update(self.loaded.inodes.as_fd(), &key, &[0; 512], true).map_err(|_| Unwatchable::Full)?;
        }
        if !self.control(SUBSCRIBE, mm, inode, slot) {
            self.forget(inode, 0);
            return Err(Unwatchable::Full);
        }
        *self.inodes.entry(inode).or_insert(0) += 1;
        if let Some(space) = self.spaces.get_mut(&mm) {
            space.slots[index] = Some(Watched { inode, uses: 1 });
        }
        Ok(slot)
    }

    /// Takes back one [`Self::watch`] that gave `slot`; after the last the slot may be another inode's.
    pub(super) fn unwatch(&mut self, mm: u64, slot: Slot) {
        let Some(space) = self.spaces.get_mut(&mm) else { return };
        let Some(watched) = &mut space.slots[slot.index()] else { return };
        watched.uses -= 1;
        if watched.uses == 0 {
            let inode = watched.inode;
            space.slots[slot.index()] = None;
            self.control(UNSUBSCRIBE, mm, inode, slot);
            self.forget(inode, 1);
        }
    }

    fn forget(&mut self, inode: (u64, u64), pages: usize) {
        if let Some(count) = self.inodes.get_mut(&inode) {
            *count -= pages;
            if *count > 0 {
                return;
            }
        }
        self.inodes.remove(&inode);
        // It may not be there, which is what is wanted.
        sys::delete(self.loaded.inodes.as_fd(), &inode_key(inode)).ok();
    }

    /// What concerns an address space as a whole.
    fn tell(&self, what: u64, mm: u64) -> bool {
        sys::run(self.loaded.control.as_fd(), &[what, mm, 0, 0, 0]).is_ok_and(|answer| answer == 1)
    }

    fn control(&self, what: u64, mm: u64, (dev, ino): (u64, u64), slot: Slot) -> bool {
        let arguments = [what, mm, dev, ino, slot.index() as u64];
        sys::run(self.loaded.control.as_fd(), &arguments).is_ok_and(|answer| answer == 1)
    }

    /// Says on the page that nothing may be kept any more.
    pub(super) fn end_reports(&self, mm: u64) {
        self.tell(END, mm);
    }

    /// Says on the page that nothing may be kept any more, and stops to report. Only when the address space is gone: a
    /// thread that lives on would have a cache that nobody warns.
    pub(super) fn end(&mut self, mm: u64) {
        let Some(space) = self.spaces.remove(&mm) else { return };
        self.tell(END, mm);
        // Only what is not asked for any more may be forgotten.
        if sys::delete(self.loaded.pages.as_fd(), &mm.to_ne_bytes()).is_ok() {
            self.tell(DISMISS, mm);
        }
        sys::delete(self.loaded.bells.as_fd(), &space.number.to_ne_bytes()).ok();
        for (index, watched) in space.slots.iter().enumerate() {
            if let (Some(watched), Some(slot)) = (watched, Slot::new(index)) {
                self.control(UNSUBSCRIBE, mm, watched.inode, slot);
                self.forget(watched.inode, 1);
            }
        }
    }

    /// Marks every page as ended: reports may be missing.
    pub(super) fn end_all(&mut self) {
        for mm in self.spaces.keys().copied().collect::<Vec<_>>() {
            self.end(mm);
        }
    }

    /// Ends what the first owner has left: it has ended, or runs another program. The address may be another's by now.
    pub(super) fn sweep(&mut self) {
        let gone = |(&mm, space): (&u64, &Space)| {
            let stays = self.identify(space.owner.as_fd()).is_ok_and(|now| now.mm == mm);
            (!stays).then_some(mm)
        };
        for mm in self.spaces.iter().filter_map(gone).collect::<Vec<_>>() {
            self.end(mm);
        }
    }
}

fn inode_key((dev, ino): (u64, u64)) -> [u8; 16] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&dev.to_ne_bytes());
    key[8..].copy_from_slice(&ino.to_ne_bytes());
    key
}
