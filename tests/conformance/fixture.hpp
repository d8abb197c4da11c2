// The base of nearly every conformance test: a runtime on the device under test, a session, and two QPs to connect.
//
// The environment names the device, so that the same binary runs on each device:
//   POLLCORE_TEST_DEVICE=soft            the software device (default); soft:rxe, soft:mlx5: with the provider's habits
//   POLLCORE_TEST_DEVICE=verbs:rxe0      a verbs device; POLLCORE_TEST_ADDRESS is an address of its port
//   POLLCORE_TEST_DEVICE=verbs:mlx5_0    a device of libmlx5: a NIC, or the model of tests/mlx5_model
//   POLLCORE_TEST_ATTACH=yes             the tests attach to a pollcored; own: with a context of their own
//   POLLCORE_TEST_POLL=plain             CQs are polled by ibv_poll_cq; extended (default): by ibv_start_poll
//   POLLCORE_TEST_SLEEP=yes              an idle worker sleeps until a completion event comes
// Where a device's answer differs from the specification's answer, expected() names both. The table in
// tests/conformance/README.md lists these tests.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>

#include "exercised.hpp"
#include "give_way.hpp"
#include "pollcore/runtime.hpp"
#include "test_cpus.hpp"
#include "test_runtime.hpp"

namespace pollcore {

inline void PrintTo(Status status, std::ostream* out) {
    *out << status_name(status);
}
inline void PrintTo(Refusal refusal, std::ostream* out) {
    *out << refusal_name(refusal);
}

namespace testing {

struct TestDevice {
    /// The providers whose deviations expected() knows. Any other provider is expected to follow the specification.
    enum class Provider { soft, rxe, mlx5, other };

    bool verbs = false;
    Provider provider = Provider::soft;
    DeviceConfig::Profile profile = DeviceConfig::Profile::standard;  // only for the software device
    std::string verbs_name;
    std::string address;  // only for a verbs device: an address of the device's port
    PollVerbs poll = PollVerbs::extended;

    static const TestDevice& get() {
        static const TestDevice device = [] {
            TestDevice d;
            const char* name = std::getenv("POLLCORE_TEST_DEVICE");
            const std::string text = name != nullptr ? name : "soft";
            if (text.starts_with("verbs:")) {
                d.verbs = true;
                d.verbs_name = text.substr(6);
                const char* address = std::getenv("POLLCORE_TEST_ADDRESS");
                if (address == nullptr) {
                    ADD_FAILURE() << "POLLCORE_TEST_ADDRESS is not set";
                    std::exit(2);
                }
                d.address = address;
                d.provider = provider_of(d.verbs_name);
            } else if (text == "soft:rxe") {
                d.profile = DeviceConfig::Profile::rxe;
            } else if (text == "soft:mlx5") {
                d.profile = DeviceConfig::Profile::mlx5;
            } else if (text != "soft") {
                ADD_FAILURE() << "POLLCORE_TEST_DEVICE=" << text;
                std::exit(2);
            }
            const char* poll = std::getenv("POLLCORE_TEST_POLL");
            const std::string way = poll != nullptr ? poll : "extended";
            if (way != "extended" && way != "plain") {
                ADD_FAILURE() << "POLLCORE_TEST_POLL=" << way;
                std::exit(2);
            }
            d.poll = way == "plain" ? PollVerbs::plain : PollVerbs::extended;
            return d;
        }();
        return device;
    }
    [[nodiscard]] bool is_rxe() const { return provider == Provider::rxe; }

private:
    static Provider provider_of(const std::string& name) {
        int count = 0;
        ibv_device** devices = ibv_get_device_list(&count);
        Provider found = Provider::other;
        for (int i = 0; i < count; ++i) {
            if (name != ibv_get_device_name(devices[i])) {
                continue;
            }
            // Only a device of the kernel's Soft-RoCE has this file, which names its network interface.
            const bool rxe = std::filesystem::exists(std::filesystem::path(devices[i]->ibdev_path) / "parent");
            found = rxe ? Provider::rxe : mlx5dv_is_supported(devices[i]) ? Provider::mlx5 : Provider::other;
        }
        if (devices != nullptr) {
            ibv_free_device_list(devices);
        }
        return found;
    }
};

inline Config test_config(std::uint32_t workers = 1) {
    Config config;
    config.share_cores = true;  // other tests may run on these cores at the same time
    DeviceConfig device;
    device.name = "net0";
    device.profile = TestDevice::get().profile;
    if (TestDevice::get().verbs) {
        device.kind = DeviceConfig::Kind::verbs;
        device.verbs_name = TestDevice::get().verbs_name;
    }
    config.devices.push_back(device);
    for (std::uint32_t i = 0; i < workers; ++i) {
        WorkerConfig worker;
        worker.name = "w" + std::to_string(i);
        worker.core = test::last_cpu() - i;
        // A worker that spins would be wrong here, because the machine may have fewer cores than threads.
        worker.idle = std::getenv("POLLCORE_TEST_SLEEP") != nullptr ? IdlePolicy::event : IdlePolicy::yield;
        worker.cq_depth = 1024;
        worker.poll = TestDevice::get().poll;
        config.workers.push_back(worker);
    }
    config.qps_max = 256;
    config.log_level = LogLevel::error;
    return config;
}

/// Overrides the idle policy of the suite's run, because a worker that sleeps cannot serve write rings.
inline Config config_for_rings() {
    Config config = test_config();
    for (WorkerConfig& worker : config.workers) {
        worker.idle = IdlePolicy::yield;
    }
    return config;
}

inline std::vector<std::byte> bytes(const std::string& text) {
    const auto* data = reinterpret_cast<const std::byte*>(text.data());
    return {data, data + text.size()};
}

class Conformance : public ::testing::Test {
protected:
    static constexpr std::size_t kBytes = 64 * 1024;
    // The limit is generous, because the guest of scripts/rxe-vm is slow. It only ends a test that hangs.
    static constexpr std::chrono::seconds kPatience{120};

