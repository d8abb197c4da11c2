#include "wake.hpp"

#include <sched.h>
#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <functional>
#include <thread>

#include <fmt/format.h>

#include "base/cpu_pause.hpp"
#include "base/event_fd.hpp"
#include "base/log.hpp"
#include "cycle_stamp.hpp"
#include "device/device.hpp"
#include "pollcore/runtime.hpp"
#include "pollperf/measure/workload.hpp"

namespace pollcore::perf {
namespace {

using Clock = std::chrono::steady_clock;
using Samples = std::vector<std::uint64_t>;

constexpr std::chrono::seconds kPatience{10};
constexpr std::chrono::milliseconds kIdleTime{200};  // duration of the measurement of an idle worker's CPU time
constexpr std::chrono::milliseconds kLoadTime{100};  // duration of the measurement of full load
constexpr std::uint32_t kBytes = 8;
constexpr std::uint32_t kInFlight = 128;

// A thread that sleeps in epoll_wait on an eventfd, in place of a worker or an application.
class BareSleeper {
public:
    BareSleeper() : event_(make_event_fd("a measurement")), epoll_(::epoll_create1(EPOLL_CLOEXEC)) {
        epoll_event interest{};
        interest.events = EPOLLIN;
        if (!epoll_.valid() || ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, event_.get(), &interest) != 0) {
            throw Error(errno, "cannot wait for an eventfd by epoll");
        }
    }
    void wake() noexcept { signal_event(event_.get()); }
    void sleep() noexcept {
        epoll_event event{};
        while (::epoll_wait(epoll_.get(), &event, 1, -1) != 1) {
        }
        (void)drain_event(event_.get());
    }

private:
    UniqueFd event_;
    UniqueFd epoll_;
};

// wait() returns when `gap` has passed since its last return. It spins, because the wake-up of a sleeping thread would
// count as part of the measured operation.
class Ticks {
public:
    explicit Ticks(std::chrono::microseconds gap) : gap_(gap), next_(Clock::now() + gap) {}
    void wait() {
        while (Clock::now() < next_) {
            cpu_pause();
        }
        next_ = Clock::now() + gap_;
    }

private:
    std::chrono::microseconds gap_;
    Clock::time_point next_;
};

template <class Done>
void spin_until(const char* what, Done&& done) {
    const auto deadline = Clock::now() + kPatience;
    for (std::uint32_t spins = 1; !done(); ++spins) {
        if (spins % (1u << 14) == 0 && Clock::now() >= deadline) {
            throw MeasurementError(fmt::format("{} did not come within {} s", what, kPatience.count()));
        }
    }
}

// A runtime with one worker, and two queue pairs that are connected with each other.
struct Lines {
    Lines(const WakeOptions& options, const IdleLadder& idle, bool receiver_sleeps)
        : runtime(config_of(options, idle)),
          session(runtime.open_session()),
          receiver(runtime.open_session({.events = receiver_sleeps, .wait_spin = std::chrono::nanoseconds(0)})),
          memory(runtime.allocate(4096, {.remote_write = true})),
          a(runtime.create_queue_pair({.shares = {{.session = &session, .send_depth = kInFlight}}, .recv_depth = 1})),
          b(runtime.create_queue_pair({.shares = {{.session = &receiver, .send_depth = 1}},
                                       .recv_depth = 16,
                                       .remote_access = {.write = true}})) {
        const QpInfo info = a.info();
        a.connect(b.info());
        b.connect(info);
    }
    static Config config_of(const WakeOptions& options, const IdleLadder& idle) {
        Config config;
        config.devices = {options.device};
        config.workers = {{.name = "worker0", .core = options.worker_core, .idle = idle}};
        config.share_cores = options.share_core;
        config.log_level = LogLevel::error;
        return config;
    }
    [[nodiscard]] WorkRequest request(const QueuePair& qp, Opcode opcode) const {
        return {.sge = {memory.addr(), kBytes, memory.lkey()},
                .remote_addr = memory.addr() + 2048,
                .rkey = memory.rkey(),
                .qp = qp.handle(),
                .opcode = opcode,
                .flags = is_recv(opcode) ? std::uint8_t{0} : std::uint8_t{kSignaled},
                .num_sge = 1};
    }
    void submit(Session& by, const QueuePair& qp, Opcode opcode) const {
        if (const Refusal refusal = by.try_submit(request(qp, opcode)); refusal != Refusal::none) {
            throw MeasurementError(fmt::format("a request was refused: {}", refusal_name(refusal)));
        }
    }
    static void take(Session& by, const char* what) {
        Completion completion;
        spin_until(what, [&] { return by.poll({&completion, 1}) == 1; });
        if (!completion.ok()) {
            throw MeasurementError(fmt::format("{} ended with {}", what, status_name(completion.status)));
        }
    }

