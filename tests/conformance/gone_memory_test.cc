// Memory that is gone when the worker polls the completions of the messages that arrived in it. Some providers copy a
// small message to the receive's address only then (H8); they must not do so for queue pairs that are driven by hand.
#include <sys/mman.h>

#include <cstdint>
#include <memory>

#include "by_hand.hpp"
#include "own_pages.hpp"
#include "stepped_platform.hpp"

namespace pollcore::testing {
namespace {

struct OwnWorker {
    test::SteppedWorker worker;
};

class GoneMemoryInThisProcess : protected OwnWorker, public ByHandFixture {
protected:
    GoneMemoryInThisProcess() : ByHandFixture(config(), std::make_unique<test::SteppedPlatform>(worker)) {}

    static Config config() {
        Config with = test_config();
        with.workers[0].complete_burst = 1;  // so completions pile up in the CQ
        return with;
    }
    [[nodiscard]] QueuePairOptions deep() {
        QueuePairOptions options = by_hand(session);
        options.shares[0].send_depth = kMessages;
        options.recv_depth = kMessages;
        options.separate_cqs = true;
        return options;
    }
    [[nodiscard]] WorkRequest receive(const MemoryRegion& region, std::uint64_t tag) const {
        WorkRequest request{.tag = tag, .sge = region.sge(8 * tag, 8), .opcode = Opcode::recv, .num_sge = 1};
        if (srq.valid()) {
            request.opcode = Opcode::srq_recv;
            request.srq = srq.handle();
        } else {
            request.qp = b.handle();
        }
        return request;
    }
    /// Polls one completion after each step, until `done` returns true for a completion.
    template <class Done>
    void step_until(Done done) {
        Completion completion;
        for (int step = 0; step < 100'000; ++step) {
            worker.step();
            if (session.poll({&completion, 1}) == 1) {
                EXPECT_EQ(completion.status, Status::success) << completion.tag;
                if (done(completion)) {
                    return;
                }
            }
        }
        FAIL() << "the completion does not come";
    }
    /// Messages arrive, their region ends, and then their completions are polled.
    void let_memory_go() {
        test::OwnPages pages(1);
        MemoryRegion region = runtime.register_memory(pages.data(), pages.size(), Access::all());
        for (std::uint64_t i = 0; i < kMessages; ++i) {
            ASSERT_EQ(session.try_submit(receive(region, i)), Refusal::none);
            worker.step();
        }
        for (std::uint64_t i = 0; i < kMessages; ++i) {
            const bool last = i + 1 == kMessages;
            ASSERT_EQ(session.try_submit(send(kSent, 8, last ? kSignaled : 0)), Refusal::none);
        }
        std::uint64_t received = 0;
        // When the last send has completed, all messages have arrived.
        step_until([&](const Completion& completion) {
            received += completion.from_recv_queue();
            return completion.tag == kSent;
        });
        region.deregister();
        ASSERT_EQ(::mprotect(pages.data(), pages.size(), PROT_NONE), 0);
        EXPECT_LT(received, kMessages) << "nothing is left to poll";
        step_until([&](const Completion&) { return ++received == kMessages; });
    }

    static constexpr std::uint32_t kMessages = 128;
    static constexpr std::uint64_t kSent = 1000;
    SharedReceiveQueue srq;
};

TEST_F(GoneMemoryInThisProcess, IsNotTouchedByAQueuePairThatIsDrivenByHand) {
    a = runtime.create_queue_pair(deep());
    b = runtime.create_queue_pair(deep());
    connect();
    let_memory_go();
}

TEST_F(GoneMemoryInThisProcess, IsNotTouchedByASharedReceiveQueueThatIsDrivenByHand) {
    srq = runtime.create_shared_receive_queue({.session = &session, .depth = kMessages});
    a = runtime.create_queue_pair(deep());
    QueuePairOptions receiver = deep();
    receiver.srq = &srq;
    b = runtime.create_queue_pair(receiver);
    connect();
    let_memory_go();
}

}  // namespace
}  // namespace pollcore::testing
