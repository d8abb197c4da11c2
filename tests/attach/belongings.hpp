// What a process holds, and what processes have at a daemon: to see that nothing is left of one that has ended.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <ostream>
#include <string>
#include <thread>

#include "daemon_process.hpp"
#include "pollcore/attach.hpp"

namespace pollcore::test {

/// The resources of a process, as /proc shows them.
struct Belongings {
    std::size_t descriptors = 0;
    std::size_t shared_mappings = 0;

    static Belongings of(pid_t pid) {
        Belongings all;
        const std::filesystem::path proc = "/proc/" + std::to_string(pid);
        for ([[maybe_unused]] const auto& fd : std::filesystem::directory_iterator(proc / "fd")) {
            ++all.descriptors;
        }
        std::ifstream maps(proc / "maps");
        for (std::string line; std::getline(maps, line);) {
            all.shared_mappings += line.find("memfd:pollcore") != std::string::npos;
        }
        return all;
    }
    bool operator==(const Belongings&) const = default;
};
inline void PrintTo(const Belongings& all, std::ostream* out) {
    *out << all.descriptors << " descriptors, " << all.shared_mappings << " shared mappings";
}

/// Number of the daemon's threads that serve a connection. Each connection has one such thread, which closes the
/// descriptors that it received.
inline int connection_threads_of(pid_t pid) {
    int threads = 0;
    for (const auto& task : std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/task")) {
        threads += read_file(task.path() / "comm") == "pollcore-conn\n";
    }
    return threads;
}

/// Waits until the belongings no longer change: memory and descriptors are released some time after a process has
/// ended.
inline Belongings settled_belongings_of(pid_t pid) {
    Belongings last = Belongings::of(pid);
    for (int same = 0; same < 10;) {
        std::this_thread::sleep_for(30ms);
        const Belongings now = Belongings::of(pid);
        same = now == last ? same + 1 : 0;
        last = now;
    }
    return last;
}

/// What all processes have made at a daemon.
struct Things {
    std::uint64_t sessions = 0, queue_pairs = 0, shared_receive_queues = 0, regions = 0, domains = 0;
    static Things at(Attachment& daemon) {
        const ControlCounters& counters = daemon.control_counters();
        return {counters.sessions.value(), counters.queue_pairs.value(), counters.shared_receive_queues.value(),
                counters.memory_regions.value(), counters.protection_domains.value()};
    }
    bool operator==(const Things&) const = default;
};
inline void PrintTo(const Things& all, std::ostream* out) {
    *out << all.sessions << " sessions, " << all.queue_pairs << " queue pairs, " << all.shared_receive_queues
         << " shared receive queues, " << all.regions << " regions, " << all.domains << " protection domains";
}

}  // namespace pollcore::test
