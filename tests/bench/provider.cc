#include "provider.hpp"

#include <chrono>

namespace pollcore::bench {

void Provider::settle(std::span<ibv_qp* const> used) const {
    if (on_model_) {
        for (const ibv_qp* qp : used) {
            while (test::Mlx5Model::serve(qp->qp_num, 64) != 0) {
            }
        }
        return;
    }
    // A burst of writes within the host takes some 5 us.
    constexpr std::chrono::microseconds kEnough{30};
    for (const auto from = std::chrono::steady_clock::now(); std::chrono::steady_clock::now() - from < kEnough;) {
    }
}

}  // namespace pollcore::bench
