// What checks know: the files of the host, read twice, and what the configuration wants of it.
//
// Thread safety: one thread, as Tree.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "finding.hpp"
#include "pollcore/config.hpp"
#include "tree.hpp"

namespace pollcore::doctor {

/// A worker to judge the host for. Without a configuration, each CPU that this process may use is one without a name.
struct JudgedWorker {
    std::string name;
    std::uint32_t core = 0;
    bool sleeps = false;  ///< its idle ladder ends with "event", so its core goes idle
    bool yields = false;  ///< it shares its core by design

    [[nodiscard]] About about() const { return {.worker = name, .core = core, .device = {}}; }
};

/// A verbs device to judge.
struct JudgedDevice {
    std::string verbs_name;  ///< such as "mlx5_0"; empty if the configuration means the only device, and there is none
    std::string shown;       ///< for About::device
    std::uint32_t port = 1;
    std::string gid;  ///< address of the wanted GID; empty: the first of RoCE v2

    [[nodiscard]] About about() const { return {.worker = {}, .core = {}, .device = shown}; }
    /// "/sys/class/infiniband/mlx5_0", where sysfs-class-infiniband (Documentation/ABI/stable) has the device.
    [[nodiscard]] std::string directory() const { return "/sys/class/infiniband/" + verbs_name; }
    [[nodiscard]] std::string port_directory() const { return directory() + "/ports/" + std::to_string(port); }
};

/// A worker of a runtime that runs on this host. Anybody can make such an entry, so it only keeps polldoctor from a
/// core.
struct RunningWorker {
    std::uint32_t core = 0;
    std::uint32_t pid = 0;  ///< 0: not known
    std::uint32_t thread = 0;
    std::string who;  ///< printable, such as: process 12 "pollcored", worker "worker0"
};

/// The value of a line "key value" in a file below /asked.
[[nodiscard]] std::optional<double> asked_number(const Tree& tree, const std::string& file, std::string_view key);
/// The rest of a line that begins with "key".
[[nodiscard]] std::optional<std::string> asked_text(const Tree& tree, const std::string& file, std::string_view key);

class Facts {
public:
    /// `later` is a second reading of the files that count something, or null. Both trees must outlive this object.
    /// `config` is null if there is no configuration; `refused` says why pollcored would refuse it, if it would.
    Facts(const Tree& now, const Tree* later, const Config* config, std::string config_file, std::string refused);

    [[nodiscard]] const Tree& now() const noexcept { return now_; }
    [[nodiscard]] const Tree* later() const noexcept { return later_; }
    /// The time between the two readings, by /proc/uptime; 0 if there is only one.
    [[nodiscard]] double seconds() const noexcept { return seconds_; }

    [[nodiscard]] const Config* config() const noexcept { return config_; }
    [[nodiscard]] const std::string& config_file() const noexcept { return config_file_; }
    [[nodiscard]] const std::string& refused() const noexcept { return refused_; }

    [[nodiscard]] const std::vector<JudgedWorker>& workers() const noexcept { return workers_; }
    [[nodiscard]] const std::vector<JudgedDevice>& devices() const noexcept { return devices_; }
    [[nodiscard]] const std::vector<RunningWorker>& running() const noexcept { return running_; }
    /// The running worker that uses the core, or null.
    [[nodiscard]] const RunningWorker* running_on(std::uint32_t core) const noexcept;

    [[nodiscard]] const std::set<std::uint32_t>& online() const noexcept { return online_; }
    /// The workers' cores as a list, such as "2-3".
    [[nodiscard]] std::string cores() const;
    [[nodiscard]] std::set<std::uint32_t> core_set() const;
    /// The other CPUs that are online, on which everything else should run.
    [[nodiscard]] std::string other_cpus() const;
    /// The commands, or none if all CPUs are workers': then nothing can be sent elsewhere.
    [[nodiscard]] std::vector<Command> if_others(std::vector<Command> commands) const;

    /// The directory in /proc of the process that limits concern: the running runtime of a judged worker, else this
    /// process.
    [[nodiscard]] std::string process() const;
    [[nodiscard]] std::string process_text() const;

private:
    const Tree& now_;
    const Tree* later_;
    double seconds_ = 0;
    const Config* config_;
    std::string config_file_;
    std::string refused_;
    std::vector<JudgedWorker> workers_;
    std::vector<JudgedDevice> devices_;
    std::vector<RunningWorker> running_;
    std::set<std::uint32_t> online_;
};

/// The judged devices that this host has. The check device-present says all about the others.
[[nodiscard]] std::vector<JudgedDevice> present_devices(const Facts& facts);

/// The CPUs in a file such as /sys/devices/system/cpu/isolated, or nothing if it cannot be read or has no list.
[[nodiscard]] std::optional<std::set<std::uint32_t>> cpus_in(const Tree& tree, const std::string& file);
/// The CPUs that the process of polldoctor may use by its affinity (proc_pid_status(5)).
[[nodiscard]] std::set<std::uint32_t> allowed_cpus(const Tree& tree);
/// The value of a parameter of the kernel's command line, such as "1-3" of "rcu_nocbs=1-3". An empty text if it has no
/// value, nothing if it is not there.
[[nodiscard]] std::optional<std::string> kernel_parameter(const Tree& tree, std::string_view name);

/// What the spinning thread of this run saw on the core, as the cost of anything that disturbs it. If the core was not
/// measured: `otherwise`.
[[nodiscard]] Cost cost_on(const Facts& facts, std::uint32_t core, const std::string& otherwise);

/// The file below /asked that has what a spinning thread on the core saw (spin_gap.hpp).
[[nodiscard]] std::string spin_file(std::uint32_t core);
/// Round trips are measured between this many CPUs at most: the pairs grow with their square.
inline constexpr std::size_t kRoundTripCpusMax = 16;
/// The pairs of the judged workers' cores; none if there are more than kRoundTripCpusMax.
[[nodiscard]] std::vector<std::pair<std::uint32_t, std::uint32_t>> round_trip_pairs(const Facts& facts);
/// The file below /asked that has the round trip between two cores.
[[nodiscard]] std::string round_trip_file(std::uint32_t a, std::uint32_t b);
inline constexpr const char* kRunningFile = "/asked/running";

/// A share, such as "12%" or "0.03%".
[[nodiscard]] std::string percent_text(double share);
/// A duration, such as "812 us".
[[nodiscard]] std::string duration_text(double ns);

}  // namespace pollcore::doctor
