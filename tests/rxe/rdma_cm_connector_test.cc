// Tests connections over rdma_cm between the two ends of a Soft-RoCE wire: making them, and failures to make them. Runs
// in scripts/rxe-vm.
#include "connect/rdma_cm_connector.hpp"

#include <cstdlib>
#include <map>
#include <random>
#include <set>
#include <thread>

#include <gtest/gtest.h>

#include "connect/handshake.hpp"
#include "pollcore/limits.hpp"
#include "rdma_cm_fixture.hpp"

namespace pollcore {
namespace {

using rxe::bytes;
using rxe::error_of;
using rxe::Kind;
using rxe::next;
using rxe::Peer;
using rxe::RdmaCmTest;
using rxe::says;
using rxe::text;
using rxe::variable;

// --- Established ---

TEST_F(RdmaCmTest, ConnectsAndDataGoesBothWays) {
    establish();
    EXPECT_EQ(client_.device().query(client_qp_, IBV_QP_STATE).qp_state, IBV_QPS_RTS);
    EXPECT_EQ(server_.device().query(server_qp_, IBV_QP_STATE).qp_state, IBV_QPS_RTS);
    exchange();
}

TEST_F(RdmaCmTest, TheOwnersAccessFlagsStay) {
    establish();
    const int wanted = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
    EXPECT_EQ(client_.device().query(client_qp_, IBV_QP_ACCESS_FLAGS).qp_access_flags & 0xfu, unsigned{wanted});
    EXPECT_EQ(server_.device().query(server_qp_, IBV_QP_ACCESS_FLAGS).qp_access_flags & 0xfu, unsigned{wanted});
}

TEST_F(RdmaCmTest, PrivateDataOfAnyLengthArrivesAsItWasSentBothWays) {
    for (const std::size_t size : {std::size_t{0}, std::size_t{1}, kRequestPrivateDataMax}) {
        std::string there(size, 'q');
        std::string back(size == 1 ? 1 : size * kReplyPrivateDataMax / kRequestPrivateDataMax, 'p');
        if (size > 0) {
            there.back() = back.back() = '\0';  // the data itself ends with a zero, which is not padding
        }
        const ConnectionId id = call({}, there);
        const ConnectEvent asked = request();
        EXPECT_EQ(text(asked.private_data), there);
        EXPECT_TRUE(says(asked.text, variable("POLLCORE_RXE_PEER_ADDRESS"))) << asked.text;
        accept(asked.connection, {}, back);
        EXPECT_EQ(text(expect(client_, Kind::established, id).private_data), back);
        EXPECT_TRUE(expect(server_, Kind::established, asked.connection).private_data.empty());
    }
}

TEST_F(RdmaCmTest, TooMuchPrivateDataIsRefusedAtOnce) {
    EXPECT_EQ(error_of([&] { (void)call({}, std::string(kRequestPrivateDataMax + 1, 'x')); }).code(),
              std::errc::message_size);
    const ConnectionId id = call();
    const ConnectionId asked = request().connection;
    EXPECT_THROW(accept(asked, {}, std::string(kReplyPrivateDataMax + 1, 'x')), Error);
    EXPECT_THROW(server_.connector().reject(asked, bytes(std::string(kRejectPrivateDataMax + 1, 'x'))), Error);
    accept(asked);  // the request still waits for its answer
    expect(client_, Kind::established, id);
    expect(server_, Kind::established, asked);
}

TEST_F(RdmaCmTest, PathAttributesReachTheQueuePairs) {
    PathAttributes path;
    path.timeout = 11;
    path.retry_count = 3;
    path.rnr_retry = 2;
    path.min_rnr_timer = 7;
    path.traffic_class = 0x68;
    path.max_rd_atomic = 8;  // a power of two: Soft-RoCE rounds other values up
    path.max_dest_rd_atomic = 2;
    const ConnectionId id = call(path);
    const ConnectionId asked = request().connection;
    PathAttributes answer;
    answer.timeout = 0;
    answer.retry_count = 5;
    answer.rnr_retry = 7;
    answer.min_rnr_timer = 9;
    answer.max_rd_atomic = 4;
    answer.max_dest_rd_atomic = 4;
    accept(asked, answer);
    expect(client_, Kind::established, id);
    expect(server_, Kind::established, asked);

    constexpr int kAsked = IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MIN_RNR_TIMER | IBV_QP_AV |
                           IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_PATH_MTU;
    const ibv_qp_attr caller = client_.device().query(client_qp_, kAsked);
    EXPECT_EQ(caller.timeout, 11);
    EXPECT_EQ(caller.retry_cnt, 3);
    EXPECT_EQ(caller.rnr_retry, 2);
    EXPECT_EQ(caller.min_rnr_timer, 7);
    EXPECT_EQ(caller.ah_attr.grh.traffic_class, 0x68);
    EXPECT_EQ(caller.max_rd_atomic, 4);  // the smaller of the caller's wish and the server's max_dest_rd_atomic
    EXPECT_EQ(caller.max_dest_rd_atomic, 2);
    EXPECT_EQ(caller.path_mtu, client_.device().query_port().active_mtu);
    const ibv_qp_attr answering = server_.device().query(server_qp_, kAsked);
    EXPECT_EQ(answering.timeout, 0);
    EXPECT_EQ(answering.retry_cnt, 5);
    EXPECT_EQ(answering.rnr_retry, 7);
    EXPECT_EQ(answering.min_rnr_timer, 9);
    EXPECT_EQ(answering.ah_attr.grh.traffic_class, 0x68);  // the caller's value, because the answer gives none
    EXPECT_EQ(answering.max_rd_atomic, 2);
    EXPECT_EQ(answering.max_dest_rd_atomic, 4);
    EXPECT_EQ(answering.path_mtu, caller.path_mtu);
    exchange();
}

TEST_F(RdmaCmTest, MoreReadsInFlightThanTheDeviceHasBecomeWhatItHas) {
    PathAttributes path;
    path.max_rd_atomic = path.max_dest_rd_atomic = 255;
    const ConnectionId id = call(path);
    const ConnectionId asked = request().connection;
    accept(asked, path);
    expect(client_, Kind::established, id);
    expect(server_, Kind::established, asked);
    EXPECT_EQ(client_.device().query(client_qp_, IBV_QP_MAX_QP_RD_ATOMIC).max_rd_atomic, 128);
    EXPECT_EQ(server_.device().query(server_qp_, IBV_QP_MAX_DEST_RD_ATOMIC).max_dest_rd_atomic, 128);
}

TEST_F(RdmaCmTest, PathAttributesOutOfRangeAreRefusedByName) {
    const auto refused = [&](const char* name, auto change) {
        PathAttributes path;
        change(path);
        const Error error = error_of([&] { (void)call(path); });
        EXPECT_EQ(error.code(), std::errc::invalid_argument);
        EXPECT_TRUE(says(error, name)) << error.what();
    };
    refused("timeout = 32", [](auto& path) { path.timeout = 32; });
    refused("retry_count = 8", [](auto& path) { path.retry_count = 8; });
    refused("rnr_retry = 8", [](auto& path) { path.rnr_retry = 8; });
    refused("min_rnr_timer = 32", [](auto& path) { path.min_rnr_timer = 32; });
    refused("mtu = 1000", [](auto& path) { path.mtu = 1000; });
    refused("path MTU of 4096", [](auto& path) { path.mtu = 4096; });
}

TEST_F(RdmaCmTest, EndsThatDisagreeOnTheMtuDoNotConnect) {
    PathAttributes path;
    path.mtu = 1024;
    const ConnectionId id = call(path);
    const ConnectionId asked = request().connection;
    path.mtu = 512;
    accept(asked, path);
    expect_failure(server_, asked, EINVAL, "512");
    expect_failure(client_, id, ECONNREFUSED, "rejected");
}

TEST_F(RdmaCmTest, ManyConnectionsAtATimeKeepApart) {
    constexpr std::size_t kConnections = 20;
    std::map<ConnectionId, std::string> asked;
    for (std::size_t i = 0; i < kConnections; ++i) {
        const std::string name = "connection " + std::to_string(i);
        asked[call({}, name)] = name;
    }
    // The first connection may be established before the last one is requested.
    std::set<ConnectionId> requests;
    std::set<ConnectionId> established;
    while (established.size() < kConnections) {
        const ConnectEvent event = next(server_, client_);
        if (event.kind == Kind::request) {
            EXPECT_TRUE(requests.insert(event.connection).second);
            accept(event.connection, {}, "to " + text(event.private_data));
        } else {
            ASSERT_EQ(event.kind, Kind::established) << event.text;
            EXPECT_TRUE(requests.contains(event.connection));
            EXPECT_TRUE(established.insert(event.connection).second);
        }
    }
    EXPECT_EQ(requests.size(), kConnections);
    for (std::size_t i = 0; i < kConnections; ++i) {
        const ConnectEvent event = next(client_, server_);
        ASSERT_EQ(event.kind, Kind::established) << event.text;
        EXPECT_EQ(text(event.private_data), "to " + asked.at(event.connection));
    }
}

TEST_F(RdmaCmTest, TheServerMayReceiveBeforeItKnowsAndACommunicationEventEstablishes) {
    client_id_ = call();
    server_id_ = request().connection;
    accept(server_id_);
    while (server_.device().query(server_qp_, IBV_QP_STATE).qp_state != IBV_QPS_RTS) {
        server_.pump();
    }
    // Simulates the device's event COMM_EST: a message has come before the caller has read the answer.
    server_.connector().communication_established(server_qp_->qp_num);
    while (server_.events.empty()) {
        server_.pump();
    }
    EXPECT_EQ(server_.events.front().kind, Kind::established);
    server_.events.pop_front();
    expect(client_, Kind::established, client_id_);
    exchange();
    server_.connector().communication_established(server_qp_->qp_num);  // too late to matter
    server_.connector().communication_established(0xffffff);            // no QP has this number
}

// --- Devices and addresses ---

TEST(RdmaCmSameDevice, TwoProgramsOnOneDeviceConnect) {
    Peer server(rxe::open_device());
    Peer client(rxe::open_device());
    const ListenerId listener = server.connector().listen(variable("POLLCORE_RXE_ADDRESS") + ":0");
    ibv_qp* client_qp = client.make_qp();
    // In the guest of scripts/rxe-vm the route to the address goes through the other device. The client's source
    // address keeps the connection on the client's device.
    const ConnectionId id = client.connector().connect(server.connector().address_of(listener),
                                                       client.connecting(client_qp), {}, bytes("same"));
    const ConnectEvent asked = next(server, client);
    ASSERT_EQ(asked.kind, Kind::request) << asked.text;
    EXPECT_EQ(text(asked.private_data), "same");
    ibv_qp* server_qp = server.make_qp();
    server.connector().accept(asked.connection, server.connecting(server_qp), {}, {});
    const ConnectEvent established = next(client, server);
    ASSERT_EQ(established.kind, Kind::established) << established.text;
    EXPECT_EQ(established.connection, id);
    EXPECT_EQ(next(server, client).kind, Kind::established);
    server.post_receive(server_qp, 1);
    client.post_send(client_qp, 2, "hello");
    EXPECT_EQ(server.completion().status, IBV_WC_SUCCESS);
    EXPECT_EQ(server.received(5), "hello");
}

TEST_F(RdmaCmTest, ConnectsBetweenLinkLocalAddresses) {
    CmAddress link_local;
    for (const GidEntry& gid : server_.device().gids()) {
        if (gid.gid.raw[0] == 0xfe && gid.gid.raw[1] == 0x80) {
            link_local = CmAddress::from_gid(gid.gid.raw);
        }
    }
    const std::string host = link_local.text().substr(0, link_local.text().find(']'));
    listen(host + "%" + variable("POLLCORE_RXE_NETDEV") + "]:0");
    EXPECT_TRUE(says(address_, variable("POLLCORE_RXE_NETDEV"))) << address_;
    const std::string port = address_.substr(address_.rfind(':'));
    address_ = host + "%" + variable("POLLCORE_RXE_PEER_NETDEV") + "]" + port;
    establish();
    exchange();
    // With the server's interface as scope, the route goes through the server's device, not through the client's.
    address_ = host + "%" + variable("POLLCORE_RXE_NETDEV") + "]" + port;
    const ConnectEvent failed = expect_failure(client_, call(), ENODEV, variable("POLLCORE_RXE_DEVICE"));
    EXPECT_TRUE(says(failed.text, variable("POLLCORE_RXE_PEER"))) << failed.text;
}

TEST_F(RdmaCmTest, AnAddressOfAnotherDeviceIsNoPlaceToListen) {
    const Error error = error_of([&] { listen(variable("POLLCORE_RXE_PEER_ADDRESS") + ":0"); });
    EXPECT_TRUE(says(error, variable("POLLCORE_RXE_DEVICE")) && says(error, variable("POLLCORE_RXE_PEER")))
        << error.what();
    EXPECT_TRUE(says(error_of([&] { listen("127.0.0.1:0"); }), "127.0.0.1:0"));
    EXPECT_TRUE(says(error_of([&] { listen("192.0.2.77:0"); }), "no RDMA device has this address"));
    EXPECT_TRUE(says(error_of([&] { listen("somewhere"); }), "no port"));
}

TEST_F(RdmaCmTest, APortIsListenedOnOnce) {
    EXPECT_FALSE(says(address_ + "|", ":0|")) << address_;
    const Error error = error_of([&] { (void)server_.connector().listen(address_); });
    EXPECT_EQ(error.code(), std::errc::address_in_use);
    EXPECT_TRUE(says(error, address_)) << error.what();
    server_.connector().stop_listening(listener_);
    EXPECT_THROW((void)server_.connector().address_of(listener_), Error);
    listen(address_);
    establish();
}

TEST_F(RdmaCmTest, AListenerOnEveryAddressServesItsOwnDeviceAndRefusesTheOther) {
    listen("0.0.0.0:0");
    const std::string port = address_.substr(address_.rfind(':'));
    address_ = variable("POLLCORE_RXE_ADDRESS") + port;
    establish();
    exchange();
    address_ = variable("POLLCORE_RXE_PEER_ADDRESS") + port;  // an address of the client's own device
    const ConnectionId id = call();
    expect_failure(client_, id, ECONNREFUSED, "its program said no");
    const ConnectEvent refused = expect_failure(server_, 0, ENODEV, variable("POLLCORE_RXE_PEER"));
    EXPECT_EQ(refused.listener, listener_);
    EXPECT_TRUE(says(refused.text, variable("POLLCORE_RXE_DEVICE"))) << refused.text;
}

// --- Peers that use rdma_cm without pollcore ---

/// One rdma_cm_id of a program that uses plain librdmacm. Its calls block, so a test makes them in another thread.
class PlainId {
public:
    PlainId() { EXPECT_EQ(rdma_create_id(nullptr, &id_, nullptr, RDMA_PS_TCP), 0); }
    explicit PlainId(rdma_cm_id* id) : id_(id) {}
    ~PlainId() {
        if (id_->qp != nullptr) {
            rdma_destroy_qp(id_);
        }
        EXPECT_EQ(rdma_destroy_id(id_), 0);
    }
    PlainId(const PlainId&) = delete;
    PlainId& operator=(const PlainId&) = delete;
    rdma_cm_id* get() { return id_; }
    void make_qp() {
        ibv_qp_init_attr attr{};
        attr.qp_type = IBV_QPT_RC;
        attr.cap = {4, 4, 1, 1, 0};
        EXPECT_EQ(rdma_create_qp(id_, nullptr, &attr), 0);
    }
    static rdma_conn_param param(const std::vector<std::byte>& data) {
        rdma_conn_param param{};
        param.private_data = data.data();
        param.private_data_len = static_cast<std::uint8_t>(data.size());
        param.responder_resources = param.initiator_depth = 1;
        param.retry_count = 3;
        param.rnr_retry_count = 7;
        return param;
    }
    /// Returns 0 or the errno value of rdma_connect().
    int call(const std::string& address, const std::vector<std::byte>& data) {
        CmAddress destination = CmAddress::parse(address);
        EXPECT_EQ(rdma_resolve_addr(id_, nullptr, destination.get(), 2000), 0);
        EXPECT_EQ(rdma_resolve_route(id_, 2000), 0);
        make_qp();
        rdma_conn_param wanted = param(data);
        return rdma_connect(id_, &wanted) == 0 ? 0 : errno;
    }

private:
    rdma_cm_id* id_ = nullptr;
};

TEST_F(RdmaCmTest, APlainProgramCallsAndItsBytesAreGivenAsTheyCame) {
    PlainId plain;
    int result = -1;
    std::thread program([&] {
        result = plain.call(address_, bytes("plain"));
        EXPECT_EQ(rdma_disconnect(plain.get()), 0);  // blocks until the peer disconnects, too
    });
    const ConnectEvent asked = request();
    std::string padded = "plain";
    padded.resize(kRequestPrivateDataMax + kPrivateDataHeader);
    EXPECT_EQ(text(asked.private_data), padded);
    accept(asked.connection, {}, "answer");
    expect(server_, Kind::established, asked.connection);
    expect(server_, Kind::disconnected, asked.connection);
    program.join();
    EXPECT_EQ(result, 0);
}

TEST_F(RdmaCmTest, APlainProgramIsCalledAndItsBytesAreGivenAsTheyCame) {
    PlainId listening;
    CmAddress at = CmAddress::parse(variable("POLLCORE_RXE_ADDRESS") + ":0");
    ASSERT_EQ(rdma_bind_addr(listening.get(), at.get()), 0);
    ASSERT_EQ(rdma_listen(listening.get(), 1), 0);
    address_ = CmAddress(*rdma_get_local_addr(listening.get())).text();
    std::thread program([&] {
        rdma_cm_id* asked = nullptr;
        ASSERT_EQ(rdma_get_request(listening.get(), &asked), 0);
        PlainId connection(asked);
        connection.make_qp();
        const auto data = bytes("plain answer");
        rdma_conn_param answer = PlainId::param(data);
        ASSERT_EQ(rdma_accept(asked, &answer), 0);
        ASSERT_EQ(rdma_disconnect(asked), 0);
    });
    client_id_ = call({}, "ours");
    const ConnectEvent event = expect(client_, Kind::established, client_id_);
    EXPECT_EQ(text(event.private_data).substr(0, 12), "plain answer");
    EXPECT_EQ(event.private_data.size(), kReplyPrivateDataMax + kPrivateDataHeader);
    expect(client_, Kind::disconnected, client_id_);
    program.join();
}

TEST_F(RdmaCmTest, ACallWhosePrivateDataLiesIsRefused) {
    PlainId plain;
    int result = -1;
    auto lying = encode_private_data(bytes("short"), kRequestPrivateDataMax);
    lying[3] = std::byte{255};
    std::thread program([&] { result = plain.call(address_, lying); });
    const ConnectEvent refused = expect_failure(server_, 0, EPROTO, "claims more bytes than arrived");
    EXPECT_EQ(refused.listener, listener_);
    program.join();
    EXPECT_EQ(result, ECONNREFUSED);
}

TEST_F(RdmaCmTest, WhateverBytesACallBringsItIsRefusedOrGiven) {
    std::mt19937 random(3);
    int given = 0;
    for (int round = 0; round < 60; ++round) {
        std::vector<std::byte> noise(random() % 57);
        for (std::byte& b : noise) {
            b = static_cast<std::byte>(random() % 3 == 0 ? random() : 0);
        }
        if (noise.size() >= 3 && round % 4 != 0) {  // so that most calls pass the first checks
            std::copy(kPrivateDataMagic.begin(), kPrivateDataMagic.end(), noise.begin());
            noise[2] = static_cast<std::byte>(1 + random() % 4);
        }
        std::vector<std::byte> padded = noise;
        padded.resize(kRequestPrivateDataMax + kPrivateDataHeader);
        const bool damaged = decode_private_data(padded).fault != PrivateDataFault::none;
        PlainId plain;
        int result = -1;
        std::thread program([&] { result = plain.call(address_, noise); });
        if (damaged) {
            EXPECT_EQ(expect(server_, Kind::failed, 0).error, EPROTO);
        } else {
            server_.connector().reject(request().connection, {});
            ++given;
        }
        program.join();
        EXPECT_EQ(result, ECONNREFUSED) << round;
    }
    EXPECT_GT(given, 10);
    EXPECT_LT(given, 50);
}

// --- Failures ---

TEST_F(RdmaCmTest, ARejectionCarriesItsPrivateData) {
    for (const std::string& why : {std::string(), std::string("busy"), std::string(kRejectPrivateDataMax, 'r')}) {
        const ConnectionId id = call();
        server_.connector().reject(request().connection, bytes(why));
        const ConnectEvent event = expect_failure(client_, id, ECONNREFUSED, "its program said no");
        EXPECT_EQ(text(event.private_data), why);
    }
}

TEST_F(RdmaCmTest, WhereNobodyListensIsSaidSo) {
    server_.connector().stop_listening(listener_);
    const ConnectEvent event = expect_failure(client_, call(), ECONNREFUSED, "nobody listens");
    EXPECT_TRUE(says(event.text, address_)) << event.text;
    EXPECT_TRUE(event.private_data.empty());
}

TEST_F(RdmaCmTest, AnAddressThatNobodyHasFails) {
    address_ = "10.77.0.99:7471";
    ConnectEvent event = expect(client_, Kind::failed, call());
    EXPECT_NE(event.error, 0);
    EXPECT_TRUE(says(event.text, "cannot reach 10.77.0.99:7471")) << event.text;
    address_ = "192.0.2.1:7471";
    event = expect(client_, Kind::failed, call());
    EXPECT_TRUE(says(event.text, "192.0.2.1:7471")) << event.text;
    EXPECT_THROW((void)client_.connector().connect("nonsense", {}, {}, {}), Error);
}

/// While this object lives, `netdev` answers no ARP request. The constructor deletes `address` from the neighbour table
/// of the interface `other`.
class Silence {
public:
    Silence(const std::string& netdev, const std::string& address, const std::string& other) : netdev_(netdev) {
        run("echo 8 >/proc/sys/net/ipv4/conf/" + netdev + "/arp_ignore");  // scripts/rxe-vm.guest has set it to 1
        run("ip neighbour delete " + address + " dev " + other);
    }
    ~Silence() { run("echo 1 >/proc/sys/net/ipv4/conf/" + netdev_ + "/arp_ignore"); }
    Silence(const Silence&) = delete;
    Silence& operator=(const Silence&) = delete;

private:
    static void run(const std::string& command) { EXPECT_EQ(std::system(command.c_str()), 0) << command; }
    std::string netdev_;
};

/// A QP that counts how often it was moved to RTR. If the kernel does not know the peer's hardware address, the call
/// that moves the QP to RTR blocks until the address is found.
ConnectingQp counted(Peer& peer, ibv_qp* qp, int& moves) {
    return {qp->qp_num, false, [&peer, qp, &moves](ibv_qp_attr& attr, int mask) {
                moves += (mask & IBV_QP_STATE) != 0 && attr.qp_state == IBV_QPS_RTR;
                peer.device().modify(qp, attr, mask);
            }};
}

TEST_F(RdmaCmTest, ACallerWhoseAddressIsNotFoundAnyMoreIsNotWaitedForInACall) {
    establish();  // so that each end knows the other's hardware address
    int moves = 0;
    const ConnectionId id = call();
    const ConnectionId asked = request().connection;
    {
        const Silence silence(variable("POLLCORE_RXE_PEER_NETDEV"), variable("POLLCORE_RXE_PEER_ADDRESS"),
                              variable("POLLCORE_RXE_NETDEV"));
        server_.connector().accept(asked, counted(server_, server_.make_qp(), moves), {}, {});
        const ConnectEvent failed = expect(server_, Kind::failed, asked);
        EXPECT_TRUE(says(failed.text, variable("POLLCORE_RXE_PEER_ADDRESS"))) << failed.text;
        EXPECT_NE(failed.error, 0);
    }
    EXPECT_EQ(moves, 0);
    client_.connector().forget(id);  // no rejection has reached this end
    establish();
    exchange();
}

TEST_F(RdmaCmTest, AListenerWhoseAddressIsNotFoundAnyMoreIsNotWaitedForInACall) {
    establish();
    int moves = 0;
    const ConnectionId id = client_.connector().connect(address_, counted(client_, client_.make_qp(), moves), {}, {});
    const ConnectionId asked = request().connection;
    {
        const Silence silence(variable("POLLCORE_RXE_NETDEV"), variable("POLLCORE_RXE_ADDRESS"),
                              variable("POLLCORE_RXE_PEER_NETDEV"));
        accept(asked);
        const ConnectEvent failed = expect(client_, Kind::failed, id);
        EXPECT_TRUE(says(failed.text, variable("POLLCORE_RXE_ADDRESS"))) << failed.text;
        EXPECT_NE(failed.error, 0);
    }
    EXPECT_EQ(moves, 0);
    server_.connector().forget(asked);  // no rejection has reached this end
    establish();
    exchange();
}

TEST_F(RdmaCmTest, AQueuePairThatCannotBeMovedFailsTheConnectionOnBothSides) {
    const auto broken = [](ibv_qp* qp) {
        return ConnectingQp{qp->qp_num, false, [](ibv_qp_attr&, int) { throw Error(EIO, "the queue pair is stuck"); }};
    };
    ConnectionId id = call();
    ConnectionId asked = request().connection;
    server_.connector().accept(asked, broken(server_.make_qp()), {}, {});
    expect_failure(server_, asked, EIO, "stuck");
    expect_failure(client_, id, ECONNREFUSED, "rejected");

    id = client_.connector().connect(address_, broken(client_.make_qp()), {}, {});
    asked = request().connection;
    accept(asked);
    expect_failure(client_, id, EIO, "stuck");
    expect_failure(server_, asked, ECONNREFUSED, "rejected");
}

TEST_F(RdmaCmTest, AnswersThatMakeNoSenseAreRefused) {
    Connector& connector = server_.connector();
    EXPECT_THROW(connector.accept(999, {}, {}, {}), Error);
    EXPECT_THROW(connector.reject(999, {}), Error);
    EXPECT_THROW((void)connector.address_of(999), Error);
    connector.forget(999);
    connector.disconnect(999);
    connector.stop_listening(999);

    client_id_ = call();
    EXPECT_THROW(client_.connector().accept(client_id_, {}, {}, {}), Error);
    EXPECT_EQ(error_of([&] { client_.connector().disconnect(client_id_); }).code(), std::errc::not_connected);
    server_id_ = request().connection;
    EXPECT_EQ(error_of([&] { connector.disconnect(server_id_); }).code(), std::errc::not_connected);
    accept(server_id_);
    EXPECT_THROW(accept(server_id_), Error);
    EXPECT_THROW(connector.reject(server_id_, {}), Error);
    expect(client_, Kind::established, client_id_);
    expect(server_, Kind::established, server_id_);
}

}  // namespace
}  // namespace pollcore
