// Two sessions of one worker, stepped by hand, and pairs of queue pairs with credits between them: one sends, one receives.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cstring>

#include "stepped_world.hpp"

namespace pollcore::testing {

class WorkerCreditTest : public ::testing::Test {
protected:
    static constexpr std::uint32_t kSender = 0;
    static constexpr std::uint32_t kReceiver = 1;
    static constexpr PathAttributes kNoRetries{.rnr_retry = 0};

    void make(std::size_t pairs = 1, SteppedWorld::Options options = {}) {
        make_world(std::move(options));
        add_pairs(pairs, {.shares = {{kReceiver, 16, 16}}});
    }
    /// Without queue pairs.
    void make_world(SteppedWorld::Options options = {}) {
        world = std::make_unique<SteppedWorld>(std::move(options));
        world->add_session();
        world->add_session();
        world->add_cq();
        region = &world->register_memory(memory.data(), memory.size());
    }
    void add_pairs(std::size_t pairs, SteppedWorld::QpShape receiver) {
        receiver.credits = true;
        for (std::size_t i = 0; i < pairs; ++i) {
            from.push_back(&world->add_qp({.shares = {{kSender, 16, 4}}, .credits = true}));
            to.push_back(&world->add_qp(receiver));
            world->connect(*from.back(), *to.back(), kNoRetries);
            world->connect(*to.back(), *from.back(), kNoRetries);
        }
    }
    void turn(int n = 50) {
        for (int i = 0; i < n; ++i) {
            world->step();
            world->now += 1000;
        }
    }
    [[nodiscard]] Sge sge(std::size_t at, std::uint32_t length) const {
        return {reinterpret_cast<std::uintptr_t>(memory.data()) + at, length, region->lkey};
    }
    [[nodiscard]] WorkRequest request(std::uint64_t tag, Opcode opcode, std::size_t pair = 0, std::uint8_t flags = kSignaled) const {
        return {.tag = tag,
                .sge = sge(0, 8),
                .remote_addr = reinterpret_cast<std::uintptr_t>(memory.data()) + 512,
                .rkey = region->rkey,
                .qp = from[pair]->handle(),
                .opcode = opcode,
                .flags = flags,
                .num_sge = 1};
    }
    Refusal send(std::uint64_t tag, std::size_t pair = 0, std::uint8_t flags = kSignaled) {
        return world->session(kSender).try_submit(request(tag, Opcode::send, pair, flags));
    }
    Refusal recv(std::uint64_t tag, std::size_t pair = 0) {
        return world->session(kReceiver).try_submit({.tag = tag,
                                                     .sge = sge(1024 + tag % 16 * 64, 64),
                                                     .qp = to[pair]->handle(),
                                                     .opcode = Opcode::recv,
                                                     .num_sge = 1});
    }
    [[nodiscard]] CreditFlow& sender(std::size_t pair = 0) { return *from[pair]->end.flow; }
    [[nodiscard]] CreditFlow& receiver(std::size_t pair = 0) { return *to[pair]->end.flow; }
    void agree() {
        ASSERT_EQ(send(1), Refusal::none);
        ASSERT_EQ(recv(1), Refusal::none);
        ASSERT_EQ(world->await(1, kSender).size(), 1u);
        ASSERT_EQ(world->await(1, kReceiver).size(), 1u);
        turn();
        ASSERT_TRUE(sender().agreed && receiver().agreed);
    }
    void grant(std::uint64_t word, std::size_t pair = 0) { from[pair]->block->grants[0].store(word); }
    void expect_violation(FlowFault fault) {
        turn();
        EXPECT_EQ(world->session(kSender).state(from[0]->handle()), QpState::error);
        EXPECT_EQ(world->session(kSender).cause(from[0]->handle()), Status::flow_violation);
        EXPECT_EQ(world->worker.counters().flow_faults.value(), 1u);
        const auto said = world->proxy.take_unasked();
        ASSERT_EQ(said.size(), 1u);
        EXPECT_EQ(said[0].kind, AnswerKind::flow_failed);
        EXPECT_EQ(said[0].index, from[0]->handle().index);
        EXPECT_EQ(said[0].object_id, std::uint32_t{from[0]->handle().generation} << 8 | static_cast<std::uint32_t>(fault));
    }

    alignas(64) std::array<std::byte, 4096> memory{};
    std::unique_ptr<SteppedWorld> world;
    ibv_mr* region = nullptr;
    std::vector<SteppedWorld::Qp*> from;
    std::vector<SteppedWorld::Qp*> to;
};

}  // namespace pollcore::testing
