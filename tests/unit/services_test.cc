// The daemon's services with traffic. The runtime, the services and their peers are in one process, on the software
// device. Each test has its own runtime, and the peers post from the test's thread.

#include <array>
#include <chrono>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "base/log.hpp"
#include "common/service_wire.hpp"
#include "eventually.hpp"
#include "give_way.hpp"
#include "pollcore/runtime.hpp"
#include "pollcored/service.hpp"
#include "test_cpus.hpp"

namespace pollcore::daemon {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
using test::eventually;

constexpr auto kPatience = 20s;

Config make_config(std::vector<ServiceConfig> services) {
    Config config;
    config.share_cores = true;  // other tests may run on these cores at the same time
    config.devices = {{.name = "soft0", .kind = DeviceConfig::Kind::soft}};
    config.workers = {{.name = "worker0", .core = test::last_cpu(), .idle = IdlePolicy::yield}};
    config.services = std::move(services);
    for (ServiceConfig& service : config.services) {
        service.device = "soft0";
        service.worker = "worker0";
        service.address = service.name;
    }
    return config;
}

// A connection to a service. It has its own session and memory.
class Peer {
public:
    Peer(Runtime& runtime, std::uint32_t depth, std::uint32_t length, FlowControl flow = FlowControl::off)
        : depth_(depth),
          length_(length),
          region_(runtime.allocate(std::size_t{2} * depth * length, Access::local())),
          session_(runtime.open_session({.worker = "worker0", .submission_slots = 256, .completion_slots = 256})),
          qp_(runtime.create_queue_pair(
              {.shares = {{.session = &session_, .send_depth = depth}}, .recv_depth = depth, .flow = flow})) {}

    std::vector<std::byte> connect(const std::string& address, std::uint8_t rnr_retry = 6) {
        return qp_.connect(address, {.path = {.rnr_retry = rnr_retry}});
    }

    [[nodiscard]] std::byte* send_buffer(std::uint32_t i) const { return region_.data() + std::size_t{i} * length_; }
    [[nodiscard]] std::byte* receive_buffer(std::uint32_t i) const { return send_buffer(depth_ + i); }

    [[nodiscard]] Refusal post_receive(std::uint32_t i) {
        WorkRequest request;
        request.tag = i;
        request.opcode = Opcode::recv;
        request.qp = qp_.handle();
        request.sge = {reinterpret_cast<std::uintptr_t>(receive_buffer(i)), length_, region_.lkey()};
        request.num_sge = 1;
        return session_.try_submit(request);
    }
    [[nodiscard]] Refusal send(std::uint32_t i, std::uint32_t length, std::optional<std::uint32_t> imm = {}) {
        WorkRequest request = base(i, length);
        request.opcode = imm ? Opcode::send_with_imm : Opcode::send;
        if (imm) {
            request.imm_data = *imm;
        }
        return session_.try_submit(request);
    }
    /// An operation on the service's memory. It reads from, or writes into, send buffer i of this end.
    [[nodiscard]] WorkRequest remote(Opcode opcode, std::uint32_t i, std::uint32_t length, std::uint64_t remote_addr,
                                     std::uint32_t rkey) {
        WorkRequest request = base(i, length);
        request.opcode = opcode;
        request.remote_addr = remote_addr;
        request.rkey = rkey;
        return request;
    }
    [[nodiscard]] Status run(const WorkRequest& request) {
        EXPECT_EQ(session_.try_submit(request), Refusal::none);
        const auto completion = next();
        return completion ? completion->status : Status::general_err;
    }

    /// Returns the next completion, or nullopt if none comes in time.
    std::optional<Completion> next(std::chrono::milliseconds timeout = kPatience) {
        const auto deadline = Clock::now() + timeout;
        std::array<Completion, 1> one;
        while (session_.poll(one) == 0) {
            if (Clock::now() >= deadline) {
                return std::nullopt;
            }
            test::give_way();
        }
        return one[0];
    }
    /// Returns the next completion of a receive, and drops completions of sends before it.
    std::optional<Completion> next_receive(std::chrono::milliseconds timeout = kPatience) {
        for (;;) {
            const auto completion = next(timeout);
            if (!completion || completion->from_recv_queue()) {
                return completion;
            }
            EXPECT_TRUE(completion->ok()) << status_name(completion->status);
        }
    }

