// A worker, sessions and queue pairs on a device that completes at once, all run by one thread. Shows the cost of an
// operation, and of its parts, without the time for cache lines from another CPU.
//
// Thread safety: one thread.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <vector>

#include "instant_device.hpp"
#include "provider.hpp"
#include "stepped_world.hpp"

namespace pollcore::bench {

struct Load {
    std::uint32_t burst = 32;
    std::uint32_t qps = 1;
    std::uint32_t sessions = 1;       ///< sessions take turns, with one burst each
    std::uint32_t cqs = 1;            ///< queue pairs are assigned to the CQs in turn
    std::uint32_t idle_sessions = 0;  ///< further sessions that submit no requests
    std::uint32_t idle_cqs = 0;
    bool software = false;       ///< use the unchanged software device, not the device that completes at once
    bool extended = false;       ///< CQs are polled by ibv_start_poll; not on the device that completes at once
    bool provider_lines = true;  ///< false: the worker does not prefetch the provider's lines before a burst
    bool coalesce_signals = false;
    bool sleeps = false;       ///< the worker may sleep; not on the device that completes at once
    bool shared_cqs = false;   ///< as those of an attached process with a context of its own
    bool invalidates = false;  ///< the requests are sends that invalidate a key
    /// If not 0, every second request has an inline payload of so many bytes.
    std::uint32_t inline_bytes = 0;
    /// The verbs device to use; null means a software device. A verbs device completes a burst between two steps, so
    /// each step posts a burst and finds the completions of the previous burst.
    std::shared_ptr<const Provider> provider{};
};

class SteppedLoad {
public:
    explicit SteppedLoad(const Load& load) : load_(load), world_(options(load)) {
        if (!load.software && load.provider == nullptr) {
            make_instant(*world_.device->context());
        }
        region_ = &world_.register_memory(memory_.data(), memory_.size());
        for (std::uint32_t i = 0; i < load.sessions + load.idle_sessions; ++i) {
            world_.add_session();
        }
        for (std::uint32_t i = 0; i < load.cqs + load.idle_cqs; ++i) {
            world_.add_cq();
        }
        std::vector<ShareOptions> shares;
        for (std::uint32_t session = 0; session < load.sessions; ++session) {
            shares.push_back({session, kDepth, 1});
        }
        for (std::uint32_t i = 0; i < load.qps; ++i) {
            testing::SteppedWorld::Qp& qp = world_.add_qp({.shares = shares,
                                                           .sges_max = 1,
                                                           .send_cq = i % load.cqs,
                                                           .recv_cq = i % load.cqs,
                                                           .coalesce_signals = load.coalesce_signals});
            world_.connect(qp, qp);
            qps_.push_back(&qp);
        }
        requests_.resize(load.burst);
        completions_.resize(load.burst);
        if (load.provider != nullptr) {
            prepare();
            submit();
            step();
            settle();
            behind_ = load.burst;
        }
    }

    [[nodiscard]] const Load& load() const noexcept { return load_; }

