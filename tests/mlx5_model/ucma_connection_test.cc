// Tests both ends of the model's rdma_cm: how connections begin and end, datagram services, the removal of a device.
#include "ucma_ends.hpp"

namespace mlx5_model {
namespace {

// ---- Connections ----

TEST_F(RdmaCm, BothEndsLearnWhatTheOtherOneSaid) {
    establish();
    EXPECT_EQ(asked.uid, 1u);
    EXPECT_EQ(asked.param.conn.qp_num, kAskingQp);
    EXPECT_EQ(asked.param.conn.responder_resources, 5) << "what the other end will send at most";
    EXPECT_EQ(asked.param.conn.initiator_depth, 3);
    EXPECT_EQ(asked.param.conn.retry_count, 6);
    EXPECT_EQ(asked.param.conn.rnr_retry_count, 4);
    EXPECT_EQ(asked.ece.vendor_id, 77u);
    EXPECT_EQ(asked.ece.attr_mod, 78u);
    expect_data(asked.param.conn.private_data, asked.param.conn.private_data_len, "please", 56);
    EXPECT_EQ(replied.id, asking);
    EXPECT_EQ(replied.param.conn.qp_num, kAnsweringQp);
    EXPECT_EQ(replied.param.conn.responder_resources, 1);
    EXPECT_EQ(replied.param.conn.initiator_depth, 2);
    expect_data(replied.param.conn.private_data, replied.param.conn.private_data_len, "yes", 196);

    const kernel::rdma_ucm_query_addr_resp near = client.addresses(asking);
    const kernel::rdma_ucm_query_addr_resp far = server.addresses(answering);
    EXPECT_EQ(std::memcmp(&near.src_addr, &far.dst_addr, sizeof(sockaddr_in)), 0);
    EXPECT_EQ(std::memcmp(&near.dst_addr, &far.src_addr, sizeof(sockaddr_in)), 0);
    EXPECT_EQ(far.node_guid, devices()[0].node_guid);
    EXPECT_EQ(client.ready(asking), EINVAL) << "once is enough";
}

TEST_F(RdmaCm, TheAttributesOfBothQueuePairsFitTogether) {
    establish();
    ib_uverbs_qp_attr near{};
    ib_uverbs_qp_attr far{};
    ASSERT_EQ(client.qp_attributes(asking, IBV_QPS_INIT, near), 0);
    EXPECT_EQ(near.qp_access_flags,
              static_cast<std::uint32_t>(IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC));
    EXPECT_EQ(near.port_num, 1);
    ASSERT_EQ(client.qp_attributes(asking, IBV_QPS_RTR, near), 0);
    ASSERT_EQ(server.qp_attributes(answering, IBV_QPS_RTS, far), 0);
    EXPECT_EQ(near.qp_attr_mask,
              static_cast<std::uint32_t>(IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                         IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
    EXPECT_EQ(far.qp_attr_mask,
              static_cast<std::uint32_t>(IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                         IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_TIMEOUT));
    EXPECT_EQ(near.rq_psn, far.sq_psn);
    EXPECT_EQ(near.dest_qp_num, kAnsweringQp);
    EXPECT_EQ(near.path_mtu, static_cast<std::uint32_t>(IBV_MTU_4096));
    EXPECT_EQ(near.max_dest_rd_atomic, 1);
    EXPECT_EQ(far.max_rd_atomic, 1);
    EXPECT_EQ(far.retry_cnt, 6);
    EXPECT_EQ(far.rnr_retry, 4);
    EXPECT_NE(far.timeout, 0);
    EXPECT_EQ(near.ah_attr.is_global, 1);
    EXPECT_EQ(near.ah_attr.grh.sgid_index, 1);
    EXPECT_EQ(near.ah_attr.grh.hop_limit, 64);
    EXPECT_EQ(near.ah_attr.port_num, 1);
    EXPECT_EQ(std::memcmp(near.ah_attr.grh.dgid, devices()[0].gid.raw, 16), 0);
    ASSERT_EQ(server.qp_attributes(answering, IBV_QPS_RTR, far), 0);
    ASSERT_EQ(client.qp_attributes(asking, IBV_QPS_RTS, near), 0);
    EXPECT_EQ(far.rq_psn, near.sq_psn);
    EXPECT_EQ(far.dest_qp_num, kAskingQp);
    EXPECT_EQ(client.qp_attributes(asking, IBV_QPS_SQD, near), EINVAL);
}

TEST_F(RdmaCm, WhoAsksKnowsNothingOfThePeerYet) {
    ask();
    ib_uverbs_qp_attr attributes{};
    EXPECT_EQ(client.qp_attributes(asking, IBV_QPS_INIT, attributes), 0);
    EXPECT_EQ(client.qp_attributes(asking, IBV_QPS_RTR, attributes), EINVAL);
    EXPECT_EQ(server.qp_attributes(answering, IBV_QPS_RTR, attributes), 0);
    EXPECT_EQ(attributes.dest_qp_num, kAskingQp);
    EXPECT_EQ(server.qp_attributes(answering, IBV_QPS_RTS, attributes), 0);
}

TEST_F(RdmaCm, TheTimeoutThatWasAskedForGoesIntoTheAttributes) {
    listening = listener(of_device(0));
    asking = client.id();
    ASSERT_EQ(client.set_option(asking, RDMA_OPTION_ID_ACK_TIMEOUT, std::uint8_t{9}), 0);
    ASSERT_EQ(client.resolve(asking, of_device(0, server.port(listening))), 0);
    client.expect(RDMA_CM_EVENT_ADDR_RESOLVED);
    ASSERT_EQ(client.resolve_route(asking), 0);
    client.expect(RDMA_CM_EVENT_ROUTE_RESOLVED);
    ASSERT_EQ(client.connect(asking, kAskingQp), 0);
    answering = server.expect(RDMA_CM_EVENT_CONNECT_REQUEST).id;
    ASSERT_EQ(server.accept(answering, kAnsweringQp), 0);
    client.expect(RDMA_CM_EVENT_CONNECT_RESPONSE);
    ib_uverbs_qp_attr attributes{};
    ASSERT_EQ(client.qp_attributes(asking, IBV_QPS_RTS, attributes), 0);
    EXPECT_EQ(attributes.timeout, 9);
}

TEST_F(RdmaCm, PrivateDataHasALimitInEachMessage) {
    listening = listener(of_device(0));
    asking = routed(of_device(0, server.port(listening)));
    EXPECT_EQ(client.connect(asking, kAskingQp, std::string(57, 'x')), EINVAL);
    EXPECT_EQ(client.connect(asking, kAskingQp, std::string(56, 'x')), 0) << "a refusal changes nothing";
    const kernel::rdma_ucm_event_resp request = server.expect(RDMA_CM_EVENT_CONNECT_REQUEST);
    expect_data(request.param.conn.private_data, request.param.conn.private_data_len, std::string(56, 'x'), 56);
    EXPECT_EQ(server.reject(request.id, std::string(149, 'x')), EINVAL);
    EXPECT_EQ(server.accept(request.id, kAnsweringQp, std::string(196, 'y')), 0);
    const kernel::rdma_ucm_event_resp response = client.expect(RDMA_CM_EVENT_CONNECT_RESPONSE);
    expect_data(response.param.conn.private_data, response.param.conn.private_data_len, std::string(196, 'y'), 196);
}

TEST_F(RdmaCm, AReplyThatIsTooLongRejects) {
    ask();
    EXPECT_EQ(server.accept(answering, kAnsweringQp, std::string(197, 'y')), EINVAL);
    const kernel::rdma_ucm_event_resp event = client.expect(RDMA_CM_EVENT_REJECTED, kRejectedByConsumer);
    expect_data(event.param.conn.private_data, event.param.conn.private_data_len, "", 148);
    EXPECT_EQ(server.accept(answering, kAnsweringQp), EINVAL);
}

TEST_F(RdmaCm, NobodyListensWhereThereIsNoListener) {
    const std::uint32_t datagram = listener(of_device(0), 0, RDMA_PS_UDP);
    const std::uint16_t port = server.port(datagram);
    const std::uint32_t bound = server.id();
    ASSERT_EQ(server.bind(bound, of_device(0, port)), 0);
    const std::uint32_t id = routed(of_device(0, port));
    ASSERT_EQ(client.connect(id, kAskingQp), 0);
    client.expect(RDMA_CM_EVENT_REJECTED, kNobodyListens);
    EXPECT_EQ(client.connect(id, kAskingQp), EINVAL) << "an identifier asks once";
    EXPECT_FALSE(server.readable());
}

TEST_F(RdmaCm, AListenerOnAnyAddressHearsOfEachDevice) {
    listening = listener(any());
    const std::uint16_t port = server.port(listening);
    for (std::size_t device = 0; device < 2; ++device) {
        const std::uint32_t id = routed(of_device(device, port));
        ASSERT_EQ(client.connect(id, kAskingQp), 0);
        answering = server.expect(RDMA_CM_EVENT_CONNECT_REQUEST).id;
        EXPECT_EQ(server.addresses(answering).node_guid, devices()[device].node_guid);
    }
    EXPECT_EQ(server.disconnect(listening), EINVAL) << "it has no device";
}

TEST_F(RdmaCm, AListenerOnOneAddressHearsOfNoOther) {
    listening = listener(of_device(0));
    const std::uint32_t id = routed(of_device(1, server.port(listening)));
    ASSERT_EQ(client.connect(id, kAskingQp), 0);
    client.expect(RDMA_CM_EVENT_REJECTED, kNobodyListens);
}

TEST_F(RdmaCm, TwoDevicesConnect) {
    reply(0, 1);
    ib_uverbs_qp_attr near{};
    ib_uverbs_qp_attr far{};
    ASSERT_EQ(client.qp_attributes(asking, IBV_QPS_RTR, near), 0);
    ASSERT_EQ(server.qp_attributes(answering, IBV_QPS_RTR, far), 0);
    EXPECT_EQ(std::memcmp(near.ah_attr.grh.dgid, devices()[1].gid.raw, 16), 0);
    EXPECT_EQ(std::memcmp(far.ah_attr.grh.dgid, devices()[0].gid.raw, 16), 0);
}

TEST_F(RdmaCm, AMappedAddressIsOfIpv6) {
    sockaddr_in6 all{};
    all.sin6_family = AF_INET6;
    const std::uint32_t both = server.id();
    ASSERT_EQ(server.bind(both, all), 0);
    ASSERT_EQ(server.listen(both), 0);
    const std::uint16_t port = server.port(both);  // the port field is at the same place in both families
    const std::uint32_t id = client.id();
    ASSERT_EQ(client.resolve(id, mapped(1, port)), 0);
    client.expect(RDMA_CM_EVENT_ADDR_RESOLVED);
    EXPECT_EQ(client.addresses(id).node_guid, devices()[1].node_guid);
    ASSERT_EQ(client.resolve_route(id), 0);
    client.expect(RDMA_CM_EVENT_ROUTE_RESOLVED);
    ASSERT_EQ(client.connect(id, kAskingQp), 0);
    const std::uint32_t request = server.expect(RDMA_CM_EVENT_CONNECT_REQUEST).id;
    EXPECT_EQ(server.addresses(request).src_size, sizeof(sockaddr_in6));
    ASSERT_EQ(client.connect(routed(of_device(0, port)), kAskingQp + 1), 0);
    server.expect(RDMA_CM_EVENT_CONNECT_REQUEST);
}

TEST_F(RdmaCm, AQueuePairThatIsConnectedAsksInVain) {
    establish();
    const std::uint32_t id = routed(of_device(0, server.port(listening)));
    ASSERT_EQ(client.connect(id, kAskingQp), 0);
    client.expect(RDMA_CM_EVENT_DISCONNECTED);
    client.expect(RDMA_CM_EVENT_REJECTED, kStale);
}

TEST_F(RdmaCm, ARequestWaitsForTheBacklog) {
    listening = listener(of_device(0), 1);
    const sockaddr_in there = of_device(0, server.port(listening));
    const std::uint32_t first = routed(there);
    const std::uint32_t second = routed(there);
    ASSERT_EQ(client.connect(first, kAskingQp), 0);
    ASSERT_EQ(client.connect(second, kAskingQp + 1), 0);
    EXPECT_EQ(server.expect(RDMA_CM_EVENT_CONNECT_REQUEST).param.conn.qp_num, kAskingQp);
    EXPECT_EQ(server.expect(RDMA_CM_EVENT_CONNECT_REQUEST).param.conn.qp_num, kAskingQp + 1);
}

TEST_F(RdmaCm, WhoIsNeverHeardGivesUp) {
    listening = listener(of_device(0), 1);
    const sockaddr_in there = of_device(0, server.port(listening));
    ASSERT_EQ(client.connect(routed(there), kAskingQp), 0);
    ASSERT_EQ(client.connect(routed(there), kAskingQp + 1), 0);
    client.expect(RDMA_CM_EVENT_UNREACHABLE, static_cast<std::uint32_t>(-ETIMEDOUT));
}

TEST_F(RdmaCm, ARejectionBringsItsDataAndReason) {
    ask();
    EXPECT_EQ(server.reject(answering, "no", 3), EINVAL) << "not a reason of the program's";
    EXPECT_EQ(server.reject(answering, "no"), 0);
    const kernel::rdma_ucm_event_resp event = client.expect(RDMA_CM_EVENT_REJECTED, kRejectedByConsumer);
    EXPECT_EQ(event.id, asking);
    expect_data(event.param.conn.private_data, event.param.conn.private_data_len, "no", 148);
    EXPECT_EQ(server.reject(answering), EINVAL);
    EXPECT_EQ(server.accept(answering, kAnsweringQp), EINVAL);
    EXPECT_EQ(client.disconnect(asking), 0) << "the kernel says nothing of it";
    EXPECT_FALSE(server.readable());
}

TEST_F(RdmaCm, ARejectionOfOptionsHasItsReason) {
    ask();
    EXPECT_EQ(server.reject(answering, "", 35), 0);
    client.expect(RDMA_CM_EVENT_REJECTED, 35);
}

TEST_F(RdmaCm, AReplyIsRejectedToo) {
    reply();
    EXPECT_EQ(client.reject(asking, "changed my mind"), 0);
    const kernel::rdma_ucm_event_resp event = server.expect(RDMA_CM_EVENT_REJECTED, kRejectedByConsumer);
    EXPECT_EQ(event.uid, 1000u + answering) << "as it was accepted with";
}

TEST_F(RdmaCm, AnEstablishedConnectionIsNotRejected) {
    establish();
    EXPECT_EQ(client.reject(asking), EINVAL);
    EXPECT_EQ(server.reject(answering), EINVAL);
    EXPECT_EQ(server.accept(answering, kAnsweringQp), EINVAL);
    EXPECT_FALSE(client.readable());
}

TEST_F(RdmaCm, ANoticeEstablishesOnce) {
    reply();
    EXPECT_EQ(server.notify(answering, IBV_EVENT_PATH_MIG_ERR), EINVAL);
    EXPECT_EQ(client.notify(asking, IBV_EVENT_COMM_EST), EINVAL);
    EXPECT_EQ(server.notify(answering, IBV_EVENT_COMM_EST), 0);
    server.expect(RDMA_CM_EVENT_ESTABLISHED);
    EXPECT_EQ(server.notify(answering, IBV_EVENT_COMM_EST), EISCONN);
    EXPECT_EQ(client.ready(asking), 0);
    EXPECT_FALSE(server.readable()) << "it is told once";
}

// ---- The ends of connections ----

TEST_F(RdmaCm, ADisconnectWaitsForItsAnswer) {
    establish();
    EXPECT_EQ(client.disconnect(asking), 0);
    EXPECT_EQ(server.expect(RDMA_CM_EVENT_DISCONNECTED).id, answering);
    EXPECT_FALSE(client.readable());
    ib_uverbs_qp_attr attributes{};
    EXPECT_EQ(server.qp_attributes(answering, IBV_QPS_RTS, attributes), EINVAL);
    EXPECT_EQ(server.disconnect(answering), 0);
    client.expect(RDMA_CM_EVENT_DISCONNECTED);
    client.expect(RDMA_CM_EVENT_TIMEWAIT_EXIT);
    server.expect(RDMA_CM_EVENT_TIMEWAIT_EXIT);
    EXPECT_EQ(server.disconnect(answering), 0) << "the kernel says nothing of it";
    EXPECT_FALSE(client.readable());
}

TEST_F(RdmaCm, WhoGoesBeforeTheAnswerIsMissed) {
    ask();
    EXPECT_EQ(client.destroy(asking), 0);
    EXPECT_FALSE(server.readable()) << "nothing is told of a request that was not accepted";
    ib_uverbs_qp_attr attributes{};
    EXPECT_EQ(server.qp_attributes(answering, IBV_QPS_INIT, attributes), EINVAL);
    EXPECT_EQ(server.accept(answering, kAnsweringQp), EINVAL);
    EXPECT_EQ(server.reject(answering), EINVAL);
    EXPECT_EQ(server.destroy(answering), 0);
}

TEST_F(RdmaCm, WhoGoesInsteadOfAnsweringRejects) {
    ask();
    EXPECT_EQ(server.destroy(answering), 0);
    client.expect(RDMA_CM_EVENT_REJECTED, kRejectedByConsumer);
}

TEST_F(RdmaCm, WhoGoesAfterTheReplyRejects) {
    reply();
    EXPECT_EQ(server.destroy(answering), 0);
    client.expect(RDMA_CM_EVENT_REJECTED, kRejectedByConsumer);
    EXPECT_EQ(client.ready(asking), EINVAL);
}

TEST_F(RdmaCm, WhoGoesWithTheReplyUnansweredRejects) {
    reply();
    EXPECT_EQ(client.destroy(asking), 0);
    server.expect(RDMA_CM_EVENT_REJECTED, kRejectedByConsumer);
}

TEST_F(RdmaCm, WhoGoesWithAConnectionDisconnects) {
    establish();
    EXPECT_EQ(client.destroy(asking), 0);
    server.expect(RDMA_CM_EVENT_DISCONNECTED);
    EXPECT_EQ(server.disconnect(answering), 0);
    server.expect(RDMA_CM_EVENT_TIMEWAIT_EXIT);
}

TEST_F(RdmaCm, WhoGoesAnswersADisconnect) {
    establish();
    EXPECT_EQ(server.disconnect(answering), 0);
    client.expect(RDMA_CM_EVENT_DISCONNECTED);
    EXPECT_EQ(client.destroy(asking), 0);
    server.expect(RDMA_CM_EVENT_DISCONNECTED);
    server.expect(RDMA_CM_EVENT_TIMEWAIT_EXIT);
}

TEST_F(RdmaCm, AListenerTakesUnreadRequestsWithIt) {
    listening = listener(of_device(0));
    const sockaddr_in there = of_device(0, server.port(listening));
    const std::uint32_t read = routed(there);
    const std::uint32_t unread = routed(there);
    ASSERT_EQ(client.connect(read, kAskingQp), 0);
    ASSERT_EQ(client.connect(unread, kAskingQp + 1), 0);
    answering = server.expect(RDMA_CM_EVENT_CONNECT_REQUEST).id;
    EXPECT_EQ(server.destroy(listening), 0);
    EXPECT_FALSE(server.readable());
    EXPECT_EQ(client.expect(RDMA_CM_EVENT_REJECTED, kRejectedByConsumer).id, unread);
    EXPECT_EQ(server.accept(answering, kAnsweringQp), 0) << "what was read lives on";
    client.expect(RDMA_CM_EVENT_CONNECT_RESPONSE);
}

TEST_F(RdmaCm, ADescriptorThatIsClosedTakesAllWithIt) {
    establish();
    const std::uint16_t port = server.port(listening);
    const std::uint32_t second = routed(of_device(0, port));
    ASSERT_EQ(client.connect(second, kAskingQp + 1), 0);
    server.close();
    EXPECT_EQ(client.expect(RDMA_CM_EVENT_REJECTED, kRejectedByConsumer).id, second)
        << "with the listener, which is the oldest";
    EXPECT_EQ(client.expect(RDMA_CM_EVENT_DISCONNECTED).id, asking);
    const std::uint32_t third = routed(of_device(0, port));
    ASSERT_EQ(client.connect(third, kAskingQp + 2), 0);
    client.expect(RDMA_CM_EVENT_REJECTED, kNobodyListens);
}

TEST_F(RdmaCm, ManyThreadsAskAndOneAnswers) {
    constexpr std::uint32_t kThreads = 3;
    constexpr std::uint32_t kRounds = 60;
    listening = listener(of_device(0), 2);
    const sockaddr_in there = of_device(0, server.port(listening));
    const auto asks = [&](std::uint32_t thread) {
        Channel own;
        for (std::uint32_t round = 0; round < kRounds; ++round) {
            const std::uint32_t id = own.id();
            ASSERT_EQ(own.resolve(id, there), 0);
            own.expect(RDMA_CM_EVENT_ADDR_RESOLVED);
            ASSERT_EQ(own.resolve_route(id), 0);
            own.expect(RDMA_CM_EVENT_ROUTE_RESOLVED);
            ASSERT_EQ(own.connect(id, 1 + thread * kRounds + round), 0);
            kernel::rdma_ucm_event_resp event{};
            ASSERT_EQ(own.get_event(event), 0);
            if (event.event == RDMA_CM_EVENT_CONNECT_RESPONSE) {
                ASSERT_EQ(own.ready(id), 0);
            } else {
                ASSERT_EQ(event.event, static_cast<std::uint32_t>(RDMA_CM_EVENT_REJECTED));
            }
            std::uint32_t reported = 0;
            ASSERT_EQ(own.destroy(id, &reported), 0);
            ASSERT_EQ(reported, 3u);
        }
    };
    std::vector<std::thread> threads;
    for (std::uint32_t i = 0; i < kThreads; ++i) {
        threads.emplace_back(asks, i);
    }
    // Every third request is rejected: its identifier is destroyed.
    for (std::uint32_t ended = 0, requests = 0; ended < kThreads * kRounds;) {
        kernel::rdma_ucm_event_resp event{};
        ASSERT_TRUE(server.readable(kPatienceMs));
        ASSERT_EQ(server.get_event(event), 0);
        if (event.event == RDMA_CM_EVENT_DISCONNECTED ||
            (event.event == RDMA_CM_EVENT_CONNECT_REQUEST && ++requests % 3 == 0)) {
            EXPECT_EQ(server.destroy(event.id), 0);
            ++ended;
        } else if (event.event == RDMA_CM_EVENT_CONNECT_REQUEST) {
            EXPECT_EQ(server.accept(event.id, 1 + kThreads * kRounds + requests), 0);
        }
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
}

// ---- Datagrams ----

TEST_F(RdmaCm, ADatagramServiceTellsItsQueuePair) {
    listening = listener(of_device(1), 0, RDMA_PS_UDP);
    asking = routed(of_device(1, server.port(listening)), RDMA_PS_UDP);
    EXPECT_EQ(client.connect(asking, 0, std::string(181, 'x')), EINVAL);
    ASSERT_EQ(client.connect(asking, 0, "who"), 0);
    asked = server.expect(RDMA_CM_EVENT_CONNECT_REQUEST);
    expect_data(asked.param.ud.private_data, asked.param.ud.private_data_len, "who", 180);
    ASSERT_EQ(server.accept(asked.id, kAnsweringQp, "me"), 0);
    const kernel::rdma_ucm_event_resp event = client.expect(RDMA_CM_EVENT_ESTABLISHED);
    EXPECT_EQ(event.param.ud.qp_num, kAnsweringQp);
    EXPECT_EQ(event.param.ud.qkey, static_cast<std::uint32_t>(RDMA_UDP_QKEY));
    EXPECT_EQ(event.param.ud.ah_attr.is_global, 1);
    EXPECT_EQ(std::memcmp(event.param.ud.ah_attr.grh.dgid, devices()[1].gid.raw, 16), 0);
    expect_data(event.param.ud.private_data, event.param.ud.private_data_len, "me", 136);
    EXPECT_FALSE(server.readable()) << "who answers hears no more";

    for (const std::uint32_t state : {IBV_QPS_INIT, IBV_QPS_RTR}) {
        ib_uverbs_qp_attr attributes{};
        ASSERT_EQ(client.qp_attributes(asking, state, attributes), 0);
        EXPECT_EQ(attributes.qp_attr_mask,
                  static_cast<std::uint32_t>(IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY));
        EXPECT_EQ(attributes.qkey, static_cast<std::uint32_t>(RDMA_UDP_QKEY));
    }
    EXPECT_EQ(server.accept(asked.id, kAnsweringQp), EINVAL);
}

TEST_F(RdmaCm, ADatagramServiceThatIsNotThereIsUnreachable) {
    asking = routed(of_device(0, 7), RDMA_PS_UDP);
    ASSERT_EQ(client.connect(asking, 0), 0);
    client.expect(RDMA_CM_EVENT_UNREACHABLE, 1);
}

TEST_F(RdmaCm, ADatagramServiceSaysNoOrGoes) {
    listening = listener(of_device(0), 0, RDMA_PS_UDP);
    const sockaddr_in there = of_device(0, server.port(listening));
    ASSERT_EQ(client.connect(routed(there, RDMA_PS_UDP), 0), 0);
    asked = server.expect(RDMA_CM_EVENT_CONNECT_REQUEST);
    EXPECT_EQ(server.reject(asked.id, "no"), 0);
    const kernel::rdma_ucm_event_resp event = client.expect(RDMA_CM_EVENT_UNREACHABLE, 2);
    expect_data(event.param.ud.private_data, event.param.ud.private_data_len, "no", 136);
    ASSERT_EQ(client.connect(routed(there, RDMA_PS_UDP), 0), 0);
    asked = server.expect(RDMA_CM_EVENT_CONNECT_REQUEST);
    EXPECT_EQ(server.destroy(asked.id), 0);
    client.expect(RDMA_CM_EVENT_UNREACHABLE, 2);
}

// ---- Removal of a device ----

// No other test uses the third device.
TEST_F(RdmaCm, ARemovedDeviceIsToldToAllThatIsBoundToIt) {
    ASSERT_GE(devices().size(), 3u) << "MLX5_MODEL_DEVICES=3";
    const std::uint32_t everywhere = listener(any());
    reply(0, 2);
    ASSERT_EQ(client.ready(asking), 0);
    server.expect(RDMA_CM_EVENT_ESTABLISHED);
    const std::uint32_t on_its_way = routed(of_device(2, 7));

    remove_from_rdma_cm(devices()[2]);
    std::array<std::uint32_t, 2> told{server.expect(RDMA_CM_EVENT_DEVICE_REMOVAL).id,
                                      server.expect(RDMA_CM_EVENT_DEVICE_REMOVAL).id};
    std::sort(told.begin(), told.end());
    EXPECT_EQ(told, (std::array<std::uint32_t, 2>{std::min(listening, answering), std::max(listening, answering)}));
    EXPECT_FALSE(server.readable());
    std::vector<std::uint32_t> events;
    for (int i = 0; i < 2; ++i) {
        kernel::rdma_ucm_event_resp event{};
        ASSERT_TRUE(client.readable(kPatienceMs));
        ASSERT_EQ(client.get_event(event), 0);
        events.push_back(event.event);
        EXPECT_EQ(event.id, event.event == RDMA_CM_EVENT_DEVICE_REMOVAL ? on_its_way : asking);
    }
    std::sort(events.begin(), events.end());
    EXPECT_EQ(events, (std::vector<std::uint32_t>{RDMA_CM_EVENT_DISCONNECTED, RDMA_CM_EVENT_DEVICE_REMOVAL}));

    EXPECT_EQ(server.disconnect(answering), EIO);
    EXPECT_EQ(server.listen(listening), EIO);
    EXPECT_EQ(client.connect(on_its_way, kAskingQp + 1), EIO);
    std::uint32_t reported = 0;
    EXPECT_EQ(server.destroy(answering, &reported), 0);
    EXPECT_EQ(reported, 2u);
    const std::uint32_t late = client.id();
    EXPECT_EQ(client.bind(late, of_device(2)), ENODEV);
    ASSERT_EQ(client.resolve(late, of_device(2, 7)), 0);
    client.expect(RDMA_CM_EVENT_ADDR_ERROR, static_cast<std::uint32_t>(-ENODEV));
    ASSERT_EQ(client.connect(routed(of_device(0, server.port(everywhere))), kAskingQp + 2), 0);
    server.expect(RDMA_CM_EVENT_CONNECT_REQUEST);
}

}  // namespace
}  // namespace mlx5_model
