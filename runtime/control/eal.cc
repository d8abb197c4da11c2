#include "control/eal.hpp"

#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <future>
#include <latch>
#include <mutex>
#include <optional>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_launch.h>
#include <rte_lcore.h>
#include <rte_malloc.h>

#include "base/log.hpp"
#include "config/cpus.hpp"
#include "control/eal_directory.hpp"
#include "pollcore/error.hpp"
#include "statistics/telemetry.hpp"

namespace pollcore {
namespace {

constexpr std::size_t kThreadNameMax = 15;  // pthread_setname_np(3)

// The bytes of EAL memory that the runtimes of this process use, and their limit. The limit is memory.size of the first
// runtime; 0 means no limit.
std::atomic<std::uint64_t> memory_used{0};
std::atomic<std::uint64_t> memory_limit{0};

std::vector<int> allowed_cpus() {
    cpu_set_t set;
    CPU_ZERO(&set);
    // Ask for the CPUs of the process's main thread, because the program may have pinned the calling thread.
    sched_getaffinity(getpid(), sizeof(set), &set);
    std::vector<int> cpus;
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
        if (CPU_ISSET(cpu, &set)) {
            cpus.push_back(cpu);
        }
    }
    return cpus;
}

void set_affinity(pthread_t thread, const std::vector<int>& cpus) {
    cpu_set_t set;
    CPU_ZERO(&set);
    for (const int cpu : cpus) {
        CPU_SET(cpu, &set);
    }
    const int error = pthread_setaffinity_np(thread, sizeof(set), &set);
    if (error != 0) {
        throw Error(error, fmt::format("cannot pin a thread to CPU {}", fmt::join(cpus, ",")));
    }
}

// Bytes in free hugepages of all sizes, over all nodes.
std::uint64_t free_hugepage_bytes() {
    namespace fs = std::filesystem;
    std::uint64_t bytes = 0;
    std::error_code ignored;  // a kernel without hugepages does not have this directory
    for (const auto& entry : fs::directory_iterator("/sys/kernel/mm/hugepages", ignored)) {
        const std::string name = entry.path().filename();  // hugepages-2048kB
        std::uint64_t free = 0;
        std::ifstream(entry.path() / "free_hugepages") >> free;
        bytes += free * (std::stoull(name.substr(name.find('-') + 1)) << 10);
    }
    return bytes;
}

// Without hugepages EAL allocates its whole heap at once, so it gets the size (-m). With hugepages the heap grows as
// needed.
std::vector<std::string> eal_arguments(const MemoryConfig& memory, const std::vector<std::uint32_t>& worker_cores,
                                       bool hugepages, bool telemetry) {
    std::vector<std::string> lcores;
    unsigned main_lcore = 0;
    for (const std::uint32_t core : worker_cores) {
        if (core < RTE_MAX_LCORE) {
            lcores.push_back(fmt::format("{}@{}", core, core));
        }
    }
    while (std::find(worker_cores.begin(), worker_cores.end(), main_lcore) != worker_cores.end()) {
        ++main_lcore;
    }
    lcores.push_back(fmt::format("{}@({})", main_lcore, fmt::join(helper_cpus(worker_cores), ",")));

    std::vector<std::string> arguments{"pollcore",
                                       "--no-pci",
                                       "--log-level=lib.eal:error",
                                       "--log-level=lib.telemetry:error",
                                       "--lcores",
                                       fmt::format("{}", fmt::join(lcores, ",")),
                                       "--main-lcore",
                                       std::to_string(main_lcore)};
    // The prefix names the directory of the socket. EAL keeps nothing else there with the arguments below.
    arguments.emplace_back(telemetry ? "--file-prefix=pollcore" : "--no-telemetry");
    if (hugepages) {
        arguments.emplace_back("--in-memory");
    } else {
        // --no-huge does not work together with --in-memory, and leaves files behind without --no-shconf (H19).
        arguments.insert(arguments.end(), {"--no-huge", "--no-shconf", "-m",
                                           std::to_string(std::max<std::uint64_t>(memory.size >> 20, 1))});
    }
    return arguments;
}

EalState set_up(const MemoryConfig& memory, const std::vector<std::uint32_t>& worker_cores, bool telemetry) {
    EalState state{.ours = true};
    if (telemetry) {
        if (std::string fault = fault_of_telemetry_directory(); !fault.empty()) {
            state.why_no_telemetry = std::move(fault);
            telemetry = false;
        }
    }
    state.telemetry = telemetry;
    const std::uint64_t free = free_hugepage_bytes();
    const std::string how = fmt::format("reserve them with: echo {} > /proc/sys/vm/nr_hugepages",
                                        (memory.size + (2u << 20) - 1) / (2u << 20));
    if (memory.hugepages == MemoryConfig::Hugepages::require && free < memory.size) {
        throw Error(ENOMEM, fmt::format("memory.hugepages = \"require\": {} MiB are wanted in hugepages and {} MiB are "
                                        "free; {}",
                                        memory.size >> 20, free >> 20, how));
    }
    state.hugepages = memory.hugepages != MemoryConfig::Hugepages::never && free >= memory.size;
    state.memory = state.hugepages ? "hugepages"
                   : memory.hugepages == MemoryConfig::Hugepages::never
                       ? "ordinary pages, as configured"
                       : fmt::format("ordinary pages, since {} MiB of hugepages are free and {} MiB are wanted; {}",
                                     free >> 20, memory.size >> 20, how);

    std::vector<std::string> arguments = eal_arguments(memory, worker_cores, state.hugepages, telemetry);
    std::vector<char*> argv;
    for (std::string& argument : arguments) {
        argv.push_back(argument.data());
    }
    // rte_eal_init() is called in a temporary thread, because it pins the calling thread. The threads that EAL starts
    // inherit the calling thread's CPUs (H18).
    int result = 0;
    int error = 0;
    std::optional<EalDirectory> directory;
    if (!telemetry) {
        directory.emplace();
    }
    std::thread([&] {
        set_affinity(pthread_self(), allowed_cpus());
        result = rte_eal_init(static_cast<int>(argv.size()), argv.data());
        error = rte_errno;
    }).join();
    if (result < 0) {
        throw Error(error, fmt::format("DPDK's EAL did not start with: {}", fmt::join(arguments, " ")));
    }
    return state;
}

}  // namespace

