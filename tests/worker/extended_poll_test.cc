// The worker on CQs that it polls by ibv_start_poll, also on providers whose extended polling fails.
#include <algorithm>

#include <gtest/gtest.h>

#include "worker_fixture.hpp"

namespace pollcore::testing {
namespace {

// The scripted functions below replace the CQ's own functions and follow this script. Only one test at a time uses it,
// in one thread.
struct PollScript {
    decltype(ibv_cq_ex::start_poll) start = nullptr;
    decltype(ibv_cq_ex::next_poll) next = nullptr;
    decltype(ibv_cq_ex::end_poll) end = nullptr;
    int start_fails_with = 0;
    int next_fails_with = 0;  // returned after `next_allowed` completions
    int next_allowed = 0;
    int started = 0;
    int ended = 0;
};
PollScript poll_script;

int scripted_start(ibv_cq_ex* cq, ibv_poll_cq_attr* attr) {
    if (poll_script.start_fails_with != 0) {
        return poll_script.start_fails_with;
    }
    const int result = poll_script.start(cq, attr);
    poll_script.started += result == 0;
    return result;
}
int scripted_next(ibv_cq_ex* cq) {
    if (poll_script.next_fails_with != 0 && poll_script.next_allowed == 0) {
        return poll_script.next_fails_with;
    }
    const int result = poll_script.next(cq);
    poll_script.next_allowed -= result == 0;
    return result;
}
void scripted_end(ibv_cq_ex* cq) {
    ++poll_script.ended;
    poll_script.end(cq);
}

// With Soft-RoCE (rdma-core 44), the CQ is unusable after ibv_next_poll has found no completion.
int unusable_next(ibv_cq_ex* cq) {
    ADD_FAILURE() << "ibv_next_poll was called on a provider where it cannot be";
    return poll_script.next(cq);
}

[[noreturn]] void must_not_be_read() {
    ADD_FAILURE() << "a field was read that is not valid";
    std::abort();
}

class ExtendedPoll : public WorkerFixture {
protected:
    static SteppedWorld::Options options() {
        SteppedWorld::Options with;
        with.extended_cqs = true;
        with.worker.complete_burst = 4;
        return with;
    }
    ExtendedPoll() { begin(options()); }
    void begin(const SteppedWorld::Options& with) {
        make({}, with);
        cq = world->cq(0).options().extended;
        poll_script = PollScript{.start = cq->start_poll, .next = cq->next_poll, .end = cq->end_poll};
        cq->start_poll = scripted_start;
        cq->next_poll = scripted_next;
        cq->end_poll = scripted_end;
    }

