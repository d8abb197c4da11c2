// What an operator sees of attached processes, and does to them: what they hold, disconnecting them and their queue
// pairs, and keeping new ones out.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "attached_pair.hpp"
#include "control/runtime_state.hpp"
#include "eventually.hpp"
#include "log_capture.hpp"
#include "pollcore/attach.hpp"
#include "pollcore/attach_server.hpp"
#include "pollcore/runtime.hpp"
#include "test_cpus.hpp"

namespace pollcore {
namespace {

using namespace std::chrono_literals;
using test::AttachedPair;
using test::eventually;
using test::kPatience;

constexpr const char* kReason = "was disconnected by its operator";

class OperatorTest : public testing::Test {
protected:
    static Config config() {
        Config config;
        config.share_cores = true;  // other tests may run at the same time
        config.devices.push_back({.name = "net0"});
        config.workers.push_back({.name = "w0", .core = test::last_cpu(), .idle = IdlePolicy::yield});
        config.qps_max = 64;
        return config;
    }
    static AttachConfig attach_config() {
        AttachConfig config;
        config.path = std::filesystem::temp_directory_path() / ("pollcore-operator-" + std::to_string(::getpid()));
        return config;
    }
    static std::string path() { return attach_config().path; }

    static std::optional<Completion> next(Session& session) {
        Completion one;
        return session.poll({&one, 1}, kPatience) == 1 ? std::optional(one) : std::nullopt;
    }
    static std::uint64_t held(const AttachedProcess& process, std::string_view what) {
        const auto found = std::find_if(process.holdings.begin(), process.holdings.end(),
                                        [&](const Holding& holding) { return holding.what == what; });
        return found != process.holdings.end() ? found->held : ~std::uint64_t{0};
    }
    bool goes_on(AttachedPair& pair) {
        for (int i = 0; i < 100; ++i) {
            if (pair.submit() != Refusal::none) {
                return false;
            }
            const std::optional<Completion> completion = next(pair.session);
            if (!completion || !completion->ok()) {
                return false;
            }
        }
        return true;
    }

