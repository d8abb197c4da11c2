// Shared receive queues, receive pools and write rings, and queue pairs that take from them.
#include "calls.hpp"
#include "give_way.hpp"

namespace pollcore::testing {
namespace {

/// Sends messages that arrive in a receive pool or a write ring.
void expect_pooled(World& world, const QueuePair& from, const QueuePair& to, std::uint32_t messages) {
    const std::uint64_t first = world.next_tag;
    for (std::uint32_t i = 0; i < messages; ++i) {
        World::submit(world.second, world.send(from, world.next_tag++));
    }
    std::uint32_t received = 0;
    std::uint32_t sent = 0;
    for (const Completion& completion : World::await({&world.second}, std::size_t{2} * messages)) {
        EXPECT_TRUE(completion.ok()) << status_name(completion.status);
        if (completion.pooled()) {
            EXPECT_EQ(completion.qp, to.handle());
            ++received;
            EXPECT_EQ(world.second.release(completion), Refusal::none);
        } else {
            EXPECT_EQ(completion.tag, first + sent);
            ++sent;
        }
    }
    EXPECT_EQ(received, messages);
    EXPECT_EQ(sent, messages);
}

class CreateWithPool : public Call {
public:
    explicit CreateWithPool(FlowControl flow) : flow_(flow) {}
    void prepare(World& world) override {
        pool_ = world.runtime.create_receive_pool({.session = &world.second, .buffers = 16, .buffer_bytes = 128});
        long_ = world.runtime.create_receive_pool({.session = &world.second, .buffers = 4, .buffer_bytes = 1024});
    }
    void make(World& world) override {
        QueuePairOptions options = world.shape();
        options.pool = &pool_;
        options.flow = flow_;
        if (flow_ == FlowControl::credits) {
            options.rendezvous_pool = &long_;
        }
        made_ = world.runtime.create_queue_pair(options);
    }
    void use(World& world) override {
        QueuePairOptions options = world.shape();
        options.flow = flow_;
        QueuePair from = world.runtime.create_queue_pair(options);
        World::connect(made_, from);
        if (flow_ == FlowControl::credits) {
            expect_pooled(world, from, made_, 4);
        }
        made_.close();
        from.close();
        pool_.close();
        long_.close();
    }

private:
    const FlowControl flow_;
    ReceivePool pool_, long_;
    QueuePair made_;
};

class CreateWithRing : public Call {
public:
    void prepare(World& world) override {
        ring_ = world.runtime.create_write_ring({.session = &world.second, .bytes = 4096, .messages = 16});
    }
    void make(World& world) override {
        QueuePairOptions options = world.shape();
        options.flow = FlowControl::ring;
        options.pool = &ring_;
        made_ = world.runtime.create_queue_pair(options);
    }
    void use(World& world) override {
        QueuePairOptions options = world.shape();
        options.flow = FlowControl::ring;
        QueuePair from = world.runtime.create_queue_pair(options);
        World::connect(made_, from);
        expect_pooled(world, from, made_, 4);
        from.close();
        made_.close();
        Completion end;  // a pooled completion that may remain when the ring ends
        while (world.second.poll({&end, 1}) == 1) {
            EXPECT_TRUE(end.pooled());
            EXPECT_EQ(world.second.release(end), Refusal::none);
        }
        ring_.close();
    }

private:
    ReceivePool ring_;
    QueuePair made_;
};

class CreateSrq : public Call {
public:
    explicit CreateSrq(bool pooled) : pooled_(pooled) {}
    void prepare(World& world) override {
        pool_ = world.runtime.create_receive_pool({.session = &world.second, .buffers = 32, .buffer_bytes = 128});
    }
    void make(World& world) override {
        srq_ = world.runtime.create_shared_receive_queue({.session = &world.second,
                                                          .depth = 16,
                                                          .sges_max = 2,
                                                          .pool = pooled_ ? &pool_ : nullptr,
                                                          .credit_connections = 2});
    }
    void use(World& world) override {
        QueuePairOptions options = world.shape();
        options.srq = &srq_;
        options.flow = FlowControl::credits;
        QueuePair to = world.runtime.create_queue_pair(options);
        options.srq = nullptr;
        QueuePair from = world.runtime.create_queue_pair(options);
        World::connect(from, to);
        if (pooled_) {
            expect_pooled(world, from, to, 4);
        }
        to.close();
        from.close();
        srq_.close();
        pool_.close();
    }

private:
    const bool pooled_;
    ReceivePool pool_;
    SharedReceiveQueue srq_;
};

class CloseSrq : public Call {
public:
    void prepare(World& world) override {
        srq_ = world.runtime.create_shared_receive_queue({.session = &world.second, .depth = 16});
        WorkRequest receive = world.recv(world.a, 1);
        receive.opcode = Opcode::srq_recv;
        receive.srq = srq_.handle();
        World::submit(world.second, receive);
    }
    void make(World&) override { srq_.close(); }
    void use(World& world) override { EXPECT_EQ(World::await({&world.second}, 1).front().status, Status::srq_closed); }

private:
    SharedReceiveQueue srq_;
};

class ArmLimit : public Call {
public:
    void prepare(World& world) override {
        srq_ = world.runtime.create_shared_receive_queue({.session = &world.second, .depth = 16});
        const Counter& receives = world.runtime.worker_counters(0).receives;
        const std::uint64_t posted = receives.value() + 16;
        for (int i = 0; i < 16; ++i) {
            WorkRequest receive = world.recv(world.a, 1);
            receive.opcode = Opcode::srq_recv;
            receive.srq = srq_.handle();
            World::submit(world.second, receive);
        }
        const auto deadline = std::chrono::steady_clock::now() + kPatience;
        while (receives.value() < posted && std::chrono::steady_clock::now() < deadline) {
            test::give_way();
        }
        world.expect_traffic();  // now the worker has told the device of the receives
    }
    void make(World&) override {
        srq_.arm_limit(4);
        (void)srq_.limit();
    }
    void use(World& world) override {
        EXPECT_EQ(srq_.limit(), 4u);
        srq_.close();
        World::await({&world.second}, 16);
    }

private:
    SharedReceiveQueue srq_;
};

class CreatePool : public Call {
public:
    void make(World& world) override {
        pool_ = world.runtime.create_receive_pool({.session = &world.second, .buffers = 16, .buffer_bytes = 128});
    }
    void use(World& world) override {
        QueuePairOptions options = world.shape();
        options.pool = &pool_;
        QueuePair to = world.runtime.create_queue_pair(options);
        QueuePair from = world.runtime.create_queue_pair(world.shape());
        World::connect(from, to);
        expect_pooled(world, from, to, 4);
        (void)pool_.held();
        to.close();
        pool_.close();
    }

protected:
    ReceivePool pool_;
};

class ClosePool : public CreatePool {
public:
    void prepare(World& world) override {
        CreatePool::make(world);
        QueuePairOptions options = world.shape();
        options.pool = &pool_;
        QueuePair to = world.runtime.create_queue_pair(options);
        QueuePair from = world.runtime.create_queue_pair(world.shape());
        World::connect(from, to);
        World::submit(world.second, world.send(from, 1));
        for (const Completion& completion : World::await({&world.second}, 2)) {
            if (completion.pooled()) {
                held_ = completion;
            }
        }
        to.close();
    }
    void make(World&) override {
        (void)pool_.held();
        pool_.close();
    }
    void use(World& world) override {  // shows that the pool's places in the session's ring are free again
        for (int i = 0; i < 3; ++i) {
            ReceivePool again =
                world.runtime.create_receive_pool({.session = &world.second, .buffers = 60, .buffer_bytes = 64});
        }
    }

private:
    Completion held_;
};

class CreateRing : public CreateWithRing {
public:
    void prepare(World&) override {}
    void make(World& world) override { CreateWithRing::prepare(world); }
    void use(World& world) override {
        CreateWithRing::make(world);
        CreateWithRing::use(world);
    }
};

}  // namespace

std::vector<NamedCall> receive_calls() {
    return {
        {"CreateWithPool", make_call<CreateWithPool, FlowControl::off>},
        {"CreateWithPoolsAndCredits", make_call<CreateWithPool, FlowControl::credits>},
        {"CreateWithRing", make_call<CreateWithRing>, false},
        {"CreateSrq", make_call<CreateSrq, false>},
        {"CreateSrqWithPool", make_call<CreateSrq, true>},
        {"CloseSrq", make_call<CloseSrq>},
        {"ArmLimit", make_call<ArmLimit>},
        {"CreatePool", make_call<CreatePool>},
        {"ClosePool", make_call<ClosePool>},
        {"CreateRing", make_call<CreateRing>, false},
    };
}

}  // namespace pollcore::testing
