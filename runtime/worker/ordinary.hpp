// The way of ordinary requests: one SGE or none, or a payload in the request's own line, on a connected queue pair with
// nothing particular about it, which the device completes with success.
//
// What is decided here is decided by Submitter and Router too, for all others. These loops only know when to let go:
// they end at the first request or completion that is not ordinary, and the general way decides about that one. Of a
// completion with which several requests end, those before the one that is not ordinary have ended then. Nothing is
// refused or failed here.
//
// Thread safety: the worker's.
#pragma once

#include <cstdint>

#include <infiniband/verbs.h>

namespace pollcore {

class Tables;
class Turn;
class WorkerCq;
class WorkerSession;

/// Takes what is ordinary from the session's slots behind the first `taken`, as far as that goes. Returns how many
/// there were.
[[nodiscard]] std::uint32_t take_ordinary(Turn& turn, std::uint32_t qps_mask, WorkerSession& session,
                                          std::uint32_t taken) noexcept;

/// Routes what is ordinary of the completions from the i-th to the n-th. Returns the number of the first that is not,
/// or n.
[[nodiscard]] std::uint32_t route_ordinary(Turn& turn, const Tables& tables, WorkerCq& cq, const ibv_wc* wcs,
                                           std::uint32_t i, std::uint32_t n) noexcept;

}  // namespace pollcore
