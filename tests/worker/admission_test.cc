// Admission (I3): a session accepts a request only if there is room for it. Every capacity has its smallest values.
// Under random traffic no queue overflows, no request is refused for ever, and every limit is reached.
#include <map>
#include <random>

#include <gtest/gtest.h>

#include "worker_fixture.hpp"

namespace pollcore::testing {
namespace {

struct Capacities {
    // Rings need a power of two.
    std::uint32_t submission_slots = 0;
    std::uint32_t completion_slots = 0;
    std::uint32_t send_depth = 0;
    std::uint32_t recv_depth = 0;
    bool shared = false;  // receives go to a shared receive queue
};

class Admission : public SenderReceiverFixture {
protected:
    void make(const Capacities& capacities) {
        const auto [submission_slots, completion_slots, send_depth, recv_depth, shared] = capacities;
        SteppedWorld::Options options;
        options.submission_slots = submission_slots;
        options.completion_slots = completion_slots;
        make_world(options, send_depth + recv_depth + 2 * kMarkersPerQp);  // exactly as many CQEs as may be outstanding
        srq_ = shared ? &world->add_srq({.session = kReceiver, .depth = recv_depth}) : nullptr;
        pair({.shares = {{kSender, send_depth, 0}}}, {.shares = {{kReceiver, 0, shared ? 0 : recv_depth}}, .srq = srq_},
             {.rnr_retry = 7, .min_rnr_timer = 1});
        messages_ = receives_ = 0;
    }

    Refusal submit_counted(const WorkRequest& request) {
        const Refusal refusal = try_submit(request);
        ++causes[refusal];
        if (refusal == Refusal::none) {
            messages_ += request.opcode == Opcode::send;
            receives_ += is_recv(request.opcode);
        }
        return refusal;
    }
    Refusal submit_receive() { return submit_counted(recv(0, {.srq = srq_})); }
    void turn() {
        world->step();
        world->now += 20'000;
        for (const std::uint32_t session : {kSender, kReceiver}) {
            for (const Completion& completion : world->poll(session)) {
                EXPECT_TRUE(completion.ok()) << status_name(completion.status);
            }
        }
    }
    // Continues until nothing is in flight and each message has found a receive.
    void drain() {
        for (int i = 0; i < 10'000 && (messages_ != receives_ || in_flight() != 0); ++i) {
            if (messages_ < receives_) {
                (void)submit_counted(send(0));
            } else if (receives_ < messages_) {
                (void)submit_receive();
            } else if (i % 8 == 7 && world->session(kSender).figures().in_flight() != 0) {
                // The completion of this write proves that the unsignaled requests before it are done.
                (void)submit_counted(write(0));
            }
            turn();
        }
        ASSERT_EQ(messages_, receives_);
        ASSERT_EQ(in_flight(), 0u);
    }
    std::uint64_t in_flight() {
        return world->session(kSender).figures().in_flight() + world->session(kReceiver).figures().in_flight();
    }

    void go_on(std::uint64_t seed);

    std::map<Refusal, std::uint64_t> causes;

private:
    SteppedWorld::Srq* srq_ = nullptr;
    std::uint64_t messages_ = 0;
    std::uint64_t receives_ = 0;
};

void Admission::go_on(std::uint64_t seed) {
    std::mt19937_64 random(seed);
    const auto number = [&random](std::uint64_t most) {
        return std::uniform_int_distribution<std::uint64_t>(0, most)(random);
    };
    for (int round = 0; round < 40; ++round) {
        for (int i = 0; i < 60; ++i) {
            const std::uint8_t flags = signaled_if(number(2) == 0);
            switch (number(5)) {
                case 0:
                case 1: (void)submit_counted(write(0, {.flags = flags})); break;
                case 2: (void)submit_counted(send(0, {.flags = flags})); break;
                case 3: (void)submit_receive(); break;
                default: turn(); break;
            }
        }
        ASSERT_NO_FATAL_FAILURE(drain());
        // With nothing in flight, a request of any kind is accepted at once.
        ASSERT_EQ(submit_counted(write(0)), Refusal::none);
        ASSERT_NO_FATAL_FAILURE(drain());
        ASSERT_EQ(submit_receive(), Refusal::none);
        ASSERT_EQ(submit_counted(send(0)), Refusal::none);
        ASSERT_NO_FATAL_FAILURE(drain());
    }
    const WorkerCounters& counters = world->worker.counters();
    EXPECT_EQ(counters.refused_requests.value(), 0u) << "the worker's own admission disagrees with the session's";
    EXPECT_EQ(counters.post_failures.value(), 0u) << "a queue of the provider overflowed";
    EXPECT_EQ(counters.broken_sessions.value(), 0u) << "a completion ring overflowed";
    EXPECT_EQ(counters.failed_polls.value(), 0u) << "a CQ overflowed";
}

TEST_F(Admission, OverflowsNothingIsNeverRefusedForGoodAndMeetsEveryLimit) {
    std::uint64_t seed = 1;
    for (const std::uint32_t submission_slots : {1u, 2u, 4u}) {
        for (const std::uint32_t completion_slots : {1u, 2u, 4u}) {
            for (const std::uint32_t send_depth : {1u, 2u, 3u}) {
                for (const std::uint32_t recv_depth : {1u, 2u, 3u}) {
                    for (const bool shared : {false, true}) {
                        SCOPED_TRACE(::testing::Message()
                                     << submission_slots << " submission slots, " << completion_slots
                                     << " completion slots, " << send_depth << " sends, " << recv_depth
                                     << (shared ? " shared" : "") << " receives, seed " << seed);
                        make({submission_slots, completion_slots, send_depth, recv_depth, shared});
                        ASSERT_NO_FATAL_FAILURE(go_on(seed++));
                    }
                }
            }
        }
    }
    for (const Refusal limit : {Refusal::submission_ring_full, Refusal::completion_ring_full, Refusal::send_queue_full,
                                Refusal::receive_queue_full, Refusal::srq_full}) {
        EXPECT_GT(causes[limit], 100u) << refusal_name(limit);
    }
    EXPECT_GT(causes[Refusal::none], 10'000u);
}

}  // namespace
}  // namespace pollcore::testing
