// Two ends of a wire that make connections over rdma_cm.
#pragma once

#include <string>

#include <gtest/gtest.h>

#include "rdma_cm_peer.hpp"

namespace pollcore::rxe {

using Kind = ConnectEvent::Kind;

/// `server_` listens at one end of the wire, `client_` connects from the other end.
class RdmaCmTest : public testing::Test {
protected:
    void SetUp() override { listen(variable("POLLCORE_RXE_ADDRESS") + ":0"); }
    void TearDown() override {
        // The two ends are destroyed with connections in any state. No destructor may hang.
        EXPECT_TRUE(client_.events.empty());
        EXPECT_TRUE(server_.events.empty());
    }
    void listen(const std::string& address) {
        listener_ = server_.connector().listen(address);
        address_ = server_.connector().address_of(listener_);
    }
    ConnectionId call(const PathAttributes& path = {}, const std::string& data = {}) {
        client_qp_ = client_.make_qp();
        return client_.connector().connect(address_, client_.connecting(client_qp_), path, bytes(data));
    }
    ConnectEvent request() {
        ConnectEvent event = next(server_, client_);
        EXPECT_EQ(event.kind, Kind::request) << event.text;
        EXPECT_EQ(event.listener, listener_);
        return event;
    }
    void accept(ConnectionId id, const PathAttributes& path = {}, const std::string& data = {}) {
        server_qp_ = server_.make_qp();
        server_.connector().accept(id, server_.connecting(server_qp_), path, bytes(data));
    }
    ConnectEvent expect(Peer& peer, Kind kind, ConnectionId id) {
        ConnectEvent event = next(peer, &peer == &client_ ? server_ : client_);
        EXPECT_EQ(event.kind, kind) << event.text;
        EXPECT_EQ(event.connection, id);
        return event;
    }
    ConnectEvent expect_failure(Peer& peer, ConnectionId id, int error, const std::string& part) {
        ConnectEvent event = expect(peer, Kind::failed, id);
        EXPECT_EQ(event.error, error) << event.text;
        EXPECT_TRUE(says(event.text, part)) << event.text;
        return event;
    }
    /// Makes a connection whose queue pairs are in RTS on both sides.
    void establish() {
        client_id_ = call();
        server_id_ = request().connection;
        accept(server_id_);
        expect(client_, Kind::established, client_id_);
        expect(server_, Kind::established, server_id_);
    }
    /// Sends one message each way.
    void exchange() {
        server_.post_receive(server_qp_, 1);
        client_.post_receive(client_qp_, 2);
        client_.post_send(client_qp_, 3, "to the server");
        const ibv_wc got = server_.completion();
        EXPECT_EQ(got.status, IBV_WC_SUCCESS);
        EXPECT_EQ(got.wr_id, 1u);
        EXPECT_EQ(server_.received(got.byte_len), "to the server");
        EXPECT_EQ(client_.completion().wr_id, 3u);
        server_.post_send(server_qp_, 4, "and back");
        const ibv_wc back = client_.completion();
        EXPECT_EQ(back.status, IBV_WC_SUCCESS);
        EXPECT_EQ(client_.received(back.byte_len), "and back");
        EXPECT_EQ(server_.completion().wr_id, 4u);
    }

    Peer server_{rxe::open_device()};
    Peer client_{rxe::open_peer()};
    ListenerId listener_ = 0;
    std::string address_;
    ConnectionId client_id_ = 0;
    ConnectionId server_id_ = 0;
    ibv_qp* client_qp_ = nullptr;
    ibv_qp* server_qp_ = nullptr;
};

}  // namespace pollcore::rxe
