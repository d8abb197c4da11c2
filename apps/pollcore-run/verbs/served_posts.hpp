// Posts: from the chains of ibv_post_send() and its companions to work requests of a session.
//
// Thread safety: any thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "plain_verbs.hpp"
#include "served_objects.hpp"

namespace pollcore::served {

int post_send(ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad_wr) noexcept;
int post_recv(ibv_qp* qp, ibv_recv_wr* wr, ibv_recv_wr** bad_wr) noexcept;
int post_srq_recv(ibv_srq* srq, ibv_recv_wr* wr, ibv_recv_wr** bad_wr) noexcept;

/// Submits one request; waits while the submission ring is full, because the worker makes room within microseconds. The
/// caller has the lock of the completion queue. Returns an errno value or 0.
[[nodiscard]] int submit(Cq& cq, const WorkRequest& request, std::span<const Sge> sges) noexcept;
[[nodiscard]] int submit_inline(Cq& cq, const WorkRequest& request, std::span<const std::byte> payload) noexcept;

/// Submits the receives that were posted to `srq` before its first queue pair. The caller has the locks of `srq` and of
/// its completion queue.
void submit_early(Srq& srq) noexcept;

/// Sets the functions of ibv_wr_start(3) and its companions for the operations in `ops` (IBV_QP_EX_WITH_*).
void install_builders(Qp& qp, std::uint64_t ops) noexcept;
/// The operations that a queue pair of this type can have; 0: none.
[[nodiscard]] std::uint64_t builders_served(ibv_qp_type type) noexcept;

}  // namespace pollcore::served