    void fill(std::uint32_t i, std::uint32_t length, std::uint32_t seed) const {
        for (std::uint32_t k = 0; k < length; ++k) {
            send_buffer(i)[k] = static_cast<std::byte>(seed * 31 + k * 7);
        }
    }
    [[nodiscard]] bool received(std::uint32_t i, std::uint32_t length, std::uint32_t seed) const {
        for (std::uint32_t k = 0; k < length; ++k) {
            if (receive_buffer(i)[k] != static_cast<std::byte>(seed * 31 + k * 7)) {
                return false;
            }
        }
        return true;
    }
    /// Sends one message to the service, waits until it comes back, and checks it.
    [[nodiscard]] bool ping(std::uint32_t length, std::uint32_t seed) {
        fill(0, length, seed);
        if (post_receive(0) != Refusal::none || send(0, length) != Refusal::none) {
            return false;
        }
        bool sent = false;
        bool back = false;
        while (!sent || !back) {
            const auto completion = next();
            if (!completion || !completion->ok()) {
                return false;
            }
            if (!completion->from_recv_queue()) {
                sent = true;
            } else if (completion->byte_len != length || !received(0, length, seed)) {
                return false;
            } else {
                back = true;
            }
        }
        return true;
    }

    Session& session() { return session_; }
    QueuePair& qp() { return qp_; }

private:
    [[nodiscard]] WorkRequest base(std::uint32_t i, std::uint32_t length) const {
        WorkRequest request;
        request.tag = 1000 + i;
        request.flags = kSignaled;
        request.qp = qp_.handle();
        request.sge = {reinterpret_cast<std::uintptr_t>(send_buffer(i)), length, region_.lkey()};
        request.num_sge = length > 0 ? 1 : 0;
        return request;
    }

    std::uint32_t depth_;
    std::uint32_t length_;
    MemoryRegion region_;
    Session session_;
    QueuePair qp_;
};

class ServicesTest : public testing::Test {
protected:
    ServicesTest() { set_log_level(LogLevel::error); }

    void start(std::vector<ServiceConfig> services) {
        runtime_ = std::make_unique<Runtime>(make_config(std::move(services)));
        for (const ServiceConfig& service : runtime_->config().services) {
            services_.push_back(make_service(*runtime_, service));
            services_.back()->start();
        }
    }
    void start_echo(std::uint32_t depth, std::uint32_t connections_max, std::uint64_t message_size_max = 256) {
        start({{.kind = ServiceConfig::Kind::echo,
                .name = "echo0",
                .message_size_max = message_size_max,
                .depth = depth,
                .connections_max = connections_max}});
    }
    [[nodiscard]] std::unique_ptr<Peer> peer(std::uint32_t depth = 8, std::uint32_t length = 512) {
        return std::make_unique<Peer>(*runtime_, depth, length);
    }
    /// Connects to "echo0". Tries again and again, because the service frees the place of a peer a little after the
    /// peer has left. Returns whether it succeeded.
    [[nodiscard]] static bool connects(Peer& peer) {
        return eventually([&] {
            try {
                peer.connect("echo0");
                return true;
            } catch (const Error&) {
                return false;
            }
        });
    }
    Service& service() { return *services_.front(); }

