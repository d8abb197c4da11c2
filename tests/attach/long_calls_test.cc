// Tests that the calls of other processes do not wait while one attached process's call takes long in the kernel. They
// also do not wait for the end of a process that has many objects.
#include <poll.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "attach/own_server.hpp"
#include "attach/packet_socket.hpp"
#include "attach/raw_process.hpp"
#include "attach/shared_memory.hpp"
#include "attach/watched_platform.hpp"
#include "attach/wire.hpp"
#include "patient.hpp"
#include "pollcore/attach.hpp"
#include "pollcore/attach_server.hpp"
#include "pollcore/runtime.hpp"

namespace pollcore {
namespace {

using namespace std::chrono_literals;

class LongCalls : public ::testing::Test {
protected:
    static constexpr std::chrono::seconds kPatience{60};

    static Config runtime_config() {
        Config config = test::one_soft_device(1024);
        config.drain_timeout = 100ms;
        return config;
    }
    static AttachConfig attach_config() {
        AttachConfig config = test::socket_named("long");
        config.queue_pairs_max = config.user_queue_pairs_max = runtime_config().qps_max;
        return config;
    }
    [[nodiscard]] static Attachment attach() { return Attachment(test::patient({.path = attach_config().path})); }

    /// Makes and ends objects of most kinds.
    static void call_everything(Attachment& daemon) {
        Session session = daemon.open_session();
        QueuePair a =
            daemon.create_queue_pair({.shares = {{.session = &session}}, .remote_access = RemoteAccess::all()});
        QueuePair b =
            daemon.create_queue_pair({.shares = {{.session = &session}}, .remote_access = RemoteAccess::all()});
        SharedReceiveQueue srq = daemon.create_shared_receive_queue({.session = &session});
        MemoryRegion memory = daemon.allocate(65536, Access::all());
        ProtectionDomain pd = daemon.create_protection_domain();
        const QpInfo info = a.info();
        a.connect(b.info());
        b.connect(info);
        AddressHandle ah = daemon.create_address_handle(info);
        EXPECT_TRUE(a.close());
        (void)b.reset();
        (void)daemon.listen("long-calls");
    }

    static constexpr std::uint64_t kCallsOfOneJob = 64;
    static constexpr int kMany = 200;  // objects of a kind: enough for several jobs of the control thread

    void expect_one_left() {
        const auto until = std::chrono::steady_clock::now() + kPatience;
        while (server.counts().now != 1) {  // a process gets its answer before the server stops counting the process
            ASSERT_LT(std::chrono::steady_clock::now(), until);
            std::this_thread::sleep_for(1ms);
        }
    }