    explicit Conformance(const Config& config = test_config(), std::unique_ptr<Platform> platform = nullptr)
        : runtime((Exercised::get().begin(), config), std::move(platform)),
          session(runtime.open_session()),
          local(runtime.allocate(kBytes, Access::all())),
          remote(runtime.allocate(kBytes, Access::all())) {
        fill(local, 1);
        fill(remote, 2);
    }
    ~Conformance() override { Exercised::get().end(); }

    static void fill(MemoryRegion& memory, unsigned seed) {
        for (std::size_t i = 0; i < memory.size(); ++i) {
            memory.data()[i] = static_cast<std::byte>(i * 31 + (i >> 8) + seed);
        }
    }

    [[nodiscard]] QueuePairOptions shape() {
        QueuePairOptions options;
        options.shares = {{.session = &session, .send_depth = 64}};
        options.recv_depth = 64;
        options.sges_max = 4;
        options.inline_max = 64;
        options.remote_access = RemoteAccess::all();
        return options;
    }
    /// The shape of a queue pair that gives its peer only the access that flow control needs.
    [[nodiscard]] QueuePairOptions shape(FlowControl flow) {
        QueuePairOptions options = shape();
        options.remote_access = {};
        options.flow = flow;
        return options;
    }
    /// Connects two QPs of the device by exchanged information (QpInfo).
    void connect_pair() { connect_pair(shape(), PathAttributes{}); }
    void connect_pair(const QueuePairOptions& options, const PathAttributes& path) {
        a = runtime.create_queue_pair(options);
        b = runtime.create_queue_pair(options);
        const QpInfo info_a = a.info();
        const QpInfo info_b = b.info();
        a.connect(info_b, path);
        b.connect(info_a, path);
        Exercised::get().note("connections", "by exchanged information");
    }
    [[nodiscard]] std::string listen_address() const {
        return TestDevice::get().verbs ? TestDevice::get().address + ":0" : "conformance";
    }

    [[nodiscard]] Sge local_sge(std::uint32_t length, std::size_t at = 0) const {
        return {local.addr() + at, length, local.lkey()};
    }
    [[nodiscard]] Sge remote_sge(std::uint32_t length, std::size_t at = 0) const {
        return {remote.addr() + at, length, remote.lkey()};
    }
    /// A request on QP a that moves data between `local` and `remote` without the peer's CPU.
    [[nodiscard]] WorkRequest rdma(Opcode opcode, std::uint64_t tag, std::uint32_t length,
                                   std::uint8_t flags = kSignaled) const {
        return {.tag = tag,
                .sge = local_sge(length),
                .remote_addr = remote.addr(),
                .rkey = remote.rkey(),
                .qp = a.handle(),
                .opcode = opcode,
                .flags = flags,
                .num_sge = 1};
    }
    [[nodiscard]] WorkRequest send(std::uint64_t tag, std::uint32_t length, std::uint8_t flags = kSignaled) const {
        return {.tag = tag,
                .sge = local_sge(length),
                .qp = a.handle(),
                .opcode = Opcode::send,
                .flags = flags,
                .num_sge = 1};
    }
    [[nodiscard]] WorkRequest recv(std::uint64_t tag, std::uint32_t length, std::size_t at = 0) const {
        return {.tag = tag, .sge = remote_sge(length, at), .qp = b.handle(), .opcode = Opcode::recv, .num_sge = 1};
    }

