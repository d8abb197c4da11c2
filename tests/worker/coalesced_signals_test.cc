// QueuePairOptions::coalesce_signals: the requests of a chain share the CQE of the chain's last request. While nothing
// fails, an application can notice this only by the time at which its completions come.
#include <array>
#include <cstdint>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "post_each.hpp"
#include "worker_fixture.hpp"

namespace pollcore::testing {
namespace {

using Tags = std::vector<std::uint64_t>;

Tags tags_of(const std::vector<Completion>& completions) {
    Tags tags;
    for (const Completion& completion : completions) {
        tags.push_back(completion.tag);
    }
    return tags;
}

std::vector<Status> statuses_of(const std::vector<Completion>& completions) {
    std::vector<Status> statuses;
    for (const Completion& completion : completions) {
        statuses.push_back(completion.status);
    }
    return statuses;
}

/// If the parameter is true, the queue pair's requests are ordinary and take the fast path (worker/ordinary.hpp). If it
/// is false, they take the general way.
class CoalescedSignalsTest : public WorkerFixture, public ::testing::WithParamInterface<bool> {
protected:
    [[nodiscard]] static SteppedWorld::QpShape shape() { return {.ordinary = GetParam(), .coalesce_signals = true}; }
    void make(SteppedWorld::Options options = {}) { WorkerFixture::make(shape(), std::move(options)); }
    [[nodiscard]] WorkRequest with_bad_key(std::uint64_t tag) const {
        WorkRequest bad = write(tag);
        bad.rkey ^= 0x5a5a;
        return bad;
    }
    [[nodiscard]] std::uint64_t device_completions() const { return world->worker.counters().completions.value(); }
};

INSTANTIATE_TEST_SUITE_P(By, CoalescedSignalsTest, ::testing::Bool(),
                         [](const auto& one) { return one.param ? "the_ordinary_way" : "the_general_way"; });

TEST_P(CoalescedSignalsTest, ABurstHasOneCompletionOfTheDevicesAndAllOfItsOwn) {
    make();
    submit(std::array{write(0), write(1), write(2), write(3), write(4)});
    const std::vector<Completion> got = step_until(5);
    EXPECT_EQ(tags_of(got), (Tags{0, 1, 2, 3, 4}));
    EXPECT_EQ(statuses_of(got), std::vector<Status>(5, Status::success));
    EXPECT_EQ(device_completions(), 1u);
    EXPECT_EQ(world->worker.counters().delivered.value(), 5u);
    EXPECT_EQ(world->session().figures().in_flight(), 0u);
}

TEST_P(CoalescedSignalsTest, OneByItselfIsAsAlways) {
    make();
    for (std::uint64_t tag = 0; tag < 40; ++tag) {
        submit(write(tag));
        EXPECT_EQ(tags_of(step_until(1)), Tags{tag});
    }
    EXPECT_EQ(device_completions(), 40u);
}

TEST_P(CoalescedSignalsTest, ReadsAndAtomicsSayHowManyBytesCame) {
    make();
    WorkRequest two = request(Opcode::rdma_read, 1, {.length = 24});
    WorkRequest add = request(Opcode::atomic_fetch_and_add, 2, {.to = 512});
    add.compare_add = 1;
    submit(std::array{write(0, {.length = 40}), two, add, request(Opcode::rdma_read, 3, {.length = 9}), write(4)});
    const std::vector<Completion> got = step_until(5);
    ASSERT_EQ(tags_of(got), (Tags{0, 1, 2, 3, 4}));
    const std::array<std::uint32_t, 5> bytes{0, 24, 8, 9, 0};
    for (std::size_t i = 0; i < bytes.size(); ++i) {
        EXPECT_TRUE(got[i].ok());
        EXPECT_EQ(got[i].byte_len, bytes[i]) << i;
    }
    EXPECT_EQ(got[2].opcode, CompletionOpcode::fetch_add);
    EXPECT_EQ(device_completions(), 1u);
}

TEST_P(CoalescedSignalsTest, AReadOfSeveralSgesBringsAllOfThem) {
    make();
    WorkRequest read = request(Opcode::rdma_read, 0);
    const std::array sges{source->sge(16, 0), source->sge(8, 64), source->sge(24, 128)};
    ASSERT_EQ(world->session().try_submit(read, sges), Refusal::none);
    submit(write(1));
    const std::vector<Completion> got = step_until(2);
    ASSERT_EQ(tags_of(got), (Tags{0, 1}));
    EXPECT_EQ(got[0].byte_len, 48u);
}

TEST_P(CoalescedSignalsTest, AnUnsignaledLastOneCarriesTheSignalOfThoseBeforeIt) {
    make();
    submit(std::array{write(0), write(1, {.flags = 0}), write(2), write(3, {.flags = 0})});
    EXPECT_EQ(tags_of(step_until(2)), (Tags{0, 2}));
    turn();
    EXPECT_EQ(device_completions(), 1u);
    EXPECT_EQ(world->session().retired(a->handle()), 2u);
    EXPECT_EQ(world->session().figures().in_flight(), 0u);
}

TEST_P(CoalescedSignalsTest, WhereAllAreUnsignaledNothingIsAdded) {
    make();
    submit(std::array{write(0, {.flags = 0}), write(1, {.flags = 0})});
    turn();
    EXPECT_EQ(device_completions(), 0u);
}

TEST_P(CoalescedSignalsTest, UnsignaledWorkNeverFillsTheQueueForGood) {
    make();
    std::uint64_t tag = 0;
    for (int i = 0; i < 400; ++i) {
        tag += try_submit(write(tag, {.flags = signaled_if(i % 7 == 3)})) == Refusal::none;
        if (i % 5 == 0) {
            turn(4);
            (void)world->poll();
        }
    }
    EXPECT_GT(tag, 300u);
    submit(write(tag));
    turn();
    (void)world->poll();
    EXPECT_EQ(world->session().figures().in_flight(), 0u);
}

TEST_P(CoalescedSignalsTest, WhatStandsBeforeAFailureHasSucceededAndWhatIsBehindItIsFlushed) {
    make();
    submit(std::array{write(0), write(1), with_bad_key(2), write(3), write(4)});
    const std::vector<Completion> got = world->await(5);
    EXPECT_EQ(tags_of(got), (Tags{0, 1, 2, 3, 4}));
    EXPECT_EQ(statuses_of(got), (std::vector<Status>{Status::success, Status::success, Status::rem_access_err,
                                                     Status::wr_flush_err, Status::wr_flush_err}));
    turn();
    EXPECT_TRUE(world->poll().empty());
    EXPECT_EQ(world->session().figures().in_flight(), 0u);
}

TEST_P(CoalescedSignalsTest, SessionsThatShareTheQueuePairEachGetTheirs) {
    make_world();
    world->add_session();
    world->add_session();
    world->add_cq();
    SteppedWorld::QpShape both = shape();
    both.shares = {{0, 16, 16}, {1, 16, 0}};
    pair(both);
    submit(write(0), 0);
    submit(write(1), 0);
    submit(write(10), 1);
    submit(write(11), 1);
    EXPECT_EQ(tags_of(step_until(2, 0)), (Tags{0, 1}));
    EXPECT_EQ(tags_of(step_until(2, 1)), (Tags{10, 11}));
    EXPECT_EQ(device_completions(), 1u);
}

TEST_P(CoalescedSignalsTest, WideCompletionsToo) {
    make({.wide_completions = true});
    submit(std::array{write(0), write(1), write(2)});
    EXPECT_EQ(tags_of(step_until(3)), (Tags{0, 1, 2}));
    EXPECT_EQ(device_completions(), 1u);
}

// A provider that refuses some work requests of a chain, or that loses completions. The faults are inserted into the
// context's ops, where real faults occur too.
struct Script {
    ibv_context_ops device{};
    std::set<std::uint64_t> refused;  // numbers of work requests to refuse, from 0; markers (no SGE) are not counted
    std::uint64_t posted = 0;
    bool loses = false;  // drops all completions
    bool holds = false;  // polls return no completions
    // Drops the completion of the failed request, but not the completions of the flushed requests.
    bool loses_failure = false;
};
Script script;

class CoalescedSignalsOnAFailingProvider : public CoalescedSignalsTest {
protected:
    CoalescedSignalsOnAFailingProvider() { begin(); }
    void begin() {
        make();
        ibv_context_ops& ops = world->device->context()->ops;
        script = Script{.device = ops};
        ops.post_send = [](ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad) {
            return post_each(script.device.post_send, qp, wr, bad, [](const ibv_send_wr& one) {
                return one.num_sge != 0 && script.refused.count(script.posted++) != 0;
            });
        };
        ops.poll_cq = [](ibv_cq* cq, int n, ibv_wc* wc) {
            int taken = script.holds ? 0 : script.device.poll_cq(cq, script.loses_failure ? 1 : n, wc);
            if (script.loses_failure && taken == 1 && wc->status != IBV_WC_SUCCESS &&
                wc->status != IBV_WC_WR_FLUSH_ERR) {
                taken = 0;
            }
            return script.loses ? 0 : taken;
        };
    }
    /// The worker reports that a queue pair cannot go on, and the control thread then takes the queue pair to ERR.
    std::vector<Completion> all_after_the_device_was_told(std::size_t n) {
        world->step();
        const auto said = world->proxy.take_unasked();
        EXPECT_EQ(said.size(), 1u);
        EXPECT_TRUE(!said.empty() && said[0].kind == AnswerKind::flow_failed);
        world->to_error(*a);
        return world->await(n);
    }
};

INSTANTIATE_TEST_SUITE_P(By, CoalescedSignalsOnAFailingProvider, ::testing::Bool(),
                         [](const auto& one) { return one.param ? "the_ordinary_way" : "the_general_way"; });

TEST_P(CoalescedSignalsOnAFailingProvider, AMemoryKeyIsInUseUntilTheBurstHasEnded) {
    script.holds = true;
    submit(std::array{write(0), write(1)});
    world->step();
    EXPECT_TRUE(world->uses_key(0, 0, source->lkey()));
    script.holds = false;
    EXPECT_EQ(step_until(2).size(), 2u);
    EXPECT_FALSE(world->uses_key(0, 0, source->lkey()));
}

// The requests behind the refused one are posted. The last of them is signaled, so the chain still has its CQE.
TEST_P(CoalescedSignalsOnAFailingProvider, OneInTheMiddleMayBeRefused) {
    script.refused = {2};
    submit(std::array{write(0), write(1), write(2), write(3), write(4)});
    const std::vector<Completion> got = world->await(5);
    // The refused request comes first, because it never was in the queue.
    EXPECT_EQ(tags_of(got), (Tags{2, 0, 1, 3, 4}));
    for (const Completion& completion : got) {
        EXPECT_EQ(completion.status, completion.tag == 2 ? Status::post_refused : Status::success);
    }
    EXPECT_EQ(world->session().state(a->handle()), QpState::ready);
}

// The refused request is the last of the chain, so no signaled request follows the requests that were posted.
TEST_P(CoalescedSignalsOnAFailingProvider, AChainWithoutItsLastFailsTheQueuePair) {
    for (const std::set<std::uint64_t>& refused : {std::set<std::uint64_t>{2}, {0, 2}, {1, 2}}) {
        begin();
        script.refused = refused;
        submit(std::array{write(0), write(1), write(2)});
        const std::vector<Completion> got = all_after_the_device_was_told(3);
        EXPECT_EQ(got.size(), 3u);
        for (const Completion& completion : got) {
            const bool possible = completion.status == Status::success || completion.status == Status::wr_flush_err;
            EXPECT_TRUE(refused.count(completion.tag) != 0 ? completion.status == Status::post_refused : possible);
        }
        EXPECT_EQ(world->session().state(a->handle()), QpState::error);
        EXPECT_EQ(world->session().cause(a->handle()), Status::post_refused);
        EXPECT_EQ(world->session().figures().in_flight(), 0u);
    }
}

TEST_P(CoalescedSignalsOnAFailingProvider, ABurstThatIsRefusedAsAWholeLeavesTheQueuePairAsItWas) {
    script.refused = {0, 1, 2};
    submit(std::array{write(0), write(1), write(2)});
    EXPECT_EQ(statuses_of(world->await(3)), std::vector<Status>(3, Status::post_refused));
    EXPECT_EQ(world->session().state(a->handle()), QpState::ready);
}

TEST_P(CoalescedSignalsOnAFailingProvider, WhatIsInFlightInAnErrorIsFlushedOnce) {
    script.holds = true;
    submit(std::array{write(0), write(1), write(2)});
    world->step();
    EXPECT_EQ(world->session().figures().in_flight(), 3u);
    world->to_error(*a);
    script.holds = false;
    const std::vector<Completion> got = world->await(3);
    EXPECT_EQ(tags_of(got), (Tags{0, 1, 2}));
    turn();
    EXPECT_TRUE(world->poll().empty());
    EXPECT_EQ(world->session().figures().in_flight(), 0u);
}

// The device completes the requests, but the completions are lost.
TEST_P(CoalescedSignalsOnAFailingProvider, AResetCompletesWhatIsInFlight) {
    script.loses = true;
    submit(std::array{write(0), write(1), write(2)});
    world->step();
    EXPECT_EQ(world->session().figures().in_flight(), 3u);
    EXPECT_FALSE(world->reset(*a, 0));
    const std::vector<Completion> got = world->poll();
    EXPECT_EQ(tags_of(got), (Tags{0, 1, 2}));
    EXPECT_EQ(statuses_of(got), std::vector<Status>(3, Status::qp_closed));
    EXPECT_EQ(world->session().figures().in_flight(), 0u);
}

TEST_P(CoalescedSignalsOnAFailingProvider, TheFirstOfAChainMayBeRefusedAndTheOthersGoOn) {
    script.refused = {0, 1};
    submit(std::array{write(0), write(1), write(2), write(3)});
    const std::vector<Completion> got = world->await(4);
    EXPECT_EQ(tags_of(got), (Tags{0, 1, 2, 3}));
    EXPECT_EQ(statuses_of(got),
              (std::vector<Status>{Status::post_refused, Status::post_refused, Status::success, Status::success}));
    EXPECT_EQ(world->session().state(a->handle()), QpState::ready);
}

TEST_P(CoalescedSignalsOnAFailingProvider, UnsignaledOnesMayBeCutShort) {
    script.refused = {1};
    submit(std::array{write(0, {.flags = 0}), write(1, {.flags = 0})});
    EXPECT_EQ(tags_of(world->await(1)), Tags{1});
    EXPECT_EQ(world->session().state(a->handle()), QpState::ready);
}

// The CQE of the chain's last request never comes. The next chain's CQE proves that the requests before the last one
// succeeded.
TEST_P(CoalescedSignalsOnAFailingProvider, ALostCompletionIsSaidOfTheOneThatHadIt) {
    script.loses = true;
    submit(std::array{write(0), write(1), write(2)});
    turn();
    EXPECT_TRUE(world->poll().empty());
    script.loses = false;
    submit(std::array{write(3), write(4)});
    const std::vector<Completion> got = world->await(5);
    EXPECT_EQ(tags_of(got), (Tags{0, 1, 2, 3, 4}));
    EXPECT_EQ(statuses_of(got), (std::vector<Status>{Status::success, Status::success, Status::general_err,
                                                     Status::success, Status::success}));
    submit(std::array{write(5), write(6)});
    EXPECT_EQ(statuses_of(world->await(2)), std::vector<Status>(2, Status::success))
        << "later bursts complete normally";
}

// The CQE of the failed request is lost, so the next CQE, which is a flush, covers it.
TEST_P(CoalescedSignalsOnAFailingProvider, AFlushProvesNoSuccess) {
    script.loses_failure = true;
    submit(std::array{write(0), with_bad_key(1), write(2, {.flags = 0}), write(3)});
    const std::vector<Completion> got = world->await(4);
    EXPECT_EQ(tags_of(got), (Tags{0, 1, 2, 3}));
    EXPECT_EQ(statuses_of(got), std::vector<Status>(4, Status::wr_flush_err));
    turn();
    EXPECT_EQ(world->session().figures().in_flight(), 0u);
}

TEST_P(CoalescedSignalsOnAFailingProvider, NothingSucceedsBehindWhatCountsAsFlushed) {
    script.loses = true;
    submit(std::array{write(0), write(1, {.flags = 0})});
    turn();
    script.loses = false;
    world->to_error(*a);
    const std::vector<Completion> got = world->await(2);
    EXPECT_EQ(tags_of(got), (Tags{0, 1}));
    EXPECT_EQ(statuses_of(got), std::vector<Status>(2, Status::wr_flush_err));
}

}  // namespace
}  // namespace pollcore::testing
