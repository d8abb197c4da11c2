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
    std::set<std::uint32_t> online;   ///< the machine's
    std::set<std::uint32_t> allowed;  ///< those of `online` that this process may run on
    bool waitpkg = false;             ///< the CPUs have TPAUSE and UMWAIT

    /// A worker and the threads that it serves have one CPU for all of them: a thread that spins keeps the others from
    /// running.
    [[nodiscard]] bool one_for_all() const noexcept { return allowed.size() == 1; }

    /// Asks the kernel. `allowed` is the process's cpuset, whatever its threads are pinned to. Throws
    /// pollcore::Error.
    [[nodiscard]] static Cpus of_this_process();
};

/// "0-3,8", as the kernel and taskset(1) write it.
[[nodiscard]] std::string print_cpu_list(const std::set<std::uint32_t>& cpus);
/// Reads such a list, as the kernel writes it. Throws pollcore::Error, with `source` in its message.
[[nodiscard]] std::set<std::uint32_t> parse_cpu_list(std::string_view text, std::string_view source);

}  // namespace pollcore::config
