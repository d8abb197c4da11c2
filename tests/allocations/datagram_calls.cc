// UD queue pairs and address handles.
#include "calls.hpp"

namespace pollcore::testing {
namespace {

class Datagrams : public Call {
public:
    void prepare(World& world) override { peer_ = world.runtime.create_queue_pair(options(world)); }

protected:
    static constexpr std::uint32_t kQkey = 0x1234;
    [[nodiscard]] static QueuePairOptions options(World& world) {
        QueuePairOptions options = world.shape();
        options.type = QpType::ud;
        options.qkey = kQkey;
        return options;
    }
    /// Sends a datagram to the peer through the address handle.
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

}  // namespace

std::vector<NamedCall> datagram_calls() {
    return {
        {"CreateUd", make_call<CreateUd>},
        {"CreateHandle", make_call<CreateHandle>},
        {"DestroyHandle", make_call<DestroyHandle>},
    };
}

}  // namespace pollcore::testing
