#include "config/cpus.hpp"

#include <sched.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <fstream>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "pollcore/error.hpp"

namespace pollcore::config {
namespace {

constexpr const char* kOnlineFile = "/sys/devices/system/cpu/online";
constexpr std::uint32_t kCpuNumberMax = 1u << 20;  // far beyond any kernel's NR_CPUS, so no CPU has a larger number

std::set<std::uint32_t> read_online() {
    std::ifstream file(kOnlineFile);
    std::string line;
    if (!std::getline(file, line)) {
        throw Error(ENOENT, fmt::format("reading {}, which says which CPUs there are (is /sys mounted?)", kOnlineFile));
    }
    return parse_cpu_list(line, kOnlineFile);
}

// A mask of the kernel, large enough for each CPU that is online.
class CpuMask {
public:
    explicit CpuMask(const std::set<std::uint32_t>& online) : cpus_(*online.rbegin() + std::size_t{1}) {
        const std::size_t size = std::max(CPU_ALLOC_SIZE(cpus_), sizeof(cpu_set_t));
        mask_.resize((size + sizeof(cpu_set_t) - 1) / sizeof(cpu_set_t));
        for (const std::uint32_t cpu : online) {
            CPU_SET_S(cpu, bytes(), mask_.data());
        }
    }

    // Each returns whether the kernel accepts.
    [[nodiscard]] bool pin_this_thread() const { return ::sched_setaffinity(0, bytes(), mask_.data()) == 0; }
    [[nodiscard]] bool read_this_thread() { return ::sched_getaffinity(0, bytes(), mask_.data()) == 0; }

    [[nodiscard]] std::set<std::uint32_t> cpus() const {
        std::set<std::uint32_t> result;
        for (std::uint32_t cpu = 0; cpu < cpus_; ++cpu) {
            if (CPU_ISSET_S(cpu, bytes(), mask_.data())) {
                result.insert(cpu);
            }
        }
        return result;
    }

private:
    [[nodiscard]] std::size_t bytes() const noexcept { return mask_.size() * sizeof(cpu_set_t); }

    std::size_t cpus_;
    std::vector<cpu_set_t> mask_;
};

[[noreturn]] void refuse(int error) {
    throw Error(error, "asking the kernel which CPUs this process may use");
}

// The cpuset: the CPUs that the kernel grants to a thread that asks for all CPUs. A temporary thread asks, so that no
// other thread's affinity changes.
std::set<std::uint32_t> read_cpuset(const std::set<std::uint32_t>& online) {
    CpuMask mask(online);
    int error = 0;
    std::thread([&] {
        if (!mask.pin_this_thread() || !mask.read_this_thread()) {
            error = errno;
        }
    }).join();
    if (error != 0) {
        refuse(error);
    }
    return mask.cpus();
}

std::set<std::uint32_t> read_affinity(const std::set<std::uint32_t>& online) {
    CpuMask mask(online);
    if (!mask.read_this_thread()) {
        refuse(errno);
    }
    return mask.cpus();
}

// Whether the CPU has WAITPKG. Intel SDM: CPUID leaf 7, subleaf 0, ECX bit 5.
bool has_waitpkg() noexcept {
#if defined(__x86_64__)
    unsigned eax = 0;
    unsigned ebx = 0;
    unsigned ecx = 0;
    unsigned edx = 0;
    return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 && (ecx & (1u << 5)) != 0;
#else
    return false;
#endif
}

}  // namespace

Cpus Cpus::of_this_process() {
    Cpus cpus;
    cpus.online = read_online();
    cpus.allowed = read_cpuset(cpus.online);
    cpus.waitpkg = has_waitpkg();
    cpus.bound = read_affinity(cpus.online);
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
        return Error(EINVAL, fmt::format("{} says '{}', which is no list of CPUs such as 0-3,8", source, text));
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
