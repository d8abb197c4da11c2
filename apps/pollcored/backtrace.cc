#include "backtrace.hpp"

#include <execinfo.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <memory>

#include <fmt/format.h>

#include "base/backtrace_signal.hpp"
#include "pollcore/error.hpp"

namespace pollcore::daemon {
namespace {

// The frames to leave out: the signal handler, and the frame through which it returns to the kernel.
constexpr int kOwnFrames = 2;

// The signal handler writes the stack here. A handler gets no argument, so there is only one slot. The asking thread
// stores the id of the asked thread in `asked`. Whichever thread changes `asked` back to 0 owns the slot: the asked
// thread writes its stack, or the asking thread has given up. The asking thread has read the last stack before it
// stores `asked` with release, and the asked thread's exchange acquires that store.
struct StackSlot {
    std::atomic<pid_t> asked{0};
    std::array<void*, 64> frames{};
    // Stored with release when the frames are written. Loaded with acquire before they are read.
    std::atomic<int> count{0};
    sem_t written{};  // wakes the asking thread when the frames are written
};
StackSlot slot;

void write_frames(int) {
    const int before = errno;
    pid_t self = static_cast<pid_t>(::syscall(SYS_gettid));
    if (slot.asked.compare_exchange_strong(self, 0, std::memory_order_acquire)) {
        // A signal handler may not make the first call of backtrace(3), because that call loads a library
        // (signal-safety(7)). The constructor of Backtrace makes the first call, so the call here is safe.
        slot.count.store(::backtrace(slot.frames.data(), static_cast<int>(slot.frames.size())),
                         std::memory_order_release);
        (void)::sem_post(&slot.written);
    }
    errno = before;
}

bool await_written(std::chrono::milliseconds patience) {
    timespec until{};
    (void)::clock_gettime(CLOCK_MONOTONIC, &until);
    const auto ns = std::chrono::nanoseconds(patience).count() + until.tv_nsec;
    until.tv_sec += ns / 1'000'000'000;
    until.tv_nsec = ns % 1'000'000'000;
    int result = 0;
    do {
        result = ::sem_clockwait(&slot.written, CLOCK_MONOTONIC, &until);
    } while (result != 0 && errno == EINTR);
    return result == 0;
}

}  // namespace

Backtrace::Backtrace() {
    wants_backtraces.store(true, std::memory_order_relaxed);
    (void)::backtrace(slot.frames.data(), 1);
    if (::sem_init(&slot.written, 0, 0) != 0) {
        throw Error(errno, "cannot make a semaphore for backtraces");
    }
    struct sigaction action {};
    action.sa_handler = write_frames;
    action.sa_flags = SA_RESTART;
    sigset_t wanted;
    sigemptyset(&wanted);
    sigaddset(&wanted, kBacktraceSignal);
    if (::sigaction(kBacktraceSignal, &action, nullptr) != 0) {
        throw Error(errno, "cannot handle the signal that asks for a backtrace (sigaction)");
    }
    if (const int error = ::pthread_sigmask(SIG_UNBLOCK, &wanted, nullptr); error != 0) {
        throw Error(error, "cannot unblock the signal that asks for a backtrace (pthread_sigmask)");
    }
}

std::vector<std::string> Backtrace::of(int thread_id, std::chrono::milliseconds patience) {
    if (written_late_ && !await_written(std::chrono::milliseconds(0))) {
        return {"no backtrace: a thread that was asked before still writes its own"};
    }
    written_late_ = false;
    slot.asked.store(thread_id, std::memory_order_release);
    if (::syscall(SYS_tgkill, ::getpid(), thread_id, kBacktraceSignal) != 0) {
        const int error = errno;
        slot.asked.store(0, std::memory_order_relaxed);
        return {fmt::format("no backtrace: cannot signal thread {}: {}", thread_id, std::strerror(error))};
    }
    if (!await_written(patience)) {
        pid_t still = thread_id;
        if (slot.asked.compare_exchange_strong(still, 0, std::memory_order_relaxed)) {
            return {fmt::format(
                "no backtrace: thread {} does not take the signal: it is stuck in the kernel, or a debugger "
                "has stopped it",
                thread_id)};
        }
        if (!await_written(patience)) {
            written_late_ = true;
            return {fmt::format("no backtrace: thread {} has begun to write one, and does not end", thread_id)};
        }
    }
    const int count = slot.count.load(std::memory_order_acquire);
    const std::unique_ptr<char*, decltype(&std::free)> symbols(::backtrace_symbols(slot.frames.data(), count),
                                                               &std::free);
    std::vector<std::string> lines;
    for (int i = kOwnFrames; i < count; ++i) {
        lines.push_back(symbols != nullptr ? std::string(symbols.get()[i])
                                           : fmt::format("{}", slot.frames[static_cast<std::size_t>(i)]));
    }
    return lines;
}

}  // namespace pollcore::daemon
