// Two sessions of one worker that is stepped by hand, and pairs of queue pairs with flow control by credits. One
// session sends, and the other session receives.
#pragma once

#include "flow/credit_flow.hpp"
#include "worker_fixture.hpp"

namespace pollcore::testing {

class WorkerCreditTest : public SenderReceiverFixture {
protected:
    static constexpr PathAttributes kNoRetries{.rnr_retry = 0};

    void make(std::size_t pairs = 1, SteppedWorld::Options options = {}) {
        make_world(std::move(options));
        add_pairs(pairs, {.shares = {{kReceiver, 16, 16}}});
    }
    void add_pairs(std::size_t pairs, SteppedWorld::QpShape receiver) {
        receiver.flow = FlowControl::credits;
        for (std::size_t i = 0; i < pairs; ++i) {
            add_pair({.shares = {{kSender, 16, 4}}, .flow = FlowControl::credits}, receiver, kNoRetries, kNoRetries);
        }
    }
    [[nodiscard]] const CreditFlow& sender(std::size_t i = 0) { return credits(*from[i]); }
    [[nodiscard]] const CreditFlow& receiver(std::size_t i = 0) { return credits(*to[i]); }
    [[nodiscard]] static const CreditFlow& credits(const Qp& qp) { return dynamic_cast<CreditFlow&>(qp.flow()); }
    void agree() {
        submit(send(1));
        submit(recv(1));
        ASSERT_EQ(world->await(1, kSender).size(), 1u);
        ASSERT_EQ(world->await(1, kReceiver).size(), 1u);
        turn();
        ASSERT_TRUE(sender().agreed() && receiver().agreed());
    }
    /// Posts a message directly to the device, so that the sender's flow control does not know of the message.
    void post_past_the_worker(const Qp& qp, std::uint32_t length) {
        ibv_sge sge{.addr = source->addr(), .length = length, .lkey = source->lkey()};
        ibv_send_wr wr{};
        wr.wr_id = ~std::uint64_t{0};
        wr.sg_list = &sge;
        wr.num_sge = 1;
        wr.opcode = IBV_WR_SEND;
        wr.send_flags = IBV_SEND_SIGNALED;
        ibv_send_wr* bad = nullptr;
        ASSERT_EQ(ibv_post_send(qp.qp.get(), &wr, &bad), 0);
    }
    void grant(std::uint64_t word) { from[0]->block->grants[0].store(word); }
    void expect_violation(FlowFault fault) {
        turn();
        EXPECT_EQ(world->session(kSender).state(from[0]->handle()), QpState::error);
        EXPECT_EQ(world->session(kSender).cause(from[0]->handle()), Status::flow_violation);
        EXPECT_EQ(world->worker.counters().flow_faults.value(), 1u);
        const auto said = world->proxy.take_unasked();
        ASSERT_EQ(said.size(), 1u);
        EXPECT_EQ(said[0].kind, AnswerKind::flow_failed);
        EXPECT_EQ(said[0].index, from[0]->handle().index);
        EXPECT_EQ(said[0].object_id,
                  std::uint32_t{from[0]->handle().generation} << 8 | static_cast<std::uint32_t>(fault));
    }
};

}  // namespace pollcore::testing
