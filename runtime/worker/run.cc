#include "worker/run.hpp"

#include <sched.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "base/clock.hpp"

namespace pollcore {
namespace {

void cpu_pause() noexcept {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// Turns the worker until it is to stop; `idle` follows each step that found nothing to do. The clock, the commands and
// `stop` together cost more than a look for work, so while there is none they have their turn once in `looks`.
template <class Idle>
void turn(Worker& worker, const std::atomic<bool>& stop, std::uint32_t looks, Idle idle) noexcept {
    // Relaxed: what the worker leaves behind is read after its thread was joined.
    while (!stop.load(std::memory_order_relaxed)) {
        if (worker.step(cycles_now(), looks) == 0) {
            idle();
        }
    }
}

}  // namespace

void run_worker(Worker& worker, const std::atomic<bool>& stop, IdlePolicy policy) noexcept {
    switch (policy) {
        case IdlePolicy::spin:
            return turn(worker, stop, 16, [] {});
        case IdlePolicy::pause:
            return turn(worker, stop, 1, cpu_pause);
        case IdlePolicy::yield:
            return turn(worker, stop, 1, sched_yield);  // which may take as long as others like
    }
}

}  // namespace pollcore
