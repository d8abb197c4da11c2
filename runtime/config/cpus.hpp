// The CPUs that a worker can be given.
//
// Thread safety: values; nothing is shared.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>

namespace pollcore::config {

struct Cpus {
    std::set<std::uint32_t> online;   ///< the CPUs of the machine that are online
    std::set<std::uint32_t> allowed;  ///< the CPUs in `online` that this process may run on
    bool waitpkg = false;             ///< the CPUs have TPAUSE and UMWAIT
    /// The CPUs in `allowed` to which the thread that asked was pinned, for example by taskset(1), numactl(8) or MPI.
    std::set<std::uint32_t> bound{};

    /// Returns true if a worker and the threads that it serves share a single CPU. While one of these threads spins,
    /// the others cannot run.
    [[nodiscard]] bool one_for_all() const noexcept { return allowed.size() == 1; }

    /// Asks the kernel. `allowed` is the cpuset of the process, even if the calling thread is pinned to fewer CPUs,
    /// which are in `bound`. Throws pollcore::Error.
    [[nodiscard]] static Cpus of_this_process();
};

/// A list such as "0-3,8", in the format of the kernel and of taskset(1).
[[nodiscard]] std::string print_cpu_list(const std::set<std::uint32_t>& cpus);
/// Reads a list of CPUs in the kernel's format. Throws pollcore::Error, with `source` in its message.
[[nodiscard]] std::set<std::uint32_t> parse_cpu_list(std::string_view text, std::string_view source);

}  // namespace pollcore::config
