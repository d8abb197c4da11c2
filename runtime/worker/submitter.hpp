// Moves requests from a session's ring to the chains: one chain for each queue in a burst.
//
// The worker repeats the session's admission checks with its own counts, because it does not trust the library in a
// client process.
//
// Thread safety: only the worker's thread uses it.
#pragma once

#include <cstddef>
#include <cstdint>

#include <infiniband/verbs.h>

#include "pollcore/work_request.hpp"
#include "worker/tables.hpp"
#include "worker/turn.hpp"

namespace pollcore {

class Submitter {
public:
    Submitter(Turn& turn, const Tables& tables) : turn_(turn), tables_(tables) {}

    /// Takes the requests in the session's ring, at most a burst (D14). Returns the number of requests.
    std::uint32_t submit(WorkerSession& session) noexcept;

private:
    enum class Take : std::uint8_t { taken, later };

    void prefetch_qps(const WorkerSession& session) const noexcept;
    [[nodiscard]] Take take(WorkerSession& session, const WorkRequest& request, std::size_t slot) noexcept;
    [[nodiscard]] Take take_recv(WorkerSession& session, Share& share, const WorkRequest& request,
                                 std::size_t slot) noexcept;
    [[nodiscard]] Take take_send(WorkerSession& session, Share& share, const WorkRequest& request,
                                 std::size_t slot) noexcept;
    [[nodiscard]] Take take_other(WorkerSession& session, const WorkRequest& request, std::size_t slot) noexcept;
    void take_shared_recv(WorkerSession& session, const WorkRequest& request, std::size_t slot) noexcept;
    void take_release(WorkerSession& session, const WorkRequest& line) noexcept;
    [[nodiscard]] bool has_room(WorkerSession& session) noexcept;

    Turn& turn_;
    const Tables& tables_;
};

}  // namespace pollcore
