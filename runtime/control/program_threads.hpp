// The CPUs of the program's own threads, which must not run on the workers' cores.
//
// Thread safety: any thread; each call concerns the calling thread.
#pragma once

#include <cstdint>
#include <optional>
#include <set>

namespace pollcore {

/// Takes these CPUs from those that the calling thread may use. Throws Error(EINVAL), and changes nothing, if no CPU
/// would be left.
void keep_this_thread_off(const std::set<std::uint32_t>& cpus);
/// The calling thread's CPU, if the thread may use only one.
[[nodiscard]] std::optional<std::uint32_t> only_cpu_of_this_thread() noexcept;

}  // namespace pollcore
