#include "hang_report.hpp"

#include <pthread.h>

#include <chrono>
#include <string>

#include <fmt/format.h>

#include "base/log.hpp"
#include "base/quiet_thread.hpp"
#include "control/kernel_place.hpp"

namespace pollcore::daemon {
namespace {

using namespace std::chrono_literals;

// How long a report waits for a thread's call stack. A thread that takes the signal only needs its turn on a core.
constexpr auto kPatience = 500ms;
constexpr std::size_t kEntriesMax = 64;

std::string who(const ThreadHealth& thread) {
    return fmt::format("{} {} (thread {})", thread.kind == ThreadHealth::Kind::worker ? "worker" : "thread",
                       thread.name, thread.thread_id);
}

std::string what_it_does(const ThreadHealth& thread) {
    return fmt::format(
        "{} {} ms", thread.kind == ThreadHealth::Kind::worker ? "made no step for" : "has been busy with one thing for",
        std::chrono::duration_cast<std::chrono::milliseconds>(thread.busy).count());
}

}  // namespace

HangReport::HangReport(Backtrace& backtrace)
    : backtrace_(backtrace), thread_(start_quiet_thread([this] {
          pthread_setname_np(pthread_self(), "pollcore-report");
          loop();
      })) {}

HangReport::~HangReport() {
    {
        const std::lock_guard lock(mutex_);
        ending_ = true;
    }
    changed_.notify_one();
    thread_.join();
}

void HangReport::tell(const HangCheck::Findings& findings, bool watched) {
    const std::lock_guard lock(mutex_);
    const auto add = [this](Entry::What what, const std::vector<ThreadHealth>& threads) {
        for (const ThreadHealth& thread : threads) {
            if (entries_.size() < kEntriesMax) {
                entries_.push_back({what, thread});
            }
        }
    };
    add(Entry::What::over, findings.over);
    add(Entry::What::begun, findings.begun);
    if (watched) {
        add(Entry::What::starving, findings.starving);
    }
    changed_.notify_one();
}

void HangReport::loop() {
    std::unique_lock lock(mutex_);
    for (;;) {
        changed_.wait(lock, [this] { return ending_ || !entries_.empty(); });
        if (entries_.empty()) {
            return;
        }
        const Entry entry = std::move(entries_.front());
        entries_.pop_front();
        lock.unlock();
        write(entry);
        lock.lock();
    }
}

void HangReport::write(const Entry& entry) {
    const ThreadHealth& thread = entry.thread;
    switch (entry.what) {
        case Entry::What::begun:
            log_error("{} {}: it hangs {}", who(thread), what_it_does(thread), kernel_place(thread.thread_id));
            for (const std::string& line : backtrace_.of(thread.thread_id, kPatience)) {
                log_error("{}: {}", who(thread), line);
            }
            break;
        case Entry::What::starving:
            log_error("{} {}: the watchdog is not fed", who(thread), what_it_does(thread));
            break;
        case Entry::What::over:
            log_warning("{} goes on, after {} ms or a little more", who(thread),
                        std::chrono::duration_cast<std::chrono::milliseconds>(thread.busy).count());
            break;
    }
}

}  // namespace pollcore::daemon
