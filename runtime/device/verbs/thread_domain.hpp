// An ibv_td, and the parent domains that tie it to the PDs of its QPs and CQs.
//
// Thread safety: like the device, only the control thread uses this class.
// Lifetime: all objects that were made in the domain are destroyed before it. The domain is destroyed before its
// device.
#pragma once

#include <utility>
#include <vector>

#include <infiniband/verbs.h>

#include "device/device.hpp"

namespace pollcore {

class VerbsDevice;

class VerbsThreadDomain final : public ThreadDomain {
public:
    /// If `td` is null, the device has no thread domains. Then the only effect of this domain is that its extended CQs
    /// are single-threaded.
    VerbsThreadDomain(VerbsDevice& device, ibv_td* td);
    ~VerbsThreadDomain() override;
    VerbsThreadDomain(const VerbsThreadDomain&) = delete;
    VerbsThreadDomain& operator=(const VerbsThreadDomain&) = delete;

    [[nodiscard]] const VerbsDevice* device() const noexcept { return &device_; }
    /// Returns the parent domain of `pd`, which the first call makes. Without an ibv_td, returns `pd` itself. Throws
    /// pollcore::Error.
    [[nodiscard]] ibv_pd* within(ibv_pd* pd);
    /// Deallocates the parent domain of `pd`, if there is one. Returns 0 or an errno value.
    int drop(ibv_pd* pd) noexcept;

private:
    VerbsDevice& device_;
    ibv_td* td_;
    std::vector<std::pair<ibv_pd*, ibv_pd*>> parents_;  ///< each PD and its parent domain
};

}  // namespace pollcore
