// Messages of 64 bytes from a send pool: each is claimed, written and committed, and its buffer comes back by a poll.
// The program itself calls the worker's step(). The device completes at once.
//
// Thread safety: one thread.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <vector>

#include "instant_device.hpp"
#include "pollcore/send_pool.hpp"
#include "session/control_side.hpp"
#include "session/send_pool_core.hpp"
#include "stepped_world.hpp"

namespace pollcore::bench {

class SendPoolLoad {
public:
    explicit SendPoolLoad(std::uint32_t burst) : burst_(burst), memory_(std::size_t{burst} * kBytes) {
        make_instant(*world_.device->context());
        world_.add_session();
        world_.add_cq();
        qp_ = &world_.add_qp({.shares = {{0, 2 * burst, 1}}, .sges_max = 1});
        world_.connect(*qp_, *qp_);
        const ibv_mr& registered = world_.register_memory(memory_.data(), memory_.size());
        // Without a control side, the region is not deregistered: that is the world's.
        MemoryRegion region(nullptr, RegionInfo{.data = memory_.data(),
                                                .size = memory_.size(),
                                                .iova = reinterpret_cast<std::uintptr_t>(memory_.data()),
                                                .lkey = registered.lkey});
        SessionCore& session = *world_.session().core();
        auto core = std::make_shared<SendPoolCore>(session, std::move(region), burst, kBytes, kBytes);
        session.add_send_pool(core);
        pool_ = SendPool(std::move(core));
    }

    void prepare() { text_.fill(static_cast<std::byte>(++round_)); }
    [[gnu::noinline]] void submit() {
        for (std::uint32_t i = 0; i < burst_; ++i) {
            SendClaim claim = pool_.claim(kBytes);
            std::copy(text_.begin(), text_.end(), claim.payload().begin());
            if (pool_.commit(claim, WorkRequest::send(qp_->handle(), {}).unsignaled()) != Refusal::none) {
                throw std::runtime_error("a message was refused");
            }
        }
    }
    [[gnu::noinline]] void step() { (void)world_.worker.step(world_.now); }
    [[gnu::noinline]] void poll() { polled_ = world_.session().poll(completions_); }
    void check() const {
        if (polled_ != 0 || pool_.free() != burst_ || memory_.data()[memory_.size() - 1] != text_.back()) {
            throw std::runtime_error("not every buffer has come back");
        }
    }

private:
    static constexpr std::uint32_t kBytes = 64;

    std::uint32_t burst_;
    OwnLines<std::byte> memory_;
    testing::SteppedWorld world_;
    testing::SteppedWorld::Qp* qp_ = nullptr;
    SendPool pool_;
    std::array<std::byte, kBytes> text_{};
    std::vector<Completion> completions_ = std::vector<Completion>(64);
    unsigned round_ = 0;
    std::size_t polled_ = 0;
};

}  // namespace pollcore::bench
