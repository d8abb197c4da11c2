// Before an object ends, finds out whether any worker still has a work request that names the object. A worker spreads
// the search over many steps, because an application's ring may be long.
//
// Thread safety: only the control thread, and only while the workers exist.
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
    /// Ignores the answers that have not come yet.
    ~UseSearch();

    /// Adds a worker to the search. `begin` begins the search at the worker's proxy, and returns the number to pass to
    /// WorkerProxy::found().
    template <class Begin>
    void add(const WorkerSlot& worker, WorkerProxy& proxy, Begin&& begin) {
        parts_.reserve(parts_.size() + 1);
        parts_.push_back({&worker, &proxy, begin(proxy)});
    }
    [[nodiscard]] bool over();
    /// Returns a worker that has such a work request, or null. Valid after over() has returned true.
    [[nodiscard]] const WorkerSlot* user() const noexcept { return user_; }

private:
    struct Part {
        const WorkerSlot* worker = nullptr;
        WorkerProxy* proxy = nullptr;
        std::uint64_t search = 0;
    };
    std::vector<Part> parts_;  // the searches whose workers have not answered yet
    const WorkerSlot* user_ = nullptr;
};

}  // namespace pollcore
