// Connections by name between software devices.
#include "connect/names_connector.hpp"

#include <poll.h>

#include <cerrno>
#include <map>
#include <span>
#include <string>
#include <string_view>

#include "soft_fixture.hpp"

namespace pollcore::test {
namespace {

using EventKind = ConnectEvent::Kind;

ConnectingQp connecting(End& end) {
    return {end.qp->qp_num, false,
            [&end](ibv_qp_attr& attr, int mask) { end.device.modify(end.qp.get(), attr, mask); }};
}
std::vector<std::byte> bytes(std::string_view text) {
    const auto view = std::as_bytes(std::span(text));
    return {view.begin(), view.end()};
}
bool readable(const Connector& connector) {
    pollfd fd{connector.fd(), POLLIN, 0};
    return ::poll(&fd, 1, 0) == 1;
}

class NamesConnectorTest : public ::testing::Test {
protected:
    /// Returns the connector's next event, and expects no further one.
    static ConnectEvent only(Connector& connector) {
        EXPECT_TRUE(readable(connector));
        auto event = connector.next_event();
        EXPECT_TRUE(event.has_value());
        EXPECT_FALSE(connector.next_event().has_value());
        EXPECT_FALSE(readable(connector));
        return event.value_or(ConnectEvent{});
    }
    /// Connects end a, at `caller`, with end b, at `server`.
    void establish() {
        (void)server->listen("here");
        active = caller->connect("here", connecting(a), {}, bytes("hello"));
        const auto request = only(*server);
        ASSERT_EQ(request.kind, EventKind::request);
        passive = request.connection;
        server->accept(passive, connecting(b), {}, bytes("welcome"));
        ASSERT_EQ(only(*caller).kind, EventKind::established);
        ASSERT_EQ(only(*server).kind, EventKind::established);
    }

    std::unique_ptr<SoftDevice> near = open_soft_device({.name = "near"});
    std::unique_ptr<SoftDevice> far = open_soft_device({.name = "far"});
    End a{*near};
    End b{*far};
    std::unique_ptr<Connector> caller = std::make_unique<NamesConnector>(*near);
    std::unique_ptr<Connector> server = std::make_unique<NamesConnector>(*far);
    ConnectionId active = 0;
    ConnectionId passive = 0;
};

TEST_F(NamesConnectorTest, both_ends_reach_rts_and_data_flows) {
    const auto listener = server->listen("here");
    EXPECT_EQ(server->address_of(listener), "here");
    const auto id = caller->connect("here", connecting(a), {}, bytes("hello"));
    const auto request = only(*server);
    EXPECT_EQ(request.kind, EventKind::request);
    EXPECT_EQ(request.listener, listener);
    EXPECT_EQ(request.private_data, bytes("hello"));
    EXPECT_NE(request.text.find("near"), std::string::npos);
    EXPECT_FALSE(readable(*caller));
    EXPECT_EQ(b.state(), IBV_QPS_INIT);

    server->accept(request.connection, connecting(b), {}, bytes("welcome"));
    EXPECT_EQ(b.state(), IBV_QPS_RTS);
    EXPECT_EQ(a.state(), IBV_QPS_INIT);
    const auto established = only(*caller);
    EXPECT_EQ(established.kind, EventKind::established);
    EXPECT_EQ(established.connection, id);
    EXPECT_EQ(established.private_data, bytes("welcome"));
    EXPECT_EQ(a.state(), IBV_QPS_RTS);
    EXPECT_EQ(only(*server).kind, EventKind::established);

    a.memory[0] = 5;
    ASSERT_EQ(b.post_recv(1, {b.sge(0, 8)}), 0);
    ASSERT_EQ(a.post(2, IBV_WR_SEND, {a.sge(0, 8)}), 0);
    EXPECT_FALSE(End::poll(a.send_cq.get()).has_value());
    EXPECT_WC(b.received(), 1, IBV_WC_SUCCESS);
    EXPECT_WC(a.sent(), 2, IBV_WC_SUCCESS);
    EXPECT_EQ(b.memory[0], 5u);
}

TEST_F(NamesConnectorTest, the_smaller_mtu_and_what_the_peer_serves_are_agreed) {
    (void)server->listen("here");
    PathAttributes mine, theirs;
    mine.mtu = 512;
    mine.max_rd_atomic = 9;
    mine.max_dest_rd_atomic = 3;
    theirs.max_dest_rd_atomic = 4;
    theirs.traffic_class = 8;
    (void)caller->connect("here", connecting(a), mine, {});
    server->accept(only(*server).connection, connecting(b), theirs, {});
    EXPECT_EQ(only(*caller).kind, EventKind::established);
    const auto active_attr = near->query(a.qp.get(), IBV_QP_STATE);
    const auto passive_attr = far->query(b.qp.get(), IBV_QP_STATE);
    EXPECT_EQ(active_attr.path_mtu, IBV_MTU_512);
    EXPECT_EQ(passive_attr.path_mtu, IBV_MTU_512);
    EXPECT_EQ(active_attr.max_rd_atomic, 4);
    EXPECT_EQ(passive_attr.max_rd_atomic, 3);
    EXPECT_EQ(passive_attr.max_dest_rd_atomic, 4);
    EXPECT_EQ(passive_attr.ah_attr.grh.traffic_class, 8);
    EXPECT_EQ(active_attr.dest_qp_num, b.qp->qp_num);
}

TEST_F(NamesConnectorTest, nobody_listening_fails_with_connection_refused) {
    const auto id = caller->connect("nowhere", connecting(a), {}, {});
    const auto event = only(*caller);
    EXPECT_EQ(event.kind, EventKind::failed);
    EXPECT_EQ(event.connection, id);
    EXPECT_EQ(event.error, ECONNREFUSED);
    EXPECT_NE(event.text.find("nowhere"), std::string::npos);
}

TEST_F(NamesConnectorTest, a_rejection_carries_its_private_data) {
    (void)server->listen("here");
    (void)caller->connect("here", connecting(a), {}, {});
    server->reject(only(*server).connection, bytes("full"));
    const auto event = only(*caller);
    EXPECT_EQ(event.kind, EventKind::failed);
    EXPECT_EQ(event.error, ECONNREFUSED);
    EXPECT_EQ(event.private_data, bytes("full"));
    EXPECT_EQ(a.state(), IBV_QPS_INIT);
    EXPECT_FALSE(readable(*server));
}

TEST_F(NamesConnectorTest, a_name_is_listened_on_once_and_free_again_afterwards) {
    const auto listener = server->listen("here");
    try {
        (void)caller->listen("here");
        FAIL() << "the second listener was let in";
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), std::errc::address_in_use);
        EXPECT_NE(std::string(error.what()).find("here"), std::string::npos);
    }
    server->stop_listening(listener);
    (void)caller->listen("here");
    caller.reset();
    (void)server->listen("here");
    EXPECT_THROW((void)server->listen("two words"), Error);
    EXPECT_THROW((void)server->listen(""), Error);
}

