// Everything may be closed in any order and from any state, while work is in flight. Unless the device falls silent, no
// queue pair is cut short: each waits for its work in flight. All accepted work is accounted for on every session that
// still exists.
#include <algorithm>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <random>

#include "device/device.hpp"
#include "fixture.hpp"
#include "give_way.hpp"

namespace pollcore::testing {
namespace {

using namespace std::chrono_literals;

// After this time the runtime stops waiting for a queue pair's work in flight, and counts the queue pair as cut short.
constexpr auto kDrainTimeout = 2000ms;
constexpr auto kPatience = 120s;

enum class From { init, half_connected, connected, by_address, in_error };
constexpr From kFroms[] = {From::init, From::half_connected, From::connected, From::by_address, From::in_error};
const char* name_of(From from) {
    switch (from) {
        case From::init: return "Init";
        case From::half_connected: return "HalfConnected";
        case From::connected: return "Connected";
        case From::by_address: return "ConnectedByAddress";
        case From::in_error: return "InError";
    }
    return "?";
}

Config teardown_config() {
    Config config = test_config();
    config.drain_timeout = kDrainTimeout;
    return config;
}

std::string listen_address() {
    return TestDevice::get().verbs ? TestDevice::get().address + ":0" : "teardown";
}

/// A session, and what the test knows about its work.
struct Client {
    explicit Client(Runtime& runtime) : session(runtime.open_session()) {}

    void submit(const WorkRequest& request) {
        const Refusal refusal = session.try_submit(request);
        if (refusal == Refusal::none) {
            ++accepted;
            outstanding.emplace(request.tag, request);
        }
    }
    void poll() {
        Completion some[16];
        while (const std::size_t n = session.poll(some)) {
            for (std::size_t i = 0; i < n; ++i) {
                ++completed;
                const auto found = outstanding.find(some[i].tag);
                ASSERT_NE(found, outstanding.end()) << "tag " << some[i].tag << " came twice, or was never submitted";
                if (some[i].ok() && !is_recv(found->second.opcode)) {
                    ASSERT_TRUE(found->second.flags & kSignaled) << "tag " << some[i].tag;
                }
                outstanding.erase(found);
            }
        }
    }
    /// Checks I1. A test may call this at any time.
    void expect_conserved() {
        const SessionFigures figures = session.figures();
        ASSERT_EQ(figures.accepted, accepted);
        ASSERT_EQ(figures.completed, completed);
        ASSERT_GE(figures.accepted, figures.completed + figures.retired);
    }
    /// Checks that all work is accounted for. A test calls this when nothing can be in flight.
    void expect_all_accounted() {
        poll();
        const SessionFigures figures = session.figures();
        EXPECT_EQ(figures.in_flight(), 0u);
        EXPECT_EQ(figures.retired, outstanding.size());
        for (const auto& [tag, request] : outstanding) {
            ASSERT_FALSE(is_recv(request.opcode)) << "receive " << tag << " never completed";
            ASSERT_FALSE(request.flags & kSignaled) << "tag " << tag << " never completed";
        }
    }

    Session session;
    std::map<std::uint64_t, WorkRequest> outstanding;
    std::uint64_t accepted = 0;
    std::uint64_t completed = 0;
};

/// Two queue pairs that both clients post to, and the other objects that the test closes.
class Scene {
public:
    static constexpr std::size_t kParts = 8;

    Scene(Runtime& on, From state, std::mt19937& with)
        : runtime(on),
          random(with),
          pd(runtime.create_protection_domain()),
          near(std::make_unique<Client>(runtime)),
          far(std::make_unique<Client>(runtime)),
          from(runtime.allocate(16384, Access::all(), "", &pd)),
          to(runtime.allocate(16384, Access::all(), "", &pd)),
          listener(runtime.listen(listen_address())) {
        a = make_qp(near->session, far->session);
        b = make_qp(far->session, near->session);
        bring_to(state);
        load(40);
    }

