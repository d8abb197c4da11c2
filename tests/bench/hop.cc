// The way of an operation through a running worker on another CPU, as a program has it: one in flight, and many.
#include <array>
#include <deque>
#include <memory>
#include <stdexcept>
#include <string>

#include "apps/pollperf/cycle_stamp.hpp"
#include "apps/pollperf/statistics.hpp"
#include "base/clock.hpp"
#include "bench.hpp"
#include "control/platform.hpp"
#include "device/open_device.hpp"
#include "instant_device.hpp"
#include "pollcore/runtime.hpp"
#include "pollcore/session.hpp"
#include "rings.hpp"

namespace pollcore::bench {
namespace {

/// This machine, with devices that complete at once.
class InstantPlatform final : public Platform {
public:
    void prepare(const Config& config, RuntimeReport& report) override { host_->prepare(config, report); }
    std::unique_ptr<Device> open_device(const DeviceConfig& config) override {
        std::unique_ptr<Device> device = host_->open_device(config);
        make_instant(*device->context());
        return device;
    }
    HostMemory allocate(std::size_t bytes, int numa_node, const std::string& what_for) override {
        return host_->allocate(bytes, numa_node, what_for);
    }
    std::unique_ptr<Executor> start_executor(const std::string& name) override { return host_->start_executor(name); }
    std::unique_ptr<EventLoop> start_event_loop(Executor& executor, std::chrono::milliseconds period,
                                                std::function<void()> tick) override {
        return host_->start_event_loop(executor, period, std::move(tick));
    }
    std::unique_ptr<WorkerThread> start_worker(const WorkerConfig& config, Worker& worker) override {
        return host_->start_worker(config, worker);
    }
    Clock::time_point now() override { return host_->now(); }
    std::uint64_t cycles() override { return host_->cycles(); }
    auto cycles_function() -> std::uint64_t (*)() noexcept override { return host_->cycles_function(); }
    std::uint64_t cycles_from(std::chrono::nanoseconds duration) override { return host_->cycles_from(duration); }
    void sleep(std::chrono::microseconds duration) override { host_->sleep(duration); }
    bool wait(std::unique_lock<std::mutex>& lock, std::condition_variable& changed, std::chrono::milliseconds timeout,
              const std::function<bool()>& done) override {
        return host_->wait(lock, changed, timeout, done);
    }
    std::uint32_t random() override { return host_->random(); }

private:
    std::unique_ptr<Platform> host_ = host_platform();
};

/// A runtime with one worker, a session and a queue pair.
class Running {
public:
    explicit Running(const Cpus& cpus)
        : runtime_(config(cpus), std::make_unique<InstantPlatform>()),
          session_(runtime_.open_session({.submission_slots = 4096, .completion_slots = 4096})),
          memory_(runtime_.allocate(4096)),
          qp_(runtime_.create_queue_pair({.shares = {{.session = &session_, .send_depth = 2048}}})) {
        qp_.connect(qp_.info());
    }

    [[nodiscard]] Session& session() noexcept { return session_; }
    [[nodiscard]] WorkRequest request(std::uint64_t tag) const noexcept {
        return {.tag = tag,
                .sge = {memory_.addr(), 8, memory_.lkey()},
                .remote_addr = memory_.addr() + 64,
                .rkey = memory_.rkey(),
                .qp = qp_.handle(),
                .opcode = Opcode::rdma_write,
                .flags = kSignaled,
                .num_sge = 1};
    }

private:
    static Config config(const Cpus& cpus) {
        Config config;
        config.devices.push_back({.name = "net0"});
        config.workers.push_back({.name = "bench", .core = cpus.there, .poll = PollVerbs::plain});
        config.log_level = LogLevel::error;  // that there are no huge pages is said in the end
        return config;
    }

