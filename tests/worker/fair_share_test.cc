// Processes share a worker equally, however many sessions they have (ClientShare). The tests count requests and steps.
#include <algorithm>
#include <array>
#include <bit>
#include <functional>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "worker_fixture.hpp"

namespace pollcore::testing {
namespace {

class FairShare : public WorkerFixture {
protected:
    static constexpr std::uint32_t kBurst = 8;
    static constexpr std::uint32_t kDepth = 256;

    static SteppedWorld::Options options() {
        SteppedWorld::Options with;
        with.worker.submit_burst = kBurst;
        with.worker.qp_burst = 256;
        with.submission_slots = with.completion_slots = kDepth;
        return with;
    }

    FairShare() {
        make_world(options());
        world->add_cq(4096);
        source = &buffer(65536);
        target = &buffer(65536);
    }

    /// Adds a session that has its own queue pair. `client` is the process that owns the session; null means the
    /// worker's own process.
    Qp& add_session(ClientShare* client) {
        const std::uint32_t session = world->add_session(client);
        return *pair({.shares = {{session, kDepth / 2, 16}}}).first;
    }
    void fill(Qp& qp, std::uint32_t length) {
        while (try_submit(write(0, {.qp = &qp, .length = length}), qp.end->options().shares[0].session) ==
               Refusal::none) {
        }
    }
    /// The number of requests that the worker has taken from the session's ring.
    [[nodiscard]] std::uint64_t taken(const Qp& qp) {
        return world->ends[qp.end->options().shares[0].session]->worker_end->submissions().released();
    }
    void poll(const Qp& qp) { (void)world->poll(qp.end->options().shares[0].session); }
};

TEST_F(FairShare, IsTheSameForAProcessWithManySessionsAsForOneWithOne) {
    ClientShare many;
    ClientShare one;
    std::vector<Qp*> greedy;
    for (int i = 0; i < 4; ++i) {
        greedy.push_back(&add_session(&many));
    }
    Qp& modest = add_session(&one);
    for (int step = 0; step < 200; ++step) {
        for (Qp* qp : greedy) {
            fill(*qp, 8);
        }
        fill(modest, 8);
        world->step();
        for (Qp* qp : greedy) {
            poll(*qp);
        }
        poll(modest);
    }
    std::uint64_t together = 0;
    for (const Qp* qp : greedy) {
        together += taken(*qp);
        EXPECT_GT(taken(*qp), 0u) << "and it shares it among its own";
    }
    EXPECT_GT(taken(modest), 200u);
    EXPECT_LE(together, taken(modest) * 11 / 10);
    EXPECT_GT(world->session(greedy[0]->end->options().shares[0].session).figures().throttled, 0u);
    EXPECT_EQ(world->session(modest.end->options().shares[0].session).figures().throttled, 0u);
}

TEST_F(FairShare, CountsBytesToo) {
    ClientShare of_bulk;
    ClientShare of_small;
    Qp& bulk = add_session(&of_bulk);
    Qp& small = add_session(&of_small);
    constexpr std::uint32_t kLong = 60 * 1024;  // counts as 15 small requests, which is nearly the share of two steps
    for (int step = 0; step < 400; ++step) {
        fill(bulk, kLong);
        fill(small, 8);
        world->step();
        poll(bulk);
        poll(small);
    }
    EXPECT_GT(taken(bulk), 0u);
    EXPECT_NEAR(static_cast<double>(taken(bulk)) * kLong, 400.0 * kBurst * ClientShare::kRequest, 2.0 * kLong);
    EXPECT_GT(taken(small), 10 * taken(bulk));
}

TEST_F(FairShare, CountsTheBytesOfEveryOpcodeThatSends) {
    const auto throttled = [&](Opcode opcode, std::uint32_t pieces, std::uint32_t length) {
        ClientShare share;
        Qp& qp = add_session(&share);
        const std::uint32_t number = qp.end->options().shares[0].session;
        Session& session = world->session(number);
        const WorkRequest first = request(opcode, 1, {.qp = &qp});
        const std::vector<Sge> sges(pieces, source->sge(length));
        EXPECT_EQ(session.try_submit(first, sges), Refusal::none);
        world->step();
        for (std::uint32_t i = 0; i < kBurst; ++i) {
            submit(write(i, {.qp = &qp}), number);
        }
        world->step();
        const bool was = session.figures().throttled != 0;
        world->close(qp);
        world->proxy.remove_session(number);
        return was;
    };
    for (const Opcode opcode : {Opcode::send, Opcode::send_with_imm, Opcode::send_with_inv, Opcode::rdma_write,
                                Opcode::rdma_write_with_imm, Opcode::rdma_read}) {
        for (const std::uint32_t pieces : {1u, 2u}) {
            EXPECT_TRUE(throttled(opcode, pieces, 60 * 1024 / pieces)) << static_cast<int>(opcode) << ' ' << pieces;
            EXPECT_FALSE(throttled(opcode, pieces, 8)) << static_cast<int>(opcode) << ' ' << pieces;
        }
    }
}

// A request without SGEs has no bytes, whatever stands in the place of the SGE.
TEST_F(FairShare, CountsNoBytesOfARequestWithoutSges) {
    ClientShare share;
    Qp& qp = add_session(&share);
    for (int i = 0; i < 100; ++i) {
        ASSERT_EQ(world->session().try_submit(write(1, {.qp = &qp, .length = 60 * 1024}), std::span<const Sge>{}),
                  Refusal::none);
        world->step();
        poll(qp);
    }
    EXPECT_EQ(world->session().figures().throttled, 0u);
}

// A refused request uses as much of its process's share as a request that is carried out. Garbage therefore takes no
// more from other processes than work does.
TEST_F(FairShare, IsNoMoreForAProcessThatFillsItsRingsWithGarbage) {
    constexpr std::uint64_t kSteps = 400;
    struct Rings {
        SteppedWorld::End& end;
        RingProducer<WorkRequest> submissions;
        RingConsumer<Completion> completions;
    };
    ClientShare of_hostile;
    ClientShare of_good;
    std::vector<Rings> hostile;
    for (int i = 0; i < 4; ++i) {
        SteppedWorld::End& end = *world->ends[add_session(&of_hostile).end->options().shares[0].session];
        auto* const block = static_cast<std::byte*>(end.block);
        hostile.push_back({end,
                           {block + end.layout.submissions(), kDepth},
                           {block + end.layout.completions(), end.layout.completion_ring_slots()}});
    }
    Qp& good = add_session(&of_good);
    std::mt19937_64 random(1);
    const auto garbage = [&] {
        std::array<std::uint64_t, sizeof(WorkRequest) / 8> words;
        std::generate(words.begin(), words.end(), std::ref(random));
        auto request = std::bit_cast<WorkRequest>(words);
        request.num_sge %= 2;
        request.flags &= static_cast<std::uint8_t>(~kInline);  // without inline payload, so each request is one slot
        request.sge.length %= ClientShare::kRequest;
        return request;
    };
    for (std::uint64_t step = 0; step < kSteps; ++step) {
        for (Rings& rings : hostile) {
            while (rings.submissions.try_push(garbage())) {
            }
        }
        fill(good, 8);
        world->step();
        for (Rings& rings : hostile) {
            rings.completions.release(rings.completions.peek(kDepth));
            rings.completions.publish();
        }
        poll(good);
    }
    std::uint64_t together = 0;
    for (const Rings& rings : hostile) {
        EXPECT_FALSE(rings.end.worker_end->broken());
        EXPECT_GT(rings.end.worker_end->figures().refused, 0u);
        together += rings.end.worker_end->submissions().released();
    }
    EXPECT_LE(together, kSteps * kBurst);
    EXPECT_GE(taken(good), kSteps * kBurst * 9 / 10);
}

TEST_F(FairShare, OfAProcessAloneIsWhatItsSessionCanTake) {
    ClientShare share;
    Qp& alone = add_session(&share);
    Qp& own = add_session(nullptr);
    for (int step = 0; step < 100; ++step) {
        fill(alone, 8);
        fill(own, 8);
        world->step();
        poll(alone);
        poll(own);
    }
    EXPECT_EQ(taken(alone), taken(own));
    EXPECT_EQ(world->session(alone.end->options().shares[0].session).figures().throttled, 0u);
}

}  // namespace
}  // namespace pollcore::testing
