// What verbs promise to programs of the events of completion queues: ibv_get_cq_event(3), ibv_req_notify_cq(3).
#include <fcntl.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "verbs_fixture.hpp"

namespace pollcore::test {
namespace {

class Events : public Verbs {
protected:
    void SetUp() override {
        Verbs::SetUp();
        channel_ = ibv_create_comp_channel(context_);
        ASSERT_NE(channel_, nullptr);
        recv_cq_ = make_cq(64, channel_);
        send_cq_ = make_cq();
        a_ = make_qp(send_cq_, send_cq_);
        b_ = make_qp(send_cq_, recv_cq_);
        connect(a_, b_);
    }
    void TearDown() override {
        EXPECT_EQ(ibv_destroy_qp(a_), 0);
        EXPECT_EQ(ibv_destroy_qp(b_), 0);
        EXPECT_EQ(ibv_destroy_comp_channel(channel_), EBUSY);
        EXPECT_EQ(ibv_destroy_cq(recv_cq_), 0);
        EXPECT_EQ(ibv_destroy_cq(send_cq_), 0);
        EXPECT_EQ(ibv_destroy_comp_channel(channel_), 0);
        Verbs::TearDown();
    }
    void message() {
        ASSERT_EQ(post_recv(b_, 1, 4096, 64), 0);
        ASSERT_EQ(post_send(a_, 2, 0, 8), 0);
        EXPECT_EQ(take(send_cq_, 1).size(), 1u);
    }
    void take_event() {
        ibv_cq* cq = nullptr;
        void* context = nullptr;
        ASSERT_EQ(ibv_get_cq_event(channel_, &cq, &context), 0);
        EXPECT_EQ(cq, recv_cq_);
        EXPECT_EQ(context, static_cast<void*>(this));
        ibv_ack_cq_events(cq, 1);
    }

    ibv_comp_channel* channel_ = nullptr;
    ibv_cq* recv_cq_ = nullptr;
    ibv_cq* send_cq_ = nullptr;
    ibv_qp* a_ = nullptr;
    ibv_qp* b_ = nullptr;
};

TEST_F(Events, OneArmingIsOneEvent) {
    for (int round = 0; round < 20; ++round) {
        ASSERT_EQ(ibv_req_notify_cq(recv_cq_, 0), 0);
        EXPECT_FALSE(is_readable(channel_->fd)) << round;
        message();
        ASSERT_TRUE(is_readable(channel_->fd, 10'000)) << round;
        take_event();
        EXPECT_FALSE(is_readable(channel_->fd)) << round;
        EXPECT_EQ(take(recv_cq_, 1).size(), 1u);
        message();
        EXPECT_EQ(take(recv_cq_, 1).size(), 1u);
        EXPECT_FALSE(is_readable(channel_->fd)) << "not armed";
    }
}

TEST_F(Events, AnEventComesThoughItsCompletionWasPolled) {
    ASSERT_EQ(ibv_req_notify_cq(recv_cq_, 0), 0);
    message();
    EXPECT_EQ(take(recv_cq_, 1).size(), 1u);
    ASSERT_TRUE(is_readable(channel_->fd, 10'000));
    take_event();
}

TEST_F(Events, ANonblockingChannelSaysThatThereIsNone) {
    ASSERT_EQ(::fcntl(channel_->fd, F_SETFL, ::fcntl(channel_->fd, F_GETFL) | O_NONBLOCK), 0);
    ibv_cq* cq = nullptr;
    void* context = nullptr;
    ASSERT_EQ(ibv_req_notify_cq(recv_cq_, 0), 0);
    EXPECT_EQ(ibv_get_cq_event(channel_, &cq, &context), -1);
    EXPECT_EQ(errno, EAGAIN);
    message();
    ASSERT_TRUE(is_readable(channel_->fd, 10'000));
    take_event();
    EXPECT_EQ(take(recv_cq_, 1).size(), 1u);
}

TEST_F(Events, AThreadThatWaitsIsWoken) {
    ASSERT_EQ(ibv_req_notify_cq(recv_cq_, 0), 0);
    std::thread waiting([&] { take_event(); });
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    message();
    waiting.join();
    EXPECT_EQ(take(recv_cq_, 1).size(), 1u);
}

TEST_F(Events, ACompletionQueueCountsAcknowledgedEvents) {
    ASSERT_EQ(ibv_req_notify_cq(recv_cq_, 0), 0);
    message();
    ASSERT_TRUE(is_readable(channel_->fd, 10'000));
    ibv_cq* cq = nullptr;
    void* context = nullptr;
    ASSERT_EQ(ibv_get_cq_event(channel_, &cq, &context), 0);
    EXPECT_EQ(take(recv_cq_, 1).size(), 1u);
    std::atomic<bool> acknowledged{false};
    ibv_cq* const other = make_cq(16, channel_);
    std::thread later([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        acknowledged = true;
        ibv_ack_cq_events(cq, 1);
    });
    EXPECT_EQ(ibv_destroy_cq(other), 0) << "it has no events";
    ASSERT_EQ(ibv_destroy_qp(b_), 0);
    ASSERT_EQ(ibv_destroy_cq(recv_cq_), 0);
    EXPECT_TRUE(acknowledged) << "ibv_destroy_cq() waits for the acknowledgement";
    later.join();
    recv_cq_ = make_cq(64, channel_);
    b_ = make_qp(send_cq_, recv_cq_);
}

}  // namespace
}  // namespace pollcore::test
