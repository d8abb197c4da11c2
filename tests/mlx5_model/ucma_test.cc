// Tests one end of the model's rdma_cm: descriptors, identifiers, addresses, ports, routes.
#include "ucma_ends.hpp"

namespace mlx5_model {
namespace {

// ---- The descriptor and its commands ----

TEST_F(RdmaCm, IsACharacterDevice) {
    struct stat what {};
    ASSERT_EQ(::fstat(client.descriptor(), &what), 0);
    EXPECT_TRUE(S_ISCHR(what.st_mode));
    EXPECT_EQ(what.st_rdev, makedev(10, 58));
}

TEST_F(RdmaCm, RefusesWhatIsNoCommand) {
    const kernel::rdma_ucm_cmd_hdr empty{};
    EXPECT_EQ(::write(client.descriptor(), &empty, sizeof empty - 1), -1);
    EXPECT_EQ(errno, EINVAL);
    const kernel::rdma_ucm_cmd_hdr longer{kernel::RDMA_USER_CM_CMD_LISTEN, 8, 0};
    EXPECT_EQ(::write(client.descriptor(), &longer, sizeof longer), -1);
    EXPECT_EQ(errno, EINVAL);
    EXPECT_EQ(client.command(kernel::RDMA_USER_CM_CMD_JOIN_MCAST + 1, std::uint64_t{0}), EINVAL);
    EXPECT_EQ(client.command(kernel::RDMA_USER_CM_CMD_GET_OPTION, std::uint64_t{0}), ENOSYS);
    char byte = 0;
    EXPECT_EQ(::read(client.descriptor(), &byte, 1), -1);
    EXPECT_EQ(errno, EINVAL);
}

TEST_F(RdmaCm, RefusesAnAnswerThatHasNoRoom) {
    const std::uint32_t id = client.id();
    EXPECT_EQ(client.command(kernel::RDMA_USER_CM_CMD_CREATE_ID, kernel::rdma_ucm_create_id{}, 3), ENOSPC);
    EXPECT_EQ(client.command(kernel::RDMA_USER_CM_CMD_DESTROY_ID, kernel::rdma_ucm_destroy_id{}, 3), ENOSPC);
    EXPECT_EQ(client.command(kernel::RDMA_USER_CM_CMD_INIT_QP_ATTR, kernel::rdma_ucm_init_qp_attr{}, 3), ENOSPC);
    EXPECT_EQ(client.command(kernel::RDMA_USER_CM_CMD_QUERY_ROUTE, kernel::rdma_ucm_query{}, 3), ENOSPC);
    kernel::rdma_ucm_query_addr_resp answer{};
    EXPECT_EQ(client.query(id, kernel::RDMA_USER_CM_QUERY_ADDR, answer, 3), ENOSPC);
    EXPECT_EQ(client.query(id, kernel::RDMA_USER_CM_QUERY_GID, answer, 3), ENOSPC);
    EXPECT_EQ(client.query(id, kernel::RDMA_USER_CM_QUERY_PATH, answer, 3), ENOSPC);
    EXPECT_EQ(client.query(id, 3, answer), ENOSYS);
    kernel::rdma_ucm_event_resp event{};
    EXPECT_EQ(client.get_event(event, 8), ENOSPC);
}

TEST_F(RdmaCm, AnIdentifierIsOfOneDescriptorAndOfAKnownSpace) {
    std::uint32_t number = 0;
    EXPECT_EQ(client.create(number, 0x107), EINVAL);
    const std::uint32_t id = client.id();
    EXPECT_EQ(server.destroy(id), EINVAL);
    EXPECT_EQ(server.listen(id), EINVAL);
    EXPECT_EQ(client.destroy(id), 0);
    EXPECT_EQ(client.destroy(id), ENOENT);
    EXPECT_EQ(client.listen(id), ENOENT);
    EXPECT_EQ(client.id(), id) << "the lowest number that is free";
    kernel::rdma_ucm_create_id nowhere{};
    nowhere.ps = RDMA_PS_TCP;
    EXPECT_EQ(client.command(kernel::RDMA_USER_CM_CMD_CREATE_ID, nowhere, 4), EFAULT);
}

TEST_F(RdmaCm, WithoutEventsADescriptorSaysSoOrWaits) {
    kernel::rdma_ucm_event_resp event{};
    ASSERT_EQ(::fcntl(client.descriptor(), F_SETFL, O_NONBLOCK), 0);
    EXPECT_FALSE(client.readable());
    EXPECT_EQ(client.get_event(event), EAGAIN);
    ASSERT_EQ(::fcntl(client.descriptor(), F_SETFL, 0), 0);
    const std::uint32_t id = client.id();
    std::thread waits([&] { EXPECT_EQ(client.get_event(event), 0); });
    EXPECT_EQ(client.resolve(id, of_device(0, 7)), 0);
    waits.join();
    EXPECT_EQ(event.event, static_cast<std::uint32_t>(RDMA_CM_EVENT_ADDR_RESOLVED));
    EXPECT_EQ(event.id, id);
    EXPECT_EQ(event.uid, 1u);
    EXPECT_FALSE(client.readable());
}

TEST_F(RdmaCm, TellsAtTheEndHowManyEventsWereHandedOut) {
    const std::uint32_t none = client.id();
    std::uint32_t reported = 99;
    EXPECT_EQ(client.destroy(none, &reported), 0);
    EXPECT_EQ(reported, 0u);

    const std::uint32_t id = client.id();
    ASSERT_EQ(client.resolve(id, of_device(0, 7)), 0);
    client.expect(RDMA_CM_EVENT_ADDR_RESOLVED);
    ASSERT_EQ(client.resolve_route(id), 0);
    EXPECT_TRUE(client.readable());
    EXPECT_EQ(client.destroy(id, &reported), 0);
    EXPECT_EQ(reported, 1u);
    EXPECT_FALSE(client.readable()) << "what nobody has read goes with the identifier";
}

TEST_F(RdmaCm, ARequestCountsForItsListener) {
    ask();
    std::uint32_t reported = 99;
    EXPECT_EQ(server.destroy(answering, &reported), 0);
    EXPECT_EQ(reported, 0u);
    EXPECT_EQ(server.destroy(listening, &reported), 0);
    EXPECT_EQ(reported, 1u);
}

// ---- Addresses and ports ----

TEST_F(RdmaCm, ABoundIdentifierIsOfTheDeviceWithTheAddress) {
    for (std::size_t device = 0; device < 2; ++device) {
        const std::uint32_t id = client.id();
        ASSERT_EQ(client.bind(id, of_device(device)), 0);
        const kernel::rdma_ucm_query_addr_resp answer = client.addresses(id);
        EXPECT_EQ(answer.node_guid, devices()[device].node_guid);
        EXPECT_EQ(answer.port_num, 1);
        EXPECT_EQ(answer.pkey, 0);
        EXPECT_EQ(answer.src_size, sizeof(sockaddr_in));
        EXPECT_EQ(answer.dst_size, sizeof(sockaddr_in));
        EXPECT_GE(client.port(id), 32768);
        EXPECT_EQ(client.bind(id, of_device(device)), EINVAL);
    }
    const std::uint32_t nowhere = client.id();
    ASSERT_EQ(client.bind(nowhere, any()), 0);
    EXPECT_EQ(client.addresses(nowhere).node_guid, 0u);
}

TEST_F(RdmaCm, AnAddressOfNoDeviceIsNotAvailable) {
    const std::uint32_t id = client.id();
    EXPECT_EQ(client.bind(id, ipv4(htonl(0xc0000201), 0)), EADDRNOTAVAIL);
    EXPECT_EQ(client.bind(id, of_device(0)), 0) << "a refusal changes nothing";
    const std::uint32_t ipoib = client.id(RDMA_PS_IPOIB);
    EXPECT_EQ(client.bind(ipoib, of_device(0)), EINVAL);
}

TEST_F(RdmaCm, AnAddressOfAWrongSizeIsInvalid) {
    const std::uint32_t id = client.id();
    kernel::rdma_ucm_bind command{};
    const sockaddr_in source = of_device(0);
    command.id = id;
    std::memcpy(&command.addr, &source, sizeof source);
    command.addr_size = sizeof source - 1;
    EXPECT_EQ(client.command(kernel::RDMA_USER_CM_CMD_BIND, command), EINVAL);
    command.addr_size = 0;
    EXPECT_EQ(client.command(kernel::RDMA_USER_CM_CMD_BIND, command), EINVAL);
    command.addr_size = sizeof source;
    command.reserved = 1;
    EXPECT_EQ(client.command(kernel::RDMA_USER_CM_CMD_BIND, command), EINVAL);
    kernel::rdma_ucm_bind_ip of_no_family{};
    of_no_family.id = id;
    EXPECT_EQ(client.command(kernel::RDMA_USER_CM_CMD_BIND_IP, of_no_family), EINVAL);
    std::memcpy(&of_no_family.addr, &source, sizeof source);
    EXPECT_EQ(client.command(kernel::RDMA_USER_CM_CMD_BIND_IP, of_no_family), 0);
}

TEST_F(RdmaCm, InfiniBandAddressesAreKnownAndOfNoDevice) {
    const std::uint32_t id = client.id(RDMA_PS_IB);
    sockaddr_ib address{};
    address.sib_family = AF_IB;
    address.sib_addr.sib_raw[15] = 1;
    EXPECT_EQ(client.bind(id, address), ENODEV);
    address.sib_addr = {};
    address.sib_sid = htobe64(RDMA_IB_IP_PS_TCP);
    address.sib_sid_mask = htobe64(RDMA_IB_IP_PS_MASK);
    EXPECT_EQ(client.bind(id, address), 0) << "librdmacm looks so whether the kernel knows them";
    const std::uint32_t of_no_space = client.id(RDMA_PS_UDP);
    EXPECT_EQ(client.bind(of_no_space, address), EPROTONOSUPPORT);
}

TEST_F(RdmaCm, APortIsTakenOnceInItsSpace) {
    const std::uint32_t first = client.id();
    ASSERT_EQ(client.bind(first, of_device(0)), 0);
    const std::uint16_t port = client.port(first);
    const std::uint32_t second = client.id();
    EXPECT_EQ(client.bind(second, of_device(0, port)), EADDRINUSE);
    EXPECT_EQ(client.bind(second, any(port)), EADDRNOTAVAIL);
    EXPECT_EQ(client.bind(second, of_device(1, port)), 0) << "of another address";
    const std::uint32_t datagram = client.id(RDMA_PS_UDP);
    EXPECT_EQ(client.bind(datagram, of_device(0, port)), 0) << "of another space";
    EXPECT_EQ(client.destroy(first), 0);
    const std::uint32_t third = client.id();
    EXPECT_EQ(client.bind(third, of_device(0, port)), 0) << "free again";
}

TEST_F(RdmaCm, APortThatIsReusedHasOneListener) {
    const std::uint32_t first = client.id();
    const std::uint32_t second = client.id();
    for (const std::uint32_t id : {first, second}) {
        ASSERT_EQ(client.set_option(id, RDMA_OPTION_ID_REUSEADDR, int{1}), 0);
    }
    ASSERT_EQ(client.bind(first, of_device(0)), 0);
    ASSERT_EQ(client.bind(second, of_device(0, client.port(first))), 0);
    EXPECT_EQ(client.listen(first), EADDRINUSE) << "the other one is bound to it";
    EXPECT_EQ(client.destroy(second), 0);
    EXPECT_EQ(client.listen(first), 0);
    EXPECT_EQ(client.set_option(first, RDMA_OPTION_ID_REUSEADDR, int{1}), EINVAL);
}

TEST_F(RdmaCm, ListeningBindsToAnyAddressAndHappensOnce) {
    const std::uint32_t id = client.id();
    EXPECT_EQ(client.listen(id), 0);
    EXPECT_NE(client.port(id), 0);
    EXPECT_EQ(client.listen(id), EINVAL);
    EXPECT_EQ(client.resolve(id, of_device(0, 7)), EINVAL);
}

TEST_F(RdmaCm, OptionsHaveTheirSizesAndTimes) {
    const std::uint32_t id = client.id();
    EXPECT_EQ(client.set_option(id, RDMA_OPTION_ID_TOS, std::uint8_t{8}), 0);
    EXPECT_EQ(client.set_option(id, RDMA_OPTION_ID_TOS, int{8}), EINVAL);
    EXPECT_EQ(client.set_option(id, RDMA_OPTION_ID_ACK_TIMEOUT, std::uint8_t{14}), 0);
    EXPECT_EQ(client.set_option(id, RDMA_OPTION_ID_AFONLY, int{1}), 0);
    EXPECT_EQ(client.set_option(id, RDMA_OPTION_ID_AFONLY, std::uint8_t{1}), EINVAL);
    EXPECT_EQ(client.set_option(id, 99, int{1}), ENOSYS);
    EXPECT_EQ(client.set_option(id, RDMA_OPTION_IB_PATH, int{1}, RDMA_OPTION_IB), ENOSYS);
    const std::uint32_t datagram = client.id(RDMA_PS_UDP);
    EXPECT_EQ(client.set_option(datagram, RDMA_OPTION_ID_ACK_TIMEOUT, std::uint8_t{14}), EINVAL);
    EXPECT_EQ(client.listen(id), 0);
    EXPECT_EQ(client.set_option(id, RDMA_OPTION_ID_AFONLY, int{1}), EINVAL);
}

// ---- Resolving ----

TEST_F(RdmaCm, ResolvingLeadsToTheDeviceAndKeepsThePort) {
    const std::uint32_t id = client.id();
    ASSERT_EQ(client.resolve(id, of_device(1, 7)), 0);
    const kernel::rdma_ucm_event_resp event = client.expect(RDMA_CM_EVENT_ADDR_RESOLVED);
    EXPECT_EQ(event.id, id);
    const kernel::rdma_ucm_query_addr_resp answer = client.addresses(id);
    EXPECT_EQ(answer.node_guid, devices()[1].node_guid);
    sockaddr_in source{};
    sockaddr_in destination{};
    std::memcpy(&source, &answer.src_addr, sizeof source);
    std::memcpy(&destination, &answer.dst_addr, sizeof destination);
    EXPECT_EQ(source.sin_addr.s_addr, devices()[1].address);
    EXPECT_NE(source.sin_port, 0);
    EXPECT_EQ(destination.sin_addr.s_addr, devices()[1].address);
    EXPECT_EQ(ntohs(destination.sin_port), 7);
    EXPECT_EQ(client.resolve(id, of_device(1, 7)), EINVAL);
}

TEST_F(RdmaCm, AnIdentifierStaysWithTheDeviceOfItsSource) {
    const std::uint32_t id = client.id();
    const sockaddr_in source = of_device(1);
    ASSERT_EQ(client.resolve(id, of_device(0, 7), &source), 0);
    client.expect(RDMA_CM_EVENT_ADDR_RESOLVED);
    EXPECT_EQ(client.addresses(id).node_guid, devices()[1].node_guid);
}

TEST_F(RdmaCm, WhatLeadsNowhereIsTold) {
    const sockaddr_in nowhere = ipv4(htonl(0xc0000201), 7);
    const std::uint32_t id = client.id();
    ASSERT_EQ(client.resolve(id, nowhere), 0);
    client.expect(RDMA_CM_EVENT_ADDR_ERROR, static_cast<std::uint32_t>(-ENODEV));
    EXPECT_EQ(client.resolve(id, of_device(0, 7)), 0) << "it may try again";
    const std::uint32_t bound = client.id();
    const sockaddr_in source = of_device(0);
    ASSERT_EQ(client.resolve(bound, nowhere, &source), 0);
    client.expect(RDMA_CM_EVENT_ADDR_RESOLVED);
    client.expect(RDMA_CM_EVENT_ADDR_ERROR, static_cast<std::uint32_t>(-ETIMEDOUT));
    const std::uint32_t from_nowhere = client.id();
    EXPECT_EQ(client.resolve(from_nowhere, of_device(0, 7), &nowhere), EADDRNOTAVAIL);
    const std::uint32_t other_family = client.id();
    ASSERT_EQ(client.bind(other_family, of_device(0)), 0);
    EXPECT_EQ(client.resolve(other_family, mapped(0, 7)), EINVAL);
}

TEST_F(RdmaCm, StepsComeInTheirOrder) {
    const std::uint32_t id = client.id();
    EXPECT_EQ(client.resolve_route(id), EINVAL);
    EXPECT_EQ(client.connect(id, 1), EINVAL);
    EXPECT_EQ(client.accept(id, 1), EINVAL);
    EXPECT_EQ(client.reject(id), EINVAL);
    EXPECT_EQ(client.disconnect(id), EINVAL);
    EXPECT_EQ(client.notify(id, IBV_EVENT_COMM_EST), EINVAL);
    ib_uverbs_qp_attr attributes{};
    EXPECT_EQ(client.qp_attributes(id, IBV_QPS_INIT, attributes), EINVAL) << "it has no device";
    ASSERT_EQ(client.resolve(id, of_device(0, 7)), 0);
    client.expect(RDMA_CM_EVENT_ADDR_RESOLVED);
    EXPECT_EQ(client.resolve_route(id, 0), EINVAL);
    EXPECT_EQ(client.connect(id, 1), EINVAL);
    EXPECT_EQ(client.accept(id, 1), EINVAL);
    EXPECT_EQ(client.reject(id), EINVAL);
    EXPECT_EQ(client.disconnect(id), EINVAL);
    ASSERT_EQ(client.resolve_route(id), 0);
    client.expect(RDMA_CM_EVENT_ROUTE_RESOLVED);
    EXPECT_EQ(client.resolve_route(id), EINVAL);
    EXPECT_EQ(client.qp_attributes(id, IBV_QPS_INIT, attributes), 0);
    EXPECT_EQ(attributes.qp_attr_mask,
              static_cast<std::uint32_t>(IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
    EXPECT_EQ(attributes.qp_access_flags, 0u);
    EXPECT_EQ(client.qp_attributes(id, IBV_QPS_ERR + 1, attributes), EINVAL);
}

TEST_F(RdmaCm, ARouteIsToldInEachWayToAsk) {
    const std::uint32_t id = client.id();
    ASSERT_EQ(client.set_option(id, RDMA_OPTION_ID_TOS, std::uint8_t{0x68}), 0);
    ASSERT_EQ(client.resolve(id, of_device(1, 7)), 0);
    client.expect(RDMA_CM_EVENT_ADDR_RESOLVED);
    struct {
        std::uint32_t num_paths;
        std::uint32_t reserved;
        ibv_path_data path[2];
    } path{};
    EXPECT_EQ(client.query(id, kernel::RDMA_USER_CM_QUERY_PATH, path), 0);
    EXPECT_EQ(path.num_paths, 0u);
    ASSERT_EQ(client.resolve_route(id), 0);
    client.expect(RDMA_CM_EVENT_ROUTE_RESOLVED);

    EXPECT_EQ(client.query(id, kernel::RDMA_USER_CM_QUERY_PATH, path), 0);
    EXPECT_EQ(path.num_paths, 1u);
    EXPECT_EQ(std::memcmp(path.path[0].path.dgid.raw, devices()[1].gid.raw, 16), 0);
    EXPECT_EQ(path.path[0].path.tclass, 0x68);
    EXPECT_EQ(be32toh(path.path[0].path.flowlabel_hoplimit) & 0xff, 64u);
    EXPECT_EQ(be32toh(path.path[0].path.flowlabel_hoplimit) >> 8, (client.port(id) * 31u + 7) & 0xfffff);
    EXPECT_EQ(path.path[0].path.mtu & 0x3f, IBV_MTU_4096);

    kernel::rdma_ucm_query_addr_resp gids{};
    EXPECT_EQ(client.query(id, kernel::RDMA_USER_CM_QUERY_GID, gids), 0);
    sockaddr_ib destination{};
    std::memcpy(&destination, &gids.dst_addr, sizeof destination);
    EXPECT_EQ(destination.sib_family, AF_IB);
    EXPECT_EQ(std::memcmp(&destination.sib_addr, devices()[1].gid.raw, 16), 0);
    EXPECT_EQ(be64toh(destination.sib_sid), RDMA_IB_IP_PS_TCP + 7);

    kernel::rdma_ucm_query command{};
    kernel::rdma_ucm_query_route_resp route{};
    command.id = id;
    command.response = address_of(&route);
    EXPECT_EQ(client.command(kernel::RDMA_USER_CM_CMD_QUERY_ROUTE, command, sizeof route), 0);
    EXPECT_EQ(route.node_guid, devices()[1].node_guid);
    EXPECT_EQ(route.num_paths, 1u);
    EXPECT_EQ(std::memcmp(route.ib_route[0].dgid, devices()[1].gid.raw, 16), 0);
    EXPECT_EQ(route.ib_route[0].traffic_class, 0x68);
}

// ---- Other commands ----

TEST_F(RdmaCm, AnIdentifierMovesToAnotherDescriptorWithItsEvents) {
    const std::uint32_t id = client.id();
    ASSERT_EQ(client.resolve(id, of_device(0, 7)), 0);
    client.expect(RDMA_CM_EVENT_ADDR_RESOLVED);
    ASSERT_EQ(client.resolve_route(id), 0);
    kernel::rdma_ucm_migrate_resp answer{};
    kernel::rdma_ucm_migrate_id command{};
    command.id = id;
    command.fd = static_cast<std::uint32_t>(client.descriptor());
    command.response = address_of(&answer);
    EXPECT_EQ(server.command(kernel::RDMA_USER_CM_CMD_MIGRATE_ID, command, sizeof answer), 0);
    EXPECT_EQ(answer.events_reported, 1u);
    EXPECT_FALSE(client.readable());
    EXPECT_EQ(server.expect(RDMA_CM_EVENT_ROUTE_RESOLVED).id, id);
    EXPECT_EQ(client.destroy(id), EINVAL);
    EXPECT_EQ(server.command(kernel::RDMA_USER_CM_CMD_MIGRATE_ID, command, sizeof answer), EINVAL)
        << "it is not there any more";
    command.fd = 4000;
    EXPECT_EQ(server.command(kernel::RDMA_USER_CM_CMD_MIGRATE_ID, command, sizeof answer), ENOENT);
    command.fd = 0;
    EXPECT_EQ(server.command(kernel::RDMA_USER_CM_CMD_MIGRATE_ID, command, sizeof answer), EINVAL);
}

TEST_F(RdmaCm, NobodyJoinsAMulticastGroup) {
    kernel::rdma_ucm_join_mcast join{};
    const sockaddr_in group = ipv4(htonl(0xe0000101), 0);
    join.id = client.id(RDMA_PS_UDP);
    EXPECT_EQ(client.command(kernel::RDMA_USER_CM_CMD_JOIN_MCAST, join, 4), EINVAL) << "it has no address";
    join.addr_size = sizeof group;
    std::memcpy(&join.addr, &group, sizeof group);
    EXPECT_EQ(client.command(kernel::RDMA_USER_CM_CMD_JOIN_MCAST, join, 4), EINVAL) << "no device";
    ASSERT_EQ(client.bind(join.id, of_device(0)), 0);
    EXPECT_EQ(client.command(kernel::RDMA_USER_CM_CMD_JOIN_MCAST, join, 4), ENOSYS);
    EXPECT_EQ(client.command(kernel::RDMA_USER_CM_CMD_LEAVE_MCAST, kernel::rdma_ucm_destroy_id{}, 4), ENOENT);
}

}  // namespace
}  // namespace mlx5_model
