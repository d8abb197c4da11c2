// Tests I4 (runtime/README.md): in spin mode, over a million operations, neither the worker nor the application's
// thread makes a system call, allocates, or makes a voluntary context switch. This also holds for an attached
// application.
//
// A child process installs a seccomp filter on both threads. The filter kills the child on any system call except
// exit_group(2), so the test notices every violation. The parent checks how the child ended. The worker's thread
// installs its filter itself: the test replaces the software device's post function for one call.
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <new>
#include <optional>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "device/soft/soft_device.hpp"
#include "patient.hpp"
#include "pollcore/attach.hpp"
#include "pollcore/attach_server.hpp"
#include "pollcore/runtime.hpp"

namespace {

// The allocation hook: counts the allocations of the two hot threads.
std::atomic<std::uint64_t> hot_allocations{0};
thread_local bool hot = false;

void* allocate(std::size_t bytes, std::size_t alignment) {
    if (hot) {
        hot_allocations.fetch_add(1);
    }
    void* memory = alignment <= alignof(std::max_align_t)
                       ? std::malloc(bytes == 0 ? 1 : bytes)
                       : std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
    if (memory == nullptr) {
        throw std::bad_alloc();
    }
    return memory;
}

}  // namespace

void* operator new(std::size_t bytes) {
    return allocate(bytes, 1);
}
void* operator new[](std::size_t bytes) {
    return allocate(bytes, 1);
}
void* operator new(std::size_t bytes, std::align_val_t alignment) {
    return allocate(bytes, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t bytes, std::align_val_t alignment) {
    return allocate(bytes, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory) noexcept {
    std::free(memory);
}
void operator delete[](void* memory) noexcept {
    std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
    std::free(memory);
}
void operator delete[](void* memory, std::size_t) noexcept {
    std::free(memory);
}
void operator delete(void* memory, std::align_val_t) noexcept {
    std::free(memory);
}
void operator delete[](void* memory, std::align_val_t) noexcept {
    std::free(memory);
}
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
    std::free(memory);
}
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept {
    std::free(memory);
}

namespace pollcore {
namespace {

constexpr std::uint64_t kOperations = 1'000'000;

// From this call on, the calling thread may only compute. The filter permits one system call: exit_group(2), with which
// the child ends.
void forbid_system_calls() {
    const sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit_group, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    };
    const sock_fprog program{.len = std::size(filter), .filter = const_cast<sock_filter*>(filter)};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
        std::perror("seccomp");
        _exit(90);
    }
}

// The worker's thread calls this function once in place of the device's own post function. The hook is in the post
// function, because the worker calls it whichever way it polls its CQs.
std::atomic<bool> worker_confined{false};
int (*device_post)(ibv_qp*, ibv_send_wr*, ibv_send_wr**) = nullptr;
ibv_context* device_context = nullptr;

int confine_and_post(ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad) {
    hot = true;
    forbid_system_calls();
    std::atomic_ref(device_context->ops.post_send).store(device_post);
    worker_confined.store(true);
    return device_post(qp, wr, bad);
}

std::pair<std::uint64_t, std::uint64_t> context_switches(const std::string& task) {
    std::ifstream status("/proc/self/task/" + task + "/status");
    std::string key;
    std::uint64_t voluntary = ~0ull;
    std::uint64_t involuntary = ~0ull;
    while (status >> key) {
        if (key == "voluntary_ctxt_switches:") {
            status >> voluntary;
        } else if (key == "nonvoluntary_ctxt_switches:") {
            status >> involuntary;
        }
    }
    return {voluntary, involuntary};
}

// Exit codes of the child, so that the parent can report the error.
enum Outcome {
    kClean = 0,
    kNoRefusals = 91,
    kFailedWork = 92,
    kAllocated = 93,
    kSwitched = 94,
    kBadCount = 95,
    kSystemCall = 96
};

// Lets the child do a forbidden action, to prove that the test notices it.
enum class Sabotage { none, system_call, allocation };

// If `attach_path` is not empty, the application's thread attaches to this process's own server at that path. Otherwise
// it uses the runtime directly.
[[noreturn]] void child(const IdleLadder& idle, PollVerbs poll, Sabotage sabotage, const std::string& attach_path) {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(0, &one);
    sched_setaffinity(0, sizeof(one), &one);
    Config config;
    config.share_cores = true;  // other tests may run at the same time
    config.log_level = LogLevel::error;
    DeviceConfig device;
    device.name = "soft0";
    config.devices = {device};
    WorkerConfig worker;
    worker.name = "w0";
    worker.core = 1;
    worker.idle = idle;
    worker.poll = poll;
    config.workers = {worker};
    Runtime runtime(config);
    std::optional<AttachServer> server;
    std::optional<Attachment> attachment;
    if (!attach_path.empty()) {
        AttachConfig attach;
        attach.path = attach_path;
        server.emplace(runtime, attach);
        attachment.emplace(test::patient({.path = attach_path}));
    }
    Context& context = attachment ? static_cast<Context&>(*attachment) : runtime;
    Session session = context.open_session();
    MemoryRegion memory = context.allocate(1 << 16, Access::all());
    QueuePairOptions options{.shares = {{.session = &session, .send_depth = 128}},
                             .recv_depth = 64,
                             .inline_max = 64,
                             .remote_access = RemoteAccess::all()};
    QueuePair a = context.create_queue_pair(options);
    QueuePair b = context.create_queue_pair(options);
    const QpInfo info_a = a.info();
    a.connect(b.info());
    b.connect(info_a);

    const std::string worker_task = std::to_string(runtime.worker_thread_id(0));
    const std::string own_task = std::to_string(gettid());
    device_context = runtime.device().context();
    device_post = device_context->ops.post_send;
    std::atomic_ref(device_context->ops.post_send).store(&confine_and_post);
    if (session.try_submit({.qp = a.handle(), .opcode = Opcode::rdma_write, .flags = kSignaled}) != Refusal::none) {
        _exit(kFailedWork);
    }
    while (!worker_confined.load()) {
    }
    Completion first;
    while (session.poll({&first, 1}) == 0) {
    }
    const auto worker_before = context_switches(worker_task);
    const auto own_before = context_switches(own_task);

    // A thread without a filter reads the counts afterwards.
    std::atomic<int> phase{0};
    std::atomic<int> verdict{kClean};
    std::thread observer([&] {
        while (phase.load() != 1) {
            sched_yield();
        }
        const auto worker_after = context_switches(worker_task);
        const auto own_after = context_switches(own_task);
        if (worker_after.first != worker_before.first || own_after.first != own_before.first) {
            verdict.store(kSwitched);
        }
        phase.store(2);
    });
    cpu_set_t none_of_ours;
    CPU_ZERO(&none_of_ours);
    CPU_SET(0, &none_of_ours);
    CPU_SET(1, &none_of_ours);

    std::byte payload[32] = {};
    Completion completions[32];
    std::uint64_t accepted = 0;
    std::uint64_t finished = 0;
    std::uint64_t refusals = 0;
    std::uint64_t failures = 0;
    std::uint64_t posted_receives = 0;
    hot = true;
    forbid_system_calls();
    if (sabotage == Sabotage::system_call) {
        sched_yield();
    }
    if (sabotage == Sabotage::allocation) {
        // volatile, so that the compiler does not remove the allocation.
        char* volatile pointless = new char[100];
        delete[] pointless;
    }
    while (finished < kOperations) {
        for (int i = 0; i < 8 && accepted < kOperations; ++i) {
            WorkRequest request{.tag = accepted,
                                .sge = {memory.addr(), 64, memory.lkey()},
                                .remote_addr = memory.addr() + 4096,
                                .rkey = memory.rkey(),
                                .qp = a.handle(),
                                .opcode = Opcode::rdma_write,
                                .flags = accepted % 4 == 0 ? std::uint8_t{kSignaled} : std::uint8_t{0},
                                .num_sge = 1};
            Refusal refusal = Refusal::none;
            switch (accepted % 8) {
                case 1: {
                    WorkRequest receive{.tag = 1,
                                        .sge = {memory.addr() + 8192, 64, memory.lkey()},
                                        .qp = b.handle(),
                                        .opcode = Opcode::recv,
                                        .num_sge = 1};
                    refusal = session.try_submit(receive);
                    posted_receives += refusal == Refusal::none;
                    break;
                }
                case 2:
                    request.opcode = Opcode::send;
                    refusal = session.try_submit_inline(request, payload);
                    break;
                case 3:
                    request.opcode = Opcode::rdma_read;
                    refusal = session.try_submit(request);
                    break;
                case 4:
                    request.opcode = Opcode::atomic_fetch_and_add;
                    request.sge.length = 8;
                    refusal = session.try_submit(request);
                    break;
                case 5: refusal = session.try_submit(request.with_inline(payload)); break;
                default: refusal = session.try_submit(request); break;
            }
            if (refusal != Refusal::none) {
                ++refusals;
                break;
            }
            ++accepted;
        }
        const std::size_t n = session.poll(completions);
        for (std::size_t i = 0; i < n; ++i) {
            failures += !completions[i].ok();
        }
        if (accepted == kOperations || n != 0) {
            const SessionFigures figures = session.figures();
            finished = figures.completed + figures.retired - 1;  // does not count the request before the loop
            if (accepted == kOperations && figures.in_flight() < 64) {
                // the last unsignaled requests retire only with a later signaled request, and none follows
                finished = kOperations;
            }
        }
    }
    hot = false;
    phase.store(1);
    while (phase.load() != 2) {
    }
    int outcome = verdict.load();
    if (hot_allocations.load() != 0) {
        outcome = kAllocated;
    } else if (failures != 0) {
        outcome = kFailedWork;
    } else if (refusals == 0) {
        outcome = kNoRefusals;
    } else if (posted_receives < kOperations / 16) {
        outcome = kBadCount;
    }
    _exit(outcome);
}

int run(const IdleLadder& idle, Sabotage sabotage, PollVerbs poll = PollVerbs::extended,
        const std::string& attach_path = "") {
    const pid_t pid = fork();
    if (pid == 0) {
        alarm(120);
        child(idle, poll, sabotage, attach_path);
    }
    int status = 0;
    waitpid(pid, &status, 0);
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGSYS) {
        return kSystemCall;
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

class HotPath : public ::testing::Test {
protected:
    void SetUp() override { ASSERT_GE(std::thread::hardware_concurrency(), 2u) << "needs two cores"; }
};

TEST_F(HotPath, MakesNoSystemCallAndNoAllocationAndIsNotSwitchedAway) {
    EXPECT_EQ(run(IdlePolicy::spin, Sabotage::none), kClean);
}
TEST_F(HotPath, IsAsBareByIbvPollCq) {
    EXPECT_EQ(run(IdlePolicy::spin, Sabotage::none, PollVerbs::plain), kClean);
}
TEST_F(HotPath, IsAsBareWithThePauseInstruction) {
    EXPECT_EQ(run(IdlePolicy::pause, Sabotage::none), kClean);
}
// The worker may sleep, so its CQs have completion channels. Events of these CQs must not cause system calls.
TEST_F(HotPath, IsAsBareWhereTheWorkerSleepsWhenThereIsNothingToDo) {
    EXPECT_EQ(run({{IdlePolicy::spin, std::chrono::seconds(1)}, {IdlePolicy::event}}, Sabotage::none), kClean);
}
TEST_F(HotPath, IsAsBareForAnAttachedApplication) {
    const std::filesystem::path path =
        std::filesystem::temp_directory_path() / ("pollcore-hot-path-" + std::to_string(getpid()));
    EXPECT_EQ(run(IdlePolicy::spin, Sabotage::none, PollVerbs::extended, path), kClean);
    std::filesystem::remove(path);  // the child exits without removing it
}
TEST_F(HotPath, ThisTestSeesASystemCall) {
    EXPECT_EQ(run(IdlePolicy::spin, Sabotage::system_call), kSystemCall);
}
TEST_F(HotPath, ThisTestSeesAnAllocation) {
    EXPECT_EQ(run(IdlePolicy::spin, Sabotage::allocation), kAllocated);
}

}  // namespace
}  // namespace pollcore
