//! The tests, generic over the transport.
//!
//! [`conformance!`](crate::conformance) makes `#[test]`s of them: all of them for transports between endpoints;
//! `direct` adds accesses to peers' memory that do not involve the peers; `alone` leaves out tests that need a second endpoint; `simulated`
//! leaves out tests that need descriptors, threads or sockets.

pub mod closing;
pub mod collectives;
pub mod completions;
pub mod connected;
pub mod connections;
pub mod connections_shared;
pub mod counting;
pub mod deferred;
pub mod devices;
pub mod exchanges;
pub mod flow;
pub mod handles;
pub mod joins;
pub mod local_keys;
pub mod messages;
pub mod model;
pub mod probing;
pub mod regions;
pub mod remote;
pub mod remote_model;
pub mod safe;
pub mod scalable;
pub mod senders;
pub mod sets;
pub mod shared_closing;
pub mod shared_receive;
pub mod sleeping;
pub mod specification;
pub mod tagged;
pub mod triggered;
pub mod triggered_model;
pub mod undriven;
pub mod vectors;
pub mod waiting;
pub mod wakers;
pub mod window_model;
pub mod window_pairs;
pub mod windows;
pub mod written;

/// Instantiates tests of the suite: `tests!(Fabric, module: name, name; module: name)`.
#[doc(hidden)]
#[macro_export]
macro_rules! tests {
    ($fabric:ty, $($module:ident: $($name:ident),+ $(,)?);+ $(;)?) => {
        $($(
            #[test]
            fn $name() {
                if let Some(why) = <$fabric as $crate::fabric::Fabric>::missing() {
                    println!("skipped: no {} here: {why}", <$fabric as $crate::fabric::Fabric>::NAME);
                    return;
                }
                $crate::suite::$module::$name::<$fabric>();
            }
        )+)+
    };
}

