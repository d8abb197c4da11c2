// Tests events of completion channels, of devices and of objects on devices, and how the libraries wait for
// acknowledgements when an object is destroyed.
#include <poll.h>

#include <cerrno>

#include "hca_fabric.hpp"
#include "verbs_ends.hpp"

namespace mlx5_model {
namespace {

/// Reads and acknowledges all events of the channel, and returns their number.
int channel_events(const End& end) {
    ibv_cq* cq = nullptr;
    void* context = nullptr;
    int count = 0;
    while (ibv_get_cq_event(end.channel.get(), &cq, &context) == 0) {
        ibv_ack_cq_events(cq, 1);
        ++count;
    }
    EXPECT_EQ(errno, EAGAIN);
    return count;
}

Options with_channel() {
    Options options;
    options.channel = true;
    return options;
}

void send_one(Pair& pair, int flags = 0) {
    ibv_send_wr request{};
    request.send_flags = static_cast<unsigned>(flags);
    ASSERT_EQ(pair.there.post_receive(1, {pair.there.part(0, 8)}), 0);
    ASSERT_EQ(pair.here.post(IBV_WR_SEND, 1, {pair.here.part(0, 8)}, request), 0);
    ASSERT_EQ(pair.here.sent().status, IBV_WC_SUCCESS);
    mlx5_model_step(0);
}

TEST(ChannelEvents, ComeForAnArmedQueueOnce) {
    Pair pair(with_channel());
    send_one(pair);
    EXPECT_EQ(channel_events(pair.there), 0) << "not armed";
    ASSERT_EQ(pair.there.received().status, IBV_WC_SUCCESS);
    for (int i = 0; i < 10; ++i) {
        ASSERT_EQ(ibv_req_notify_cq(pair.there.recv_cq.get(), 0), 0);
        mlx5_model_step(0);
        EXPECT_EQ(channel_events(pair.there), 0) << "nothing has come since";
        send_one(pair);
        send_one(pair);
        ibv_cq* cq = nullptr;
        void* context = nullptr;
        ASSERT_EQ(ibv_get_cq_event(pair.there.channel.get(), &cq, &context), 0);
        EXPECT_EQ(cq, pair.there.recv_cq.get());
        EXPECT_EQ(context, &pair.there.recv_cq);
        ibv_ack_cq_events(cq, 1);
        EXPECT_EQ(channel_events(pair.there), 0);
        ASSERT_EQ(pair.there.received().status, IBV_WC_SUCCESS);
        ASSERT_EQ(pair.there.received().status, IBV_WC_SUCCESS);
    }
}

TEST(ChannelEvents, OfTheSolicitedComeForThoseAndForErrors) {
    Pair pair(with_channel());
    ASSERT_EQ(ibv_req_notify_cq(pair.there.recv_cq.get(), 1), 0);
    send_one(pair);
    EXPECT_EQ(channel_events(pair.there), 0);
    send_one(pair, IBV_SEND_SOLICITED);
    EXPECT_EQ(channel_events(pair.there), 1);
    (void)pair.there.received();
    (void)pair.there.received();
    ASSERT_EQ(ibv_req_notify_cq(pair.there.recv_cq.get(), 1), 0);
    ASSERT_EQ(pair.there.post_receive(1, {}), 0);
    ASSERT_EQ(pair.there.modify({}, IBV_QPS_ERR), 0);
    mlx5_model_step(0);
    EXPECT_EQ(channel_events(pair.there), 1) << "a failed completion counts as solicited";
}

TEST(ChannelEvents, WaitWhileTheyAreModerated) {
    Pair pair(with_channel());
    ibv_modify_cq_attr attributes{};
    attributes.attr_mask = IBV_CQ_ATTR_MODERATE;
    attributes.moderate = {3, 4095};
    ASSERT_EQ(ibv_modify_cq(pair.there.recv_cq.get(), &attributes), 0);
    ASSERT_EQ(ibv_req_notify_cq(pair.there.recv_cq.get(), 0), 0);
    const auto before = std::chrono::steady_clock::now();
    send_one(pair);
    send_one(pair);
    const int events = channel_events(pair.there);
    if (std::chrono::steady_clock::now() - before < std::chrono::microseconds(4095)) {
        EXPECT_EQ(events, 0);
    }
    send_one(pair);
    EXPECT_EQ(events + channel_events(pair.there), 1);
    attributes.moderate = {3, 4096};
    EXPECT_EQ(ibv_modify_cq(pair.there.recv_cq.get(), &attributes), EINVAL);
}

// When a CQ is destroyed, the kernel reports how many of the CQ's events were read. libibverbs waits until that many
// were acknowledged.
TEST(ChannelEvents, ThatNobodyReadHoldNoQueueBack) {
    Pair pair(with_channel());
    ASSERT_EQ(ibv_req_notify_cq(pair.there.recv_cq.get(), 0), 0);
    send_one(pair);
    pair.there.qp.reset();
    pair.there.recv_cq.reset();
    EXPECT_EQ(channel_events(pair.there), 0) << "they went with their queue";
}

TEST(ChannelEvents, AChannelIsBusyWhileAQueueHasIt) {
    const End end(with_channel());
    EXPECT_EQ(ibv_destroy_comp_channel(end.channel.get()), EBUSY);
}

// ---- Lost completion queues ----

TEST(LostQueues, AQueueWithoutRoomIsLostWithItsQueuePair) {
    Options options;
    options.cqes = 3;
    Pair pair(options);
    for (int i = 0; i < 10; ++i) {
        ASSERT_EQ(pair.here.post(IBV_WR_RDMA_WRITE, static_cast<std::uint64_t>(i), {pair.here.part(0, 8)},
                                 to_memory(pair.there, 0)),
                  0);
    }
    mlx5_model_step(64);
    mlx5_model_step(64);
    auto event = next_event(pair.here.context.get());
    ASSERT_TRUE(event);
    EXPECT_EQ(event->event_type, IBV_EVENT_CQ_ERR);
    EXPECT_EQ(event->element.cq, pair.here.send_cq.get());
    event = next_event(pair.here.context.get());
    ASSERT_TRUE(event);
    EXPECT_EQ(event->event_type, IBV_EVENT_QP_FATAL);
    EXPECT_EQ(event->element.qp, pair.here.qp.get());
    EXPECT_EQ(next_event_type(pair.here.context.get()), -1);
    EXPECT_EQ(pair.here.state(), IBV_QPS_ERR);
    EXPECT_EQ(next_event_type(pair.there.context.get()), -1);
    for (std::uint64_t i = 0; i < 4; ++i) {
        const auto kept = End::poll(pair.here.send_cq);
        ASSERT_TRUE(kept) << "what had room is there";
        EXPECT_EQ(kept->wr_id, i);
    }
    EXPECT_FALSE(End::poll(pair.here.send_cq));
}

TEST(LostQueues, OneMayBeLostOnPurpose) {
    Pair pair;
    mlx5_model_overrun_cq(pair.there.number_of(pair.there.recv_cq), 1);
    mlx5_model_step(1);
    EXPECT_EQ(next_event_type(pair.there.context.get()), IBV_EVENT_CQ_ERR);
    EXPECT_EQ(next_event_type(pair.there.context.get()), IBV_EVENT_QP_FATAL);
    EXPECT_EQ(next_event_type(pair.there.context.get()), -1);
}

// ---- Events of queue pairs and shared receive queues ----

TEST(AsyncEvents, CommunicationIsToldToWhoIsNotReadyToSend) {
    End here;
    End there;
    ASSERT_EQ(here.init(), 0);
    ASSERT_EQ(there.init(), 0);
    ASSERT_EQ(here.ready_to_receive(there.gid(), there.number()), 0);
    ASSERT_EQ(there.ready_to_receive(here.gid(), here.number()), 0);
    ASSERT_EQ(here.ready_to_send(), 0);
    ASSERT_EQ(there.post_receive(1, {there.part(0, 8)}), 0);
    ASSERT_EQ(there.post_receive(2, {there.part(0, 8)}), 0);
    for (int i = 0; i < 2; ++i) {
        ASSERT_EQ(here.post(IBV_WR_SEND, 1, {here.part(0, 8)}), 0);
        ASSERT_EQ(here.sent().status, IBV_WC_SUCCESS);
    }
    EXPECT_EQ(next_event_type(there.context.get()), IBV_EVENT_COMM_EST);
    EXPECT_EQ(next_event_type(there.context.get()), -1);
}

TEST(AsyncEvents, OfASharedReceiveQueue) {
    Options options;
    options.srq = true;
    Pair pair(options);
    for (std::uint64_t i = 0; i < 3; ++i) {
        ASSERT_EQ(pair.there.post_receive(i, {pair.there.part(0, 8)}), 0);
    }
    ibv_srq_attr attributes{};
    attributes.srq_limit = 2;
    ASSERT_EQ(ibv_modify_srq(pair.there.srq.get(), &attributes, IBV_SRQ_LIMIT), 0);
    ASSERT_EQ(ibv_query_srq(pair.there.srq.get(), &attributes), 0);
    EXPECT_EQ(attributes.srq_limit, 2u);
    for (int i = 0; i < 2; ++i) {
        EXPECT_EQ(next_event_type(pair.there.context.get()), -1);
        ASSERT_EQ(pair.here.post(IBV_WR_SEND, 1, {pair.here.part(0, 8)}), 0);
        ASSERT_EQ(pair.here.sent().status, IBV_WC_SUCCESS);
    }
    const auto event = next_event(pair.there.context.get());
    ASSERT_TRUE(event);
    EXPECT_EQ(event->event_type, IBV_EVENT_SRQ_LIMIT_REACHED);
    EXPECT_EQ(event->element.srq, pair.there.srq.get());
    ASSERT_EQ(pair.there.modify({}, IBV_QPS_ERR), 0);
    EXPECT_EQ(next_event_type(pair.there.context.get()), IBV_EVENT_QP_LAST_WQE_REACHED);
    (void)pair.there.received();
    EXPECT_EQ(next_event_type(pair.there.context.get()), -1);
}

TEST(AsyncEvents, ThatNobodyReadHoldNothingBack) {
    Options options;
    options.srq = true;
    Pair pair(options);
    ASSERT_EQ(pair.there.modify({}, IBV_QPS_ERR), 0);
    mlx5_model_overrun_cq(pair.there.number_of(pair.there.send_cq), 1);
    pair.there.qp.reset();
    pair.there.send_cq.reset();
    EXPECT_EQ(next_event_type(pair.there.context.get()), -1);
}

TEST(AsyncEvents, OfWhichSomeWereReadHoldNothingBackOnceTheyAreAcknowledged) {
    Pair pair;
    ASSERT_EQ(pair.there.post_receive(1, {}), 0);
    mlx5_model_overrun_cq(pair.there.number_of(pair.there.send_cq), 1);
    mlx5_model_step(1);
    ibv_async_event event{};
    ASSERT_EQ(ibv_get_async_event(pair.there.context.get(), &event), 0);
    ASSERT_EQ(event.event_type, IBV_EVENT_CQ_ERR);
    pair.there.qp.reset();  // the event of this queue pair was not read
    ibv_ack_async_event(&event);
    pair.there.send_cq.reset();
}

// ---- Events of devices ----

TEST(AsyncEvents, APortGoesDownAndComesBack) {
    Path path;
    path.retries = 1;
    Pair pair({}, path);
    const auto state = [&] {
        ibv_port_attr port{};
        EXPECT_EQ(ibv_query_port(pair.here.context.get(), 1, &port), 0);
        return port.state;
    };
    EXPECT_EQ(state(), IBV_PORT_ACTIVE);
    mlx5_model_set_port("mlx5_0", 0);
    mlx5_model_set_port("mlx5_0", 0);
    EXPECT_EQ(state(), IBV_PORT_DOWN);
    for (const End* end : {&pair.here, &pair.there}) {
        const auto event = next_event(end->context.get());
        ASSERT_TRUE(event);
        EXPECT_EQ(event->event_type, IBV_EVENT_PORT_ERR);
        EXPECT_EQ(event->element.port_num, 1);
        EXPECT_EQ(next_event_type(end->context.get()), -1);
    }
    ASSERT_EQ(pair.here.post(IBV_WR_RDMA_WRITE, 1, {pair.here.part(0, 8)}, to_memory(pair.there, 0)), 0);
    EXPECT_EQ(pair.here.sent().status, IBV_WC_RETRY_EXC_ERR);
    mlx5_model_set_port("mlx5_0", 1);
    EXPECT_EQ(next_event_type(pair.here.context.get()), IBV_EVENT_PORT_ACTIVE);
    EXPECT_EQ(state(), IBV_PORT_ACTIVE);
}

// Only this test uses the last device.
TEST(AsyncEvents, ARemovedDeviceSaysSoAndAnswersNoMore) {
    const char* const name = devices().back().name.c_str();
    Options options = with_channel();
    options.device = name;
    Pair pair(options);
    mlx5_model_remove(name);
    for (End* end : {&pair.here, &pair.there}) {
        EXPECT_EQ(next_event_type(end->context.get()), IBV_EVENT_DEVICE_FATAL);
        for (int i = 0; i < 3; ++i) {
            EXPECT_FALSE(next_event(end->context.get()));
            EXPECT_EQ(errno, EIO);
            pollfd waits{end->context->async_fd, POLLIN, 0};
            EXPECT_EQ(::poll(&waits, 1, 0), 1) << "nobody waits for it";
        }
        ibv_cq* cq = nullptr;
        void* context = nullptr;
        EXPECT_NE(ibv_get_cq_event(end->channel.get(), &cq, &context), 0);
        EXPECT_EQ(errno, EIO);
        ibv_port_attr port{};
        EXPECT_EQ(ibv_query_port(end->context.get(), 1, &port), EIO);
        EXPECT_EQ(ibv_alloc_pd(end->context.get()), nullptr);
        EXPECT_EQ(end->modify({}, IBV_QPS_ERR), EIO);
    }
    ASSERT_EQ(pair.here.post(IBV_WR_RDMA_WRITE, 1, {pair.here.part(0, 8)}, to_memory(pair.there, 0)), 0)
        << "libmlx5 does not know";
    EXPECT_EQ(mlx5_model_step(10), 0);
    EXPECT_FALSE(End::poll(pair.here.send_cq));
    int count = 0;
    ibv_device** const list = ibv_get_device_list(&count);
    for (int i = 0; i < count; ++i) {
        if (std::string_view(name) == ibv_get_device_name(list[i])) {
            EXPECT_EQ(ibv_open_device(list[i]), nullptr);
        }
    }
    ibv_free_device_list(list);
    // The destroy commands at the end of the test get EIO, too; libibverbs turns that into success if
    // RDMAV_ALLOW_DISASSOC_DESTROY is set.
}

}  // namespace
}  // namespace mlx5_model
