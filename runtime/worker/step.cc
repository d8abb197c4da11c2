// The loop body of a worker.
#include "worker/extended_poll.hpp"
#include "worker/worker.hpp"

namespace pollcore {

Worker::Worker(const WorkerOptions& options)
    : turn_(options),
      qps_mask_(options.qps_max - 1),
      qps_(options.qps_max),
      srqs_(kSrqsMax),
      pools_(kReceivePoolsMax),
      wrs_(kChainWrs),
      recv_wrs_(kChainWrs),
      sges_(kChainSges),
      inline_(kChainInline),
      wcs_(options.complete_burst),
      device_times_(options.complete_burst),
      command_memory_(ring_bytes<Command>(kCommandSlots)) {
    format_ring<Command>(command_memory_.data(), kCommandSlots);
    commands_ = RingConsumer<Command>(command_memory_.data(), kCommandSlots);
}

std::uint32_t Worker::step(std::uint64_t now, std::uint32_t looks) noexcept {
    turn_.begin(now);
    std::uint32_t work = 0;
    if (commands_.ready() || !closing_.empty() || search_.command != 0 || turn_.answers.behind()) [[unlikely]] {
        work += run_commands();
    }
    std::uint32_t looked = 0;
    do {
        work += take_submissions();
        work += take_completions();
        work += look_at_rings();
    } while (++looked < looks && work == 0);
    if (!to_fill_.empty()) [[unlikely]] {
        work += fill_pools();
    }
    if (!flows_.empty()) [[unlikely]] {
        work += turn_flows();
    }
    if (!lives_.empty()) [[unlikely]] {
        work += turn_lives();
    }
    turn_.end();
    turn_.counters.steps.add(looked);
    if (work != 0) {
        turn_.counters.busy_steps.add();
    }
    if (!turn_.told().empty()) [[unlikely]] {
        wake_applications();
    }
    return work;
}

// What a look that finds nothing does is all in the next two functions: how soon a request is seen depends on how
// short such a look is.

[[gnu::always_inline]] inline std::uint32_t Worker::take_submissions() noexcept {
    std::uint32_t work = 0;
    const std::size_t n = polled_sessions_.size();
    const std::size_t first = first_session_ < n ? first_session_ : 0;
    for (std::size_t i = 0; i < n; ++i) {
        WorkerSession& session = *polled_sessions_[first + i < n ? first + i : first + i - n];
        if (!session.submissions().ready()) {
            session.release_rest();
        } else if (!session.broken()) [[likely]] {
            work += submit(session);
        }
    }
    if (work != 0) {
        first_session_ = first + 1;
        ring_doorbells();
    }
    return work;
}

[[gnu::always_inline]] inline std::uint32_t Worker::take_completions() noexcept {
    std::uint32_t work = 0;
    const std::size_t n = polled_cqs_.size();
    const std::size_t first = first_cq_ < n ? first_cq_ : 0;
    for (std::size_t i = 0; i < n; ++i) {
        WorkerCq& cq = *polled_cqs_[first + i < n ? first + i : first + i - n];
        if (cq.parked == 0 && !cq.failed) [[likely]] {
            work += cq.extended == nullptr ? poll_plain(cq) : poll_extended(cq);
        }
    }
    if (work != 0) {
        first_cq_ = first + 1;
    }
    return work;
}

[[gnu::always_inline]] inline std::uint32_t Worker::look_at_rings() noexcept {
    std::uint32_t work = 0;
    for (std::size_t i = 0; i < rings_.size(); ++i) {
        if (rings_[i].ring->begun()) [[unlikely]] {
            work += take_records(*rings_[i].qp);
        }
    }
    return work;
}

/// The same where it need not be short.
[[gnu::noinline]] std::uint32_t Worker::look_at_cqs() noexcept { return take_completions(); }

[[gnu::always_inline]] inline std::uint32_t Worker::poll_plain(WorkerCq& cq) noexcept {
    return polled(cq, ibv_poll_cq(cq.cq, static_cast<int>(turn_.options.complete_burst), wcs_.data()), false);
}

// Not inlined: what it needs of registers would make the look by ibv_poll_cq longer.
[[gnu::noinline]] std::uint32_t Worker::poll_extended(WorkerCq& cq) noexcept {
    if (cq.device_time) [[unlikely]] {
        return poll_with_times(cq);
    }
    return polled(cq, read_extended(cq, static_cast<int>(turn_.options.complete_burst), wcs_.data(), nullptr), false);
}

[[gnu::noinline]] std::uint32_t Worker::poll_with_times(WorkerCq& cq) noexcept {
    const int n = read_extended(cq, static_cast<int>(turn_.options.complete_burst), wcs_.data(), device_times_.data());
    return polled(cq, n, true);
}

[[gnu::always_inline]] inline std::uint32_t Worker::polled(WorkerCq& cq, int n, bool with_times) noexcept {
    if (n < static_cast<int>(turn_.options.complete_burst)) {
        ++cq.emptied;
    }
    if (n == 0) {
        return 0;
    }
    if (n < 0) [[unlikely]] {
        fail_cq(cq);
        return 0;
    }
    const auto taken = static_cast<std::uint32_t>(n);
    if (with_times) {
        route_with_times(cq, taken);
    } else {
        route(cq, taken);
    }
    cq.taken += taken;
    turn_.counters.completions.add(taken);
    return taken;
}

}  // namespace pollcore