    std::unique_ptr<Runtime> runtime_;
    std::vector<std::unique_ptr<Service>> services_;
};

// ---- echo ----

TEST_F(ServicesTest, EchoTellsWhatItTakes) {
    start_echo(4, 2);
    const auto offer = EchoOffer::decode(peer()->connect("echo0"));
    ASSERT_TRUE(offer);
    EXPECT_EQ(offer->message_size_max, 256u);
    EXPECT_EQ(offer->depth, 4u);
}

TEST_F(ServicesTest, EchoSendsBackEachMessageOfEachLength) {
    start_echo(4, 2);
    const auto a = peer();
    a->connect("echo0");
    for (const std::uint32_t length : {0u, 1u, 8u, 63u, 64u, 65u, 255u, 256u}) {
        EXPECT_TRUE(a->ping(length, length + 1)) << length << " bytes";
    }
}

TEST_F(ServicesTest, EchoSendsBackImmediateDataToo) {
    start_echo(4, 2);
    const auto a = peer();
    a->connect("echo0");
    for (const auto imm :
         {std::optional<std::uint32_t>(0xdeadbeef), std::optional<std::uint32_t>(0), std::optional<std::uint32_t>()}) {
        ASSERT_EQ(a->post_receive(0), Refusal::none);
        ASSERT_EQ(a->send(0, 8, imm), Refusal::none);
        const auto back = a->next_receive();
        ASSERT_TRUE(back && back->ok());
        EXPECT_EQ((back->flags & kWithImm) != 0, imm.has_value());
        if (imm) {
            EXPECT_EQ(back->imm_data, *imm);
        }
    }
}

TEST_F(ServicesTest, EchoWithCreditsWaitsForItsPeerAsItsPeerForIt) {
    constexpr std::uint32_t kMessages = 16;
    start({{.kind = ServiceConfig::Kind::echo,
            .name = "echo0",
            .message_size_max = 256,
            .depth = 2,
            .flow = FlowControl::credits,
            .connections_max = 2}});
    EXPECT_THROW((void)peer()->connect("echo0"), Error) << "it has no credits";
    Peer a(*runtime_, kMessages, 512, FlowControl::credits);
    a.connect("echo0", 0);  // without retries, a message that finds no receive would end the connection
    for (std::uint32_t i = 0; i < kMessages; ++i) {
        a.fill(i, 256, i);
        ASSERT_EQ(a.send(i, 256), Refusal::none);
    }
    // As many go as the service has receives, since nothing can be sent back.
    ASSERT_TRUE(a.next());
    ASSERT_TRUE(a.next());
    EXPECT_FALSE(a.next(20ms));
    for (std::uint32_t i = 0; i < kMessages; ++i) {
        ASSERT_EQ(a.post_receive(i), Refusal::none);
        const auto back = a.next_receive();
        ASSERT_TRUE(back && back->ok());
        EXPECT_TRUE(a.received(i, 256, i));
    }
}

TEST_F(ServicesTest, EchoKeepsTheOrderOfManyMessagesInFlight) {
    constexpr std::uint32_t kDepth = 8;
    constexpr std::uint32_t kMessages = 5000;
    start_echo(4, 2);  // there are fewer receives than messages in flight, so RNR retries occur
    const auto a = peer(kDepth);
    a->connect("echo0", 7);
    for (std::uint32_t i = 0; i < kDepth; ++i) {
        ASSERT_EQ(a->post_receive(i), Refusal::none);
    }
    std::uint32_t sent = 0;
    std::uint32_t back = 0;
    std::array<bool, kDepth> busy{};
    while (back < kMessages) {
        while (sent < kMessages && sent < back + kDepth && !busy[sent % kDepth]) {
            a->fill(sent % kDepth, 64, sent);
            ASSERT_EQ(a->send(sent % kDepth, 64), Refusal::none);
            busy[sent % kDepth] = true;
            ++sent;
        }
        const auto completion = a->next();
        ASSERT_TRUE(completion && completion->ok()) << "after " << back;
        if (completion->from_recv_queue()) {
            const auto i = static_cast<std::uint32_t>(completion->tag);
            ASSERT_EQ(i, back % kDepth);
            ASSERT_TRUE(a->received(i, 64, back)) << "message " << back;
            ASSERT_EQ(a->post_receive(i), Refusal::none);
            ++back;
        } else {
            busy[completion->tag - 1000] = false;
        }
    }
}

TEST_F(ServicesTest, EchoServesManyPeersAtOnce) {
    constexpr std::uint32_t kPeers = 12;
    start_echo(4, kPeers);
    std::vector<std::unique_ptr<Peer>> peers;
    for (std::uint32_t i = 0; i < kPeers; ++i) {
        peers.push_back(peer());
        peers.back()->connect("echo0");
    }
    EXPECT_EQ(service().connections(), kPeers);
    for (std::uint32_t round = 0; round < 50; ++round) {
        for (std::uint32_t i = 0; i < kPeers; ++i) {
            ASSERT_TRUE(peers[i]->ping(32, round * kPeers + i)) << "peer " << i << " round " << round;
        }
    }
}

TEST_F(ServicesTest, APeerThatTakesNothingHoldsUpNobodyElse) {
    constexpr std::uint32_t kDepth = 4;
    start_echo(kDepth, 2);
    const auto slow = peer();
    slow->connect("echo0");
    const auto quick = peer();
    quick->connect("echo0");
    for (std::uint32_t i = 0; i < kDepth; ++i) {
        slow->fill(i, 64, i);
        ASSERT_EQ(slow->send(i, 64), Refusal::none);
        ASSERT_TRUE(slow->next());
    }
    for (std::uint32_t i = 0; i < 100; ++i) {
        ASSERT_TRUE(quick->ping(64, i)) << i;
    }
    // Meanwhile the service has lost none of the slow peer's messages.
    for (std::uint32_t i = 0; i < kDepth; ++i) {
        ASSERT_EQ(slow->post_receive(i), Refusal::none);
    }
    for (std::uint32_t i = 0; i < kDepth; ++i) {
        const auto back = slow->next_receive();
        ASSERT_TRUE(back && back->ok());
        EXPECT_TRUE(slow->received(static_cast<std::uint32_t>(back->tag), 64, i));
    }
}

TEST_F(ServicesTest, AMessageThatIsTooLongEndsItsOwnConnectionOnly) {
    start_echo(4, 2);
    const auto rude = peer();
    rude->connect("echo0");
    const auto polite = peer();
    polite->connect("echo0");
    ASSERT_EQ(rude->send(0, 257), Refusal::none);
    const auto completion = rude->next();
    ASSERT_TRUE(completion);
    EXPECT_FALSE(completion->ok());
    EXPECT_TRUE(eventually([&] { return service().connections() == 1; }));
    EXPECT_TRUE(polite->ping(256, 1));
    EXPECT_FALSE(service().broken());
}

TEST_F(ServicesTest, APeerMayNotTouchTheMemoryOfEcho) {
    start_echo(4, 2);
    const auto a = peer();
    a->connect("echo0");
    EXPECT_NE(a->run(a->remote(Opcode::rdma_write, 0, 8, 0x1000, 1)), Status::success);
    EXPECT_TRUE(eventually([&] { return service().connections() == 0; }));
}

TEST_F(ServicesTest, AConnectionThatIsOneTooManyIsRejectedUntilAnotherLeaves) {
    start_echo(4, 1);
    auto first = peer();
    first->connect("echo0");
    const auto second = peer();
    try {
        second->connect("echo0");
        FAIL() << "connected";
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), std::errc::connection_refused) << error.what();
    }
    first.reset();
    ASSERT_TRUE(eventually([&] { return service().connections() == 0; }));
    const auto third = peer();
    ASSERT_TRUE(connects(*third));
    EXPECT_TRUE(third->ping(8, 3));
}

