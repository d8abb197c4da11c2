// An ibv_td, and the parent domains that tie it to the PDs of its QPs and CQs.
//
// Thread safety: only the control thread, as for the device.
// Lifetime: everything made in the domain is destroyed before the domain, and the domain before its device.
#pragma once

#include <utility>
#include <vector>

#include <infiniband/verbs.h>

#include "device/device.hpp"

namespace pollcore {

class VerbsDevice;

class VerbsThreadDomain final : public ThreadDomain {
public:
    /// `td` null: the device has none. Then the domain only makes its CQs single-threaded.
    VerbsThreadDomain(VerbsDevice& device, ibv_td* td);
    ~VerbsThreadDomain() override;
    VerbsThreadDomain(const VerbsThreadDomain&) = delete;
    VerbsThreadDomain& operator=(const VerbsThreadDomain&) = delete;

    [[nodiscard]] const VerbsDevice* device() const noexcept { return &device_; }
    /// The parent domain of `pd`, made at the first call; without an ibv_td, `pd` itself. Throws pollcore::Error.
    [[nodiscard]] ibv_pd* within(ibv_pd* pd);
    /// Gives the parent domain of `pd` back, if there is one. Returns 0, or an errno value.
    int drop(ibv_pd* pd) noexcept;

private:
    VerbsDevice& device_;
    ibv_td* td_;
    std::vector<std::pair<ibv_pd*, ibv_pd*>> parents_;  ///< PD, its parent domain
};

}  // namespace pollcore
