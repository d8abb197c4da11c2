// Bursts that use only the verbs, without pollcore, on a device whose provider is measured.
//
// Thread safety: one thread.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "connect/transitions.hpp"
#include "provider.hpp"
#include "stepped_load.hpp"

namespace pollcore::bench {

inline constexpr std::uint32_t kBurst = 32;

/// A way to make queue pairs and their CQ, and to poll the CQ.
struct Way {
    bool domain = false;    ///< made in a thread domain
    bool extended = false;  ///< polled by ibv_start_poll
    [[nodiscard]] std::string name() const {
        return std::string(extended ? "ibv_start_poll" : "ibv_poll_cq") +
               (domain ? ", thread domain" : ", no thread domain");
    }
};
/// Queue pairs on one CQ, each connected to itself, used by the verbs alone.
class Bare {
public:
    Bare(std::shared_ptr<const Provider> provider, const Way& way, std::uint32_t qps)
        : provider_(std::move(provider)),
          way_(way),
          device_(provider_->open()),
          next_poll_(device_->limits().next_poll),
          pd_(device_->create_pd(), {device_.get()}) {
        if (way.domain) {
            domain_ = device_->create_thread_domain();
        }
        cq_ = {device_->create_cq({.cqe = 2 * kDepth, .domain = domain_.get(), .extended = way.extended}),
               {device_.get()}};
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
        return {.qp = qps_.front().get(),
                .cq = cq_.get(),
                .addr = addr,
                .remote_addr = addr + memory_.size() / 2,
                .lkey = region_->lkey,
                .rkey = region_->rkey};
    }

    /// Polls as pollcore does, and reads the same fields of each completion. Returns the number of completions.
    int poll(int most, ibv_wc* completions) const {
        if (!way_.extended) {
            return ibv_poll_cq(cq_.get(), most, completions);
        }
        ibv_cq_ex* cq = extended(cq_.get());
        ibv_poll_cq_attr attr{};
        int taken = 0;
        while (taken < most && ibv_start_poll(cq, &attr) == 0) {
            do {
                ibv_wc& wc = completions[taken++];
                wc.wr_id = cq->wr_id;
                wc.status = cq->status;
                wc.byte_len = ibv_wc_read_byte_len(cq);
            } while (next_poll_ && taken < most && ibv_next_poll(cq) == 0);
            ibv_end_poll(cq);
            if (next_poll_) {
                break;
            }
        }
        return taken;
    }

private:
    static constexpr std::uint32_t kDepth = 256;

    void add_qp() {
        QpOptions make{
            .pd = pd_.get(),
            .domain = domain_.get(),
            .send_cq = cq_.get(),
            .recv_cq = cq_.get(),
            .cap = {
                .max_send_wr = kDepth, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 64}};
        UniqueQp qp(device_->create_qp(make), {device_.get()});
        const GidEntry gid = device_->gids().front();
        QpInfo self;
        std::memcpy(self.gid.data(), gid.gid.raw, 16);
        self.qp_num = qp->qp_num;
        Transition init = to_init(1, access_flags(RemoteAccess::all()));
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
    bool next_poll_;  // DeviceLimits::next_poll
    UniquePd pd_;
    std::unique_ptr<ThreadDomain> domain_;
    UniqueCq cq_;
    UniqueMr region_;
    std::vector<UniqueQp> qps_;
};

/// The properties of a burst.
struct Shape {
    std::uint32_t burst = kBurst;  ///< at most kBurst
    std::uint32_t signaled = 1;    ///< one request in this many is signaled
    std::uint32_t inline_bytes = 0;
    /// With more than one queue pair, each request goes to a random one. Each queue pair gets its requests as one
    /// chain, as a worker posts them.
    std::uint32_t qps = 1;
};

/// A burst by the verbs alone. The requests are made in advance; only posting and polling are timed.
class BareLoad {
public:
    BareLoad(std::shared_ptr<const Provider> provider, const Way& way, const Shape& shape)
        : shape_(shape), bare_(std::move(provider), way, shape.qps) {
        const DirectTarget target = bare_.target();
        for (std::uint32_t i = 0; i < shape.burst; ++i) {
            sges_[i] = {.addr = target.addr + 64 * i,
                        .length = shape.inline_bytes != 0 ? shape.inline_bytes : 64,
                        .lkey = target.lkey};
            ibv_send_wr& request = requests_[i];
            request = {.wr_id = i, .sg_list = &sges_[i], .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE};
            request.send_flags = ((i + 1) % shape.signaled == 0 ? IBV_SEND_SIGNALED : 0) |
                                 (shape.inline_bytes != 0 ? IBV_SEND_INLINE : 0);
            request.wr.rdma = {.remote_addr = target.remote_addr + 64 * i, .rkey = target.rkey};
        }
    }

    /// Chooses the queue pairs of the burst.
    void prepare() {
        for (ibv_qp*& qp : used()) {
            random_ ^= random_ << 13;
            random_ ^= random_ >> 17;
            random_ ^= random_ << 5;
            qp = bare_.qp(random_ % bare_.qps());
        }
        std::ranges::sort(used());
        chains_ = 0;
        for (std::uint32_t i = 0; i < shape_.burst; ++i) {
            const bool begins = i == 0 || used_[i - 1] != used_[i];
            if (begins) {
                heads_[chains_++] = i;
            }
            if (i > 0) {
                requests_[i - 1].next = begins ? nullptr : &requests_[i];
            }
        }
    }
    void settle() { bare_.provider().settle(used()); }
    void look() {
        if (bare_.poll(kBurst, completions_.data()) != 0) {
            throw std::runtime_error("more has completed than was posted");
        }
    }
    [[gnu::noinline]] void post() {
        ibv_send_wr* bad = nullptr;
        for (std::uint32_t chain = 0; chain < chains_; ++chain) {
            const std::uint32_t head = heads_[chain];
            if (ibv_post_send(used_[head], &requests_[head], &bad) != 0) {
                throw std::runtime_error("a chain was refused");
            }
        }
    }
    /// Like a worker, asks for more completions than there are, so that the poll also finds the end of the CQ. Waits
    /// for a late device; the figure includes this wait.
    [[gnu::noinline]] void poll() {
        const auto signaled = static_cast<int>(shape_.burst / shape_.signaled);
        int polled = bare_.poll(2 * kBurst, completions_.data());
        if (polled < signaled) [[unlikely]] {
            polled += await(signaled - polled);
        }
        if (polled != signaled || completions_[0].status != IBV_WC_SUCCESS) {
            throw std::runtime_error("a write has failed, or has not completed");
        }
    }

private:
    [[gnu::noinline]] int await(int more) {
        constexpr std::chrono::seconds kPatience{10};
        int polled = 0;
        for (const auto until = std::chrono::steady_clock::now() + kPatience;
             polled < more && std::chrono::steady_clock::now() < until;) {
            polled += bare_.poll(2 * kBurst, completions_.data());
        }
        return polled;
    }
    [[nodiscard]] std::span<ibv_qp*> used() noexcept { return {used_.data(), shape_.burst}; }

    Shape shape_;
    Bare bare_;
    std::array<ibv_sge, kBurst> sges_{};
    std::array<ibv_send_wr, kBurst> requests_{};
    std::array<ibv_wc, 2 * kBurst> completions_{};
    std::array<ibv_qp*, kBurst> used_{};
    std::array<std::uint32_t, kBurst> heads_{};  // indices of the first request of each chain
    std::uint32_t chains_ = 0;
    std::uint32_t random_ = 1;
};

}  // namespace pollcore::bench
