#include "threads.hpp"

#include <sys/utsname.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <sstream>

#include <fmt/format.h>

#include "pollcore/error.hpp"

namespace pollcore::perf {

PinnedScope::PinnedScope(std::uint32_t cpu) {
    if (::sched_getaffinity(0, sizeof before_, &before_) != 0) {
        throw Error(errno, "asking which CPUs this thread may run on");
    }
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    if (::sched_setaffinity(0, sizeof one, &one) != 0) {
        throw Error(errno, fmt::format("pinning the application's thread to CPU {}; choose another with --core", cpu));
    }
}

PinnedScope::~PinnedScope() {
    // The thread was allowed to use these CPUs before. If it no longer is, the call fails and the thread stays pinned.
    (void)::sched_setaffinity(0, sizeof before_, &before_);
}

int this_thread_id() {
    return ::gettid();
}

ContextSwitches context_switches(int thread_id) {
    const std::string path = fmt::format("/proc/self/task/{}/status", thread_id);
    std::ifstream file(path);
    ContextSwitches switches;
    int found = 0;
    for (std::string line; std::getline(file, line);) {
        std::istringstream words(line);
        std::string key;
        words >> key;
        if (key == "voluntary_ctxt_switches:") {
            found += static_cast<bool>(words >> switches.voluntary);
        } else if (key == "nonvoluntary_ctxt_switches:") {
            found += static_cast<bool>(words >> switches.involuntary);
        }
    }
    if (found != 2) {
        throw Error(ENODATA, fmt::format("reading the context switches of thread {} from {}", thread_id, path));
    }
    return switches;
}

std::uint64_t cpu_time_ns(int thread_id) {
    const std::string path = fmt::format("/proc/self/task/{}/schedstat", thread_id);
    std::ifstream file(path);
    std::uint64_t ns = 0;
    if (!(file >> ns)) {
        throw Error(ENODATA, fmt::format("reading the CPU time of thread {} from {}", thread_id, path));
    }
    return ns;
}

std::uint64_t steal_ms() {
    std::ifstream file("/proc/stat");
    std::string word;
    std::uint64_t user = 0, nice = 0, system = 0, idle = 0, io_wait = 0, irq = 0, soft_irq = 0, steal = 0;
    file >> word >> user >> nice >> system >> idle >> io_wait >> irq >> soft_irq >> steal;
    const auto ticks_per_second = static_cast<std::uint64_t>(::sysconf(_SC_CLK_TCK));
    return steal * 1000 / ticks_per_second;  // 0 if the kernel does not count steal time
}

Machine this_machine() {
    Machine machine;
    machine.cpus_online = static_cast<std::uint32_t>(::sysconf(_SC_NPROCESSORS_ONLN));
    std::ifstream file("/proc/cpuinfo");
    for (std::string line; machine.cpu_model.empty() && std::getline(file, line);) {
        if (line.starts_with("model name")) {
            const auto colon = line.find(": ");
            machine.cpu_model = colon == std::string::npos ? "" : line.substr(colon + 2);
        }
    }
    utsname name{};
    (void)::uname(&name);  // cannot fail with a valid pointer
    if (machine.cpu_model.empty()) {
        machine.cpu_model = name.machine;
    }
    machine.kernel = fmt::format("{} {}", name.sysname, name.release);
    return machine;
}

}  // namespace pollcore::perf