    test::Watched watched;
    Runtime runtime{runtime_config(), std::make_unique<test::WatchedPlatform>(watched)};
    AttachServer server{runtime, attach_config()};
};

/// Releases the held call. Declare it after the future of the call, so that it is destroyed before the future.
struct Releasing {
    test::WatchedDevice& device;
    ~Releasing() { device.release(); }
};

TEST_F(LongCalls, OfOneProcessHoldUpNoCallOfAnother) {
    Attachment slow = attach();
    Attachment other = attach();
    Session session = slow.open_session();
    MemoryRegion memory = slow.allocate(4096, Access::all());
    QueuePair qp = slow.create_queue_pair({.shares = {{.session = &session}}, .remote_access = RemoteAccess::all()});
    const std::vector<std::pair<test::Held, std::function<void()>>> calls{
        {test::Held::register_memory, [&] { (void)slow.allocate(4096, Access::all()); }},
        {test::Held::create_ah, [&] { (void)slow.create_address_handle(qp.info()); }},
        {test::Held::find_neighbour, [&] { qp.connect(qp.info()); }},
        {test::Held::deregister, [&] { memory = MemoryRegion(); }},
    };
    for (const auto& [kind, call] : calls) {
        SCOPED_TRACE(static_cast<int>(kind));
        watched.device->hold_next(kind);
        std::future<void> held = std::async(std::launch::async, call);
        const Releasing releasing{*watched.device};
        ASSERT_TRUE(watched.device->await_inside(kPatience));
        call_everything(other);
        // The slow process's other calls are answered, too, if the blocked thread does not serve them.
        (void)slow.open_session();
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
        std::future<void> held =
            std::async(std::launch::async, [&] { EXPECT_NO_THROW((void)slow.allocate(4096, Access::all())); });
        std::future<void> leaves;
        const Releasing releasing{*watched.device};
        ASSERT_TRUE(watched.device->await_inside(kPatience));
        leaves = std::async(std::launch::async, [&] { slow.stop(); });
        for (int i = 0; i < 10; ++i) {
            call_everything(other);
        }
        EXPECT_EQ(server.counts().now, 2u);
    }
    expect_one_left();
    EXPECT_EQ(other.control_counters().memory_regions.value(), 0u);
}

// The server ends while a call of an attached process is in progress.
TEST_F(LongCalls, AreWaitedForWhenTheServerEnds) {
    for (const test::Held kind : {test::Held::register_memory, test::Held::deregister}) {
        SCOPED_TRACE(static_cast<int>(kind));
        AttachConfig config = attach_config();
        config.path += "-short";
        auto brief = std::make_unique<AttachServer>(runtime, config);
        Attachment slow({.path = config.path});
        std::optional<MemoryRegion> memory = slow.allocate(4096, Access::all());
        watched.device->hold_next(kind);
        std::future<void> held = std::async(std::launch::async, [&] {
            try {
                kind == test::Held::deregister ? memory.reset() : (void)slow.allocate(4096, Access::all());
            } catch (const Error&) {
                // The process may see that the server has ended.
            }
        });
        const Releasing releasing{*watched.device};
        ASSERT_TRUE(watched.device->await_inside(kPatience));
        std::future<void> ends = std::async(std::launch::async, [&] { brief.reset(); });
        EXPECT_EQ(ends.wait_for(50ms), std::future_status::timeout) << "the device may still reach the memory";
        watched.device->release();
        ends.get();
        held.get();
    }
    EXPECT_EQ(attach().control_counters().memory_regions.value(), 0u);
}

// Before an object ends, a worker searches the rings for requests that name the object, and the process may have filled
// these rings. In this test the worker stands still, and does not finish the search before the test lets it go on.
TEST_F(LongCalls, OfAWorkerThatSearchesForWhatSomethingNamesNeither) {
    struct WorkersGoOn {
        std::atomic<bool>& stand;
        ~WorkersGoOn() { stand.store(false); }
    };
    test::RawProcess process(attach_config().path);
    constexpr std::size_t kBytes = 4096;
    const SharedMemory memory = make_shared_memory(kBytes, "long calls");
    const int fd = memory.fd.get();
    const auto region = process.answer<wire::RegisterMemory>(
        process.send(wire::RegisterMemory{.bytes = kBytes, .device = NameText("net0")}, {&fd, 1}));
    const auto ah =
        process.answer<wire::CreateAh>(process.send(wire::CreateAh{.device = NameText("net0"), .peer = QpInfo{}}));

    const auto expect_others_answered = [&](const auto& end) {
        using End = std::decay_t<decltype(end)>;
        std::uint64_t ends = 0;
        {
            const WorkersGoOn afterwards{watched.workers_stand};
            watched.workers_stand.store(true);
            // The step that the worker may be in could still answer.
            const auto until = std::chrono::steady_clock::now() + kPatience;
            for (const std::uint64_t before = watched.stood.load(); watched.stood.load() == before;) {
                ASSERT_LT(std::chrono::steady_clock::now(), until) << "the worker does not stand";
                std::this_thread::yield();
            }
            ends = process.send(end);
            // The daemon has begun `end` before it answers this request.
            (void)process.answer<wire::AskControlCounters>(process.send(wire::AskControlCounters{}));
        }
        (void)process.answer<End>(ends);
    };
    expect_others_answered(wire::DestroyAh{.handle = ah.handle});
    expect_others_answered(wire::Deregister{.region = region.id});
    EXPECT_EQ(attach().control_counters().memory_regions.value(), 0u);
}

// The control thread ends only a few objects of a process in each job, and serves other processes between two jobs.
TEST_F(LongCalls, TheEndOfAProcessWithMuchIsManyShortJobs) {
    Attachment other = attach();
    Attachment big = attach();
    Session session = big.open_session();
    std::vector<QueuePair> qps;
    std::vector<SharedReceiveQueue> srqs;
    std::vector<AddressHandle> ahs;
    std::vector<MemoryWindow> windows;
    std::vector<ProtectionDomain> pds;
    MemoryRegion memory = big.allocate(4096 * 512, Access::all());
    std::vector<MemoryRegion> parts;
    for (int i = 0; i < kMany; ++i) {
        qps.push_back(big.create_queue_pair({.shares = {{.session = &session, .send_depth = 1}}, .recv_depth = 1}));
        ahs.push_back(big.create_address_handle(qps.front().info()));
        windows.push_back(big.create_memory_window(session));
        pds.push_back(big.create_protection_domain());
    }
    for (int i = 0; i < 100; ++i) {
        srqs.push_back(big.create_shared_receive_queue({.session = &session, .depth = 1}));
        parts.push_back(big.register_memory(memory.data() + 4096 * i, 4096, Access::all()));
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

TEST_F(LongCalls, TheEndOfManyProcessesAtOnceIsToo) {
    struct Process {
        Attachment attachment = attach();
        Session session = attachment.open_session();
        std::vector<QueuePair> qps;
    };
    std::vector<Process> processes(12);
    for (Process& one : processes) {
        for (int i = 0; i < 40; ++i) {
            one.qps.push_back(one.attachment.create_queue_pair(
                {.shares = {{.session = &one.session, .send_depth = 1}}, .recv_depth = 1}));
        }
    }
    Attachment other = attach();
    watched.longest_job.store(0);
    std::vector<std::future<bool>> ends;
    for (Process& one : processes) {
        ends.push_back(std::async(std::launch::async, [&one] { return one.attachment.stop(); }));
    }
    for (std::future<bool>& end : ends) {
        EXPECT_TRUE(end.get());
    }
    EXPECT_GT(watched.longest_job.load(), 0u);
    EXPECT_LE(watched.longest_job.load(), kCallsOfOneJob);
    expect_one_left();
}

TEST_F(LongCalls, TheEndOfASessionWithManyQueuePairsIsToo) {
    Attachment big = attach();
    Session session = big.open_session();
    std::vector<QueuePair> qps;
    for (int i = 0; i < kMany; ++i) {
        qps.push_back(big.create_queue_pair({.shares = {{.session = &session, .send_depth = 1}}, .recv_depth = 1}));
    }
    watched.longest_job.store(0);
    session.close();
    EXPECT_GT(watched.longest_job.load(), 0u);
    EXPECT_LE(watched.longest_job.load(), kCallsOfOneJob);
}

}  // namespace
}  // namespace pollcore
