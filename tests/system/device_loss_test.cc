// Tests a device that fails or is removed: its requests complete, and the other device goes on. No real device can be
// made to fail, so these tests use only the software device. tests/rxe tests Soft-RoCE when its device is deleted.

#include <set>
#include <thread>

#include <gtest/gtest.h>

#include "../conformance/fixture.hpp"
#include "device/soft/soft_device.hpp"
#include "device_events.hpp"
#include "give_way.hpp"
#include "two_devices.hpp"

namespace pollcore::testing {
namespace {

/// One worker with two devices that can reach each other.
Config two_devices() {
    Config config = test_config();
    DeviceConfig other = config.devices[0];
    other.name = "net1";
    config.devices.push_back(other);
    config.drain_timeout = std::chrono::milliseconds(2000);
    return config;
}

enum class Loss { fatal, removed };

class DeviceLoss : public ::testing::TestWithParam<Loss>, protected TwoDevices {
protected:
    explicit DeviceLoss(const Config& config = two_devices()) : TwoDevices(config) {}

    SoftDevice& soft(const std::string& device) { return dynamic_cast<SoftDevice&>(runtime.device(device)); }
    void fail(const std::string& device) { GetParam() == Loss::fatal ? soft(device).fail() : soft(device).remove(); }
    void lose(const std::string& device) {
        fail(device);
        expect_told(device);
    }
    void expect_told(const std::string& device) {
        std::optional<Event> event = test::next_device_event(runtime, kPatience);
        ASSERT_TRUE(event.has_value());
        EXPECT_EQ(event->type, EventType::device_fatal);
        EXPECT_EQ(event->device, device);
        if (GetParam() == Loss::removed) {
            event = test::next_device_event(runtime, kPatience);
            ASSERT_TRUE(event.has_value());
            EXPECT_EQ(event->type, EventType::device_removed);
            EXPECT_EQ(event->device, device);
        }
        EXPECT_EQ(runtime.control_counters().devices_lost.value(), 1u);
    }

    // Objects on net0 only.
    SharedReceiveQueue make_srq() {
        return runtime.create_shared_receive_queue({.device = "net0", .session = &session, .depth = 32});
    }
    QueuePair make_taker(SharedReceiveQueue& srq) {
        QueuePairOptions options;
        options.device = "net0";
        options.shares = {{.session = &session}};
        options.srq = &srq;
        return runtime.create_queue_pair(options);
    }
    struct Datagrams {
        QueuePair a;
        QueuePair b;
        std::uint32_t b_num = 0;
        AddressHandle to_b;
        Sge sge;

