//! The loaded programs: the address spaces that they report on, and the pages of the reports.
//!
//! Used by one owner at a time: the helper's loop, or a monitor of this process under a lock.

use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use super::doorbell;
use super::load::{self, Loaded};
use super::object;
use super::page::{self, Page, SLOTS, Slot};
use super::publish::{Maps, Publisher};
use super::quota::Charge;
use super::refusal::{BpfUnavailable, Denial, Unwatchable};
use super::sys;
use super::waiting::{PageInsertion, PageRemoval, Progress, Published};

/// Commands of the control program; see `control` in bpf/pindown.bpf.c.
const END: u64 = 0;
const SUBSCRIBE: u64 = 1;
const UNSUBSCRIBE: u64 = 2;
const ADMIT: u64 = 3;
const DISMISS: u64 = 4;
const DISTRUST: u64 = 5;

/// The mapping is shared. VM_SHARED is not set if the file is open for reading only.
const VM_MAYSHARE: u64 = 0x80;
const VM_MAYWRITE: u64 = 0x20;
const VM_HUGETLB: u64 = 0x40_0000;

const TMPFS: u64 = 0x0102_1994;
const HUGETLBFS: u64 = 0x9584_58f6;
/// Local file systems, where files change only by system calls on this machine: ext4, XFS, Btrfs, F2FS, ramfs, EROFS,
/// SquashFS, tmpfs. On a network file system, a server may truncate the file of a private mapping.
const LOCAL: [u64; 8] = [0xef53, 0x5846_5342, 0x9123_683e, 0xf2f5_2010, 0x8584_58f6, 0xe0f5_e1e2, 0x7371_7368, TMPFS];

/// The result of `identify`: `struct question` in bpf/page.h.
#[derive(Clone, Copy, Debug)]
struct Answer([u64; ANSWER]);

/// The number of words of the result.
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

/// A watched inode, and the number of times that the client requested it.
#[derive(Debug)]
struct Watched {
    inode: Inode,
    uses: u64,
    /// The charge for the subscription; released when this is dropped.
    _charge: Option<[Charge; 2]>,
}

/// A file: device and inode number.
pub(super) type Inode = (u64, u64);

/// Identifies an address space that is reported on, from [`Kernel::admit`] on. Never reused for another address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct SpaceId(u64);

/// One address space that is reported on.
#[derive(Debug)]
struct AddressSpace {
    /// The kernel's pointer to the address space. It identifies this space until the page has ended. After that it may
    /// identify another space.
    mm: u64,
    map: Arc<OwnedFd>,
    page: Page,
    /// The ring that wakes waiting threads.
    doorbell: Arc<OwnedFd>,
    /// Identifies the ring and the page to the programs.
    name: u64,
    slots: [Option<Watched>; SLOTS],
    /// Whether the programs have the page.
    progress: Progress,
    /// Whether the page was passed to a client.
    used: bool,
    /// The charge for the page.
    charge: Option<Charge>,
}

/// The programs and their maps.
#[derive(Debug)]
pub(super) struct Kernel {
    loaded: Loaded,
    publisher: Publisher,
    spaces: HashMap<SpaceId, AddressSpace>,
    /// The latest space of each pointer.
    by_mm: HashMap<u64, SpaceId>,
    /// The number of spaces admitted so far.
    admitted: u64,
    /// The number of pages that count each inode.
    inodes: HashMap<Inode, usize>,
}

/// The state of a process at one moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Identity {
    /// The pointer to the process's address space. No message contains it.
    mm: u64,
    dumpable: bool,
    euid: u32,
    /// The number of threads inside a call that must be reported when it begins.
    beginning: u64,
    /// Whether a change whose beginning was not reported may be in progress in io_uring workers, or in tasks of other
    /// processes that share the address space.
    unseen: bool,
}

impl Identity {
    fn of(Answer(answer): &Answer) -> Option<Self> {
        (answer[Answer::MM] != 0).then_some(Self {
            mm: answer[Answer::MM],
            dumpable: answer[Answer::DUMPABLE] == 1,
            euid: answer[Answer::EUID] as u32,
            beginning: answer[Answer::BEGINNING],
            unseen: answer[Answer::WORKING] != 0 || answer[Answer::USERS] > answer[Answer::TASKS],
        })
    }

    /// Returns whether the process runs as `user` and may be inspected by this user. This is false for a program that
    /// gained privileges, or that is not dumpable.
    pub(super) fn is_of(&self, user: u32) -> bool {
        self.dumpable && self.euid == user
    }
}