TEST_F(NamesConnectorTest, who_listens_at_a_port_of_every_address_is_found_by_each) {
    (void)server->listen("0.0.0.0:7");
    (void)caller->connect("127.0.0.1:7", connecting(a), {}, bytes("hello"));
    EXPECT_EQ(only(*server).kind, EventKind::request);
    (void)caller->connect("127.0.0.1:8", connecting(b), {}, bytes("hello"));
    EXPECT_EQ(only(*caller).error, ECONNREFUSED);
    (void)server->listen("10.0.0.1:7");
    (void)caller->connect("10.0.0.1:7", connecting(b), {}, {});
    const auto to_the_one = only(*server);
    EXPECT_EQ(to_the_one.kind, EventKind::request) << "the one that has the name";
}

TEST_F(NamesConnectorTest, a_disconnect_reaches_both_sides_once) {
    establish();
    caller->disconnect(active);
    EXPECT_EQ(only(*caller).kind, EventKind::disconnected);
    EXPECT_EQ(only(*server).kind, EventKind::disconnected);
    server->disconnect(passive);
    EXPECT_FALSE(server->next_event().has_value());
    EXPECT_FALSE(caller->next_event().has_value());
}

TEST_F(NamesConnectorTest, a_peer_that_forgets_or_goes_away_disconnects) {
    establish();
    server->forget(passive);
    EXPECT_FALSE(server->next_event().has_value());
    EXPECT_EQ(only(*caller).kind, EventKind::disconnected);
}

TEST_F(NamesConnectorTest, a_destroyed_connector_disconnects_and_refuses_what_it_had) {
    establish();
    End c(*near);
    End d(*near);
    const auto asked = caller->connect("here", connecting(c), {}, {});
    EXPECT_EQ(only(*server).kind, EventKind::request);
    const auto unread = caller->connect("here", connecting(d), {}, {});
    server.reset();
    std::map<ConnectionId, ConnectEvent> events;
    while (auto event = caller->next_event())
        events[event->connection] = *event;
    ASSERT_EQ(events.size(), 3u);
    EXPECT_EQ(events[active].kind, EventKind::disconnected);
    EXPECT_EQ(events[asked].kind, EventKind::failed);
    EXPECT_EQ(events[asked].error, ECONNREFUSED);
    EXPECT_EQ(events[unread].kind, EventKind::failed);
    EXPECT_EQ(events[unread].error, ECONNREFUSED);
}

