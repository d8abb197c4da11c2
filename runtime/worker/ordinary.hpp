// The short way, for ordinary requests: with one SGE or none, or with a payload in the request's own line (D2), on a
// connected queue pair with nothing particular about it, and completed by the device with success.
//
// Submitter and Router make the same decisions for all other requests. These loops only know when to stop: at the first
// request or completion that is not ordinary, which then goes the general way. If a completion ends several requests,
// those before the first one that is not ordinary have ended by then. Nothing is refused or failed here.
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

/// Takes ordinary requests from the session's slots behind the first `taken`, up to one that is not ordinary. Returns
/// how many there were.
[[nodiscard]] std::uint32_t take_ordinary(Turn& turn, std::uint32_t qps_mask, WorkerSession& session,
                                          std::uint32_t taken) noexcept;

/// Routes completions from the i-th on, up to the first that is not ordinary. Returns that one's number, or n.
[[nodiscard]] std::uint32_t route_ordinary(Turn& turn, const Tables& tables, WorkerCq& cq, const ibv_wc* wcs,
                                           std::uint32_t i, std::uint32_t n) noexcept;

}  // namespace pollcore