/// A process, and the mapping at the requested address.
#[derive(Debug)]
pub(super) struct IdentifiedMapping {
    pub(super) identity: Identity,
    /// The reason why the mapping is unknown. [`Unwatchable::Locked`] is temporary: the caller tries again.
    pub(super) refused: Option<Unwatchable>,
    answer: Answer,
}

impl Kernel {
    pub(super) fn load() -> Result<Self, BpfUnavailable> {
        Ok(Self::with(object::load()?))
    }

    /// Like [`Self::load`], but with threads that publish pages, so that [`Self::admit`] does not wait for the kernel.
    pub(super) fn load_for_others() -> Result<Self, BpfUnavailable> {
        let (loaded, maps) = object::load()?;
        let publisher = Publisher::aside(maps).map_err(load::refused("starting a thread that publishes pages"))?;
        Ok(Self::publishing(loaded, publisher))
    }

    pub(super) fn with((loaded, maps): (Loaded, Maps)) -> Self {
        Self::publishing(loaded, Publisher::Here(maps))
    }

    fn publishing(loaded: Loaded, publisher: Publisher) -> Self {
        let (spaces, by_mm, inodes) = (HashMap::new(), HashMap::new(), HashMap::new());
        Self { loaded, publisher, spaces, by_mm, admitted: 0, inodes }
    }