const EalState& ensure_eal(const MemoryConfig& memory, const std::vector<std::uint32_t>& worker_cores, bool telemetry) {
    static std::mutex mutex;
    static EalState state;
    static pid_t process = 0;  // the process that has set EAL up
    const std::lock_guard lock(mutex);
    if (process != 0 && process != ::getpid()) {
        // Parent and child share the memory of the heap, but each has its own list of free memory. And EAL's threads
        // exist only in the parent.
        throw Error(EPERM,
                    "this is a forked child of a process that had a Runtime, whose EAL is of no use here: exec() "
                    "first. An Attachment "
                    "may be made here");
    }
    if (process == 0) {
        if (rte_lcore_count() > 0) {
            state = {
                .ours = false,
                .hugepages = rte_eal_has_hugepages() != 0,
                .memory = rte_eal_has_hugepages() ? "the host program's hugepages" : "the host program's EAL heap"};
        } else {
            state = set_up(memory, worker_cores, telemetry);
            memory_limit.store(memory.size);
        }
        process = ::getpid();
    }
    if (telemetry) {
        if (state.ours && !state.telemetry) {
            log_warning("there is no telemetry: {}", state.why_no_telemetry);
        } else {
            statistics::offer_telemetry();
            log_info("telemetry: commands /pollcore/... at dpdk_telemetry.v2, or dpdk_telemetry.v2:N, in {}",
                     rte_eal_get_runtime_dir());
        }
    }
    if (memory.hugepages == MemoryConfig::Hugepages::require && !state.hugepages) {
        throw Error(ENOMEM,
                    "memory.hugepages = \"require\", but this process's EAL was started without hugepages, and "
                    "that cannot change during its life");
    }
    return state;
}

std::vector<int> helper_cpus(const std::vector<std::uint32_t>& worker_cores) {
    const std::vector<int> all = allowed_cpus();
    const auto without_workers = [&](const std::vector<int>& cpus) {
        std::vector<int> free;
        std::copy_if(cpus.begin(), cpus.end(), std::back_inserter(free), [&](int cpu) {
            return std::find(worker_cores.begin(), worker_cores.end(), static_cast<std::uint32_t>(cpu)) ==
                   worker_cores.end();
        });
        return free;
    };
    // The first choice are CPUs that the program runs on, without the workers' cores. The second are other CPUs that
    // the cpuset allows, without the workers' cores. The last are all CPUs that the program runs on.
    std::vector<int> free = without_workers(all);
    if (free.empty()) {
        const std::set<std::uint32_t> allowed = config::Cpus::of_this_process().allowed;
        free = without_workers({allowed.begin(), allowed.end()});
    }
    return free.empty() ? all : free;
}

