#include "control/thread_sample.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <vector>

#include <fmt/format.h>

namespace pollcore {
namespace {

constexpr std::size_t kFileMax = 4 * 1024;
constexpr std::size_t kCpusFileMax = 64 * 1024;  // /proc/stat of a machine with some hundred CPUs

std::string read_again(const UniqueFd& file, std::size_t bytes_max = kFileMax) {
    std::string text(bytes_max, '\0');
    const ssize_t n = file.valid() ? ::pread(file.get(), text.data(), text.size(), 0) : -1;
    text.resize(n > 0 ? static_cast<std::size_t>(n) : 0);
    return text;
}

UniqueFd open_to_read(const std::string& path) {
    return UniqueFd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
}

std::vector<std::string_view> words_in(std::string_view text) {
    std::vector<std::string_view> words;
    while (!text.empty()) {
        const std::size_t begin = text.find_first_not_of(" \t\n");
        if (begin == std::string_view::npos) {
            break;
        }
        const std::size_t end = std::min(text.find_first_of(" \t\n", begin), text.size());
        words.push_back(text.substr(begin, end - begin));
        text.remove_prefix(end);
    }
    return words;
}

/// Returns 0 for a word that is no number.
std::uint64_t number_in(std::string_view word) noexcept {
    std::uint64_t value = 0;
    (void)std::from_chars(word.data(), word.data() + word.size(), value);
    return value;
}

/// The line that begins with `key`, without the key.
std::string_view line_of(std::string_view text, std::string_view key) {
    for (std::size_t at = 0; at < text.size();) {
        const std::size_t end = std::min(text.find('\n', at), text.size());
        const std::string_view line = text.substr(at, end - at);
        if (line.substr(0, key.size()) == key) {
            return line.substr(key.size());
        }
        at = end + 1;
    }
    return {};
}

std::chrono::nanoseconds clock_tick() noexcept {
    static const long per_second = ::sysconf(_SC_CLK_TCK);
    return std::chrono::seconds(1) / (per_second > 0 ? per_second : 100);
}

}  // namespace

// The second field is the thread's name in parentheses, which may contain spaces and parentheses.
std::optional<StatFields> parse_stat(std::string_view text) {
    const std::size_t name_end = text.rfind(')');
    if (name_end == std::string_view::npos) {
        return std::nullopt;
    }
    // Field numbers as in proc(5); the first word behind the name is field 3.
    constexpr std::size_t kFirst = 3, kMinorFaults = 10, kMajorFaults = 12, kKernelTicks = 15, kCpu = 39;
    const auto words = words_in(text.substr(name_end + 1));
    if (words.size() <= kCpu - kFirst) {
        return std::nullopt;
    }
    return StatFields{.minor_faults = number_in(words[kMinorFaults - kFirst]),
                      .major_faults = number_in(words[kMajorFaults - kFirst]),
                      .kernel_ticks = number_in(words[kKernelTicks - kFirst]),
                      .cpu = static_cast<int>(number_in(words[kCpu - kFirst]))};
}

void parse_status(std::string_view text, ThreadSample& sample) {
    const auto count = [&](std::string_view key, std::uint64_t& value) {
        if (const auto words = words_in(line_of(text, key)); !words.empty()) {
            value = number_in(words.front());
        }
    };
    count("voluntary_ctxt_switches:", sample.voluntary_switches);
    count("nonvoluntary_ctxt_switches:", sample.involuntary_switches);
}

void parse_schedstat(std::string_view text, ThreadSample& sample) {
    if (const auto words = words_in(text); words.size() >= 2) {
        sample.run_delay = std::chrono::nanoseconds(number_in(words[1]));
    }
}

void parse_cpu(std::string_view proc_stat, int cpu, std::chrono::nanoseconds tick, ThreadSample& sample) {
    // user nice system idle iowait irq softirq steal ...
    constexpr std::size_t kIrq = 5, kSoftIrq = 6, kSteal = 7;
    const auto words = words_in(line_of(proc_stat, fmt::format("cpu{} ", cpu)));
    if (words.size() > kSteal) {
        sample.interrupts = tick * static_cast<std::int64_t>(number_in(words[kIrq]) + number_in(words[kSoftIrq]));
        sample.steal = tick * static_cast<std::int64_t>(number_in(words[kSteal]));
    }
}

ThreadSample ThreadSample::since(const ThreadSample& before) const noexcept {
    return {.voluntary_switches = voluntary_switches - before.voluntary_switches,
            .involuntary_switches = involuntary_switches - before.involuntary_switches,
            .run_delay = run_delay - before.run_delay,
            .kernel = kernel - before.kernel,
            .minor_faults = minor_faults - before.minor_faults,
            .major_faults = major_faults - before.major_faults,
            .steal = steal - before.steal,
            .interrupts = interrupts - before.interrupts,
            .frequency = frequency};
}

std::string text_of(const ThreadSample& meanwhile) {
    std::string text;
    const auto say = [&](bool worth, const std::string& what) {
        if (worth) {
            text += text.empty() ? what : ", " + what;
        }
    };
    const auto ms = [](std::chrono::nanoseconds time) { return static_cast<double>(time.count()) / 1e6; };
    const auto times = [](std::uint64_t n, std::string_view one, std::string_view several) {
        return fmt::format("{} {}", n, n == 1 ? one : several);
    };
    constexpr auto kWorthDelay = std::chrono::microseconds(10);
    say(meanwhile.run_delay >= kWorthDelay, fmt::format("waited {:.2f} ms for its CPU", ms(meanwhile.run_delay)));
    say(meanwhile.involuntary_switches != 0,
        times(meanwhile.involuntary_switches, "involuntary switch", "involuntary switches"));
    say(meanwhile.voluntary_switches != 0,
        times(meanwhile.voluntary_switches, "wait in a system call", "waits in system calls"));
    say(meanwhile.steal.count() != 0, fmt::format("the hypervisor took {:.0f} ms", ms(meanwhile.steal)));
    say(meanwhile.interrupts.count() != 0, fmt::format("interrupts took {:.0f} ms", ms(meanwhile.interrupts)));
    say(meanwhile.kernel.count() != 0, fmt::format("ran {:.0f} ms in the kernel", ms(meanwhile.kernel)));
    say(meanwhile.major_faults != 0, times(meanwhile.major_faults, "page was read", "pages were read"));
    say(meanwhile.minor_faults != 0, times(meanwhile.minor_faults, "page fault", "page faults"));
    return text.empty() ? "the kernel counted nothing" : text;
}

ThreadSampler::ThreadSampler(pid_t thread) {
    const std::string directory = fmt::format("/proc/self/task/{}/", thread);
    stat_ = open_to_read(directory + "stat");
    status_ = open_to_read(directory + "status");
    schedstat_ = open_to_read(directory + "schedstat");
    cpus_ = open_to_read("/proc/stat");
}

std::optional<ThreadSample> ThreadSampler::sample(Cpu cpu) {
    const auto stat = parse_stat(read_again(stat_));
    if (!stat) {
        return std::nullopt;
    }
    if (cpu == Cpu::again || stat->cpu != cpu_) {
        read_cpu(stat->cpu);
    }
    ThreadSample sample = cpu_read_;
    sample.kernel = clock_tick() * static_cast<std::int64_t>(stat->kernel_ticks);
    sample.minor_faults = stat->minor_faults;
    sample.major_faults = stat->major_faults;
    parse_status(read_again(status_), sample);
    parse_schedstat(read_again(schedstat_), sample);
    return sample;
}

void ThreadSampler::read_cpu(int cpu) {
    if (cpu != cpu_) {
        cpu_ = cpu;
        frequency_ = open_to_read(fmt::format("/sys/devices/system/cpu/cpu{}/cpufreq/scaling_cur_freq", cpu));
    }
    parse_cpu(read_again(cpus_, kCpusFileMax), cpu, clock_tick(), cpu_read_);
    const auto words = words_in(read_again(frequency_));
    cpu_read_.frequency = words.empty() ? 0 : number_in(words.front());
}

}  // namespace pollcore