    Runtime runtime_;
    Session session_;
    MemoryRegion memory_;
    QueuePair qp_;
};

std::vector<double> one_in_flight(const Setting& setting) {
    Running running(setting.cpus);
    Session& session = running.session();
    WorkRequest request = running.request(0);
    std::vector<std::uint64_t> samples;
    std::vector<std::uint64_t> groups;
    constexpr int kGroup = 16;
    Completion completion;
    const std::uint64_t until = perf::stamp() + cycles_from(setting.time);
    std::uint64_t began = perf::stamp();
    std::uint64_t group = began;
    for (std::uint64_t i = 0; began < until; ++i) {
        request.tag = i;
        if (session.try_submit(request) != Refusal::none) {
            throw std::runtime_error("a request was refused with nothing in flight");
        }
        while (session.poll({&completion, 1}) == 0) {
        }
        if (completion.tag != i || !completion.ok()) {
            throw std::runtime_error("something else completed than what was submitted");
        }
        const std::uint64_t now = perf::stamp();
        if (i >= 1000) {
            samples.push_back(now - began);
            if (i % kGroup == 0) {
                groups.push_back(now - group);
            }
        }
        if (i % kGroup == 0) {
            group = now;
        }
        began = now;
    }
    groups.erase(groups.begin());
    return {perf::summarize(std::move(groups), 1 / (cycles_per_ns() * kGroup)).typical,
            perf::summarize(std::move(samples), 1 / cycles_per_ns()).p99};
}

constexpr std::size_t kBurst = 32;
using Burst = std::array<WorkRequest, kBurst>;

std::size_t at_once(Session& session, const Burst& requests) noexcept { return session.try_submit(requests).accepted; }
std::size_t one_by_one(Session& session, const Burst& requests) noexcept {
    std::size_t accepted = 0;
    while (accepted < kBurst && session.try_submit(requests[accepted]) == Refusal::none) {
        ++accepted;
    }
    return accepted;
}

/// As many in flight as there is room for: cycles per operation of the whole, and what of them the application's
/// thread spent in the two calls when these did something.
template <class Submit>
std::vector<double> many_in_flight(const Setting& setting, Submit submit) {
    constexpr std::uint64_t kInFlight = 16 * kBurst;
    Running running(setting.cpus);
    Session& session = running.session();
    Burst requests;
    requests.fill(running.request(0));
    std::array<Completion, kBurst> completions;
    std::uint64_t submitted = 0;
    std::uint64_t completed = 0;
    std::uint64_t submitting = 0;
    std::uint64_t polling = 0;
    const std::uint64_t began = cycles_now();
    const std::uint64_t until = began + cycles_from(setting.time);
    std::uint64_t now = began;
    while (now < until || completed < submitted) {
        if (now < until && submitted - completed < kInFlight) {
            for (WorkRequest& request : requests) {
                request.tag = submitted++;
            }
            const std::uint64_t before = cycles_now();
            const std::size_t accepted = submit(session, requests);
            submitting += cycles_now() - before;
            if (accepted != kBurst) {
                throw std::runtime_error("a request was refused where there is room");
            }
        }
        const std::uint64_t before = cycles_now();
        const std::size_t n = session.poll(completions);
        now = cycles_now();
        if (n > 0) {
            polling += now - before;
        }
        for (std::size_t i = 0; i < n; ++i) {
            if (completions[i].tag != completed++ || !completions[i].ok()) {
                throw std::runtime_error("something else completed than what was submitted");
            }
        }
    }
    const auto per_operation = [&](std::uint64_t cycles) { return static_cast<double>(cycles) / static_cast<double>(completed); };
    return {per_operation(now - began), per_operation(submitting), per_operation(polling), per_operation(submitting + polling)};
}

/// The same with nothing but plain stores and loads of as many bytes each way, told of by an index once in 256: no runtime can be cheaper.
std::vector<double> exchanged(const Setting& setting) {
    constexpr std::uint64_t kInFlight = 16 * kBurst;
    using Down = StreamLimit<sizeof(WorkRequest), 4096>;
    using Up = StreamLimit<sizeof(Completion), 4096>;
    auto* const memory = static_cast<std::byte*>(arena(1u << 20));
    Down down(memory);
    Up up(memory + (1u << 19));
    alignas(2 * kCacheLine) std::atomic<bool> over{false};
    std::vector<double> result;
    run_pair(
        setting.cpus,
        [&] {
            Down::Writer requests(down);
            Up::Reader completions(up);
            std::uint64_t submitted = 0;
            std::uint64_t completed = 0;
            std::uint64_t submitting = 0;
            std::uint64_t polling = 0;
            std::uint64_t wrong = 0;
            const std::uint64_t began = cycles_now();
            const std::uint64_t until = began + cycles_from(setting.time);
            std::uint64_t now = began;
            while (now < until) {
                if (submitted - completed < kInFlight) {
                    const std::uint64_t before = cycles_now();
                    submitted += requests.push<kBurst>(submitted);
                    submitting += cycles_now() - before;
                }
                const std::uint64_t before = cycles_now();
                const std::size_t n = completions.pop<kBurst>(completed, wrong);
                now = cycles_now();
                polling += n > 0 ? now - before : 0;
                completed += n;
            }
            over.store(true, std::memory_order_release);
            if (wrong != 0 || completed == 0) {
                throw std::runtime_error("the limit delivered something that was not written");
            }
            const auto per_operation = [&](std::uint64_t cycles) { return static_cast<double>(cycles) / static_cast<double>(completed); };
            result = {per_operation(now - began), per_operation(submitting), per_operation(polling), per_operation(submitting + polling)};
        },
        [&] {
            Down::Reader requests(down);
            Up::Writer completions(up);
            std::uint64_t taken = 0;
            std::uint64_t answered = 0;
            std::uint64_t wrong = 0;
            while (!over.load(std::memory_order_acquire)) {
                taken += requests.pop<kBurst>(taken, wrong);
                if (answered < taken) {
                    answered += completions.push<kBurst>(answered);
                }
            }
        });
    return result;
}

}  // namespace

std::vector<Measurement> hops(const Setting& setting) {
    return {{.table = "hop: one operation in flight through a worker on another CPU, device that completes at once, ns",
             .row = "pollcore",
             .columns = {"median", "p99"},
             .once = [setting] { return one_in_flight(setting); }}};
}

namespace {

Measurement many(const char* row, std::function<std::vector<double>()> once) {
    return {.table = "512 in flight through a worker on another CPU, device that completes at once, cycles per operation",
            .row = row,
            .columns = {"all", "application: submit", "application: poll", "application: both"},
            .once = std::move(once)};
}

}  // namespace

std::vector<Measurement> bursts(const Setting& setting) {
    return {many("limit: 64 B there and 32 B back", [setting] { return exchanged(setting); }),
            many("submitted in bursts of 32", [setting] { return many_in_flight(setting, at_once); })};
}

std::vector<Measurement> singles(const Setting& setting) {
    return {many("submitted one by one", [setting] { return many_in_flight(setting, one_by_one); })};
}

}  // namespace pollcore::bench
