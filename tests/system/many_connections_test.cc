// Many connections, served by one thread through the events of its runtime.
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "connect/names_connector.hpp"
#include "device/soft/soft_device.hpp"
#include "give_way.hpp"
#include "pollcore/runtime.hpp"
#include "test_cpus.hpp"

namespace pollcore {
namespace {

using std::chrono::milliseconds;

constexpr std::chrono::seconds kPatience{120};

Config config_for(std::uint32_t qps_max) {
    Config config;
    config.share_cores = true;  // other tests may run at the same time
    // A software device has room for 16384 queue pairs of one worker, so the two ends have a device each.
    config.devices.push_back({.name = "calling"});
    config.devices.push_back({.name = "called"});
    config.workers.push_back({.name = "w0", .core = test::last_cpu(), .idle = IdlePolicy::yield});
    config.qps_max = qps_max;
    config.log_level = LogLevel::error;
    return config;
}

class ManyConnections : public ::testing::Test {
protected:
    explicit ManyConnections(std::uint32_t qps_max = 1024)
        : runtime(config_for(qps_max)), session(runtime.open_session()), listener(runtime.listen("many", "called")) {}

    [[nodiscard]] QueuePair make(const std::string& device) {
        return runtime.create_queue_pair(
            {.device = device, .shares = {{.session = &session, .send_depth = 1}}, .recv_depth = 1});
    }

    /// Begins to connect `qp`.
    void begin(QueuePair& qp, milliseconds timeout = std::chrono::hours(1)) {
        qp.begin_connect("many", {.timeout = timeout});
    }
    /// Takes one event, and counts it.
    void take_event() {
        const std::optional<Event> event = runtime.next_event(kPatience);
        ASSERT_TRUE(event.has_value());
        ++seen[event->type];
        if (event->type == EventType::connect_request) {
            accept_all();
        }
    }
    void accept_all() {
        while (std::optional<ConnectionRequest> request = listener.next_request(milliseconds(0))) {
            accepted.push_back(make("called"));
            request->begin_accept(accepted.back(), {.timeout = std::chrono::hours(1)});
        }
    }
    void take_until(EventType type, std::size_t times) {
        while (seen[type] < times) {
            ASSERT_NO_FATAL_FAILURE(take_event());
        }
    }

    Runtime runtime;
    Session session;
    Listener listener;
    std::vector<QueuePair> accepted;
    std::map<EventType, std::size_t> seen;
};

// The peers of these connections take part in no handshake: they ask, and never answer; or they listen, and never
// answer.
class SilentPeers {
public:
    explicit SilentPeers(const std::string& name) : device_({.name = name}), connector_(device_) {
        (void)connector_.listen(name);
    }
    void ask() { (void)connector_.connect("many", {.qp_num = 1}, {}, {}); }

private:
    SoftDevice device_;
    NamesConnector connector_;
};

TEST_F(ManyConnections, AHundredPeersThatNeverAnswerHoldUpNobody) {
    constexpr std::size_t kSilent = 100;
    constexpr std::size_t kLively = 100;
    SilentPeers peers("silent");
    std::vector<QueuePair> unanswered;
    for (std::size_t i = 0; i < kSilent; ++i) {
        peers.ask();  // begin_accept() of this request never ends
        unanswered.push_back(make("calling"));
        unanswered.back().begin_connect("silent", {.timeout = std::chrono::hours(1)});
    }
    while (accepted.size() < kSilent) {
        ASSERT_NO_FATAL_FAILURE(take_event());
    }
    std::vector<QueuePair> lively;
    for (std::size_t i = 0; i < kLively; ++i) {
        lively.push_back(make("calling"));
        begin(lively.back());
    }
    take_until(EventType::established, 2 * kLively);
    EXPECT_EQ(seen[EventType::connect_failed], 0u);
    QueuePair blocking = make("calling");
    std::size_t before = accepted.size();
    begin(blocking);
    while (accepted.size() == before) {
        ASSERT_NO_FATAL_FAILURE(take_event());
    }
    for (QueuePair& qp : lively) {
        EXPECT_TRUE(qp.close());
    }
    take_until(EventType::disconnected, kLively);
    unanswered.front().cancel();
    take_until(EventType::connect_failed, 1);
    // Destroying the queue pairs of the silent peers waits for none of them.
}

class TenThousand : public ManyConnections {
protected:
    static constexpr std::size_t kConnections = 10'000;
    static constexpr std::size_t kAtOnce = 64;  // connection requests that wait at the listener

    TenThousand() : ManyConnections(32'768) {}
};

TEST_F(TenThousand, ThatEndAtOnceAreAllTold) {
    std::vector<QueuePair> callers;
    while (callers.size() < kConnections) {
        for (std::size_t i = 0; i < kAtOnce && callers.size() < kConnections; ++i) {
            callers.push_back(make("calling"));
            begin(callers.back());
        }
        ASSERT_NO_FATAL_FAILURE(take_until(EventType::established, 2 * callers.size()));
    }
    for (QueuePair& qp : callers) {
        qp.begin_close();
    }
    // Takes no event until all have ended, so that all events wait at once.
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    while (session.state(callers.back().handle()) != QpState::closed) {
        ASSERT_LT(std::chrono::steady_clock::now(), deadline);
        test::give_way();
    }
    take_until(EventType::closed, kConnections);
    take_until(EventType::disconnected, kConnections);
    EXPECT_FALSE(runtime.next_event(milliseconds(200)).has_value()) << "each is told once";
    EXPECT_EQ(seen[EventType::qp_error], 0u);
    EXPECT_EQ(runtime.control_counters().events_lost.value(), 0u);
}

}  // namespace
}  // namespace pollcore
