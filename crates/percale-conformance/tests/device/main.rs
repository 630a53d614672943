//! Devices' memory, on every transport. See [`percale_conformance::device`].

mod driver;

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

/// The other role of this program.
#[test]
fn helper() {
    percale_conformance::process::play(&[("opener", driver::opener)]);
}
