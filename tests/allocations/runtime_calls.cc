// Sessions, whole runtimes, and asynchronous events of devices.
#include <optional>
#include <string>
#include <utility>

#include "base/log.hpp"
#include "calls.hpp"
#include "device/soft/soft_device.hpp"
#include "give_way.hpp"

namespace pollcore::testing {
namespace {

class OpenSession : public Call {
public:
    explicit OpenSession(SessionOptions options) : options_(std::move(options)) {}
    void make(World& world) override { opened_ = world.runtime.open_session(options_); }
    void use(World& world) override {
        QueuePair one = world.runtime.create_queue_pair(World::shape(opened_));
        QueuePair other = world.runtime.create_queue_pair(World::shape(opened_));
        World::connect(one, other);
        if (!options_.wide_completions) {
            world.exchange(opened_, one, other);
        }
        opened_.close();
    }

private:
    SessionOptions options_;
    Session opened_;
};

class CloseSession : public Call {
public:
    void prepare(World& world) override {
        closing_ = world.open();
        one_ = world.runtime.create_queue_pair(World::shape(closing_));
        other_ = world.runtime.create_queue_pair(World::shape(closing_));
        World::connect(one_, other_);
        srq_ = world.runtime.create_shared_receive_queue({.session = &closing_, .depth = World::kDepth});
        pool_ = world.runtime.create_receive_pool({.session = &closing_, .buffers = 16, .buffer_bytes = 128});
        QueuePairOptions pooled = World::shape(closing_);
        pooled.pool = &pool_;
        third_ = world.runtime.create_queue_pair(pooled);
        World::submit(closing_, world.recv(one_, 1));
        World::submit(closing_, world.recv(other_, 2));
    }
    void make(World&) override { closing_.close(); }
    void use(World&) override {
        World::await({&closing_}, 2);
        EXPECT_FALSE(closing_.valid() && closing_.state(one_.handle()) == QpState::ready);
        third_.close();
        pool_.close();
        srq_.close();
    }

private:
    Session closing_;
    QueuePair one_, other_, third_;
    SharedReceiveQueue srq_;
    ReceivePool pool_;
};

// ---- Runtimes ----

/// Starts a runtime beside the existing one.
class Start : public Call {
public:
    void make(World&) override {
        Config config = world_config(false);
        config.workers[0].name = "another_worker_by_a_long_name";
        started_.emplace(config);
    }
    void use(World&) override {
        Session session = started_->open_session();
        EXPECT_TRUE(started_->stop());
    }

private:
    std::optional<OpenRuntime> started_;
};

class Stop : public Call {
public:
    void prepare(World&) override {
        Config config = world_config(false);
        started_.emplace(config);
        session_ = started_->open_session();
        srq_ = started_->create_shared_receive_queue({.session = &session_, .depth = 16});
        one_ = started_->create_queue_pair(World::shape(session_));
        other_ = started_->create_queue_pair(World::shape(session_));
        World::connect(one_, other_);
        memory_ = started_->allocate(4096, Access::all());
        listener_ = started_->listen("somebody");
        World::submit(session_, {.tag = 1,
                                 .sge = {memory_.addr(), 64, memory_.lkey()},
                                 .qp = one_.handle(),
                                 .opcode = Opcode::recv,
                                 .num_sge = 1});
    }
    void make(World&) override { stopped_ = started_->stop(); }
    void use(World&) override {
        EXPECT_TRUE(stopped_);
        World::await({&session_}, 1);
    }

private:
    std::optional<OpenRuntime> started_;
    Session session_;
    SharedReceiveQueue srq_;
    QueuePair one_, other_;
    MemoryRegion memory_;
    Listener listener_;
    bool stopped_ = false;
};

// ---- The log ----

class TakeLog : public Call {
public:
    ~TakeLog() override { set_log_function({}); }
    void make(World&) override {
        set_log_function([this, text = std::string(kLine)](const LogLine& line) { taken_ += line.text == text; });
    }
    void use(World&) override {
        log_error("{}", kLine);
        set_log_function({});
        EXPECT_EQ(taken_, 1);
    }

private:
    static constexpr const char* kLine = "a line for a function of the program";

    int taken_ = 0;  // written by the log's thread until the function is taken away
};

// ---- Asynchronous events of devices ----

class TakeEvents : public Call {
public:
    void make(World& world) override {
        auto& device = dynamic_cast<SoftDevice&>(world.runtime.device());
        device.set_port_up(false);
        device.set_port_up(true);
        const ControlCounters& counters = world.runtime.control_counters();
        const auto deadline = std::chrono::steady_clock::now() + kPatience;
        std::uint64_t told = 0;
        while (told + counters.events_lost.value() < 2 && std::chrono::steady_clock::now() < deadline) {
            if (world.runtime.poll_event()) {
                ++told;
            } else {
                test::give_way();
            }
        }
        EXPECT_EQ(counters.async_events_acknowledged.value(), 2u);
        EXPECT_EQ(told + counters.events_lost.value(), 2u);
    }
};

}  // namespace

std::vector<NamedCall> runtime_calls() {
    return {
        {"OpenSession",
         [] {
             return std::unique_ptr<Call>(new OpenSession(
                 {.name = "a session by a long name", .worker = "a_worker_by_a_long_name", .wide_completions = true}));
         }},
        {"OpenSessionWithEvents",
         [] { return std::unique_ptr<Call>(new OpenSession({.pool_buffers = 16, .events = true})); }},
        {"CloseSession", make_call<CloseSession>},
        {"Start", make_call<Start>},
        {"Stop", make_call<Stop>},
        {"TakeLog", make_call<TakeLog>},
        {"TakeEvents", make_call<TakeEvents>, true, Allocating::everyone},
    };
}

}  // namespace pollcore::testing