    /// Closes the object with the number `part`. Closing an object twice has no further effect.
    void close(std::size_t part) {
        switch (part) {
            case 0: EXPECT_TRUE(a.close()) << "was cut short"; break;
            case 1: EXPECT_TRUE(b.close()) << "was cut short"; break;
            case 2: near->session.close(); break;
            case 3: far->session.close(); break;
            case 4: deregister(from); break;
            case 5: deregister(to); break;
            case 6: listener = Listener(); break;
            case 7: pd = ProtectionDomain(); break;
            default: FAIL() << part;
        }
        expect_conserved();
    }
    void expect_conserved() {
        for (Client* client : {near.get(), far.get()}) {
            if (random() % 2 == 0) {
                client->poll();
            }
            client->expect_conserved();
        }
        EXPECT_EQ(runtime.control_counters().cut_short.value(), 0u);
    }
    /// Submits `requests` random requests, each by either session on either QP. Requests for which there is no room are
    /// dropped.
    void load(int requests) {
        for (int i = 0; i < requests; ++i) {
            Client& client = random() % 2 == 0 ? *near : *far;
            client.submit(some_request());
        }
    }
    void expect_end() {
        near->expect_all_accounted();
        far->expect_all_accounted();
        EXPECT_NO_THROW(from.deregister());
        EXPECT_NO_THROW(to.deregister());
    }
    /// Destroys all objects in a random order. Some of them may be closed already.
    void destroy_in_any_order() {
        std::vector<std::function<void()>> ends{[this] { a = QueuePair(); },       [this] { b = QueuePair(); },
                                                [this] { near.reset(); },          [this] { far.reset(); },
                                                [this] { from = MemoryRegion(); }, [this] { to = MemoryRegion(); },
                                                [this] { listener = Listener(); }, [this] { pd = ProtectionDomain(); }};
        std::shuffle(ends.begin(), ends.end(), random);
        for (const auto& end : ends) {
            end();
        }
    }

private:
    QueuePair make_qp(Session& first, Session& second) {
        QueuePairOptions options;
        options.pd = &pd;
        options.shares = {{.session = &first, .send_depth = 16}, {.session = &second, .send_depth = 16}};
        options.recv_depth = 16;
        options.separate_cqs = random() % 2 == 0;
        return runtime.create_queue_pair(options);
    }
    void bring_to(From state) {
        // Sends may find no receive, and peers may vanish. With these limits the sends soon fail.
        static constexpr PathAttributes kPath{.timeout = 10, .retry_count = 1, .rnr_retry = 1, .min_rnr_timer = 1};
        switch (state) {
            case From::init: return;
            case From::half_connected: a.connect(b.info(), kPath); return;
            case From::by_address: {
                std::future<void> answered = std::async(std::launch::async, [this] {
                    std::optional<ConnectionRequest> request = listener.next_request(kPatience);
                    ASSERT_TRUE(request.has_value());
                    request->accept(b, {.path = kPath, .timeout = kPatience});
                });
                (void)a.connect(listener.address(), {.path = kPath, .timeout = kPatience});
                answered.get();
                return;
            }
            case From::connected:
            case From::in_error: {
                const QpInfo info_a = a.info();
                a.connect(b.info(), kPath);
                b.connect(info_a, kPath);
                if (state == From::in_error) {
                    load(20);
                    WorkRequest bad = some_request();
                    bad.opcode = Opcode::rdma_write;
                    bad.flags = kSignaled;
                    bad.sge.length = 8;
                    bad.qp = a.handle();
                    bad.rkey ^= 0x5500;
                    near->submit(bad);
                    const auto deadline = std::chrono::steady_clock::now() + kPatience;
                    while (near->session.state(a.handle()) != QpState::error &&
                           std::chrono::steady_clock::now() < deadline) {
                        test::give_way();
                    }
                    EXPECT_EQ(near->session.state(a.handle()), QpState::error);
                }
                return;
            }
        }
    }
    WorkRequest some_request() {
        static constexpr Opcode kOpcodes[] = {Opcode::send,
                                              Opcode::send_with_imm,
                                              Opcode::rdma_write,
                                              Opcode::rdma_read,
                                              Opcode::atomic_cmp_and_swp,
                                              Opcode::rdma_write_with_imm,
                                              Opcode::recv,
                                              Opcode::recv};
        const Opcode opcode = kOpcodes[random() % std::size(kOpcodes)];
        return {.tag = next_tag++,
                .sge = {from.addr(), static_cast<std::uint32_t>(is_atomic(opcode) ? 8 : random() % 4096), from.lkey()},
                .remote_addr = to.addr(),
                .rkey = to.rkey(),
                .qp = random() % 2 == 0 ? a.handle() : b.handle(),
                .opcode = opcode,
                .flags = is_recv(opcode) || random() % 3 == 0 ? std::uint8_t{0} : std::uint8_t{kSignaled},
                .num_sge = 1};
    }
    // A region cannot be deregistered while work in flight names it. In that case the end of the scene deregisters it.
    void deregister(MemoryRegion& region) {
        try {
            region.deregister();
        } catch (const Error& error) {
            EXPECT_EQ(error.code(), std::errc::device_or_resource_busy) << error.what();
            EXPECT_GT(near->session.figures().in_flight() + far->session.figures().in_flight(), 0u);
        }
    }