    test::LogCapture log_{LogLevel::info};
    Runtime runtime_{config()};
    AttachServer server_{runtime_, attach_config()};
};

TEST_F(OperatorTest, SeesWhatEachProcessHolds) {
    EXPECT_TRUE(server_.processes().empty());
    AttachedPair first(path());
    AttachedPair second(path());
    const std::vector<AttachedProcess> all = server_.processes();
    ASSERT_EQ(all.size(), 2u);
    EXPECT_EQ(all[0].number, first.daemon.client());
    EXPECT_EQ(all[0].pid, static_cast<std::uint32_t>(::getpid()));
    EXPECT_EQ(all[0].uid, ::getuid());
    EXPECT_NE(all[0].description.find("as \"cost\""), std::string::npos) << all[0].description;
    EXPECT_FALSE(all[0].ending);
    EXPECT_EQ(held(all[0], "sessions"), 1u);
    EXPECT_EQ(held(all[0], "queue_pairs"), 2u);
    EXPECT_EQ(held(all[0], "memory_regions"), 1u);
    EXPECT_GE(held(all[0], "bytes"), 64u * 1024);
    const Holding& queue_pairs = *std::find_if(all[0].holdings.begin(), all[0].holdings.end(),
                                               [](const Holding& holding) { return holding.what == "queue_pairs"; });
    EXPECT_EQ(queue_pairs.most, 256u);
    EXPECT_EQ(queue_pairs.user_held, 4u) << "of both processes";
    EXPECT_EQ(queue_pairs.user_most, 32u) << "half of qps_max";
}

TEST_F(OperatorTest, SeesWhoseEachObjectIs) {
    AttachedPair pair(path());
    const Listener theirs = pair.daemon.listen("theirs");
    const Listener ours = runtime_.listen("ours");
    const Session own = runtime_.open_session({.name = "own"});
    RuntimeState& state = runtime_.state();
    const std::uint32_t client = pair.daemon.client();

    const auto queue_pairs = state.ask([&] { return state.queue_pairs_here(); });
    ASSERT_EQ(queue_pairs.size(), 2u);
    for (const ListedQueuePair& one : queue_pairs) {
        EXPECT_EQ(one.process, client);
        EXPECT_EQ(one.device, "net0");
        EXPECT_EQ(one.worker, "w0");
        EXPECT_EQ(qp_type_name(one.type), "RC");
        EXPECT_EQ(qp_state_name(one.state), "RTS");
    }
    const auto sessions = state.ask([&] { return state.sessions_here(); });
    ASSERT_EQ(sessions.size(), 2u);
    EXPECT_EQ(sessions[0].process, client);
    EXPECT_EQ(queue_pairs[0].session, sessions[0].number);
    EXPECT_EQ(sessions[1].process, 0u);
    EXPECT_EQ(sessions[1].name.view(), "own");
    const auto listeners = state.ask([&] { return state.listeners_here(); });
    ASSERT_EQ(listeners.size(), 2u);
    for (const ListedListener& one : listeners) {
        EXPECT_EQ(one.process, one.address == "theirs" ? client : 0) << one.address;
    }
    const auto regions = state.ask([&] { return state.memory_regions_here(); });
    ASSERT_EQ(regions.size(), 1u);
    EXPECT_EQ(regions[0].bytes, 64u * 1024);
    EXPECT_EQ(regions[0].process, client);
    const auto workers = state.ask([&] { return state.workers_here(); });
    ASSERT_EQ(workers.size(), 1u);
    EXPECT_EQ(workers[0].sessions, 2u);
    EXPECT_EQ(workers[0].queue_pairs, 2u);
    EXPECT_EQ(workers[0].thread, runtime_.worker_thread_id(0));
}

TEST_F(OperatorTest, DisconnectsAProcessWhichLearnsWhyWhileOthersGoOn) {
    AttachedPair gone(path());
    AttachedPair stays(path());
    ASSERT_EQ(gone.session.try_submit({.tag = 7,
                                       .sge = {gone.memory.addr(), 64, gone.memory.lkey()},
                                       .qp = gone.b.handle(),
                                       .opcode = Opcode::recv,
                                       .num_sge = 1}),
              Refusal::none);
    EXPECT_TRUE(server_.disconnect(gone.daemon.client(), kReason));
    const std::optional<Event> event = gone.daemon.next_event(kPatience);
    ASSERT_TRUE(event);
    EXPECT_EQ(event->type, EventType::stopping);
    EXPECT_EQ(event->text, std::string("this process ") + kReason);
    const std::optional<Completion> flushed = next(gone.session);
    ASSERT_TRUE(flushed);
    EXPECT_EQ(flushed->tag, 7u);
    EXPECT_EQ(flushed->status, Status::wr_flush_err);
    ASSERT_TRUE(eventually([&] { return gone.daemon.lost(); }));
    try {
        (void)gone.daemon.allocate(4096, Access::local());
        ADD_FAILURE() << "it is still attached";
    } catch (const Error& error) {
        EXPECT_EQ(error.code().value(), ECONNRESET);
        EXPECT_NE(std::string(error.what()).find(kReason), std::string::npos) << error.what();
    }
    EXPECT_TRUE(goes_on(stays));
    ASSERT_TRUE(eventually([&] { return server_.counts().now == 1; }));
    EXPECT_EQ(server_.counts().disconnected, 1u);
    EXPECT_EQ(server_.counts().evicted, 0u);
    EXPECT_NE(log_.text().find(std::string(kReason) + ": nothing of it is left"), std::string::npos) << log_.text();
    EXPECT_FALSE(server_.disconnect(gone.daemon.client(), kReason)) << "it is gone";
    EXPECT_FALSE(server_.disconnect(12345, kReason));
    gone.daemon.reattach();
    EXPECT_EQ(server_.counts().now, 2u) << "it may come back";
}

TEST_F(OperatorTest, GivesAProcessTimeToDetach) {
    AttachedPair pair(path());
    EXPECT_TRUE(server_.disconnect(pair.daemon.client(), kReason, 1h));
    const std::optional<Event> event = pair.daemon.next_event(kPatience);
    ASSERT_TRUE(event);
    EXPECT_EQ(event->type, EventType::stopping);
    EXPECT_TRUE(goes_on(pair)) << "it may finish its work";
    EXPECT_TRUE(pair.daemon.stop());
    EXPECT_TRUE(eventually([&] { return server_.counts().detached == 1; }));
    EXPECT_EQ(server_.counts().disconnected, 0u);
}

TEST_F(OperatorTest, EndsAProcessThatDoesNotUseItsTime) {
    AttachedPair pair(path());
    EXPECT_TRUE(server_.disconnect(pair.daemon.client(), kReason, 1h));
    EXPECT_TRUE(server_.disconnect(pair.daemon.client(), kReason, 10ms)) << "the shorter time counts";
    EXPECT_TRUE(server_.disconnect(pair.daemon.client(), kReason, 1h));
    EXPECT_TRUE(eventually([&] { return server_.counts().disconnected == 1 && server_.counts().now == 0; }));
}

TEST_F(OperatorTest, DisconnectsAQueuePairWhoseOwnerSeesCompletionsAndAnEvent) {
    AttachedPair pair(path());
    AttachedPair other(path());
    ASSERT_EQ(pair.session.try_submit({.tag = 9,
                                       .sge = {pair.memory.addr(), 64, pair.memory.lkey()},
                                       .qp = pair.a.handle(),
                                       .opcode = Opcode::recv,
                                       .num_sge = 1}),
              Refusal::none);
    RuntimeState& state = runtime_.state();
    state.ask([&] { state.disconnect(pair.a.handle()); });
    const std::optional<Completion> flushed = next(pair.session);
    ASSERT_TRUE(flushed);
    EXPECT_EQ(flushed->tag, 9u);
    EXPECT_EQ(flushed->status, Status::wr_flush_err);
    const std::optional<Event> event = pair.daemon.next_event(kPatience);
    ASSERT_TRUE(event);
    EXPECT_EQ(event->type, EventType::disconnected);
    EXPECT_EQ(event->qp, pair.a.handle());
    EXPECT_TRUE(pair.a.disconnected());
    EXPECT_TRUE(goes_on(other));
    EXPECT_EQ(server_.counts().now, 2u) << "the process stays attached";
}

TEST_F(OperatorTest, KeepsNewProcessesOutUntilItTakesThemAgain) {
    AttachedPair stays(path());
    server_.pause();
    EXPECT_TRUE(server_.paused());
    try {
        const Attachment late({.path = path()});
        ADD_FAILURE() << "it is attached";
    } catch (const Error& error) {
        EXPECT_EQ(error.code().value(), ESHUTDOWN);
        EXPECT_NE(std::string(error.what()).find("its operator drains it"), std::string::npos) << error.what();
    }
    EXPECT_TRUE(goes_on(stays));
    EXPECT_FALSE(stays.daemon.poll_event()) << "it is told nothing";
    server_.resume();
    const Attachment again({.path = path()});
    EXPECT_EQ(server_.counts().now, 2u);
}

}  // namespace
}  // namespace pollcore
