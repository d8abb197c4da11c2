// What the provider's part of an operation costs, in cycles of the time stamp counter: alone, under a worker, and on the threads of an
// application that works without one.
#include <atomic>
#include <limits>
#include <memory>
#include <string>
#include <thread>

#include "apps/pollperf/threads.hpp"
#include "bench.hpp"
#include "connect/transitions.hpp"
#include "provider.hpp"
#include "stepped_load.hpp"
#include "timed.hpp"

namespace pollcore::bench {
namespace {

constexpr std::uint32_t kBurst = 32;
constexpr std::uint32_t kDepth = 256;
constexpr double kNotMeasured = std::numeric_limits<double>::quiet_NaN();

/// How queue pairs and CQ are made, and polled.
struct Way {
    bool domain = false;    ///< in a thread domain
    bool extended = false;  ///< polled by ibv_start_poll
    [[nodiscard]] std::string name() const {
        return std::string(extended ? "ibv_start_poll" : "ibv_poll_cq") + (domain ? ", thread domain" : ", no thread domain");
    }
};
constexpr Way kWays[] = {{false, false}, {false, true}, {true, true}};

/// Queue pairs that are each connected to themselves, on one CQ, by the verbs alone.
class Bare {
public:
    Bare(std::shared_ptr<const Provider> provider, const Way& way, std::uint32_t qps)
        : provider_(std::move(provider)), way_(way), device_(provider_->open()), pd_(device_->create_pd(), {device_.get()}) {
        if (way.domain) {
            domain_ = device_->create_thread_domain();
        }
        cq_ = {device_->create_cq({.cqe = 2 * kDepth, .domain = domain_.get(), .extended = way.extended}), {device_.get()}};
        const auto addr = reinterpret_cast<std::uintptr_t>(memory_.data());
        region_ = {device_->register_memory(pd_.get(), memory_.data(), memory_.size(), addr,
                                            IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ),
                   {device_.get()}};
        for (std::uint32_t i = 0; i < qps; ++i) {
            add_qp();
        }
    }

    [[nodiscard]] const Provider& provider() const noexcept { return *provider_; }
    [[nodiscard]] ibv_qp* qp(std::size_t index) const noexcept { return qps_[index].get(); }
    [[nodiscard]] std::size_t qps() const noexcept { return qps_.size(); }
    [[nodiscard]] DirectTarget target(std::uint32_t thread = 0) const {
        const auto addr = reinterpret_cast<std::uintptr_t>(memory_.data()) + thread * 4096;
        return {.qp = qps_.front().get(), .cq = cq_.get(), .addr = addr, .remote_addr = addr + memory_.size() / 2, .lkey = region_->lkey, .rkey = region_->rkey};
    }

    /// What pollcore reads of a completion. Returns how many there were.
    int poll(int most, ibv_wc* completions) const {
        if (!way_.extended) {
            return ibv_poll_cq(cq_.get(), most, completions);
        }
        ibv_cq_ex* cq = extended(cq_.get());
        ibv_poll_cq_attr attr{};
        if (ibv_start_poll(cq, &attr) != 0) {
            return 0;
        }
        int taken = 0;
        do {
            ibv_wc& wc = completions[taken++];
            wc.wr_id = cq->wr_id;
            wc.status = cq->status;
            wc.byte_len = ibv_wc_read_byte_len(cq);
        } while (taken < most && ibv_next_poll(cq) == 0);
        ibv_end_poll(cq);
        return taken;
    }

private:
    void add_qp() {
        QpOptions make{.pd = pd_.get(),
                       .domain = domain_.get(),
                       .send_cq = cq_.get(),
                       .recv_cq = cq_.get(),
                       .cap = {.max_send_wr = kDepth, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 64}};
        UniqueQp qp(device_->create_qp(make), {device_.get()});
        const GidEntry gid = device_->gids().front();
        QpInfo self;
        std::memcpy(self.gid.data(), gid.gid.raw, 16);
        self.qp_num = qp->qp_num;
        Transition init = to_init(1, access_flags({}));
        device_->modify(qp.get(), init.attr, init.mask);
        Transition rtr = to_rtr(self, {}, 1, static_cast<std::uint8_t>(gid.index), IBV_MTU_1024);
        device_->modify(qp.get(), rtr.attr, rtr.mask);
        Transition rts = to_rts(self.psn, {});
        device_->modify(qp.get(), rts.attr, rts.mask);
        qps_.push_back(std::move(qp));
    }