TEST_F(ServicesTest, NewPeersAreRejectedWhileNoneAreAdmitted) {
    start_echo(4, 4);
    const auto stays = peer();
    stays->connect("echo0");
    service().admit_peers(false);
    const auto rejected = peer();
    try {
        rejected->connect("echo0");
        FAIL() << "connected";
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), std::errc::connection_refused) << error.what();
    }
    EXPECT_TRUE(stays->ping(8, 3)) << "the connection that exists goes on";
    service().admit_peers(true);
    const auto admitted = peer();
    admitted->connect("echo0");
    EXPECT_TRUE(admitted->ping(8, 3));
}

TEST_F(ServicesTest, PeersThatComeAndGoLeaveNothingBehind) {
    start_echo(4, 2);
    for (std::uint32_t i = 0; i < 40; ++i) {
        const auto a = peer();
        ASSERT_TRUE(connects(*a)) << i;
        for (std::uint32_t k = 0; k < i % 4; ++k) {
            ASSERT_EQ(a->send(k, 64), Refusal::none);  // the peer never takes the answer
        }
        if (i % 2 == 0) {
            a->qp().disconnect();
        }
        ASSERT_TRUE(eventually([&] { return service().connections() <= 1; })) << i;
    }
    EXPECT_TRUE(eventually([&] { return service().connections() == 0; }));
    const auto last = peer();
    ASSERT_TRUE(connects(*last));
    EXPECT_TRUE(last->ping(64, 1));
}

