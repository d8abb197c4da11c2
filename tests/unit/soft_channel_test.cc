// Completion channels of the software device: which completions raise an event, and that the channel wakes a thread
// that sleeps on it.
#include <poll.h>

#include <limits>

#include "base/event_fd.hpp"
#include "soft_fixture.hpp"

namespace pollcore::test {
namespace {

// `a` sends, and `b` waits on its channel for receives. Each of them stands for a separate thread, but the test moves
// both in one thread.
class SoftChannel : public SoftPair {
protected:
    void SetUp() override {
        connect(a, b, path);
        for (std::uint64_t id = 1; id <= 32; ++id)
            ASSERT_EQ(b.post_recv(id, {b.sge(0, 64)}), 0);
    }
    void send(unsigned flags = 0, std::uint32_t length = 8) {
        ASSERT_EQ(a.post(next_++, IBV_WR_SEND, {a.sge(0, length)}, 0, 0, flags), 0);
        (void)a.sent();  // polls, which moves the sender's side of the device
    }
    int arm(bool solicited = false) { return ibv_req_notify_cq(b.recv_cq.get(), solicited ? 1 : 0); }
    /// Takes one event and acknowledges it. Returns false if there is none.
    bool event() {
        ibv_cq* cq = nullptr;
        const int result = channel->next_event(cq);
        if (result == EAGAIN)
            return false;
        EXPECT_EQ(result, 0);
        EXPECT_EQ(cq, b.recv_cq.get());
        channel->acknowledge(*cq, 1);
        return true;
    }
    [[nodiscard]] bool readable() const {
        pollfd fd{.fd = channel->fd(), .events = POLLIN, .revents = 0};
        return ::poll(&fd, 1, 0) == 1;
    }
    /// Does what a thread does before it sleeps: arms the CQ, and checks that nothing has come.
    void sleep(bool solicited = false) {
        ASSERT_EQ(arm(solicited), 0);
        ASSERT_FALSE(End::poll(b.recv_cq.get()).has_value());
        ASSERT_FALSE(event());
    }

