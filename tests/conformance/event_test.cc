// Asynchronous events as the application receives them, also those of a port that goes down and comes up again.
#include <poll.h>

#include <array>
#include <cstdlib>
#include <optional>

#include "device/device.hpp"
#include "device/soft/soft_device.hpp"
#include "fixture.hpp"
#include "mlx5_model.hpp"

namespace pollcore::testing {
namespace {

class Events : public Conformance {
protected:
    /// Expects the event for queue pair b, the responder, as the specification says. Soft-RoCE never raises this event:
    /// there the responder learns of the error only from its flushed receive.
    void expect_event_at_b(EventType type, Status cause) {
        const bool raised = expected(true, false);
        const std::optional<Event> event =
            await_event(type, raised ? std::chrono::milliseconds(kPatience) : std::chrono::milliseconds(300));
        ASSERT_EQ(event.has_value(), raised);
        EXPECT_EQ(runtime.control_counters().async_events_by_type[static_cast<std::size_t>(type)].value(), raised);
        if (raised) {
            EXPECT_EQ(event->qp, b.handle());
            EXPECT_EQ(event->device, "net0");
            EXPECT_EQ(event->lost_after, 0u);
            Exercised::get().note("events", std::string(event_type_name(type)));
        }
        EXPECT_EQ(session.state(b.handle()), QpState::error) << "what follows is done before the event is told";
        EXPECT_EQ(session.cause(b.handle()), expected(cause, Status::wr_flush_err));
        expect_acknowledged();
        EXPECT_TRUE(b.close()) << "nothing holds up the end of a queue pair that had an event";
        EXPECT_TRUE(a.close());
    }
};

TEST_F(Events, NoneComeWhileNothingHappens) {
    connect_pair();
    submit(rdma(Opcode::rdma_write, 1, 64));
    EXPECT_EQ(await_one().status, Status::success);
    pollfd waiting{.fd = runtime.event_fd(), .events = POLLIN, .revents = 0};
    while (runtime.poll_event()) {
    }  // takes the events of the device's start
    EXPECT_EQ(poll(&waiting, 1, 0), 0);
    EXPECT_FALSE(runtime.next_event(std::chrono::milliseconds(20)).has_value());
    EXPECT_EQ(runtime.control_counters().events_lost.value(), 0u);
}

TEST_F(Events, AnAccessThatIsForbiddenIsToldToItsTarget) {
    connect_pair();
    submit(recv(1, 64));
    WorkRequest bad = rdma(Opcode::rdma_write, 2, 8);
    bad.rkey ^= 0xabcd00;
    submit(bad);
    for (const Completion& completion : await(2)) {
        EXPECT_EQ(completion.status, completion.tag == 1 ? Status::wr_flush_err : Status::rem_access_err);
    }
    expect_event_at_b(EventType::qp_access_err, Status::loc_access_err);
}

TEST_F(Events, ARequestThatIsInvalidIsToldToItsTarget) {
    QueuePairOptions options = shape();
    options.remote_access = {.read = true, .write = false, .atomic = true};
    connect_pair(options, PathAttributes{});
    submit(recv(1, 64));
    submit(rdma(Opcode::rdma_write, 2, 8));
    for (const Completion& completion : await(2)) {
        EXPECT_EQ(completion.status, completion.tag == 1 ? Status::wr_flush_err : Status::rem_inv_req_err);
    }
    expect_event_at_b(EventType::qp_req_err, Status::rem_inv_req_err);
}

TEST_F(Events, AStoppedRuntimeGivesWhatIsLeftAndThenSaysSo) {
    EXPECT_TRUE(runtime.stop());
    EXPECT_THROW(while (runtime.poll_event()){}, Error);
    pollfd waiting{.fd = runtime.event_fd(), .events = POLLIN, .revents = 0};
    EXPECT_EQ(poll(&waiting, 1, 0), 1);
}

/// A port that a test may take down without harm to other tests. It is the port of the software device or of the mlx5
/// model. In the guest of scripts/rxe-vm, the test creates a network interface and a Soft-RoCE device on it, and uses
/// that device's port.
class PortUnderTest {
public:
    PortUnderTest() {
        if (!TestDevice::get().is_rxe()) {
            if (TestDevice::get().verbs && !test::Mlx5Model::is_there()) {
                ADD_FAILURE() << "a test takes no port of a NIC down";
            }
            return;
        }
        if (std::getenv("POLLCORE_RXE") == nullptr) {
            ADD_FAILURE() << "taking a port down needs the guest of scripts/rxe-vm";
            return;
        }
        run("ip link add porttest type dummy");
        run("ip link set porttest up");
        run("ip address add 10.78.0.1/24 dev porttest");
        run("rdma link add rxeport type rxe netdev porttest");
        run("timeout 10 sh -c 'until grep -q ACTIVE /sys/class/infiniband/rxeport/ports/1/state; do sleep 0.1; done'");
    }
    ~PortUnderTest() {
        if (TestDevice::get().is_rxe()) {
            run("rdma link delete rxeport");  // this would wait if the device were in use
            run("ip link delete porttest");
        }
    }
    PortUnderTest(const PortUnderTest&) = delete;

