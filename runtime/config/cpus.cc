#include "config/cpus.hpp"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <fstream>
#include <iterator>
#include <memory>
#include <vector>

#include <fmt/format.h>

#include "pollcore/error.hpp"

namespace pollcore::config {
namespace {

constexpr const char* kOnlineFile = "/sys/devices/system/cpu/online";
constexpr std::uint32_t kCpuNumberMax =
    1u << 20;  // far beyond any kernel's NR_CPUS: what is above is no CPU list

std::set<std::uint32_t> read_online() {
    std::ifstream file(kOnlineFile);
    std::string line;
    if (!std::getline(file, line)) {
        throw Error(ENOENT, fmt::format("reading {}, which says which CPUs there are (is /sys mounted?)",
                                        kOnlineFile));
    }
    return parse_cpu_list(line, kOnlineFile);
}

std::set<std::uint32_t> read_affinity(pid_t process) {
    // The kernel refuses a mask smaller than its own (EINVAL) and does not say how large that is.
    for (std::size_t cpus = CPU_SETSIZE; cpus <= kCpuNumberMax; cpus *= 2) {
        const std::size_t size = CPU_ALLOC_SIZE(cpus);
        std::vector<cpu_set_t> mask((size + sizeof(cpu_set_t) - 1) / sizeof(cpu_set_t));
        if (::sched_getaffinity(process, size, mask.data()) == 0) {
            std::set<std::uint32_t> result;
            for (std::uint32_t cpu = 0; cpu < cpus; ++cpu) {
                if (CPU_ISSET_S(cpu, size, mask.data())) {
                    result.insert(cpu);
                }
            }
            return result;
        }
        if (errno != EINVAL) {
            break;
        }
    }
    throw Error(errno,
                fmt::format("sched_getaffinity of process {}, to learn which CPUs it may use", process));
}

}  // namespace

Cpus Cpus::of_this_process() {
    Cpus cpus;
    cpus.online = read_online();
    const std::set<std::uint32_t> affinity = read_affinity(::getpid());
    std::set_intersection(cpus.online.begin(), cpus.online.end(), affinity.begin(), affinity.end(),
                          std::inserter(cpus.allowed, cpus.allowed.end()));
    return cpus;
}

std::string print_cpu_list(const std::set<std::uint32_t>& cpus) {
    std::string out;
    for (auto it = cpus.begin(); it != cpus.end();) {
        const std::uint32_t first = *it;
        std::uint32_t last = first;
        while (++it != cpus.end() && *it == last + 1) {
            last = *it;
        }
        out += out.empty() ? "" : ",";
        out += first == last ? fmt::format("{}", first) : fmt::format("{}-{}", first, last);
    }
    return out;
}

std::set<std::uint32_t> parse_cpu_list(std::string_view text, std::string_view source) {
    std::set<std::uint32_t> cpus;
    const char* at = text.data();
    const char* const end = at + text.size();
    const auto malformed = [&] {
        return Error(EINVAL,
                     fmt::format("{} says '{}', which is no list of CPUs such as 0-3,8", source, text));
    };
    const auto number = [&] {
        std::uint32_t value = 0;
        const auto [next, error] = std::from_chars(at, end, value);
        if (error != std::errc{} || value > kCpuNumberMax) {
            throw malformed();
        }
        at = next;
        return value;
    };
    while (at != end && *at != '\n') {
        const std::uint32_t first = number();
        std::uint32_t last = first;
        if (at != end && *at == '-') {
            ++at;
            last = number();
        }
        if (last < first) {
            throw malformed();
        }
        for (std::uint32_t cpu = first; cpu <= last; ++cpu) {
            cpus.insert(cpu);
        }
        if (at != end && *at == ',') {
            ++at;
        } else if (at != end && *at != '\n') {
            throw malformed();
        }
    }
    return cpus;
}

}  // namespace pollcore::config
