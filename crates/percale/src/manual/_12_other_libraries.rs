//! For users of libfabric, verbs and UCX: their terms and calls in percale.
//!
//! The terms of percale are mostly those of libfabric. Each error has `errno()` with libfabric's number. Unmodified
//! libfabric programs, Open MPI and MPICH run on percale through its provider (`docs/libfabric.md`).
//!
//! # Objects
//! | percale | libfabric | verbs | UCX |
//! |---|---|---|---|
//! | [`Info`] | `fi_getinfo` | `ibv_get_device_list`, `ibv_query_device` | `ucx_info -d`, `uct_query_components` |
//! | [`Domain`] | fabric and domain | context and protection domain | `ucp_context_h` |
//! | [`Endpoint`] | `FI_EP_RDM` endpoint with its queue | (several queue pairs) | `ucp_worker_h` and its `ucp_ep_h`s |
//! | [`Endpoint`] by [`connect`](EndpointBuilder::connect) or [`accept`](EndpointBuilder::accept) | `FI_EP_MSG` endpoint | queue pair (RC), `rdma_cm` | `ucp_ep_h` |
//! | [`Listener`] | passive endpoint | `rdma_listen` | `ucp_listener_h` |
//! | [`ScalableEndpoint`] | scalable endpoint | | several workers |
//! | [`SharedReceive`] | shared receive context | shared receive queue | |
//! | [`AddressVector`], [`PeerAddress`] | address vector, `fi_addr_t` | address handle | `ucp_address_t` |
//! | [`CompletionQueue`], [`Endpoint::poll`] | completion queue | completion queue | request and callback |
//! | [`Counter`] | counter | | |
//! | [`EventQueue`] | event queue | asynchronous events | error callback |
//! | [`Region`], [`RawRegion`] | memory region | memory region | `ucp_mem_h` |
//! | [`Window`] | | memory window (types 1, 2A, 2B) | |
//! | [`RemoteMemory`] | key and address | `rkey` and address | `ucp_rkey_h` |
//! | [`AddressSet`], [`Group`] | `fid_av_set`, `fi_join_collective` | | |
//!
//! # Calls
//! The second column is the safe API, where operations own their buffers. The third column is the `unsafe` raw API,
//! with pointers and contexts.
//!
//! | libfabric | safe API | raw API |
//! |---|---|---|
//! | `fi_send`, `fi_senddata` | [`send`](Endpoint::send)`(..)`, `.data(..)` | [`post_send`](Endpoint::post_send) |
//! | `fi_inject` | [`inject`](Endpoint::inject) | the same |
//! | `fi_recv` | [`recv`](Endpoint::recv); directed: `.from(peer)` | [`post_recv`](Endpoint::post_recv) |
//! | `FI_MULTI_RECV` | `recv(..).many()` | [`OpFlags::MULTI_RECEIVE`] |
//! | `fi_tsend`, `fi_trecv` | [`tagged_send`](Endpoint::tagged_send), [`tagged_recv`](Endpoint::tagged_recv) | `tag` of [`SendWork`] and [`ReceiveWork`] |
//! | `FI_PEEK`, `FI_CLAIM`, `FI_DISCARD` | | [`OpFlags`] of [`post_recv`](Endpoint::post_recv) |
//! | `fi_read`, `fi_write`, `fi_writedata` | [`read`](Endpoint::read), [`write`](Endpoint::write), `.data(..)` | [`post_read`](Endpoint::post_read), [`post_write`](Endpoint::post_write) |
//! | `fi_inject_write` | [`inject_write`](Endpoint::inject_write) | the same |
//! | `fi_fetch_atomic`, `fi_compare_atomic` | [`fetch_atomic`](Endpoint::fetch_atomic), [`compare_atomic`](Endpoint::compare_atomic), [`fetch_add`](Endpoint::fetch_add), [`compare_swap`](Endpoint::compare_swap) | [`post_atomic`](Endpoint::post_atomic) |
//! | `FI_FENCE` | `.fenced()` | [`OpFlags::FENCE`] |
//! | `FI_DELIVERY_COMPLETE` | `.delivered()` | [`OpFlags::DELIVERY_COMPLETE`] |
//! | `fi_cq_read`, `fi_cq_readerr` | results come from the handles | [`poll`](Endpoint::poll), [`read_error`](Endpoint::read_error) |
//! | `fi_cq_sread` | `wait`, `wait_for`, `wait_until` of a handle | [`Endpoint::wait`], [`CompletionQueue::wait`] |
//! | `fi_trywait` | | [`try_wait`](Endpoint::try_wait) |
//! | `fi_cancel` | dropping the handle; [`cancel`](crate::endpoint::safe::Operation::cancel) | [`cancel`](Endpoint::cancel) |
//! | `fi_mr_reg`, `fi_close` | [`Domain::register`], [`Region::close`] | [`Registration::raw`](crate::memory::region::Registration::raw) |
//! | `fi_mr_raw_attr`, `fi_mr_map_raw` | [`Region::raw_key`], [`Domain::map_raw`] | |
//! | `FI_TRIGGER`, `FI_QUEUE_WORK` | `.when(..)`, `.counting(..)` | [`post_when`](Endpoint::post_when), [`Domain::queue_work`] |
//! | `fi_av_insert`, `fi_av_insertsym` | [`insert`](AddressVector::insert), [`insert_symmetric`](AddressVector::insert_symmetric) | |
//!
//! | verbs | percale |
//! |---|---|
//! | `ibv_reg_mr` | [`Domain::register_verbs`] with [`VerbsAccess`], or [`Domain::register`] |
//! | `ibv_alloc_mw`, `ibv_bind_mw` (type 1) | [`Domain::window`], [`Window::bind`] |
//! | `IBV_WR_BIND_MW`, `IBV_WR_LOCAL_INV` (type 2) | [`Endpoint::bind_window`], [`Endpoint::invalidate`] |
//! | `IBV_WR_SEND_WITH_INV` | `.invalidating(key)` of a send |
//! | `ibv_post_send`, `ibv_post_recv` with L_Keys | [`Endpoint::post_work`], [`WorkRequest`], [`Region::local_key`] |
//! | `ibv_poll_cq` | [`Endpoint::poll`] |
//! | `IBV_WR_RDMA_WRITE_WITH_IMM` | a write with `.data(..)` (8 bytes) |
//!
//! | UCX | percale |
//! |---|---|
//! | `ucp_worker_progress` | [`Endpoint::progress`] |
//! | `ucp_worker_get_address` | [`Endpoint::address`] |
//! | `ucp_ep_create` | [`AddressVector::insert`]; the first operation connects |
//! | `ucp_tag_send_nbx`, `ucp_tag_recv_nbx` | [`tagged_send`](Endpoint::tagged_send), [`tagged_recv`](Endpoint::tagged_recv); UCX's mask has ones for bits that are *compared*, percale's for bits that are *ignored* |
//! | `ucp_tag_probe_nb` | `post_recv` with [`OpFlags::PEEK`] |
//! | `ucp_put_nbx`, `ucp_get_nbx` | [`write`](Endpoint::write), [`read`](Endpoint::read) |
//! | `ucp_atomic_op_nbx` | [`fetch_atomic`](Endpoint::fetch_atomic) |
//! | `ucp_mem_map`, `ucp_rkey_pack` | [`Domain::register`], [`RemoteMemory::to_bytes`] |
//! | `ucp_ep_flush_nbx` | not needed after writes: a write completes when its bytes have arrived |
//! | `UCX_TLS`, `UCX_NET_DEVICES` | `PERCALE_TRANSPORT`, [`DomainBuilder::interface`] |
//!
//! # Differences that matter
//! * **There are no queue pairs to set up.** A peer is a number, and the first operation to it connects. Addresses are
//!   IP addresses and ports, also over RDMA.
//! * **Completion of a write means that the bytes are in the target's memory**, at every level (libfabric: delivery
//!   complete).
//! * **Completion of a send** is libfabric's transmit completion: see [chapter 3](super::_03_messages).
//! * **Local buffers need no registration.** There are no descriptors (`FI_MR_LOCAL`) and no L_Keys, except in
//!   [`Endpoint::post_work`].
//! * **Addresses of regions start at 0**, as without `FI_MR_VIRT_ADDR`.
//!   [`Registration::base`](crate::memory::region::Registration::base) sets another base.
//! * **Closing a region is synchronous.** It returns `Busy` if a peer does not finish an access within a timeout.
//! * **A truncated message fails only its receive.** In verbs it would put the queue pair into the error state. The
//!   same holds for rejected accesses.
//! * **Queues do not overrun.** Posting returns [`PostError::Again`] instead.
//! * **Unexpected messages** are kept up to a limit for each peer. Beyond it the sender waits. There is no "receiver
//!   not ready" error.
//! * **A lost connection is established again** by the next operation. There is no error state to reset.
//!
//! # Length of programs
//! The lines of six of the programs in `crates/percale/examples`, and of C programs that do the same with libfabric:
//!
//! | example | Rust with percale | C with libfabric |
//! |---|---|---|
//! | `rpc` | 65 | 443 |
//! | `key_value` | 115 | 542 |
//! | `work_queue` | 76 | 257 |
//! | `halo_exchange` | 75 | 221 |
//! | `parameter_broadcast` | 56 | 236 |
//! | `bulk_mover` | 79 | 263 |
//!
//! Lines that are blank or contain only comments are not counted. Each C program is one file that checks every return
//! value, polls its queue and makes the same final checks. About 130 of its lines open objects, handle completions and
//! report errors, and about 200 lines of `rpc` and `key_value` are the calls that [`rpc`] provides here. The
//! C programs ran with libfabric 1.17 over its provider `tcp`. `parameter_broadcast` uses `fi_allreduce`, because this
//! provider has no `fi_reduce`.

// Imported for the links in this text.
use crate::*;
