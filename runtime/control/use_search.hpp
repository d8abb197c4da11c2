// Finds out whether a work request names an object that is to end, and on which worker. Each worker looks at a part in
// each of its steps, since an application's ring may be long.
//
// Thread safety: only the control thread, and only while its workers exist.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "worker/worker_proxy.hpp"

namespace pollcore {

struct WorkerSlot;

class UseSearch {
public:
    /// An empty search: it is over and has found nothing.
    UseSearch() = default;
    UseSearch(UseSearch&& other) noexcept { *this = std::move(other); }
    UseSearch& operator=(UseSearch&& other) noexcept {
        std::swap(parts_, other.parts_);
        std::swap(user_, other.user_);
        return *this;
    }
    /// Drops the answers that are still to come.
    ~UseSearch();

    /// Adds a worker. `begin` begins the search at the worker's proxy, and returns the number to ask found() about.
    template <class Begin>
    void add(const WorkerSlot& worker, WorkerProxy& proxy, Begin&& begin) {
        parts_.reserve(parts_.size() + 1);
        parts_.push_back({&worker, &proxy, begin(proxy)});
    }
    [[nodiscard]] bool over();
    /// Once the search is over: the worker that has such a work request, or null.
    [[nodiscard]] const WorkerSlot* user() const noexcept { return user_; }

private:
    struct Part {
        const WorkerSlot* worker = nullptr;
        WorkerProxy* proxy = nullptr;
        std::uint64_t search = 0;
    };
    std::vector<Part> parts_;  // the parts that are not over
    const WorkerSlot* user_ = nullptr;
};

}  // namespace pollcore
