// Tests the runtime's effects on its process: threads, CPUs, files, and DPDK's environment abstraction layer (EAL). A
// process can set up EAL only once, so each test runs in its own child process.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <set>
#include <sstream>
#include <string>
#include <thread>

#include <gtest/gtest.h>
#include <rte_eal.h>
#include <rte_lcore.h>

#include "daemon_process.hpp"
#include "eventually.hpp"
#include "give_way.hpp"
#include "pollcore/error.hpp"
#include "pollcore/runtime.hpp"

namespace pollcore {
namespace {

namespace fs = std::filesystem;

/// Runs `body` in a child process and returns its string, or a description of how the child ended. An empty string
/// means success.
std::string in_child(const std::function<std::string()>& body) {
    int ends[2];
    if (pipe(ends) != 0) {
        return "no pipe";
    }
    const pid_t pid = fork();
    if (pid == 0) {
        close(ends[0]);
        alarm(60);
        std::string said;
        try {
            said = body();
        } catch (const std::exception& error) {
            said = std::string("threw: ") + error.what();
        }
        const bool written = write(ends[1], said.data(), said.size()) == static_cast<ssize_t>(said.size());
        _exit(written ? 0 : 1);
    }
    close(ends[1]);
    std::string said;
    char some[512];
    for (ssize_t n = 0; (n = read(ends[0], some, sizeof(some))) > 0;) {
        said.append(some, static_cast<std::size_t>(n));
    }
    close(ends[0]);
    int status = 0;
    waitpid(pid, &status, 0);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? said : said + " (the child ended badly)";
}

Config config_on(std::uint32_t core) {
    Config config;
    config.share_cores = true;  // other tests may run at the same time
    DeviceConfig device;
    device.name = "soft0";
    config.devices = {device};
    WorkerConfig worker;
    worker.name = "w0";
    worker.core = core;
    worker.idle = IdlePolicy::yield;
    config.workers = {worker};
    config.log_level = LogLevel::error;
    return config;
}

// Submits a write through the runtime and waits for its completion.
std::string use(Runtime& runtime) {
    Session session = runtime.open_session();
    MemoryRegion memory = runtime.allocate(4096, Access::all());
    QueuePair a = runtime.create_queue_pair({.shares = {{.session = &session}}, .remote_access = RemoteAccess::all()});
    QueuePair b = runtime.create_queue_pair({.shares = {{.session = &session}}, .remote_access = RemoteAccess::all()});
    const QpInfo info = a.info();
    a.connect(b.info());
    b.connect(info);
    const WorkRequest request{.tag = 5,
                              .sge = {memory.addr(), 8, memory.lkey()},
                              .remote_addr = memory.addr() + 64,
                              .rkey = memory.rkey(),
                              .qp = a.handle(),
                              .opcode = Opcode::rdma_write,
                              .flags = kSignaled,
                              .num_sge = 1};
    if (session.try_submit(request) != Refusal::none) {
        return "refused";
    }
    Completion completion;
    while (session.poll({&completion, 1}) == 0) {
        test::give_way();
    }
    return completion.ok() ? "" : std::string(status_name(completion.status));
}

std::string cpus_allowed(const fs::path& task) {
    std::ifstream status(task / "status");
    std::string line;
    while (std::getline(status, line)) {
        if (line.starts_with("Cpus_allowed_list:")) {
            return line.substr(line.find_last_of(" \t") + 1);
        }
    }
    return "?";
}

bool contains(const std::string& list, std::uint32_t cpu) {
    std::istringstream parts(list);
    for (std::string part; std::getline(parts, part, ',');) {
        const auto dash = part.find('-');
        const auto first = std::stoul(part.substr(0, dash));
        const auto last = dash == std::string::npos ? first : std::stoul(part.substr(dash + 1));
        if (first <= cpu && cpu <= last) {
            return true;
        }
    }
    return false;
}

class Eal : public ::testing::Test {
protected:
    void SetUp() override { ASSERT_GE(sysconf(_SC_NPROCESSORS_ONLN), 2) << "needs two CPUs"; }
};

TEST_F(Eal, LeavesTheCallersAffinityAsItWas) {
    EXPECT_EQ(in_child([]() -> std::string {
                  const std::string before = cpus_allowed("/proc/self");
                  Runtime runtime(config_on(1));
                  const std::string after = cpus_allowed("/proc/self");
                  return before == after ? use(runtime) : before + " became " + after;
              }),
              "");
}

TEST_F(Eal, HasARuntimeDirectoryOfItsOwnWhileItStartsAndLeavesTheEnvironmentAsItWas) {
    for (const char* before : {"/nowhere", static_cast<const char*>(nullptr)}) {
        EXPECT_EQ(in_child([before]() -> std::string {
                      before == nullptr ? unsetenv("RUNTIME_DIRECTORY") : setenv("RUNTIME_DIRECTORY", before, 1);
                      char** const environment = environ;
                      // Another thread may read the environment all the time.
                      std::atomic<bool> ends{false};
                      std::thread reader([&] {
                          while (!ends.load()) {
                              if (getenv("PATH") == nullptr) {
                                  std::abort();
                              }
                          }
                      });
                      Runtime runtime(config_on(1));
                      ends.store(true);
                      reader.join();
                      const char* const after = getenv("RUNTIME_DIRECTORY");
                      if (environ != environment ||
                          (before == nullptr ? after != nullptr : after == nullptr || std::string(after) != before)) {
                          return "the environment is another";
                      }
                      const fs::path directory = rte_eal_get_runtime_dir();  // .../dpdk/rte
                      const fs::path own = directory.parent_path().parent_path();
                      if (!own.string().starts_with("/tmp/pollcore-eal-")) {
                          return "EAL was in " + directory.string();
                      }
                      return fs::exists(own) ? own.string() + " was left" : use(runtime);
                  }),
                  "");
    }
}

TEST_F(Eal, KeepsEveryHelperThreadOffTheWorkersCore) {
    EXPECT_EQ(in_child([]() -> std::string {
                  std::set<std::string> before;
                  for (const auto& task : fs::directory_iterator("/proc/self/task")) {
                      before.insert(task.path().filename());
                  }
                  Runtime runtime(config_on(1));
                  const std::string worker = std::to_string(runtime.worker_thread_id(0));
                  int helpers = 0;
                  for (const auto& task : fs::directory_iterator("/proc/self/task")) {
                      const std::string id = task.path().filename();
                      const std::string cpus = cpus_allowed(task.path());
                      if (id == worker) {
                          std::string comm;
                          std::getline(std::ifstream(task.path() / "comm"), comm);
                          if (comm != "pollcore-" + runtime.config().workers[0].name) {
                              return "the worker's thread is named " + comm;
                          }
                          if (cpus != "1") {
                              return "the worker may run on " + cpus;
                          }
                      } else if (!before.contains(id)) {
                          ++helpers;
                          // A helper leaves the core itself, a moment after its start.
                          if (!test::eventually([&] { return !contains(cpus_allowed(task.path()), 1); })) {
                              return "thread " + id + " may run on " + cpus;
                          }
                      }
                  }
                  return helpers >= 2 ? "" : "where are the helpers?";
              }),
              "");
}

TEST_F(Eal, KeepsAThreadOfTheProgramOffTheWorkersCore) {
    EXPECT_EQ(in_child([]() -> std::string {
                  Runtime runtime(config_on(1));
                  std::string wrong;
                  std::thread([&] {
                      runtime.keep_off_workers();
                      const std::string cpus = cpus_allowed("/proc/thread-self");
                      wrong = contains(cpus, 1) ? "the thread may run on " + cpus : "";
                      if (!contains(cpus, 0)) {
                          wrong = "the thread may not run on CPU 0, but on " + cpus;
                      }
                  }).join();
                  std::thread([&] {
                      cpu_set_t one;
                      CPU_ZERO(&one);
                      CPU_SET(1, &one);
                      if (sched_setaffinity(0, sizeof(one), &one) != 0) {
                          wrong += "; cannot pin a thread";
                      }
                      try {
                          runtime.keep_off_workers();
                          wrong += "; a thread has no CPU left";
                      } catch (const Error& error) {
                          if (error.code() != std::errc::invalid_argument) {
                              wrong += std::string("; ") + error.what();
                          }
                      }
                      if (cpus_allowed("/proc/thread-self") != "1") {
                          wrong += "; after a refusal the thread has other CPUs";
                      }
                  }).join();
                  return wrong;
              }),
              "");
}

TEST_F(Eal, StartsStopsAndStartsAgainOnAnotherCore) {
    EXPECT_EQ(in_child([]() -> std::string {
                  for (const std::uint32_t core : {1u, 0u, 1u, 1u, 0u}) {
                      Runtime runtime(config_on(core));
                      if (cpus_allowed("/proc/self/task/" + std::to_string(runtime.worker_thread_id(0))) !=
                          std::to_string(core)) {
                          return "the worker is not on core " + std::to_string(core);
                      }
                      if (const std::string wrong = use(runtime); !wrong.empty()) {
                          return wrong;
                      }
                  }
                  return "";
              }),
              "");
}

TEST_F(Eal, TwoRuntimesOfOneProcessRunSideBySide) {
    EXPECT_EQ(in_child([]() -> std::string {
                  Runtime one(config_on(1));
                  Runtime two(config_on(0));
                  return use(one) + use(two);
              }),
              "");
}

// An embedded runtime locks its core, as the daemon does.
TEST_F(Eal, ASecondRuntimeOnACoreIsRefusedUntilTheFirstHasStoppedAndNotWhenItShares) {
    const test::TemporaryDirectory directory;
    EXPECT_EQ(in_child([&]() -> std::string {
                  Config config = config_on(1);
                  config.share_cores = false;
                  config.lock_directory = directory.path();
                  Runtime first(config);
                  const std::string of_another_process = in_child([&]() -> std::string {
                      try {
                          const Runtime second(config);
                          return "two processes have one core";
                      } catch (const Error& error) {
                          return error.code().value() == EBUSY ? "" : error.what();
                      }
                  });
                  try {
                      const Runtime second(config);
                      return "two runtimes have one core";
                  } catch (const Error& error) {
                      if (error.code().value() != EBUSY) {
                          return error.what();
                      }
                  }
                  {
                      Runtime shares(config_on(1));
                      if (const std::string wrong = use(shares); !wrong.empty()) {
                          return wrong;
                      }
                  }
                  first.stop();
                  Runtime second(config);
                  return of_another_process + use(second);
              }),
              "");
}

TEST_F(Eal, TwoProcessesRunSideBySide) {
    EXPECT_EQ(in_child([]() -> std::string {
                  const std::string other = in_child([]() -> std::string {
                      Runtime runtime(config_on(0));
                      return use(runtime);
                  });
                  Runtime runtime(config_on(1));
                  const std::string again = use(runtime);
                  return other + again;
              }),
              "");
}

TEST_F(Eal, ServesTheHostProgramThatStartedItItself) {
    EXPECT_EQ(in_child([]() -> std::string {
                  char program[] = "host";
                  char no_huge[] = "--no-huge";
                  char no_shconf[] = "--no-shconf";
                  char no_pci[] = "--no-pci";
                  char no_telemetry[] = "--no-telemetry";
                  char memory[] = "-m64";
                  char lcores[] = "--lcores=0@0";
                  char quiet[] = "--log-level=lib.eal:error";
                  char* arguments[] = {program, no_huge, no_shconf, no_pci, no_telemetry, memory, lcores, quiet};
                  if (rte_eal_init(static_cast<int>(std::size(arguments)), arguments) < 0) {
                      return "the host's EAL did not start";
                  }
                  Runtime runtime(config_on(1));  // a core outside the host's lcores
                  if (runtime.report().eal != "set up by the host program") {
                      return runtime.report().eal;
                  }
                  return use(runtime);
              }),
              "");
}

TEST_F(Eal, LeavesNoFilesBehind) {
    const fs::path directory = fs::temp_directory_path() / ("pollcore-eal-" + std::to_string(getpid()));
    fs::create_directory(directory);
    setenv("XDG_RUNTIME_DIR", directory.c_str(), 1);
    const auto files = [&] {
        std::set<std::string> all;
        for (const fs::path& place :
             {directory, fs::path("/var/run/dpdk"), fs::path("/dev/hugepages"), fs::path("/dev/shm")}) {
            if (fs::exists(place)) {
                for (const auto& entry : fs::recursive_directory_iterator(place)) {
                    if (!entry.is_directory()) {
                        all.insert(entry.path());
                    }
                }
            }
        }
        return all;
    };
    const auto before = files();
    EXPECT_EQ(in_child([]() -> std::string {
                  Runtime runtime(config_on(1));
                  return use(runtime);
              }),
              "");
    EXPECT_EQ(files(), before);
    fs::remove_all(directory);
}

// The runtime uses free hugepages. If there are none, it starts only if the configuration permits ordinary pages.
TEST_F(Eal, UsesHugepagesOrSaysWhyNot) {
    std::uint64_t free_pages = 0;
    std::ifstream("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages") >> free_pages;
    const bool enough = free_pages * 2 >= 64;
    EXPECT_EQ(in_child([&]() -> std::string {
                  Config config = config_on(1);
                  config.memory.hugepages = MemoryConfig::Hugepages::require;
                  try {
                      Runtime runtime(config);
                      return enough && runtime.report().hugepages ? use(runtime) : "started without hugepages";
                  } catch (const Error& error) {
                      const std::string what = error.what();
                      return !enough && what.find("nr_hugepages") != std::string::npos ? "" : what;
                  }
              }),
              "");
    EXPECT_EQ(in_child([&]() -> std::string {
                  Config config = config_on(1);
                  config.memory.hugepages = MemoryConfig::Hugepages::never;
                  Runtime runtime(config);
                  return runtime.report().hugepages ? "used hugepages" : use(runtime);
              }),
              "");
}

}  // namespace
}  // namespace pollcore