void become_helper(const std::string& name, const std::vector<int>& cpus) noexcept {
    pthread_setname_np(pthread_self(), name.substr(0, kThreadNameMax).c_str());
    try {
        set_affinity(pthread_self(), cpus);
    } catch (const std::exception&) {
        // Meanwhile the process has lost these CPUs. The thread stays where it is.
    }
}

// ---- CoreThread ----

void CoreThread::start(const std::string& name, std::uint32_t core, std::function<void()> body) {
    std::latch running(1);
    std::exception_ptr failure;
    body_ = [this, &running, inner = std::move(body), comm = name.substr(0, kThreadNameMax)] {
        thread_id_ = gettid();
        pthread_setname_np(pthread_self(), comm.c_str());
        running.count_down();  // start() may return now, and then the latch is gone
        inner();
        // Release: pairs with the acquire in join(), so that the thread that joins sees everything that the body wrote.
        // EAL itself promises no synchronisation.
        ended_.store(true, std::memory_order_release);
    };
    const auto lcore_cpus = core < RTE_MAX_LCORE ? rte_lcore_cpuset(core) : rte_cpuset_t{};
    const bool has_lcore = core < RTE_MAX_LCORE && rte_lcore_is_enabled(core) && core != rte_get_main_lcore() &&
                           rte_eal_get_lcore_state(core) == WAIT && CPU_COUNT(&lcore_cpus) == 1 &&
                           CPU_ISSET(core, &lcore_cpus);
    if (has_lcore) {
        const auto entry = [](void* self) {
            static_cast<CoreThread*>(self)->body_();
            return 0;
        };
        const int error = rte_eal_remote_launch(entry, this, core);
        if (error != 0) {
            throw Error(-error, fmt::format("lcore {} does not take a worker", core));
        }
        lcore_ = static_cast<int>(core);
    } else {
        thread_ = std::thread([this, core, &running, &failure] {
            try {
                set_affinity(pthread_self(), {static_cast<int>(core)});
                if (rte_thread_register() != 0) {
                    throw Error(rte_errno, fmt::format("EAL does not register the worker's thread on core {}", core));
                }
            } catch (...) {
                failure = std::current_exception();
                running.count_down();
                return;
            }
            body_();
            rte_thread_unregister();
        });
    }
    running.wait();
    if (failure) {
        thread_.join();
        std::rethrow_exception(failure);
    }
}

void CoreThread::join() noexcept {
    if (lcore_ >= 0) {
        rte_eal_wait_lcore(static_cast<unsigned>(std::exchange(lcore_, -1)));
        (void)ended_.load(std::memory_order_acquire);
    }
    if (thread_.joinable()) {
        thread_.join();
    }
}

// ---- Memory ----

namespace {

void release_eal_memory(void* data, std::size_t size) noexcept {
    rte_free(data);
    memory_used.fetch_sub(size);
}

}  // namespace

HostMemory eal_memory(std::size_t bytes, int numa_node, const std::string& what_for) {
    const std::uint64_t limit = memory_limit.load();
    const std::uint64_t used = memory_used.fetch_add(bytes);
    if (limit != 0 && (bytes > limit || used > limit - bytes)) {
        memory_used.fetch_sub(bytes);
        throw Error(ENOMEM,
                    fmt::format("{}: {} bytes are wanted and {} of memory.size = {} are in use; raise memory.size",
                                what_for, bytes, used, limit));
    }
    void* data = rte_zmalloc_socket("pollcore", bytes, kCacheLine, numa_node < 0 ? SOCKET_ID_ANY : numa_node);
    if (data == nullptr && numa_node >= 0) {
        data = rte_zmalloc_socket("pollcore", bytes, kCacheLine, SOCKET_ID_ANY);
    }
    if (data == nullptr) {
        memory_used.fetch_sub(bytes);
        throw Error(ENOMEM, fmt::format("{}: EAL has no {} bytes left; raise memory.size, and where hugepages are used "
                                        "/proc/sys/vm/nr_hugepages",
                                        what_for, bytes));
    }
    return {data, bytes, release_eal_memory};
}

}  // namespace pollcore
