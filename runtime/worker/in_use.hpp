// Searches for requests that use an object which the control thread wants to destroy: a memory region (by its lkey), a
// memory window, or an address handle.
//
// Each step looks at a part of a ring, or at some queue pairs or shared receive queues. Requests move from rings to
// in-flight tables and never back. So a search that looks at the rings first finds every request that was submitted
// before the search began. Searches take turns, and an attached process has only one search at a time. So a process
// with long rings does not delay the searches of other processes.
//
// Thread safety: only the worker's thread uses it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "pollcore/handle.hpp"
#include "pollcore/work_request.hpp"
#include "worker/tables.hpp"
#include "worker/turn.hpp"
#include "worker/worker_qp.hpp"
#include "worker/worker_srq.hpp"

namespace pollcore {

class InUse {
public:
    InUse(const Turn& turn, const Tables& tables) : turn_(turn), tables_(tables) {}

    struct Question {
        std::uint64_t command = 0;  ///< 0 if there is no question
        std::uint32_t device = 0;
        std::uint32_t pd = 0;
        std::uint32_t client = 0;  ///< only sessions of this process can name the object
        std::uint32_t lkey = 0;
        MrHandle region{};        ///< the region with this lkey, if windows may be bound to the region
        AhHandle ah{};            ///< if valid, the search is for this address handle, not for an lkey
        MwHandle window{};        ///< if valid, the search is for this window, not for an lkey
        bool skip_rings = false;  ///< does not search rings, because the worker will refuse the requests in them
    };
    /// Begins a search. Throws std::bad_alloc.
    void ask(const Question& question);
    [[nodiscard]] bool idle() const noexcept { return current_.what.command == 0; }
    struct Answer {
        std::uint64_t command = 0;
        bool found = false;
    };
    /// Does a step of one search. Must be called only if not idle(). Returns the search's answer when the search is
    /// complete.
    [[nodiscard]] std::optional<Answer> turn() noexcept;

private:
    enum class Looked { found, over, more };
    struct Search {
        Question what;
        std::uint32_t next_session = 0;
        std::uint32_t next_qp = 0;
        std::uint32_t next_srq = 0;
        /// The session (by its id) or queue pair (by its handle) whose ring the search looks at now. It goes on at
        /// `slot`.
        std::uint64_t whose = 0;
        std::uint64_t slot = 0;
        std::uint64_t slots_end = 0;
    };

    [[nodiscard]] Looked look_further() noexcept;
    template <class Slots>
    [[nodiscard]] Looked look_through(std::uint64_t whose, const Slots& slots) noexcept;
    [[nodiscard]] bool names_it(const WorkRequest& request) const noexcept;
    template <class Slots>
    [[nodiscard]] bool names_key(const WorkRequest& request, const Slots& slots, std::size_t at) const noexcept;
    [[nodiscard]] bool has_in_flight(const WorkerQp& qp) const noexcept;
    [[nodiscard]] bool may_name_it(const WorkerSession& session) const noexcept;
    // Whether a request of this queue keeps a region in use: the queue has the region's protection domain, and it is
    // not one whose requests keep no regions.
    [[nodiscard]] bool concerns(const WorkerQp* qp) const noexcept {
        return qp != nullptr && qp->keeps_regions() && qp->device() == current_.what.device &&
               qp->pd() == current_.what.pd;
    }
    [[nodiscard]] bool concerns(const WorkerSrq* srq) const noexcept {
        return srq != nullptr && srq->keeps_regions() && srq->options().device == current_.what.device &&
               srq->options().pd == current_.what.pd;
    }

    const Turn& turn_;
    const Tables& tables_;
    Search current_;  // the search that does the next step
    std::vector<Search> others_;
    std::size_t next_other_ = 0;
};

}  // namespace pollcore
