#include "base/log_writer.hpp"

#include <poll.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
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
    void set_function(std::shared_ptr<const LogFunction> function);
    [[nodiscard]] bool put(Line& line);
    [[nodiscard]] bool flush(std::chrono::milliseconds within) noexcept;
    void output_changed() noexcept { signal_event(wake_.get()); }

private:
    struct Waiting {
        Line line;
        std::uint64_t lost_before = 0;  // lines lost between the previous line and this one
    };

    // The thread notices discard() within this time, unless it is inside write(2).
    static constexpr std::chrono::milliseconds kGiveUpWithin{100};

    // For functions that may be called by a function that takes the lines. Call this with mutex_ held.
    [[nodiscard]] bool is_on_thread() const noexcept { return running_ && std::this_thread::get_id() == thread_; }
    bool flush(std::unique_lock<std::mutex>& lock, std::chrono::milliseconds within);

    void leave(std::unique_lock<std::mutex>& lock) noexcept;
    void loop();
    void settle(std::unique_lock<std::mutex>& lock);
    void write(const Line& line, const LogFunction* function, std::uint64_t discards) noexcept;
    [[nodiscard]] bool deliver(const Line& line, const LogFunction* function, std::uint64_t discards) noexcept;
    [[nodiscard]] bool await_room(std::uint64_t discards) noexcept;
    void discard() noexcept;

    [[maybe_unused]] const LogQueue* const of_parent_;  // keeps the parent's queue reachable
    const pid_t process_ = ::getpid();
    const UniqueFd wake_;  // wakes the thread while it waits for room in the output

    std::mutex mutex_;
    std::condition_variable come_;      // a line or a settle_ was put here, or the last user ends
    std::condition_variable progress_;  // a line was written or lost, or the thread has begun or ended
    std::deque<Waiting> waiting_;
    std::shared_ptr<const LogFunction> function_;  // null: the log's descriptor
    const LogFunction* called_ = nullptr;          // the function that the thread may be calling now
    std::size_t bytes_ = 0;                        // the bytes of all lines in waiting_
    std::uint64_t lost_behind_ = 0;                // lines lost since the last line in waiting_ was put here
    std::uint64_t taken_ = 0;                      // all lines that were ever put here
    std::uint64_t gone_ = 0;                       // lines that were put here, and have been written or lost
    std::uint64_t discards_ = 0;
    int users_ = 0;                 // LogWriters and, while it is set, the function
    std::function<void()> settle_;  // is still to be called
    bool placed_ = false;           // a LogWriter has given a settle_
    bool running_ = false;
    bool begun_ = false;
    std::thread::id thread_;
};

void LogQueue::begin(std::function<void()> settle) {
    std::unique_lock lock(mutex_);
    if (!running_) {
        begun_ = false;
        placed_ = false;
        std::thread thread = start_quiet_thread([this] { loop(); });
        thread_ = thread.get_id();
        thread.detach();
        running_ = true;
    }
    if (settle != nullptr && !std::exchange(placed_, true)) {
        settle_ = std::move(settle);
        come_.notify_one();
    }
    ++users_;
    progress_.wait(lock, [this] { return begun_; });
}

void LogQueue::set_function(std::shared_ptr<const LogFunction> function) {
    if (function != nullptr) {
        begin({});
    }
    std::unique_lock lock(mutex_);
    (void)flush(lock, LogWriter::kPatience);
    function_.swap(function);
    if (!is_on_thread()) {
        progress_.wait(lock, [&] { return called_ == nullptr || called_ != function.get(); });
    }
    if (function != nullptr) {
        leave(lock);
    }
}

void LogQueue::end() noexcept {
    std::unique_lock lock(mutex_);
    leave(lock);
}

