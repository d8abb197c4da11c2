// What each check of polldoctor says of a good host, and of one on which one thing is wrong.
#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "polldoctor_host.hpp"

namespace pollcore::doctor {
namespace {

const std::string kIb = "/sys/class/infiniband/mlx5_0";
const std::string kPort = kIb + "/ports/1";
const std::string kCpu2 = "/sys/devices/system/cpu/cpu2";
const std::string kCpu3 = "/sys/devices/system/cpu/cpu3";
constexpr int kPermission = 13;  // EACCES in /asked/unreadable

/// A host that differs from the good one in these files, and one finding that it gets.
struct Case {
    std::string name;
    Files files;
    std::string id;
    Severity severity{};
    std::string seen;  ///< a part of what is seen
    std::string config = kGoodConfig;
    bool judged = true;
};

std::string with_idle(const std::string& idle) {
    std::string config = kGoodConfig;
    config.insert(config.find("core = 2"), "idle = \"" + idle + "\"\n");
    return config;
}

std::string unreadable(const std::string& path) {
    return std::to_string(kPermission) + " " + path + "\n";
}

std::vector<Case> cases() {
    using enum Severity;
    const std::string interrupts =
        "CPU0 CPU1 CPU2 CPU3\n 24: 9 0 70 0 PCI-MSI 0-edge mlx5_comp0\nLOC: 1900 1900 11 10 Local\nTLB: 0 0 0 0 "
        "shootdowns\n";
    std::string no_relaxed_ordering = *good_host().at(kIb + "/device/config");
    no_relaxed_ordering[0x68] = 0;
    return {
        {"AConfigurationThatThisHostRefuses",
         {},
         "configuration",
         fault,
         "core",
         std::string(kGoodConfig) + "[[worker]]\nname = \"worker2\"\ncore = 9\n"},
        {"ACoreThatIsNotThere",
         {},
         "core-online",
         fault,
         "CPUs 0-3 are",
         std::string(kGoodConfig) + "[[worker]]\nname = \"worker2\"\ncore = 9\n"},
        {"ACoreThatIsNotIsolated",
         {{"/sys/devices/system/cpu/isolated", "3\n"}},
         "isolated-core",
         warning,
         "not isolated"},
        {"NoCoreIsIsolated", {{"/sys/devices/system/cpu/isolated", "\n"}}, "isolated-core", warning, "not isolated"},
        {"IsolatedByAPartition",
         {{"/sys/devices/system/cpu/isolated", "\n"}, {"/sys/fs/cgroup/cpuset.cpus.isolated", "2-3\n"}},
         "isolated-core",
         ok,
         "partition"},
        {"AnIsolationThatNobodyMayRead",
         {{"/sys/devices/system/cpu/isolated", std::nullopt},
          {"/asked/unreadable", unreadable("/sys/devices/system/cpu/isolated")}},
         "isolated-core",
         note,
         "not readable (Permission denied)",
         kGoodConfig,
         false},
        {"TheTick", {{"/sys/devices/system/cpu/nohz_full", "(null)\n"}}, "nohz-full", warning, "tick"},
        {"NoTicklessKernel",
         {{"/sys/devices/system/cpu/nohz_full", std::nullopt}},
         "nohz-full",
         note,
         "not there",
         kGoodConfig,
         false},
        {"RcuCallbacks", {{"/proc/cmdline", "quiet -- rcu_nocbs=2-3\n"}}, "rcu-nocbs", warning, "may run there"},
        {"RcuCallbacksOfAllCpus", {{"/proc/cmdline", "rcu_nocbs=all\n"}}, "rcu-nocbs", ok, "other CPUs"},
        {"AnSmtSibling",
         {{kCpu2 + "/topology/thread_siblings_list", "0,2\n"}},
         "smt-sibling",
         warning,
         "CPU 0 is its SMT sibling"},
        {"AnSmtSiblingWithAWorker",
         {{kCpu2 + "/topology/thread_siblings_list", "2-3\n"}},
         "smt-sibling",
         warning,
         "the core of worker1"},
        {"AnSmtSiblingThatIsIsolated",
         {{kCpu2 + "/topology/thread_siblings_list", "0,2\n"}, {"/sys/devices/system/cpu/isolated", "0,2-3\n"}},
         "smt-sibling",
         note,
         "but isolated"},
        {"Autogroup", {{"/proc/sys/kernel/sched_autogroup_enabled", "1\n"}}, "autogroup", warning, "sessions"},
        {"NoAutogroup", {{"/proc/sys/kernel/sched_autogroup_enabled", std::nullopt}}, "autogroup", ok, "no autogroup"},
        {"ARealTimeWorkerThatIsThrottled",
         {{"/asked/running", "2 77 78 process 77\n"},
          {"/proc/77/task/78/stat",
           "78 (evil) name) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 5 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 17 2 50 1 0\n"}},
         "rt-throttling",
         warning,
         "50000 us of each 1000000 us"},
        {"ACpusetWithoutTheCore",
         {{"/sys/fs/cgroup/system.slice/ssh.service/cpuset.cpus.effective", "0-1,3\n"}},
         "cgroup-cpuset",
         warning,
         "0-1,3 only"},
        {"ACpusetOfARuntimeWithoutTheCore",
         {{"/asked/running", "2 77 78 process 77\n"},
          {"/proc/77/cgroup", "0::/box\n"},
          {"/sys/fs/cgroup/box/cpuset.cpus.effective", "0-1,3\n"}},
         "cgroup-cpuset",
         fault,
         "0-1,3 only"},
        {"AQuota", {{"/sys/fs/cgroup/system.slice/cpu.max", "50000 100000\n"}}, "cgroup-cpu-max", warning, "0.5 CPUs"},
        {"AQuotaOfCgroupsVersion1",
         {{"/proc/self/cgroup", "4:cpu,cpuacct:/box\n0::/\n"},
          {"/sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_quota_us", "20000\n"},
          {"/sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_period_us", "100000\n"}},
         "cgroup-cpu-max",
         warning,
         "0.2 CPUs"},
        {"LittleLockedMemory",
         {{"/proc/self/limits", "Max locked memory 65536 65536 bytes\n"}},
         "memlock",
         warning,
         "0.1 MiB"},
        {"LittleLockedMemoryOfARuntime",
         {{"/asked/running", "2 77 78 process 77\n"}, {"/proc/77/limits", "Max locked memory 65536 65536 bytes\n"}},
         "memlock",
         fault,
         "process 77"},
        {"LittleLockedMemoryOfRoot",
         {{"/proc/self/limits", "Max locked memory 65536 65536 bytes\n"},
          {"/proc/self/status", "CapEff:\t000001ffffffffff\nCpus_allowed_list:\t0-3\n"}},
         "memlock",
         ok,
         "CAP_IPC_LOCK"},
        {"ALongGap",
         {{"/asked/spin/2", "spun_ns 1000000000\nlongest_ns 4000000\nlost_ns 9000000\ngaps 12\ninvoluntary 0\n"}},
         "longest-gap",
         warning,
         "4.0 ms"},
        {"ACoreThatWasNotMeasured",
         {{"/asked/spin/2", "not_measured process 77 runs there\n"}},
         "longest-gap",
         note,
         "process 77",
         kGoodConfig,
         false},
        {"InterruptsOfADevice", {{"/later/proc/interrupts", interrupts}}, "interrupts", warning, "(mlx5_comp0)"},
        {"FewInterruptsOfADevice",
         {{"/later/proc/interrupts", "CPU0 CPU1 CPU2 CPU3\n 24: 9 0 2 0 PCI-MSI 0-edge mlx5_comp0\n"}},
         "interrupts",
         note,
         "1.0/s (mlx5_comp0)"},
        {"InterruptsOfADeviceForAWorkerThatSleeps",
         {{"/later/proc/interrupts", interrupts}},
         "interrupts",
         note,
         "is woken",
         with_idle("event")},
        {"NoSecondReading",
         {{"/later/proc/uptime", std::nullopt}},
         "interrupts",
         note,
         "only once",
         kGoodConfig,
         false},
        {"AnInterruptThatMayCome",
         {{"/proc/irq/24/effective_affinity_list", "2\n"}},
         "interrupt-affinity",
         note,
         "24 (mlx5_async0)"},
        {"Ticks",
         {{"/later/proc/interrupts", "CPU0 CPU1 CPU2 CPU3\nLOC: 1900 1900 510 10 Local\n"}},
         "timer-ticks",
         warning,
         "250/s"},
        {"Shootdowns",
         {{"/later/proc/interrupts", "CPU0 CPU1 CPU2 CPU3\nTLB: 0 0 100 0 TLB shootdowns\n"}},
         "kernel-interrupts",
         note,
         "TLB 50/s"},
        {"Softirqs",
         {{"/later/proc/softirqs", "CPU0 CPU1 CPU2 CPU3\n TIMER: 5 5 0 90\n NET_RX: 7 0 0 0\n"}},
         "softirqs",
         warning,
         "TIMER 45/s"},
        {"OtherThreads",
         {{"/asked/spin/2", "spun_ns 1000000000\nlongest_ns 1800\nlost_ns 1800\ngaps 1\ninvoluntary 7\n"}},
         "other-tasks",
         warning,
         "7 times"},
        {"AWorkerThatWaitsForItsCore",
         {{"/asked/running", "2 77 78 process 77\n"},
          {"/proc/77/task/78/schedstat", "1000 500 3\n"},
          {"/later/proc/77/task/78/schedstat", "2000 3000500 4\n"}},
         "other-tasks",
         warning,
         "3.0 ms"},
        {"AWorkerThatHardlyWaitsForItsCore",
         {{"/asked/running", "2 77 78 process 77\n"},
          {"/proc/77/task/78/schedstat", "1000 500 3\n"},
          {"/later/proc/77/task/78/schedstat", "2000 30500 4\n"}},
         "other-tasks",
         note,
         "30 us"},
        {"TasksOnACoreThatIsNotMeasured",
         {{"/asked/spin/2", "not_measured x\n"},
          {"/later/proc/schedstat", "version 15\ncpu2 0 0 0 0 0 0 1000000100 50 3\n"}},
         "other-tasks",
         note,
         "50.0% of 2.0 s"},
        {"KernelWork", {{"/sys/devices/virtual/workqueue/cpumask", "f\n"}}, "workqueues", note, "may run there"},
        {"AGovernor", {{kCpu2 + "/cpufreq/scaling_governor", "powersave\n"}}, "governor", warning, "3000 of 3500 MHz"},
        {"NoGovernor", {{kCpu2 + "/cpufreq", std::nullopt}}, "governor", note, "not there", kGoodConfig, false},
        {"NoGovernorInAVirtualMachine",
         {{kCpu2 + "/cpufreq", std::nullopt}, {"/proc/cpuinfo", "flags : hypervisor\n"}},
         "governor",
         note,
         "hypervisor decides",
         kGoodConfig,
         false},
        {"ADeepStateOfAWorkerThatSleeps",
         {{kCpu2 + "/cpuidle/state1/name", "C6\n"}, {kCpu2 + "/cpuidle/state1/latency", "133\n"}},
         "c-states",
         warning,
         "C6, which the core needs 133 us",
         with_idle("event")},
        {"ADeepStateOfAWorkerThatSpins",
         {{kCpu2 + "/cpuidle/state1/name", "C6\n"}, {kCpu2 + "/cpuidle/state1/latency", "133\n"}},
         "c-states",
         ok,
         "never sleeps"},
        {"ADisabledState",
         {{kCpu2 + "/cpuidle/state1/latency", "133\n"}, {kCpu2 + "/cpuidle/state1/disable", "1\n"}},
         "c-states",
         ok,
         "POLL",
         with_idle("event")},
        {"ADeviceOnAnotherNode", {{kIb + "/device/numa_node", "1\n"}}, "numa-device", warning, "distance 21"},
        {"ADeviceWithoutANode",
         {{kIb + "/device/numa_node", "-1\n"}},
         "numa-device",
         note,
         "does not say",
         kGoodConfig,
         false},
        {"NoMemoryOnTheNode",
         {{"/sys/devices/system/node/node0/hugepages/hugepages-2048kB/free_hugepages", "0\n"}},
         "numa-memory",
         warning,
         "node 1 has 32"},
        {"NumaBalancing", {{"/proc/sys/kernel/numa_balancing", "1\n"}}, "numa-balancing", warning, "unmaps"},
        {"TwoCaches", {{kCpu3 + "/cache/index3/shared_cpu_list", "3\n"}}, "shared-cache", note, "; workers' CPUs 3"},
        {"NoCaches", {{kCpu2 + "/cache", std::nullopt}}, "shared-cache", note, "not there", kGoodConfig, false},
        {"UnequalRoundTrips",
         {{"/asked/round-trip/1-2", "typical_ns 60\n"}, {"/asked/round-trip/1-3", "typical_ns 300\n"}},
         "round-trips",
         note,
         "1-3 300 ns",
         std::string(kGoodConfig) + "[[worker]]\nname = \"worker2\"\ncore = 1\n"},
        {"NoRoundTrips",
         {{"/asked/round-trip/2-3", "not_measured busy\n"}},
         "round-trips",
         note,
         "busy",
         kGoodConfig,
         false},
        {"FewHugepages",
         {{"/proc/meminfo", "HugePages_Total: 4\nHugePages_Free: 4\nHugepagesize: 2048 kB\n"}},
         "hugepages",
         warning,
         "4 of 2048 KiB (4 free); memory.size takes up to 64 MiB"},
        {"AHugepageOfAnotherSize",
         {{"/proc/meminfo", "HugePages_Total: 0\nHugePages_Free: 0\nHugepagesize: 2048 kB\n"},
          {"/sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages", "2\n"},
          {"/sys/kernel/mm/hugepages/hugepages-1048576kB/free_hugepages", "1\n"},
          {"/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "0\n"},
          {"/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "0\n"}},
         "hugepages",
         ok,
         "2 of 1048576 KiB (1 free)"},
        {"FewHugepagesThatAreRequired",
         {{"/proc/meminfo", "HugePages_Total: 4\nHugePages_Free: 4\nHugepagesize: 2048 kB\n"}},
         "hugepages",
         fault,
         "(4 free)",
         std::string(kGoodConfig) + "[memory]\nhugepages = \"require\"\n"},
        {"Swap", {{"/proc/swaps", "Filename Type Size Used\n/dev/sda2 partition 1000 0\n"}}, "swap", note, "/dev/sda2"},
        {"SwapInUse",
         {{"/proc/swaps", "Filename Type Size Used\n/dev/sda2 partition 9000 4096\n"}},
         "swap",
         warning,
         "4 MiB"},
        {"TransparentHugepages",
         {{"/sys/kernel/mm/transparent_hugepage/enabled", "[always] madvise never\n"}},
         "transparent-hugepages",
         note,
         "always"},
        {"TransparentHugepagesThatCompact",
         {{"/sys/kernel/mm/transparent_hugepage/enabled", "[always] madvise never\n"},
          {"/sys/kernel/mm/transparent_hugepage/defrag", "[always] defer never\n"}},
         "transparent-hugepages",
         warning,
         "defrag: always"},
        {"NoDevice", {{kIb, std::nullopt}}, "device-present", fault, "no RDMA device"},
        {"AnotherDevice",
         {{kIb, std::nullopt}, {"/sys/class/infiniband/rxe0/fw_ver", "1\n"}},
         "device-present",
         fault,
         "has rxe0"},
        {"APortThatIsDown", {{kPort + "/state", "1: DOWN\n"}}, "port-state", fault, "DOWN"},
        {"ASlowLink",
         {{kIb + "/device/current_link_speed", "8.0 GT/s PCIe\n"}},
         "pcie-speed",
         warning,
         "8 GT/s of 16 GT/s"},
        {"ANarrowLink", {{kIb + "/device/current_link_width", "8\n"}}, "pcie-width", warning, "8 lanes of 16 lanes"},
        {"AVirtualFunction",
         {{kIb + "/device/current_link_speed", "Unknown\n"}, {kIb + "/device/current_link_width", "0\n"}},
         "pcie-width",
         note,
         "virtual function",
         kGoodConfig,
         false},
        {"NoRelaxedOrdering",
         {{kIb + "/device/config", no_relaxed_ordering}},
         "relaxed-ordering",
         warning,
         "may not use it"},
        {"AConfigurationSpaceForRootOnly",
         {{kIb + "/device/config", std::string(64, '\0')}},
         "relaxed-ordering",
         note,
         "only root",
         kGoodConfig,
         false},
        {"ALoopOfCapabilities",
         {{kIb + "/device/config",
           [] {
               std::string space(256, '\0');
               space[0x34] = space[0x41] = 0x40;
               return space;
           }()}},
         "relaxed-ordering",
         note,
         "no PCI Express capability",
         kGoodConfig,
         false},
        {"ASmallMtu",
         {{"/asked/port/mlx5_0/1", "active_mtu 1024\nmax_mtu 4096\n"}, {"/sys/class/net/eth0/mtu", "1500\n"}},
         "mtu",
         warning,
         "active MTU 1024, MTU 1500 of eth0"},
        {"ASmallMtuOfTheNetworkDevice",
         {{"/asked/port/mlx5_0/1", std::nullopt}, {"/sys/class/net/eth0/mtu", "2143\n"}},
         "mtu",
         warning,
         "active MTU 1024 (by the kernel's rule)"},
        {"NoGid",
         {{kPort + "/gids/2", "0000:0000:0000:0000:0000:0000:0000:0000\n"}},
         "gid",
         fault,
         "with the address 192.0.2.7"},
        {"RoceVersion1",
         {{kPort + "/gid_attrs/types/2", "IB/RoCE v1\n"}},
         "roce-version",
         warning,
         "IB/RoCE v1, which is not routed",
         [] {
             std::string config = kGoodConfig;
             const std::string gid = "gid = \"192.0.2.7\"\n";
             return config.erase(config.find(gid), gid.size());
         }()},
        {"RdmaCmWithVersion1",
         {{"/sys/kernel/config/rdma_cm/mlx5_0/ports/1/default_roce_mode", "IB/RoCE v1\n"}},
         "roce-version",
         warning,
         "rdma_cm"},
        {"NoPfc", {{"/asked/dcb/eth0", "pfc_enabled 0\n"}}, "pfc", note, "off on eth0"},
        {"NoDcb",
         {{"/asked/dcb/eth0", "not_asked RTM_GETDCB: Operation not supported\n"}},
         "pfc",
         note,
         "mlnx_qos -i eth0",
         kGoodConfig,
         false},
        {"NoEcn",
         {{"/sys/class/net/eth0/ecn/roce_np/enable/3", "0\n"}, {"/sys/class/net/eth0/ecn/roce_rp/enable/3", "0\n"}},
         "ecn",
         note,
         "off for all"},
        {"EcnThatNoFileShows", {{"/sys/class/net/eth0/ecn", std::nullopt}}, "ecn", note, "no file", kGoodConfig, false},
        {"EcnThatMarksShow",
         {{"/sys/class/net/eth0/ecn", std::nullopt}, {kPort + "/hw_counters/np_ecn_marked_roce_packets", "7\n"}},
         "ecn",
         ok,
         "7 packets"},
        {"ACounterThatGrew",
         {{kPort + "/hw_counters/out_of_buffer", "5\n"}, {"/later" + kPort + "/hw_counters/out_of_buffer", "15\n"}},
         "device-counters",
         warning,
         "out_of_buffer is 15, and grew by 10 within 2.0 s"},
        {"ACounterThatDidNotGrow",
         {{kPort + "/counters/port_rcv_errors", "3\n"}, {"/later" + kPort + "/counters/port_rcv_errors", "3\n"}},
         "device-counters",
         note,
         "port_rcv_errors is 3:"},
        {"NoCounters",
         {{kPort + "/hw_counters", std::nullopt}, {kPort + "/counters", std::nullopt}},
         "device-counters",
         note,
         "no counter",
         kGoodConfig,
         false},
        {"ASlowClock",
         {{"/sys/devices/system/clocksource/clocksource0/current_clocksource", "hpet\n"}},
         "clock-source",
         warning,
         "hpet; available: tsc hpet"},
        {"AClockOfKvm",
         {{"/sys/devices/system/clocksource/clocksource0/current_clocksource", "kvm-clock\n"}},
         "clock-source",
         ok,
         "kvm-clock"},
        {"ATscThatStops", {{"/proc/cpuinfo", "flags : tsc constant_tsc\n"}}, "tsc", warning, "no nonstop_tsc"},
        {"NoFlags", {{"/proc/cpuinfo", "Features : fp\n"}}, "tsc", note, "no flags", kGoodConfig, false},
        {"AVirtualMachine",
         {{"/proc/cpuinfo", "flags : tsc constant_tsc nonstop_tsc hypervisor\n"},
          {"/sys/class/dmi/id/sys_vendor", "QEMU\n"}},
         "virtual-machine",
         note,
         "QEMU"},
        {"StolenTime",
         {{"/later/proc/stat", "cpu2 0 0 0 250 0 0 0 50 0 0\ncpu3 0 0 0 300 0 0 0 0 0 0\n"}},
         "steal",
         warning,
         "25.0% of 2.0 s"},
        {"TimeThatWasStolenBefore",
         {{"/proc/stat", "cpu2 0 0 0 50 0 0 0 50 0 0\n"}, {"/later/proc/stat", "cpu2 0 0 0 250 0 0 0 50 0 0\n"}},
         "steal",
         note,
         "50.0% since boot"},
        {"NoMitigations",
         {{"/sys/devices/system/cpu/vulnerabilities/spectre_v2", "Vulnerable\n"}},
         "mitigations",
         ok,
         "none is active"},
    };
}

std::string describe(const std::vector<Finding>& findings, const std::string& id) {
    std::string text;
    for (const Finding& finding : findings) {
        if (finding.id == id) {
            text += std::string(name_of(finding.severity)) + " " + text_of(finding.about) + ": " + finding.seen + "\n";
        }
    }
    return text;
}

TEST(PolldoctorChecks, FindNothingOnAGoodHost) {
    FakeHost host;
    host.write(good_host());
    const std::vector<Finding> findings = host.judged(kGoodConfig);
    std::set<std::string> ids;
    for (const Finding& finding : findings) {
        EXPECT_EQ(finding.severity, Severity::ok) << finding.id << ": " << finding.seen;
        EXPECT_TRUE(finding.judged) << finding.id << ": " << finding.seen;
        ids.insert(finding.id);
    }
    EXPECT_EQ(ids.size(), all_checks().size());
}

/// All cases have one host, because it has many files. Each case restores what it changes.
class PolldoctorCase : public testing::TestWithParam<Case> {
protected:
    static void SetUpTestSuite() {
        host_ = std::make_unique<FakeHost>();
        host_->write(good_host());
        before_ = host_->judged(kGoodConfig);
    }
    static void TearDownTestSuite() { host_.reset(); }
    void SetUp() override { host_->write(GetParam().files); }
    void TearDown() override {
        host_->restore(GetParam().files, good_host());
        EXPECT_EQ(worst_of(host_->judged(kGoodConfig)), worst_of(before_)) << "not restored";
    }

    static inline std::unique_ptr<FakeHost> host_;
    static inline std::vector<Finding> before_;  // of the good host
};

TEST_P(PolldoctorCase, IsFound) {
    const Case& wanted = GetParam();
    const std::vector<Finding> findings = host_->judged(wanted.config);
    const auto found = std::find_if(findings.begin(), findings.end(), [&](const Finding& finding) {
        return finding.id == wanted.id && finding.severity == wanted.severity && finding.judged == wanted.judged &&
               finding.seen.find(wanted.seen) != std::string::npos;
    });
    ASSERT_NE(found, findings.end()) << describe(findings, wanted.id);
    EXPECT_FALSE(found->source.empty());
    if (found->severity >= Severity::warning) {
        EXPECT_FALSE(found->cost.text.empty());
        EXPECT_FALSE(found->mend.empty());
    }
}

INSTANTIATE_TEST_SUITE_P(Each, PolldoctorCase, testing::ValuesIn(cases()),
                         [](const auto& one) { return one.param.name; });

TEST(PolldoctorChecks, EachHasACaseInWhichItFindsSomething) {
    std::set<std::string> found;
    for (const Case& each : cases()) {
        if (each.severity != Severity::ok) {
            found.insert(each.id);
        }
    }
    found.insert("mitigations");  // it only tells
    for (const Check& check : all_checks()) {
        EXPECT_TRUE(found.contains(std::string(check.id))) << check.id;
    }
}

TEST(PolldoctorChecks, SayNotReadableOfAHostWithoutFiles) {
    FakeHost host;
    host.write({{"/sys/devices/system/cpu/online", "0-3\n"}});
    for (const Finding& finding : host.judged(kGoodConfig)) {
        if (finding.id == "device-present") {
            EXPECT_EQ(finding.severity, Severity::fault);
            continue;
        }
        EXPECT_LE(finding.severity, Severity::warning) << finding.id << ": " << finding.seen;
        EXPECT_FALSE(finding.seen.empty()) << finding.id;
    }
}

TEST(PolldoctorChecks, WithoutAConfigurationNoCpuIsWorseThanANote) {
    FakeHost host;
    host.write(good_host());
    host.write({{"/sys/devices/system/cpu/isolated", "\n"}});
    const std::vector<Finding> findings = host.judged("");
    std::set<std::uint32_t> cpus;
    for (const Finding& finding : findings) {
        if (finding.about.core) {
            cpus.insert(*finding.about.core);
            EXPECT_LE(finding.severity, Severity::note) << finding.id << ": " << finding.seen;
            EXPECT_TRUE(finding.commands.empty()) << finding.id;
        }
    }
    EXPECT_EQ(cpus, (std::set<std::uint32_t>{0, 1, 2, 3}));
}

TEST(PolldoctorChecks, TakeTheWorkersOutOfTheWorkqueuesMask) {
    FakeHost host;
    host.write(good_host());
    host.write({{"/sys/devices/virtual/workqueue/cpumask", "ffffffff,0000000f\n"}});
    for (const Finding& finding : host.judged(kGoodConfig)) {
        if (finding.id == "workqueues") {
            ASSERT_EQ(finding.commands.size(), 1u);
            EXPECT_EQ(finding.commands[0].text, "echo 00000000,00000003 > /sys/devices/virtual/workqueue/cpumask");
        }
    }
}

TEST(PolldoctorChecks, SendNothingElsewhereIfAllCpusAreWorkers) {
    FakeHost host;
    host.write(good_host());
    host.write({{"/sys/devices/system/cpu/online", "2-3\n"},
                {"/sys/devices/system/cpu/isolated", "\n"},
                {"/sys/devices/system/cpu/nohz_full", "\n"},
                {"/proc/irq/24/effective_affinity_list", "2\n"},
                {"/sys/devices/virtual/workqueue/cpumask", "f\n"},
                {"/proc/cmdline", "quiet\n"}});
    for (const Finding& finding : host.judged(kGoodConfig)) {
        for (const Command& command : finding.commands) {
            ADD_FAILURE() << finding.id << ": " << command.text;
        }
    }
}

TEST(PolldoctorChecks, QuoteNamesInCommands) {
    FakeHost host;
    host.write(good_host());
    host.write({{kPort + "/gid_attrs/ndevs/0", "e'$(reboot)\n"},
                {"/sys/class/net/e'$(reboot)/mtu", "1500\n"},
                {"/asked/port/mlx5_0/1", "active_mtu 1024\nmax_mtu 4096\n"}});
    const std::vector<Finding> findings = host.judged(kGoodConfig);
    const auto mtu =
        std::find_if(findings.begin(), findings.end(), [](const Finding& each) { return each.id == "mtu"; });
    ASSERT_EQ(mtu->commands.size(), 1u) << mtu->seen;
    EXPECT_TRUE(mtu->commands[0].text.starts_with("ip link set dev 'e'\\''$(reboot)' mtu 4200"))
        << mtu->commands[0].text;
}

}  // namespace
}  // namespace pollcore::doctor
