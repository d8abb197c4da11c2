// Tests how connections over rdma_cm end, in every state. Runs in scripts/rxe-vm.
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <thread>

#include <gtest/gtest.h>

#include "connect/rdma_cm_connector.hpp"
#include "eventually.hpp"
#include "rdma_cm_fixture.hpp"

namespace pollcore {
namespace {

using rxe::Kind;
using rxe::next;
using rxe::Peer;
using rxe::RdmaCmTest;
using rxe::variable;

// --- The end ---

TEST_F(RdmaCmTest, DisconnectingTellsBothSidesAndTheQueuePairsGo) {
    establish();
    exchange();
    client_.connector().disconnect(client_id_);
    expect(server_, Kind::disconnected, server_id_);
    expect(client_, Kind::disconnected, client_id_);
    client_.connector().disconnect(client_id_);  // does nothing, because the connection is over
    client_.connector().forget(client_id_);
    for (auto [peer, qp] : {std::pair{&client_, client_qp_}, std::pair{&server_, server_qp_}}) {
        ibv_qp_attr attr{};
        attr.qp_state = IBV_QPS_ERR;
        peer->device().modify(qp, attr, IBV_QP_STATE);
        peer->post_send(qp, 9, "too late");
        const ibv_wc wc = peer->completion();
        EXPECT_EQ(wc.wr_id, 9u);
        EXPECT_EQ(wc.status, IBV_WC_WR_FLUSH_ERR);
        attr.qp_state = IBV_QPS_RESET;
        peer->device().modify(qp, attr, IBV_QP_STATE);
        peer->destroy_qps();
    }
}

TEST_F(RdmaCmTest, TheServerDisconnectsToo) {
    establish();
    server_.connector().disconnect(server_id_);
    expect(client_, Kind::disconnected, client_id_);
    expect(server_, Kind::disconnected, server_id_);
}

TEST_F(RdmaCmTest, BothMayDisconnectAtOnce) {
    establish();
    server_.connector().disconnect(server_id_);
    client_.connector().disconnect(client_id_);
    expect(client_, Kind::disconnected, client_id_);
    expect(server_, Kind::disconnected, server_id_);
}

TEST_F(RdmaCmTest, AQueuePairConnectsAgainAfterReset) {
    establish();
    client_.connector().disconnect(client_id_);
    expect(server_, Kind::disconnected, server_id_);
    expect(client_, Kind::disconnected, client_id_);
    for (int round = 0; round < 3; ++round) {
        establish();
        exchange();
        client_.connector().disconnect(client_id_);
        expect(server_, Kind::disconnected, server_id_);
        expect(client_, Kind::disconnected, client_id_);
        client_.destroy_qps();
        server_.destroy_qps();
    }
}

TEST_F(RdmaCmTest, APeerThatDropsEverythingIsSeenToLeave) {
    establish();
    client_.drop_connector();
    client_.destroy_qps();
    const ConnectEvent event = next(server_);
    EXPECT_EQ(event.kind, Kind::disconnected);
    EXPECT_EQ(event.connection, server_id_);
}

TEST(RdmaCmPeerProcess, APeerThatIsKilledIsSeenToLeave) {
    int ports[2];
    ASSERT_EQ(::pipe(ports), 0);
    const pid_t child = ::fork();  // before this process opens any device
    ASSERT_GE(child, 0);
    if (child == 0) {
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // so that a failed test leaves no process behind
        try {
            std::string address(64, '\0');
            const ssize_t size = ::read(ports[0], address.data(), address.size());
            address.resize(static_cast<std::size_t>(std::max<ssize_t>(size, 0)));
            Peer client(rxe::open_peer());
            (void)client.connector().connect(address, client.connecting(client.make_qp()), {}, {});
            (void)next(client);
            for (;;) {
                ::pause();
            }
        } catch (const std::exception& error) {
            std::fprintf(stderr, "the other process: %s\n", error.what());
            ::_exit(1);
        }
    }
    Peer server(rxe::open_device());
    const std::string address =
        server.connector().address_of(server.connector().listen(variable("POLLCORE_RXE_ADDRESS") + ":0"));
    ASSERT_EQ(::write(ports[1], address.data(), address.size()), static_cast<ssize_t>(address.size()));
    const ConnectEvent asked = next(server);
    ASSERT_EQ(asked.kind, Kind::request);
    server.connector().accept(asked.connection, server.connecting(server.make_qp()), {}, {});
    EXPECT_EQ(next(server).kind, Kind::established);
    ASSERT_EQ(::kill(child, SIGKILL), 0);
    EXPECT_EQ(next(server).kind, Kind::disconnected);
    EXPECT_EQ(::waitpid(child, nullptr, 0), child);
    ::close(ports[0]);
    ::close(ports[1]);
}

// --- Forgetting, in each state ---

TEST_F(RdmaCmTest, ForgettingACallThatHasJustBegunEndsIt) {
    for (int events_before = 0; events_before < 4; ++events_before) {
        const ConnectionId id = call();
        for (int i = 0; i < events_before; ++i) {  // lets the call make some progress
            ASSERT_FALSE(client_.connector().next_event().has_value());
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
        }
        client_.connector().forget(id);
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        client_.pump();
        EXPECT_TRUE(client_.events.empty());
        server_.pump();  // the request may have been on its way
        for (const ConnectEvent& event : server_.events) {
            EXPECT_EQ(event.kind, Kind::request);
            server_.connector().forget(event.connection);
        }
        server_.events.clear();
    }
}

TEST_F(RdmaCmTest, AcceptingACallThatWasForgottenFails) {
    const ConnectionId id = call();
    const ConnectionId asked = request().connection;
    client_.connector().forget(id);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    accept(asked);
    const ConnectEvent event = expect(server_, Kind::failed, asked);
    EXPECT_NE(event.error, 0);
    EXPECT_FALSE(event.text.empty());
}

TEST_F(RdmaCmTest, ARequestThatIsGivenUpIsFoundByLooking) {
    const ConnectionId given_up = call();
    const ConnectionId asked = request().connection;
    const ConnectionId waits = call();
    const ConnectionId lives = request().connection;
    client_.connector().forget(given_up);
    // The kernel gets the rejection a little later.
    EXPECT_TRUE(test::eventually([&] {
        server_.connector().look_for_withdrawn_requests();
        server_.pump();
        return !server_.events.empty();
    }));
    expect(server_, Kind::withdrawn, asked);
    server_.connector().forget(asked);
    server_.connector().look_for_withdrawn_requests();
    server_.pump();
    EXPECT_TRUE(server_.events.empty());
    accept(lives);
    expect(client_, Kind::established, waits);
}

TEST_F(RdmaCmTest, ForgettingARequestRejectsIt) {
    const ConnectionId id = call();
    server_.connector().forget(request().connection);
    expect_failure(client_, id, ECONNREFUSED, "rejected");
}

TEST_F(RdmaCmTest, ForgettingWhatWasAcceptedFailsTheCaller) {
    const ConnectionId id = call();
    const ConnectionId asked = request().connection;
    accept(asked);
    server_.connector().forget(asked);
    // The caller may take the answer before the rejection arrives.
    ConnectEvent event = next(client_, server_);
    EXPECT_EQ(event.connection, id);
    if (event.kind == Kind::established) {
        event = next(client_, server_);
        EXPECT_EQ(event.kind, Kind::disconnected);
    } else {
        EXPECT_EQ(event.kind, Kind::failed);
        EXPECT_NE(event.error, 0);
    }
}

TEST_F(RdmaCmTest, ForgettingAnEstablishedConnectionDisconnectsThePeer) {
    establish();
    client_.connector().forget(client_id_);
    expect(server_, Kind::disconnected, server_id_);
    client_.pump();
}

TEST_F(RdmaCmTest, ForgettingAfterDisconnectingIsQuiet) {
    establish();
    client_.connector().disconnect(client_id_);
    client_.connector().forget(client_id_);
    expect(server_, Kind::disconnected, server_id_);
    client_.pump();
}

TEST_F(RdmaCmTest, AFailureThatIsForgottenBeforeItIsTakenDoesNotCome) {
    const ConnectionId id = call();
    const ConnectionId asked = request().connection;
    server_.connector().accept(
        asked, {1, false, [](ibv_qp_attr&, int) { throw Error(EIO, "the queue pair is stuck"); }}, {}, {});
    server_.connector().forget(asked);
    expect_failure(client_, id, ECONNREFUSED, "rejected");
    server_.pump();
}

TEST_F(RdmaCmTest, EverythingMayBeDestroyedWithConnectionsInEveryState) {
    establish();
    (void)call();  // makes a request that nobody takes
    (void)call();
    (void)request();  // takes a request that nobody answers
    accept(request().connection);
    server_.destroy_qps();
    client_.destroy_qps();
    client_.events.clear();
    server_.events.clear();
}

}  // namespace
}  // namespace pollcore
