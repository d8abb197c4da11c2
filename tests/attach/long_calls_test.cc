// What takes long in the kernel for one attached process, and what one has much of: nobody else's calls wait for it.
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <future>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "attach/watched_platform.hpp"
#include "cpus.hpp"
#include "pollcore/attach.hpp"
#include "pollcore/attach_server.hpp"
#include "pollcore/runtime.hpp"

namespace pollcore {
namespace {

using namespace std::chrono_literals;

class LongCalls : public ::testing::Test {
protected:
    static Config runtime_config() {
        Config config;
        config.share_cores = true;  // other tests may run at the same time
        config.devices.push_back({.name = "net0"});
        config.workers.push_back({.name = "w0", .core = test::last_cpu(), .idle = IdlePolicy::yield});
        config.qps_max = 1024;
        config.log_level = LogLevel::error;
        return config;
    }
    static AttachConfig attach_config() {
        AttachConfig config;
        config.path = std::filesystem::temp_directory_path() / ("pollcore-long-" + std::to_string(::getpid()));
        config.queue_pairs_max = config.user_queue_pairs_max = runtime_config().qps_max;
        return config;
    }
    [[nodiscard]] static Attachment attach() { return Attachment({.path = attach_config().path}); }

    /// Makes and ends one of each.
    static void call_everything(Attachment& daemon) {
        Session session = daemon.open_session();
        QueuePair a = daemon.create_queue_pair({.shares = {{.session = &session}}});
        QueuePair b = daemon.create_queue_pair({.shares = {{.session = &session}}});
        SharedReceiveQueue srq = daemon.create_shared_receive_queue({.session = &session});
        MemoryRegion memory = daemon.allocate(65536);
        ProtectionDomain pd = daemon.create_protection_domain();
        const QpInfo info = a.info();
        a.connect(b.info());
        b.connect(info);
        AddressHandle ah = daemon.create_address_handle(info);
        EXPECT_TRUE(a.close());
        (void)b.reset();
        (void)daemon.listen("long-calls");
    }

    void TearDown() override { watched.device->release(); }  // when a test ends before it does that

    test::Watched watched;
    Runtime runtime{runtime_config(), std::make_unique<test::WatchedPlatform>(watched)};
    AttachServer server{runtime, attach_config()};
};

TEST_F(LongCalls, OfOneProcessHoldUpNoCallOfAnother) {
    Attachment slow = attach();
    Attachment other = attach();
    Session session = slow.open_session();
    MemoryRegion memory = slow.allocate(4096);
    QueuePair qp = slow.create_queue_pair({.shares = {{.session = &session}}});
    const std::vector<std::pair<test::Held, std::function<void()>>> calls{
        {test::Held::register_memory, [&] { (void)slow.allocate(4096); }},
        {test::Held::create_ah, [&] { (void)slow.create_address_handle(qp.info()); }},
        {test::Held::create_ah, [&] { qp.connect(qp.info()); }},
        {test::Held::deregister, [&] { memory = MemoryRegion(); }},
    };
    for (const auto& [kind, call] : calls) {
        SCOPED_TRACE(static_cast<int>(kind));
        watched.device->hold_next(kind);
        std::future<void> held = std::async(std::launch::async, call);
        watched.device->await_inside();
        call_everything(other);
        (void)slow.open_session();  // its own are answered, too, as far as they are not for the same thread
        EXPECT_EQ(held.wait_for(0s), std::future_status::timeout);
        watched.device->release();
        EXPECT_NO_THROW(held.get());
    }
}

TEST_F(LongCalls, AProcessThatLeavesMeanwhileIsWaitedForByNobody) {
    Attachment other = attach();
    {
        Attachment slow = attach();
        watched.device->hold_next(test::Held::register_memory);
        std::future<void> held = std::async(std::launch::async, [&] { EXPECT_NO_THROW((void)slow.allocate(4096)); });
        watched.device->await_inside();
        std::future<void> leaves = std::async(std::launch::async, [&] { slow.stop(); });
        call_everything(other);
        EXPECT_EQ(server.counts().now, 2u);
        watched.device->release();
    }
    while (server.counts().now != 1) {  // it is told before it is forgotten
        std::this_thread::sleep_for(1ms);
    }
    EXPECT_EQ(other.control_counters().memory_regions.value(), 0u);
}

// Whatever a process has, the control thread ends little of it at a time, and has turned to others in between.
TEST_F(LongCalls, TheEndOfAProcessWithMuchIsManyShortJobs) {
    constexpr std::uint64_t kCallsOfOneJob = 64;
    Attachment other = attach();
    Attachment big = attach();
    Session session = big.open_session();
    std::vector<QueuePair> qps;
    std::vector<SharedReceiveQueue> srqs;
    std::vector<AddressHandle> ahs;
    std::vector<MemoryWindow> windows;
    std::vector<ProtectionDomain> pds;
    MemoryRegion memory = big.allocate(4096 * 512);
    std::vector<MemoryRegion> parts;
    for (int i = 0; i < 500; ++i) {
        qps.push_back(big.create_queue_pair({.shares = {{.session = &session, .send_depth = 1}}, .recv_depth = 1}));
        ahs.push_back(big.create_address_handle(qps.front().info()));
        windows.push_back(big.create_memory_window(session));
        pds.push_back(big.create_protection_domain());
    }
    for (int i = 0; i < 100; ++i) {
        srqs.push_back(big.create_shared_receive_queue({.session = &session, .depth = 1}));
        parts.push_back(big.register_memory(memory.data() + 4096 * i, 4096));
    }
    watched.longest_job.store(0);
    std::future<bool> end = std::async(std::launch::async, [&] { return big.stop(); });
    while (end.wait_for(0s) != std::future_status::ready) {
        call_everything(other);
    }
    EXPECT_TRUE(end.get());
    EXPECT_GT(watched.longest_job.load(), 0u);
    EXPECT_LE(watched.longest_job.load(), kCallsOfOneJob);
    EXPECT_EQ(other.control_counters().queue_pairs.value(), 0u);
}

TEST_F(LongCalls, TheEndOfASessionWithManyQueuePairsIsToo) {
    constexpr std::uint64_t kCallsOfOneJob = 64;
    Attachment big = attach();
    Session session = big.open_session();
    std::vector<QueuePair> qps;
    for (int i = 0; i < 500; ++i) {
        qps.push_back(big.create_queue_pair({.shares = {{.session = &session, .send_depth = 1}}, .recv_depth = 1}));
    }
    watched.longest_job.store(0);
    session.close();
    EXPECT_GT(watched.longest_job.load(), 0u);
    EXPECT_LE(watched.longest_job.load(), kCallsOfOneJob);
}

}  // namespace
}  // namespace pollcore
