// A completion queue: the opening of its session, polls and events.
//
// Thread safety: the caller has the lock of the completion queue, unless a function says otherwise.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "opened_device.hpp"
#include "served_objects.hpp"

namespace pollcore::served {

/// Opens the sessions of the completion queues of a queue pair that have none yet, on one worker. `send` and `recv` may
/// be one. Takes their locks. Throws Error.
void open_sessions(Attachment& attachment, Cq& send, Cq& recv);

/// Takes all completions out of the session and asks the worker for an event at the next one, which is what
/// ibv_req_notify_cq(3) promises. Returns an errno value or 0.
[[nodiscard]] int arm(Cq& cq) noexcept;

/// Whether a completion has come since arm(), so that the event of the session is one of the completion queue. If not,
/// asks for an event again.
[[nodiscard]] bool came_since_arm(Cq& cq) noexcept;

/// Ends a completion queue that the program has destroyed, when nothing needs its session any more.
void end_session(Cq& cq) noexcept;

int poll_cq(ibv_cq* cq, int num_entries, ibv_wc* wc) noexcept;
int req_notify_cq(ibv_cq* cq, int solicited_only) noexcept;
ibv_cq_ex* create_cq_ex(ibv_context* context, ibv_cq_init_attr_ex* init) noexcept;
int modify_cq(ibv_cq* cq, ibv_modify_cq_attr* attr) noexcept;

/// Sets the functions of an extended completion queue that `wc_flags` asks for (ibv_create_cq_ex(3)).
void install_extended(Cq& cq, std::uint64_t wc_flags) noexcept;
/// IBV_WC_EX_* that can be served.
[[nodiscard]] std::uint64_t extended_flags_served(bool device_time) noexcept;

}  // namespace pollcore::served
