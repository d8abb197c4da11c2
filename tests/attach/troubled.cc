// Processes in trouble, for tests/system/symptoms.py. Each prints a line when it is where it should be, and then waits
// for the end of its standard input.
//
//   troubled daemon PATH NAME  a runtime with a software device, to which processes attach at PATH, and pollctl
//   connects at
//                              PATH.control; NAME is that of its statistics. A line "lose" removes the device. After a
//                              line "hang", its provider does not return from the next post of a request
//   troubled holder PATH       has two connected queue pairs, and does nothing
//   troubled slow PATH         submits, and never polls
//   troubled greedy PATH       opens sessions until the daemon refuses one
//   troubled unready PATH      sends to a queue pair that has no receive
#include <cstdio>
#include <cstring>
#include <exception>
#include <iostream>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "attach/own_server.hpp"
#include "device/soft/soft_device.hpp"
#include "patient.hpp"
#include "pollcore/attach.hpp"
#include "pollcore/attach_server.hpp"
#include "pollcore/runtime.hpp"
#include "pollcored/control_commands.hpp"
#include "pollcored/control_socket.hpp"

namespace {

using namespace pollcore;
using namespace std::chrono_literals;

void say(const char* what) {
    std::printf("%s\n", what);
    std::fflush(stdout);
}

void wait_for_end() {
    for (std::string line; std::getline(std::cin, line);) {
    }
}

int be_daemon(const std::string& path, const std::string& name) {
    Config config = test::one_soft_device(64);
    config.devices.front().name = "nic0";
    config.workers.front().name = "worker0";
    config.statistics.segment = StatisticsConfig::Segment::on;
    config.statistics.name = name;
    config.attach.path = path;
    Runtime runtime(config);
    AttachServer server(runtime, config.attach);
    config.control.path = path + ".control";
    daemon::ControlCommands commands(runtime.state(), &server,
                                     {.health = [&] { return runtime.health(); },
                                      .order = [](daemon::Order&&) {},
                                      .services = [] { return std::vector<daemon::ServiceFigures>(); },
                                      .state = [] { return std::string_view("serving"); }});
    daemon::ControlSocket control(config.control,
                                  {.carry_out = [&](const auto&... its) { return commands.carry_out(its...); },
                                   .why_late = [&](const auto&... its) { return commands.why_late(its...); },
                                   .begin_thread = [] {}});
    control.start();
    say("ready");
    auto& device = dynamic_cast<SoftDevice&>(runtime.device());
    for (std::string line; std::getline(std::cin, line);) {
        if (line == "lose") {
            device.remove();
        } else if (line == "hang") {
            device.inject({.kind = SoftFault::Kind::hang, .delay_ns = std::uint64_t{3600} * 1'000'000'000});
            say("hangs at the next post");
        }
    }
    return 0;
}

/// A process with a session and two queue pairs that are connected to each other.
class Client {
public:
    explicit Client(const std::string& path)
        : daemon_(test::patient({.path = path, .name = "troubled"})),
          session(daemon_.open_session({.name = "troubled", .submission_slots = 64, .completion_slots = 64})),
          memory(daemon_.allocate(4096, Access::all())) {
        // The send queue is longer than the completion ring, so that a program that does not poll fills the ring.
        const QueuePairOptions options{.shares = {{.session = &session, .send_depth = 128}},
                                       .recv_depth = 1,
                                       .remote_access = RemoteAccess::all()};
        a = daemon_.create_queue_pair(options);
        b = daemon_.create_queue_pair(options);
        PathAttributes path_attributes;
        path_attributes.rnr_retry = 7;  // for ever
        const QpInfo info = a.info();
        a.connect(b.info(), path_attributes);
        b.connect(info, path_attributes);
    }

private:
    Attachment daemon_;

public:
    Session session;
    MemoryRegion memory;
    QueuePair a;
    QueuePair b;
};

int hold(const std::string& path) {
    const Client client(path);
    say("holds");
    wait_for_end();
    return 0;
}

int be_slow(const std::string& path) {
    Client client(path);
    const WorkRequest write =
        WorkRequest::rdma_write(client.a.handle(), client.memory.sge(0, 8), client.memory.remote(64));
    Refusal refusal = Refusal::none;
    while (refusal != Refusal::completion_ring_full) {
        refusal = client.session.try_submit(write);
    }
    say("is slow");
    wait_for_end();
    return 0;
}

int be_greedy(const std::string& path) {
    Attachment daemon(test::patient({.path = path, .name = "greedy"}));
    std::vector<Session> sessions;
    try {
        for (;;) {
            sessions.push_back(daemon.open_session());
        }
    } catch (const Error& refused) {
        say(refused.what());
    }
    wait_for_end();
    return 0;
}

int be_unready(const std::string& path) {
    Client client(path);
    if (client.session.try_submit(WorkRequest::send(client.a.handle(), client.memory.sge(0, 8))) != Refusal::none) {
        return 1;
    }
    say("sends");
    wait_for_end();
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    const std::string what = argc > 2 ? argv[1] : "";
    try {
        if (what == "daemon" && argc == 4) {
            return be_daemon(argv[2], argv[3]);
        }
        return what == "holder"    ? hold(argv[2])
               : what == "slow"    ? be_slow(argv[2])
               : what == "greedy"  ? be_greedy(argv[2])
               : what == "unready" ? be_unready(argv[2])
                                   : 2;
    } catch (const std::exception& error) {
        std::printf("failed: %s\n", error.what());
        return 1;
    }
}