    /// Makes the requests of the next burst, for the next session and random queue pairs. No figure includes this cost.
    void prepare() {
        session_ = (session_ + 1) % load_.sessions;
        used_.clear();
        for (WorkRequest& request : requests_) {
            testing::SteppedWorld::Qp& qp = *qps_[random() % qps_.size()];
            request = testing::SteppedWorld::write(tag_++, qp, *region_);
            if (load_.invalidates) {
                request.opcode = Opcode::send_with_inv;
                request.invalidate_rkey = 1;
            }
            if (load_.inline_bytes != 0 && tag_ % 2 == 0) {
                request = request.with_inline(std::span(memory_).first(load_.inline_bytes));
            }
            used_.push_back(qp.qp.get());
        }
    }
    /// Waits until the provider's device has carried out all posted requests.
    void settle() const { load_.provider->settle(used_); }
    [[gnu::noinline]] void submit() {
        if (world_.session(session_).try_submit(requests_).accepted != requests_.size()) {
            throw std::runtime_error("a burst was refused");
        }
    }
    [[gnu::noinline]] void step() { (void)world_.worker.step(world_.now); }
    /// A step of a spinning worker that finds no work.
    [[gnu::noinline]] void look() {
        if (world_.worker.step(world_.now, kLooks) != 0) {
            throw std::runtime_error("there was something");
        }
    }
    /// Lets the worker fall asleep after the burst, and wakes it up at once. A worker that falls asleep arms each CQ
    /// that has had a completion.
    [[gnu::noinline]] void sleep() {
        if (!world_.worker.fall_asleep(world_.now)) {
            throw std::runtime_error("the worker does not fall asleep");
        }
        world_.worker.wake_up(world_.now);
    }
    [[gnu::noinline]] void poll() { polled_ = world_.session(session_).poll(completions_); }
    /// Throws if a request that is due has not completed. Waits for a late device; no figure includes this wait.
    void check() {
        count();
        const std::uint64_t due = tag_ - behind_;
        for (const auto until = std::chrono::steady_clock::now() + kPatience;
             load_.provider != nullptr && completed_ < due && std::chrono::steady_clock::now() < until;) {
            step();
            poll();
            count();
        }
        // Requests of different queue pairs complete in any order. With one burst still in flight, any requests of the
        // last two bursts may be complete.
        const bool in_order = load_.provider == nullptr || load_.qps == 1;
        if (completed_ < due || completed_ > tag_ || failed_ ||
            (in_order && sum_ != completed_ * (completed_ - 1) / 2)) {
            throw std::runtime_error("not everything has completed");
        }
    }

private:
    static constexpr std::uint32_t kDepth = 64;
    static constexpr std::uint32_t kLooks = 16;
    static constexpr std::chrono::seconds kPatience{10};

    void count() noexcept {
        for (std::size_t i = 0; i < polled_; ++i) {
            sum_ += completions_[i].tag;
            failed_ = failed_ || !completions_[i].ok();
        }
        completed_ += polled_;
    }
    static testing::SteppedWorld::Options options(const Load& load) {
        testing::SteppedWorld::Options options;
        options.worker.submit_burst = options.worker.complete_burst = options.worker.qp_burst = 64;
        options.submission_slots = options.completion_slots = 1024;
        options.extended_cqs = load.extended;
        options.shared_cqs = load.shared_cqs;
        options.provider_lines = load.provider_lines;
        options.sleeps = load.sleeps;
        if (load.provider != nullptr) {
            options.open = [provider = load.provider] { return provider->open(); };
        }
        return options;
    }
    std::uint32_t random() noexcept {  // xorshift; any generator would do
        random_ ^= random_ << 13;
        random_ ^= random_ >> 17;
        random_ ^= random_ << 5;
        return random_;
    }

