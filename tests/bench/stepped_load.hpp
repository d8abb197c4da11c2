// A worker, sessions and queue pairs on a device that completes at once, all turned by one thread: what an operation costs
// where no line has to come from another CPU, and which part of it.
//
// Thread safety: one thread.
#pragma once

#include <array>
#include <cstdint>
#include <stdexcept>
#include <vector>

#include "instant_device.hpp"
#include "stepped_world.hpp"

namespace pollcore::bench {

struct Load {
    std::uint32_t burst = 32;
    std::uint32_t qps = 1;
    std::uint32_t sessions = 1;       ///< used in turn, a burst each
    std::uint32_t cqs = 1;            ///< queue pairs by turns
    std::uint32_t idle_sessions = 0;  ///< beside those
    std::uint32_t idle_cqs = 0;
};

class SteppedLoad {
public:
    explicit SteppedLoad(const Load& load) : load_(load), world_(options()) {
        make_instant(*world_.device->context());
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
            testing::SteppedWorld::Qp& qp =
                world_.add_qp({.shares = shares, .sges_max = 1, .send_cq = i % load.cqs, .recv_cq = i % load.cqs});
            world_.connect(qp, qp);
            qps_.push_back(&qp);
        }
        requests_.resize(load.burst);
        completions_.resize(load.burst);
    }

    [[nodiscard]] const Load& load() const noexcept { return load_; }

    /// The next burst, on queue pairs at random, of the next session. What it costs to make is nobody's.
    void prepare() {
        session_ = (session_ + 1) % load_.sessions;
        for (WorkRequest& request : requests_) {
            request = testing::SteppedWorld::write(tag_++, *qps_[random() % qps_.size()], *region_);
        }
    }
    [[gnu::noinline]] void submit() {
        if (world_.session(session_).try_submit(requests_).accepted != requests_.size()) {
            throw std::runtime_error("a burst was refused");
        }
    }
    [[gnu::noinline]] void step() { (void)world_.worker.step(world_.now); }
    [[gnu::noinline]] void poll() {
        polled_ = world_.session(session_).poll(completions_);
    }
    /// Whether each request of the burst has completed, in whatever order its queue pairs did.
    void check() const {
        std::uint64_t sum = 0;
        for (std::size_t i = 0; i < polled_; ++i) {
            sum += completions_[i].ok() ? completions_[i].tag : 0;
        }
        const std::uint64_t burst = load_.burst;
        if (polled_ != burst || sum != burst * (tag_ - burst) + burst * (burst - 1) / 2) {
            throw std::runtime_error("not everything has completed");
        }
    }

private:
    static constexpr std::uint32_t kDepth = 64;

    static testing::SteppedWorld::Options options() {
        testing::SteppedWorld::Options options;
        options.worker.submit_burst = options.worker.complete_burst = options.worker.qp_burst = 64;
        options.submission_slots = options.completion_slots = 1024;
        return options;
    }
    std::uint32_t random() noexcept {  // xorshift: which, does not matter
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
    std::vector<WorkRequest> requests_;
    std::vector<Completion> completions_;
    std::uint32_t session_ = 0;
    std::uint64_t tag_ = 0;
    std::size_t polled_ = 0;
    std::uint32_t random_ = 1;
};

/// The same bursts without the runtime: a chain that is made, posted, and polled.
class DirectLoad {
public:
    explicit DirectLoad(std::uint32_t burst) : context_{}, sges_(burst), requests_(burst), completions_(burst) {
        make_instant(context_);
        cq_.context = qp_.context = &context_;
        cq_.cqe = 1024;
        qp_.send_cq = &cq_;
        make();
    }
    DirectLoad(const DirectLoad&) = delete;
    DirectLoad& operator=(const DirectLoad&) = delete;

    /// What an application knows of each request, as the verbs want it.
    [[gnu::noinline]] void make() {
        for (std::size_t i = 0; i < requests_.size(); ++i) {
            sges_[i] = {.addr = 4096 + 64 * i, .length = 8, .lkey = 1};
            requests_[i] = {.wr_id = i,
                            .next = i + 1 < requests_.size() ? &requests_[i + 1] : nullptr,
                            .sg_list = &sges_[i],
                            .num_sge = 1,
                            .opcode = IBV_WR_RDMA_WRITE,
                            .send_flags = IBV_SEND_SIGNALED};
            requests_[i].wr.rdma = {.remote_addr = 8192 + 64 * i, .rkey = 2};
        }
    }
    [[gnu::noinline]] void post() {
        ibv_send_wr* bad = nullptr;
        if (ibv_post_send(&qp_, requests_.data(), &bad) != 0) {
            throw std::runtime_error("a chain was refused");
        }
    }
    [[gnu::noinline]] void poll() {
        const int n = static_cast<int>(completions_.size());
        if (ibv_poll_cq(&cq_, n, completions_.data()) != n || completions_.back().wr_id + 1 != completions_.size()) {
            throw std::runtime_error("not everything has completed");
        }
    }

private:
    ibv_context context_;
    ibv_cq cq_{};
    ibv_qp qp_{};
    std::vector<ibv_sge> sges_;
    std::vector<ibv_send_wr> requests_;
    std::vector<ibv_wc> completions_;
};

}  // namespace pollcore::bench
