#include "device/verbs/thread_domain.hpp"

#include <algorithm>
#include <cerrno>

#include <fmt/format.h>

#include "device/verbs/verbs_device.hpp"
#include "device/verbs/verbs_error.hpp"

namespace pollcore {

VerbsThreadDomain::VerbsThreadDomain(VerbsDevice& device, ibv_td* td) : device_(device), td_(td) {
    device_.domains_.push_back(this);
}

VerbsThreadDomain::~VerbsThreadDomain() {
    std::erase(device_.domains_, this);
    // A parent domain that is still in use cannot be deallocated. The kernel frees it when the device is closed.
    for (const auto& [pd, parent] : parents_) {
        (void)ibv_dealloc_pd(parent);
    }
    if (td_ != nullptr) {
        (void)ibv_dealloc_td(td_);
    }
}

ibv_pd* VerbsThreadDomain::within(ibv_pd* pd) {
    if (td_ == nullptr) {
        return pd;
    }
    const auto known = std::find_if(parents_.begin(), parents_.end(), [pd](auto& p) { return p.first == pd; });
    if (known != parents_.end()) {
        return known->second;
    }
    parents_.reserve(parents_.size() + 1);  // so that emplace_back() below cannot throw and lose the parent domain
    ibv_parent_domain_init_attr attr{};
    attr.pd = pd;
    attr.td = td_;
    ibv_pd* parent = ibv_alloc_parent_domain(device_.context(), &attr);
    if (parent == nullptr) {
        throw verbs_error(errno, fmt::format("cannot make a parent domain on RDMA device {}", device_.name()));
    }
    parents_.emplace_back(pd, parent);
    return parent;
}

int VerbsThreadDomain::drop(ibv_pd* pd) noexcept {
    const auto known = std::find_if(parents_.begin(), parents_.end(), [pd](auto& p) { return p.first == pd; });
    if (known == parents_.end()) {
        return 0;
    }
    const int error = verbs_result(ibv_dealloc_pd(known->second));
    if (error == 0) {
        parents_.erase(known);
    }
    return error;
}

}  // namespace pollcore
