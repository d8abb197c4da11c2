// I1 (each accepted request ends once) under random mixes of operations with failures in between. After every turn the
// session's counts agree with the test's own counts. After all queue pairs are closed, nothing is in flight, whatever
// happened to the queue pairs.
#include <map>
#include <random>

#include "fixture.hpp"
#include "give_way.hpp"

namespace pollcore::testing {
namespace {

class Conservation : public Conformance, public ::testing::WithParamInterface<unsigned> {
protected:
    Conservation() : random(GetParam()) { Exercised::get().ignore(); }

    // A send may find no receive. The pair then ends in an error, which is one of the failures that this test needs.
    static constexpr PathAttributes kPath{.timeout = 12, .retry_count = 1, .rnr_retry = 1, .min_rnr_timer = 1};

    WorkRequest random_request(std::uint64_t tag) {
        static constexpr Opcode kOpcodes[] = {Opcode::send,
                                              Opcode::send_with_imm,
                                              Opcode::rdma_write,
                                              Opcode::rdma_read,
                                              Opcode::atomic_cmp_and_swp,
                                              Opcode::atomic_fetch_and_add,
                                              Opcode::recv,
                                              Opcode::recv,
                                              Opcode::rdma_write_with_imm};
        const Opcode opcode = kOpcodes[random() % std::size(kOpcodes)];
        const bool forward = random() % 2 == 0;
        WorkRequest request = rdma(opcode, tag, is_atomic(opcode) ? 8 : random() % 2000,
                                   random() % 3 == 0 ? std::uint8_t{kSignaled} : std::uint8_t{0});
        request.qp = forward ? a.handle() : b.handle();
        if (is_recv(opcode)) {
            request.flags = 0;
            request.sge.length = 4096;
        }
        if (random() % 400 == 0) {
            request.rkey ^= 0x5500;
        }
        if (random() % 400 == 0) {
            request.sge.lkey ^= 0x5500;
        }
        return request;
    }

    void expect_conserved() {
        const SessionFigures figures = session.figures();
        ASSERT_EQ(figures.accepted, submitted);
        ASSERT_EQ(figures.completed, completed);
        ASSERT_GE(figures.accepted, figures.completed + figures.retired);
    }

    void take_completions() {
        Completion some[16];
        while (const std::size_t n = session.poll(some)) {
            for (std::size_t i = 0; i < n; ++i) {
                ++completed;
                const auto found = outstanding.find(some[i].tag);
                ASSERT_NE(found, outstanding.end()) << "tag " << some[i].tag << " completed twice, or never submitted";
                ASSERT_EQ(found->second.qp, some[i].qp);
                // Only an unsignaled request that succeeds has no completion.
                if (some[i].ok() && !is_recv(found->second.opcode)) {
                    ASSERT_TRUE(found->second.flags & kSignaled);
                }
                outstanding.erase(found);
            }
        }
    }

    std::mt19937 random;
    std::map<std::uint64_t, WorkRequest> outstanding;
    std::uint64_t submitted = 0;
    std::uint64_t completed = 0;
};

TEST_P(Conservation, HoldsThroughRandomMixesWithFailures) {
    std::uint64_t tag = 0;
    for (int life = 0; life < 5; ++life) {
        QueuePairOptions options = shape();
        options.shares[0].send_depth = 1 + random() % 32;
        options.recv_depth = 1 + random() % 32;
        options.separate_cqs = random() % 2 == 0;
        options.coalesce_signals = random() % 2 == 0;
        connect_pair(options, kPath);
        for (int turn = 0; turn < 400; ++turn) {
            const WorkRequest request = random_request(tag);
            const Refusal refusal = session.try_submit(request);
            if (refusal == Refusal::none) {
                outstanding[tag++] = request;
                ++submitted;
            } else if (refusal == Refusal::qp_in_error) {
                break;
            } else {
                ASSERT_LE(refusal, Refusal::receive_queue_full) << refusal_name(refusal);
                test::give_way();
            }
            take_completions();
            expect_conserved();
        }
        // At this point work may be in flight, and the queue pairs may be in any state.
        (random() % 2 == 0 ? a : b).close();
        expect_conserved();
        a.close();
        b.close();
        take_completions();
        expect_conserved();
        const SessionFigures figures = session.figures();
        EXPECT_EQ(figures.in_flight(), 0u) << "seed " << GetParam() << ", life " << life;
        EXPECT_EQ(figures.retired, outstanding.size() + (submitted - tag));
        for (const auto& [t, request] : outstanding) {
            ASSERT_FALSE(request.flags & kSignaled) << "tag " << t << " never completed";
            ASSERT_FALSE(is_recv(request.opcode)) << "receive " << t << " never completed";
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Seeds, Conservation, ::testing::Range(1u, 9u));

}  // namespace
}  // namespace pollcore::testing