    void submit(Session& to, const WorkRequest& request) {
        ASSERT_EQ(to.try_submit(request), Refusal::none);
        Exercised::get().submitted(request);
    }
    void submit(const WorkRequest& request) { submit(session, request); }
    /// Submits all requests at once. The worker sees them together, so none is refused because an earlier one has
    /// failed already.
    void submit(std::initializer_list<WorkRequest> requests) { submit(std::span(requests.begin(), requests.size())); }
    void submit(std::span<const WorkRequest> requests) {
        ASSERT_EQ(session.try_submit(requests).accepted, requests.size());
        for (const WorkRequest& request : requests) {
            Exercised::get().submitted(request);
        }
    }

    /// Polls until `n` completions have come. If they do not come within kPatience, the test fails and the result is
    /// shorter.
    std::vector<Completion> await(std::size_t n) { return await(session, n); }
    std::vector<Completion> await(Session& from, std::size_t n) {
        std::vector<Completion> all;
        const auto deadline = std::chrono::steady_clock::now() + kPatience;
        Completion some[32];
        while (all.size() < n) {
            const std::size_t got = from.poll({some, std::min<std::size_t>(32, n - all.size())});
            all.insert(all.end(), some, some + got);
            std::for_each(some, some + got, [](const Completion& c) { Exercised::get().completed(c); });
            if (got == 0) {
                if (std::chrono::steady_clock::now() > deadline) {
                    const SessionFigures figures = from.figures();
                    ADD_FAILURE() << all.size() << " of " << n << " completions came within " << kPatience.count()
                                  << " s; accepted " << figures.accepted << ", completed " << figures.completed
                                  << ", retired " << figures.retired;
                    break;
                }
                test::give_way();
            }
        }
        return all;
    }
    /// Like await(), but takes wide completions, and notes nothing in Exercised.
    static std::vector<WideCompletion> await_wide(Session& from, std::size_t n) {
        std::vector<WideCompletion> all;
        const auto deadline = std::chrono::steady_clock::now() + kPatience;
        WideCompletion one;
        while (all.size() < n) {
            if (from.poll({&one, 1}) == 1) {
                all.push_back(one);
            } else if (std::chrono::steady_clock::now() > deadline) {
                ADD_FAILURE() << all.size() << " of " << n << " completions came";
                break;
            } else {
                test::give_way();
            }
        }
        return all;
    }
    /// Gives a connection attempt so much time that only a hang reaches the limit.
    [[nodiscard]] static ConnectOptions patient(ConnectOptions options = {}) {
        options.timeout = kPatience;
        return options;
    }
    /// Waits until `done()` is true. Fails if that takes longer than kPatience.
    template <class Done>
    static void until(Done done) {
        const auto deadline = std::chrono::steady_clock::now() + kPatience;
        while (!done()) {
            ASSERT_LT(std::chrono::steady_clock::now(), deadline);
            test::give_way();
        }
    }
    Completion await_one() {
        const std::vector<Completion> all = await(1);
        return all.empty() ? Completion{} : all.front();
    }
    /// Returns the first event of this type and drops all events before it; nullopt if no such event comes in time.
    std::optional<Event> await_event(EventType type, std::chrono::milliseconds patience = kPatience) {
        const auto deadline = std::chrono::steady_clock::now() + patience;
        while (std::chrono::steady_clock::now() < deadline) {
            std::optional<Event> event = runtime.next_event(std::chrono::milliseconds(10));
            if (event && event->type == type) {
                return event;
            }
        }
        return std::nullopt;
    }
    /// Checks that every event that was taken from a device was acknowledged (I9).
    void expect_acknowledged() {
        until([&] {
            const ControlCounters& counters = runtime.control_counters();
            std::uint64_t by_type = 0;
            for (const Counter& counter : counters.async_events_by_type) {
                by_type += counter.value();
            }
            // The control thread may be in the middle of an event.
            return counters.async_events.value() == by_type &&
                   counters.async_events.value() == counters.async_events_acknowledged.value();
        });
    }
    /// The completions in `all` that belong to one queue, in order of arrival.
    static std::vector<Completion> of(const std::vector<Completion>& all, QpHandle qp, bool recv) {
        std::vector<Completion> some;
        for (const Completion& completion : all) {
            if (completion.qp == qp && completion.from_recv_queue() == recv) {
                some.push_back(completion);
            }
        }
        return some;
    }
    /// The value that this device must return: `rxe` on Soft-RoCE, and otherwise the specification's value, which
    /// libmlx5 follows here.
    template <class Value>
    static Value expected(Value specification, Value rxe) {
        return expected(specification, rxe, specification);
    }
    template <class Value>
    static Value expected(Value specification, Value rxe, Value mlx5) {
        switch (TestDevice::get().provider) {
            case TestDevice::Provider::rxe: return rxe;
            case TestDevice::Provider::mlx5: return mlx5;
            default: return specification;
        }
    }

    TestRuntime runtime;
    TestSession session;
    MemoryRegion local;
    MemoryRegion remote;
    QueuePair a;
    QueuePair b;
};

}  // namespace testing
}  // namespace pollcore
