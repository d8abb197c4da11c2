// DPDK's EAL (environment abstraction layer). The runtime uses it for pinned threads and hugepages, and for little
// else.
//
// EAL can be initialised only once in the life of a process (H18). So the first runtime sets EAL up for all later
// runtimes of the process. If the host program has set EAL up itself, the runtime uses it as it is. This header
// contains no DPDK types, so that the rest of the control side compiles without DPDK's headers.
//
// Thread safety: any thread may call the functions.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "base/host_memory.hpp"
#include "pollcore/config.hpp"

namespace pollcore {

struct EalState {
    bool ours = false;       ///< set up by pollcore, not by the host program
    bool hugepages = false;  ///< memory comes from hugepages
    std::string memory;      ///< where memory comes from, as text for reports
    bool telemetry = false;  ///< EAL was started with its telemetry socket
    std::string why_no_telemetry = "the first runtime of this process has started EAL without it";
};

/// Sets EAL up, unless EAL was set up before. Makes no PCI scan, and does not change the caller's CPU affinity. Leaves
/// no files behind but, with `telemetry`, the directory of the telemetry socket. Throws Error if hugepages are required
/// and too few are free, if EAL does not start, or in a forked child of the process that has set EAL up.
[[nodiscard]] const EalState& ensure_eal(const MemoryConfig& memory, const std::vector<std::uint32_t>& worker_cores,
                                         bool telemetry);

/// Returns the CPUs that this process may use and no worker uses. If there are none, returns all CPUs that this process
/// may use.
[[nodiscard]] std::vector<int> helper_cpus(const std::vector<std::uint32_t>& worker_cores);
/// Moves the calling thread to these CPUs, and gives it this name, cut to 15 characters.
void become_helper(const std::string& name, const std::vector<int>& cpus) noexcept;

/// A thread that is pinned to one core. The thread is EAL's lcore of that number. If EAL has no free lcore for this
/// core alone, the thread is a new one that is registered with EAL (H20).
class CoreThread {
public:
    CoreThread() = default;
    ~CoreThread() { join(); }
    CoreThread(const CoreThread&) = delete;
    CoreThread& operator=(const CoreThread&) = delete;

    /// Runs `body` on the core, in a thread called `name`, cut to 15 characters. Throws Error if no thread can run on
    /// the core.
    void start(const std::string& name, std::uint32_t core, std::function<void()> body);
    void join() noexcept;
    /// The kernel's id of the thread. Only after start().
    [[nodiscard]] int thread_id() const noexcept { return thread_id_; }

private:
    std::function<void()> body_;
    std::thread thread_;
    std::atomic<bool> ended_{false};
    int lcore_ = -1;
    int thread_id_ = 0;
};

/// Returns zeroed, cache-line aligned memory from EAL's heap, in hugepages if EAL has them. `numa_node` is the
/// preferred node; -1 means any node. Throws Error(ENOMEM), whose text names the limit to raise.
[[nodiscard]] HostMemory eal_memory(std::size_t bytes, int numa_node, const std::string& what_for);

}  // namespace pollcore
