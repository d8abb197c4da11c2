// The fixture for removal tests: a worker with two devices, of which net0 is unplugged. A removed device does not come
// back in its process, so each test unplugs a different device.
#pragma once

#include <string>

#include "device_events.hpp"
#include "give_way.hpp"
#include "mlx5_fixture.hpp"
#include "two_devices.hpp"

namespace pollcore::testing {

/// net0 is the next unused device of the model, net1 is mlx5_0. The two devices reach each other.
struct Unplugged {
    Unplugged() {
        static int taken = 0;
        number = ++taken;
        name = "mlx5_" + std::to_string(number);
        address = "127.0.0." + std::to_string(number + 1);
    }
    [[nodiscard]] Config config(const IdleLadder& idle) const {
        Config config = mlx5_config();
        DeviceConfig other = config.devices[0];
        other.name = "net1";
        config.devices[0].verbs_name = name;
        config.devices.push_back(other);
        config.workers[0].idle = idle;
        return config;
    }
    int number;
    std::string name;
    std::string address;
};

/// A base class, so that `unplugged` exists before the runtime, whose configuration names the unplugged device.
struct WithUnplugged {
    Unplugged unplugged;
};

class Removal : public ::testing::Test, protected WithUnplugged, protected TwoDevices {
protected:
    using Model = test::Mlx5Model;

    explicit Removal(const IdleLadder& idle = test_config().workers[0].idle) : TwoDevices(unplugged.config(idle)) {}

    /// Returns the model's pace that the environment sets for the suite.
    static const char* pace() {
        const char* set = std::getenv("MLX5_MODEL");
        return set != nullptr ? set : "poll";
    }
    void unplug() { Model::remove(unplugged.name.c_str()); }
    void lose() {
        unplug();
        expect_told();
    }
    /// Expects, in either order, the device's event device_fatal, and the event device_removed of the kernel or the
    /// connection manager.
    void expect_told() {
        bool fatal = false;
        bool removed = false;
        while (!fatal || !removed) {
            const std::optional<Event> event = test::next_device_event(runtime, kPatience);
            ASSERT_TRUE(event.has_value());
            ASSERT_TRUE(event->type == EventType::device_fatal || event->type == EventType::device_removed ||
                        event->type == EventType::comm_est || event->type == EventType::qp_last_wqe_reached)
                << event_type_name(event->type);
            EXPECT_EQ(event->device, "net0");
            fatal |= event->type == EventType::device_fatal;
            removed |= event->type == EventType::device_removed;
        }
        EXPECT_EQ(runtime.control_counters().devices_lost.value(), 1u);
    }
    void expect_acknowledged() {
        const ControlCounters& counters = runtime.control_counters();
        EXPECT_EQ(counters.async_events.value(), counters.async_events_acknowledged.value());
    }

    static WorkRequest fetch_and_add(const Pair& pair, std::uint64_t tag, std::uint8_t flags = kSignaled) {
        WorkRequest request = write(pair, tag, flags);
        request.opcode = Opcode::atomic_fetch_and_add;
        request.compare_add = 1;
        return request;
    }

    void submit(const WorkRequest& request) { ASSERT_EQ(session.try_submit(request), Refusal::none); }
    template <class Done>
    static void until(Done done) {
        const auto deadline = std::chrono::steady_clock::now() + kPatience;
        while (!done()) {
            ASSERT_LT(std::chrono::steady_clock::now(), deadline);
            test::give_way();
        }
    }
    static void expect_removed(const std::vector<Completion>& completions) {
        for (const Completion& completion : completions) {
            EXPECT_EQ(completion.status, Status::device_removed) << completion.tag;
            EXPECT_NE(completion.flags & kByRuntime, 0);
        }
    }
    /// Expects that the worker's other device still works, and that the runtime then stops in order.
    void expect_others_go_on() {
        expect_traffic(second);
        expect_traffic(make("net1"));
        EXPECT_EQ(session.figures().in_flight(), 0u);
        EXPECT_TRUE(runtime.stop());
        EXPECT_EQ(runtime.control_counters().cut_short.value(), 0u);
        expect_acknowledged();
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

}  // namespace pollcore::testing
