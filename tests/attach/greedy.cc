// An attached process that takes as much as it can get through the public library: memory, objects, connection
// requests, or the kernel's time.
//
//   greedy ATTACK PATH MILLISECONDS
//
// When the time is over, it prints "done" and exits with code 0. See kAttacks for the attacks.
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "pollcore/attach.hpp"

namespace {

using namespace pollcore;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

std::string g_path;
Clock::time_point g_until;

bool over() {
    return Clock::now() >= g_until;
}

/// Tries again while other attacks hold all places of the daemon.
Attachment attach() {
    for (;;) {
        try {
            return Attachment({.path = g_path, .name = "greedy"});
        } catch (const Error& error) {
            const int code = error.code().value();
            if (over() || (code != EAGAIN && code != ENOSPC)) {
                throw;
            }
            std::this_thread::sleep_for(10ms);
        }
    }
}

/// Calls `one` until it is refused, or `most` times. Unless `until_refused` is true, it also stops when the time is
/// over.
void take_all(const std::function<void()>& one, int most = 1 << 20, bool until_refused = false) {
    try {
        for (int i = 0; i < most && (until_refused || !over()); ++i) {
            one();
        }
    } catch (const Error&) {
        // The limit is reached.
    }
}

void much_memory() {
    constexpr std::size_t kPiece = 128u << 20;
    while (!over()) {
        Attachment daemon = attach();
        std::vector<MemoryRegion> all;
        all.push_back(daemon.allocate(kPiece, Access::all()));
        take_all([&] { all.push_back(daemon.allocate(kPiece, Access::all())); });
        all.clear();
        take_all([&] { all.push_back(daemon.allocate(kPiece, Access::all())); }, 2);
        (void)daemon.stop();
    }
}

void many_objects() {
    while (!over()) {
        Attachment daemon = attach();
        std::vector<Session> sessions;
        sessions.push_back(daemon.open_session({.submission_slots = 64, .completion_slots = 64}));
        // On a slow machine, the time may be over before there are as many as may be.
        take_all([&] { sessions.push_back(daemon.open_session({.submission_slots = 64, .completion_slots = 64})); },
                 1 << 20, true);
        Session& session = sessions.front();
        std::vector<QueuePair> qps;
        take_all([&] {
            qps.push_back(
                daemon.create_queue_pair({.shares = {{.session = &session, .send_depth = 1}}, .recv_depth = 1}));
        });
        std::vector<SharedReceiveQueue> srqs;
        take_all([&] { srqs.push_back(daemon.create_shared_receive_queue({.session = &session, .depth = 1})); });
        std::vector<MemoryWindow> windows;
        take_all([&] { windows.push_back(daemon.create_memory_window(session)); });
        std::vector<ProtectionDomain> pds;
        take_all([&] { pds.push_back(daemon.create_protection_domain()); });
        MemoryRegion memory = daemon.allocate(65536, Access::all());
        std::vector<MemoryRegion> parts;
        take_all([&] { parts.push_back(daemon.register_memory(memory.data(), 64, Access::all())); });
        if (!qps.empty()) {
            const QpInfo info = qps.front().info();
            std::vector<AddressHandle> ahs;
            take_all([&] { ahs.push_back(daemon.create_address_handle(info)); });
            (void)daemon.stop();  // gives everything back
        }
    }
}

// Makes connection attempts that time out, and takes connection requests without answering them.
void many_requests() {
    Attachment daemon = attach();
    Session session = daemon.open_session();
    std::vector<ConnectionRequest> held;
    while (!over()) {
        Listener listener = daemon.listen("greedy");
        std::vector<std::thread> callers;
        for (int i = 0; i < 16; ++i) {
            callers.emplace_back([&, i] {
                while (!over()) {
                    try {
                        QueuePair qp = daemon.create_queue_pair(
                            {.shares = {{.session = &session, .send_depth = 1}}, .recv_depth = 1});
                        (void)qp.connect(listener.address(), {.timeout = i % 2 == 0 ? 0ms : 500ms});
                    } catch (const Error&) {
                        // A refusal or a timeout is expected.
                    }
                }
            });
        }
        while (!over()) {
            take_all([&] {
                if (std::optional<ConnectionRequest> request = listener.next_request(10ms)) {
                    held.push_back(std::move(*request));
                }
            });
            held.clear();
        }
        std::for_each(callers.begin(), callers.end(), [](std::thread& caller) { caller.join(); });
    }
}

// Uses IP addresses that nobody has, so the kernel waits in vain for an answer to its ARP requests.
void silent_addresses() {
    Attachment daemon = attach();
    Session session = daemon.open_session();
    for (std::uint8_t host = 2; !over(); ++host) {
        QueuePair qp = daemon.create_queue_pair({.shares = {{.session = &session, .send_depth = 1}}, .recv_depth = 1});
        QpInfo nobody = qp.info();
        nobody.gid.back() = host;  // the last byte of the IPv4 address in a RoCE v2 GID
        take_all([&] { (void)daemon.create_address_handle(nobody); }, 1);
        take_all([&] { qp.connect(nobody); }, 1);
    }
}

struct Attack {
    const char* name;
    void (*run)();
};
constexpr Attack kAttacks[] = {{"much-memory", much_memory},
                               {"many-objects", many_objects},
                               {"many-requests", many_requests},
                               {"silent-addresses", silent_addresses}};

}  // namespace

int main(int argc, char** argv) {
    const auto* attack = std::find_if(std::begin(kAttacks), std::end(kAttacks), [&](const Attack& each) {
        return argc == 4 && std::strcmp(argv[1], each.name) == 0;
    });
    if (attack == std::end(kAttacks)) {
        std::for_each(std::begin(kAttacks), std::end(kAttacks),
                      [](const Attack& each) { std::printf("%s\n", each.name); });
        return argc == 1 ? 0 : 2;
    }
    g_path = argv[2];
    g_until = Clock::now() + std::chrono::milliseconds(std::atoi(argv[3]));
    try {
        attack->run();
    } catch (const std::exception& error) {
        if (over()) {
            std::printf("done\n");
            return 0;
        }
        std::printf("failed: %s\n", error.what());
        return 1;
    }
    std::printf("done\n");
    return 0;
}
