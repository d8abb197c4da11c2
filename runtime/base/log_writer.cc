#include "base/log_writer.hpp"

#include <poll.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <memory>
#include <mutex>
#include <utility>

#include "base/event_fd.hpp"
#include "base/log.hpp"
#include "base/quiet_thread.hpp"

namespace pollcore {
namespace log_detail {

// The lines that wait, and the thread that writes them. Each process has one queue, which is never destroyed: the
// thread may be inside write(2) when the last LogWriter ends.
class LogQueue {
public:
    explicit LogQueue(const LogQueue* of_parent) : of_parent_(of_parent), wake_(make_event_fd("the log's thread")) {}

    // A forked child has a copy of this object. The copy's mutex may be locked for ever.
    [[nodiscard]] bool is_of_this_process() const noexcept { return process_ == ::getpid(); }

    void begin(std::function<void()> settle);
    void end() noexcept;
    [[nodiscard]] bool put(std::string& line);
    [[nodiscard]] bool flush(std::chrono::milliseconds within) noexcept;
    void output_changed() noexcept { signal_event(wake_.get()); }

private:
    struct Waiting {
        std::string line;
        std::uint64_t lost_before = 0;  // lines lost between the previous line and this one
    };

    // The thread notices discard() within this time, unless it is inside write(2).
    static constexpr std::chrono::milliseconds kGiveUpWithin{100};

    void loop();
    void write(const std::string& line, std::uint64_t discards) noexcept;
    [[nodiscard]] bool await_room(std::uint64_t discards) noexcept;
    void discard() noexcept;

    [[maybe_unused]] const LogQueue* const of_parent_;  // keeps the parent's queue reachable
    const pid_t process_ = ::getpid();
    const UniqueFd wake_;  // wakes the thread while it waits for room in the output

