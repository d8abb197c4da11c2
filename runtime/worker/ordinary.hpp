// The short way, for ordinary requests. An ordinary request has at most one SGE, or an inline payload in its own line
// (D2). Its queue pair is connected, and WorkerQp::ordinary() has the request's opcode. The device completes it with
// success.
//
// These loops stop at the first request or completion that is not ordinary. That one then goes the general way, through
// Submitter or Router. If a completion ends several requests, and one of these is not ordinary, the requests before it
// have ended when the loop stops. The loops here never refuse a request and never fail a queue pair.
//
// Thread safety: only the worker's thread uses it.
#pragma once

#include <cstdint>

#include <infiniband/verbs.h>

namespace pollcore {

class Tables;
class Turn;
class WorkerCq;
class WorkerSession;

/// Skips the first `taken` slots of the session, and takes the requests behind them, up to the first that is not
/// ordinary or for which there is no room. Returns the number of taken requests.
[[nodiscard]] std::uint32_t take_ordinary(Turn& turn, std::uint32_t qps_mask, WorkerSession& session,
                                          std::uint32_t taken) noexcept;

/// Routes the completions wcs[i] to wcs[n - 1], up to the first that is not ordinary. Returns the index of that one, or
/// n.
[[nodiscard]] std::uint32_t route_ordinary(Turn& turn, const Tables& tables, WorkerCq& cq, const ibv_wc* wcs,
                                           std::uint32_t i, std::uint32_t n) noexcept;

}  // namespace pollcore
