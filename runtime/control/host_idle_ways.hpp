// How a worker waits on a real machine.
#pragma once

#include "worker/run.hpp"

namespace pollcore {

class HostIdleWays final : public IdleWays {
public:
    /// On x86, uses TPAUSE, or UMWAIT if there is only one cache line to watch (H23). The CPU must have these
    /// instructions.
    void monitor(const RingConsumer<WorkRequest>* only_source) noexcept override;
    void yield() noexcept override;
    void wait(std::span<pollfd> fds, std::uint64_t deadline_ns, std::uint64_t most_ns) noexcept override;
};

}  // namespace pollcore
