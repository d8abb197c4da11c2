// Writes into the log which threads hang, and where: the system call, the kernel's function, the call stack.
//
// It has a thread of its own, since writing may take a while, or wait: for an answer of the thread that hangs, for a
// lock that the hanging thread holds, or for the reader of the log.
//
// Thread safety: tell() by one thread.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "backtrace.hpp"
#include "hang_check.hpp"

namespace pollcore::daemon {

class HangReport {
public:
    /// Nobody else may use `backtrace` from here on.
    explicit HangReport(Backtrace& backtrace);
    /// Writes the findings that still wait.
    ~HangReport();
    HangReport(const HangReport&) = delete;
    HangReport& operator=(const HangReport&) = delete;

    /// Returns at once. If too many findings wait to be written, new ones are dropped. `watched`: there is a watchdog,
    /// which is starved.
    void tell(const HangCheck::Findings& findings, bool watched);

private:
    struct Entry {
        enum class What { begun, starving, over } what;
        ThreadHealth thread;
    };

    void loop();
    void write(const Entry& entry);

    Backtrace& backtrace_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<Entry> entries_;
    bool ending_ = false;
    std::thread thread_;
};

}  // namespace pollcore::daemon
