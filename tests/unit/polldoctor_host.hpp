// A host of files: /proc and /sys in a directory of their own, as polldoctor --root reads them.
//
// Thread safety: one thread.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "polldoctor/checks.hpp"
#include "polldoctor/wanted_config.hpp"

namespace pollcore::doctor {

/// Paths and contents. No content: there is no such file.
using Files = std::map<std::string, std::optional<std::string>>;

class FakeHost {
public:
    FakeHost() {
        std::string name = (std::filesystem::temp_directory_path() / "polldoctor-XXXXXX").string();
        if (::mkdtemp(name.data()) == nullptr) {
            ADD_FAILURE() << "no directory " << name;
        }
        root_ = name;
    }
    ~FakeHost() {
        std::error_code error;
        std::filesystem::remove_all(root_, error);
    }
    FakeHost(const FakeHost&) = delete;
    FakeHost& operator=(const FakeHost&) = delete;

    void write(const Files& files) const {
        for (const auto& [path, content] : files) {
            const std::filesystem::path file = root_ / path.substr(1);
            if (!content) {
                std::filesystem::remove_all(file);
                continue;
            }
            std::filesystem::create_directories(file.parent_path());
            std::ofstream(file) << *content;
        }
    }
    /// Undoes write(changed) on a host that had `files` before.
    void restore(const Files& changed, const Files& files) const {
        for (const auto& [path, content] : changed) {
            std::filesystem::remove_all(root_ / path.substr(1));
            Files gone;
            for (auto each = files.lower_bound(path); each != files.end() && each->first.starts_with(path); ++each) {
                gone.insert(*each);
            }
            write(gone);
        }
    }
    [[nodiscard]] const std::filesystem::path& root() const { return root_; }

    /// Judges the host for this configuration; for none if the text is empty.
    [[nodiscard]] std::vector<Finding> judged(const std::string& config) const {
        const Tree now(root_);
        const Tree later(root_ / kLaterDirectory);
        if (!config.empty()) {
            std::ofstream(root_ / "config.toml") << config;
        }
        const WantedConfig wanted = wanted_config(root_ / "config.toml", !config.empty(), now);
        return judge(Facts(now, &later, wanted.config ? &*wanted.config : nullptr, "config.toml", wanted.refused));
    }

private:
    std::filesystem::path root_;
};

/// A configuration for good_host().
inline constexpr const char* kGoodConfig = R"(
[[device]]
name = "nic0"
kind = "verbs"
verbs_name = "mlx5_0"
gid = "192.0.2.7"
[[worker]]
name = "worker0"
core = 2
[[worker]]
name = "worker1"
core = 3
)";

