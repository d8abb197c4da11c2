// Tests with a device whose completion queues always seem empty, so that no request is flushed. The process that owns
// the queue pair waits until the drain timeout is over, and no other process waits. The test controls the clock, so it
// decides when the timeout is over.
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "attach/own_server.hpp"
#include "give_way.hpp"
#include "held_clock_platform.hpp"
#include "pollcore/attach.hpp"
#include "pollcore/attach_server.hpp"
#include "pollcore/runtime.hpp"

namespace pollcore {
namespace {

using namespace std::chrono_literals;

class SilentDevice : public ::testing::Test {
protected:
    static constexpr std::chrono::milliseconds kLimit = 300ms;
    static constexpr std::chrono::seconds kPatience{20};

    SilentDevice() {
        runtime.device().context()->ops.poll_cq = [](ibv_cq*, int, ibv_wc*) {
            return 0;
        };  // safe: the worker polls no CQ yet
    }
    static Config runtime_config() {
        Config config = test::one_soft_device(64);
        config.workers[0].poll = PollVerbs::plain;
        config.drain_timeout = kLimit;
        return config;
    }
    static AttachConfig attach_config() { return test::socket_named("silent"); }
    [[nodiscard]] static Attachment attach() {
        return Attachment({.path = attach_config().path, .answer_within = kPatience});
    }

    /// Makes and ends objects with nothing in flight, so there is nothing to flush.
    static void call_everything(Attachment& daemon) {
        Session session = daemon.open_session();
        QueuePair a =
            daemon.create_queue_pair({.shares = {{.session = &session}}, .remote_access = RemoteAccess::all()});
        QueuePair b =
            daemon.create_queue_pair({.shares = {{.session = &session}}, .remote_access = RemoteAccess::all()});
        MemoryRegion memory = daemon.allocate(65536, Access::all());
        const QpInfo info = a.info();
        a.connect(b.info());
        b.connect(info);
        EXPECT_TRUE(a.close());
        (void)b.reset();
        session.close();
    }

    /// The destructor advances the clock past the limit, even if the test ends early. Otherwise the future is never
    /// ready.
    struct TimeGoesOn {
        test::HeldClock& clock;
        ~TimeGoesOn() { clock.advance(2 * kLimit); }
    };

    test::HeldClock clock{20us};
    Runtime runtime{runtime_config(), std::make_unique<test::HeldClockPlatform>(clock)};
    AttachServer server{runtime, attach_config()};
};

TEST_F(SilentDevice, HoldsUpNobodyButTheProcessWhoseQueuePairItIs) {
    Attachment other = attach();
    struct Process {
        Attachment daemon = attach();
        Session session = daemon.open_session();
        MemoryRegion memory = daemon.allocate(4096, Access::all());
        QueuePair a =
            daemon.create_queue_pair({.shares = {{.session = &session}}, .remote_access = RemoteAccess::all()});
        QueuePair b =
            daemon.create_queue_pair({.shares = {{.session = &session}}, .remote_access = RemoteAccess::all()});
    };
    const std::vector<std::pair<const char*, std::function<void(Process&)>>> ends{
        {"close", [](Process& slow) { EXPECT_FALSE(slow.a.close()); }},
        {"reset", [](Process& slow) { EXPECT_FALSE(slow.a.reset()); }},
        {"close a session", [](Process& slow) { slow.session.close(); }},
        {"detach", [](Process& slow) { EXPECT_FALSE(slow.daemon.stop()); }},
    };
    for (const auto& [what, end] : ends) {
        SCOPED_TRACE(what);
        Process slow;
        const QpInfo info = slow.a.info();
        slow.a.connect(slow.b.info());
        slow.b.connect(info);
        const std::uint64_t sends = runtime.worker_counters(0).sends.value();
        ASSERT_EQ(slow.session.try_submit({.sge = {slow.memory.addr(), 8, slow.memory.lkey()},
                                           .remote_addr = slow.memory.addr(),
                                           .rkey = slow.memory.rkey(),
                                           .qp = slow.a.handle(),
                                           .opcode = Opcode::rdma_write,
                                           .flags = kSignaled,
                                           .num_sge = 1}),
                  Refusal::none);
        for (const auto until = std::chrono::steady_clock::now() + kPatience;
             runtime.worker_counters(0).sends.value() == sends;) {
            ASSERT_LT(std::chrono::steady_clock::now(), until);
            test::give_way();
        }
        const std::uint64_t cut_short = runtime.control_counters().cut_short.value();
        std::future<void> ended = std::async(std::launch::async, [&end = end, &slow] { end(slow); });
        {
            const TimeGoesOn afterwards{clock};
            for (int i = 0; i < 10; ++i) {
                call_everything(other);
            }
            EXPECT_EQ(ended.wait_for(0s), std::future_status::timeout) << "nobody has cut it short, so it waits";
            EXPECT_EQ(runtime.control_counters().cut_short.value(), cut_short);
        }
        ended.get();
        EXPECT_EQ(runtime.control_counters().cut_short.value(), cut_short + 1);
    }
}

}  // namespace
}  // namespace pollcore