    Runtime runtime;
    Session session;
    Session receiver;
    MemoryRegion memory;
    QueuePair a;
    QueuePair b;
};

/// Runs `what`. Returns the share of a core that the worker's thread used in that time.
template <class What>
double cpu_share(const Runtime& runtime, What&& what) {
    const int thread = runtime.worker_thread_id(0);
    const std::uint64_t before = cpu_time_ns(thread);
    const auto began = Clock::now();
    what();
    const auto passed = static_cast<double>(std::chrono::nanoseconds(Clock::now() - began).count());
    return static_cast<double>(cpu_time_ns(thread) - before) / passed;
}

// ---- A worker waits, and this thread spins ----

struct OfWorker {
    Samples samples;
    double cpu = 0;
    double cpu_idle = 0;
    std::vector<double> rates;
};

/// Operations per second with as many operations in flight as possible.
double full_load(Lines& lines) {
    const WorkRequest request = lines.request(lines.a, Opcode::rdma_write);
    std::array<Completion, 32> completions;
    std::uint64_t done = 0;
    std::uint64_t submitted = 0;
    const auto began = Clock::now();
    auto now = began;
    for (std::uint32_t turn = 1; now - began < kLoadTime; ++turn) {
        while (lines.session.try_submit(request) == Refusal::none) {
            ++submitted;
        }
        done += lines.session.poll(completions);
        if (turn % 64 == 0) {
            now = Clock::now();
        }
    }
    const double rate = static_cast<double>(done) / std::chrono::duration<double>(now - began).count();
    spin_until("the last of many writes", [&] { return (done += lines.session.poll(completions)) == submitted; });
    return rate;
}

void measure_worker(const WakeOptions& options, const IdleLadder& idle, std::uint32_t n, OfWorker& all) {
    Lines lines(options, idle, false);
    const double share = cpu_share(lines.runtime, [&] {
        Ticks ticks(options.gap);
        for (std::uint32_t i = 0; i < n; ++i) {
            ticks.wait();
            const std::uint64_t began = stamp();
            lines.submit(lines.session, lines.a, Opcode::rdma_write);
            Lines::take(lines.session, "a write");
            all.samples.push_back(stamp() - began);
        }
    });
    all.cpu += share / options.rounds;
    all.rates.push_back(full_load(lines));
    all.cpu_idle += cpu_share(lines.runtime, [] { std::this_thread::sleep_for(kIdleTime); }) / options.rounds;
}

void measure_bare_worker(const WakeOptions& options, std::uint32_t n, Samples& samples) {
    BareSleeper sleeper;
    alignas(kCacheLine) std::atomic<std::uint32_t> answered{0};
    std::thread in_its_place([&] {
        const PinnedScope pinned(options.worker_core);
        for (std::uint32_t i = 1; i <= n; ++i) {
            sleeper.sleep();
            answered.store(i, std::memory_order_release);
        }
    });
    Ticks ticks(options.gap);
    for (std::uint32_t i = 1; i <= n; ++i) {
        ticks.wait();
        const std::uint64_t began = stamp();
        sleeper.wake();
        while (answered.load(std::memory_order_acquire) != i) {
        }
        samples.push_back(stamp() - began);
    }
    in_its_place.join();
}

// ---- An application's thread waits, and the worker spins ----

// Yields the core until `word` is no longer `not_this`. Returns false after kPatience. Does not sleep, because the core
// could then become idle just before the wake-up, and a core that leaves idle adds more time than is measured.
[[nodiscard]] bool give_core_until(const std::atomic<std::uint32_t>& word, std::uint32_t not_this) noexcept {
    const auto deadline = Clock::now() + kPatience;
    while (word.load() == not_this) {
        if (Clock::now() >= deadline) {
            return false;
        }
        (void)sched_yield();
    }
    return true;
}

// The submitting thread and the waiting thread both run on the application's core. The submitting thread yields the
// core to the waiting thread.
void measure_application(const WakeOptions& options, std::uint32_t n, Samples& samples) {
    Lines lines(options, IdlePolicy::spin, true);
    std::atomic<std::uint64_t> began{0};
    std::atomic<std::uint32_t> answered{0};
    std::string failure;
    std::thread application([&] {
        const PinnedScope pinned(options.core);
        try {
            for (std::uint32_t i = 1; i <= n; ++i) {
                lines.submit(lines.receiver, lines.b, Opcode::recv);
                answered.store(i);  // ready for the i-th message
                answered.notify_one();
                // No time limit, as in the bare measurement, because setting a timer takes some microseconds in a
                // virtual machine.
                (void)lines.receiver.wait(std::chrono::nanoseconds::max());
                samples.push_back(stamp() - began.load());
                Lines::take(lines.receiver, "a message");
            }
        } catch (const std::exception& error) {
            failure = error.what();
        }
        answered.store(~std::uint32_t{0});
        answered.notify_one();
    });
    for (std::uint32_t i = 1; i <= n && failure.empty(); ++i) {
        answered.wait(i - 1);
        std::this_thread::sleep_for(options.gap);
        began.store(stamp());
        lines.submit(lines.session, lines.a, Opcode::send);
        if (!give_core_until(answered, i)) {
            lines.runtime.stop();  // ends the other thread's wait
            application.join();
            throw MeasurementError(fmt::format("a message did not come within {} s", kPatience.count()));
        }
        Lines::take(lines.session, "the end of a send");
    }
    application.join();
    if (!failure.empty()) {
        throw MeasurementError(failure);
    }
}

void measure_bare_application(const WakeOptions& options, std::uint32_t n, Samples& samples) {
    BareSleeper sleeper;
    std::atomic<std::uint64_t> began{0};
    std::atomic<std::uint32_t> answered{0};
    alignas(kCacheLine) std::atomic<std::uint32_t> asked{0};
    std::thread application([&] {
        const PinnedScope pinned(options.core);
        for (std::uint32_t i = 1; i <= n; ++i) {
            answered.store(i);
            answered.notify_one();
            sleeper.sleep();
            samples.push_back(stamp() - began.load());
        }
        answered.store(n + 1);
        answered.notify_one();
    });
    std::thread in_workers_place([&] {
        const PinnedScope pinned(options.worker_core);
        for (std::uint32_t i = 1; i <= n; ++i) {
            while (asked.load(std::memory_order_acquire) != i) {
            }
            sleeper.wake();
        }
    });
    for (std::uint32_t i = 1; i <= n; ++i) {
        answered.wait(i - 1);
        std::this_thread::sleep_for(options.gap);
        began.store(stamp());
        asked.store(i, std::memory_order_release);
        while (!give_core_until(answered, i)) {  // waits without a limit, because an eventfd loses no wake-up
        }
    }
    application.join();
    in_workers_place.join();
}

constexpr const char* kBare = "eventfd and epoll, no runtime";

}  // namespace

