// A process that attaches, for the tests that kill this process or its daemon. The tests read its standard output line
// by line.
//
//   attached-load load PATH SEED      random traffic and control requests, until it is killed
//   attached-load survive PATH        traffic until the daemon ends; checks that each request ends once; attaches again
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <map>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "patient.hpp"
#include "pollcore/attach.hpp"

namespace {

using namespace pollcore;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

[[noreturn]] void fail(const std::string& why) {
    std::printf("failed: %s\n", why.c_str());
    std::fflush(stdout);
    std::_Exit(1);
}

void say(const char* what) {
    std::printf("%s\n", what);
    std::fflush(stdout);
}

/// Two queue pairs that are connected to each other.
struct Pair {
    Pair(Attachment& daemon, Session& session, std::uint32_t depth) {
        const QueuePairOptions options{.shares = {{.session = &session, .send_depth = depth}},
                                       .recv_depth = depth,
                                       .remote_access = RemoteAccess::all()};
        a = daemon.create_queue_pair(options);
        b = daemon.create_queue_pair(options);
        const QpInfo info = a.info();
        a.connect(b.info());
        b.connect(info);
    }
    QueuePair a;
    QueuePair b;
};

// ---- load ----

int run_load(const std::string& path, unsigned seed) {
    std::mt19937 random(seed);
    Attachment daemon(test::patient({.path = path, .name = "load"}));
    Session session = daemon.open_session({.submission_slots = 256, .completion_slots = 512});
    MemoryRegion memory = daemon.allocate(256 * 1024, Access::all());
    Pair pair(daemon, session, 64);
    say("running");
    std::vector<std::unique_ptr<Pair>> others;
    std::vector<MemoryRegion> regions;
    std::vector<Session> sessions;
    std::array<Completion, 64> done;
    for (std::uint64_t turn = 0;; ++turn) {
        for (int i = 0; i < 16; ++i) {
            (void)session.try_submit({.tag = turn,
                                      .sge = {memory.addr() + 128 * 1024, 4096, memory.lkey()},
                                      .qp = pair.b.handle(),
                                      .opcode = Opcode::recv,
                                      .num_sge = 1});
            (void)session.try_submit(
                {.tag = turn,
                 .sge = {memory.addr(), static_cast<std::uint32_t>(random() % 4096), memory.lkey()},
                 .remote_addr = memory.addr() + 64 * 1024,
                 .rkey = memory.rkey(),
                 .qp = pair.a.handle(),
                 .opcode = random() % 2 != 0 ? Opcode::send : Opcode::rdma_write,
                 .flags = static_cast<std::uint8_t>(random() % 4 != 0 ? kSignaled : 0),
                 .num_sge = 1});
            std::array<std::byte, 200> payload{};
            (void)session.try_submit_inline(
                {.tag = turn, .qp = pair.a.handle(), .opcode = Opcode::send, .flags = kSignaled}, payload);
        }
        (void)session.poll(done);
        if (turn % 32 != 0) {
            continue;
        }
        try {
            switch (random() % 6) {
                case 0: others.push_back(std::make_unique<Pair>(daemon, session, 4)); break;
                case 1: regions.push_back(daemon.allocate(4096 + random() % 100'000, Access::all())); break;
                case 2:
                    sessions.push_back(daemon.open_session({.submission_slots = 64, .completion_slots = 64}));
                    break;
                case 3:
                    if (!others.empty()) {
                        others.erase(others.begin());
                    }
                    break;
                case 4:
                    if (!regions.empty()) {
                        regions.erase(regions.begin());
                    }
                    break;
                case 5:
                    if (!sessions.empty()) {
                        sessions.erase(sessions.begin());
                    }
                    break;
            }
        } catch (const Error&) {  // this process has reached its limits
            others.clear();
            regions.clear();
            sessions.clear();
        }
    }
}

// ---- survive ----

class Survivor {
public:
    explicit Survivor(Attachment& daemon)
        : session_(daemon.open_session({.submission_slots = 256, .completion_slots = 1024})),
          memory_(daemon.allocate(64 * 1024, Access::all())),
          srq_(daemon.create_shared_receive_queue({.session = &session_, .depth = 64})),
          pair_(daemon, session_, 128) {
        QueuePairOptions options{.shares = {{.session = &session_, .send_depth = 64}},
                                 .srq = &srq_,
                                 .remote_access = RemoteAccess::all(),
                                 .coalesce_signals = true};
        c_ = daemon.create_queue_pair(options);
        d_ = daemon.create_queue_pair(options);
        const QpInfo info = c_.info();
        c_.connect(d_.info());
        d_.connect(info);
    }

    void turn() {
        for (int i = 0; i < 8; ++i) {
            submit({.sge = {memory_.addr(), 512, memory_.lkey()},
                    .qp = pair_.b.handle(),
                    .opcode = Opcode::recv,
                    .num_sge = 1});
            submit({.sge = {memory_.addr(), 512, memory_.lkey()},
                    .srq = srq_.handle(),
                    .opcode = Opcode::srq_recv,
                    .num_sge = 1});
            const bool shared = random_() % 2 != 0;
            submit({.sge = {memory_.addr() + 32 * 1024, 256, memory_.lkey()},
                    .qp = shared ? c_.handle() : pair_.a.handle(),
                    .opcode = Opcode::send,
                    .flags = static_cast<std::uint8_t>(random_() % 3 != 0 ? kSignaled : 0),
                    .num_sge = 1});
            // An atomic among the other requests.
            submit({.sge = {memory_.addr(), 8, memory_.lkey()},
                    .remote_addr = memory_.addr() + 8 * (random_() % 1000),
                    .rkey = memory_.rkey(),
                    .qp = pair_.a.handle(),
                    .opcode = Opcode::atomic_fetch_and_add,
                    .flags = kSignaled,
                    .num_sge = 1});
            // Writes, some of them with an inline payload.
            for (int more = 0; more < 3; ++more) {
                submit({.sge = {memory_.addr(), 64, memory_.lkey()},
                        .remote_addr = memory_.addr() + 16 * 1024,
                        .rkey = memory_.rkey(),
                        .qp = pair_.a.handle(),
                        .opcode = Opcode::rdma_write,
                        .flags = static_cast<std::uint8_t>(kSignaled | (random_() % 4 == 0 ? kInline : 0)),
                        .num_sge = 1});
            }
        }
        submit_burst();
        poll();
    }

    [[nodiscard]] std::uint64_t accepted() { return session_.figures().accepted; }

    /// Call this when the daemon has ended. Checks that every accepted request ends exactly once.
    void expect_all() {
        const auto deadline = Clock::now() + 10s;
        while (session_.figures().in_flight() != 0) {
            poll();
            if (Clock::now() > deadline) {
                fail(std::to_string(session_.figures().in_flight()) + " requests never ended");
            }
        }
        poll();
        // All requests without a completion must be unsignaled, and their number must be the number of retired
        // requests.
        std::uint64_t without = 0;
        for (const auto& [tag, signaled] : open_) {
            if (signaled) {
                fail("request " + std::to_string(tag) + " has no completion");
            }
            ++without;
        }
        const SessionFigures figures = session_.figures();
        if (without != figures.retired) {
            fail(std::to_string(without) + " requests have no completion, and " + std::to_string(figures.retired) +
                 " were retired");
        }
        if (gone_ == 0) {
            fail("nothing was in flight when the daemon died");
        }
        std::printf("ended: %llu accepted, %llu by the daemon's end\n",
                    static_cast<unsigned long long>(figures.accepted), static_cast<unsigned long long>(gone_));
        std::fflush(stdout);
    }

private:
    // Submits the request alone, or together with later ones.
    void submit(WorkRequest request) {
        request.tag = ++next_tag_;
        burst_.push_back(request);
        if (random_() % 4 == 0) {
            submit_burst();
        }
    }
    // Leaves out the requests that are refused.
    void submit_burst() {
        for (std::span<const WorkRequest> rest(burst_); !rest.empty();) {
            const std::size_t accepted = session_.try_submit(rest).accepted;
            for (const WorkRequest& request : rest.first(accepted)) {
                open_.emplace(request.tag, is_recv(request.opcode) || (request.flags & kSignaled) != 0);
            }
            rest = rest.subspan(std::min(accepted + 1, rest.size()));
        }
        burst_.clear();
    }

    void poll() {
        std::array<Completion, 64> some;
        const std::size_t n = session_.poll(some);
        for (std::size_t i = 0; i < n; ++i) {
            if (open_.erase(some[i].tag) == 0) {
                fail("request " + std::to_string(some[i].tag) + " completed twice, or was never submitted");
            }
            gone_ += some[i].status == Status::daemon_gone;
        }
    }

    std::mt19937 random_{std::random_device{}()};
    Session session_;
    MemoryRegion memory_;
    SharedReceiveQueue srq_;
    Pair pair_;
    QueuePair c_;
    QueuePair d_;
    std::uint64_t next_tag_ = 0;
    std::vector<WorkRequest> burst_;
    std::uint64_t gone_ = 0;
    std::map<std::uint64_t, bool> open_;  // by tag; true if even success makes a completion
};

int run_survive(const std::string& path) {
    Attachment daemon(test::patient({.path = path, .name = "survive"}));
    {
        Survivor before(daemon);
        while (before.accepted() < 100 && !daemon.lost()) {
            before.turn();
        }
        say("running");
        while (!daemon.lost()) {
            before.turn();
        }
        before.expect_all();
        try {
            (void)daemon.open_session();
            fail("a session was opened at a daemon that is gone");
        } catch (const Error& error) {
            if (error.code().value() != ECONNRESET) {
                fail(error.what());
            }
        }
    }
    daemon.reattach(30s);
    Survivor after(daemon);
    const auto until = Clock::now() + 200ms;
    while ((Clock::now() < until || after.accepted() < 100) && !daemon.lost()) {
        after.turn();
    }
    if (daemon.lost()) {
        fail("the daemon to which it attached again is gone");
    }
    say("again");
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    const std::string mode = argc > 2 ? argv[1] : "";
    try {
        if (mode == "load" && argc == 4) {
            return run_load(argv[2], static_cast<unsigned>(std::atoi(argv[3])));
        }
        if (mode == "survive") {
            return run_survive(argv[2]);
        }
    } catch (const std::exception& error) {
        fail(error.what());
    }
    std::fprintf(stderr, "attached-load load PATH SEED | survive PATH\n");
    return 2;
}
