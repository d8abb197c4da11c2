// Admission (I3) with every capacity at 1, 2 and 3: random traffic overflows nothing, is never refused for good, and meets
// every limit.
#include <gtest/gtest.h>

#include <array>
#include <map>
#include <random>

#include "stepped_world.hpp"

namespace pollcore::testing {
namespace {

struct Capacities {
    // Ring slots are powers of two.
    std::uint32_t submission_slots = 0;
    std::uint32_t completion_slots = 0;
    std::uint32_t send_depth = 0;
    std::uint32_t recv_depth = 0;
    bool shared = false;  // receives are of a shared receive queue
};

using Causes = std::map<Refusal, std::uint64_t>;

// A sender's and a receiver's session on one worker, and random traffic between them.
class Traffic {
public:
    static constexpr std::uint32_t kSender = 0;
    static constexpr std::uint32_t kReceiver = 1;

    Traffic(const Capacities& capacities, Causes& causes) : causes_(causes) {
        const auto [submission_slots, completion_slots, send_depth, recv_depth, shared] = capacities;
        SteppedWorld::Options options;
        options.submission_slots = submission_slots;
        options.completion_slots = completion_slots;
        world_ = std::make_unique<SteppedWorld>(options);
        world_->add_session();
        world_->add_session();
        world_->add_cq(send_depth + recv_depth + 2 * kMarkersPerQp);  // what may be outstanding, and no more
        from_ = &world_->add_qp({.shares = {{kSender, send_depth, 0}}});
        if (shared) {
            srq_ = &world_->add_srq({.session = kReceiver, .depth = recv_depth});
        }
        to_ = &world_->add_qp({.shares = {{kReceiver, 0, shared ? 0 : recv_depth}}, .srq = srq_});
        world_->connect(*from_, *to_, {.rnr_retry = 7, .min_rnr_timer = 1});
        world_->connect(*to_, *from_);
        region_ = &world_->register_memory(memory_.data(), memory_.size());
    }

    WorkRequest request(Opcode opcode, std::uint8_t flags) {
        WorkRequest request;
        request.tag = next_tag_++;
        if (opcode == Opcode::srq_recv) {
            request.srq = srq_->handle();
        } else {
            request.qp = (opcode == Opcode::recv ? to_ : from_)->handle();
        }
        request.opcode = opcode;
        request.flags = flags;
        request.num_sge = 1;
        request.sge = {reinterpret_cast<std::uintptr_t>(memory_.data()), 8, region_->lkey};
        request.remote_addr = reinterpret_cast<std::uintptr_t>(memory_.data()) + 2048;
        request.rkey = region_->rkey;
        return request;
    }
    Refusal submit(Opcode opcode, std::uint8_t flags) {
        const Refusal refusal =
            world_->session(is_recv(opcode) ? kReceiver : kSender).try_submit(request(opcode, flags));
        ++causes_[refusal];
        if (refusal == Refusal::none) {
            messages_ += opcode == Opcode::send;
            receives_ += is_recv(opcode);
        }
        return refusal;
    }
    Refusal submit_receive() { return submit(srq_ != nullptr ? Opcode::srq_recv : Opcode::recv, 0); }
    void turn() {
        world_->step();
        world_->now += 20'000;
        for (const std::uint32_t session : {kSender, kReceiver}) {
            for (const Completion& completion : world_->poll(session)) {
                EXPECT_TRUE(completion.ok()) << status_name(completion.status);
            }
        }
    }
    // Nothing is in flight any more; messages and receives are evened out.
    void drain() {
        for (int i = 0; i < 10'000 && (messages_ != receives_ || in_flight() != 0); ++i) {
            if (messages_ < receives_) {
                (void)submit(Opcode::send, kSignaled);
            } else if (receives_ < messages_) {
                (void)submit_receive();
            } else if (i % 8 == 7 && world_->session(kSender).figures().in_flight() != 0) {
                (void)submit(Opcode::rdma_write, kSignaled);  // shows that the unsignaled ones before it are done
            }
            turn();
        }
        ASSERT_EQ(messages_, receives_);
        ASSERT_EQ(in_flight(), 0u);
    }
    std::uint64_t in_flight() {
        return world_->session(kSender).figures().in_flight() + world_->session(kReceiver).figures().in_flight();
    }

    void go_on(std::uint64_t seed);

private:
    Causes& causes_;
    alignas(64) std::array<std::byte, 4096> memory_{};
    std::unique_ptr<SteppedWorld> world_;
    SteppedWorld::Srq* srq_ = nullptr;
    SteppedWorld::Qp* from_ = nullptr;
    SteppedWorld::Qp* to_ = nullptr;
    ibv_mr* region_ = nullptr;
    std::uint64_t next_tag_ = 1;
    std::uint64_t messages_ = 0;
    std::uint64_t receives_ = 0;
};

void Traffic::go_on(std::uint64_t seed) {
    std::mt19937_64 random(seed);
    const auto number = [&random](std::uint64_t most) {
        return std::uniform_int_distribution<std::uint64_t>(0, most)(random);
    };
    for (int round = 0; round < 40; ++round) {
        for (int i = 0; i < 60; ++i) {
            const std::uint8_t flags = number(2) == 0 ? kSignaled : 0;
            switch (number(5)) {
                case 0:
                case 1:
                    (void)submit(Opcode::rdma_write, flags);
                    break;
                case 2:
                    (void)submit(Opcode::send, flags);
                    break;
                case 3:
                    (void)submit_receive();
                    break;
                default:
                    turn();
                    break;
            }
        }
        ASSERT_NO_FATAL_FAILURE(drain());
        // With nothing in flight every kind of request is taken at once.
        ASSERT_EQ(submit(Opcode::rdma_write, kSignaled), Refusal::none);
        ASSERT_NO_FATAL_FAILURE(drain());
        ASSERT_EQ(submit_receive(), Refusal::none);
        ASSERT_EQ(submit(Opcode::send, kSignaled), Refusal::none);
        ASSERT_NO_FATAL_FAILURE(drain());
    }
    const WorkerCounters& counters = world_->worker.counters();
    EXPECT_EQ(counters.refused_requests.value(), 0u) << "the worker's own admission disagrees with the session's";
    EXPECT_EQ(counters.post_failures.value(), 0u) << "a queue of the provider overflowed";
    EXPECT_EQ(counters.broken_sessions.value(), 0u) << "a completion ring overflowed";
    EXPECT_EQ(counters.failed_polls.value(), 0u) << "a CQ overflowed";
}

TEST(Admission, OverflowsNothingIsNeverRefusedForGoodAndMeetsEveryLimit) {
    Causes causes;
    std::uint64_t seed = 1;
    for (const std::uint32_t submission_slots : {1u, 2u, 4u}) {
        for (const std::uint32_t completion_slots : {1u, 2u, 4u}) {
            for (const std::uint32_t send_depth : {1u, 2u, 3u}) {
                for (const std::uint32_t recv_depth : {1u, 2u, 3u}) {
                    for (const bool shared : {false, true}) {
                        SCOPED_TRACE(::testing::Message() << submission_slots << " submission slots, " << completion_slots
                                                          << " completion slots, " << send_depth << " sends, " << recv_depth
                                                          << (shared ? " shared" : "") << " receives, seed " << seed);
                        Traffic traffic({submission_slots, completion_slots, send_depth, recv_depth, shared}, causes);
                        ASSERT_NO_FATAL_FAILURE(traffic.go_on(seed++));
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