    std::shared_ptr<const Provider> provider_;
    Way way_;
    alignas(4096) std::array<std::byte, 65536> memory_{};
    std::unique_ptr<Device> device_;
    UniquePd pd_;
    std::unique_ptr<ThreadDomain> domain_;
    UniqueCq cq_;
    UniqueMr region_;
    std::vector<UniqueQp> qps_;
};

/// How a burst of 32 is posted.
struct Shape {
    std::uint32_t chain = kBurst;   ///< requests to a post, and completions to a poll
    std::uint32_t signaled = 1;     ///< one of so many
    std::uint32_t inline_bytes = 0;
    std::uint32_t qps = 1;          ///< more than one: each request to one of these at random, by itself
};

/// A burst by the verbs alone: requests are made before, and what is timed posts and polls.
class BareBurst {
public:
    BareBurst(std::shared_ptr<const Provider> provider, const Way& way, const Shape& shape) : shape_(shape), bare_(std::move(provider), way, shape.qps) {
        const DirectTarget target = bare_.target();
        for (std::uint32_t i = 0; i < kBurst; ++i) {
            sges_[i] = {.addr = target.addr + 64 * i, .length = shape.inline_bytes != 0 ? shape.inline_bytes : 64, .lkey = target.lkey};
            ibv_send_wr& request = requests_[i];
            request = {.wr_id = i, .sg_list = &sges_[i], .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE};
            request.next = (i + 1) % shape.chain == 0 || shape.qps > 1 ? nullptr : &requests_[i + 1];
            request.send_flags = ((i + 1) % shape.signaled == 0 ? IBV_SEND_SIGNALED : 0) | (shape.inline_bytes != 0 ? IBV_SEND_INLINE : 0);
            request.wr.rdma = {.remote_addr = target.remote_addr + 64 * i, .rkey = target.rkey};
        }
    }

    std::vector<double> once() {
        const auto cycles = timed<5>(
            kBurst, [&] { choose(); }, [&] { post(); }, [&] { bare_.provider().settle(used_); }, [&] { poll(); },
            [&] {
                for (int i = 0; i < kLooks; ++i) {
                    if (bare_.poll(kBurst, completions_.data()) != 0) {
                        throw std::runtime_error("more has completed than was posted");
                    }
                }
            });
        return {cycles[1], cycles[3], cycles[1] + cycles[3], cycles[4] * kBurst / kLooks};
    }

private:
    static constexpr int kLooks = 64;  // together: one is too short for the time stamp counter

    void choose() {
        for (ibv_qp*& qp : used_) {
            random_ ^= random_ << 13;
            random_ ^= random_ >> 17;
            random_ ^= random_ << 5;
            qp = bare_.qp(random_ % bare_.qps());
        }
    }
    [[gnu::noinline]] void post() {
        ibv_send_wr* bad = nullptr;
        const std::uint32_t chain = shape_.qps > 1 ? 1 : shape_.chain;
        for (std::uint32_t i = 0; i < kBurst; i += chain) {
            if (ibv_post_send(used_[i], &requests_[i], &bad) != 0) {
                throw std::runtime_error("a chain was refused");
            }
        }
    }
    [[gnu::noinline]] void poll() {
        const auto at_a_time = static_cast<int>(shape_.chain);
        for (int left = kBurst / static_cast<int>(shape_.signaled); left > 0;) {
            const int n = bare_.poll(std::min(at_a_time, left), completions_.data());
            if (n <= 0 || completions_[0].status != IBV_WC_SUCCESS) {
                throw std::runtime_error("a write has failed, or has not completed");
            }
            left -= n;
        }
    }

