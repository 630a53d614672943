//! Devices' memory, on every transport. See [`percale_conformance::device`].

/// Instantiates the tests of [`percale_conformance::suite::devices`] on a transport.
macro_rules! devices {
    ($transport:ident, $fabric:ty: $($name:ident),+ $(,)?) => {
        mod $transport {
            mod rust {
                $(
                    #[test]
                    fn $name() {
                        percale_conformance::device::run(
                            env!("CARGO_TARGET_TMPDIR"),
                            percale_conformance::suite::devices::$name::<$fabric>,
                        );
                    }
                )+
            }
        }
    };
}

/// The same tests everywhere.
macro_rules! everywhere {
    ($($transport:ident: $fabric:ty),+ $(,)?) => {
        $(devices! { $transport, $fabric:
            hmem_003_hmem_009_messages_of_a_devices_memory,
            hmem_011_pieces_of_both_kinds,
            hmem_003_ends_of_receives_into_a_device,
            hmem_003_many_at_a_time,
            hmem_003_hmem_010_accesses_to_a_devices_region,
            hmem_010_a_hosts_region_and_a_devices_memory,
            hmem_003_atm_002_words_of_a_device_are_changed,
            hmem_004_hmem_015_hmem_018_managed_and_pinned_memory,
            hmem_005_hmem_006_hmem_014_what_is_no_devices_memory,
            rcache_019_memory_that_came_again,
            hmem_003_trig_002_dwq_004_what_waits_reads_its_memory_when_it_begins,
            xpu_012_xpu_013_xpu_017_xpu_020_a_devices_stream_begins_a_send,
            xpu_013_xpu_015_xpu_018_xpu_020_a_devices_program_begins_sends,
            hmem_003_mw_015_a_window_on_a_devices_region,
        })+
    };
}

everywhere! {
    loopback: percale_conformance::fabric::Loopback,
    shm: percale_conformance::fabric::Shm,
    tcp: percale_conformance::fabric::Tcp,
}

/// The driver itself.
mod driver {
    mod rust {
        use percale_conformance::device::{LIBRARY, run, run_on_double, run_with};
        use percale_conformance::suite::device_driver;

        #[test]
        fn hmem_006_a_missing_library_is_named() {
            run_with(&[(LIBRARY, "/nonexistent/libcuda.so.1")], device_driver::hmem_006_a_missing_library_is_named);
        }

        #[test]
        fn hmem_006_a_library_that_is_no_driver_is_refused() {
            run_with(&[(LIBRARY, "libc.so.6")], device_driver::hmem_006_a_library_that_is_no_driver_is_refused);
        }

        #[test]
        fn hmem_003_another_process_opens_what_was_exported() {
            run(env!("CARGO_TARGET_TMPDIR"), device_driver::hmem_003_another_process_opens_what_was_exported);
        }

        #[test]
        fn rcache_019_an_allocation_has_a_number_of_its_own() {
            run(env!("CARGO_TARGET_TMPDIR"), device_driver::rcache_019_an_allocation_has_a_number_of_its_own);
        }

        #[test]
        fn rcache_018_a_device_whose_addresses_could_be_the_hosts_is_none() {
            run_on_double(
                env!("CARGO_TARGET_TMPDIR"),
                "DOUBLE_WITHOUT_UNIFIED_ADDRESSING",
                device_driver::rcache_018_a_device_whose_addresses_could_be_the_hosts_is_none,
            );
        }

        #[test]
        fn hmem_003_copies_that_no_event_is_behind_are_over_when_that_is_told() {
            run_on_double(
                env!("CARGO_TARGET_TMPDIR"),
                "DOUBLE_RECORDS_ONE_COPY_ONLY",
                device_driver::hmem_003_copies_that_no_event_is_behind_are_over_when_that_is_told,
            );
        }

        #[test]
        fn hmem_003_a_reset_device_leaves_the_hosts_memory_alone() {
            run_on_double(
                env!("CARGO_TARGET_TMPDIR"),
                "DOUBLE_IS_RESET",
                device_driver::hmem_003_a_reset_device_leaves_the_hosts_memory_alone,
            );
        }

        #[test]
        fn hmem_018_memory_that_is_pinned_in_part_is_the_hosts() {
            run(env!("CARGO_TARGET_TMPDIR"), device_driver::hmem_018_memory_that_is_pinned_in_part_is_the_hosts);
        }

        #[test]
        fn hmem_003_copies_are_begun_and_waited_for() {
            run(env!("CARGO_TARGET_TMPDIR"), device_driver::hmem_003_copies_are_begun_and_waited_for);
        }
    }
}

/// The other role of this program.
#[test]
fn helper() {
    percale_conformance::process::play(&[("opener", percale_conformance::suite::device_driver::opener)]);
}
