#include "control/host_idle_ways.hpp"

#include <sched.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <chrono>
#include <ctime>

#include "base/clock.hpp"

namespace pollcore {
namespace {

constexpr std::chrono::nanoseconds kRest{1'000};
// The longest time to watch one cache line. A command arrives in another line, so a command may have to wait for this
// time.
constexpr std::chrono::nanoseconds kWatch{20'000};

#if defined(__x86_64__)

// C0.1, the lighter of the two states: the CPU wakes up faster (Intel SDM, TPAUSE and UMWAIT). We use the compiler's
// intrinsics, because EAL's interface to these instructions may still change (D34).
constexpr unsigned kC01 = 1;

[[gnu::target("waitpkg")]] void rest_until(std::uint64_t cycles) noexcept {
    (void)_tpause(kC01, cycles);
}

[[gnu::target("waitpkg")]] void watch_until(const RingConsumer<WorkRequest>& source, std::uint64_t cycles) noexcept {
    _umonitor(const_cast<std::uint8_t*>(source.next_lap()));
    if (!source.ready()) {  // else a request was written before the watch began
        (void)_umwait(kC01, cycles);
    }
}

#else

void rest_until(std::uint64_t) noexcept {
    cpu_pause();
}
void watch_until(const RingConsumer<WorkRequest>&, std::uint64_t) noexcept {
    cpu_pause();
}

#endif

}  // namespace

void HostIdleWays::monitor(const RingConsumer<WorkRequest>* only_source) noexcept {
    if (only_source != nullptr) {
        watch_until(*only_source, cycles_now() + cycles_from(kWatch));
    } else {
        rest_until(cycles_now() + cycles_from(kRest));
    }
}

void HostIdleWays::yield() noexcept {
    (void)sched_yield();
}

void HostIdleWays::wait(std::span<pollfd> fds, std::uint64_t deadline_ns, std::uint64_t most_ns) noexcept {
    if (deadline_ns == CompletionChannel::kNever && most_ns == CompletionChannel::kNever) {
        (void)::ppoll(fds.data(), fds.size(), nullptr, nullptr);
        return;
    }
    const auto now = static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
    const std::uint64_t left = std::min(deadline_ns > now ? deadline_ns - now : 0, most_ns);
    constexpr std::uint64_t kSecond = 1'000'000'000;
    const timespec limit{.tv_sec = static_cast<time_t>(left / kSecond), .tv_nsec = static_cast<long>(left % kSecond)};
    (void)::ppoll(fds.data(), fds.size(), &limit, nullptr);
}

}  // namespace pollcore