    ibv_cq_ex* cq = nullptr;
};

TEST_F(ExtendedPoll, BringsEverythingInOrderAndEndsEachBatchThatItStarted) {
    // The worker must not use ibv_poll_cq as well.
    world->device->context()->ops.poll_cq = [](ibv_cq*, int, ibv_wc*) -> int {
        ADD_FAILURE() << "ibv_poll_cq";
        return 0;
    };
    for (std::uint64_t tag = 0; tag < 16; ++tag) {
        submit(write(tag));
    }
    const auto completions = world->await(16);
    ASSERT_EQ(completions.size(), 16u);
    for (std::uint64_t tag = 0; tag < 16; ++tag) {
        EXPECT_EQ(completions[tag].tag, tag);
        EXPECT_EQ(completions[tag].status, Status::success);
        EXPECT_EQ(completions[tag].opcode, CompletionOpcode::rdma_write);
    }
    EXPECT_GE(poll_script.started, 4) << "a burst is 4";
    EXPECT_EQ(poll_script.started, poll_script.ended);
}

TEST_F(ExtendedPoll, ReadsOfAnErrorOnlyWhatIsValid) {
    cq->read_opcode = [](ibv_cq_ex*) -> ibv_wc_opcode { must_not_be_read(); };
    cq->read_byte_len = [](ibv_cq_ex*) -> std::uint32_t { must_not_be_read(); };
    cq->read_imm_data = [](ibv_cq_ex*) -> __be32 { must_not_be_read(); };
    cq->read_wc_flags = [](ibv_cq_ex*) -> unsigned { must_not_be_read(); };
    cq->read_vendor_err = [](ibv_cq_ex*) -> std::uint32_t { return 0x77; };
    submit(recv(1));
    WorkRequest bad = request(Opcode::rdma_read, 2);
    bad.rkey ^= 0x5500;
    submit(bad);
    submit(request(Opcode::send_with_imm, 3));
    std::vector<Completion> completions = world->await(3);  // the third completion is the peer's flushed receive
    ASSERT_EQ(completions.size(), 3u);
    for (const Completion& completion : completions) {
        EXPECT_EQ(completion.vendor_err, 0x77u);
        EXPECT_EQ(completion.byte_len, 0u);
    }
    std::sort(completions.begin(), completions.end(), [](const auto& x, const auto& y) { return x.tag < y.tag; });
    EXPECT_EQ(completions[0].status, Status::wr_flush_err);
    EXPECT_EQ(completions[0].opcode, CompletionOpcode::recv);
    EXPECT_EQ(completions[1].status, Status::rem_access_err);
    EXPECT_EQ(completions[1].opcode, CompletionOpcode::rdma_read);
    EXPECT_EQ(completions[2].status, Status::wr_flush_err);
    EXPECT_EQ(completions[2].opcode, CompletionOpcode::send);
}

TEST_F(ExtendedPoll, ReadsAnImmediateOnlyWhereThereIsOne) {
    static std::uint32_t reads = 0;
    static decltype(ibv_cq_ex::read_imm_data) own = nullptr;
    reads = 0;
    own = cq->read_imm_data;
    cq->read_imm_data = [](ibv_cq_ex* it) {
        ++reads;
        return own(it);
    };
    submit(recv(1));
    submit(recv(2));
    submit(send(3));
    WorkRequest with = request(Opcode::send_with_imm, 4);
    with.imm_data = 0x0a0b0c0d;
    submit(with);
    std::vector<Completion> received;
    for (const Completion& completion : world->await(4)) {
        if (completion.from_recv_queue()) {
            received.push_back(completion);
        }
    }
    ASSERT_EQ(received.size(), 2u);
    EXPECT_EQ(received[0].flags, kFromRecvQueue);
    EXPECT_EQ(received[1].flags, kFromRecvQueue | kWithImm);
    EXPECT_EQ(received[1].imm_data, 0x0a0b0c0du);
    EXPECT_EQ(reads, 1u);
}

TEST_F(ExtendedPoll, AStartThatFailsFailsTheCqAndItsQps) {
    submit(write(1));
    poll_script.start_fails_with = EIO;
    world->step(3);
    EXPECT_EQ(world->worker.counters().failed_polls.value(), 1u);
    EXPECT_EQ(world->session().cause(a->handle()), Status::fatal_err);
    EXPECT_EQ(world->session().cause(b->handle()), Status::fatal_err);
    const auto said = world->proxy.take_unasked();
    ASSERT_EQ(said.size(), 1u);
    EXPECT_EQ(said[0].kind, AnswerKind::cq_failed);
}

class ABatchThatFails : public ExtendedPoll, public ::testing::WithParamInterface<int> {};

TEST_P(ABatchThatFails, InItsMiddleKeepsWhatWasRead) {
    poll_script.next_fails_with = GetParam();
    poll_script.next_allowed = 1;
    for (std::uint64_t tag = 0; tag < 4; ++tag) {
        submit(write(tag));
    }
    world->step();  // all four requests complete in the device at once
    const auto read = world->poll();
    ASSERT_EQ(read.size(), 2u);
    for (std::uint64_t tag = 0; tag < 2; ++tag) {
        EXPECT_EQ(read[tag].tag, tag);
        EXPECT_EQ(read[tag].status, Status::success);
    }
    EXPECT_EQ(poll_script.started, poll_script.ended) << "an end follows a failed next";

    world->step();
    EXPECT_EQ(world->worker.counters().failed_polls.value(), 1u);
    EXPECT_EQ(world->session().cause(a->handle()), Status::fatal_err);
    EXPECT_TRUE(world->poll().empty());
    // The remaining requests complete after the QP has been destroyed (H2).
    const QpHandle handle = a->handle();
    world->proxy.park(handle);
    ASSERT_EQ(world->device->destroy(a->qp.get()), 0);
    (void)a->qp.release();
    world->proxy.forget(handle);
    const auto rest = world->poll();
    ASSERT_EQ(rest.size(), 2u);
    EXPECT_EQ(rest[0].tag, 2u);
    EXPECT_EQ(rest[0].status, Status::fatal_err);
    EXPECT_EQ(world->session().figures().in_flight(), 0u);
}

// mlx5 returns a negative number.
INSTANTIATE_TEST_SUITE_P(Errors, ABatchThatFails, ::testing::Values(EIO, -2));

TEST_F(ExtendedPoll, WhereNextCannotBeCalledEachCompletionHasAStartAndAnEndOfItsOwn) {
    SteppedWorld::Options with = options();
    with.next_poll = false;
    begin(with);
    cq->next_poll = unusable_next;
    for (std::uint64_t tag = 0; tag < 16; ++tag) {
        submit(write(tag));
    }
    const auto completions = world->await(16);
    ASSERT_EQ(completions.size(), 16u);
    for (std::uint64_t tag = 0; tag < 16; ++tag) {
        EXPECT_EQ(completions[tag].tag, tag);
    }
    EXPECT_EQ(poll_script.started, 16);
    EXPECT_EQ(poll_script.ended, 16);
}

/// The CQs have time stamps. Session 0 asks for them and session 1 does not; the sessions share both queue pairs. A
/// time stamp is kFirst plus the number of time stamps that were read before.
class TimedPoll : public ExtendedPoll {
protected:
    static constexpr std::uint32_t kTimed = 0;
    static constexpr std::uint32_t kOther = 1;

