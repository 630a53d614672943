//! Tests that no transfer uses the old pages after memory has changed.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use percale::CacheSettings;
use percale::pindown::monitor::imported::Notifier;

use crate::memory::{Memory, filled, page};
use crate::world::{World, alone, buffers, domain, file, import};

/// Requirements: RCACHE-020, RCACHE-021.
#[test]
fn imported_monitor_reports_changes() {
    let Some(world) = World::open(CacheSettings::default(), 16) else { return };
    let (mut changing, mut lasting) = (Memory::new(3), Memory::new(3));
    changing.fill(1);
    lasting.fill(2);
    world.save(changing.bytes());
    world.save(lasting.bytes());
    for round in 3..30 {
        world.replace(&mut changing);
        changing.fill(round);
        world.save(changing.bytes());
        world.fetch(changing.bytes_mut(), round + 100);
        world.save(lasting.bytes());
        let stats = world.stats();
        assert_eq!(world.made(), u64::from(round), "each round registers only the memory that changed: {stats:?}");
    }
    assert_eq!((world.registered(), world.pinned()), (2, 6));
    // A notification of one of its pages is sufficient.
    world.notifier.changed(lasting.range().pages());
    world.save(lasting.bytes());
    assert_eq!(world.made(), 30);
    world.notifier.changed_everything();
    world.save(lasting.bytes());
    world.save(changing.bytes());
    assert_eq!(world.made(), 32);
}

/// Requirements: RCACHE-020.
#[test]
fn a_domain_has_one_imported_monitor_for_all_its_caches() {
    let Some(world) = World::open(CacheSettings::default(), 8) else { return };
    let (_other, imported) = Notifier::new(|_, _| true).expect("a descriptor");
    // SAFETY: the call is rejected.
    let refused = unsafe { world.domain.import_monitor(imported) };
    assert!(refused.is_err());
    let Some(second) = buffers(&world.domain, 8) else { return };
    assert!(second.explanation().contains("imported"));
    let mut memory = Memory::new(2);
    world.save(memory.bytes());
    assert_eq!(second.lane().write(memory.bytes(), &world.file, 0).expect("written"), 2 * page());
    world.replace(&mut memory);
    memory.fill(8);
    world.save(memory.bytes());
    world.fetch(memory.bytes_mut(), 9);
    assert_eq!(second.lane().write(memory.bytes(), &world.file, 0).expect("written"), 2 * page());
    assert_eq!((world.made(), second.table().made()), (2, 2), "both caches were notified");
    let mut seen = vec![0; 2 * page()];
    rustix::io::pread(&world.file, &mut seen[..], 0).expect("read");
    assert!(seen == filled(2 * page(), 9));
}

/// Requirements: RCACHE-020.
#[test]
fn memory_denied_by_imported_monitor_is_registered_per_use() {
    let _alone = alone();
    let domain = domain(CacheSettings::default());
    let (known, unknown) = (Memory::new(2), Memory::new(2));
    let answered = known.range();
    let (_notifier, imported) = Notifier::new(move |range, _| answered.contains(range)).expect("a descriptor");
    // SAFETY: the memory for which the monitor is responsible exists as long as the test, and does not change.
    unsafe { domain.import_monitor(imported) }.expect("the first");
    let Some(buffers) = buffers(&domain, 8) else { return };
    let (lane, file) = (buffers.lane(), file());
    for _ in 0..5 {
        lane.write(known.bytes(), &file, 0).expect("written");
        lane.write(unknown.bytes(), &file, 0).expect("written");
    }
    assert_eq!((buffers.table().made(), buffers.table().registered()), (6, 1));
}

/// Uses the best monitor that is available here: a monitor in the kernel, or no monitor, which is also correct.
///
/// Requirements: RCACHE-021.
#[test]
fn best_monitor_allows_no_stale_registration() {
    let _alone = alone();
    let Some(buffers) = buffers(&domain(CacheSettings::default()), 16) else { return };
    eprintln!("{}", buffers.explanation());
    let (lane, file) = (buffers.lane(), file());
    let mut memory = Memory::new(5);
    let mut seen = vec![0; 5 * page()];
    for round in 0..200_u8 {
        memory.fill(round);
        lane.write(memory.bytes(), &file, 0).expect("written");
        rustix::io::pread(&file, &mut seen[..], 0).expect("read");
        assert!(seen == memory.bytes(), "sent old pages in round {round}");
        rustix::io::pwrite(&file, &filled(5 * page(), !round), 0).expect("written");
        lane.read(memory.bytes_mut(), &file, 0).expect("read");
        assert!(memory.bytes() == filled(5 * page(), !round), "received into old pages in round {round}");
        if round % 2 == 0 {
            memory.replace(|_| {});
        }
    }
    assert_eq!(buffers.ordinary_transfers(), 0);
}

/// Requirements: RCACHE-026.
#[test]
fn transfers_are_correct_during_concurrent_changes() {
    const ROUNDS: u8 = 120;
    let _alone = alone();
    let domain = domain(CacheSettings::default().max_count(3));
    let notifier = import(&domain);
    let Some(buffers) = buffers(&domain, 32) else { return };
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let workers: Vec<_> = (0..4_u8)
            .map(|number| {
                let (buffers, notifier) = (&buffers, &notifier);
                scope.spawn(move || {
                    let (lane, file, mut memory) = (buffers.lane(), file(), Memory::new(3));
                    for round in 0..ROUNDS {
                        let seed = round ^ number << 6;
                        memory.fill(seed);
                        lane.write(memory.bytes(), &file, 0).expect("written");
                        let mut seen = vec![0; 3 * page()];
                        rustix::io::pread(&file, &mut seen[..], 0).expect("read");
                        assert!(seen == memory.bytes(), "thread {number} sent other bytes in round {round}");
                        rustix::io::pwrite(&file, &filled(3 * page(), !seed), 0).expect("written");
                        lane.read(memory.bytes_mut(), &file, 0).expect("read");
                        assert!(memory.bytes() == filled(3 * page(), !seed), "thread {number}, round {round}");
                        if round % 3 == 0 {
                            memory.replace(|range| notifier.changed(range));
                        }
                    }
                    notifier.changed(memory.range());
                })
            })
            .collect();
        // The notification is asynchronous, and concerns memory that is in use.
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                notifier.changed_everything();
                thread::yield_now();
            }
        });
        let ended: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        over.store(true, Ordering::Relaxed);
        ended.into_iter().for_each(|ended| ended.expect("no panic"));
    });
    assert_eq!(buffers.ordinary_transfers(), 0);
    buffers.flush();
    buffers.sweep();
    assert_eq!(buffers.table().registered(), 0, "no registration is in use, and none was leaked");
}