/// A host on which all is well: four CPUs in two NUMA nodes, and a NIC. Workers are on CPUs 2 and 3.
[[nodiscard]] inline Files good_host() {
    Files files{
        {"/proc/cmdline", "BOOT_IMAGE=/vmlinuz isolcpus=managed_irq,domain,2-3 nohz_full=2-3 rcu_nocbs=2-3\n"},
        {"/proc/cpuinfo", "processor\t: 0\nflags\t\t: fpu tsc constant_tsc nonstop_tsc waitpkg\n"},
        {"/proc/version", "Linux version 6.1.0\n"},
        {"/proc/uptime", "1000.00 900.00\n"},
        {"/later/proc/uptime", "1002.00 900.00\n"},
        {"/proc/interrupts",
         "       CPU0 CPU1 CPU2 CPU3\n 24:  5  0  0  0  PCI-MSI-0000:3b:00.0 0-edge mlx5_async0\n"
         "LOC:  900 900 10 10 Local timer interrupts\nTLB: 0 0 0 0 TLB shootdowns\n"},
        {"/later/proc/interrupts",
         "       CPU0 CPU1 CPU2 CPU3\n 24:  9  0  0  0  PCI-MSI-0000:3b:00.0 0-edge mlx5_async0\n"
         "LOC:  1900 1900 11 10 Local timer interrupts\nTLB: 0 0 0 0 TLB shootdowns\n"},
        {"/proc/softirqs", "   CPU0 CPU1 CPU2 CPU3\n TIMER: 5 5 0 0\n NET_RX: 7 0 0 0\n"},
        {"/later/proc/softirqs", "   CPU0 CPU1 CPU2 CPU3\n TIMER: 50 50 0 0\n NET_RX: 7 0 0 0\n"},
        {"/proc/schedstat", "version 15\ncpu2 0 0 0 0 0 0 100 50 3\ncpu3 0 0 0 0 0 0 100 50 3\n"},
        {"/later/proc/schedstat", "version 15\ncpu2 0 0 0 0 0 0 100 50 3\ncpu3 0 0 0 0 0 0 100 50 3\n"},
        {"/proc/stat", "cpu 1 0 0 100 0 0 0 0 0 0\ncpu2 0 0 0 100 0 0 0 0 0 0\ncpu3 0 0 0 100 0 0 0 0 0 0\n"},
        {"/later/proc/stat", "cpu 1 0 0 900 0 0 0 0 0 0\ncpu2 0 0 0 300 0 0 0 0 0 0\ncpu3 0 0 0 300 0 0 0 0 0 0\n"},
        {"/proc/meminfo", "MemTotal: 8000000 kB\nHugePages_Total: 64\nHugePages_Free: 64\nHugepagesize: 2048 kB\n"},
        {"/proc/swaps", "Filename Type Size Used Priority\n"},
        {"/proc/irq/24/effective_affinity_list", "0\n"},
        {"/proc/self/status", "Name:\tpolldoctor\nCapEff:\t0000000000000000\nCpus_allowed_list:\t0-3\n"},
        {"/proc/self/limits", "Limit Soft Limit Hard Limit Units\nMax locked memory unlimited unlimited bytes\n"},
        {"/proc/self/cgroup", "0::/system.slice/ssh.service\n"},
        {"/sys/fs/cgroup/system.slice/ssh.service/cpuset.cpus.effective", "0-3\n"},
        {"/sys/fs/cgroup/system.slice/ssh.service/cpu.max", "max 100000\n"},
        {"/proc/sys/kernel/sched_autogroup_enabled", "0\n"},
        {"/proc/sys/kernel/sched_rt_runtime_us", "950000\n"},
        {"/proc/sys/kernel/sched_rt_period_us", "1000000\n"},
        {"/proc/sys/kernel/numa_balancing", "0\n"},
        {"/sys/devices/system/cpu/online", "0-3\n"},
        {"/sys/devices/system/cpu/isolated", "2-3\n"},
        {"/sys/devices/system/cpu/nohz_full", "2-3\n"},
        {"/sys/devices/system/cpu/vulnerabilities/meltdown", "Not affected\n"},
        {"/sys/devices/system/cpu/vulnerabilities/spectre_v2", "Mitigation: Enhanced IBRS\n"},
        {"/sys/devices/virtual/workqueue/cpumask", "3\n"},
        {"/sys/devices/system/clocksource/clocksource0/current_clocksource", "tsc\n"},
        {"/sys/devices/system/clocksource/clocksource0/available_clocksource", "tsc hpet acpi_pm\n"},
        {"/sys/devices/system/node/node0/cpulist", "0,2-3\n"},
        {"/sys/devices/system/node/node0/distance", "10 21\n"},
        {"/sys/devices/system/node/node0/hugepages/hugepages-2048kB/free_hugepages", "32\n"},
        {"/sys/devices/system/node/node1/cpulist", "1\n"},
        {"/sys/devices/system/node/node1/distance", "21 10\n"},
        {"/sys/devices/system/node/node1/hugepages/hugepages-2048kB/free_hugepages", "32\n"},
        {"/sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n"},
        {"/sys/kernel/mm/transparent_hugepage/defrag", "always defer defer+madvise [madvise] never\n"},
        {"/asked/round-trip/2-3", "typical_ns 60.5\np99_ns 80\n"},
        {"/asked/running", ""},
        {"/asked/port/mlx5_0/1", "active_mtu 4096\nmax_mtu 4096\n"},
        {"/asked/dcb/eth0", "pfc_enabled 8\n"},
        {"/sys/class/net/eth0/mtu", "9000\n"},
        {"/sys/class/net/eth0/ecn/roce_np/enable/3", "1\n"},
        {"/sys/class/net/eth0/ecn/roce_rp/enable/3", "1\n"},
        {"/sys/class/infiniband/mlx5_0/fw_ver", "22.36.1010\n"},
        {"/sys/class/infiniband/mlx5_0/device/numa_node", "0\n"},
        {"/sys/class/infiniband/mlx5_0/device/uevent", "DRIVER=mlx5_core\nPCI_SLOT_NAME=0000:3b:00.0\n"},
        {"/sys/class/infiniband/mlx5_0/device/current_link_speed", "16.0 GT/s PCIe\n"},
        {"/sys/class/infiniband/mlx5_0/device/max_link_speed", "16.0 GT/s PCIe\n"},
        {"/sys/class/infiniband/mlx5_0/device/current_link_width", "16\n"},
        {"/sys/class/infiniband/mlx5_0/device/max_link_width", "16\n"},
        {"/sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE\n"},
        {"/sys/class/infiniband/mlx5_0/ports/1/rate", "100 Gb/sec (2X HDR)\n"},
        {"/sys/class/infiniband/mlx5_0/ports/1/link_layer", "Ethernet\n"},
        {"/sys/class/infiniband/mlx5_0/ports/1/gids/0", "fe80:0000:0000:0000:0000:0000:0000:0001\n"},
        {"/sys/class/infiniband/mlx5_0/ports/1/gids/1", "0000:0000:0000:0000:0000:ffff:c000:0207\n"},
        {"/sys/class/infiniband/mlx5_0/ports/1/gids/2", "0000:0000:0000:0000:0000:ffff:c000:0207\n"},
        {"/sys/class/infiniband/mlx5_0/ports/1/gid_attrs/types/0", "IB/RoCE v1\n"},
        {"/sys/class/infiniband/mlx5_0/ports/1/gid_attrs/types/1", "IB/RoCE v1\n"},
        {"/sys/class/infiniband/mlx5_0/ports/1/gid_attrs/types/2", "RoCE v2\n"},
        {"/sys/class/infiniband/mlx5_0/ports/1/gid_attrs/ndevs/0", "eth0\n"},
        {"/sys/class/infiniband/mlx5_0/ports/1/hw_counters/out_of_buffer", "0\n"},
        {"/sys/class/infiniband/mlx5_0/ports/1/hw_counters/np_cnp_sent", "0\n"},
        {"/sys/class/infiniband/mlx5_0/ports/1/counters/port_rcv_errors", "0\n"},
        {"/sys/class/infiniband/mlx5_0/ports/1/counters/port_rcv_data", "123456\n"},
    };
    // The PCIe capability at 0x60, with relaxed ordering enabled.
    std::string space(256, '\0');
    space[0x34] = 0x40;
    space[0x40] = 0x05;  // another capability first
    space[0x41] = 0x60;
    space[0x60] = 0x10;
    space[0x68] = 0x10;
    files["/sys/class/infiniband/mlx5_0/device/config"] = space;
    for (const char* const cpu : {"2", "3"}) {
        const std::string directory = std::string("/sys/devices/system/cpu/cpu") + cpu;
        files[directory + "/topology/thread_siblings_list"] = std::string(cpu) + "\n";
        files[directory + "/cpufreq/scaling_governor"] = "performance\n";
        files[directory + "/cpufreq/scaling_driver"] = "intel_pstate\n";
        files[directory + "/cpufreq/scaling_cur_freq"] = "3000000\n";
        files[directory + "/cpufreq/cpuinfo_max_freq"] = "3500000\n";
        files[directory + "/cpuidle/state0/name"] = "POLL\n";
        files[directory + "/cpuidle/state0/latency"] = "0\n";
        files[directory + "/cpuidle/state0/disable"] = "0\n";
        files[directory + "/cpuidle/state1/name"] = "C1\n";
        files[directory + "/cpuidle/state1/latency"] = "2\n";
        files[directory + "/cpuidle/state1/disable"] = "0\n";
        files[directory + "/cache/index3/level"] = "3\n";
        files[directory + "/cache/index3/shared_cpu_list"] = "0,2-3\n";
        files[std::string("/asked/spin/") + cpu] =
            "spun_ns 1000000000\nlongest_ns 1800\nlost_ns 1800\ngaps 1\ninvoluntary 0\n";
    }
    return files;
}

}  // namespace pollcore::doctor
