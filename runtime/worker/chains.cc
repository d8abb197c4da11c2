#include "worker/recv_queue.hpp"
#include "worker/worker_qp.hpp"

namespace pollcore {

void Chains::ring(Turn& turn) noexcept {
    // Receives are posted first, because an answer to a send may arrive at once.
    if (!recvs.empty()) [[unlikely]] {
        recvs.post_all([&](RecvQueue& queue) { queue.post(turn); });
    }
    sends.post_all([&](WorkerQp& qp) { qp.post_sends(turn); });
    wrs_used_ = recv_wrs_used_ = sges_used_ = inline_used_ = 0;
}

}  // namespace pollcore
