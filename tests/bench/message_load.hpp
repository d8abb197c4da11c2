// Messages of 64 bytes from one session to the receive pool or the write ring of another. The program itself calls the
// worker's step(). The device completes at once and moves the data. Meanwhile other queue pairs may wait for credit
// that their peers do not give.
//
// Thread safety: one thread.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <stdexcept>
#include <vector>

#include "moving_device.hpp"
#include "stepped_world.hpp"

namespace pollcore::bench {

struct Messages {
    std::uint32_t burst = 32;
    FlowControl flow = FlowControl::off;
    std::uint32_t waiting = 0;  ///< further queue pairs, each with one request that waits for credit
};

class MessageLoad {
public:
    explicit MessageLoad(const Messages& messages) : messages_(messages), world_(options()) {
        moving::make_moving(*world_.device->context());
        region_ = &world_.register_memory(memory_.data(), memory_.size());
        for (int i = 0; i < 3; ++i) {
            world_.add_session();
        }
        world_.add_cq();
        world_.add_cq();
        from_ = &world_.add_qp(shape(kSender));
        testing::SteppedWorld::QpShape reading = shape(kReader);
        reading.pool.pool = messages.flow == FlowControl::ring ? &world_.add_ring(512, 2 * kDepth, kReader)
                                                               : &world_.add_pool(2 * kDepth, kBytes, kReader);
        // The reader has its own CQ: one poll cannot return both a burst and the completions of the writes that give
        // credit.
        reading.send_cq = reading.recv_cq = 1;
        reading.pool.depth = kDepth;
        reading.pool.share = 2 * kDepth;
        connect(*from_, world_.add_qp(reading));
        requests_.assign(messages.burst, message(*from_));
        completions_.resize(2 * messages.burst);
        for (std::uint32_t i = 0; i < messages.waiting; ++i) {
            testing::SteppedWorld::Qp& waiting =
                world_.add_qp({.shares = {{kWaiter, 4, 4}}, .flow = FlowControl::credits});
            connect(waiting, world_.add_qp({.shares = {{kWaiter, 4, 4}}, .flow = FlowControl::credits}));
            if (world_.session(kWaiter).try_submit(message(waiting)) != Refusal::none) {
                throw std::runtime_error("a request that is to wait was refused");
            }
        }
        // The first burst waits until both ends have sent each other the parameters of their flow control.
        prepare();
        submit();
        for (int i = 0; i < 100; ++i) {
            world_.now += 1000;
            step();
        }
        poll();
        check();
        waits_ = world_.worker.counters().waits_for_credit.value();
    }

    void prepare() {
        for (WorkRequest& request : requests_) {
            request.tag = tag_++;
        }
    }
    [[gnu::noinline]] void submit() {
        if (world_.session(kSender).try_submit(requests_).accepted != requests_.size()) {
            throw std::runtime_error("a burst was refused");
        }
    }
    [[gnu::noinline]] void step() { (void)world_.worker.step(world_.now); }
    /// Polls both sessions; the reader gives its buffers back.
    [[gnu::noinline]] void poll() {
        read_ = world_.session(kReader).poll(completions_);
        released_ = world_.session(kReader).release(std::span(completions_).first(read_)).accepted;
        sent_ = world_.session(kSender).poll(completions_);
    }
    void check() {
        if (read_ != messages_.burst || released_ != read_ || sent_ != read_) {
            throw std::runtime_error("not every message has come");
        }
        if (world_.session(kWaiter).figures().in_flight() != messages_.waiting ||
            world_.worker.counters().waits_for_credit.value() > waits_) {
            throw std::runtime_error("a queue pair waits for credit that should not wait");
        }
    }

private:
    static constexpr std::uint32_t kSender = 0;
    static constexpr std::uint32_t kReader = 1;
    static constexpr std::uint32_t kWaiter = 2;
    static constexpr std::uint32_t kBytes = 64;
    static constexpr std::uint32_t kDepth = 128;

    static testing::SteppedWorld::Options options() {
        testing::SteppedWorld::Options options;
        options.worker.submit_burst = options.worker.complete_burst = options.worker.qp_burst = 64;
        options.submission_slots = options.completion_slots = 1024;
        options.pool_buffers = 2 * kDepth;
        return options;
    }
    [[nodiscard]] testing::SteppedWorld::QpShape shape(std::uint32_t session) const {
        return {.shares = {{session, kDepth, 4}}, .sges_max = 1, .flow = messages_.flow};
    }
    [[nodiscard]] WorkRequest message(const testing::SteppedWorld::Qp& qp) const {
        return {.sge = {reinterpret_cast<std::uintptr_t>(memory_.data()), kBytes, region_->lkey},
                .qp = qp.handle(),
                .opcode = Opcode::send,
                .flags = kSignaled,
                .num_sge = 1};
    }
    void connect(testing::SteppedWorld::Qp& a, testing::SteppedWorld::Qp& b) {
        moving::connect(*a.qp, *b.qp);
        world_.connect(a, b);
        world_.connect(b, a);
    }

    Messages messages_;
    alignas(64) std::array<std::byte, 4096> memory_{};
    testing::SteppedWorld world_;
    ibv_mr* region_ = nullptr;
    testing::SteppedWorld::Qp* from_ = nullptr;
    std::vector<WorkRequest> requests_;
    std::vector<Completion> completions_;
    std::uint64_t tag_ = 0;
    std::size_t read_ = 0;
    std::size_t released_ = 0;
    std::size_t sent_ = 0;
    std::uint64_t waits_ = ~std::uint64_t{0};  ///< number of waits for credit before the first counted burst
};

}  // namespace pollcore::bench
