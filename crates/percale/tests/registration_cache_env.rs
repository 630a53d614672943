//! Tests that settings in the environment apply to a domain that reads them. This is a separate program, because it
//! sets variables.

#![expect(unsafe_code, reason = "sets environment variables; the block states its reason")]

use percale::{CacheMonitor, CacheSettings, Info};

/// Requirements: RCACHE-005, RCACHE-007, RCACHE-013.
#[test]
fn cache_settings_are_read_from_environment_on_request() {
    for (name, value) in
        [("FI_MR_CACHE_MAX_SIZE", "65536"), ("FI_MR_CACHE_MAX_COUNT", "3"), ("FI_MR_CACHE_MONITOR", "disabled")]
    {
        // SAFETY: no other thread is running yet that reads the environment.
        unsafe { std::env::set_var(name, value) };
    }
    let builder = || Info::discover().expect("found").domain();
    let unasked = builder().open().expect("opens");
    assert_eq!(unasked.cache_settings(), &CacheSettings::default());
    let requested = builder().registration_cache(CacheSettings::from_environment()).open().expect("opens");
    let wanted = CacheSettings::default().max_bytes(65536).max_count(3).monitor(CacheMonitor::Disabled);
    assert_eq!(requested.cache_settings(), &wanted);
    assert_eq!(
        CacheSettings::from_environment().max_count(9),
        wanted.max_count(9),
        "settings of the program override the environment"
    );
}