/// Instantiates the suite for a transport: a module `<name>::rust` of tests. See [`suite`](crate::suite).
#[macro_export]
macro_rules! conformance {
    ($name:ident, $fabric:ty, alone) => {
        mod $name {
            mod rust {
                $crate::conformance!(@every $fabric);
                $crate::tests! { $fabric,
                    connected:
                        con_016_no_transport_no_connection;
                    deferred:
                        dwq_001_dwq_005_dwq_009_dwq_010_dwq_011_only_its_counter_is_told,
                        dwq_004_every_kind_of_operation_may_wait,
                        dwq_012_dwq_013_dwq_016_work_is_taken_back_and_refused,
                        dwq_015_dwq_022_what_never_begins_keeps_nobody,
                        dwq_025_injected_work_sends_what_was_there_when_it_was_queued,
                        dwq_026_failed_work_is_counted_and_reported;
                    undriven:
                        waits_that_no_thread_could_end_are_refused;
                    wakers:
                        futures_that_are_dropped_leave_no_waker,
                        wakers_of_shared_receives_may_use_the_context;
                    waiting:
                        futures_of_tokio,
                        four_threads_share_an_endpoint,
                        res_002_opening_and_closing_leaves_nothing,
                }
            }
        }
    };
    ($name:ident, $fabric:ty, simulated) => {
        mod $name {
            mod rust {
                $crate::conformance!(@every $fabric);
                $crate::conformance!(@others $fabric);
            }
        }
    };
    ($name:ident, $fabric:ty) => {
        mod $name {
            mod rust {
                $crate::conformance!(@every $fabric);
                $crate::conformance!(@others $fabric);
                $crate::conformance!(@real $fabric);
                $crate::conformance!(@sockets $fabric);
            }
        }
    };
    ($name:ident, $fabric:ty, direct) => {
        mod $name {
            mod rust {
                $crate::conformance!(@every $fabric);
                $crate::conformance!(@others $fabric);
                $crate::conformance!(@real $fabric);
                $crate::conformance!(@sockets $fabric);
                $crate::tests! { $fabric,
                    window_pairs: mw_049_a_windows_owner_need_make_no_progress;
                }
            }
        }
    };
    ($name:ident, $fabric:ty, remote) => {
        mod $name {
            mod rust {
                $crate::conformance!(@remote $fabric);
            }
        }
    };
    (@remote $fabric:ty) => {
        $crate::tests! { $fabric,
            remote:
                rma_001_rma_008_mr_030_mr_033_mr_051_mr_053_reads_and_writes_of_every_size,
                mr_001_mr_002_mr_009_mr_014_mr_031_mr_050_mr_052_atm_006_what_is_not_allowed_is_refused,
                rma_001_an_access_of_many_parts_ends,
                mr_003_a_key_is_one_domains,
                mr_032_mr_066_mr_067_mr_068_mr_071_keys_come_and_go,
                mr_039_mr_040_a_base_of_ones_own,
                mr_010_rma_004_pieces_on_both_sides,
                mr_069_rev_004_closing_ends_what_is_under_way,
                atm_002_atm_003_atm_004_words_are_changed_atomically,
                rma_001_atm_002_what_is_short_is_made_and_refused_as_what_is_long,
                rma_003_rma_010_writes_are_counted_and_told,
                rma_005_rma_006_messages_and_reads_do_not_overtake_writes,
                rma_007_rma_009_accesses_are_fenced_and_refused,
                rma_002_injected_writes_are_copied,
                rev_006_borrowed_memory_is_registered_in_a_scope,
                results_are_seen_before_sleeping;
            counting:
                cmp_017_cmp_018_accesses_are_counted_at_both_ends,
                cmp_018_an_access_of_many_parts_is_one,
                cmp_017_cmp_018_atomic_operations_are_counted,
                cmp_018_a_counter_of_several_kinds_counts_each_once;
            regions:
                mr_058_key_001_a_key_serves_as_soon_as_there_is_a_region,
                key_005_key_006_key_011_key_012_key_014_key_015_key_016_raw_keys_open_what_they_name,
                key_013_key_019_short_raw_keys_are_mapped_too,
                key_005_key_015_forged_raw_keys_open_nothing,
                key_004_key_020_mw_051_every_key_may_be_a_regions,
                mr_060_mr_062_mr_063_mr_064_mr_065_key_002_registration_ends_with_an_event,
                bind_001_bind_002_bind_008_what_peers_write_is_counted,
                bind_006_bind_009_a_disabled_region_is_not_reached,
                bind_010_bind_011_bind_012_a_region_of_one_endpoint,
                bind_014_bind_016_bind_018_bind_019_while_a_region_is_refreshed_nobody_reaches_it,
                mr_055_mr_056_regions_are_for_endpoints_of_one_authorization_key;
            specification:
                mr_006_mr_077_an_empty_region_has_a_key_and_grants_nothing,
                mr_078_mr_079_mr_080_what_is_malformed_is_not_registered,
                bind_021_bind_022_a_region_has_several_counters,
                bind_022_a_counter_may_come_after_peers,
                bind_023_what_comes_through_an_endpoint_without_events_is_not_counted;
            remote_model:
                rma_011_random_accesses_do_what_a_plain_model_does;
            windows:
                mw_001_mw_002_mw_005_mw_006_mw_034_a_window_says_what_it_is,
                mw_003_mw_004_a_region_stays_while_windows_are_bound,
                mw_007_mw_008_mw_010_mw_049_only_the_right_key_is_accepted,
                mw_014_mw_015_mw_017_mw_018_a_windows_rights_are_its_own,
                mw_016_a_read_only_region_has_no_windows_that_change_it,
                mw_019_mw_020_a_window_is_exactly_its_range,
                mw_021_mw_022_mw_023_mw_048_windows_of_one_region_do_not_disturb_each_other,
                mw_024_mw_025_mw_031_mw_047_each_type_has_its_own_operations,
                mw_026_mw_044_binds_and_invalidations_send_nothing,
                mw_028_mw_029_mw_030_a_rebind_kills_the_old_key;
            window_pairs:
                mw_032_mw_033_a_type_1_key_is_its_domains,
                mw_035_mw_036_mw_037_mw_043_mw_046_a_type_2_key_is_its_owners_choice,
                mw_038_mw_040_mw_052_a_type_2_key_is_its_pairs,
                mw_039_mw_041_mw_042_how_endpoints_with_bound_windows_end,
                mw_045_a_peer_gives_its_key_back_with_a_message,
                mw_050_nothing_is_written_after_an_invalidation,
                mw_026_binds_keep_their_place_among_messages;
            local_keys:
                mw_009_a_wrong_local_key_moves_nothing,
                mw_011_a_window_has_no_local_key,
                mw_012_work_requests_name_memory_by_local_keys,
                mw_013_remote_writing_goes_with_local_writing;
            window_model:
                mw_021_mw_043_random_operations_do_what_a_plain_model_does,
        }
    };
    (@every $fabric:ty) => {
        $crate::conformance!(@remote $fabric);
        $crate::tests! { $fabric,
            messages:
                msg_001_messages_of_every_size_arrive,
                msg_001_messages_between_allocations_arrive,
                msg_002_pieces_are_gathered_and_scattered,
                msg_003_an_injected_buffer_may_be_reused_at_once,
                msg_004_too_long_an_inject_is_refused,
                msg_005_msg_006_a_multi_receive_buffer_takes_messages_until_it_is_full,
                msg_005_multi_receive_takes_what_is_here_already,
                msg_006_the_minimum_may_be_changed,
                msg_009_data_comes_with_the_message,
                msg_010_messages_do_not_overtake_each_other,
                msg_011_an_endpoint_reaches_itself,
                msg_012_unexpected_messages_are_kept_in_order,
                msg_015_tag_010_a_message_that_is_too_long_is_cut_off_and_told,
                msg_016_a_fence_waits_for_what_was_sent_before,
                msg_017_more_is_carried_out_though_nothing_follows;
            triggered:
                trig_006_trig_007_trig_017_a_send_waits_for_its_counter,
                trig_009_trig_010_trig_011_what_is_due_begins_in_order,
                trig_008_trig_012_what_is_reached_already_begins_at_once,
                trig_002_trig_014_every_kind_completes_as_if_it_were_posted,
                trig_016_what_is_cancelled_never_begins,
                trig_019_an_endpoint_closes_while_its_operations_wait,
                trig_019_an_operation_whose_counter_is_gone_ends,
                trig_004_what_cannot_wait_is_refused,
                trig_007_a_failure_is_told_when_it_begins;
            written:
                xpu_012_xpu_013_xpu_019_a_send_waits_for_its_variable,
                xpu_013_what_is_written_already_begins_at_once,
                xpu_015_xpu_018_operations_begin_in_the_order_of_the_queue,
                xpu_013_every_kind_waits_for_its_variable,
                xpu_017_what_is_cancelled_never_begins,
                xpu_013_a_store_of_another_thread_ends_a_wait;
            specification:
                mr_082_a_key_means_the_region_that_has_it_now,
                atm_007_an_atomic_operation_has_as_many_elements_on_both_sides,
                cmp_021_counters_are_bound_to_an_open_endpoint,
                dwq_024_trig_020_the_largest_threshold_is_reached,
                av_060_vectors_are_shared_within_domains_of_one_name;
            triggered_model:
                dwq_021_random_schedules_do_what_a_plain_model_does;
            collectives:
                random_collectives_do_what_a_plain_model_does,
                floats_come_to_the_same_bits_everywhere,
                groups_keep_to_themselves,
                what_is_no_collective_is_refused;
            joins:
                joins_of_one_list_are_paired_in_order;
            exchanges:
                random_exchanges_do_what_a_plain_model_does,
                what_is_given_stays_and_every_root_gets_its_own,
                what_is_no_exchange_is_refused;
            flow:
                msg_013_past_the_cap_nothing_is_lost_and_inject_waits,
                msg_014_both_may_send_long_messages_before_either_receives,
                msg_019_what_is_reported_as_sent_arrives_without_its_sender,
                msg_018_posting_without_room_has_no_effect,
                small_messages_both_ways_before_either_receives;
            tagged:
                tag_001_the_oldest_message_that_agrees_is_taken,
                tag_001_every_bit_may_be_ignored_or_compared,
                tag_002_the_receive_posted_first_takes_the_message,
                tag_003_tagged_and_untagged_do_not_mix,
                tag_008_a_cancelled_receive_takes_nothing,
                tag_009_a_matched_receive_completes_once;
            probing:
                tag_004_a_peek_tells_and_touches_nothing,
                tag_005_a_peek_for_nothing_says_so,
                tag_006_a_claimed_message_is_the_claimers,
                tag_007_a_discarded_message_is_gone_and_its_sender_done,
                refused_flags_do_nothing;
            model:
                tag_011_random_sequences_do_what_a_plain_model_does;
            completions:
                cmp_001_entries_say_what_happened,
                cmp_002_success_is_reported_only_where_asked_for,
                cmp_003_cmp_004_a_message_whose_send_completed_needs_its_sender_no_more,
                cmp_004_what_reports_nothing_needs_its_sender_no_more,
                cmp_005_delivered_means_in_the_buffer,
                cmp_006_match_complete_waits_for_the_receive,
                cmp_007_errors_keep_their_place,
                cmp_008_entries_are_read_in_batches,
                cmp_009_a_queue_never_overruns,
                cmp_009_multi_receives_wait_for_room_in_the_queue,
                cmp_011_counters_count_each_side,
                shared_queues_take_the_results_of_both_sides;
            counting:
                cmp_017_messages_are_counted_by_their_kind;
            scalable:
                ctx_002_contexts_of_one_endpoint_reach_each_other;
            shared_receive:
                ctx_007_messages_to_any_endpoint_take_shared_receives,
                ctx_007_messages_that_came_before_are_taken_in_order,
                ctx_007_raw_receives_report_where_they_were_received,
                ctx_007_receives_of_an_endpoint_take_no_message_of_a_shared_one,
                ctx_007_shared_receives_are_given_no_message_that_an_endpoint_took,
                ctx_008_what_is_cancelled_takes_no_message,
                ctx_008_a_multi_receive_buffer_is_shared,
                ctx_008_closed_endpoints_take_nothing_with_them;
            handles:
                used_up_handles_of_messages_touch_no_other_operation,
                used_up_handles_of_accesses_touch_no_other_operation,
                used_up_handles_of_windows_touch_no_other_operation,
                used_up_handles_of_groups_touch_no_other_operation,
                used_up_handles_of_shared_receives_touch_no_other_operation,
                finishing_a_buffer_for_many_messages_gives_what_was_not_read;
            closing:
                operations_end_once_when_their_endpoint_closes;
            safe:
                safe_operations_give_their_buffers_back,
                safe_multi_receive,
                res_010_a_dropped_send_keeps_its_buffer_while_the_peer_may_use_it,
                res_010_a_forgotten_receive_keeps_its_buffer,
                a_dropped_receive_takes_no_message,
                what_cannot_be_posted_gives_its_buffer_back,
        }
    };
    (@others $fabric:ty) => {
        $crate::tests! { $fabric,
            vectors:
                av_001_av_004_av_005_av_007_av_029_av_056_peers_of_any_vector_are_sent_to,
                av_012_av_014_av_017_who_only_reads_a_named_vector_sends_by_it,
                av_018_a_vector_outlives_its_handles_while_it_is_used,
                av_009_av_042_av_043_a_peer_of_a_range_is_sent_to,
                av_002_av_030_av_031_several_calls_are_as_one,
                av_046_av_047_av_050_who_was_removed_is_not_sent_to;
            shared_receive:
                ctx_009_a_directed_shared_receive_ends_with_its_peer;
            shared_closing:
                ctx_008_receives_of_a_member_that_closes_meanwhile_end_once;
            scalable:
                av_008_av_051_ctx_001_each_receive_context_gets_its_own_messages,
                ctx_003_a_plain_address_means_context_0,
                av_051_a_receive_is_directed_at_a_context,
                ctx_003_a_context_that_there_is_not_is_refused,
                ctx_001_memory_is_accessed_through_contexts,
                ctx_005_a_closed_context_ends_what_waits_for_it,
                ctx_005_the_address_lasts_as_long_as_a_context,
                ctx_001_contexts_are_members_of_groups;
            senders:
                ctx_012_receives_directed_at_a_context_take_messages_of_its_sender,
                ctx_012_messages_of_a_sender_that_has_left_are_received,
                ctx_012_each_half_of_a_context_is_closed_for_itself;
            triggered:
                trig_013_a_receive_sets_a_send_off;
            collectives:
                members_that_disagree_are_told,
                fences_and_groups_do_not_wait_for_each_other,
                flt_003_a_member_that_leaves_holds_nobody_up;
            joins:
                flt_003_a_restarted_member_joins_anew,
                flt_003_who_closes_instead_of_joining_holds_nobody_up,
                flt_003_a_join_that_is_given_up_ends_for_all;
            exchanges:
                members_that_disagree_about_an_exchange_are_told,
                flt_003_a_member_that_leaves_holds_no_exchange_up;
            connected:
                con_013_a_connection_is_made_and_used,
                con_014_sends_wait_for_the_connection,
                con_015_requests_are_rejected,
                con_015_requests_that_nobody_can_read_are_rejected,
                con_016_who_gets_no_answer_is_told,
                con_016_answers_are_waited_for_in_bounded_time,
                con_018_strangers_are_turned_away,
                con_019_the_end_comes_after_all_messages,
                con_019_messages_are_kept_beyond_the_end,
                con_020_a_hundred_connect_at_once,
                mw_038_mw_040_mw_045_windows_of_connected_endpoints;
            messages:
                msg_007_a_directed_receive_waits_for_its_peer,
                msg_008_cmp_010_the_source_is_named_if_the_vector_knows_it;
            completions:
                cmp_001_cmp_008_a_busy_peer_keeps_no_other_waiting;
            connections:
                con_001_connections_are_made_by_the_first_operation,
                con_004_a_restarted_endpoint_is_reached_again,
                flt_003_flt_005_a_closed_endpoint_ends_what_waits_for_it,
                messages_sent_before_closing_arrive,
                cmp_014_events_tell_who_came_and_went,
        }
    };
    (@real $fabric:ty) => {
        $crate::tests! { $fabric,
            closing:
                nothing_is_written_once_a_shared_endpoint_is_closed;
            shared_receive:
                ctx_010_connected_endpoints_share_receives,
                ctx_007_ctx_010_a_connection_begins_with_a_message_that_nobody_awaits,
                ctx_007_threads_drive_endpoints_that_share_receives;
            scalable:
                ctx_004_a_context_that_is_not_open_yet_is_waited_for,
                ctx_006_threads_drive_contexts_of_their_own;
            collectives:
                dwq_020_counters_start_collectives_which_go_on_by_themselves;
            exchanges:
                dwq_020_counters_start_exchanges_which_go_on_by_themselves;
            connections_shared:
                con_021_events_are_waited_for_by_shared_endpoints,
                con_021_automatic_progress_connects,
                con_021_a_thread_sleeps_until_it_is_connected,
                con_021_sleepers_are_told_that_no_answer_comes,
                con_019_what_other_connections_brought_is_read_before_the_end,
                con_021_many_threads_call_one_listener;
            deferred:
                dwq_001_dwq_005_dwq_009_dwq_010_dwq_011_only_its_counter_is_told,
                dwq_004_every_kind_of_operation_may_wait,
                dwq_012_dwq_013_dwq_016_work_is_taken_back_and_refused,
                dwq_015_dwq_022_what_never_begins_keeps_nobody,
                dwq_025_injected_work_sends_what_was_there_when_it_was_queued,
                dwq_026_failed_work_is_counted_and_reported,
                dwq_020_dwq_023_a_token_goes_round_by_itself,
                trig_007_a_sleeper_is_woken_by_what_a_silent_send_sets_off,
                trig_019_an_endpoint_is_dropped_while_its_operations_begin;
            sleeping:
                res_007_nothing_wakes_an_endpoint_whose_peers_left,
                cmp_015_a_sleeper_is_woken_and_no_message_is_missed,
                cmp_015_a_result_of_the_last_look_is_not_slept_over,
                cmp_015_a_sleeper_is_woken_though_another_has_slept_meanwhile,
                cmp_016_a_sleeping_task_brings_on_what_is_posted_later,
                res_007_an_idle_sleeper_takes_no_processor_time;
            sets:
                cmp_019_a_poll_set_spans_endpoints,
                cmp_020_a_wait_set_spans_endpoints;
            undriven:
                waits_that_no_thread_could_end_are_refused;
            wakers:
                wakers_may_call_the_endpoint_and_panic,
                a_waker_that_panics_stops_no_other_task,
                futures_that_are_dropped_leave_no_waker,
                wakers_of_shared_receives_may_use_the_context;
            waiting:
                cmp_013_cmp_016_counters_and_queues_are_waited_for,
                cmp_016_blocking_calls_make_progress,
                cmp_016_an_endpoint_is_shared_with_messages_under_way,
                futures_of_tokio,
                four_threads_share_an_endpoint,
                automatic_progress_needs_no_calls,
                res_002_opening_and_closing_leaves_nothing,
        }
    };
    (@sockets $fabric:ty) => {
        $crate::tests! { $fabric,
            connections:
                msg_011_an_endpoint_reaches_itself_by_another_name,
                msg_007_receives_directed_at_another_name,
                con_002_strangers_do_no_harm,
                con_003_many_connect_to_each_other_at_once,
                con_005_other_keys_are_turned_away,
                con_006_the_same_key_is_let_in,
                con_010_a_wildcard_advertises_one_address,
                con_010_a_member_of_another_name_is_told_of_and_known_then,
        }
    };
}
