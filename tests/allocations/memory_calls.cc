// Memory regions, protection domains and memory windows.
#include "calls.hpp"

namespace pollcore::testing {
namespace {

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
    void make(World& world) override { made_ = world.runtime.register_memory(own_.data(), own_.size(), Access::all()); }
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

/// Closes the queue pair of a bound window. The binding ends with the queue pair, and the runtime makes the window
/// anew.
class CloseWithWindow : public DeallocateWindow {
public:
    void make(World&) override { one_.close(); }
    void use(World&) override {
        window_.deallocate();
        region_.deregister();
    }
};

}  // namespace

std::vector<NamedCall> memory_calls() {
    return {
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
    };
}

}  // namespace pollcore::testing
