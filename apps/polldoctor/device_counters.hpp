// Where RDMA devices have their counters in sysfs (Documentation/ABI/stable/sysfs-class-infiniband).
//
// Thread safety: one thread, as Tree.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tree.hpp"

namespace pollcore::doctor {

/// The files of a port's counters and hw_counters.
[[nodiscard]] std::vector<std::string> counter_files(const Tree& tree, const std::string& verbs_name,
                                                     std::uint32_t port);

/// Reads the files in a child process, because the kernel may have to ask firmware for them. Files that were not read
/// in time get the error ETIMEDOUT.
void read_counters(Tree& tree, const std::vector<std::string>& files);

}  // namespace pollcore::doctor
