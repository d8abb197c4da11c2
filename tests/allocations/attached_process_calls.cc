// An attached process makes and ends an object of each kind, from attaching to detaching. Allocations fail in the
// daemon and in the process's own threads.
#include <memory>
#include <optional>

#include "attach/own_server.hpp"
#include "calls.hpp"
#include "give_way.hpp"
#include "own_pages.hpp"
#include "pollcore/attach.hpp"
#include "pollcore/attach_server.hpp"

namespace pollcore::testing {
namespace {

/// An attached process with one object of each kind.
class Attached {
public:
    explicit Attached(const std::string& path)
        : attachment_({.path = path, .timeout = kPatience, .answer_within = kPatience, .own_memory = true}),
          session_(attachment_.open_session(
              {.submission_slots = 64, .completion_slots = 64, .pool_buffers = 64, .events = true})),
          memory_(attachment_.allocate(4096, Access::all())),
          own_memory_(attachment_.register_memory(pages_.data(), pages_.size(), Access::all())),
          pd_(attachment_.create_protection_domain()),
          srq_(attachment_.create_shared_receive_queue({.session = &session_, .depth = 4})),
          pool_(attachment_.create_receive_pool({.session = &session_, .buffers = 4, .buffer_bytes = 64})),
          window_(attachment_.create_memory_window(session_)),
          a_(attachment_.create_queue_pair(shape())),
          b_(attachment_.create_queue_pair(shape())),
          way_(attachment_.create_address_handle(b_.info())),
          listener_(attachment_.listen("allocations")) {
        World::connect(a_, b_);
        EXPECT_TRUE(a_.reset());
        EXPECT_TRUE(b_.reset());
        World::connect(a_, b_);
    }

    void expect_traffic() {
        WorkRequest request{.tag = 1,
                            .sge = {memory_.addr(), 64, memory_.lkey()},
                            .qp = b_.handle(),
                            .opcode = Opcode::recv,
                            .num_sge = 1};
        World::submit(session_, request);
        request.qp = a_.handle();
        request.opcode = Opcode::send;
        request.flags = kSignaled;
        World::submit(session_, request);
        for (const Completion& completion : World::await({&session_}, 2)) {
            EXPECT_TRUE(completion.ok());
        }
    }
    /// Makes a request that the daemon refuses. Then the daemon has a refusal to log when the process ends.
    void be_refused() {
        try {
            (void)attachment_.listen("allocations");  // listener_ listens there
            ADD_FAILURE() << "it was not refused";
        } catch (const Error&) {
        }
    }
    void end() {
        pool_.close();
        a_.close();
        b_.close();
        srq_.close();
        window_.deallocate();
        way_.destroy();
        memory_.deregister();
        own_memory_.deregister();
        session_.close();
        EXPECT_TRUE(attachment_.stop());
    }

private:
    QueuePairOptions shape() {
        QueuePairOptions options;
        options.name = "a queue pair by a long name";
        options.shares = {{.session = &session_, .send_depth = World::kDepth}};
        options.recv_depth = World::kDepth;
        options.remote_access = RemoteAccess::all();
        return options;
    }

    const test::OwnPages pages_{2};
    Attachment attachment_;
    Session session_;
    MemoryRegion memory_;
    MemoryRegion own_memory_;
    ProtectionDomain pd_;
    SharedReceiveQueue srq_;
    ReceivePool pool_;
    MemoryWindow window_;
    QueuePair a_, b_;
    AddressHandle way_;
    Listener listener_;
};

class AttachAndDetach : public Call {
public:
    void prepare(World& world) override {
        config_ = test::socket_named("allocations");
        server_ = std::make_unique<AttachServer>(world.runtime, config_);
    }
    void make(World&) override {
        Attached attached(config_.path);
        attached.be_refused();
        attached.end();
        done_ = true;
    }
    /// Attaches again, as another process. Whatever happened to the first process, the daemon must still serve and must
    /// have kept nothing of the first process.
    void use(World&) override {
        Attached attached(config_.path);
        attached.expect_traffic();
        attached.end();
        const auto deadline = std::chrono::steady_clock::now() + kPatience;
        while (server_->counts().now != 0 && std::chrono::steady_clock::now() < deadline) {
            test::give_way();
        }
        EXPECT_EQ(server_->counts().now, 0u);
        EXPECT_TRUE(done_);
    }

private:
    AttachConfig config_;
    std::unique_ptr<AttachServer> server_;
    bool done_ = false;
};

}  // namespace

std::vector<NamedCall> attached_calls() {
    return {
        {.name = "AttachAndDetach", .begin = make_call<AttachAndDetach>, .whose = Allocating::everyone},
    };
}

}  // namespace pollcore::testing
