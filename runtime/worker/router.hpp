// Routes work completions from CQs to sessions. The wr_id of a work completion names the request.
//
// Thread safety: only the worker's thread uses it.
#pragma once

#include <cstdint>

#include <infiniband/verbs.h>

#include "pollcore/completion.hpp"
#include "pollcore/own_lines.hpp"
#include "worker/tables.hpp"
#include "worker/turn.hpp"

namespace pollcore {

class Router {
public:
    Router(Turn& turn, const Tables& tables)
        : turn_(turn), tables_(tables), wcs_(turn.options.complete_burst), device_times_(turn.options.complete_burst) {}

    /// Array into which a poll writes its completions. It has room for a burst.
    [[nodiscard]] ibv_wc* wcs() noexcept { return wcs_.data(); }
    /// Array into which a poll writes the device's times, if the CQ has them.
    [[nodiscard]] std::uint64_t* device_times() noexcept { return device_times_.data(); }

    /// Marks those of the first `n` of wcs() whose queue pair is not the worker's, so that they count as stale. For a
    /// CQ of WorkerCq::Options::shared.
    void disown_foreign(const WorkerCq& cq, std::uint32_t n) noexcept;
    /// Routes the first `n` of wcs().
    void route(WorkerCq& cq, std::uint32_t n) noexcept;
    void route_with_times(WorkerCq& cq, std::uint32_t n) noexcept;
    /// Called when polling the CQ failed: the CQ gives no more completions (D46).
    void fail(WorkerCq& cq) noexcept;

private:
    void prefetch_entries(std::uint32_t n) noexcept;
    void route(WorkerCq& cq, const ibv_wc& wc) noexcept;
    static void serve(WorkerCq& cq, const InFlightEntry& entry) noexcept;
    void complete_send(WorkerCq& cq, WorkerQp& qp, std::uint32_t position, const ibv_wc& wc) noexcept;
    void complete_recv(WorkerCq& cq, WorkerQp& qp, std::uint32_t place, const ibv_wc& wc) noexcept;
    void complete_shared_recv(const ibv_wc& wc) noexcept;

    Turn& turn_;
    const Tables& tables_;
    OwnLines<ibv_wc> wcs_;
    OwnLines<std::uint64_t> device_times_;
};

}  // namespace pollcore
