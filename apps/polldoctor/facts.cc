#include "facts.hpp"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <sstream>
#include <utility>

#include <fmt/format.h>

#include "config/cpus.hpp"
#include "pollcore/error.hpp"

namespace pollcore::doctor {
namespace {

// The most CPUs that any kernel is built for. A copied tree may say anything.
constexpr std::size_t kCpusMax = 8192;

std::vector<RunningWorker> running_in(const Tree& tree) {
    std::vector<RunningWorker> all;
    std::istringstream lines(tree.read(kRunningFile).text);
    RunningWorker one;
    while (lines >> one.core >> one.pid >> one.thread && std::getline(lines >> std::ws, one.who)) {
        all.push_back(one);
    }
    return all;
}

std::vector<JudgedWorker> workers_of(const Config* config, const Tree& tree) {
    std::vector<JudgedWorker> all;
    if (config == nullptr) {
        for (const std::uint32_t cpu : allowed_cpus(tree)) {
            if (all.size() < kCpusMax) {
                all.push_back({.name = {}, .core = cpu});
            }
        }
        return all;
    }
    for (const WorkerConfig& worker : config->workers) {
        all.push_back({.name = worker.name,
                       .core = worker.core,
                       .sleeps = worker.idle.has(IdlePolicy::event),
                       .yields = worker.idle.has(IdlePolicy::yield)});
    }
    return all;
}

std::vector<JudgedDevice> devices_of(const Config* config, const Tree& tree) {
    const std::vector<std::string>& there = tree.list("/sys/class/infiniband");
    std::vector<JudgedDevice> all;
    if (config == nullptr) {
        for (const std::string& name : there) {
            all.push_back({.verbs_name = name, .shown = name, .port = 1, .gid = {}});
        }
        return all;
    }
    for (const DeviceConfig& device : config->devices) {
        if (device.kind != DeviceConfig::Kind::verbs) {
            continue;
        }
        const std::string name = !device.verbs_name.empty() ? device.verbs_name
                                 : there.size() == 1        ? there.front()
                                                            : std::string();
        all.push_back(
            {.verbs_name = name, .shown = name.empty() ? device.name : name, .port = device.port, .gid = device.gid});
    }
    return all;
}

}  // namespace

std::optional<std::string> asked_text(const Tree& tree, const std::string& file, std::string_view key) {
    std::istringstream lines(tree.read(file).text);
    for (std::string line; std::getline(lines, line);) {
        if (line.starts_with(key) && line.size() > key.size() && line[key.size()] == ' ') {
            return line.substr(key.size() + 1);
        }
    }
    return std::nullopt;
}

std::optional<double> asked_number(const Tree& tree, const std::string& file, std::string_view key) {
    const std::optional<std::string> text = asked_text(tree, file, key);
    double value = 0;
    if (!text || std::from_chars(text->data(), text->data() + text->size(), value).ec != std::errc()) {
        return std::nullopt;
    }
    return value;
}

Facts::Facts(const Tree& now, const Tree* later, const Config* config, std::string config_file, std::string refused)
    : now_(now),
      later_(later),
      config_(config),
      config_file_(std::move(config_file)),
      refused_(std::move(refused)),
      workers_(workers_of(config, now)),
      devices_(devices_of(config, now)),
      running_(running_in(now)),
      online_(cpus_in(now, "/sys/devices/system/cpu/online").value_or(std::set<std::uint32_t>())) {
    if (later != nullptr) {
        const auto begin = now.number("/proc/uptime");
        const auto end = later->number("/proc/uptime");
        seconds_ = begin && end && *end > *begin ? *end - *begin : 0;
    }
    if (seconds_ <= 0) {
        later_ = nullptr;
    }
}

const RunningWorker* Facts::running_on(std::uint32_t core) const noexcept {
    const auto found =
        std::find_if(running_.begin(), running_.end(), [&](const RunningWorker& each) { return each.core == core; });
    return found != running_.end() ? &*found : nullptr;
}

std::set<std::uint32_t> Facts::core_set() const {
    std::set<std::uint32_t> cores;
    for (const JudgedWorker& worker : workers_) {
        cores.insert(worker.core);
    }
    return cores;
}

std::string Facts::cores() const {
    return config::print_cpu_list(core_set());
}

std::string Facts::other_cpus() const {
    std::set<std::uint32_t> cpus = online_;
    for (const std::uint32_t core : core_set()) {
        cpus.erase(core);
    }
    return config::print_cpu_list(cpus);
}

std::vector<Command> Facts::if_others(std::vector<Command> commands) const {
    return other_cpus().empty() ? std::vector<Command>() : commands;
}

std::string Facts::process() const {
    for (const JudgedWorker& worker : workers_) {
        if (const RunningWorker* const running = running_on(worker.core); running != nullptr && running->pid != 0) {
            return fmt::format("/proc/{}", running->pid);
        }
    }
    return "/proc/self";
}

std::string Facts::process_text() const {
    const std::string directory = process();
    return directory == "/proc/self" ? "of this process (pollcored's may differ)"
                                     : "of process " + directory.substr(sizeof("/proc/") - 1);
}

std::vector<JudgedDevice> present_devices(const Facts& facts) {
    const std::vector<std::string>& there = facts.now().list("/sys/class/infiniband");
    std::vector<JudgedDevice> all = facts.devices();
    std::erase_if(all, [&](const JudgedDevice& device) {
        return std::find(there.begin(), there.end(), device.verbs_name) == there.end();
    });
    return all;
}

std::optional<std::set<std::uint32_t>> cpus_in(const Tree& tree, const std::string& file) {
    const std::optional<std::string> text = tree.line(file);
    if (!text) {
        return std::nullopt;
    }
    try {
        return config::parse_cpu_list(*text, file);
    } catch (const Error&) {
        return std::nullopt;  // such as "(null)" in nohz_full
    }
}

std::set<std::uint32_t> allowed_cpus(const Tree& tree) {
    std::istringstream lines(tree.read("/proc/self/status").text);
    constexpr std::string_view kKey = "Cpus_allowed_list:";
    for (std::string line; std::getline(lines, line);) {
        if (line.starts_with(kKey)) {
            try {
                const std::size_t at = line.find_first_not_of(" \t", kKey.size());
                return config::parse_cpu_list(line.substr(std::min(at, line.size())), "/proc/self/status");
            } catch (const Error&) {
                break;
            }
        }
    }
    return cpus_in(tree, "/sys/devices/system/cpu/online").value_or(std::set<std::uint32_t>());
}

std::optional<std::string> kernel_parameter(const Tree& tree, std::string_view name) {
    std::istringstream words(tree.read("/proc/cmdline").text);
    std::optional<std::string> value;
    for (std::string word; words >> word && word != "--";) {  // what follows "--" is for init
        const std::string_view key = std::string_view(word).substr(0, word.find('='));
        if (key == name) {
            value = key.size() == word.size() ? "" : word.substr(key.size() + 1);
        }
    }
    return value;
}

std::string spin_file(std::uint32_t core) {
    return fmt::format("/asked/spin/{}", core);
}

std::vector<std::pair<std::uint32_t, std::uint32_t>> round_trip_pairs(const Facts& facts) {
    const std::set<std::uint32_t> cores = facts.core_set();
    std::vector<std::pair<std::uint32_t, std::uint32_t>> pairs;
    for (auto a = cores.begin(); a != cores.end() && cores.size() <= kRoundTripCpusMax; ++a) {
        for (auto b = std::next(a); b != cores.end(); ++b) {
            pairs.emplace_back(*a, *b);
        }
    }
    return pairs;
}

std::string round_trip_file(std::uint32_t a, std::uint32_t b) {
    return fmt::format("/asked/round-trip/{}-{}", std::min(a, b), std::max(a, b));
}

std::string duration_text(double ns) {
    return ns < 1e3   ? fmt::format("{:.0f} ns", ns)
           : ns < 1e6 ? fmt::format("{:.{}f} us", ns / 1e3, ns < 1e4 ? 1 : 0)
           : ns < 1e9 ? fmt::format("{:.{}f} ms", ns / 1e6, ns < 1e7 ? 1 : 0)
                      : fmt::format("{:.1f} s", ns / 1e9);
}

std::string percent_text(double share) {
    const double percent = 100 * share;
    return percent >= 1 ? fmt::format("{:.0f}%", percent) : fmt::format("{:.2g}%", percent);
}

Cost cost_on(const Facts& facts, std::uint32_t core, const std::string& otherwise) {
    const auto lost = asked_number(facts.now(), spin_file(core), "lost_ns");
    const auto spun = asked_number(facts.now(), spin_file(core), "spun_ns");
    const std::string prefix = otherwise.empty() ? "" : otherwise + "; ";
    if (!lost || !spun || *spun <= 0) {
        return Cost::not_measured(prefix + "not measured here");
    }
    return Cost::measured(fmt::format("{}a thread that spun there lost {} of its time, by all causes together", prefix,
                                      percent_text(*lost / *spun)));
}

}  // namespace pollcore::doctor