        [[nodiscard]] WorkRequest recv(std::uint64_t tag) const {
            return {.tag = tag, .sge = sge, .qp = b.handle(), .opcode = Opcode::recv, .num_sge = 1};
        }
        [[nodiscard]] WorkRequest send(std::uint64_t tag) const {
            WorkRequest request{
                .tag = tag, .sge = sge, .qp = a.handle(), .opcode = Opcode::send, .flags = kSignaled, .num_sge = 1};
            request.ud = {to_b.handle(), b_num};
            request.remote_qkey = kQkey;
            return request;
        }
    };
    static constexpr std::uint32_t kQkey = 0x1234;
    Datagrams make_datagrams() {
        QueuePairOptions options;
        options.device = "net0";
        options.shares = {{.session = &session, .send_depth = 64}};
        options.type = QpType::ud;
        options.qkey = kQkey;
        Datagrams made;
        made.a = runtime.create_queue_pair(options);
        made.b = runtime.create_queue_pair(options);
        made.b_num = made.b.info().qp_num;
        made.to_b = runtime.create_address_handle(made.b.info(), {}, "net0");
        made.sge = {first.memory.addr(), 64, first.memory.lkey()};
        return made;
    }
    /// Expects that the call fails with the error of a lost device.
    template <class Call>
    static void expect_lost(Call&& call) {
        try {
            call();
            ADD_FAILURE() << "did it";
        } catch (const Error& error) {
            EXPECT_EQ(error.code(), std::errc::no_such_device) << error.what();
            EXPECT_NE(std::string(error.what()).find("lost"), std::string::npos) << error.what();
        }
    }
};

TEST_P(DeviceLoss, CompletesEveryWorkRequestInFlightInOrder) {
    expect_traffic(first);
    expect_traffic(second);
    for (std::uint64_t tag = 0; tag < 40; ++tag) {
        // The sends wait for a receive. The receives wait for a send, on a QP to which nobody sends.
        ASSERT_EQ(session.try_submit(send(first, tag, tag % 4 == 0 ? std::uint8_t{kSignaled} : std::uint8_t{0})),
                  Refusal::none);
        WorkRequest receive = recv(first, 100 + tag);
        receive.qp = first.a.handle();
        ASSERT_EQ(session.try_submit(receive), Refusal::none);
    }
    lose("net0");
    std::uint64_t next_send = 0;
    std::uint64_t next_recv = 100;
    for (const Completion& completion : await(80)) {
        EXPECT_EQ(completion.tag, completion.from_recv_queue() ? next_recv++ : next_send++);
        EXPECT_EQ(completion.status, Status::device_removed);
        EXPECT_NE(completion.flags & kByRuntime, 0);
        EXPECT_EQ(completion.qp, first.a.handle());
    }
    EXPECT_EQ(session.figures().in_flight(), 0u);
}

TEST_P(DeviceLoss, LeavesTheOtherDeviceOfTheWorkerAlone) {
    ASSERT_EQ(session.try_submit(recv(first, 1)), Refusal::none);
    std::uint64_t written = 0;
    for (int i = 0; i < 20; ++i) {
        ASSERT_EQ(session.try_submit(write(second, 1000 + written++)), Refusal::none);
    }
    lose("net0");
    std::uint64_t lost = 0;
    std::uint64_t fine = 0;
    for (const Completion& completion : await(21)) {
        lost += completion.tag == 1 && completion.status == Status::device_removed;
        fine += completion.tag >= 1000 && completion.ok();
    }
    EXPECT_EQ(lost, 1u);
    EXPECT_EQ(fine, 20u);
    for (int i = 0; i < 100; ++i) {
        expect_traffic(second);
    }
    Pair third = make("net1");
    expect_traffic(third);
    Session another = runtime.open_session();
    EXPECT_TRUE(another.valid());
}

TEST_P(DeviceLoss, MakesItsQueuePairsRefuseWorkWithThatCause) {
    lose("net0");
    for (const QueuePair* qp : {&first.a, &first.b}) {
        EXPECT_EQ(session.state(qp->handle()), QpState::error);
        EXPECT_EQ(session.cause(qp->handle()), Status::device_removed);
    }
    EXPECT_EQ(session.try_submit(write(first, 1)), Refusal::qp_in_error);
    EXPECT_EQ(session.try_submit(recv(first, 2)), Refusal::qp_in_error);
    EXPECT_EQ(session.figures().in_flight(), 0u);
}

TEST_P(DeviceLoss, RefusesWhatIsAskedOfTheDeviceAndSaysWhy) {
    lose("net0");
    QueuePairOptions options;
    options.device = "net0";
    options.shares = {{.session = &session}};
    expect_lost([&] { (void)runtime.create_queue_pair(options); });
    expect_lost([&] { (void)runtime.allocate(4096, Access::all(), "net0"); });
    expect_lost([&] { (void)runtime.create_protection_domain("net0"); });
    expect_lost([&] { (void)runtime.listen("here", "net0"); });
    expect_lost([&] { (void)first.a.info(); });
    expect_lost([&] { first.a.connect(QpInfo{}); });
    expect_lost([&] { first.a.connect("here"); });
    expect_lost([&] { first.a.reset(); });
    first.a.disconnect();  // does nothing, and is no error
    EXPECT_TRUE(first.a.disconnected());
}

TEST_P(DeviceLoss, ThenEverythingClosesInAnyOrder) {
    for (std::uint64_t tag = 0; tag < 10; ++tag) {
        ASSERT_EQ(session.try_submit(recv(first, tag)), Refusal::none);
    }
    lose("net0");
    EXPECT_TRUE(first.a.close());
    first.memory.deregister();
    EXPECT_TRUE(first.b.close());
    await(10);
    expect_traffic(second);
    session.close();
    EXPECT_TRUE(runtime.stop());
}

TEST_P(DeviceLoss, ThenStoppingLeavesNothing) {
    for (std::uint64_t tag = 0; tag < 10; ++tag) {
        ASSERT_EQ(session.try_submit(recv(first, tag)), Refusal::none);
    }
    lose("net0");
    EXPECT_TRUE(runtime.stop());
    EXPECT_EQ(runtime.control_counters().cut_short.value(), 0u);
    await(10);
    EXPECT_EQ(session.figures().in_flight(), 0u);
}

TEST_P(DeviceLoss, WhileStoppingAtOnceLosesNothing) {
    for (std::uint64_t tag = 0; tag < 10; ++tag) {
        ASSERT_EQ(session.try_submit(send(first, tag)), Refusal::none);
        ASSERT_EQ(session.try_submit(recv(second, 100 + tag)), Refusal::none);
    }
    fail("net0");
    runtime.stop();  // the runtime may or may not have seen the event before
    await(20);
    EXPECT_EQ(session.figures().in_flight(), 0u);
}

TEST_P(DeviceLoss, UnderTrafficKeepsTheAccounts) {
    std::set<std::uint64_t> outstanding;
    std::uint64_t tag = 0;
    std::uint64_t removed = 0;
    Completion some[32];
    const auto take = [&] {
        const std::size_t n = session.poll(some);
        for (std::size_t i = 0; i < n; ++i) {
            EXPECT_EQ(outstanding.erase(some[i].tag), 1u) << "tag " << some[i].tag;
            removed += some[i].status == Status::device_removed;
        }
        return n;
    };
    bool lost = false;
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    while (std::chrono::steady_clock::now() < deadline) {
        const Refusal refusal = session.try_submit(write(first, tag));
        if (refusal == Refusal::none) {
            outstanding.insert(tag++);
        } else if (refusal == Refusal::qp_in_error) {
            break;
        }
        if (tag > 2000 && !std::exchange(lost, true)) {
            fail("net0");
        }
        take();
    }
    while (!outstanding.empty() && std::chrono::steady_clock::now() < deadline) {
        if (take() == 0) {
            test::give_way();
        }
    }
    EXPECT_TRUE(outstanding.empty());
    EXPECT_EQ(session.cause(first.a.handle()), Status::device_removed);
    EXPECT_EQ(session.figures().in_flight(), 0u);
    expect_traffic(second);
}

TEST_P(DeviceLoss, CompletesTheReceivesOfASharedReceiveQueue) {
    SharedReceiveQueue srq = make_srq();
    QueuePair taker = make_taker(srq);
    for (std::uint64_t tag = 0; tag < 20; ++tag) {
        ASSERT_EQ(session.try_submit(shared_recv(srq, tag)), Refusal::none);
    }
    lose("net0");
    std::set<std::uint64_t> tags;
    for (const Completion& completion : await(20)) {
        EXPECT_TRUE(tags.insert(completion.tag).second);
        EXPECT_EQ(completion.status, Status::device_removed);
        EXPECT_NE(completion.flags & kByRuntime, 0);
        EXPECT_EQ(completion.srq, srq.handle());
    }
    EXPECT_EQ(session.figures().in_flight(), 0u);
    EXPECT_EQ(session.try_submit(shared_recv(srq, 100)), Refusal::stale_handle);
    expect_lost([&] { srq.arm_limit(1); });
    expect_lost([&] { (void)srq.limit(); });
    expect_lost([&] { taker.reset(); });
    expect_lost([&] { (void)make_srq(); });
    EXPECT_THROW(srq.close(), Error) << "its queue pair still names it";
    EXPECT_TRUE(taker.close());
    srq.close();
    EXPECT_FALSE(srq.valid());
    expect_traffic(second);
}

TEST_P(DeviceLoss, CompletesDatagramsAndLeavesAddressHandlesToTheirOwners) {
    Datagrams datagrams = make_datagrams();
    std::size_t accepted = 0;
    for (std::uint64_t tag = 0; tag < 10; ++tag) {
        ASSERT_EQ(session.try_submit(datagrams.recv(tag)), Refusal::none);
        ++accepted;
    }
    fail("net0");
    // The runtime learns of the failure a moment later. The number of requests submitted until then is a matter of
    // chance, but each of them completes.
    for (std::uint64_t tag = 100; tag < 140 && session.try_submit(datagrams.send(tag)) == Refusal::none; ++tag) {
        ++accepted;
    }
    expect_told("net0");
    for (const Completion& completion : await(accepted)) {
        EXPECT_EQ(completion.status, Status::device_removed) << "tag " << completion.tag;
    }
    EXPECT_EQ(session.try_submit(datagrams.send(200)), Refusal::qp_in_error);
    EXPECT_EQ(session.figures().in_flight(), 0u);
    expect_lost([&] { (void)runtime.create_address_handle(QpInfo{}, {}, "net0"); });
    expect_lost([&] { datagrams.a.reset(); });
    datagrams.to_b.destroy();
    EXPECT_TRUE(datagrams.a.close());
    EXPECT_TRUE(datagrams.b.close());
    expect_traffic(second);
}

TEST_P(DeviceLoss, LeavesItsWindowsToTheirOwners) {
    Access access = Access::all();
    access.window_bind = true;
    MemoryRegion region = runtime.allocate(4096, access, "net0");
    MemoryWindow bound = runtime.create_memory_window(session, WindowType::type_2, "net0");
    MemoryWindow in_flight = runtime.create_memory_window(session, WindowType::type_2, "net0");
    const auto bind = [&](std::uint64_t tag, const MemoryWindow& window) {
        return WorkRequest{.tag = tag,
                           .bind = {window.handle(), region.handle(), 64},
                           .remote_addr = region.addr(),
                           .bind_access = kWindowWrite,
                           .rkey = next_rkey(window.rkey()),
                           .qp = first.b.handle(),
                           .opcode = Opcode::bind_mw,
                           .flags = kSignaled};
    };
    ASSERT_EQ(session.try_submit(bind(1, bound)), Refusal::none);
    EXPECT_EQ(await(1).at(0).status, Status::success);
    const WorkRequest second_bind = bind(2, in_flight);
    fail("net0");
    if (session.try_submit(second_bind) == Refusal::none) {  // accepted if the runtime does not yet know of the loss
        EXPECT_EQ(await(1).at(0).status, Status::device_removed);
    }
    expect_told("net0");
    expect_lost([&] { (void)runtime.create_memory_window(session, WindowType::type_2, "net0"); });
    bound.deallocate();
    in_flight.deallocate();
    region.deregister();
    EXPECT_TRUE(first.a.close());
    EXPECT_TRUE(first.b.close());
    expect_traffic(second);
}

TEST_P(DeviceLoss, WhileStoppingLosesNothingSharedEither) {
    SharedReceiveQueue srq = make_srq();
    QueuePair taker = make_taker(srq);
    Datagrams datagrams = make_datagrams();
    for (std::uint64_t tag = 0; tag < 10; ++tag) {
        ASSERT_EQ(session.try_submit(shared_recv(srq, tag)), Refusal::none);
        ASSERT_EQ(session.try_submit(datagrams.recv(100 + tag)), Refusal::none);
    }
    fail("net0");
    runtime.stop();
    await(20);
    EXPECT_EQ(session.figures().in_flight(), 0u);
}

TEST_P(DeviceLoss, WithSeparateCqsThatTakeNoReceivesClosesOneAfterTheOther) {
    QueuePairOptions options;
    options.device = "net0";
    options.shares = {{.session = &session}};
    options.recv_depth = 0;
    options.separate_cqs = true;
    QueuePair one = runtime.create_queue_pair(options);
    QueuePair other = runtime.create_queue_pair(options);
    lose("net0");
    EXPECT_TRUE(first.a.close());
    EXPECT_TRUE(first.b.close());
    EXPECT_TRUE(one.close());
    expect_traffic(second);
    EXPECT_TRUE(other.close());
    expect_traffic(second);
}

TEST_P(DeviceLoss, IsNotHeldUpByFaultsThatWerePlannedForIt) {
    soft("net0").inject({.kind = SoftFault::Kind::destroy_qp, .count = 100, .error = EBUSY});
    soft("net0").inject({.kind = SoftFault::Kind::poll_cq, .nth = 2, .count = 100});
    ASSERT_EQ(session.try_submit(recv(first, 1)), Refusal::none);
    lose("net0");
    const auto completions = await(1);
    ASSERT_EQ(completions.size(), 1u);
    EXPECT_EQ(completions[0].status, Status::device_removed);
    EXPECT_EQ(runtime.control_counters().failed_cqs.value(), 0u);
    EXPECT_TRUE(first.b.close());
}

// A worker that sleeps whenever it can.
class DeviceLossAsleep : public DeviceLoss {
protected:
    DeviceLossAsleep() : DeviceLoss(sleeping(two_devices())) {}
    static Config sleeping(Config config) {
        config.workers[0].idle = IdlePolicy::event;
        return config;
    }
    // Waits until the worker sleeps. Completions of the lost device may keep the worker awake for a few looks, but not
    // for ever.
    void expect_rest() {
        const WorkerCounters& counters = runtime.worker_counters(0);
        const auto deadline = std::chrono::steady_clock::now() + kPatience;
        for (;;) {
            const std::uint64_t steps = counters.steps.value();
            std::this_thread::sleep_for(std::chrono::milliseconds(50));
            if (counters.asleep.value() == 1 && counters.steps.value() == steps) {
                return;
            }
            ASSERT_LT(std::chrono::steady_clock::now(), deadline) << "the worker does not come to rest";
        }
    }
};

TEST_P(DeviceLossAsleep, SleepsOnWithTheQueuePairsOfTheLostDevice) {
    expect_traffic(first);
    ASSERT_EQ(session.try_submit(recv(first, 1)), Refusal::none);
    expect_rest();
    lose("net0");
    EXPECT_EQ(await(1).at(0).status, Status::device_removed);
    expect_rest();
    expect_traffic(second);
    expect_rest();
    EXPECT_TRUE(first.a.close());
    EXPECT_TRUE(first.b.close());
    expect_traffic(second);
    expect_rest();
}

TEST_P(DeviceLossAsleep, SleepsOnWithACompletionQueueThatHasNoQueuePairs) {
    EXPECT_TRUE(first.a.close());
    EXPECT_TRUE(first.b.close());
    lose("net0");
    expect_rest();
    expect_traffic(second);
    expect_rest();
}

TEST_P(DeviceLoss, AConnectionAttemptOnItEnds) {
    Listener listener = runtime.listen("nobody-answers", "net0");
    QueuePairOptions options;
    options.device = "net0";
    options.shares = {{.session = &session}};
    QueuePair waiting = runtime.create_queue_pair(options);
    std::thread connecting([&] {
        EXPECT_THROW(waiting.connect(listener.address(), {.timeout = std::chrono::milliseconds(60'000)}), Error);
    });
    const std::optional<ConnectionRequest> unanswered = listener.next_request(kPatience);
    EXPECT_TRUE(unanswered.has_value());
    lose("net0");
    connecting.join();
}

constexpr auto kLosses = {Loss::fatal, Loss::removed};
std::string name_of(const ::testing::TestParamInfo<Loss>& loss) {
    return loss.param == Loss::fatal ? "Fatal" : "Removed";
}
INSTANTIATE_TEST_SUITE_P(Losses, DeviceLoss, ::testing::ValuesIn(kLosses), name_of);
INSTANTIATE_TEST_SUITE_P(Losses, DeviceLossAsleep, ::testing::ValuesIn(kLosses), name_of);

TEST(DeviceLossToItsPeer, IsAPeerThatDoesNotAnswer) {
    Runtime runtime(two_devices());
    Session session = runtime.open_session();
    MemoryRegion memory = runtime.allocate(4096, Access::all(), "net1");
    QueuePairOptions options;
    options.shares = {{.session = &session}};
    options.device = "net0";
    QueuePair gone = runtime.create_queue_pair(options);
    options.device = "net1";
    QueuePair here = runtime.create_queue_pair(options);
    here.connect(gone.info(), {.timeout = 8, .retry_count = 2});
    gone.connect(here.info(), {.timeout = 8, .retry_count = 2});
    dynamic_cast<SoftDevice&>(runtime.device("net0")).fail();
    ASSERT_EQ(session.try_submit({.tag = 1,
                                  .sge = {memory.addr(), 8, memory.lkey()},
                                  .qp = here.handle(),
                                  .opcode = Opcode::send,
                                  .flags = kSignaled,
                                  .num_sge = 1}),
              Refusal::none);
    Completion completion;
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (session.poll({&completion, 1}) == 0 && std::chrono::steady_clock::now() < deadline) {
        test::give_way();
    }
    EXPECT_EQ(completion.tag, 1u);
    EXPECT_EQ(completion.status, Status::retry_exc_err);
}

TEST(UntakenEvents, AreKeptUpToALimitAndThenCounted) {
    Runtime runtime(test_config());
    auto& soft = dynamic_cast<SoftDevice&>(runtime.device("net0"));
    constexpr std::uint64_t kFlaps = kEventsMax / 2 + 100;
    for (std::uint64_t i = 0; i < kFlaps; ++i) {
        soft.set_port_up(false);
        soft.set_port_up(true);
    }
    const ControlCounters& counters = runtime.control_counters();
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (counters.async_events_acknowledged.value() < 2 * kFlaps && std::chrono::steady_clock::now() < deadline) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    (void)runtime.report();
    EXPECT_EQ(counters.async_events_by_type[static_cast<std::size_t>(EventType::port_err)].value(), kFlaps);
    EXPECT_EQ(counters.async_events_by_type[static_cast<std::size_t>(EventType::port_active)].value(), kFlaps);
    EXPECT_TRUE(runtime.stop());
    EXPECT_EQ(counters.events_lost.value(), 2 * kFlaps - kEventsMax);
    std::uint64_t taken = 0;
    std::uint64_t gap = 0;
    EXPECT_THROW(
        for (;;) {
            const std::optional<Event> event = runtime.poll_event();
            ASSERT_TRUE(event.has_value());
            ASSERT_EQ(event->type, taken % 2 == 0 ? EventType::port_err : EventType::port_active) << "the oldest stay";
            gap += event->lost_after;
            ++taken;
        },
        Error);
    EXPECT_EQ(taken, kEventsMax);
    EXPECT_EQ(gap, counters.events_lost.value());
}

}  // namespace
}  // namespace pollcore::testing