    Shape shape_;
    Bare bare_;
    std::array<ibv_sge, kBurst> sges_{};
    std::array<ibv_send_wr, kBurst> requests_{};
    std::array<ibv_wc, kBurst> completions_{};
    std::array<ibv_qp*, kBurst> used_{};
    std::uint32_t random_ = 1;
};

std::vector<Measurement> alone(const std::shared_ptr<const Provider>& provider) {
    std::vector<Measurement> all;
    const auto add = [&](const Way& way, const std::string& what, const Shape& shape) {
        all.push_back({.table = "provider alone, cycles per operation: " + provider->name(),
                       .row = way.name() + ": " + what,
                       .columns = {"post", "poll", "both", "look at an empty CQ"},
                       .once = [made = std::shared_ptr<BareBurst>(), provider, way, shape]() mutable {
                           if (made == nullptr) {
                               made = std::make_shared<BareBurst>(provider, way, shape);
                           }
                           return made->once();
                       }});
    };
    for (const Way& way : kWays) {
        for (const std::uint32_t chain : {32, 16, 8, 4, 2, 1}) {
            add(way, "chains of " + std::to_string(chain), {.chain = chain});
        }
        add(way, "chains of 32, one signaled", {.signaled = kBurst});
        add(way, "chains of 32, 16 bytes inline", {.inline_bytes = 16});
        add(way, "chains of 32, 64 bytes inline", {.inline_bytes = 64});
        if (way.domain == way.extended) {
            for (const std::uint32_t qps : {16, 256, 1024}) {
                add(way, "singly to " + std::to_string(qps) + " QPs at random", {.qps = qps});
            }
        }
    }
    return all;
}

// ---- Under a worker ----

std::vector<double> worker_cycles(SteppedLoad& load) {
    const auto parts = timed<6>(
        load.load().burst, [&] { load.prepare(); }, [&] { load.submit(); }, [&] { load.step(); }, [&] { load.poll(); }, [&] { load.check(); },
        [&] { load.settle(); });
    return {parts[2], parts[1] + parts[3]};
}

std::vector<Measurement> under_a_worker(const std::shared_ptr<const Provider>& provider) {
    std::vector<Measurement> all;
    const auto add = [&](const std::string& what, Load load) {
        load.provider = provider;
        all.push_back({.table = "worker with its provider, cycles per operation on one CPU: " + provider->name(),
                       .row = what + (load.extended ? ", ibv_start_poll" : ", ibv_poll_cq"),
                       .columns = {"worker", "application: submit and poll"},
                       .once = [made = std::shared_ptr<SteppedLoad>(), load]() mutable {
                           if (made == nullptr) {
                               made = std::make_shared<SteppedLoad>(load);
                           }
                           return worker_cycles(*made);
                       }});
    };
    for (const bool extended : {false, true}) {
        for (const std::uint32_t burst : {1, 4, 16, 32}) {
            add("bursts of " + std::to_string(burst), {.burst = burst, .extended = extended});
        }
        add("bursts of 32, four idle sessions, two idle CQs", {.idle_sessions = 4, .idle_cqs = 2, .extended = extended});
        for (const std::uint32_t qps : {16, 256, 1024}) {
            add(std::to_string(qps) + " QPs at random", {.qps = qps, .extended = extended});
        }
    }
    return all;
}

// ---- On the application's own threads ----

std::vector<double> pollcore_cycles(SteppedLoad& load) {
    const auto parts = timed<6>(
        kBurst, [&] { load.prepare(); }, [&] { load.submit(); }, [&] { load.step(); }, [&] { load.poll(); }, [&] { load.check(); },
        [&] { load.settle(); });
    return {parts[1], parts[3], parts[1] + parts[3]};
}

std::vector<double> own_thread_cycles(const Bare& bare) {
    DirectLoad load(kBurst, bare.target());
    ibv_qp* const used[] = {bare.qp(0)};
    const auto parts = timed<3>(
        kBurst,
        [&] {
            load.make();
            load.post();
        },
        [&] { bare.provider().settle(used); }, [&] { load.poll(); });
    return {parts[0], parts[2], parts[0] + parts[2]};
}

/// Threads that wait for each other and stay awake: who sleeps finds cold caches.
class Together {
public:
    explicit Together(std::uint32_t threads) : threads_(threads) {}
    void wait() noexcept {
        const std::uint32_t turn = turn_.load(std::memory_order_acquire);
        if (waiting_.fetch_add(1, std::memory_order_acq_rel) + 1 == threads_) {
            waiting_.store(0, std::memory_order_relaxed);
            turn_.store(turn + 1, std::memory_order_release);
            return;
        }
        while (turn_.load(std::memory_order_acquire) == turn) {
        }
    }

private:
    const std::uint32_t threads_;
    alignas(64) std::atomic<std::uint32_t> waiting_{0};
    alignas(64) std::atomic<std::uint32_t> turn_{0};
};

/// Threads on CPUs of their own that post to one queue pair and poll one CQ, by the provider's locks. What each takes is its own part.
std::vector<double> shared_cycles(const Bare& bare, const std::vector<std::uint32_t>& cpus) {
    const auto threads = static_cast<std::uint32_t>(cpus.size());
    constexpr int kRoundsOfThreads = 600;
    constexpr int kWarmUp = 100;
    Together together(threads);
    alignas(64) std::atomic<std::uint32_t> left{0};
    std::vector<std::vector<double>> posts(cpus.size());
    std::vector<std::vector<double>> polls(cpus.size());
    const double nothing = stamp_cost();
    const auto work = [&](std::size_t index) {
        pin(cpus[index]);
        DirectLoad load(kBurst, bare.target(static_cast<std::uint32_t>(index)));
        std::array<ibv_wc, kBurst> completions;
        ibv_qp* const used[] = {bare.qp(0)};
        for (int round = 0; round < kWarmUp + kRoundsOfThreads; ++round) {
            if (index == 0) {
                left.store(threads * kBurst);
            }
            together.wait();
            const std::uint64_t before_post = perf::stamp();
            load.make();
            load.post();
            const std::uint64_t after_post = perf::stamp();
            together.wait();
            if (index == 0) {
                bare.provider().settle(used);
            }
            together.wait();
            const std::uint64_t before_poll = perf::stamp();
            while (left.load(std::memory_order_relaxed) > 0) {
                const int n = bare.poll(kBurst, completions.data());
                left.fetch_sub(static_cast<std::uint32_t>(n), std::memory_order_relaxed);
            }
            const std::uint64_t after_poll = perf::stamp();
            if (round >= kWarmUp) {
                posts[index].push_back((static_cast<double>(after_post - before_post) - nothing) / kBurst);
                // Who polls while another holds the lock pays, too, so the time of all is shared by what all have found.
                polls[index].push_back((static_cast<double>(after_poll - before_poll) - nothing) / kBurst);
            }
            together.wait();  // nobody looks at `left` any more
        }
    };
    std::vector<std::thread> others;
    for (std::size_t i = 1; i < cpus.size(); ++i) {
        others.emplace_back(work, i);
    }
    work(0);
    for (std::thread& other : others) {
        other.join();
    }
    double post = 0;
    double poll = 0;
    for (std::size_t i = 0; i < cpus.size(); ++i) {
        post += median(posts[i]) / static_cast<double>(cpus.size());
        poll += median(polls[i]) / static_cast<double>(cpus.size());
    }
    return {post, poll, post + poll};
}

std::vector<Measurement> on_own_threads(const std::shared_ptr<const Provider>& provider, const Setting& setting) {
    std::vector<Measurement> all;
    const auto add = [&](std::string row, std::function<std::vector<double>()> once) {
        all.push_back({.table = "what an application's thread pays, cycles per operation in bursts of 32: " + provider->name(),
                       .row = std::move(row),
                       .columns = {"submit, or make and post", "poll", "both"},
                       .once = std::move(once)});
    };
    add("pollcore: a session, the worker does the rest", [made = std::shared_ptr<SteppedLoad>(), provider]() mutable {
        if (made == nullptr) {
            made = std::make_shared<SteppedLoad>(Load{.burst = kBurst, .provider = provider});
        }
        return pollcore_cycles(*made);
    });
    const auto bare = [provider](const Way& way) { return std::make_unique<Bare>(provider, way, 1); };
    add("verbs: a queue pair of its own", [made = std::shared_ptr<Bare>(), bare]() mutable {
        if (made == nullptr) {
            made = bare({});
        }
        return own_thread_cycles(*made);
    });
    const std::uint32_t online = perf::this_machine().cpus_online;
    for (const std::uint32_t threads : {2u, 4u, 8u}) {
        std::vector<std::uint32_t> cpus{setting.cpus.here, setting.cpus.there};
        for (std::uint32_t cpu = 0; cpus.size() < threads && cpu < online; ++cpu) {
            if (cpu != setting.cpus.here && cpu != setting.cpus.there) {
                cpus.push_back(cpu);
            }
        }
        add("verbs: " + std::to_string(threads) + " threads share a queue pair by its lock", [made = std::shared_ptr<Bare>(), bare, cpus, threads]() mutable {
            if (cpus.size() < threads) {
                return std::vector<double>(3, kNotMeasured);
            }
            if (made == nullptr) {
                made = bare({});
            }
            return shared_cycles(*made, cpus);
        });
    }
    return all;
}

}  // namespace

std::vector<Measurement> provider_costs(const Setting& setting) {
    const auto provider = std::make_shared<const Provider>(setting.device);
    std::vector<Measurement> all = alone(provider);
    for (auto& more : {under_a_worker(provider), on_own_threads(provider, setting)}) {
        all.insert(all.end(), more.begin(), more.end());
    }
    return all;
}

}  // namespace pollcore::bench
