#include "calls.hpp"

#include <array>
#include <new>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "device/soft/soft_device.hpp"

namespace pollcore::testing {
namespace {

// ---- Sessions ----

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

// ---- Queue pairs ----

/// One is made, and then another like it; messages go between the two.
class CreateQueuePair : public Call {
public:
    void make(World& world) override { made_ = world.runtime.create_queue_pair(options(world)); }
    void use(World& world) override {
        QueuePair other = world.runtime.create_queue_pair(options(world));
        World::connect(made_, other);
        world.exchange(world.second, made_, other);
        made_.close();
    }

protected:
    [[nodiscard]] virtual QueuePairOptions options(World& world) { return world.shape(); }
    QueuePair made_;
};

class CreateUc : public CreateQueuePair {
protected:
    [[nodiscard]] QueuePairOptions options(World& world) override {
        QueuePairOptions options = world.shape();
        options.type = QpType::uc;
        return options;
    }
};

/// What does not fit in the CQ that there is: another is made.
class CreateOnNewCqs : public CreateQueuePair {
protected:
    [[nodiscard]] QueuePairOptions options(World& world) override {
        QueuePairOptions options = world.shape();
        options.shares[0].send_depth = 200;
        options.recv_depth = 200;
        options.separate_cqs = true;
        return options;
    }
};

class CreateWithCredits : public CreateQueuePair {
protected:
    [[nodiscard]] QueuePairOptions options(World& world) override {
        QueuePairOptions options = world.shape();
        options.flow = FlowControl::credits;
        return options;
    }
};

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

/// Receives come from a shared queue, which the application fills.
class CreateWithSrq : public Call {
public:
    explicit CreateWithSrq(bool credits) : credits_(credits) {}
    void prepare(World& world) override { srq_ = world.runtime.create_shared_receive_queue(queue(world)); }
    void make(World& world) override { made_ = world.runtime.create_queue_pair(options(world)); }
    void use(World& world) override {
        QueuePair other = world.runtime.create_queue_pair(options(world));
        World::connect(made_, other);
        // With credits each peer is granted an equal part of what is posted.
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
        EXPECT_EQ(std::erase_if(all, [](const Completion& completion) { return completion.ok() && completion.tag == kReceive; }), World::kDepth);
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

/// Messages that arrive in a pool or a write ring of the runtime's.
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
        Completion end;  // of the ring
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

class Datagrams : public Call {
public:
    void prepare(World& world) override {
        peer_ = world.runtime.create_queue_pair(options(world));
    }

protected:
    static constexpr std::uint32_t kQkey = 0x1234;
    [[nodiscard]] static QueuePairOptions options(World& world) {
        QueuePairOptions options = world.shape();
        options.type = QpType::ud;
        options.qkey = kQkey;
        return options;
    }
    /// Through the address handle, to the peer.
    void expect_datagram(World& world, const QueuePair& from, const AddressHandle& way) {
        const std::uint64_t first = world.next_tag;
        WorkRequest receive = world.recv(peer_, world.next_tag++);
        receive.sge.length = 128;
        World::submit(world.second, receive);
        WorkRequest send = world.send(from, world.next_tag++);
        send.ud = {way.handle(), peer_.info().qp_num};
        send.remote_qkey = kQkey;
        World::submit(world.second, send);
        World::expect_each_once(World::await({&world.second}, 2), first, world.next_tag);
    }

    QueuePair peer_;
};

class CreateUd : public Datagrams {
public:
    void make(World& world) override { made_ = world.runtime.create_queue_pair(options(world)); }
    void use(World& world) override {
        expect_datagram(world, made_, world.runtime.create_address_handle(peer_.info()));
        made_.close();
        peer_.close();
    }

private:
    QueuePair made_;
};

/// A pair that is connected, and has traffic behind it.
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
        World::await({&world.second}, 4);  // flushed
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

/// Its destructor closes it, too, and tells nobody what goes wrong.
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

// ---- Connections by name ----

constexpr const char* kLongName = "a-name-that-is-longer-than-a-short-string";
constexpr std::chrono::milliseconds kUntilGivenUp{3000};

class Listen : public Call {
public:
    void make(World& world) override { listener_ = world.runtime.listen(kLongName); }
    void use(World& world) override {
        QueuePair from = world.runtime.create_queue_pair(world.shape());
        QueuePair to = world.runtime.create_queue_pair(world.shape());
        std::thread active([&] { from.connect(listener_.address(), {.private_data = {}, .timeout = kPatience}); });
        auto request = listener_.next_request(kPatience);
        ASSERT_TRUE(request);
        request->accept(to, {.timeout = kPatience});
        active.join();
        world.exchange(world.second, from, to);
        from.close();
        to.close();
        listener_ = Listener();
    }

private:
    Listener listener_;
};

class StopListening : public Call {
public:
    void prepare(World& world) override { listener_ = world.runtime.listen(kLongName); }
    void make(World&) override { listener_ = Listener(); }
    void use(World& world) override { listener_ = world.runtime.listen(kLongName); }

private:
    Listener listener_;
};

/// Both ends: one thread connects while another accepts.
class ConnectByName : public Call {
public:
    explicit ConnectByName(FlowControl flow) : flow_(flow) {}
    void prepare(World& world) override {
        listener_ = world.runtime.listen(kLongName);
        make_ends(world);
    }
    void make(World& world) override {
        if (!from_.valid()) {
            make_ends(world);
        }
        std::exception_ptr active_failed;
        std::exception_ptr passive_failed;
        std::atomic<bool> active_ended{false};
        std::thread active([&] {
            try {
                answer_ = from_.connect(listener_.address(), {.private_data = bytes("who is there"), .timeout = kUntilGivenUp});
            } catch (...) {
                active_failed = std::current_exception();
            }
            active_ended = true;
        });
        try {
            std::optional<ConnectionRequest> request;
            while (!request && !active_ended) {
                request = listener_.next_request(std::chrono::milliseconds(20));
            }
            if (!request) {
                throw Error(ETIMEDOUT, "no request came");
            }
            asked_ = request->private_data();
            request->accept(to_, {.private_data = bytes("it is me, and I have waited for you"), .timeout = kUntilGivenUp});
        } catch (...) {
            passive_failed = std::current_exception();
        }
        active.join();
        if (active_failed || passive_failed) {
            from_.close();
            to_.close();
            while (listener_.next_request(std::chrono::milliseconds(0))) {  // what came too late is rejected
            }
            std::rethrow_exception(active_failed ? active_failed : passive_failed);
        }
    }
    void use(World& world) override {
        EXPECT_EQ(asked_, bytes("who is there"));
        EXPECT_EQ(answer_, bytes("it is me, and I have waited for you"));
        world.exchange(world.second, from_, to_);
        from_.disconnect();
        const auto deadline = std::chrono::steady_clock::now() + kPatience;
        while (!to_.disconnected() && std::chrono::steady_clock::now() < deadline) {
            ::sched_yield();
        }
        EXPECT_TRUE(to_.disconnected());
        from_.close();
        to_.close();
        listener_ = Listener();
    }

private:
    static std::vector<std::byte> bytes(std::string_view text) {
        const auto* first = reinterpret_cast<const std::byte*>(text.data());
        return {first, first + text.size()};
    }
    void make_ends(World& world) {
        QueuePairOptions options = world.shape();
        options.flow = flow_;
        from_ = world.runtime.create_queue_pair(options);
        to_ = world.runtime.create_queue_pair(options);
    }
    const FlowControl flow_;
    Listener listener_;
    QueuePair from_, to_;
    std::vector<std::byte> asked_, answer_;
};

/// A request that waits for its answer, and one who waits for that.
class Asked : public Call {
public:
    void prepare(World& world) override {
        listener_ = world.runtime.listen(kLongName);
        from_ = world.runtime.create_queue_pair(world.shape());
        active_ = std::thread([this] {
            try {
                from_.connect(listener_.address(), {.private_data = {}, .timeout = kPatience});
            } catch (const Error& error) {
                why_ = error.code();
            } catch (const std::bad_alloc&) {  // for the words of that
                why_ = std::make_error_code(std::errc::not_enough_memory);
            }
        });
        request_ = listener_.next_request(kPatience);
    }

protected:
    void expect_ended(std::errc why) {
        active_.join();
        EXPECT_TRUE(why_ == why || why_ == std::errc::not_enough_memory) << why_.message();
        from_.close();
        listener_ = Listener();
    }
    QueuePair from_;
    std::optional<ConnectionRequest> request_;

private:
    Listener listener_;
    std::thread active_;
    std::error_code why_;
};

class Reject : public Asked {
public:
    void make(World&) override { request_->reject(); }
    void use(World&) override { expect_ended(std::errc::connection_refused); }
};

class CloseWhileConnecting : public Asked {
public:
    void make(World&) override { from_.close(); }
    void use(World&) override { expect_ended(std::errc::operation_canceled); }
};

/// One end of an established connection is closed, which tells the other.
class CloseConnected : public Call {
public:
    void prepare(World& world) override {
        listener_ = world.runtime.listen(kLongName);
        from_ = world.runtime.create_queue_pair(world.shape());
        to_ = world.runtime.create_queue_pair(world.shape());
        std::thread active([&] { from_.connect(listener_.address(), {.timeout = kPatience}); });
        listener_.next_request(kPatience)->accept(to_, {.timeout = kPatience});
        active.join();
    }
    void make(World&) override { from_.close(); }
    void use(World&) override {
        to_.close();
        listener_ = Listener();
    }

private:
    Listener listener_;
    QueuePair from_, to_;
};

// ---- Shared receive queues and pools ----

class CreateSrq : public Call {
public:
    explicit CreateSrq(bool pooled) : pooled_(pooled) {}
    void prepare(World& world) override {
        pool_ = world.runtime.create_receive_pool({.session = &world.second, .buffers = 32, .buffer_bytes = 128});
    }
    void make(World& world) override {
        srq_ = world.runtime.create_shared_receive_queue(
            {.session = &world.second, .depth = 16, .sges_max = 2, .pool = pooled_ ? &pool_ : nullptr, .credit_connections = 2});
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
    void use(World& world) override {
        EXPECT_EQ(World::await({&world.second}, 1).front().status, Status::srq_closed);
    }

private:
    SharedReceiveQueue srq_;
};

class ArmLimit : public Call {
public:
    void prepare(World& world) override {
        srq_ = world.runtime.create_shared_receive_queue({.session = &world.second, .depth = 16});
        posted_ = world.runtime.worker_counters(0).receives.value() + 16;
        for (int i = 0; i < 16; ++i) {
            WorkRequest receive = world.recv(world.a, 1);
            receive.opcode = Opcode::srq_recv;
            receive.srq = srq_.handle();
            World::submit(world.second, receive);
        }
    }
    void make(World& world) override {
        const auto deadline = std::chrono::steady_clock::now() + kPatience;
        while (world.runtime.worker_counters(0).receives.value() < posted_ && std::chrono::steady_clock::now() < deadline) {
            ::sched_yield();
        }
        srq_.arm_limit(4);
        (void)srq_.limit();
    }
    void use(World& world) override {
        EXPECT_EQ(srq_.limit(), 4u);
        srq_.close();
        World::await({&world.second}, 16);
    }

private:
    std::uint64_t posted_ = 0;
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
    void use(World& world) override {  // its places in the session's ring are there again
        for (int i = 0; i < 3; ++i) {
            ReceivePool again = world.runtime.create_receive_pool({.session = &world.second, .buffers = 60, .buffer_bytes = 64});
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

// ---- Memory ----

class Allocate : public Call {
public:
    explicit Allocate(bool bindable) : bindable_(bindable) {}
    void make(World& world) override {
        Access access = Access::all();
        access.window_bind = bindable_;
        made_ = world.runtime.allocate(4096, access);
    }
    void use(World& world) override {
        QueuePair one = world.runtime.create_queue_pair(world.shape());
        QueuePair other = world.runtime.create_queue_pair(world.shape());
        World::connect(one, other);
        WorkRequest write = world.send(one, 1);
        write.opcode = Opcode::rdma_write;
        write.sge = {made_.addr(), 64, made_.lkey()};
        write.remote_addr = made_.addr() + 1024;
        write.rkey = made_.rkey();
        World::submit(world.second, write);
        EXPECT_TRUE(World::await({&world.second}, 1).front().ok());
        made_.deregister();
    }

private:
    const bool bindable_;
    MemoryRegion made_;
};

class RegisterMemory : public Call {
public:
    void make(World& world) override { made_ = world.runtime.register_memory(own_.data(), own_.size()); }
    void use(World&) override { made_.deregister(); }

private:
    std::array<std::byte, 4096> own_{};
    MemoryRegion made_;
};

class Deregister : public Call {
public:
    explicit Deregister(bool bindable) : bindable_(bindable) {}
    void prepare(World& world) override {
        Access access = Access::all();
        access.window_bind = bindable_;
        made_ = world.runtime.allocate(4096, access);
    }
    void make(World&) override { made_.deregister(); }

private:
    const bool bindable_;
    MemoryRegion made_;
};

class CreateDomain : public Call {
public:
    void make(World& world) override { made_ = world.runtime.create_protection_domain(); }
    void use(World& world) override { MemoryRegion within = world.runtime.allocate(4096, Access::all(), "", &made_); }

protected:
    ProtectionDomain made_;
};

class ReleaseDomain : public CreateDomain {
public:
    void prepare(World& world) override { CreateDomain::make(world); }
    void make(World&) override { made_ = ProtectionDomain(); }
    void use(World&) override {}
};

class Windows : public Call {
public:
    void prepare(World& world) override {
        Access access = Access::all();
        access.window_bind = true;
        region_ = world.runtime.allocate(4096, access);
        one_ = world.runtime.create_queue_pair(world.shape());
        other_ = world.runtime.create_queue_pair(world.shape());
        World::connect(one_, other_);
    }

protected:
    void bind(World& world) {
        World::submit(world.second, {.tag = 1,
                                      .bind = {window_.handle(), region_.handle(), 64},
                                      .remote_addr = region_.addr(),
                                      .bind_access = kWindowWrite,
                                      .rkey = next_rkey(window_.rkey()),
                                      .qp = one_.handle(),
                                      .opcode = Opcode::bind_mw,
                                      .flags = kSignaled});
        EXPECT_TRUE(World::await({&world.second}, 1).front().ok());
    }
    MemoryRegion region_;
    MemoryWindow window_;
    QueuePair one_, other_;
};

class CreateWindow : public Windows {
public:
    void make(World& world) override { window_ = world.runtime.create_memory_window(world.second); }
    void use(World& world) override {
        bind(world);
        window_.deallocate();
        region_.deregister();
    }
};

class DeallocateWindow : public Windows {
public:
    void prepare(World& world) override {
        Windows::prepare(world);
        window_ = world.runtime.create_memory_window(world.second);
        bind(world);
    }
    void make(World&) override {
        (void)window_.rkey();
        window_.deallocate();
    }
    void use(World&) override { region_.deregister(); }
};

/// A window that is bound ends with the queue pair, and is made anew.
class CloseWithWindow : public DeallocateWindow {
public:
    void make(World&) override { one_.close(); }
    void use(World&) override {
        window_.deallocate();
        region_.deregister();
    }
};

// ---- Address handles ----

class CreateHandle : public Datagrams {
public:
    void prepare(World& world) override {
        Datagrams::prepare(world);
        from_ = world.runtime.create_queue_pair(options(world));
    }
    void make(World& world) override { made_ = world.runtime.create_address_handle(peer_.info()); }
    void use(World& world) override {
        expect_datagram(world, from_, made_);
        made_.destroy();
    }

protected:
    QueuePair from_;
    AddressHandle made_;
};

class DestroyHandle : public CreateHandle {
public:
    void prepare(World& world) override {
        CreateHandle::prepare(world);
        CreateHandle::make(world);
    }
    void make(World&) override { made_.destroy(); }
    void use(World&) override {}
};

// ---- Runtimes ----

/// Beside the one that there is.
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
        memory_ = started_->allocate(4096);
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

// ---- What devices say unasked ----

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
                ::sched_yield();
            }
        }
        EXPECT_EQ(counters.async_events_acknowledged.value(), 2u);
        EXPECT_EQ(told + counters.events_lost.value(), 2u);
    }
};

template <class C, auto... arguments>
std::unique_ptr<Call> make_call() {
    return std::make_unique<C>(arguments...);
}

}  // namespace

const std::vector<NamedCall>& all_calls() {
    static const std::vector<NamedCall> calls = {
        {"OpenSession", [] { return std::unique_ptr<Call>(new OpenSession({.worker = "a_worker_by_a_long_name", .wide_completions = true})); }},
        {"OpenSessionWithEvents", [] { return std::unique_ptr<Call>(new OpenSession({.pool_buffers = 16, .events = true})); }},
        {"CloseSession", make_call<CloseSession>},
        {"CreateRc", make_call<CreateQueuePair>},
        {"CreateUc", make_call<CreateUc>},
        {"CreateUd", make_call<CreateUd>},
        {"CreateOnNewCqs", make_call<CreateOnNewCqs>},
        {"CreateWithCredits", make_call<CreateWithCredits>},
        {"CreateWithManyShares", make_call<CreateWithManyShares>},
        {"CreateWithSrq", make_call<CreateWithSrq, false>},
        {"CreateWithSrqAndCredits", make_call<CreateWithSrq, true>},
        {"CreateWithPool", make_call<CreateWithPool, FlowControl::off>},
        {"CreateWithPoolsAndCredits", make_call<CreateWithPool, FlowControl::credits>},
        {"CreateWithRing", make_call<CreateWithRing>, false},
        {"Connect", make_call<Connect, FlowControl::off>},
        {"ConnectWithCredits", make_call<Connect, FlowControl::credits>},
        {"Info", make_call<Info>},
        {"CloseQueuePair", make_call<CloseQueuePair>},
        {"CloseQueuePairOfSrq", make_call<CloseWithSrq>},
        {"DestroyQueuePair", make_call<DestroyQueuePair>},
        {"Reset", make_call<Reset>},
        {"ResetWithCredits", make_call<ResetWithCredits>},
        {"Disconnect", make_call<Disconnect>},
        {"Listen", make_call<Listen>},
        {"StopListening", make_call<StopListening>},
        {"ConnectByName", make_call<ConnectByName, FlowControl::off>},
        {"ConnectByNameWithCredits", make_call<ConnectByName, FlowControl::credits>},
        {"Reject", make_call<Reject>},
        {"CloseWhileConnecting", make_call<CloseWhileConnecting>},
        {"CloseConnected", make_call<CloseConnected>},
        {"CreateSrq", make_call<CreateSrq, false>},
        {"CreateSrqWithPool", make_call<CreateSrq, true>},
        {"CloseSrq", make_call<CloseSrq>},
        {"ArmLimit", make_call<ArmLimit>},
        {"CreatePool", make_call<CreatePool>},
        {"ClosePool", make_call<ClosePool>},
        {"CreateRing", make_call<CreateRing>, false},
        {"Allocate", make_call<Allocate, false>},
        {"AllocateBindable", make_call<Allocate, true>},
        {"RegisterMemory", make_call<RegisterMemory>},
        {"Deregister", make_call<Deregister, false>},
        {"DeregisterBindable", make_call<Deregister, true>},
        {"CreateDomain", make_call<CreateDomain>},
        {"ReleaseDomain", make_call<ReleaseDomain>},
        {"CreateWindow", make_call<CreateWindow>},
        {"DeallocateWindow", make_call<DeallocateWindow>},
        {"CloseWithWindow", make_call<CloseWithWindow>},
        {"CreateHandle", make_call<CreateHandle>},
        {"DestroyHandle", make_call<DestroyHandle>},
        {"Start", make_call<Start>},
        {"Stop", make_call<Stop>},
        {"TakeEvents", make_call<TakeEvents>, true, Allocating::everyone},
    };
    return calls;
}

}  // namespace pollcore::testing
