// Whether a work request names something that shall end, and on which worker. Each worker looks in its own time, a part
// in each step: an application's ring may be long.
//
// Thread safety: the control thread's alone, while its workers are there.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "worker/worker_proxy.hpp"

namespace pollcore {

struct WorkerSlot;

class UseSearch {
public:
    /// Is over, and finds nothing.
    UseSearch() = default;
    UseSearch(UseSearch&& other) noexcept { *this = std::move(other); }
    UseSearch& operator=(UseSearch&& other) noexcept {
        std::swap(parts_, other.parts_);
        std::swap(user_, other.user_);
        return *this;
    }
    /// Nobody asks about it any more.
    ~UseSearch();

    /// Has this worker look, too. `begin` begins it at the worker's proxy, and returns the number to ask found() about.
    template <class Begin>
    void add(const WorkerSlot& worker, WorkerProxy& proxy, Begin&& begin) {
        parts_.reserve(parts_.size() + 1);
        parts_.push_back({&worker, &proxy, begin(proxy)});
    }
    [[nodiscard]] bool over();
    /// Once it is over: the worker that has such a work request, or null.
    [[nodiscard]] const WorkerSlot* user() const noexcept { return user_; }

private:
    struct Part {
        const WorkerSlot* worker = nullptr;
        WorkerProxy* proxy = nullptr;
        std::uint64_t search = 0;
    };
    std::vector<Part> parts_;  // that are not over
    const WorkerSlot* user_ = nullptr;
};

}  // namespace pollcore
