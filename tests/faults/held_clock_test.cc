// Tests how long the runtime waits for a device, on a clock that the test moves. In some tests the device completes
// nothing. In another test the device is late to report that a queue pair takes no more receives.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "device/soft/soft_device.hpp"
#include "give_way.hpp"
#include "held_clock_platform.hpp"
#include "pollcore/runtime.hpp"
#include "test_cpus.hpp"

namespace pollcore::testing {
namespace {

using namespace std::chrono_literals;

constexpr std::chrono::milliseconds kLimit = 300ms;
constexpr std::chrono::seconds kPatience{20};

// Delays the event LAST_WQE_REACHED until the control thread has looked for events kLooks times, or, after
// keep_until(), until a worker has got some commands. Records the order of these events and of the moves of queue pairs
// with an SRQ to RESET.
class LateDevice final : public SoftDevice {
public:
    using SoftDevice::SoftDevice;

    void keep_until(const Counter& worker_commands, std::uint64_t commands) {
        commands_ = commands;
        worker_commands_ = &worker_commands;
    }
    std::optional<ibv_async_event> next_async_event() override {
        const Counter* const counter = worker_commands_;
        if (held_ && (counter == nullptr ? ++looks_ >= kLooks : counter->value() >= commands_)) {
            history += "said ";
            return std::exchange(held_, std::nullopt);
        }
        std::optional<ibv_async_event> event = SoftDevice::next_async_event();
        if (event && event->event_type == IBV_EVENT_QP_LAST_WQE_REACHED) {
            held_ = std::exchange(event, std::nullopt);
            looks_ = 0;
        }
        return event;
    }
    void modify(ibv_qp* qp, ibv_qp_attr& attr, int mask) override {
        if (qp->srq != nullptr && (mask & IBV_QP_STATE) != 0 && attr.qp_state == IBV_QPS_RESET) {
            history += "reset ";
        }
        SoftDevice::modify(qp, attr, mask);
    }
    using SoftDevice::modify;

    std::string history;  // only the control thread writes it

private:
    static constexpr int kLooks = 5;
    std::optional<ibv_async_event> held_;
    int looks_ = 0;
    std::atomic<const Counter*> worker_commands_ = nullptr;
    std::uint64_t commands_ = 0;
};

class HeldClockTest : public ::testing::Test {
protected:
    HeldClockTest() : memory(runtime.allocate(4096, Access::all())), session(runtime.open_session()) {}

    static Config config() {
        Config config;
        config.share_cores = true;  // other tests may run on these cores at the same time
        config.devices.push_back({.name = "net0"});
        config.workers.push_back({.name = "w0", .core = test::last_cpu(), .poll = PollVerbs::plain});
        config.drain_timeout = kLimit;
        config.log_level = LogLevel::error;
        return config;
    }
    void connect_pair(const SharedReceiveQueue* srq = nullptr) {
        QueuePairOptions options{.shares = {{.session = &session, .send_depth = 16}},
                                 .recv_depth = 16,
                                 .remote_access = RemoteAccess::all()};
        a = runtime.create_queue_pair(options);
        options.srq = srq;
        b = runtime.create_queue_pair(options);
        connect();
    }
    void connect() {
        const QpInfo info_a = a.info();
        const QpInfo info_b = b.info();
        a.connect(info_b);
        b.connect(info_a);
    }
    void submit(const WorkRequest& request) { ASSERT_EQ(session.try_submit(request), Refusal::none); }
    [[nodiscard]] WorkRequest write(const QueuePair& qp) const {
        return {.sge = {memory.addr(), 8, memory.lkey()},
                .remote_addr = memory.addr(),
                .rkey = memory.rkey(),
                .qp = qp.handle(),
                .opcode = Opcode::rdma_write,
                .flags = kSignaled,
                .num_sge = 1};
    }
    template <class Done>
    static void until(Done done) {
        const auto deadline = std::chrono::steady_clock::now() + kPatience;
        while (!done()) {
            ASSERT_LT(std::chrono::steady_clock::now(), deadline);
            test::give_way();
        }
    }
    /// Returns after the control thread has slept and the worker has made steps, many times in turn, so that each has
    /// seen what the other has done.
    void let_them_look() {
        for (int turn = 0; turn < 25 && !HasFatalFailure(); ++turn) {
            const std::uint64_t looks = clock.looks();
            until([&] { return clock.looks() >= looks + 2; });
            const std::uint64_t steps = runtime.worker_counters(0).steps.value();
            until([&] { return runtime.worker_counters(0).steps.value() >= steps + 2; });
        }
    }
    static bool over(const std::future<bool>& end) { return end.wait_for(0s) == std::future_status::ready; }
    /// `end` cuts short two queue pairs that have work in flight. It must do so when the time limit is over, and not
    /// before. The two queue pairs must share one time limit.
    template <class End>
    void expect_given_its_time_once(End end) {
        runtime.device().context()->ops.poll_cq = [](ibv_cq*, int, ibv_wc*) {
            return 0;
        };  // safe here, because the worker polls no CQ yet
        connect_pair();
        submit(write(a));
        submit(write(b));
        until([&] { return runtime.worker_counters(0).sends.value() == 2; });
        std::future<bool> ends = std::async(std::launch::async, end);
        let_them_look();
        clock.advance(kLimit - 1ms);
        let_them_look();
        EXPECT_FALSE(over(ends)) << "it was not given its time";
        EXPECT_EQ(runtime.control_counters().cut_short.value(), 0u);
        clock.advance(1ms);
        let_them_look();
        clock.advance(20ms);  // a later queue pair gets at least this much time
        if (ends.wait_for(kPatience) != std::future_status::ready) {
            ADD_FAILURE() << "each has a time of its own";
            clock.advance(10 * kLimit);
        }
        EXPECT_FALSE(ends.get());
        EXPECT_EQ(runtime.control_counters().cut_short.value(), 2u);
    }