    PathAttributes path{.timeout = 10, .retry_count = 3, .rnr_retry = 7, .min_rnr_timer = 1};
    const std::unique_ptr<ThreadDomain> near = device->create_thread_domain();
    const std::unique_ptr<ThreadDomain> far = device->create_thread_domain();
    const std::unique_ptr<CompletionChannel> channel = device->create_channel(far.get());
    End a{*device, {.domain = near.get()}};
    End b{*device, {.domain = far.get(), .channel = channel.get()}};

private:
    std::uint64_t next_ = 100;
};

TEST_F(SoftChannel, an_armed_cq_makes_one_event_and_is_not_armed_any_more) {
    send();
    EXPECT_FALSE(event()) << "not armed";
    EXPECT_WC(b.received(), 1, IBV_WC_SUCCESS);
    ASSERT_EQ(arm(), 0);
    ASSERT_EQ(arm(), 0);
    send();
    send();
    EXPECT_TRUE(event());
    EXPECT_FALSE(event());
    EXPECT_WC(b.received(), 2, IBV_WC_SUCCESS);
    EXPECT_WC(b.received(), 3, IBV_WC_SUCCESS);
}

TEST_F(SoftChannel, what_stood_in_the_cq_when_it_was_armed_makes_no_event) {
    send();
    EXPECT_FALSE(event());
    ASSERT_EQ(arm(), 0);
    EXPECT_FALSE(event()) << "as the specification has it: so look once more before sleeping";
    send();
    EXPECT_TRUE(event());
}

TEST_F(SoftChannel, a_cq_that_is_armed_for_solicited_events_waits_for_one_or_for_a_failure) {
    ASSERT_EQ(arm(true), 0);
    send();
    EXPECT_FALSE(event());
    send(IBV_SEND_SOLICITED);
    EXPECT_TRUE(event());

    ASSERT_EQ(arm(true), 0);
    ASSERT_EQ(a.post(1, IBV_WR_RDMA_WRITE_WITH_IMM, {a.sge(0, 8)}, b.address(0), b.mr->rkey, 0), 0);
    (void)a.sent();
    EXPECT_FALSE(event());
    ASSERT_EQ(a.post(2, IBV_WR_RDMA_WRITE_WITH_IMM, {a.sge(0, 8)}, b.address(0), b.mr->rkey, IBV_SEND_SOLICITED), 0);
    (void)a.sent();
    EXPECT_TRUE(event());

    ASSERT_EQ(arm(true), 0);
    b.move_to(IBV_QPS_ERR);
    EXPECT_TRUE(event()) << "a flush is a failure";
}

TEST_F(SoftChannel, a_cq_that_is_armed_for_all_stays_so_when_less_is_asked_for) {
    ASSERT_EQ(arm(), 0);
    ASSERT_EQ(arm(true), 0);
    send();
    EXPECT_TRUE(event());
}

TEST_F(SoftChannel, a_solicited_datagram_makes_an_event) {
    End sender{*device, {.type = QpType::ud, .domain = near.get()}};
    End receiver{*device, {.type = QpType::ud, .domain = far.get(), .channel = channel.get()}};
    const UniqueAh way = sender.way_to(receiver);
    ASSERT_EQ(receiver.post_recv(1, {receiver.sge(0, 256)}), 0);
    ASSERT_EQ(receiver.post_recv(2, {receiver.sge(0, 256)}), 0);
    ASSERT_EQ(ibv_req_notify_cq(receiver.recv_cq.get(), 1), 0);
    ibv_cq* cq = nullptr;
    const auto datagram = [&](unsigned flags) {
        ASSERT_EQ(sender.post_datagram(1, {sender.sge(0, 8)}, way.get(), receiver.qp->qp_num, 0x1234, IBV_WR_SEND,
                                       IBV_SEND_SIGNALED | flags),
                  0);
        EXPECT_WC(sender.sent(), 1, IBV_WC_SUCCESS);
    };
    datagram(0);
    EXPECT_EQ(channel->next_event(cq), EAGAIN);
    datagram(IBV_SEND_SOLICITED);
    ASSERT_EQ(channel->next_event(cq), 0);
    EXPECT_EQ(cq, receiver.recv_cq.get());
    channel->acknowledge(*cq, 1);
}

TEST_F(SoftChannel, wakes_who_sleeps_when_a_message_comes_and_nothing_else_moves_its_side) {
    sleep();
    EXPECT_FALSE(readable());
    EXPECT_EQ(channel->look_again_ns(), CompletionChannel::kNever);
    send();
    EXPECT_TRUE(readable());
    EXPECT_TRUE(event());
    EXPECT_FALSE(event());
    EXPECT_FALSE(readable()) << "all was taken";
}

TEST_F(SoftChannel, does_not_let_sleep_who_has_not_seen_what_came_meanwhile) {
    ASSERT_EQ(arm(), 0);
    ASSERT_FALSE(event());
    const std::uint64_t before = channel->look_again_ns();
    EXPECT_EQ(before, CompletionChannel::kNever);
    send();
    EXPECT_EQ(channel->look_again_ns(), 0u);
    EXPECT_TRUE(event());
}

// Another thread saw this thread asleep, but rang only after this thread had looked.
TEST_F(SoftChannel, takes_a_late_ring_back) {
    sleep();
    signal_event(channel->fd());
    EXPECT_TRUE(readable());
    EXPECT_FALSE(event());
    EXPECT_FALSE(readable()) << "or the thread would never sleep again";
}

TEST_F(SoftChannel, wakes_for_what_another_thread_does_to_a_queue_pair) {
    sleep();
    b.move_to(IBV_QPS_ERR);
    EXPECT_TRUE(readable());
    EXPECT_TRUE(event());
}

TEST_F(SoftChannel, says_when_the_sleeper_has_a_timer) {
    sleep();
    device->inject({.kind = SoftFault::Kind::lose_packet, .qp_num = a.qp->qp_num});
    ASSERT_EQ(b.post(1, IBV_WR_RDMA_WRITE, {b.sge(0, 8)}, a.address(0), a.mr->rkey), 0);
    EXPECT_TRUE(readable()) << "posted while it slept";
    EXPECT_FALSE(event());
    const std::uint64_t first = channel->look_again_ns();
    ASSERT_NE(first, CompletionChannel::kNever);
    *clock.now = first;
    (void)a.sent();  // the packet is lost
    EXPECT_FALSE(event());
    const std::uint64_t timeout = channel->look_again_ns();
    EXPECT_NEAR(static_cast<double>(timeout - first), 4.2e6, 1e6) << "4.096 us << 10";
    *clock.now = timeout;
    EXPECT_FALSE(event());  // the packet is sent again
    (void)a.sent();
    EXPECT_FALSE(event());
    EXPECT_WC(b.sent(), 1, IBV_WC_SUCCESS);
}

TEST_F(SoftChannel, holds_events_back_as_moderation_says) {
    device->moderate(b.recv_cq.get(), 3, 500);
    ASSERT_EQ(arm(), 0);
    send();
    send();
    EXPECT_FALSE(event());
    send();
    EXPECT_TRUE(event());

    ASSERT_EQ(arm(), 0);
    send();
    EXPECT_FALSE(event());
    EXPECT_EQ(channel->look_again_ns(), *clock.now + 500'000);
    *clock.now += 499'000;
    EXPECT_FALSE(event());
    *clock.now += 1'000;
    EXPECT_TRUE(event());
    EXPECT_EQ(channel->look_again_ns(), CompletionChannel::kNever);

    device->moderate(b.recv_cq.get(), 0, 0);
    ASSERT_EQ(arm(), 0);
    send();
    EXPECT_TRUE(event()) << "not moderated any more";
}

TEST_F(SoftChannel, keeps_a_cq_until_its_events_are_acknowledged) {
    UniqueCq cq{device->create_cq({.cqe = 4, .domain = far.get(), .channel = channel->verbs()}), {device.get()}};
    ASSERT_EQ(ibv_req_notify_cq(cq.get(), 0), 0);
    QpOptions options{
        .pd = b.pd.get(), .domain = far.get(), .send_cq = cq.get(), .recv_cq = cq.get(), .cap = {1, 1, 1, 1, 0}};
    {
        const UniqueQp qp{device->create_qp(options), {device.get()}};
        auto init = to_init(1, 0);
        device->modify(qp.get(), init.attr, init.mask);
        ibv_recv_wr wr{};
        ibv_recv_wr* bad = nullptr;
        ASSERT_EQ(ibv_post_recv(qp.get(), &wr, &bad), 0);
        auto error = to_state(IBV_QPS_ERR);
        device->modify(qp.get(), error.attr, error.mask);
        ibv_cq* raised = nullptr;
        ASSERT_EQ(channel->next_event(raised), 0);
        EXPECT_EQ(raised, cq.get());
    }
    EXPECT_EQ(device->destroy(cq.get()), EBUSY);
    channel->acknowledge(*cq, 1);
    EXPECT_EQ(device->destroy(cq.release()), 0);
}

TEST_F(SoftChannel, an_event_that_nobody_took_goes_with_its_cq) {
    End c{*device, {.domain = near.get()}};
    {
        End d{*device, {.domain = far.get(), .channel = channel.get()}};
        connect(c, d, path);
        ASSERT_EQ(d.post_recv(1, {d.sge(0, 8)}), 0);
        ASSERT_EQ(ibv_req_notify_cq(d.recv_cq.get(), 0), 0);
        ASSERT_EQ(c.post(1, IBV_WR_SEND, {c.sge(0, 8)}), 0);
        (void)End::poll(c.send_cq.get());
        EXPECT_WC(d.received(), 1, IBV_WC_SUCCESS);
    }
    EXPECT_FALSE(event());
}

TEST_F(SoftChannel, is_of_one_thread_domain) {
    EXPECT_THROW((void)device->create_cq({.cqe = 4, .domain = near.get(), .channel = channel->verbs()}), Error);
    device->inject({.kind = SoftFault::Kind::create_channel, .error = EMFILE});
    try {
        (void)device->create_channel(near.get());
        FAIL();
    } catch (const Error& error) {
        EXPECT_EQ(error.code().value(), EMFILE);
    }
    device->inject({.kind = SoftFault::Kind::req_notify_cq, .error = ENOMEM});
    EXPECT_EQ(arm(), ENOMEM);
    EXPECT_EQ(arm(), 0);
}

}  // namespace
}  // namespace pollcore::test
