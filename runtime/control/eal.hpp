// DPDK's EAL, which gives pinned threads, hugepages and little else here.
//
// EAL can be initialised once in the life of a process (H18). So the first runtime sets it up for all later ones, and a
// host program's own EAL is used as it is. Nothing here is a DPDK type, so that the rest of the control side compiles
// without DPDK's headers.
//
// Thread safety: all functions, from any thread.
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
    std::string memory;      ///< in words: where memory comes from
};

/// Sets EAL up unless it is already: no PCI scan, no files left behind, the caller's affinity unchanged.
/// Throws Error when hugepages are required and there are none, or when EAL refuses.
[[nodiscard]] const EalState& ensure_eal(const MemoryConfig& memory, const std::vector<std::uint32_t>& worker_cores);

/// CPUs that this process may use and no worker uses. If there are none: all CPUs that this process may use.
[[nodiscard]] std::vector<int> helper_cpus(const std::vector<std::uint32_t>& worker_cores);
/// Moves the calling thread to these CPUs, and names it (15 characters count).
void become_helper(const std::string& name, const std::vector<int>& cpus) noexcept;

/// A thread that owns a core: the EAL lcore of that number, or, if EAL has none, a thread of our own that is pinned and
/// registered with EAL (H20).
class CoreThread {
public:
    CoreThread() = default;
    ~CoreThread() { join(); }
    CoreThread(const CoreThread&) = delete;
    CoreThread& operator=(const CoreThread&) = delete;

    /// Runs `body` on the core, in a thread of that name; the kernel may cut the name off. Throws Error when the core
    /// cannot be had.
    void start(const std::string& name, std::uint32_t core, std::function<void()> body);
    void join() noexcept;
    /// Kernel thread id, once start() has returned.
    [[nodiscard]] int thread_id() const noexcept { return thread_id_; }

private:
    std::function<void()> body_;
    std::thread thread_;
    std::atomic<bool> ended_{false};
    int lcore_ = -1;
    int thread_id_ = 0;
};

/// Zeroed, cache-line aligned memory from EAL's heap, in hugepages if it has them. `numa_node` -1: anywhere. Throws
/// Error(ENOMEM), which says which limit to raise.
[[nodiscard]] HostMemory eal_memory(std::size_t bytes, int numa_node, const std::string& what_for);

}  // namespace pollcore