    Load load_;
    alignas(64) std::array<std::byte, 4096> memory_{};
    testing::SteppedWorld world_;
    ibv_mr* region_ = nullptr;
    std::vector<testing::SteppedWorld::Qp*> qps_;
    std::vector<ibv_qp*> used_;  // queue pairs of this burst
    std::vector<WorkRequest> requests_;
    std::vector<Completion> completions_;
    std::uint32_t session_ = 0;
    std::uint64_t tag_ = 0;
    std::uint64_t behind_ = 0;  // requests that are polled a burst later
    std::size_t polled_ = 0;
    std::uint64_t completed_ = 0;  // requests of all bursts
    std::uint64_t sum_ = 0;        // sum of the tags of all completed requests
    bool failed_ = false;          // a request has failed
    std::uint32_t random_ = 1;
};

/// Where to post a chain of writes without the runtime: a queue pair, its CQ, and the source and target memory.
struct DirectTarget {
    ibv_qp* qp = nullptr;
    ibv_cq* cq = nullptr;
    std::uint64_t addr = 4096;
    std::uint64_t remote_addr = 8192;
    std::uint32_t lkey = 1;
    std::uint32_t rkey = 2;
};

/// A target on the device that completes at once.
class InstantTarget {
public:
    InstantTarget() {
        make_instant(context_);
        cq_.context = qp_.context = &context_;
        cq_.cqe = 1024;
        qp_.send_cq = &cq_;
    }
    InstantTarget(const InstantTarget&) = delete;
    InstantTarget& operator=(const InstantTarget&) = delete;
    [[nodiscard]] DirectTarget get() { return {.qp = &qp_, .cq = &cq_}; }

private:
    ibv_context context_{};
    ibv_cq cq_{};
    ibv_qp qp_{};
};

/// A queue pair that is connected to itself, on the software device. The polling thread does the device's work.
class SoftwareTarget {
public:
    SoftwareTarget() : region_(&world_.register_memory(memory_.data(), memory_.size())) {
        world_.add_session();
        world_.add_cq();
        qp_ = &world_.add_qp({.shares = {{0, 64, 1}}, .sges_max = 1});
        world_.connect(*qp_, *qp_);
    }
    SoftwareTarget(const SoftwareTarget&) = delete;
    SoftwareTarget& operator=(const SoftwareTarget&) = delete;
    [[nodiscard]] DirectTarget get() {
        const auto addr = reinterpret_cast<std::uintptr_t>(memory_.data());
        return {.qp = qp_->qp.get(),
                .cq = qp_->qp->send_cq,
                .addr = addr,
                .remote_addr = addr + memory_.size() / 2,
                .lkey = region_->lkey,
                .rkey = region_->rkey};
    }

private:
    alignas(64) std::array<std::byte, 8192> memory_{};
    testing::SteppedWorld world_;
    ibv_mr* region_;
    testing::SteppedWorld::Qp* qp_ = nullptr;
};

/// A burst without the runtime: makes, posts and polls a chain of writes.
class DirectLoad {
public:
    DirectLoad(std::uint32_t burst, const DirectTarget& target)
        : target_(target), sges_(burst), requests_(burst), completions_(burst) {
        make();
    }

    /// Fills the verbs' structures with the fields that an application sets for each request.
    [[gnu::noinline]] void make() {
        for (std::size_t i = 0; i < requests_.size(); ++i) {
            sges_[i] = {.addr = target_.addr + 64 * i, .length = 8, .lkey = target_.lkey};
            requests_[i] = {.wr_id = i,
                            .next = i + 1 < requests_.size() ? &requests_[i + 1] : nullptr,
                            .sg_list = &sges_[i],
                            .num_sge = 1,
                            .opcode = IBV_WR_RDMA_WRITE,
                            .send_flags = IBV_SEND_SIGNALED};
            requests_[i].wr.rdma = {.remote_addr = target_.remote_addr + 64 * i, .rkey = target_.rkey};
        }
    }
    [[gnu::noinline]] void post() {
        ibv_send_wr* bad = nullptr;
        if (ibv_post_send(target_.qp, requests_.data(), &bad) != 0) {
            throw std::runtime_error("a chain was refused");
        }
    }
    [[gnu::noinline]] void poll() {
        for (std::size_t polled = 0; polled < completions_.size();) {
            const int n =
                ibv_poll_cq(target_.cq, static_cast<int>(completions_.size() - polled), &completions_[polled]);
            if (n < 0 || (n > 0 && completions_[polled].status != IBV_WC_SUCCESS)) {
                throw std::runtime_error("a write has failed");
            }
            polled += static_cast<std::size_t>(n);
        }
        if (completions_.back().wr_id + 1 != completions_.size()) {
            throw std::runtime_error("not everything has completed");
        }
    }

private:
    DirectTarget target_;
    std::vector<ibv_sge> sges_;
    std::vector<ibv_send_wr> requests_;
    std::vector<ibv_wc> completions_;
};

}  // namespace pollcore::bench
