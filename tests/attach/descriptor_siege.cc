// For scripts/bench: how long an attached process waits for its requests while another process attacks the daemon by
// the command descriptor of its own context, and while that process is only busy. Needs Soft-RoCE
// (POLLCORE_TEST_DEVICE).
//
//   descriptor-siege SECONDS
//
// Prints JSON. This process has CPU 0, the other one CPU 1, and the worker the last CPU. There should be at least four.
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "attach/descriptor_attacks.hpp"
#include "attach/own_memory_fixture.hpp"

namespace pollcore::test {
namespace {

void stay_on(std::uint32_t cpu) {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    (void)::sched_setaffinity(0, sizeof(one), &one);
}

[[noreturn]] void be_busy() {
    for (;;) {
        (void)::getppid();
    }
}

// Leaves out attacks after which the daemon gives this user no more contexts.
[[noreturn]] void attack(const std::string& path) {
    for (;;) {
        const std::set<int> before = open_descriptors();
        Attachment attachment({.path = path, .name = "attacker", .timeout = kPatience, .own_memory = true});
        Session session = attachment.open_session();
        QueuePair qp = attachment.create_queue_pair({.shares = {{.session = &session}}});
        CommandDescriptor descriptor(uverbs_since(before).at(0));
        (void)complete_requests_of_others(descriptor);
        (void)raise_events_of_nothing(descriptor);
        (void)descriptor.reset_qps();
        (void)descriptor.resize_cqs_and_overwrite();
    }
}

struct Waited {
    double median_us = 0;
    double p99_us = 0;
    std::size_t requests = 0;
};

/// Writes to itself, one request at a time.
Waited waited_for_requests(Session& session, const QueuePair& qp, const MemoryRegion& memory,
                           std::chrono::seconds time) {
    std::vector<double> all;
    for (const auto until = Clock::now() + time; Clock::now() < until;) {
        const auto from = Clock::now();
        if (session.try_submit({.sge = memory.sge(0, 64),
                                .remote_addr = memory.addr(),
                                .rkey = memory.rkey(),
                                .qp = qp.handle(),
                                .opcode = Opcode::rdma_write,
                                .flags = kSignaled,
                                .num_sge = 1}) != Refusal::none) {
            throw Error(EPROTO, "a request was refused");
        }
        Completion completion;
        while (session.poll({&completion, 1}) == 0) {
        }
        if (completion.status != Status::success) {
            throw Error(EPROTO, "a request failed");
        }
        all.push_back(std::chrono::duration<double, std::micro>(Clock::now() - from).count());
    }
    std::sort(all.begin(), all.end());
    return {.median_us = all[all.size() / 2], .p99_us = all[all.size() * 99 / 100], .requests = all.size()};
}

int measure(std::chrono::seconds time) {
    TemporaryDirectory directory;
    Config config = daemon_config(directory.path());
    config.workers[0].idle = IdlePolicy::spin;
    config.attach.own_memory.all = true;
    config.log_level = LogLevel::error;
    const std::string path = config.attach.path;
    Process daemon({"/usr/bin/setpriv", "--pdeathsig", "KILL", pollcored_path(), "--config",
                    directory.write("pollcored.toml", print_config(config)).string()},
                   {}, directory.path());
    stay_on(0);
    Attachment attachment({.path = path, .name = "quiet", .timeout = kPatience});
    Session session = attachment.open_session();
    const QueuePairOptions options{.shares = {{.session = &session}}, .remote_access = RemoteAccess::all()};
    QueuePair a = attachment.create_queue_pair(options);
    QueuePair b = attachment.create_queue_pair(options);
    const QpInfo info = a.info();
    a.connect(b.info());
    b.connect(info);
    const MemoryRegion memory = attachment.allocate(4096, Access::all());
    const char* separator = "{";
    for (const char* what : {"busy", "attack"}) {
        Process other({test_program("descriptor-siege"), what, path}, {}, directory.path());
        const Waited waited = waited_for_requests(session, a, memory, time);
        if (other.wait(0ms)) {
            std::fprintf(stderr, "the other process has ended: %s\n", other.err().c_str());
            return 1;
        }
        std::printf("%s\"%s\": {\"median_us\": %.2f, \"p99_us\": %.2f, \"requests\": %zu}", separator, what,
                    waited.median_us, waited.p99_us, waited.requests);
        separator = ", ";
    }
    std::printf("}\n");
    return 0;
}

}  // namespace
}  // namespace pollcore::test

int main(int argc, char** argv) {
    using namespace pollcore::test;
    const std::string_view what = argc > 1 ? argv[1] : "";
    if (argc == 3) {
        stay_on(1);
    }
    if (argc == 3 && what == "busy") {
        be_busy();
    }
    if (argc == 3 && what == "attack") {
        attack(argv[2]);
    }
    if (argc != 2 || std::atoi(argv[1]) < 1) {
        std::fprintf(stderr, "usage: descriptor-siege SECONDS\n");
        return 2;
    }
    return measure(std::chrono::seconds(std::atoi(argv[1])));
}