// The last user waits for the end of the thread, which writes the waiting lines first. So a later line is written at
// once.
void LogQueue::leave(std::unique_lock<std::mutex>& lock) noexcept {
    if (--users_ > 0 || is_on_thread()) {
        return;
    }
    come_.notify_one();
    const auto over = [this] { return !running_ || users_ > 0; };
    if (!progress_.wait_for(lock, LogWriter::kPatience, over)) {
        discard();
        (void)progress_.wait_for(lock, kGiveUpWithin, over);
    }
}

bool LogQueue::put(Line& line) {
    const std::lock_guard lock(mutex_);
    if (!running_) {
        return false;
    }
    if (waiting_.size() >= kLogLinesMax || bytes_ + line.written.size() > LogWriter::kBytesMax) {
        ++lost_behind_;
        count_lost(1);
        return true;
    }
    waiting_.push_back({.line = {}, .lost_before = lost_behind_});
    std::swap(waiting_.back().line, line);
    bytes_ += waiting_.back().line.written.size();
    lost_behind_ = 0;
    ++taken_;
    come_.notify_one();
    return true;
}

bool LogQueue::flush(std::chrono::milliseconds within) noexcept {
    std::unique_lock lock(mutex_);
    return flush(lock, within);
}

bool LogQueue::flush(std::unique_lock<std::mutex>& lock, std::chrono::milliseconds within) {
    if (is_on_thread()) {
        return waiting_.empty();
    }
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
    pthread_setname_np(pthread_self(), "pollcore-log");
    run_anywhere();
    std::unique_lock lock(mutex_);
    for (;;) {
        if (settle_ != nullptr) {
            settle(lock);
        }
        if (!std::exchange(begun_, true)) {
            progress_.notify_all();
        }
        come_.wait(lock, [this] { return !waiting_.empty() || users_ == 0 || settle_ != nullptr; });
        if (settle_ != nullptr) {
            continue;
        }
        if (waiting_.empty()) {
            break;
        }
        const Waiting next = std::move(waiting_.front());
        waiting_.pop_front();
        bytes_ -= next.line.written.size();
        report_lost(next.lost_before + (waiting_.empty() ? std::exchange(lost_behind_, 0) : 0));
        const std::uint64_t discards = discards_;
        std::shared_ptr<const LogFunction> function = function_;
        called_ = function.get();
        lock.unlock();
        write(next.line, function.get(), discards);
        function.reset();  // its destructor may log, if this was the last reference
        lock.lock();
        called_ = nullptr;
        ++gone_;
        progress_.notify_all();
    }
    running_ = false;
    progress_.notify_all();
}

void LogQueue::settle(std::unique_lock<std::mutex>& lock) {
    const std::function<void()> settle = std::exchange(settle_, nullptr);
    lock.unlock();
    settle();
    lock.lock();
}

void LogQueue::write(const Line& line, const LogFunction* function, std::uint64_t discards) noexcept {
    const auto take = [&](const Line& one) noexcept { return deliver(one, function, discards); };
    if (!take(line)) {
        count_lost(1);
        report_lost(1);
    }
    say_losses(std::cref(take));  // by reference, because a copy would need memory
}

bool LogQueue::deliver(const Line& line, const LogFunction* function, std::uint64_t discards) noexcept {
    if (function == nullptr) {
        return await_room(discards) && write_now(line);
    }
    try {
        (*function)(line.parts());
        return true;
    } catch (...) {
        return false;
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

bool hand_over(Line& line) {
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

void set_log_function(LogFunction function) {
    if (function == nullptr) {
        if (log_detail::LogQueue* const queue = log_detail::living_queue(); queue != nullptr) {
            queue->set_function(nullptr);
        }
        return;
    }
    log_detail::queue_of_this_process().set_function(std::make_shared<const LogFunction>(std::move(function)));
}

bool flush_log(std::chrono::milliseconds within) noexcept {
    log_detail::LogQueue* const queue = log_detail::living_queue();
    return queue == nullptr || queue->flush(within);
}

}  // namespace pollcore