WakeResults run_wake(const WakeOptions& options) {
    WakeResults results;
    results.machine = this_machine();
    results.device = options.device.name;
    const std::uint64_t steal_before = steal_ms();
    const double ns_per_cycle = 1 / cycles_per_ns();
    std::vector<OfWorker> workers(options.ladders.size());
    Samples bare_worker;
    Samples application;
    Samples bare_application;
    const PinnedScope pinned(options.core);
    const std::uint32_t n = options.iterations / options.rounds;
    for (std::uint32_t round = 0; round < options.rounds; ++round) {
        for (std::size_t i = 0; i < workers.size(); ++i) {
            measure_worker(options, options.ladders[i], n, workers[i]);
        }
        measure_bare_worker(options, n, bare_worker);
        measure_application(options, n, application);
        measure_bare_application(options, n, bare_application);
    }
    for (std::size_t i = 0; i < workers.size(); ++i) {
        std::vector<double>& rates = workers[i].rates;
        std::nth_element(rates.begin(), rates.begin() + static_cast<std::ptrdiff_t>(rates.size() / 2), rates.end());
        results.workers.push_back({.how = options.ladders[i].describe(),
                                   .latency = summarize(std::move(workers[i].samples), ns_per_cycle),
                                   .cpu = workers[i].cpu,
                                   .cpu_idle = workers[i].cpu_idle,
                                   .full_load = rates[rates.size() / 2]});
    }
    results.bare_worker = {.how = kBare, .latency = summarize(std::move(bare_worker), ns_per_cycle)};
    results.application = {.how = "Session::wait, asleep at once",
                           .latency = summarize(std::move(application), ns_per_cycle)};
    results.bare_application = {.how = kBare, .latency = summarize(std::move(bare_application), ns_per_cycle)};
    results.steal_ms = steal_ms() - steal_before;
    return results;
}

}  // namespace pollcore::perf
