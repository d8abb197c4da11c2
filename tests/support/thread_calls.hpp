// Counts the system calls and the waits of a thread of another process.
#pragma once

#include <linux/perf_event.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>

#include "base/unique_fd.hpp"

namespace pollcore::test {

/// Returns the number of the process's thread of this name. Throws std::runtime_error if there is none.
inline pid_t thread_of(pid_t process, const std::string& name) {
    for (const auto& task : std::filesystem::directory_iterator("/proc/" + std::to_string(process) + "/task")) {
        std::string comm;
        std::getline(std::ifstream(task.path() / "comm"), comm);
        if (comm == name) {
            return std::stoi(task.path().filename());
        }
    }
    throw std::runtime_error("process " + std::to_string(process) + " has no thread \"" + name + "\"");
}

/// Returns the state of a thread as proc(5) has it, for example 'R' or 'S'.
inline char state_of(pid_t thread) {
    std::string text;
    std::getline(std::ifstream("/proc/" + std::to_string(thread) + "/stat"), text);
    return text.at(text.rfind(')') + 2);
}

/// Counts from its construction on. Needs tracefs, and the right to trace (perf_event_open(2)).
///
/// The kernel replaces instructions of its own when the first object is made and when the last one ends. In an emulated
/// machine with two CPUs, a CPU that runs such an instruction at that moment may repeat the old one for ever. A test
/// that makes several objects while other threads spin therefore holds one object meanwhile.
class ThreadCalls {
public:
    explicit ThreadCalls(pid_t thread) : thread_(thread) {
        std::uint64_t event = 0;
        if (!(std::ifstream("/sys/kernel/tracing/events/raw_syscalls/sys_enter/id") >> event)) {
            throw std::runtime_error("tracefs does not tell the number of raw_syscalls:sys_enter");
        }
        perf_event_attr attributes{};
        attributes.type = PERF_TYPE_TRACEPOINT;
        attributes.size = sizeof(attributes);
        attributes.config = event;
        fd_ = UniqueFd(static_cast<int>(::syscall(SYS_perf_event_open, &attributes, thread, -1, -1, 0)));
        if (!fd_.valid()) {
            throw std::runtime_error(std::string("perf_event_open: ") + std::strerror(errno));
        }
        waits_before_ = voluntary_switches();
    }

    [[nodiscard]] std::uint64_t calls() const {
        std::uint64_t count = 0;
        if (::read(fd_.get(), &count, sizeof(count)) != sizeof(count)) {
            throw std::runtime_error("a performance event cannot be read");
        }
        return count;
    }
    /// How often the thread gave up its CPU by itself.
    [[nodiscard]] std::uint64_t waits() const { return voluntary_switches() - waits_before_; }

private:
    [[nodiscard]] std::uint64_t voluntary_switches() const {
        std::ifstream status("/proc/" + std::to_string(thread_) + "/status");
        for (std::string line; std::getline(status, line);) {
            if (constexpr std::string_view kName = "voluntary_ctxt_switches:"; line.starts_with(kName)) {
                return std::stoull(line.substr(kName.size()));
            }
        }
        throw std::runtime_error("thread " + std::to_string(thread_) + " has no status");
    }

    pid_t thread_;
    UniqueFd fd_;
    std::uint64_t waits_before_ = 0;
};

}  // namespace pollcore::test
