// An attached process that keeps a window of requests in flight, for pollbench.
//
//   window-load PATH WINDOW
//
// Attaches, prints "ready", and waits for SIGUSR1. Then it keeps WINDOW writes of 8 bytes in flight, and yields its CPU
// after each turn. At SIGTERM it waits for the requests in flight, and prints how many have completed. Exits with 0 if
// all have succeeded.
#include <sched.h>
#include <signal.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>

#include "patient.hpp"
#include "pollcore/attach.hpp"

namespace {

using namespace pollcore;

std::atomic<bool> g_over{false};

int run(const char* path, std::uint64_t window) {
    constexpr std::size_t kBurst = 32;
    sigset_t begin;
    sigemptyset(&begin);
    sigaddset(&begin, SIGUSR1);
    sigprocmask(SIG_BLOCK, &begin, nullptr);  // before the attachment's threads begin
    ::signal(SIGTERM, [](int) { g_over.store(true, std::memory_order_relaxed); });

    Attachment daemon(test::patient({.path = path, .name = "load"}));
    Session session = daemon.open_session();
    MemoryRegion memory = daemon.allocate(4096, Access::all());
    QueuePair qp =
        daemon.create_queue_pair({.shares = {{.session = &session, .send_depth = static_cast<std::uint32_t>(window)}},
                                  .remote_access = RemoteAccess::all()});
    qp.connect(qp.info());
    std::array<WorkRequest, kBurst> requests;
    requests.fill({.sge = {memory.addr(), 8, memory.lkey()},
                   .remote_addr = memory.addr() + 64,
                   .rkey = memory.rkey(),
                   .qp = qp.handle(),
                   .opcode = Opcode::rdma_write,
                   .flags = kSignaled,
                   .num_sge = 1});
    std::puts("ready");
    std::fflush(stdout);
    int which = 0;
    sigwait(&begin, &which);

    std::array<Completion, kBurst> completions;
    std::uint64_t submitted = 0;
    std::uint64_t completed = 0;
    bool over = false;
    while (!over || completed < submitted) {
        // A turn is as long as the window, so that it ends even if the worker keeps pace.
        bool idle = false;
        for (std::uint64_t turn = 0; turn < window && !idle; turn += kBurst) {
            const std::size_t n = session.poll(completions);
            if (std::any_of(completions.begin(), completions.begin() + static_cast<std::ptrdiff_t>(n),
                            [](const Completion& one) { return !one.ok(); })) {
                std::fputs("window-load: a request has failed\n", stderr);
                return 1;
            }
            completed += n;
            const std::uint64_t room = over ? 0 : window - (submitted - completed);
            const std::size_t accepted =
                session.try_submit({requests.data(), std::min<std::uint64_t>(room, kBurst)}).accepted;
            submitted += accepted;
            idle = n == 0 && accepted == 0;
        }
        over = g_over.load(std::memory_order_relaxed);
        sched_yield();
    }
    std::printf("%llu\n", static_cast<unsigned long long>(completed));
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 3) {
        std::fputs("usage: window-load PATH WINDOW\n", stderr);
        return 2;
    }
    try {
        return run(argv[1], static_cast<std::uint64_t>(std::atoi(argv[2])));
    } catch (const std::exception& error) {
        std::fprintf(stderr, "window-load: %s\n", error.what());
        return 1;
    }
}
