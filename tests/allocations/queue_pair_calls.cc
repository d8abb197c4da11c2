// Connected queue pairs, from creation to their end.
#include <array>

#include "calls.hpp"

namespace pollcore::testing {
namespace {

/// Makes a queue pair. Then makes another one with the same options, and exchanges messages between the two.
class CreateQueuePair : public Call {
public:
    using Change = void (*)(QueuePairOptions& options);
    explicit CreateQueuePair(Change change = [](QueuePairOptions&) {}) : change_(change) {}
    void make(World& world) override { made_ = world.runtime.create_queue_pair(options(world)); }
    void use(World& world) override {
        // The device numbers queue pairs upwards, so this number shows that the failed call has created none on the
        // device. Such a queue pair would have to be destroyed, which touches CQs that the worker polls.
        EXPECT_EQ(made_.qp_num(), world.b.qp_num() + 1);
        QueuePair other = world.runtime.create_queue_pair(options(world));
        World::connect(made_, other);
        world.exchange(world.second, made_, other);
        made_.close();
    }

protected:
    [[nodiscard]] virtual QueuePairOptions options(World& world) {
        QueuePairOptions options = world.shape();
        change_(options);
        return options;
    }

private:
    const Change change_;
    QueuePair made_;
};

void unreliable(QueuePairOptions& options) {
    options.type = QpType::uc;
}
void with_credits(QueuePairOptions& options) {
    options.flow = FlowControl::credits;
}
/// Sets depths that do not fit in the existing CQ, so that the runtime makes another CQ.
void on_new_cqs(QueuePairOptions& options) {
    options.shares[0].send_depth = options.recv_depth = 200;
    options.separate_cqs = true;
}

class CreateWithManyShares : public CreateQueuePair {
public:
    void prepare(World& world) override {
        for (Session& more : more_) {
            more = world.open();
        }
    }

protected:
    [[nodiscard]] QueuePairOptions options(World& world) override {
        QueuePairOptions options = world.shape();
        for (Session& more : more_) {
            options.shares.push_back({.session = &more, .send_depth = World::kDepth});
        }
        return options;
    }

private:
    std::array<Session, 4> more_;
};

/// Makes a queue pair with a shared receive queue, which the application fills.
class CreateWithSrq : public Call {
public:
    explicit CreateWithSrq(bool credits) : credits_(credits) {}
    void prepare(World& world) override { srq_ = world.runtime.create_shared_receive_queue(queue(world)); }
    void make(World& world) override { made_ = world.runtime.create_queue_pair(options(world)); }
    void use(World& world) override {
        QueuePair other = world.runtime.create_queue_pair(options(world));
        World::connect(made_, other);
        // With credits each peer is granted an equal part of the posted receives.
        const std::uint32_t left = credits_ ? World::kDepth : 0;
        const std::uint64_t first = world.next_tag;
        for (std::uint32_t i = 0; i < World::kDepth + left; ++i) {
            WorkRequest receive = world.recv(made_, kReceive);
            receive.opcode = Opcode::srq_recv;
            receive.srq = srq_.handle();
            World::submit(world.second, receive);
        }
        for (std::uint32_t i = 0; i < World::kDepth; ++i) {
            World::submit(world.second, world.send(i % 2 == 0 ? made_ : other, world.next_tag++));
        }
        std::vector<Completion> all = World::await({&world.second}, 2 * World::kDepth);
        EXPECT_EQ(std::erase_if(
                      all, [](const Completion& completion) { return completion.ok() && completion.tag == kReceive; }),
                  World::kDepth);
        World::expect_each_once(all, first, world.next_tag);
        made_.close();
        other.close();
        srq_.close();
        World::await({&world.second}, left);
    }

private:
    static constexpr std::uint64_t kReceive = 1u << 30;
    [[nodiscard]] SharedReceiveQueueOptions queue(World& world) const {
        return {.session = &world.second, .depth = 2 * World::kDepth, .credit_connections = credits_ ? 2u : 0u};
    }
    [[nodiscard]] QueuePairOptions options(World& world) const {
        QueuePairOptions options = world.shape();
        options.srq = &srq_;
        options.flow = credits_ ? FlowControl::credits : FlowControl::off;
        return options;
    }
    const bool credits_;
    SharedReceiveQueue srq_;
    QueuePair made_;
};

/// Calls on a connected pair.
class OnPair : public Call {
public:
    void prepare(World& world) override {
        one_ = world.runtime.create_queue_pair(options(world));
        other_ = world.runtime.create_queue_pair(options(world));
        World::connect(one_, other_);
    }

protected:
    [[nodiscard]] virtual QueuePairOptions options(World& world) { return world.shape(); }
    QueuePair one_, other_;
};

class Connect : public Call {
public:
    explicit Connect(FlowControl flow) : flow_(flow) {}
    void prepare(World& world) override { make_ends(world); }
    void make(World&) override { one_.connect(other_.info()); }
    void use(World& world) override {
        other_.connect(one_.info());
        world.exchange(world.second, one_, other_);
        one_.close();
    }

protected:
    void make_ends(World& world) {
        QueuePairOptions options = world.shape();
        options.flow = flow_;
        one_ = world.runtime.create_queue_pair(options);
        other_ = world.runtime.create_queue_pair(options);
    }

private:
    const FlowControl flow_;
    QueuePair one_, other_;
};

class Info : public OnPair {
public:
    void make(World& world) override {
        info_ = one_.info();
        (void)one_.qp_num();
        (void)one_.disconnected();
        (void)one_.rnr_counts();
        (void)world.runtime.rnr_counts();
        (void)world.runtime.report();
        (void)world.runtime.health();
        (void)world.runtime.control_counters();
        (void)world.runtime.worker_counters(0);
        (void)world.runtime.poll_event();
    }
    void use(World&) override { EXPECT_EQ(info_.qp_num, one_.qp_num()); }

private:
    QpInfo info_;
};

class CloseQueuePair : public OnPair {
public:
    void prepare(World& world) override {
        OnPair::prepare(world);
        for (int i = 0; i < 4; ++i) {
            World::submit(world.second, world.recv(one_, world.next_tag++));
        }
    }
    void make(World&) override { drained_ = one_.close(); }
    void use(World& world) override {
        EXPECT_TRUE(drained_);
        World::await({&world.second}, 4);  // the flushed requests
        other_.close();
    }

private:
    bool drained_ = false;
};

class CloseWithSrq : public CloseQueuePair {
public:
    void prepare(World& world) override {
        srq_ = world.runtime.create_shared_receive_queue({.session = &world.second, .depth = World::kDepth});
        OnPair::prepare(world);
        for (int i = 0; i < 4; ++i) {
            WorkRequest receive = world.recv(one_, world.next_tag++);
            receive.opcode = Opcode::srq_recv;
            receive.srq = srq_.handle();
            World::submit(world.second, receive);
        }
    }
    void use(World& world) override {
        other_.close();
        srq_.close();
        World::await({&world.second}, 4);
    }

protected:
    [[nodiscard]] QueuePairOptions options(World& world) override {
        QueuePairOptions options = world.shape();
        options.srq = &srq_;
        return options;
    }

private:
    SharedReceiveQueue srq_;
};

/// Closes a queue pair by its destructor, which reports no error.
class DestroyQueuePair : public CloseQueuePair {
public:
    void make(World&) override { QueuePair ends = std::move(one_); }
    void use(World& world) override {
        World::await({&world.second}, 4);
        other_.close();
    }
};

class Reset : public OnPair {
public:
    void make(World&) override { (void)one_.reset(); }
    void use(World& world) override {
        other_.reset();
        World::connect(one_, other_);
        world.exchange(world.second, one_, other_);
        one_.close();
        other_.close();
    }
};

class ResetWithCredits : public Reset {
protected:
    [[nodiscard]] QueuePairOptions options(World& world) override {
        QueuePairOptions options = world.shape();
        options.flow = FlowControl::credits;
        return options;
    }
};

class Disconnect : public OnPair {
public:
    void make(World&) override { one_.disconnect(); }
    void use(World&) override {
        EXPECT_TRUE(one_.disconnected());
        one_.close();
        other_.close();
    }
};

}  // namespace

std::vector<NamedCall> queue_pair_calls() {
    return {
        {"CreateRc", make_call<CreateQueuePair>},
        {"CreateUc", make_call<CreateQueuePair, unreliable>},
        {"CreateOnNewCqs", make_call<CreateQueuePair, on_new_cqs>},
        {"CreateWithCredits", make_call<CreateQueuePair, with_credits>},
        {"CreateWithManyShares", make_call<CreateWithManyShares>},
        {"CreateWithSrq", make_call<CreateWithSrq, false>},
        {"CreateWithSrqAndCredits", make_call<CreateWithSrq, true>},
        {"Connect", make_call<Connect, FlowControl::off>},
        {"ConnectWithCredits", make_call<Connect, FlowControl::credits>},
        {"Info", make_call<Info>},
        {"CloseQueuePair", make_call<CloseQueuePair>},
        {"CloseQueuePairOfSrq", make_call<CloseWithSrq>},
        {"DestroyQueuePair", make_call<DestroyQueuePair>},
        {"Reset", make_call<Reset>},
        {"ResetWithCredits", make_call<ResetWithCredits>},
        {"Disconnect", make_call<Disconnect>},
    };
}

}  // namespace pollcore::testing