    std::mutex mutex_;
    std::condition_variable come_;      // a line was put here, or the last LogWriter ends
    std::condition_variable progress_;  // a line was written or lost, or the thread has begun or ended
    std::deque<Waiting> waiting_;
    std::size_t bytes_ = 0;          // the bytes of all lines in waiting_
    std::uint64_t lost_behind_ = 0;  // lines lost since the last line in waiting_ was put here
    std::uint64_t taken_ = 0;        // all lines that were ever put here
    std::uint64_t gone_ = 0;         // lines that were put here, and have been written or lost
    std::uint64_t discards_ = 0;
    int users_ = 0;
    bool running_ = false;
    bool settled_ = false;
};

void LogQueue::begin(std::function<void()> settle) {
    std::unique_lock lock(mutex_);
    if (!running_) {
        settled_ = false;
        start_quiet_thread([this, settle = std::move(settle)] {
            settle();
            loop();
        }).detach();
        running_ = true;
    }
    ++users_;
    progress_.wait(lock, [this] { return settled_; });
}

void LogQueue::end() noexcept {
    std::unique_lock lock(mutex_);
    if (--users_ > 0) {
        return;
    }
    come_.notify_one();
    const auto over = [this] { return !running_ || users_ > 0; };
    if (!progress_.wait_for(lock, LogWriter::kPatience, over)) {
        discard();
        (void)progress_.wait_for(lock, kGiveUpWithin, over);
    }
}

bool LogQueue::put(std::string& line) {
    const std::lock_guard lock(mutex_);
    if (!running_) {
        return false;
    }
    if (waiting_.size() >= LogWriter::kLinesMax || bytes_ + line.size() > LogWriter::kBytesMax) {
        ++lost_behind_;
        count_lost(1);
        return true;
    }
    waiting_.push_back({.line = {}, .lost_before = lost_behind_});
    waiting_.back().line.swap(line);
    bytes_ += waiting_.back().line.size();
    lost_behind_ = 0;
    ++taken_;
    come_.notify_one();
    return true;
}

bool LogQueue::flush(std::chrono::milliseconds within) noexcept {
    std::unique_lock lock(mutex_);
    return progress_.wait_for(lock, within, [this, until = taken_] { return gone_ >= until; });
}

// Call this with mutex_ held. Besides the waiting lines, the line that the thread has taken out is lost, unless the
// thread is inside write(2).
void LogQueue::discard() noexcept {
    std::uint64_t to_report = lost_behind_;
    for (const Waiting& one : waiting_) {
        to_report += one.lost_before + 1;
    }
    count_lost(waiting_.size());
    report_lost(to_report);
    gone_ += waiting_.size();
    waiting_.clear();
    bytes_ = 0;
    lost_behind_ = 0;
    ++discards_;
    signal_event(wake_.get());
    progress_.notify_all();
}

// ---- The thread ----

void LogQueue::loop() {
    std::unique_lock lock(mutex_);
    settled_ = true;
    progress_.notify_all();
    for (;;) {
        come_.wait(lock, [this] { return !waiting_.empty() || users_ == 0; });
        if (waiting_.empty()) {
            break;
        }
        const Waiting next = std::move(waiting_.front());
        waiting_.pop_front();
        bytes_ -= next.line.size();
        report_lost(next.lost_before + (waiting_.empty() ? std::exchange(lost_behind_, 0) : 0));
        const std::uint64_t discards = discards_;
        lock.unlock();
        write(next.line, discards);
        lock.lock();
        ++gone_;
        progress_.notify_all();
    }
    running_ = false;
    progress_.notify_all();
}

void LogQueue::write(const std::string& line, std::uint64_t discards) noexcept {
    if (await_room(discards)) {
        (void)write_now(line);
    } else {
        count_lost(1);
        report_lost(1);
    }
    if (losses_unsaid() && await_room(discards)) {
        say_losses();
    }
}

// Waits for room in the output. Returns false if discard() was called; then the line must not be written. Otherwise
// there is room, and write(2) waits only if another process takes this room first.
bool LogQueue::await_room(std::uint64_t discards) noexcept {
    for (;;) {
        {
            const std::lock_guard lock(mutex_);
            if (discards_ != discards) {
                return false;
            }
        }
        pollfd either[] = {{.fd = output_fd(), .events = POLLOUT, .revents = 0},
                           {.fd = wake_.get(), .events = POLLIN, .revents = 0}};
        if (either[0].fd < 0 || ::poll(either, 2, -1) < 0) {
            // If the descriptor is bad, write(2) reports the error. If there was no memory for poll(2), write(2) may
            // wait, but only in this thread.
            return true;
        }
        if (either[1].revents != 0) {
            (void)drain_event(wake_.get());
        } else {
            return true;
        }
    }
}

// ---- The queue of the process ----

namespace {

std::atomic<LogQueue*> current_queue{nullptr};

LogQueue* living_queue() noexcept {
    LogQueue* const queue =
        current_queue.load(std::memory_order_acquire);  // pairs with the release in queue_of_this_process()
    return queue != nullptr && queue->is_of_this_process() ? queue : nullptr;
}

LogQueue& queue_of_this_process() {
    LogQueue* known = current_queue.load(std::memory_order_acquire);
    while (known == nullptr || !known->is_of_this_process()) {
        auto fresh = std::make_unique<LogQueue>(known);
        const bool first = known == nullptr;
        if (current_queue.compare_exchange_strong(known, fresh.get(), std::memory_order_acq_rel)) {
            if (first) {  // a forked child inherits the handler
                std::atexit([] { (void)flush_log(LogWriter::kPatience); });
            }
            return *fresh.release();
        }
    }
    return *known;
}

}  // namespace

bool hand_over(std::string& line) {
    LogQueue* const queue = living_queue();
    return queue != nullptr && queue->put(line);
}

void output_changed() noexcept {
    if (LogQueue* const queue = living_queue(); queue != nullptr) {
        queue->output_changed();
    }
}

}  // namespace log_detail

LogWriter::LogWriter(std::function<void()> settle) : queue_(log_detail::queue_of_this_process()) {
    queue_.begin(std::move(settle));
}

LogWriter::~LogWriter() {
    if (queue_.is_of_this_process()) {
        queue_.end();
    }
}

bool flush_log(std::chrono::milliseconds within) noexcept {
    log_detail::LogQueue* const queue = log_detail::living_queue();
    return queue == nullptr || queue->flush(within);
}

}  // namespace pollcore