    test::HeldClock clock;
    LateDevice* device = nullptr;
    Runtime runtime{config(), std::make_unique<test::HeldClockPlatform>(clock, [this](const DeviceConfig& of) {
                        auto late = std::make_unique<LateDevice>(SoftDeviceOptions{.name = of.name});
                        device = late.get();
                        return late;
                    })};
    MemoryRegion memory;
    Session session;
    QueuePair a;
    QueuePair b;
};

TEST_F(HeldClockTest, ASilentDevicesQueuePairsShareTheTimeToDrainOfTheirSession) {
    expect_given_its_time_once([this] {
        session.close();
        return false;
    });
}

TEST_F(HeldClockTest, ASilentDevicesQueuePairsShareTheTimeToDrainOfTheirRuntime) {
    expect_given_its_time_once([this] { return runtime.stop(); });
}

// A message that is half received has taken a receive of the SRQ. A reset before LAST_WQE_REACHED loses that receive. A
// life lasts from one reset to the next, and each life needs its own event.
TEST_F(HeldClockTest, EachLifeOfAQueuePairWaitsForItsOwnLastReceive) {
    SharedReceiveQueue srq = runtime.create_shared_receive_queue({.session = &session});
    connect_pair(&srq);
    std::string expected;
    for (int life = 0; life < 3; ++life) {
        EXPECT_TRUE(b.reset());
        EXPECT_TRUE(a.reset());
        connect();
        expected += "said reset ";
    }
    EXPECT_EQ(device->history, expected);
}

// The device says it when the runtime waits for it no longer, and the worker takes the queue pair out of service.
TEST_F(HeldClockTest, ALastReceiveThatIsSaidLateIsToldBeforeTheQueuePairEnds) {
    SharedReceiveQueue srq = runtime.create_shared_receive_queue({.session = &session});
    connect_pair(&srq);
    const QpHandle handle = b.handle();
    const Counter& commands = runtime.worker_counters(0).commands;
    device->keep_until(commands, commands.value() + 3);  // after those that park and unpark the queue pair
    std::future<bool> closed = std::async(std::launch::async, [&] { return b.close(); });
    let_them_look();
    EXPECT_FALSE(over(closed));
    clock.advance(30ms);  // the runtime waits for it for 20 ms
    EXPECT_TRUE(closed.get());
    EXPECT_EQ(device->history, "said ");
    std::optional<Event> event;
    do {
        event = runtime.next_event(kPatience);
    } while (event && event->type != EventType::qp_last_wqe_reached);
    ASSERT_TRUE(event);
    EXPECT_EQ(event->qp, handle);
}

}  // namespace
}  // namespace pollcore::testing