    [[nodiscard]] Config config() const {
        Config config = test_config();
        if (TestDevice::get().is_rxe()) {
            config.devices[0].verbs_name = "rxeport";
            config.devices[0].gid = "10.78.0.1";
        }
        return config;
    }
    void set_up(TestRuntime& runtime, bool up) const {
        if (TestDevice::get().is_rxe()) {
            run(up ? "ip link set porttest up" : "ip link set porttest down");
        } else if (test::Mlx5Model::is_there()) {
            test::Mlx5Model::set_port(TestDevice::get().verbs_name.c_str(), up);
        } else {
            dynamic_cast<SoftDevice&>(runtime.device("net0")).set_port_up(up);
        }
    }

private:
    static void run(const char* command) { EXPECT_EQ(std::system(command), 0) << command; }
};

class PortInThisProcess : protected PortUnderTest, public Conformance {
protected:
    PortInThisProcess() : Conformance(config()) {}

    void expect_port_event(EventType type) {
        const std::optional<Event> event = await_event(type);
        ASSERT_TRUE(event.has_value()) << event_type_name(type);
        EXPECT_EQ(event->port, 1);
        EXPECT_EQ(event->device, "net0");
        EXPECT_FALSE(event->qp.valid());
        expect_acknowledged();
        Exercised::get().note("events", std::string(event_type_name(type)));
    }
    void expect_traffic() {
        submit(rdma(Opcode::rdma_write, 50, 64));
        EXPECT_EQ(await_one().status, Status::success);
    }
};

TEST_F(PortInThisProcess, ThatGoesDownIsToldAndWorkEndsByItsTimeOuts) {
    connect_pair(shape(), {.timeout = 12, .retry_count = 2, .rnr_retry = 7, .min_rnr_timer = 12});
    expect_traffic();
    const auto submit_two = [&] {
        // The peer has posted no receive for the send.
        const std::array<WorkRequest, 2> two{send(1, 8), rdma(Opcode::rdma_write, 2, 8, 0)};
        ASSERT_EQ(session.try_submit(two).accepted, 2u);
    };
    // The two requests are in flight when the port goes down, except on Soft-RoCE. There, if the link goes down while a
    // sender waits for its peer's receive, one sender in six hangs: it completes nothing more (kernel 6.1).
    const bool under_way = !TestDevice::get().is_rxe();
    if (under_way) {
        submit_two();
    }
    set_up(runtime, false);
    expect_port_event(EventType::port_err);
    if (!under_way) {
        submit_two();
    }
    WorkRequest receive = recv(4, 64);
    submit(receive);
    (void)session.try_submit(rdma(Opcode::rdma_write, 3, 8));  // this is refused if the QP is in error already
    const std::uint64_t sends = session.figures().in_flight() - 1;
    const auto completions = await(sends);
    ASSERT_EQ(completions.size(), sends);
    EXPECT_EQ(completions[0].tag, 1u);
    EXPECT_EQ(completions[0].status, expected(Status::retry_exc_err, Status::loc_qp_op_err));
    for (std::size_t i = 1; i < completions.size(); ++i) {
        EXPECT_EQ(completions[i].tag, i + 1);
        EXPECT_EQ(completions[i].status, Status::wr_flush_err);
    }
    EXPECT_EQ(session.state(b.handle()), QpState::ready) << "a port that is down does nothing to who waits";
    EXPECT_EQ(session.figures().in_flight(), 1u);

    set_up(runtime, true);
    expect_port_event(EventType::port_active);
    EXPECT_TRUE(a.reset());
    EXPECT_TRUE(b.reset());
    EXPECT_EQ(await_one().tag, 4u);
    const QpInfo info_a = a.info();
    const QpInfo info_b = b.info();
    a.connect(info_b);
    b.connect(info_a);
    expect_traffic();
    EXPECT_EQ(session.figures().in_flight(), 0u);
}

TEST_F(PortInThisProcess, ThatComesBackInTimeLosesNothing) {
    connect_pair(shape(), {.timeout = 14, .retry_count = 6});
    expect_traffic();
    pollfd waiting{.fd = runtime.event_fd(), .events = POLLIN, .revents = 0};
    while (runtime.poll_event()) {
    }
    set_up(runtime, false);
    EXPECT_EQ(poll(&waiting, 1, 10'000), 1) << "the descriptor tells of it";
    expect_port_event(EventType::port_err);
    set_up(runtime, true);
    expect_port_event(EventType::port_active);
    expect_traffic();  // shows that the idle connection has survived
}

}  // namespace
}  // namespace pollcore::testing
