// A verbs device whose provider is measured; a provider is the driver library that libibverbs loads for a device. The
// device is a NIC, or the model of an mlx5 HCA if the model was preloaded (tests/mlx5_model).
//
// Thread safety: as for any value.
#pragma once

#include <chrono>
#include <memory>
#include <span>
#include <string>

#include <infiniband/verbs.h>

#include "device/soft/soft_device.hpp"
#include "device/verbs/verbs_device.hpp"
#include "instant_device.hpp"
#include "mlx5_model.hpp"

namespace pollcore::bench {

class Provider {
public:
    /// `device` is a name that ibv_devices(1) prints.
    explicit Provider(std::string device) : device_(std::move(device)), on_model_(test::Mlx5Model::is_there()) {}

    /// Uses the device that completes at once, in place of a provider. provider_goals() subtracts the cost of that
    /// device.
    [[nodiscard]] static Provider instant() {
        Provider provider{std::string()};
        provider.on_model_ = false;
        return provider;
    }

    [[nodiscard]] std::unique_ptr<Device> open() const {
        if (!device_.empty()) {
            return VerbsDevice::open(device_, 1);
        }
        std::unique_ptr<Device> device = open_soft_device({});
        make_instant(*device->context());
        return device;
    }
    /// Returns a name for the titles of tables.
    [[nodiscard]] std::string name() const {
        return on_model_ ? "libmlx5 on a model of the HCA (without the doorbell's write-combining store and fence)"
                         : device_;
    }
    [[nodiscard]] bool on_model() const noexcept { return on_model_; }

    /// Returns when the device has carried out all requests that were posted to these queue pairs. The model carries
    /// them out during this call. For a NIC, this function only waits long enough.
    void settle(std::span<ibv_qp* const> used) const {
        if (on_model_) {
            for (const ibv_qp* qp : used) {
                while (test::Mlx5Model::serve(qp->qp_num, 64) != 0) {
                }
            }
            return;
        }
        if (device_.empty()) {
            return;
        }
        // A burst of writes within the host takes about 5 us.
        constexpr std::chrono::microseconds kEnough{30};
        for (const auto from = std::chrono::steady_clock::now(); std::chrono::steady_clock::now() - from < kEnough;) {
        }
    }

private:
    std::string device_;
    bool on_model_;
};

}  // namespace pollcore::bench