TEST_F(ServicesTest, DrainingSendsBackWhatWasTakenAndTakesNothingMore) {
    constexpr std::uint32_t kDepth = 4;
    start_echo(kDepth, 2);
    const auto a = peer();
    a->connect("echo0");
    for (std::uint32_t i = 0; i < kDepth; ++i) {
        a->fill(i, 64, i);
        ASSERT_EQ(a->send(i, 64), Refusal::none);
        ASSERT_TRUE(a->next());
    }
    ASSERT_EQ(a->post_receive(0), Refusal::none);
    ASSERT_TRUE(a->next_receive());
    ASSERT_TRUE(eventually([&] { return runtime_->worker_counters(0).sends.value() >= 2 * kDepth; }))
        << "the service has not taken all messages";

    service().begin_drain();
    ASSERT_TRUE(eventually([&] {
        try {
            peer()->connect("echo0");
            return false;
        } catch (const Error&) {
            return true;
        }
    })) << "still takes connections";
    EXPECT_FALSE(service().drained()) << "three messages are not back yet";
    for (std::uint32_t i = 1; i < kDepth; ++i) {
        ASSERT_EQ(a->post_receive(i), Refusal::none);
    }
    for (std::uint32_t i = 1; i < kDepth; ++i) {
        const auto back = a->next_receive();
        ASSERT_TRUE(back && back->ok());
        EXPECT_TRUE(a->received(i, 64, i));
    }
    EXPECT_TRUE(eventually([&] { return service().drained(); }));
    EXPECT_TRUE(service().close());
    EXPECT_EQ(service().connections(), 0u);
    EXPECT_TRUE(eventually([&] { return a->session().state(a->qp().handle()) == QpState::error; }))
        << "the peer was not told";
}

TEST_F(ServicesTest, ClosingWithAPeerThatTakesNothingEnds) {
    start_echo(4, 2);
    const auto stuck = peer();
    stuck->connect("echo0");
    for (std::uint32_t i = 0; i < 4; ++i) {
        ASSERT_EQ(stuck->send(i, 64), Refusal::none);
    }
    std::this_thread::sleep_for(20ms);
    service().begin_drain();
    EXPECT_TRUE(service().close()) << "flushed by the device, not cut short";
    EXPECT_EQ(runtime_->control_counters().cut_short.value(), 0u);
}

TEST_F(ServicesTest, WhatTheDeviceCannotGiveIsAnErrorOfTheStart) {
    runtime_ = std::make_unique<Runtime>(make_config({}));
    ServiceConfig config{.kind = ServiceConfig::Kind::echo,
                         .name = "echo0",
                         .device = "soft0",
                         .worker = "worker0",
                         .address = "echo0",
                         .message_size_max = 1ull << 31,
                         .depth = 64};
    EXPECT_THROW((void)make_service(*runtime_, config), Error);
    config.message_size_max = 64;
    config.worker = "nobody";
    EXPECT_THROW((void)make_service(*runtime_, config), Error);
    config.worker = "worker0";
    const auto works = make_service(*runtime_, config);
    EXPECT_THROW((void)make_service(*runtime_, config), Error) << "two listen at one address";
}

// ---- memory ----

class MemoryServiceTest : public ServicesTest {
protected:
    void SetUp() override {
        start({{.kind = ServiceConfig::Kind::memory, .name = "store", .size = 4096, .connections_max = 4}});
    }
    [[nodiscard]] MemoryOffer connect(Peer& peer) {
        const auto offer = MemoryOffer::decode(peer.connect("store"));
        EXPECT_TRUE(offer);
        return offer.value_or(MemoryOffer{});
    }
};

TEST_F(MemoryServiceTest, OnePeerReadsWhatAnotherWrote) {
    const auto writer = peer();
    const auto reader = peer();
    const MemoryOffer offer = connect(*writer);
    EXPECT_EQ(offer.size, 4096u);
    EXPECT_EQ(connect(*reader).rkey, offer.rkey);

    ASSERT_EQ(reader->run(reader->remote(Opcode::rdma_read, 0, 64, offer.addr, offer.rkey)), Status::success);
    EXPECT_EQ(reader->send_buffer(0)[0], std::byte{0}) << "it starts as zeros";

    writer->fill(0, 512, 5);
    const std::uint64_t end = offer.addr + offer.size - 512;
    ASSERT_EQ(writer->run(writer->remote(Opcode::rdma_write, 0, 512, end, offer.rkey)), Status::success);
    ASSERT_EQ(reader->run(reader->remote(Opcode::rdma_read, 1, 512, end, offer.rkey)), Status::success);
    EXPECT_EQ(std::memcmp(reader->send_buffer(1), writer->send_buffer(0), 512), 0);
}

