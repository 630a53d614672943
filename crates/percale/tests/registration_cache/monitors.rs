//! Monitors that are selected by name.

use percale::domain::OpenedCache;
use percale::pindown::{Access, Cache};
use percale::{CacheMonitor, CacheSettings, device::BufferTable};

use crate::memory::{Memory, pinned};
use crate::world::{World, alone, domain};

fn with(monitor: &str) -> CacheSettings {
    let (settings, notes) = CacheSettings::read(|name| (name == "FI_MR_CACHE_MONITOR").then(|| monitor.to_owned()));
    assert_eq!(notes, [], "{monitor}");
    settings
}

fn open(settings: &CacheSettings) -> Option<OpenedCache<BufferTable>> {
    match BufferTable::new(8) {
        Ok(table) => Some(domain(CacheSettings::default()).open_cache(settings, table).expect("a cache")),
        Err(why) => {
            eprintln!("SKIPPED (io_uring): {why}");
            None
        }
    }
}

/// Looks up memory several times, and returns the number of pages that remain pinned.
fn left_pinned(cache: &Cache<BufferTable>, memory: &Memory) -> usize {
    let before = pinned();
    let lane = cache.lane();
    for _ in 0..3 {
        lane.end(lane.get(memory.range(), Access::LOCAL_WRITE).expect("registered"));
    }
    pinned() - before
}

/// Requirements: RCACHE-013.
#[test]
fn disabled_monitor_turns_caching_off() {
    let disabled = CacheSettings::default().monitor(CacheMonitor::Disabled);
    assert_eq!(with("disabled"), disabled);
    // This also holds if the application has a monitor.
    let Some(world) = World::open(disabled, 8) else { return };
    let memory = Memory::new(3);
    for round in 1..10 {
        world.save(memory.bytes());
        assert_eq!((world.made(), world.registered(), world.pinned()), (round, 0, 0));
    }
}

/// Requirements: RCACHE-011.
#[test]
fn named_userfaultfd_is_used_or_caching_is_off() {
    let _alone = alone();
    let Some(OpenedCache { cache, notes }) = open(&with("userfaultfd")) else { return };
    assert_eq!(notes.len(), 1);
    assert_eq!(notes[0].warning, cache.monitor() == "none", "{notes:?}");
    assert!(["userfaultfd", "none"].contains(&cache.monitor()), "{notes:?}");
    assert!(notes[0].to_string().contains("userfaultfd"), "{notes:?}");
    let memory = Memory::new(3);
    assert_eq!(left_pinned(&cache, &memory), 0, "without a promise, registrations of ordinary memory are not kept");
    let Some(OpenedCache { cache, .. }) = open(&with("userfaultfd-promised")) else { return };
    if cache.monitor() == "none" {
        return eprintln!("SKIPPED (userfaultfd): {}", cache.explanation());
    }
    assert_eq!(left_pinned(&cache, &memory), 3, "{}", cache.explanation());
}

/// Requirements: RCACHE-012.
#[test]
fn memhooks_selects_the_best_sound_monitor() {
    let _alone = alone();
    let Some(best) = open(&CacheSettings::default()) else { return };
    let Some(OpenedCache { cache, notes }) = open(&with("memhooks")) else { return };
    assert_eq!(cache.monitor(), best.cache.monitor());
    assert!(notes.len() == 1 && !notes[0].warning && notes[0].to_string().contains("memhooks"), "{notes:?}");
    assert!(notes[0].to_string().contains(cache.monitor()), "{notes:?}");
}

/// Requirements: RCACHE-014.
#[test]
fn unknown_monitor_warns_and_keeps_the_default() {
    for value in ["kdreg2", "", "Userfaultfd", "disabled-promised"] {
        let (settings, notes) = CacheSettings::read(|name| (name == "FI_MR_CACHE_MONITOR").then(|| value.to_owned()));
        assert_eq!(settings, CacheSettings::default(), "{value}");
        assert!(notes.len() == 1 && notes[0].warning, "{notes:?}");
        assert!(notes[0].to_string().contains("FI_MR_CACHE_MONITOR is ignored"), "{notes:?}");
    }
}

/// Requirements: RCACHE-015, RCACHE-016, RCACHE-017.
#[test]
fn device_monitor_settings_accept_only_0_or_1() {
    for name in ["CUDA", "ROCR", "ZE"].map(|name| format!("FI_MR_{name}_CACHE_MONITOR_ENABLED")) {
        let read = |value: &str| CacheSettings::read(|requested| (requested == name).then(|| value.to_owned()));
        for value in ["0", "1", " 1 "] {
            assert_eq!(read(value), (CacheSettings::default(), Vec::new()), "{name}={value}");
        }
        for value in ["2", "", "yes", "-1"] {
            let (settings, notes) = read(value);
            assert_eq!(settings, CacheSettings::default(), "{name}={value}");
            assert!(notes.len() == 1 && notes[0].warning, "{notes:?}");
            let said = notes[0].to_string();
            assert!(said.contains(&name) && said.contains("neither 0 nor 1"), "{said}");
        }
    }
}

/// Requirements: RCACHE-005, RCACHE-006, RCACHE-007, RCACHE-008, RCACHE-009.
#[test]
fn cache_limits_are_read_from_environment() {
    let read = |size: Option<&str>, count: Option<&str>| {
        CacheSettings::read(|name| match name {
            "FI_MR_CACHE_MAX_SIZE" => size.map(str::to_owned),
            "FI_MR_CACHE_MAX_COUNT" => count.map(str::to_owned),
            _ => None,
        })
    };
    let set = CacheSettings::default();
    assert_eq!(read(None, None), (set.clone(), Vec::new()));
    assert_eq!(read(None, Some("1024")), (set.clone(), Vec::new()), "the default");
    assert_eq!(read(Some("0"), None), (set.clone(), Vec::new()), "the same as unset");
    assert_eq!(read(Some(" 4096 "), Some("7")), (set.clone().max_bytes(4096).max_count(7), Vec::new()));
    assert_eq!(read(None, Some("0")), (set.clone().max_count(0), Vec::new()));
    assert_eq!(read(None, Some("99999999999")).0, set.clone().max_count(u32::MAX), "larger values mean the maximum");
    for (size, count) in [(Some("much"), None), (None, Some("-1")), (Some("4k"), None)] {
        let (settings, notes) = read(size, count);
        assert_eq!(settings, set);
        assert!(notes.len() == 1 && notes[0].warning, "{notes:?}");
    }
}
