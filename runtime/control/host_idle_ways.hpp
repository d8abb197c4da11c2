// How a thread of this machine waits.
#pragma once

#include "worker/run.hpp"

namespace pollcore {

class HostIdleWays final : public IdleWays {
public:
    /// TPAUSE, or UMWAIT if there is one line to watch (H23). Only on CPUs that have these instructions.
    void monitor(const RingConsumer<WorkRequest>* only_source) noexcept override;
    void yield() noexcept override;
    void wait(std::span<pollfd> fds, std::uint64_t deadline_ns, std::uint64_t most_ns) noexcept override;
};

}  // namespace pollcore