    /// Returns a descriptor that is readable after a page was published, until [`Self::clear_published`].
    pub(super) fn published(&self) -> Option<BorrowedFd<'_>> {
        self.publisher.published()
    }

    pub(super) fn clear_published(&self) {
        self.publisher.clear();
    }

    /// Returns whether the programs have the page of a space.
    pub(super) fn progress(&self, space: SpaceId) -> Published {
        self.spaces.get(&space).map_or(Published::Refused, |space| space.progress.get())
    }

    /// Returns the descriptors that keep the programs attached: reports continue as long as any process has them open.
    pub(super) fn links(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.loaded.links.iter().map(AsFd::as_fd)
    }

    /// Takes the descriptors of [`Self::links`], for an owner that keeps them where no other code can close them.
    pub(super) fn take_links(&mut self) -> Vec<OwnedFd> {
        std::mem::take(&mut self.loaded.links)
    }

    /// Returns whether all descriptors through which this value queries and controls the kernel are open. The program
    /// may have closed one, and opened another file with its number.
    pub(super) fn is_open(&self) -> bool {
        self.loaded.is_open()
    }

    /// Returns whether calls are also reported when they begin.
    pub(super) fn starts(&self) -> bool {
        self.loaded.hooks.starts
    }

    /// Returns an error if a program was skipped, or its descriptor was closed: reports may be missing then.
    pub(super) fn check(&self) -> Result<(), BpfUnavailable> {
        self.loaded.check()
    }

    fn ask(&self, process: BorrowedFd<'_>, range: &Range<u64>) -> io::Result<Answer> {
        let mut bytes = [0_u8; 8 * ANSWER];
        bytes[..8].copy_from_slice(&range.start.to_ne_bytes());
        bytes[8..16].copy_from_slice(&range.end.to_ne_bytes());
        let map = self.loaded.query_map.as_fd();
        sys::update(map, &0_u32.to_ne_bytes(), &bytes, false)?;
        sys::iterate(self.loaded.identify.as_fd(), process)?;
        sys::lookup(map, &0_u32.to_ne_bytes(), &mut bytes)?;
        let mut answer = Answer([0; ANSWER]);
        for (word, bytes) in answer.0.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *word = u64::from_ne_bytes(*bytes);
        }
        Ok(answer)
    }

    /// Returns the current state of the process that `process` (a pidfd) refers to.
    pub(super) fn identify(&self, process: BorrowedFd<'_>) -> Result<Identity, Denial> {
        let answer = self.ask(process, &(0..0)).map_err(|_| Denial::NoAddressSpace)?;
        Identity::of(&answer).ok_or(Denial::NoAddressSpace)
    }

    /// Returns the space in which a process was when it was identified, if that space is reported on.
    ///
    /// The pointer in the identity was read before the page is checked. The programs mark a page when its space ends,
    /// which is before the pointer can belong to another space. So while the page has no mark, the pointer that was
    /// read earlier identifies this space.
    pub(super) fn space_of(&self, caller: &Identity) -> Option<SpaceId> {
        let id = *self.by_mm.get(&caller.mm)?;
        (!self.spaces.get(&id)?.page.has_ended()).then_some(id)
    }

    /// Begins to report on the address space of a process that had no page. The programs use the page from the time
    /// when [`Self::progress`] returns `Done`. `charge` is the charge for the page.
    ///
    /// The pointer may belong to another space by the time of this call. So the caller must verify again that the
    /// process is in the space ([`Self::space_of`]) before it passes the page to a client.
    pub(super) fn admit(&mut self, caller: &Identity, charge: Option<Charge>) -> Result<SpaceId, Denial> {
        // The pointer's former space, if it had one, has ended.
        if let Some(former) = self.by_mm.get(&caller.mm).copied() {
            self.end(&[former]);
        }
        let kernel = |_| Denial::Kernel;
        let map = sys::create_page(page::SIZE).map_err(kernel)?;
        let doorbell = sys::create_ring(doorbell::SIZE).map_err(kernel)?;
        let mut name = [0; 8];
        rustix::rand::getrandom(&mut name, rustix::rand::GetRandomFlags::empty()).map_err(|_| Denial::Kernel)?;
        // 0 does not identify a page: it stands for a thread that is not in a call.
        let name = u64::from_ne_bytes(name).max(1);
        let mut first = vec![0_u8; page::SIZE];
        for (index, word) in [(page::LAYOUT, page::SALT), (page::NAME, name)] {
            first[8 * index..8 * index + 8].copy_from_slice(&word.to_ne_bytes());
        }
        sys::update(map.as_fd(), &0_u32.to_ne_bytes(), &first, false).map_err(kernel)?;
        sys::freeze(map.as_fd()).map_err(kernel)?;
        let page = Page::open(map.as_fd()).map_err(kernel)?;
        let (map, doorbell, progress) = (Arc::new(map), Arc::new(doorbell), Progress::default());
        let put = PageInsertion {
            mm: caller.mm,
            name,
            page: Arc::clone(&map),
            doorbell: Arc::clone(&doorbell),
            progress: progress.clone(),
        };
        if !self.send_command(ADMIT, caller.mm) {
            return Err(Denial::Kernel);
        }
        self.publisher.put(put);
        self.admitted += 1;
        let id = SpaceId(self.admitted);
        let slots = [const { None }; SLOTS];
        self.spaces.insert(
            id,
            AddressSpace { mm: caller.mm, map, page, doorbell, name, slots, progress, used: false, charge },
        );
        self.by_mm.insert(caller.mm, id);
        Ok(id)
    }

    /// Returns whether no thread of the process is inside a call that began before its page existed, and no io_uring
    /// worker has an earlier request. The beginnings of such calls and requests were not reported, so the caller waits
    /// until this function has returned true once.
    pub(super) fn is_quiet(&self, caller: &Identity) -> bool {
        !self.is_beginning(caller) && !caller.unseen
    }

    fn is_beginning(&self, caller: &Identity) -> bool {
        self.starts() && caller.beginning != 0
    }

    /// Allows the page of a space to be used although a process in it was never quiet ([`Self::is_quiet`]).
    ///
    /// # Errors
    /// [`Denial::NeverQuiet`] if a thread is inside such a call, which must end first. For changes by workers there is
    /// an alternative: they can be distrusted.
    pub(super) fn accept_unquiet(&self, space: SpaceId, caller: &Identity) -> Result<(), Denial> {
        if self.is_beginning(caller) { Err(Denial::NeverQuiet) } else { self.distrust(space) }
    }

    /// Treats every operation of io_uring workers on pages as a change. Registrations are not kept if such a change may
    /// be reported too late.
    fn distrust(&self, space: SpaceId) -> Result<(), Denial> {
        let space = self.spaces.get(&space).ok_or(Denial::NoAddressSpace)?;
        let arguments = [DISTRUST, space.mm, 0, 0, u64::from(self.starts())];
        let done = sys::run(self.loaded.control.as_fd(), &arguments).is_ok_and(|answer| answer == 1);
        done.then_some(()).ok_or(Denial::Kernel)
    }

    /// Returns the page of an address space, and the descriptor of its map.
    pub(super) fn page(&self, space: SpaceId) -> Option<(&Page, BorrowedFd<'_>)> {
        self.spaces.get(&space).map(|space| (&space.page, space.map.as_fd()))
    }

    /// Records that the page of a space was passed to a process in it.
    pub(super) fn was_given(&mut self, space: SpaceId) {
        if let Some(space) = self.spaces.get_mut(&space) {
            space.used = true;
        }
    }

    /// Returns the ring that wakes threads that wait for reports on an address space.
    pub(super) fn doorbell(&self, space: SpaceId) -> Option<BorrowedFd<'_>> {
        self.spaces.get(&space).map(|space| space.doorbell.as_fd())
    }

    /// Looks up the process that `process` refers to, and its mapping at the start of `range`.
    pub(super) fn mapping(
        &self,
        process: BorrowedFd<'_>,
        range: &Range<u64>,
    ) -> Result<IdentifiedMapping, Unwatchable> {
        let sensible = range.start != 0 && range.start < range.end;
        let requested = if sensible { range.clone() } else { 0..0 };
        let answer = self.ask(process, &requested).map_err(|_| Unwatchable::Gone)?;
        let identity = Identity::of(&answer).ok_or(Unwatchable::Gone)?;
        let refused = match answer.0[Answer::FOUND].cast_signed() as i32 {
            _ if !sensible => Some(Unwatchable::Unmapped),
            0 => None,
            // The program only tries to take the lock.
            error if error == -libc::EBUSY => Some(Unwatchable::Locked),
            _ => Some(Unwatchable::Unmapped),
        };
        Ok(IdentifiedMapping { identity, refused, answer })
    }

    /// Watches the pages of `range`, some of which the space's process is about to pin. Returns `None` if the records
    /// report every change of them. `charge` is called to charge the user for a subscription.
    pub(super) fn watch(
        &mut self,
        space: SpaceId,
        range: &Range<u64>,
        mapping: &IdentifiedMapping,
        charge: impl FnOnce(Inode) -> Result<Option<[Charge; 2]>, Unwatchable>,
    ) -> Result<Option<Slot>, Unwatchable> {
        if let Some(why) = mapping.refused {
            return Err(why);
        }
        let answer = &mapping.answer;
        if answer.0[Answer::VM_END] < range.end || answer.0[Answer::VM_START] > range.start {
            return Err(Unwatchable::SeveralMappings);
        }
        let magic = answer.0[Answer::MAGIC];
        match (magic, answer.is(VM_MAYSHARE)) {
            // There is no file: the memory is anonymous.
            (0, false) => Ok(None),
            // The mapping is of a device. Its name is in /dev, which is a tmpfs, but its driver may remove pages at any
            // time.
            (TMPFS, _) if answer.0[Answer::REGULAR] != 1 => Err(Unwatchable::FileSystem),
            (_, true) if !answer.is(VM_MAYWRITE) => Err(Unwatchable::ReadOnlyShared),
            (TMPFS | HUGETLBFS, true) => {
                self.subscribe(space, (answer.0[Answer::DEV], answer.0[Answer::INO]), charge).map(Some)
            }
            (_, true) => Err(Unwatchable::FileSystem),
            // The pages of hugetlbfs are added and removed without a report. The same holds for a mapping of huge pages
            // without a name: another process may truncate its file through /proc/PID/map_files.
            (HUGETLBFS, false) => Err(Unwatchable::PrivateHuge),
            (_, false) if answer.is(VM_HUGETLB) => Err(Unwatchable::PrivateHuge),
            (magic, false) if LOCAL.contains(&magic) => Ok(None),
            (_, false) => Err(Unwatchable::FileSystem),
        }
    }

    fn subscribe(
        &mut self,
        id: SpaceId,
        inode: Inode,
        charge: impl FnOnce(Inode) -> Result<Option<[Charge; 2]>, Unwatchable>,
    ) -> Result<Slot, Unwatchable> {
        let space = self.spaces.get_mut(&id).ok_or(Unwatchable::Gone)?;
        for (index, watched) in space.slots.iter_mut().enumerate() {
            if let Some(watched) = watched.as_mut().filter(|watched| watched.inode == inode) {
                watched.uses += 1;
                return Slot::new(index).ok_or(Unwatchable::Full);
            }
        }
        let index = space.slots.iter().position(Option::is_none).ok_or(Unwatchable::Full)?;
        let slot = Slot::new(index).ok_or(Unwatchable::Full)?;
        let (mm, charge) = (space.mm, charge(inode)?);
        let key = inode_key(inode);
        if !self.inodes.contains_key(&inode) {
            sys::update(self.loaded.inodes.as_fd(), &key, &[0; load::INODE_BYTES], true)
                .map_err(|_| Unwatchable::Full)?;
        }
        if !self.control(SUBSCRIBE, mm, inode, slot) {
            self.forget(inode, 0);
            return Err(Unwatchable::Full);
        }
        *self.inodes.entry(inode).or_insert(0) += 1;
        if let Some(space) = self.spaces.get_mut(&id) {
            space.slots[index] = Some(Watched { inode, uses: 1, _charge: charge });
        }
        Ok(slot)
    }

    /// Reverts one [`Self::watch`] that returned `slot`. After the last one the slot may be used for another inode.
    pub(super) fn unwatch(&mut self, space: SpaceId, slot: Slot) {
        let Some(space) = self.spaces.get_mut(&space) else { return };
        let Some(watched) = &mut space.slots[slot.index()] else { return };
        watched.uses -= 1;
        if watched.uses == 0 {
            let (mm, inode) = (space.mm, watched.inode);
            space.slots[slot.index()] = None;
            self.control(UNSUBSCRIBE, mm, inode, slot);
            self.forget(inode, 1);
        }
    }

    fn forget(&mut self, inode: Inode, pages: usize) {
        if let Some(count) = self.inodes.get_mut(&inode) {
            *count -= pages;
            if *count > 0 {
                return;
            }
        }
        self.inodes.remove(&inode);
        // If the element is not there, there is nothing to delete.
        sys::delete(self.loaded.inodes.as_fd(), &inode_key(inode)).ok();
    }

    /// Sends a command that applies to a whole address space.
    fn send_command(&self, what: u64, mm: u64) -> bool {
        sys::run(self.loaded.control.as_fd(), &[what, mm, 0, 0, 0]).is_ok_and(|answer| answer == 1)
    }

    fn control(&self, what: u64, mm: u64, (dev, ino): Inode, slot: Slot) -> bool {
        let arguments = [what, mm, dev, ino, slot.index() as u64];
        sys::run(self.loaded.control.as_fd(), &arguments).is_ok_and(|answer| answer == 1)
    }

    /// Marks the page of a space as ended, and stops its reports.
    pub(super) fn end_reports(&self, space: SpaceId) {
        if let Some(space) = self.spaces.get(&space) {
            self.send_command(END, space.mm);
        }
    }

    /// Marks the pages as ended and stops the reports. A page that has no mark yet may be in use: a cache with
    /// registrations detects the mark and drops them.
    pub(super) fn end(&mut self, which: &[SpaceId]) {
        let ended: Vec<AddressSpace> = which.iter().filter_map(|id| self.spaces.remove(id)).collect();
        if ended.is_empty() {
            return;
        }
        for space in &ended {
            if !space.page.has_ended() {
                self.send_command(END, space.mm);
            }
        }
        let mut takes = Vec::new();
        for space in ended {
            // A marked page reports nothing, so the programs no longer need to find it.
            self.send_command(DISMISS, space.mm);
            self.by_mm.remove(&space.mm);
            for (index, watched) in space.slots.iter().enumerate() {
                if let (Some(watched), Some(slot)) = (watched, Slot::new(index)) {
                    self.control(UNSUBSCRIBE, space.mm, watched.inode, slot);
                    self.forget(watched.inode, 1);
                }
            }
            // A page that no process has used stays charged until it is removed, so that users cannot make more of them
            // than the limit allows.
            let charge = if space.used { None } else { space.charge };
            takes.push(PageRemoval { mm: space.mm, name: space.name, _charge: charge });
        }
        self.publisher.take(takes);
    }

    /// Marks every page as ended, because reports may be missing.
    pub(super) fn end_all(&mut self) {
        self.end(&self.spaces.keys().copied().collect::<Vec<_>>());
    }

    /// Removes the spaces with pages that the programs have marked as ended, and returns them.
    pub(super) fn sweep(&mut self) -> Vec<SpaceId> {
        let ended = |(&id, space): (&SpaceId, &AddressSpace)| space.page.has_ended().then_some(id);
        let ended: Vec<SpaceId> = self.spaces.iter().filter_map(ended).collect();
        self.end(&ended);
        ended
    }
}

fn inode_key((dev, ino): Inode) -> [u8; 16] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&dev.to_ne_bytes());
    key[8..].copy_from_slice(&ino.to_ne_bytes());
    key
}