TEST_F(MemoryServiceTest, AtomicsOfAllPeersAddUp) {
    constexpr std::uint64_t kRounds = 200;
    const auto a = peer();
    const auto b = peer();
    const MemoryOffer offer = connect(*a);
    (void)connect(*b);
    for (std::uint64_t i = 0; i < kRounds; ++i) {
        for (Peer* p : {a.get(), b.get()}) {
            WorkRequest add = p->remote(Opcode::atomic_fetch_and_add, 0, 8, offer.addr, offer.rkey);
            add.compare_add = 1;
            ASSERT_EQ(p->run(add), Status::success);
        }
    }
    WorkRequest swap = a->remote(Opcode::atomic_cmp_and_swp, 0, 8, offer.addr, offer.rkey);
    swap.compare_add = 2 * kRounds;
    swap.swap = 7;
    ASSERT_EQ(a->run(swap), Status::success);
    std::uint64_t was = 0;
    std::memcpy(&was, a->send_buffer(0), sizeof(was));
    EXPECT_EQ(was, 2 * kRounds);
    ASSERT_EQ(b->run(b->remote(Opcode::rdma_read, 0, 8, offer.addr, offer.rkey)), Status::success);
    std::memcpy(&was, b->send_buffer(0), sizeof(was));
    EXPECT_EQ(was, 7u);
}

TEST_F(MemoryServiceTest, APeerThatReachesBeyondTheRegionLosesItsConnectionOnly) {
    const auto rude = peer();
    const auto polite = peer();
    const MemoryOffer offer = connect(*rude);
    (void)connect(*polite);
    EXPECT_EQ(rude->run(rude->remote(Opcode::rdma_write, 0, 64, offer.addr + offer.size - 63, offer.rkey)),
              Status::rem_access_err);
    EXPECT_TRUE(eventually([&] { return service().connections() == 1; }));
    EXPECT_EQ(polite->run(polite->remote(Opcode::rdma_read, 0, 64, offer.addr, offer.rkey)), Status::success);
}

TEST_F(MemoryServiceTest, PeersThatLeaveGiveTheirPlacesBack) {
    for (int i = 0; i < 12; ++i) {
        const auto a = peer();
        (void)connect(*a);
        ASSERT_TRUE(eventually([&] { return service().connections() <= 3; })) << i;
    }
    EXPECT_TRUE(eventually([&] { return service().connections() == 0; }));
    service().begin_drain();
    EXPECT_TRUE(eventually([&] { return service().drained(); }));
    EXPECT_TRUE(service().close());
}

TEST(ServiceTogether, TheRegionOfOneServiceIsOutOfReachThroughAnother) {
    Runtime runtime(make_config({{.kind = ServiceConfig::Kind::memory, .name = "a", .size = 4096},
                                 {.kind = ServiceConfig::Kind::memory, .name = "b", .size = 4096}}));
    const auto a = make_service(runtime, runtime.config().services[0]);
    const auto b = make_service(runtime, runtime.config().services[1]);
    a->start();
    b->start();
    Peer at_a(runtime, 4, 64);
    Peer at_b(runtime, 4, 64);
    const auto offer_of_a = MemoryOffer::decode(at_a.connect("a"));
    ASSERT_TRUE(offer_of_a);
    at_b.connect("b");
    EXPECT_EQ(at_b.run(at_b.remote(Opcode::rdma_read, 0, 8, offer_of_a->addr, offer_of_a->rkey)),
              Status::rem_access_err);
    EXPECT_EQ(at_a.run(at_a.remote(Opcode::rdma_read, 0, 8, offer_of_a->addr, offer_of_a->rkey)), Status::success);
}

}  // namespace
}  // namespace pollcore::daemon
