// Replies: completions that the worker writes into the cache line of their request in the submission ring. These tests
// check which completions are replies, and that an application cannot tell which way a completion came.
#include <algorithm>
#include <array>
#include <vector>

#include <gtest/gtest.h>

#include "worker_fixture.hpp"

namespace pollcore::testing {
namespace {

class ReplyTest : public WorkerFixture {
protected:
    /// Makes steps without polling.
    void work() { world->step(50); }
    [[nodiscard]] WorkerSession& end() { return *world->ends[0]->worker_end; }
    /// The number of completions that went through the completion ring so far.
    [[nodiscard]] std::uint64_t by_ring() { return end().completions_written(); }
    /// Polls until no more completions come.
    [[nodiscard]] std::vector<std::uint64_t> tags() {
        std::vector<std::uint64_t> all;
        for (const Completion& completion : world->poll()) {
            EXPECT_TRUE(completion.ok());
            EXPECT_EQ(completion.flags & kNotInLine, 0);
            all.push_back(completion.tag);
        }
        return all;
    }
    using Tags = std::vector<std::uint64_t>;
};

TEST_F(ReplyTest, OneAtATimeNothingGoesByTheRing) {
    make();
    for (std::uint64_t i = 0; i < 1000; ++i) {
        submit(write(i));
        work();
        ASSERT_EQ(tags(), Tags{i});
    }
    EXPECT_EQ(by_ring(), 0u);
    const SessionFigures figures = world->session().figures();
    EXPECT_EQ(figures.completed, 1000u);
    EXPECT_EQ(figures.in_flight(), 0u);
    EXPECT_EQ(world->worker.counters().delivered.value(), 1000u);
}

// Right after a reply, the application cannot have submitted again yet. A look at its ring would only delay its next
// request.
TEST_F(ReplyTest, AfterAnAnswerAStepLeavesOutTwoLooksButNeverItsLast) {
    make();
    const auto looks_until_taken = [&](std::uint64_t tag, std::uint32_t most) {
        submit(write(tag));
        const std::uint64_t before = world->worker.counters().steps.value();
        EXPECT_NE(world->worker.step(world->now, most), 0u);
        const std::uint64_t looks = world->worker.counters().steps.value() - before;
        work();
        EXPECT_EQ(tags(), Tags{tag});
        return looks;
    };
    EXPECT_EQ(looks_until_taken(1, 16), 1u) << "nothing was answered before";
    EXPECT_EQ(looks_until_taken(2, 16), 3u);
    EXPECT_EQ(looks_until_taken(3, 2), 2u);
    EXPECT_EQ(looks_until_taken(4, 1), 1u);
}

TEST_F(ReplyTest, EachOpcodeSaysWhatItWasAndHowLong) {
    make();
    struct Expected {
        Opcode opcode;
        std::uint32_t length;
        CompletionOpcode completed;
        std::uint32_t byte_len;
    };
    for (const auto& [opcode, length, completed, byte_len] :
         {Expected{Opcode::rdma_write, 24, CompletionOpcode::rdma_write, 0},
          Expected{Opcode::rdma_read, 24, CompletionOpcode::rdma_read, 24},
          Expected{Opcode::atomic_fetch_and_add, 8, CompletionOpcode::fetch_add, 8},
          Expected{Opcode::atomic_cmp_and_swp, 8, CompletionOpcode::comp_swap, 8}}) {
        WorkRequest each = request(opcode, 7, {.length = length});
        each.swap = 0x1234567890;
        submit(each);
        work();
        const std::vector<Completion> got = world->poll();
        ASSERT_EQ(got.size(), 1u);
        EXPECT_EQ(got[0].tag, 7u);
        EXPECT_EQ(got[0].qp, a->handle());
        EXPECT_EQ(got[0].status, Status::success);
        EXPECT_EQ(got[0].opcode, completed);
        EXPECT_EQ(got[0].byte_len, byte_len);
        EXPECT_EQ(got[0].flags, 0);
    }
    EXPECT_EQ(by_ring(), 0u);
}

TEST_F(ReplyTest, WhatIsBehindItInItsQueueComesAfterIt) {
    make();
    for (std::uint64_t i = 0; i < 200; i += 4) {
        for (std::uint64_t j = 0; j < 4; ++j) {
            submit(write(i + j));
            world->step(static_cast<int>(i / 4 % 3));
        }
        work();
        ASSERT_EQ(tags(), (Tags{i, i + 1, i + 2, i + 3}));
    }
    EXPECT_EQ(by_ring(), 150u) << "only the first of four stood alone";
}

TEST_F(ReplyTest, APollOfOneTakesThemInTheSameOrder) {
    make();
    for (std::uint64_t i = 0; i < 3; ++i) {
        submit(write(i));
    }
    work();
    for (std::uint64_t i = 0; i < 3; ++i) {
        Completion one;
        ASSERT_EQ(world->session().poll({&one, 1}), 1u);
        EXPECT_EQ(one.tag, i);
    }
}

TEST_F(ReplyTest, OneFailsByTheRingAndTheNextComesInItsLineAgain) {
    make();
    auto [c, d] = pair();
    WorkRequest bad = write(1);
    bad.rkey ^= 0x5a5a;
    submit(bad);
    work();
    const std::vector<Completion> got = world->poll();
    ASSERT_EQ(got.size(), 1u);
    EXPECT_EQ(got[0].status, Status::rem_access_err);
    EXPECT_EQ(got[0].flags, 0);
    const std::uint64_t before = by_ring();
    submit(write(2, {.qp = c}));
    work();
    EXPECT_EQ(tags(), Tags{2});
    EXPECT_EQ(by_ring(), before);
}

TEST_F(ReplyTest, OfTwoQueuePairsOneComesInItsLine) {
    make();
    auto [c, d] = pair();
    submit(write(1));
    submit(write(2, {.qp = c}));
    work();
    EXPECT_EQ(by_ring(), 1u);
    Tags got = tags();
    std::sort(got.begin(), got.end());
    EXPECT_EQ(got, (Tags{1, 2}));
}

TEST_F(ReplyTest, WhatWasNotPolledIsKeptWhenItsSlotIsWrittenAgain) {
    SteppedWorld::Options options;
    options.submission_slots = 32;
    make({.shares = {{0, 64, 16}}}, options);
    Tags expected;
    for (std::uint64_t round = 0; round < 20; ++round) {
        submit(write(100 * round));
        work();
        expected.push_back(100 * round);
        for (std::uint64_t i = 1; i < 40; ++i) {  // more requests than the ring has slots
            submit(write(100 * round + i));
            work();
            expected.push_back(100 * round + i);
        }
        ASSERT_EQ(tags(), expected);
        EXPECT_EQ(world->session().figures().in_flight(), 0u);
        expected.clear();
    }
}

TEST_F(ReplyTest, AWaitingRequestKeepsNoMoreThanAQuarterOfTheRing) {
    SteppedWorld::Options options;
    options.submission_slots = 32;
    make({.shares = {{0, 16, 16}}}, options);
    auto [c, d] = pair();
    submit(send(1));  // the peer has posted no receive
    work();
    for (std::uint64_t i = 0; i < 60; ++i) {
        submit(write(2 + i, {.qp = c}));
        work();
        EXPECT_LE(end().submissions().released() - end().submissions().published(), 8u);
        ASSERT_EQ(tags(), Tags{2 + i});
    }
    submit(recv(90));
    const std::vector<Completion> got = world->await(2);
    ASSERT_EQ(got.size(), 2u);
    EXPECT_EQ(got[0].tag + got[1].tag, 91u);
    EXPECT_FALSE(end().expects_reply());
}

TEST_F(ReplyTest, ASmallRingHasNoSlotsToSpareForIt) {
    for (const std::uint32_t slots : {1u, 2u, 8u, 16u}) {
        SteppedWorld::Options options;
        options.submission_slots = slots;
        make({}, options);
        for (std::uint64_t i = 0; i < 20; ++i) {
            submit(write(i));
            world->step();
            EXPECT_FALSE(end().submissions().unpublished());
            work();
            ASSERT_EQ(tags(), Tags{i});
        }
        EXPECT_EQ(by_ring(), 20u);
    }
}

TEST_F(ReplyTest, ItDoesNotOvertakeWhatIsLeftOfTheQueuePairsLifeBefore) {
    make();
    for (std::uint64_t i = 0; i < 4; ++i) {
        submit(write(i));
    }
    work();
    world->reset(*a);
    world->reset(*b);
    connect(*a, *b);
    EXPECT_EQ(world->session().poll(std::span<Completion>{}), 0u) << "which says nothing of the ring";
    submit(write(4));
    work();
    EXPECT_EQ(tags(), (Tags{0, 1, 2, 3, 4}));
    const std::uint64_t before = by_ring();
    EXPECT_EQ(tags(), Tags{});
    submit(write(5));
    work();
    EXPECT_EQ(tags(), Tags{5});
    EXPECT_EQ(by_ring(), before);
}

// One request may wait for any length of time. The worker gives the waiting request's slot back, and from then on the
// session looks for the completions of later requests in the completion ring only.
TEST_F(ReplyTest, OthersArePolledInBurstsWhileOneWaits) {
    SteppedWorld::Options options;
    options.submission_slots = 32;
    make({}, options);
    auto [c, d] = pair();
    submit(send(1000));  // the peer has posted no receive
    work();
    for (std::uint64_t round = 0; round < 20; ++round) {
        for (std::uint64_t i = 0; i < 10; ++i) {
            submit(write(10 * round + i, {.qp = c}));
        }
        work();
        std::array<Completion, 16> some;
        ASSERT_EQ(world->session().poll(some), 10u);
        for (std::uint64_t i = 0; i < 10; ++i) {
            EXPECT_EQ(some[i].tag, 10 * round + i);
        }
    }
    submit(recv(1));
    const auto ended = world->await(2);
    ASSERT_EQ(ended.size(), 2u);
    EXPECT_EQ(ended[0].tag + ended[1].tag, 1001u);
    EXPECT_EQ((ended[0].flags | ended[1].flags) & kNotInLine, 0);
}

TEST_F(ReplyTest, WideCompletionsAreInTheRing) {
    SteppedWorld::Options options;
    options.wide_completions = true;
    make({}, options);
    submit(write(5));
    work();
    EXPECT_EQ(by_ring(), 2u);
    std::array<WideCompletion, 4> some;
    ASSERT_EQ(world->session().poll(some), 1u);
    EXPECT_EQ(some[0].tag, 5u);
}

TEST_F(ReplyTest, ASessionThatIsNotWideGivesThemAsWideOnesToo) {
    make();
    submit(write(5));
    submit(write(6));
    work();
    std::array<WideCompletion, 4> some;
    some.fill({});
    some[0].src_qp = 77;
    ASSERT_EQ(world->session().poll(some), 2u);
    EXPECT_EQ(some[0].tag, 5u);
    EXPECT_EQ(some[0].src_qp, 0u);
    EXPECT_EQ(some[1].tag, 6u);
}

TEST_F(ReplyTest, NobodyButTheLibraryMarksARequest) {
    make();
    for (const std::uint8_t bit : {RequestHead::kReplyInLine, RequestHead::kReplied}) {
        WorkRequest request = write(1);
        request.flags |= bit;
        EXPECT_EQ(world->session().try_submit(request), Refusal::bad_flags);
        const std::array<WorkRequest, 2> two{write(2), request};
        EXPECT_EQ(world->session().try_submit(two).refusal, Refusal::bad_flags);
        work();
        EXPECT_EQ(tags(), Tags{2});
    }
}

// Only a process with a different library writes such requests.
TEST_F(ReplyTest, ARingFullOfMarkedRequestsEndsThemAll) {
    make();
    RingProducer<WorkRequest> ring = world->raw();
    std::uint64_t submitted = 0;
    for (int round = 0; round < 20; ++round) {
        const std::size_t n = ring.reserve(12);
        ASSERT_EQ(n, 12u);
        for (std::size_t i = 0; i < n; ++i) {
            WorkRequest request = write(submitted++);
            request.flags = static_cast<std::uint8_t>((i % 3 == 2 ? kSignaled : 0) | RequestHead::kReplyInLine |
                                                      (i % 4 == 0 ? RequestHead::kReplied : 0));
            ring.write(i, request);
        }
        ring.commit(n);
        work();
        (void)world->poll();
    }
    const WorkerCounters& counters = world->worker.counters();
    EXPECT_EQ(counters.delivered.value() + counters.retired.value(), submitted);
    EXPECT_EQ(end().in_flight(), 0u);
}

TEST_F(ReplyTest, AFollowedOneIsCountedInEachStage) {
    make();
    world->now = 1000;
    for (std::uint64_t i = 0; i < 3 * kLatencySampleEvery + 1; ++i) {
        submit(write(i));
        work();
        ASSERT_EQ(tags(), Tags{i});
    }
    EXPECT_EQ(by_ring(), 0u);
    EXPECT_EQ(world->session().stage_latency().completion_ring.count(), 3u);
    EXPECT_EQ(world->session().stage_latency().device.count(), 3u);
}

}  // namespace
}  // namespace pollcore::testing