    Runtime& runtime;
    std::mt19937& random;
    std::uint64_t next_tag = 1;
    ProtectionDomain pd;
    std::unique_ptr<Client> near;
    std::unique_ptr<Client> far;
    MemoryRegion from;
    MemoryRegion to;
    Listener listener;
    QueuePair a;
    QueuePair b;
};

class Teardown : public ::testing::TestWithParam<From> {
protected:
    // In the guest each step is slow, so there are fewer rounds.
    static int rounds(int here, int in_the_guest) { return TestDevice::get().is_rxe() ? in_the_guest : here; }

    static std::vector<std::size_t> order(std::mt19937& random, std::size_t parts) {
        std::vector<std::size_t> all(parts);
        for (std::size_t i = 0; i < parts; ++i) {
            all[i] = i;
        }
        std::shuffle(all.begin(), all.end(), random);
        return all;
    }
    static std::string print(const std::vector<std::size_t>& parts) {
        std::string text;
        for (const std::size_t part : parts) {
            text += std::to_string(part) + " ";
        }
        return text;
    }
};

TEST_P(Teardown, OfAllPartsInAnyOrderWhileTheRuntimeGoesOn) {
    Runtime runtime(teardown_config());
    for (int round = 0; round < rounds(40, 6); ++round) {
        std::mt19937 random(static_cast<unsigned>(round) * 7 + 1);
        Scene scene(runtime, GetParam(), random);
        const auto parts = order(random, Scene::kParts);
        SCOPED_TRACE("round " + std::to_string(round) + ", order " + print(parts));
        for (const std::size_t part : parts) {
            scene.close(part);
            scene.load(3);  // submits work to the objects that are still open
        }
        scene.expect_end();
        if (HasFatalFailure()) {
            return;
        }
    }
    EXPECT_TRUE(runtime.stop());
}

TEST_P(Teardown, OfTheRuntimeBetweenAnyTwoOthers) {
    for (int round = 0; round < rounds(12, 3); ++round) {
        std::mt19937 random(static_cast<unsigned>(round) * 13 + 5);
        Runtime runtime(teardown_config());
        Scene scene(runtime, GetParam(), random);
        const auto parts = order(random, Scene::kParts);
        const std::size_t before = random() % (Scene::kParts + 1);
        SCOPED_TRACE("round " + std::to_string(round) + ", stopped after " + std::to_string(before) + " of " +
                     print(parts));
        for (std::size_t i = 0; i < parts.size(); ++i) {
            if (i == before) {
                EXPECT_TRUE(runtime.stop());
                scene.expect_conserved();
            }
            scene.close(parts[i]);
            scene.load(3);
        }
        EXPECT_TRUE(runtime.stop());
        scene.expect_end();
    }
}

TEST_P(Teardown, OfTheObjectsThemselvesBeforeOrAfterTheRuntime) {
    for (int round = 0; round < rounds(12, 3); ++round) {
        std::mt19937 random(static_cast<unsigned>(round) * 17 + 3);
        SCOPED_TRACE("round " + std::to_string(round));
        auto runtime = std::make_unique<Runtime>(teardown_config());
        Scene scene(*runtime, GetParam(), random);
        if (round % 2 == 0) {
            runtime.reset();
        }
        scene.destroy_in_any_order();
        if (runtime != nullptr) {
            EXPECT_EQ(runtime->control_counters().cut_short.value(), 0u);
        }
    }
}

INSTANTIATE_TEST_SUITE_P(From, Teardown, ::testing::ValuesIn(kFroms),
                         [](const auto& from) { return std::string(name_of(from.param)); });

// ---- During a connection attempt ----

class TeardownWhileConnecting : public ::testing::TestWithParam<int> {};

TEST_P(TeardownWhileConnecting, EndsTheWaitAndNothingHangs) {
    Runtime runtime(teardown_config());
    Client client(runtime);
    Listener listener = runtime.listen(listen_address());
    QueuePair qp = runtime.create_queue_pair({.shares = {{.session = &client.session}}});
    std::future<std::errc> outcome = std::async(std::launch::async, [&] {
        try {
            (void)qp.connect(listener.address(), {.timeout = 2 * kPatience});
        } catch (const Error& error) {
            return static_cast<std::errc>(error.code().value());
        }
        return std::errc{};
    });
    // The peer has received the connection request but does not answer it.
    std::optional<ConnectionRequest> request = listener.next_request(kPatience);
    ASSERT_TRUE(request.has_value());
    switch (GetParam()) {
        case 0: client.session.close(); break;  // also closes the session's queue pairs
        case 1: EXPECT_TRUE(runtime.stop()); break;
        case 2: request.reset(); break;  // rejects the request
        default: FAIL();
    }
    EXPECT_EQ(outcome.wait_for(kPatience), std::future_status::ready) << "only its own time limit ends the wait";
    EXPECT_EQ(outcome.get(), GetParam() == 2 ? std::errc::connection_refused : std::errc::operation_canceled);
}

INSTANTIATE_TEST_SUITE_P(By, TeardownWhileConnecting, ::testing::Values(0, 1, 2), [](const auto& by) {
    return std::string(by.param == 0 ? "Session" : by.param == 1 ? "Runtime" : "Peer");
});

// ---- A device that no longer completes anything. tests/faults/held_clock_test.cc tests when the runtime gives up ----

int poll_nothing(ibv_cq*, int, ibv_wc*) {
    return 0;
}

class SilentDeviceInThisProcess : public Conformance {
protected:
    static constexpr auto kLimit = 1s;
    static Config config() {
        Config with = test_config();
        with.workers[0].poll = PollVerbs::plain;  // its verb, ibv_poll_cq, can be replaced on any device
        with.drain_timeout = kLimit;
        return with;
    }
    SilentDeviceInThisProcess() : Conformance(config()) {
        runtime.device().context()->ops.poll_cq = poll_nothing;  // safe here, because the worker polls no CQ yet
        connect_pair();
        for (std::uint64_t tag = 0; tag < 10; ++tag) {
            submit(recv(tag, 64));
        }
        for (std::uint64_t tag = 10; tag < 15; ++tag) {
            submit(rdma(Opcode::rdma_write, tag, 8, tag % 2 == 0 ? std::uint8_t{kSignaled} : std::uint8_t{0}));
        }
        await_posted(5);
    }
    /// Waits until the worker has posted all requests, because the runtime itself flushes requests that were not
    /// posted.
    void await_posted(std::uint64_t sends) {
        const WorkerCounters& counters = runtime.worker_counters(0);
        until([&] { return counters.receives.value() >= 10 && counters.sends.value() >= sends; });
    }
    /// Posts a send on b. If a queue pair has only receives, the runtime flushes it before the limit. If it also has a
    /// send, the runtime waits for the limit.
    void send_from_b() {
        WorkRequest request = rdma(Opcode::rdma_write, 15, 8);
        request.qp = b.handle();
        submit(request);
        await_posted(6);
    }
    void expect_completed_by_runtime(std::size_t n, Status status = Status::qp_closed) {
        const auto completions = await(n);
        ASSERT_EQ(completions.size(), n);
        for (const Completion& completion : completions) {
            EXPECT_EQ(completion.status, status);
            EXPECT_TRUE(completion.flags & kByRuntime);
        }
    }
};

TEST_F(SilentDeviceInThisProcess, HasItsQueuePairsCutShortAtTheLimitAndItIsReported) {
    EXPECT_FALSE(a.close());
    EXPECT_EQ(runtime.control_counters().cut_short.value(), 1u);
    EXPECT_EQ(runtime.worker_counters(0).cut_short.value(), 5u) << "unsignaled ones too: nobody knows how they ended";
    expect_completed_by_runtime(5);
    // If a queue pair has only receives, the runtime itself flushes them before the limit, because providers may never
    // flush them (H1).
    EXPECT_TRUE(b.close());
    expect_completed_by_runtime(10, Status::wr_flush_err);
    EXPECT_EQ(runtime.control_counters().cut_short.value(), 1u);
    EXPECT_EQ(runtime.worker_counters(0).cut_short.value(), 15u);
    EXPECT_EQ(session.figures().in_flight(), 0u);
}

TEST_F(SilentDeviceInThisProcess, DoesNotHoldUpASessionsEnd) {
    send_from_b();
    session.close();
    expect_completed_by_runtime(16);
    EXPECT_EQ(runtime.control_counters().cut_short.value(), 2u);
    EXPECT_EQ(session.figures().in_flight(), 0u);
}

TEST_F(SilentDeviceInThisProcess, DoesNotHoldUpTheRuntimesEnd) {
    send_from_b();
    EXPECT_FALSE(runtime.stop());
    expect_completed_by_runtime(16);
    EXPECT_EQ(runtime.control_counters().cut_short.value(), 2u);
    EXPECT_EQ(runtime.worker_counters(0).cut_short.value(), 16u);
    EXPECT_FALSE(runtime.stop()) << "the outcome stays the same";
    EXPECT_EQ(session.figures().in_flight(), 0u);
}

// A worker with many queue pairs prefetches their memory and their provider's memory. Meanwhile some of the queue pairs
// are destroyed.
class QueuePairsAmongMany : public Conformance {};

TEST_F(QueuePairsAmongMany, ComeAndGoWhileTheOthersWork) {
    constexpr std::size_t kPairs = 30;
    std::mt19937 random(7);
    std::vector<std::pair<QueuePair, QueuePair>> pairs(kPairs);
    QueuePairOptions options = shape();
    options.shares[0].send_depth = 8;
    options.recv_depth = 1;
    const auto make = [&](auto& pair) {
        pair = {runtime.create_queue_pair(options), runtime.create_queue_pair(options)};
        const QpInfo info = pair.first.info();
        pair.first.connect(pair.second.info());
        pair.second.connect(info);
    };
    for (auto& pair : pairs) {
        make(pair);
    }
    std::uint64_t accepted = 0;
    std::uint64_t completed = 0;
    const auto take = [&] {
        Completion some[32];
        for (std::size_t n; (n = session.poll(some)) != 0;) {
            completed += n;
        }
    };
    for (int round = 0; round < 20; ++round) {
        std::vector<WorkRequest> burst;
        for (std::size_t i = 0; i < 64; ++i) {
            WorkRequest request = rdma(Opcode::rdma_write, i, 64);
            request.qp = pairs[random() % kPairs].first.handle();
            burst.push_back(request);
        }
        accepted += session.try_submit(burst).accepted;
        auto& going = pairs[random() % kPairs];
        if (round % 3 == 0) {
            EXPECT_TRUE(going.first.reset());
            going.second.close();
        } else {
            going.first.close();
            going.second.close();
        }
        make(going);
        take();
    }
    for (auto& pair : pairs) {
        pair.first.close();
    }
    take();
    EXPECT_EQ(completed, accepted);
    EXPECT_EQ(session.figures().in_flight(), 0u);
}

}  // namespace
}  // namespace pollcore::testing
