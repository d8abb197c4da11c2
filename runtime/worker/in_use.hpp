// Whether something that the control thread wants to end is in use: a memory region's key, a memory window, an address
// handle.
//
// Each step looks at a part of a ring, or at some queue pairs or shared receive queues. Requests move from rings to
// tables and never back, so a search that looks at the rings first misses no request that was submitted before the
// question. Searches take turns, and an attached process has one at a time: the length of one process's rings does not
// decide how long another's search takes.
//
// Thread safety: the worker's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "pollcore/handle.hpp"
#include "pollcore/work_request.hpp"
#include "worker/tables.hpp"
#include "worker/turn.hpp"

namespace pollcore {

class InUse {
public:
    InUse(const Turn& turn, const Tables& tables) : turn_(turn), tables_(tables) {}

    struct Question {
        std::uint64_t command = 0;  ///< 0: none
        std::uint32_t device = 0;
        std::uint32_t pd = 0;
        std::uint32_t client = 0;  ///< only sessions of this process can name it
        std::uint32_t lkey = 0;
        MrHandle region{};        ///< the key's region, if windows may be bound to it
        AhHandle ah{};            ///< valid: the search is for this address handle, not for a key
        MwHandle window{};        ///< valid: the search is for this window, not for a key
        bool skip_rings = false;  ///< requests still in a ring will be refused, so only posted ones count
    };
    /// Throws std::bad_alloc.
    void ask(const Question& question);
    [[nodiscard]] bool idle() const noexcept { return current_.what.command == 0; }
    struct Answer {
        std::uint64_t command = 0;
        bool found = false;
    };
    /// Takes a step of one search, if there is any. Returns the search's answer once it is over.
    [[nodiscard]] std::optional<Answer> turn() noexcept;

private:
    enum class Looked { found, over, more };
    struct Search {
        Question what;
        std::uint32_t next_session = 0;
        std::uint32_t next_qp = 0;
        std::uint32_t next_srq = 0;
        /// The search has come to `slot` of this session (by its id) or of this queue pair (by its handle).
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
    template <class Queue>
    [[nodiscard]] bool concerns(const Queue* queue) const noexcept {
        return queue != nullptr && queue->device() == current_.what.device && queue->pd() == current_.what.pd;
    }

    const Turn& turn_;
    const Tables& tables_;
    Search current_;  // whose turn it is
    std::vector<Search> others_;
    std::size_t next_other_ = 0;
};

}  // namespace pollcore