    TimedPoll() { begin_timed(true); }
    void begin_timed(bool next_poll) {
        SteppedWorld::Options with = options();
        with.next_poll = next_poll;
        with.wide_completions = with.device_time = true;
        make_world(with);
        world->add_session();
        world->add_session();
        world->add_cq();
        pair({.shares = {{kTimed, 16, 16}, {kOther, 16, 0}}});
        cq = world->cq(0).options().extended;
        reads = 0;
        cq->read_completion_ts = [](ibv_cq_ex* it) {
            EXPECT_EQ(it->status, IBV_WC_SUCCESS) << "a time was read that is none";
            return kFirst + reads++;
        };
    }
    std::vector<WideCompletion> polled(std::uint32_t session = kTimed) {
        std::vector<WideCompletion> all;
        WideCompletion one;
        while (world->session(session).poll({&one, 1}) == 1) {
            all.push_back(one);
        }
        return all;
    }

    static constexpr std::uint64_t kFirst = 1u << 20;
    static inline std::uint64_t reads = 0;
};

TEST_F(TimedPoll, GivesEachCompletionItsOwnTimeInBurstsAndAcrossThem) {
    for (std::uint64_t tag = 0; tag < 10; ++tag) {
        submit(write(tag));
    }
    turn();
    const auto completions = polled();
    ASSERT_EQ(completions.size(), 10u);
    for (std::uint64_t tag = 0; tag < 10; ++tag) {
        EXPECT_EQ(completions[tag].tag, tag);
        EXPECT_EQ(completions[tag].device_time, kFirst + tag);
    }
}

TEST_F(TimedPoll, GivesNoneToTheOtherSessionsOfAQueuePair) {
    for (std::uint64_t tag = 0; tag < 8; ++tag) {
        submit(write(tag), tag % 2 == 0 ? kTimed : kOther);
        world->step();
    }
    turn();
    const auto timed = polled(kTimed);
    const auto other = polled(kOther);
    ASSERT_EQ(timed.size(), 4u);
    ASSERT_EQ(other.size(), 4u);
    for (std::size_t i = 0; i < 4; ++i) {
        EXPECT_EQ(timed[i].device_time, kFirst + 2 * i);
        EXPECT_EQ(other[i].device_time, 0u);
    }
}

TEST_F(TimedPoll, GivesASignaledOneItsOwnTimeBehindOthersThatAreNot) {
    for (std::uint64_t tag = 0; tag < 12; ++tag) {
        submit(write(tag, {.flags = signaled_if(tag % 3 == 2)}));
    }
    turn();
    const auto completions = polled();
    ASSERT_EQ(completions.size(), 4u);
    std::uint64_t last = 0;
    for (std::size_t i = 0; i < 4; ++i) {
        EXPECT_EQ(completions[i].tag, 3 * i + 2);
        // Requests that only the worker signaled have time stamps, too, but no session gets these time stamps.
        EXPECT_GT(completions[i].device_time, last);
        last = completions[i].device_time;
    }
    EXPECT_LT(last, kFirst + reads);
}

TEST_F(TimedPoll, GivesNoneToWhatFailedInTheMiddleOfABurstNorToWhatIsFlushed) {
    submit(recv(1));
    submit(write(2));
    WorkRequest bad = write(3);
    bad.rkey ^= 0x5500;
    submit(bad);
    submit(write(4));
    turn();
    auto completions = polled();
    ASSERT_EQ(completions.size(), 4u);
    std::sort(completions.begin(), completions.end(), [](const auto& x, const auto& y) { return x.tag < y.tag; });
    EXPECT_EQ(completions[0].status, Status::wr_flush_err);
    EXPECT_EQ(completions[0].device_time, 0u);
    EXPECT_EQ(completions[1].status, Status::success);
    EXPECT_EQ(completions[1].device_time, kFirst);
    EXPECT_EQ(completions[2].status, Status::rem_access_err);
    EXPECT_EQ(completions[2].device_time, 0u);
    EXPECT_EQ(completions[3].status, Status::wr_flush_err);
    EXPECT_EQ(completions[3].device_time, 0u);
    EXPECT_EQ(reads, 1u);
}

// The provider loses the completion of a signaled request. The runtime completes that request itself while it handles
// the next completion, and must not give it the next completion's time.
TEST_F(TimedPoll, GivesNoneToWhatTheRuntimeCompletesInPlaceOfTheDevice) {
    static std::uint64_t left_out = 0;
    submit(write(1));
    submit(write(2));
    world->step();  // now both writes are complete
    ASSERT_EQ(polled().size(), 2u);
    submit(write(3));
    submit(write(4));
    left_out = 0;
    static decltype(ibv_cq_ex::start_poll) own = nullptr;
    own = cq->start_poll;
    cq->start_poll = [](ibv_cq_ex* it, ibv_poll_cq_attr* attr) {
        const int result = own(it, attr);
        if (result != 0 || left_out++ != 0) {
            return result;
        }
        return it->next_poll(it);
    };
    turn();
    const auto completions = polled();
    ASSERT_EQ(completions.size(), 2u);
    EXPECT_EQ(completions[0].tag, 3u);
    EXPECT_EQ(completions[0].status, Status::general_err);
    EXPECT_EQ(completions[0].device_time, 0u);
    EXPECT_EQ(completions[1].tag, 4u);
    EXPECT_EQ(completions[1].status, Status::success);
    EXPECT_EQ(completions[1].device_time, kFirst + 2);
}

TEST_F(TimedPoll, GivesEachItsOwnTimeWhereNextCannotBeCalled) {
    begin_timed(false);
    cq->next_poll = unusable_next;
    for (std::uint64_t tag = 0; tag < 10; ++tag) {
        submit(write(tag));
    }
    turn();
    const auto completions = polled();
    ASSERT_EQ(completions.size(), 10u);
    for (std::uint64_t tag = 0; tag < 10; ++tag) {
        EXPECT_EQ(completions[tag].device_time, kFirst + tag);
    }
}

}  // namespace
}  // namespace pollcore::testing
