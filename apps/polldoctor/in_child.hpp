// Calls to the kernel that ask a device's firmware, which may not answer.
//
// Thread safety: any thread, while the process has no other threads that hold locks (fork(2)).
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

namespace pollcore::doctor {

struct ChildAnswer {
    std::string text;
    bool whole = false;  ///< the child has written all of it in time
};

/// Calls `work` in a child process. `work` writes its answer, piece by piece, with the function that it is given. After
/// `limit`, or `bytes_max`, the child is killed, and nobody waits for its end: a call that waits for firmware cannot be
/// interrupted. If no child can be made, nothing is written.
[[nodiscard]] ChildAnswer in_child(const std::function<void(const std::function<void(std::string_view)>&)>& work,
                                   std::chrono::milliseconds limit, std::size_t bytes_max);

}  // namespace pollcore::doctor