TEST_F(NamesConnectorTest, an_accept_whose_caller_has_gone_fails) {
    (void)server->listen("here");
    const auto id = caller->connect("here", connecting(a), {}, {});
    auto request = only(*server);
    caller->forget(id);
    server->accept(request.connection, connecting(b), {}, {});
    EXPECT_FALSE(caller->next_event().has_value());  // in this call, the caller answers for the forgotten connection
    auto event = only(*server);
    EXPECT_EQ(event.kind, EventKind::failed);
    EXPECT_EQ(event.error, ECONNRESET);

    End c(*far);
    (void)caller->connect("here", connecting(a), {}, {});
    request = only(*server);
    caller.reset();
    server->accept(request.connection, connecting(c), {}, {});
    event = only(*server);
    EXPECT_EQ(event.kind, EventKind::failed);
    EXPECT_EQ(event.error, ECONNRESET);
}

TEST_F(NamesConnectorTest, a_request_whose_caller_has_gone_is_withdrawn) {
    (void)server->listen("here");
    const auto id = caller->connect("here", connecting(a), {}, {});
    const auto request = only(*server);
    caller->forget(id);
    const auto withdrawn = only(*server);
    EXPECT_EQ(withdrawn.kind, EventKind::withdrawn);
    EXPECT_EQ(withdrawn.connection, request.connection);
    server->accept(request.connection, connecting(b), {}, {});
    const auto failed = only(*server);
    EXPECT_EQ(failed.kind, EventKind::failed);
    EXPECT_EQ(failed.error, ECONNRESET);
    EXPECT_EQ(b.state(), IBV_QPS_INIT);  // b is unchanged and may be used for another connection

    const auto unread = caller->connect("here", connecting(a), {}, {});
    caller->forget(unread);
    const auto asked = server->next_event();
    ASSERT_TRUE(asked.has_value());
    EXPECT_EQ(asked->kind, EventKind::request);
    EXPECT_EQ(only(*server).kind, EventKind::withdrawn);
    server->reject(asked->connection, {});  // the caller is told nothing, and the request is gone
    EXPECT_THROW(server->reject(asked->connection, {}), Error);
    EXPECT_FALSE(caller->next_event().has_value());
}

TEST_F(NamesConnectorTest, a_listener_that_takes_nothing_is_asked_no_more_than_its_inbox_holds) {
    (void)server->listen("here");
    for (std::size_t i = 0; i < Inbox::kRequestsMax; ++i) {
        (void)caller->connect("here", connecting(a), {}, {});
        ASSERT_FALSE(caller->next_event().has_value());
    }
    (void)caller->connect("here", connecting(a), {}, {});
    const auto event = only(*caller);
    EXPECT_EQ(event.kind, EventKind::failed);
    EXPECT_EQ(event.error, ECONNREFUSED);
    ASSERT_TRUE(server->next_event().has_value());
    (void)caller->connect("here", connecting(a), {}, {});
    EXPECT_FALSE(caller->next_event().has_value());
}

TEST_F(NamesConnectorTest, a_modify_that_fails_is_told_to_both_sides) {
    (void)server->listen("here");
    ConnectingQp broken = connecting(a);
    broken.modify = [](ibv_qp_attr&, int) { throw Error(EIO, "no luck"); };
    (void)caller->connect("here", broken, {}, {});
    server->accept(only(*server).connection, connecting(b), {}, {});
    const auto mine = only(*caller);
    EXPECT_EQ(mine.kind, EventKind::failed);
    EXPECT_EQ(mine.error, EIO);
    EXPECT_NE(mine.text.find("no luck"), std::string::npos);
    const auto theirs = only(*server);
    EXPECT_EQ(theirs.kind, EventKind::failed);
    EXPECT_EQ(theirs.error, ECONNREFUSED);
    EXPECT_NE(theirs.text.find("no luck"), std::string::npos);
}

TEST_F(NamesConnectorTest, private_data_over_the_limit_is_refused_at_the_call) {
    const std::vector<std::byte> much(kRequestPrivateDataMax + 1);
    EXPECT_THROW((void)caller->connect("here", connecting(a), {}, much), Error);
    EXPECT_FALSE(caller->next_event().has_value());
}

TEST_F(NamesConnectorTest, a_name_is_known_on_its_own_fabric_only) {
    const auto elsewhere = open_soft_device({.name = "other", .fabric = "elsewhere"});
    const auto stranger = std::make_unique<NamesConnector>(*elsewhere);
    (void)server->listen("here");
    (void)stranger->listen("here");
    End e(*elsewhere);
    (void)caller->connect("here", connecting(a), {}, {});
    EXPECT_FALSE(readable(*stranger));
    EXPECT_EQ(only(*server).kind, EventKind::request);
}

}  // namespace
}  // namespace pollcore::test
