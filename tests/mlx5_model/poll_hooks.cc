#include "poll_hooks.hpp"

#include <array>
#include <atomic>
#include <mutex>
#include <utility>

#include <infiniband/verbs.h>

#include "hca_fabric.hpp"
#include "refuse.hpp"

namespace mlx5_model {
namespace {

constexpr int kStep = 64;
constexpr std::size_t kStartsMax = 16;  // libmlx5's variants of start_poll

using Poll = int (*)(ibv_cq*, int, ibv_wc*);
using Start = int (*)(ibv_cq_ex*, ibv_poll_cq_attr*);

std::atomic<Poll> poll_of_library;
std::array<std::atomic<Start>, kStartsMax> starts_of_library;

void move() {
    Fabric& fabric = Fabric::get();
    if (fabric.pace() == Pace::by_polls) {
        const std::lock_guard guard(fabric.lock);
        if (fabric.pace() == Pace::by_polls) {  // the pace may have changed while this thread waited for the lock
            fabric.step(kStep);
        }
    }
}

int poll(ibv_cq* cq, int count, ibv_wc* completions) {
    move();
    return poll_of_library.load(std::memory_order_relaxed)(cq, count, completions);
}

// libmlx5 has several variants of start_poll, and each CQ uses one. Each variant has its own hook, so that the hook
// knows which variant to call.
template <std::size_t Index>
int start(ibv_cq_ex* cq, ibv_poll_cq_attr* attributes) {
    move();
    return starts_of_library[Index].load(std::memory_order_relaxed)(cq, attributes);
}

template <std::size_t... Index>
constexpr std::array<Start, kStartsMax> make_hooks(std::index_sequence<Index...>) {
    return {start<Index>...};
}
constexpr std::array<Start, kStartsMax> kHooks = make_hooks(std::make_index_sequence<kStartsMax>());

Start hook_of(Start library) {
    for (std::size_t i = 0; i < kStartsMax; ++i) {
        Start none = nullptr;
        if (starts_of_library[i].compare_exchange_strong(none, library) || none == library) {
            return kHooks[i];
        }
    }
    refuse("libmlx5 has more than {} ways to start a poll", kStartsMax);
}

}  // namespace

bool hook_polls(std::uint64_t address, bool first_of_context) {
    if (Fabric::get().pace() == Pace::by_hand) {
        return false;
    }
    auto* cq = reinterpret_cast<ibv_cq*>(address);
    if (first_of_context) {
        poll_of_library = cq->context->ops.poll_cq;
        cq->context->ops.poll_cq = poll;
    }
    auto* extended = reinterpret_cast<ibv_cq_ex*>(address);
    if (extended->start_poll != nullptr) {
        extended->start_poll = hook_of(extended->start_poll);
    }
    return true;
}

}  // namespace mlx5_model
